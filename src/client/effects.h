/* What a call to the server changes of the attributes this client knows (attrs.h).
 * client_call asks before and tells after every call. */
#pragma once
#include <stdint.h>

struct client;

/* After the call, from which *reply came if the result is 0: NULL if it was not wanted.  `begun` is attrs_begin's, from
 * before the call. */
void effects_note(struct client *c, uint16_t op, const void *request, const void *reply, int result, uint64_t begun);
