/* The metadata half of fsck, and what scrub and gc need to know of objects.
 *
 * check_run looks at one snapshot: every record of every table is decoded and
 * everything that is kept twice is counted again.  It changes nothing; what is
 * safe to correct comes back as a FixRequest for the FIX mutation.  That holds
 * *differences* (counted less recorded), so that it is right whatever has been
 * changed between the check and the repair.
 *
 * Memory: 48 bytes an inode and 48 bytes an object, and the findings.  Any
 * thread; as long as it runs, LMDB cannot reuse pages freed meanwhile. */
#pragma once
#include "meta/meta.h"
#include "meta/op.h"

struct check_options {
	uint32_t volume; /* 0: all */
	/* Each may be NULL.  `all` is 0 where nobody knows. */
	void (*progress)(void *context, const char *phase, uint64_t done, uint64_t all);
	bool (*cancelled)(void *context);
	void *context;
	uint32_t max_findings; /* lines kept; 0: 1,000 */
};

struct check_result {
	char **findings; /* one line each */
	size_t findings_count;
	uint64_t problems;   /* also those without a line */
	uint64_t repairable; /* of them, corrected by `fix` (one correction may cure several) */
	uint64_t volumes, inodes, names, extents, objects, free_objects, trashed, xattrs, sessions;
	Wire__FixRequest *fix; /* empty lists: nothing to correct */
	struct arena memory;
};

/* 0 if it could be done, whatever was found; -ECANCELED, -ENOMEM, -EIO.  The
 * result is to be freed in any case. */
int check_run(struct meta *m, const struct check_options *o, struct check_result *r);
void check_result_free(struct check_result *r);

/* An extent that refers to an object. */
struct check_extent {
	uint32_t volume;
	uint64_t inode;
	struct extent extent;
};
struct check_object {
	uint64_t object;
	struct object_record record;
	const struct check_extent
		*extents; /* all of them, by object offset and slice; clones name the same bytes more than once */
	size_t count;
};

struct check_objects_options {
	uint32_t volume;    /* 0: all */
	size_t max_extents; /* held in memory at once (72 bytes each); 0: 1,000,000 */
	bool (*wanted)(void *context, uint64_t object, const struct object_record *record); /* NULL: all */
	/* No snapshot is held while this runs, so it may take its time with the
	 * store; but then an object or extent may be gone.  Non-zero ends the walk. */
	int (*each)(void *context, const struct check_object *o);
	void *context;
};
/* Every object with references, in the order of ids.  0, what `each` said, or -errno. */
int check_objects(struct meta *m, const struct check_objects_options *o);

/* The path of an inode, for people ("/a/b"; "?" for what is not known any more). */
int meta_path(struct meta *m, uint32_t volume, uint64_t inode, struct buf *out);
