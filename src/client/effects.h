/* What an answer of the server means for what this client knows: how long it may be kept
 * (attributes and names, also in the kernel; lease.h), and which known attributes a call
 * has changed (attrs.h).  client_call asks before and tells after every call. */
#pragma once
#include <stdint.h>

struct client;

#define RELAXED_MS 1000u /* on a relaxed volume, in company: how old names and attributes may be */

/* When the call began. */
struct begun {
	uint64_t attrs, catalog;
};
struct begun effects_begin(struct client *c);
/* After the call; reply: if the result is 0. */
void effects_note(struct client *c, uint16_t op, const void *request, void *reply, int result, struct begun begun);
