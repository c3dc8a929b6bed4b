/* Inside check: what the phases share. */
#pragma once
#include "meta/check.h"
#include "meta/op.h"

struct check_volume {
	uint32_t id;
	bool deleted;
	uint64_t next_inode;
	uint64_t recorded[4], counted[4]; /* used bytes, used files, trash bytes, trash files */
};

struct check_inode {
	uint64_t key; /* inode_key */
	uint64_t parent;
	int64_t unaccounted; /* recorded less counted bytes */
	uint32_t nlink, names, subdirectories;
	uint16_t mode;
	uint8_t flags;        /* of struct attr */
	uint8_t seen;         /* enum check_seen */
	uint64_t xattr_flags; /* ATTR_HAS_* counted */
};

struct check_object_count {
	uint64_t object;
	uint32_t volume, size, refs, found_refs;
	uint64_t live, found_live;
	uint32_t free_entries;
};

enum check_seen {
	SEEN_REACHABLE = 1, /* its parents lead to the root */
	SEEN_LOST = 2,      /* they do not */
	SEEN_ON_THE_WAY = 4,
	SEEN_IN_TRASH = 8,
	SEEN_FIX = 16, /* an InodeFix is made of it */
};

struct check {
	struct meta *meta;
	const struct check_options *options;
	struct check_result *result;
	struct view *view;
	struct op op; /* to read with; its volume and arena are whatever was last needed */
	struct arena scratch;
	struct check_volume *volumes;
	size_t volume_count;
	struct check_inode *inodes; /* by key */
	size_t inode_count, inode_room;
	struct check_object_count *objects; /* by id */
	size_t object_count, object_room;
	uint64_t next_object;
	bool unreadable; /* a record was: what is counted may be too little */
	const char *phase;
	enum table table;
	uint64_t steps, steps_all;
};

/* check.c */
int check_phase(struct check *c, const char *phase, enum table t);
int check_step(struct check *c); /* -ECANCELED */
/* A finding.  Repairable ones are counted as such. */
void check_report(struct check *c, bool repairable, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* A record of the phase's table makes no sense, so nothing can be counted from it. */
void check_unreadable(struct check *c, const char *what);
/* "training:/a/b (inode 5)", good until the next call. */
const char *check_name(struct check *c, uint64_t inode_key);
struct check_volume *check_volume_find(struct check *c, uint32_t id);
struct check_inode *check_inode_find(struct check *c, uint64_t key);
struct check_object_count *check_object_find(struct check *c, uint64_t object);
bool check_wants(const struct check *c, uint32_t volume); /* is it in what is being checked */
bool check_skips_tree(struct check *c, uint32_t volume);  /* deleted: its tables are being emptied */

/* check_tree.c: inodes, names, directories, trash, extended attributes */
int check_inodes(struct check *c);
int check_names(struct check *c);
int check_tree(struct check *c);
int check_trash(struct check *c);
int check_xattrs(struct check *c);
/* check_content.c: objects, extents, what is free, ranges and sessions */
int check_object_records(struct check *c);
int check_extents(struct check *c);
int check_free(struct check *c);
int check_counts(struct check *c);
int check_sessions(struct check *c);
/* check_fix.c */
int check_fix_make(struct check *c);
