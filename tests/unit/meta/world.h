/* The world of a test of src/meta: a state machine in a temporary folder, with a
 * clock the test owns, a volume "training" and a session on it.  Calls are the
 * operations with their usual arguments; each returns 0 or -errno. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include <errno.h>
#include <sys/stat.h>
#include "base/arena.h"
#include "meta/attr.h"
#include "meta/meta.h"

#define SESSION 7
#define START_NS (1700000000LL * NS_PER_S)

struct world {
	char folder[64]; /* holds meta/ */
	char meta_folder[80];
	struct meta *meta;
	struct arena arena;
	int64_t now_ns; /* what the clock says */
	struct clock clock;
	struct caller who; /* the session */
	uint64_t retention_s;
	uint64_t map_bytes; /* most the metadata may take */
	char why[200];      /* of the last mutation that was refused */
};

/* For cmocka: state is a struct world. */
int world_setup(void **state);
int world_teardown(void **state);
void world_make_folder(struct world *w);
void world_start(struct world *w); /* opens; makes volume and session if they are not there */
void world_stop(struct world *w);
void world_remove(struct world *w);

/* One mutation with a number; the reply (unpacked into the arena) or NULL. */
int world_mutate(struct world *w, uint16_t op, const void *request, void *reply_pointer);
int world_numbered(struct world *w, uint64_t number, uint64_t answered_below, uint16_t op, const void *request,
		   void *reply_pointer);
int world_read(struct world *w, uint16_t op, const void *request, void *reply_pointer);

/* Many mutations at once, so that they share batches.  `make` fills in the
 * request of number i (its memory from the arena); 0 if all went well, else the
 * first error. */
int world_burst(struct world *w, uint16_t op, int count, const void *(*make)(struct world *w, int i, void *context),
		void *context);
char *numbered_name(struct world *w, const char *format, int i) __attribute__((format(printf, 2, 0)));

int do_create(struct world *w, uint64_t parent, const char *name, uint32_t mode, struct attr *out);
int do_file(struct world *w, uint64_t parent, const char *name, struct attr *out);      /* regular, 0644, exclusive */
int do_directory(struct world *w, uint64_t parent, const char *name, struct attr *out); /* 0755 */
int do_symlink(struct world *w, uint64_t parent, const char *name, const char *target, struct attr *out);
int do_tmpfile(struct world *w, uint64_t parent, struct attr *out); /* left open */
int do_lookup(struct world *w, uint64_t parent, const char *name, struct attr *out);
int do_getattr(struct world *w, uint64_t inode, struct attr *out);
int do_link(struct world *w, uint64_t inode, uint64_t parent, const char *name, struct attr *out);
int do_unlink(struct world *w, uint64_t parent, const char *name);
int do_rmdir(struct world *w, uint64_t parent, const char *name);
int do_rename(struct world *w, uint64_t old_parent, const char *old_name, uint64_t new_parent, const char *new_name,
	      uint32_t flags);
int do_resolve(struct world *w, const char *path, struct attr *out);

void assert_attr_equal(const struct attr *a, const struct attr *b);
Wire__Volume *show_volume(struct world *w, const char *name); /* fails the test if there is none */
int count_names(struct world *w, uint64_t directory);         /* by READDIR, in small pieces */

static inline ProtobufCBinaryData bytes_of(const char *text) { return (ProtobufCBinaryData){ strlen(text), (uint8_t *)text }; }
