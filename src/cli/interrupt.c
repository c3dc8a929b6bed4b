#include "cli/interrupt.h"
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include "cli/verbs.h"

static void *watch(void *argument)
{
	struct interrupt *i = argument;
	struct pollfd fds[] = { { i->signals, POLLIN, 0 }, { i->wake, POLLIN, 0 } };
	struct signalfd_siginfo info;

	while (!fds[1].revents)
		if (poll(fds, 2, -1) > 0 && fds[0].revents && read(i->signals, &info, sizeof(info)) == sizeof(info))
			i->ended(i->context, (int)info.ssi_signo);
	return NULL;
}

void interrupt_leave_ignored(sigset_t *signals)
{
	struct sigaction action;

	for (int number = 1; number < SIGRTMIN; number++)
		if (sigismember(signals, number) == 1 && sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN)
			sigdelset(signals, number);
}

int interrupt_begin(struct interrupt *i, sigset_t *signals, void (*ended)(void *context, int number), void *context)
{
	int error;

	*i = (struct interrupt){ .ended = ended, .context = context };
	interrupt_leave_ignored(signals);
	pthread_sigmask(SIG_BLOCK, signals, &i->before);
	i->signals = signalfd(-1, signals, SFD_CLOEXEC);
	i->wake = eventfd(0, EFD_CLOEXEC);
	error = i->signals < 0 || i->wake < 0 ? errno : pthread_create(&i->thread, NULL, watch, i);
	i->watching = !error;
	if (error)
		verb_fail("cannot begin: %s", strerror(error));
	return -error;
}

void interrupt_end(struct interrupt *i)
{
	uint64_t one = 1;

	if (i->watching && write(i->wake, &one, sizeof(one)) == sizeof(one))
		pthread_join(i->thread, NULL);
	i->watching = false;
	if (i->signals >= 0)
		close(i->signals);
	if (i->wake >= 0)
		close(i->wake);
	i->signals = i->wake = -1;
}
