/* Scope does the cleaning up.
 *
 *   CLEANUP_FREE char *name = strdup(x);     freed at the end of the scope
 *   CLEANUP_FD int fd = open(...);           closed if >= 0
 *   CLEANUP_BUF struct buf b = { 0 };        buf_free
 *   LOCKED(&m);                              the mutex is held to the end of the scope
 */
#pragma once
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/bytes.h"

static inline void cleanup_free(void *p) { free(*(void **)p); }
static inline void cleanup_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}
static inline void cleanup_unlock(pthread_mutex_t **m) { pthread_mutex_unlock(*m); }
static inline pthread_mutex_t *cleanup_lock(pthread_mutex_t *m)
{
	pthread_mutex_lock(m);
	return m;
}

#define CLEANUP_FREE __attribute__((cleanup(cleanup_free)))
#define CLEANUP_FD __attribute__((cleanup(cleanup_fd)))
#define CLEANUP_BUF __attribute__((cleanup(buf_free)))
#define LOCKED_NAME2(line) locked_at_##line
#define LOCKED_NAME(line) LOCKED_NAME2(line)
#define LOCKED(mutex) \
	__attribute__((cleanup(cleanup_unlock), unused)) pthread_mutex_t *LOCKED_NAME(__LINE__) = cleanup_lock(mutex)
