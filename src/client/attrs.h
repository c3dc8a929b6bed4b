/* Attributes this client knows, as the server told them: without what this client has
 * written and not stored yet.
 *
 * Under the lease of the volume they hold until this client itself changes them (or
 * the lease goes: then all are forgotten); without it, for as long as the server
 * allowed, or as the grant of the directory that covers them is held (catalog_grant).
 * A fixed number of slots, 128 bytes each, only touched when used; a slot
 * taken by another inode costs a call, nothing else.
 *
 * Whoever changes an inode forgets it afterwards.  An answer that was on its way
 * meanwhile may be older than the change: attrs_learn does not take it in.
 *
 * Any thread. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "meta/attr.h"

#define ATTRS_SLOTS (1u << 17)
#define ATTRS_FORGOTTEN 1024u

struct attrs {
	pthread_mutex_t lock; /* guards all below */
	struct attrs_slot *slots;
	size_t used;
	uint64_t generation;                 /* grows with everything forgotten */
	uint64_t oldest;                     /* answers to calls that began before are never taken in */
	uint64_t forgotten[ATTRS_FORGOTTEN]; /* which inode, by generation */
};

int attrs_init(struct attrs *a);
void attrs_free(struct attrs *a);

/* Before the call whose answer is learned. */
uint64_t attrs_begin(struct attrs *a);
bool attrs_learn(struct attrs *a, uint64_t begun, const struct attr *attr, uint32_t valid_ms); /* false: not taken in */
/* For how many ms they hold; 0: not known.  `lease_ms`: what is left of the lease. */
uint32_t attrs_find(struct attrs *a, uint64_t inode, uint32_t lease_ms, struct attr *out);
bool attrs_learn_granted(struct attrs *a, uint64_t begun, const struct attr *attr, uint64_t grant);
uint64_t attrs_find_granted(struct attrs *a, uint64_t inode, struct attr *out); /* the grant; 0: not known by one */
void attrs_forget(struct attrs *a, uint64_t inode);
bool attrs_have_room(struct attrs *a); /* more would not push out what is there */
void attrs_forget_all(struct attrs *a);
/* This client made a file in the directory, at that time, without asking the server. */
void attrs_grown(struct attrs *a, uint64_t directory, int64_t time_ns);
