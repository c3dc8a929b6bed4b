#include "fuse/bare.h"
#include "base/clock.h"

/* Inode numbers have 40 bits.  That the other 24 come round again within the time
 * something may be cached would take a million changes a second. */
#define COUNT_BITS 24
#define INODE_LIMIT ((uint64_t)1 << (64 - COUNT_BITS))

static size_t slot_of(uint64_t inode) { return (inode * 0x9e3779b97f4a7c15ull >> 32) % BARE_SLOTS; }

static uint64_t word_of(uint64_t inode, uint64_t mark)
{
	return inode << COUNT_BITS | (mark & (((uint64_t)1 << COUNT_BITS) - 1));
}

/* Marks count from 1.  `done` is read first: if it then equals `begun`, none was under way. */
uint64_t bare_begin(struct bare *b)
{
	uint64_t done = atomic_load(&b->done), begun = atomic_load(&b->begun);

	return begun == done ? begun + 1 : 0;
}

void bare_learn(struct bare *b, uint64_t mark, const struct entry *e)
{
	size_t i = slot_of(e->attr.inode);

	if (!mark || !(e->valid_ms | e->granted_ms) || e->attr.inode >= INODE_LIMIT)
		return;
	if (e->attr.flags & (ATTR_HAS_XATTR | ATTR_HAS_ACL | ATTR_HAS_DEFAULT))
		return;
	/* In this order, and read in the other one: no inode gets a later time than its own. */
	atomic_store(&b->slots[i].word, word_of(e->attr.inode, mark));
	atomic_store(&b->slots[i].until_ns, clock_steady_ns() + (e->valid_ms ? e->valid_ms : e->granted_ms) * NS_PER_MS);
}

bool bare_is(struct bare *b, uint64_t inode)
{
	size_t i = slot_of(inode);
	int64_t until_ns = atomic_load(&b->slots[i].until_ns);
	uint64_t word = atomic_load(&b->slots[i].word);

	return inode < INODE_LIMIT && word == word_of(inode, atomic_load(&b->begun) + 1) && clock_steady_ns() < until_ns;
}

void bare_change_begin(struct bare *b) { atomic_fetch_add(&b->begun, 1); }

void bare_change_end(struct bare *b) { atomic_fetch_add(&b->done, 1); }
