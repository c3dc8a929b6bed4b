/* Inside the fake client. */
#pragma once
#include <pthread.h>
#include "base/intmap.h"
#include "client/client.h"
#include "fake_client.h"

#define PAGE 4096u
#define ELSEWHERE "user.elsewhere."

struct name {
	char *text;
	uint64_t inode, cookie;
};
struct xattr {
	char *name;
	void *value;
	size_t size;
	struct xattr *next;
};
struct node {
	struct attr attr;
	char *target;
	struct name *names;
	size_t name_count;
	uint8_t **pages;
	size_t page_count;
	struct xattr *xattrs;
	unsigned opens;
};

struct client {
	pthread_mutex_t lock;
	struct intmap nodes;
	uint64_t next_inode, next_cookie;
	struct client_events events;
};

/* client.lock is held. */
struct node *node_get(struct client *c, uint64_t inode);
struct node *node_new(struct client *c, uint32_t mode, const struct client_identity *who);
struct name *name_find(struct node *dir, const char *text);
void name_add(struct client *c, struct node *dir, const char *text, struct node *n);
void resize(struct node *n, uint64_t size);

/* Without it.  What "another mount" does to the file of that name in a directory. */
int elsewhere(struct client *c, uint64_t directory, const char *what, const void *name, size_t name_length);
