/* Mounts in company, over raw connections: what they ask for, are told, and give back. */
#pragma once
#include "fixture.h"

#define FOR_EVER_MS 600000 /* a lease no test waits for */
#define SHORT_MS 1000
#define A_WHILE_MS 100 /* an answer that must not come is waited for so long */

#define NONE WIRE__GRANT__GRANT_NONE
#define READ WIRE__GRANT__GRANT_READ
#define WRITE WIRE__GRANT__GRANT_WRITE
#define ROOT 1

struct mount {
	struct raw talk, lease;
	uint64_t session, mutations;
	uint64_t number, revoked; /* of the lease, as told last */
	uint64_t done;
	const Wire__LeaseReply *told;
};

uint64_t hello(struct raw *w, uint64_t session, bool read_only);
bool answered_within(struct raw *w, int ms);
void listen_with(struct mount *m, uint64_t done, Wire__Written *written);
void listen_on(struct mount *m);
const Wire__LeaseReply *hear(struct mount *m);
void mount_open(struct fixture *f, struct mount *m, bool read_only);
void mount_close(struct mount *m);
void company_open(struct fixture *f, int64_t lease_ms, struct mount *all, int count);
void company_close(struct mount *all, int count);
uint64_t expect_recall(struct mount *m, uint64_t inode, Wire__RecallKind kind);
void mutation_send(struct mount *m, uint16_t op, const void *request);
int mutate(struct mount *m, uint16_t op, const void *request);
const struct attr *entry(struct mount *m, Wire__Grant *grant);
Wire__CreateRequest create_request(uint64_t parent, const char *name, uint32_t mode);
uint64_t make(struct mount *m, uint64_t parent, const char *name, uint32_t mode);
uint64_t make_file(struct mount *m, const char *name);
int granted(struct mount *m, uint16_t op);
int open_file(struct mount *m, uint64_t inode, int want);
void want_send(struct mount *m, uint64_t inode, int want);
int want_got(struct mount *m);
int want(struct mount *m, uint64_t inode, int grant);
void give_back(struct mount *m, uint64_t inode, int left, uint64_t recall);
bool list(struct mount *m, uint64_t inode);
void create_send(struct mount *m, uint64_t parent, const char *name);
void chmod_send(struct mount *m, uint64_t inode, uint32_t mode);
int commit_size(struct mount *m, uint64_t inode, uint64_t size, uint64_t lease);
uint64_t files_open(struct fixture *f);
const struct attr *look(struct mount *m, uint64_t inode);
int reclaim(struct mount *m, uint64_t *opens, size_t open_count, uint32_t *grants, size_t grant_count);
void mount_again(struct fixture *f, struct mount *m);
