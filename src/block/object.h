/* An object in the store: stored forms of extents one after the other, then a
 * footer that says which object this is, so that a misplaced or cut-off object
 * is recognised.  A block object holds one extent, a pack many; they differ in
 * nothing else.
 *
 *   | extent | extent | ... | footer |
 *   footer (OBJECT_FOOTER bytes): "EPOCHFS1" | object id le64 | payload length le64 | XXH3-64 of the 24 bytes before le64
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define OBJECT_FOOTER 32u
#define OBJECT_SIZE_MAX ((128u << 20) + OBJECT_FOOTER)
#define OBJECT_KEY_TEXT 32

void object_footer_make(uint64_t object, uint64_t payload_length, uint8_t out[OBJECT_FOOTER]);
int object_footer_check(const uint8_t footer[OBJECT_FOOTER], uint64_t object, uint64_t object_size); /* 0 or -EBADMSG */

/* "o/" and two folders of 16 bits' worth of spreading, then the id: see the .c */
char *object_key(char out[OBJECT_KEY_TEXT], uint64_t object);
int object_key_parse(const char *key, uint64_t *out_object); /* 0 or -EINVAL */
