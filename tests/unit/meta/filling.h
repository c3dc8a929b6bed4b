/* For tests of src/meta: files with contents.  Stored forms are uncompressed and
 * small; nothing of them is in a store. */
#pragma once
#include "world.h"
#include "base/bytes.h"
#include "block/extent.h"
#include "meta/check.h"

#define GIVEN 8 /* extents of one file in a commit */

/* A commit as it is being put together; fill_begin, then objects and extents. */
struct filling {
	Wire__CommitRequest request;
	Wire__NewObject objects[8], *object_pointers[8];
	Wire__FileCommit files[16], *file_pointers[16];
	struct buf extents[16];
};
void fill_begin(struct filling *f);
/* An object with room for `payload` bytes; its id comes from the session's range. */
uint64_t fill_object(struct world *w, struct filling *f, uint32_t payload);
void fill_object_as(struct filling *f, uint64_t object, uint32_t payload);
Wire__FileCommit *fill_file(struct filling *f, uint64_t inode);
/* The next extent of the file begun last: `length` bytes at `offset`, stored at `object_offset`. */
struct extent fill_extent(struct filling *f, uint64_t offset, uint32_t length, uint64_t object, uint32_t object_offset);
void fill_extent_as(struct filling *f, const struct extent *e);
int fill_commit(struct world *w, struct filling *f, Wire__CommitReply **reply); /* and frees it */

struct extent extent_of(uint64_t offset, uint32_t length, uint64_t object, uint32_t object_offset);
uint64_t do_alloc(struct world *w, uint32_t count);
/* One extent in an object of its own; the object. */
uint64_t do_write(struct world *w, uint64_t inode, uint64_t offset, uint32_t length);
int do_truncate(struct world *w, uint64_t inode, uint64_t size);
int do_clone(struct world *w, uint64_t source, uint64_t from, uint64_t target, uint64_t to, uint64_t length, struct attr *out);
int do_fallocate(struct world *w, uint64_t inode, uint32_t mode, uint64_t offset, uint64_t length, struct attr *out);
size_t get_extents(struct world *w, uint64_t inode, uint64_t from, uint32_t max, struct extent *out, size_t room, uint64_t *next);
struct object_record get_object(struct world *w, uint64_t object);
int find_object(struct world *w, uint64_t object, struct object_record *out);
size_t count_free(struct world *w);
bool is_free(struct world *w, uint64_t object);

/* As the server itself. */
int admin_mutate(struct world *w, uint16_t op, const void *request, void *reply_pointer);
void do_reap_all(struct world *w, uint32_t max_extents);

/* Runs fsck and fails the test with its findings if there are any. */
void assert_clean(struct world *w);
/* Runs fsck, expects a finding that contains the text, repairs and expects it clean. */
void assert_finds(struct world *w, const char *text);
void assert_finds_and_repairs(struct world *w, const char *text);
