/* JSON output: stable snake_case names, sizes in bytes, times in RFC 3339, UTC. */
#pragma once
#include <jansson.h>
#include <stdint.h>

json_t *json_time(int64_t wall_ns);
/* A file name or path; bytes that are not UTF-8 become U+FFFD (entries have a
 * number to be told apart by). */
json_t *json_bytes(const void *bytes, size_t size);
json_t *json_count(uint64_t n);

/* Appends to *list, giving up the item; out of memory makes *list NULL. */
void json_append(json_t **list, json_t *item);

/* Prints and gives up the reference; NULL is an object that memory did not
 * suffice for.  The exit code. */
int json_finish(json_t *value);
