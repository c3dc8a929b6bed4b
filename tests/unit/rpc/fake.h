/* A server made of a few lines that misbehaves on demand. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "rpc/connection.h"

#define CONNECTIONS 256

/* What the fake does with the next `trouble_count` requests that are not HELLO. */
enum trouble {
	NONE,
	CUT_BEFORE_ANSWER,
	CUT_IN_MID_FRAME,
	GARBAGE,
	OVERSIZED_LENGTH,
	ANSWER_TWICE,
	WRONG_ID,
	SILENCE,
	BULK_TOO_SHORT,
	MESSAGE_GARBAGE,
};

struct fake {
	char folder[54], address[160];
	int listening;
	pthread_t acceptor;
	pthread_t threads[CONNECTIONS];
	struct connection *connections[CONNECTIONS];
	_Atomic uint64_t instance, session; /* session: what HELLO answers to a mount */
	_Atomic int count, hellos, mutations, asked, refuse_hello;
	_Atomic bool ignore_hello;
	_Atomic int trouble, trouble_count;
	_Atomic uint64_t last_number, last_answered_below;
	_Atomic bool hold; /* GETATTR is answered only after this is false */
	_Atomic int held;
	pthread_mutex_t lock;
	uint64_t done[4096]; /* numbers applied, to notice a repetition */
	int done_count, repeated;
};

void fake_start(struct fake *fake);
void fake_stop(struct fake *fake); /* as kill -9: nothing more is answered */
void make_trouble(struct fake *fake, enum trouble trouble, int count);

/* For cmocka: *state is a struct fake that was started. */
int fake_setup(void **state);
int fake_teardown(void **state);
