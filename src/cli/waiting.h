/* Space that is not back yet: what was freed stays in the store for a while, for those who still read it. */
#pragma once
#include "epochfs.pb-c.h"

#define WAITING_TEXT 200

/* "5 GiB in 3 objects, deleted by 11/15/2026 20:05:09 UTC at the latest"; NULL: there is none. */
const char *waiting_text(char out[WAITING_TEXT], const Wire__StatusReply *status);
