/* What an answer of the server means for what this client knows: how long it may be kept
 * (attributes and names, also in the kernel; lease.h), and which known attributes a call
 * has changed (attrs.h).  client_call asks before and tells after every call. */
#pragma once
#include <stdint.h>

struct client;

/* After the call; reply: if the result is 0.  `begun` is attrs_begin's, from before the call. */
void effects_note(struct client *c, uint16_t op, const void *request, void *reply, int result, uint64_t begun);
