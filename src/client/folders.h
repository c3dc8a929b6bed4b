/* The attributes of directories this client has just changed something in.
 *
 * The kernel forgets a directory's attributes with every name made or removed in
 * it and asks for them at the next step through it; the answer to the change has
 * brought them already.  They are kept for as long as the server allowed.
 *
 * Whatever else changes a directory (a rename, new mode or xattrs) forgets, and
 * makes answers to calls that were under way meanwhile not be taken in: theirs may
 * be older.  Any thread. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "client/client.h"
#include "epochfs.pb-c.h"

#define FOLDER_SLOTS 256

struct folders {
	pthread_mutex_t lock;
	uint64_t generation;
	struct folder {
		struct attr attr;
		int64_t until_ns;
	} slots[FOLDER_SLOTS];
};

void folders_init(struct folders *f);
void folders_free(struct folders *f);
/* Before the call whose answer is learned. */
uint64_t folders_begin(struct folders *f);
void folders_learn(struct folders *f, uint64_t begun, const ProtobufCBinaryData *packed, uint32_t valid_ms);
void folders_keep(struct folders *f, uint64_t begun, const struct attr *attr, uint32_t valid_ms); /* unpacked */
/* This client made a file in it, at that time, without asking the server. */
void folders_grown(struct folders *f, uint64_t inode, int64_t time_ns);
bool folders_find(struct folders *f, uint64_t inode, struct entry *out);
#define FOLDERS_ALL 0
void folders_forget(struct folders *f, uint64_t inode); /* or FOLDERS_ALL */
void folders_doubt(struct folders *f, int error);       /* of a change: -EIO may mean that it was made and only the answer lost */
