#include "cache/guard.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARD_MOST 64

/* Read by the handler at any moment: `size` is set last and cleared first. */
static struct {
	_Atomic uintptr_t start;
	_Atomic size_t size;
} ranges[GUARD_MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for those who change them */
static struct sigaction before;
static uintptr_t page = 4096;

static void on_bus_error(int signal, siginfo_t *info, void *context)
{
	uintptr_t at = (uintptr_t)info->si_addr;

	for (int i = 0; i < GUARD_MOST; i++) {
		size_t size = atomic_load(&ranges[i].size);
		uintptr_t start = atomic_load(&ranges[i].start);

		if (at >= start && at - start < size &&
		    mmap((void *)(at & ~(page - 1)), page, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1,
			 0) != MAP_FAILED)
			return;
	}
	sigaction(SIGBUS, &before, NULL); /* and it happens again */
}

static void handler_set(void)
{
	struct sigaction action = { .sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_NODEFER };

	page = (uintptr_t)sysconf(_SC_PAGESIZE);
	sigemptyset(&action.sa_mask);
	sigaction(SIGBUS, &action, &before);
}

void guard_add(void *start, size_t size)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, handler_set);
	pthread_mutex_lock(&lock);
	for (int i = 0; i < GUARD_MOST; i++) {
		if (atomic_load(&ranges[i].size))
			continue;
		atomic_store(&ranges[i].start, (uintptr_t)start);
		atomic_store(&ranges[i].size, size);
		break;
	}
	pthread_mutex_unlock(&lock);
}

void guard_remove(void *start)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < GUARD_MOST; i++)
		if (atomic_load(&ranges[i].size) && atomic_load(&ranges[i].start) == (uintptr_t)start)
			atomic_store(&ranges[i].size, 0);
	pthread_mutex_unlock(&lock);
}
