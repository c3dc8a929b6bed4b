#include "fuse/thread.h"
#include <signal.h>
#include <time.h>
#include "base/clock.h"

#define WAKE_SIGNAL SIGUSR1
#define WAKE_AGAIN_NS (10 * NS_PER_MS)

static void wake_nothing(int signal) {}

void thread_wakeable(void)
{
	struct sigaction wake = { .sa_handler = wake_nothing };

	sigemptyset(&wake.sa_mask);
	sigaction(WAKE_SIGNAL, &wake, NULL);
}

/* Other signals are for the main thread, but for what a thread does to itself. */
int thread_start(pthread_t *out, void *(*run)(void *), void *argument)
{
	sigset_t all, before;
	int error;

	sigfillset(&all);
	sigdelset(&all, WAKE_SIGNAL);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = -pthread_create(out, NULL, run, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

void thread_wake(pthread_t thread) { pthread_kill(thread, WAKE_SIGNAL); }

void thread_wake_pause(pthread_cond_t *ended, pthread_mutex_t *lock)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += WAKE_AGAIN_NS;
	if (until.tv_nsec >= NS_PER_S) {
		until.tv_nsec -= NS_PER_S;
		until.tv_sec++;
	}
	pthread_cond_timedwait(ended, lock, &until);
}
