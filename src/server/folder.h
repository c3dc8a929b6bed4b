/* The data directory and the store that belongs to it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct server;

/* Makes DIR if need be and locks it; `error` names the server that holds it. */
int folder_lock(const char *folder, int *out_fd, char *error, size_t error_size);
/* Locks a file (flock), with a little patience: -EBUSY if another process holds it. */
int folder_lock_try(int fd);
/* Whether DIR is the data directory of a server, or the store of one; none needs to run.  See base/marker.h. */
bool folder_is_served(const char *folder);
/* A number higher than at any start before: the milliseconds of now, unless the clock was set back since.  On record when it
 * returns. */
int folder_count_start(struct server *s, uint64_t *out, char *error, size_t error_size);
/* The store carries the id of the metadata that know its objects: another
 * server's store is refused, an unmarked one becomes ours. */
int folder_check_store(struct server *s, char *error, size_t error_size);
/* DIR/address: where we listen.  Only for information. */
void folder_write_address(struct server *s);
