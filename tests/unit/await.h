#pragma once

#include <unistd.h>

/* Waits until `what` is true; fails after 20 s.  After <cmocka.h>. */
#define AWAIT(what) \
	do { \
		for (int await_n = 0; !(what); await_n++) { \
			assert_true(await_n < 4000); \
			usleep(5000); \
		} \
	} while (0)
