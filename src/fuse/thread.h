/* Threads that wait in the kernel for requests: started with all signals blocked but one,
 * SIGUSR1, which does nothing but end a wait. */
#pragma once
#include <pthread.h>

void thread_wakeable(void);                                             /* takes over SIGUSR1; before the first thread_wake */
int thread_start(pthread_t *out, void *(*run)(void *), void *argument); /* 0 or -errno */
void thread_wake(pthread_t thread);

/* A signal may come just before the thread goes to sleep, and be lost; so it is sent again
 * after a pause, until the thread has said that it ended, through `ended`. */
void thread_wake_pause(pthread_cond_t *ended, pthread_mutex_t *lock);
