/* Ctrl-C while a verb gets ready, and may hang in any system call: for a list that comes by a pipe, or a mount that does not answer.
 *
 *	CLEANUP_INTERRUPT struct interrupt early;
 *	if (interrupt_begin(&early, &signals, ended, context))
 *		return EXIT_FAILED;
 *	...
 *	interrupt_end(&early);
 *
 * In between, one of the signals calls `ended`, on a thread of its own, and that has to end the process: with _exit, as the others may
 * hold any lock of standard input and the like.  They are blocked from interrupt_begin on, and stay so: one that comes after
 * interrupt_end waits for whoever asks for it.  Those that are ignored, as by nohup, are taken out of the set and stay ignored: a
 * signal that is blocked would come, ignored or not. */
#pragma once
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

struct interrupt {
	void (*ended)(void *context, int number);
	void *context;
	sigset_t before; /* what was blocked, for processes to be started */
	int signals, wake;
	pthread_t thread;
	bool watching;
};

/* 0, or -errno, said. */
int interrupt_begin(struct interrupt *i, sigset_t *signals, void (*ended)(void *context, int number), void *context);
void interrupt_end(struct interrupt *i); /* twice is fine */
#define CLEANUP_INTERRUPT __attribute__((cleanup(interrupt_end)))

/* The same for a verb that waits for signals itself. */
void interrupt_leave_ignored(sigset_t *signals);
