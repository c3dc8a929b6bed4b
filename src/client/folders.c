#include "client/folders.h"
#include <errno.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/clock.h"

void folders_init(struct folders *f)
{
	memset(f, 0, sizeof(*f));
	pthread_mutex_init(&f->lock, NULL);
}

void folders_free(struct folders *f) { pthread_mutex_destroy(&f->lock); }

uint64_t folders_begin(struct folders *f)
{
	LOCKED(&f->lock);
	return f->generation;
}

void folders_keep(struct folders *f, uint64_t begun, const struct attr *attr, uint32_t valid_ms)
{
	struct folder *slot = &f->slots[attr->inode % FOLDER_SLOTS];
	LOCKED(&f->lock);
	/* What is kept from before is too old now, even if the answer cannot be. */
	if (begun != f->generation || valid_ms == 0) {
		if (slot->attr.inode == attr->inode)
			slot->until_ns = 0;
		return;
	}
	/* Two answers may arrive in the other order than they were given. */
	if (slot->attr.inode == attr->inode && slot->attr.version > attr->version)
		return;
	slot->attr = *attr;
	slot->until_ns = clock_steady_ns() + (int64_t)valid_ms * NS_PER_MS;
}

void folders_learn(struct folders *f, uint64_t begun, const ProtobufCBinaryData *packed, uint32_t valid_ms)
{
	struct attr attr;
	if (packed->len > 0 && attr_unpack(packed->data, packed->len, &attr) == 0)
		folders_keep(f, begun, &attr, valid_ms);
}

void folders_grown(struct folders *f, uint64_t inode, int64_t time_ns)
{
	struct folder *slot = &f->slots[inode % FOLDER_SLOTS];
	LOCKED(&f->lock);
	if (slot->attr.inode != inode)
		return;
	slot->attr.mtime_ns = slot->attr.ctime_ns = time_ns;
	slot->attr.version++;
}

bool folders_find(struct folders *f, uint64_t inode, struct entry *out)
{
	struct folder *slot = &f->slots[inode % FOLDER_SLOTS];
	int64_t left_ns;
	LOCKED(&f->lock);
	left_ns = slot->until_ns - clock_steady_ns();
	if (slot->attr.inode != inode || left_ns <= 0)
		return false;
	out->attr = slot->attr;
	out->valid_ms = (uint32_t)(left_ns / NS_PER_MS);
	return true;
}

void folders_forget(struct folders *f, uint64_t inode)
{
	struct folder *slot = &f->slots[inode % FOLDER_SLOTS];
	LOCKED(&f->lock);
	f->generation++;
	if (inode == FOLDERS_ALL)
		memset(f->slots, 0, sizeof(f->slots));
	else if (slot->attr.inode == inode)
		slot->until_ns = 0;
}

void folders_doubt(struct folders *f, int error)
{
	if (error == -EIO)
		folders_forget(f, FOLDERS_ALL);
}
