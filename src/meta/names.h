/* What the handlers that change names share (namespace.c). */
#pragma once
#include "meta/op.h"

/* Names in it came or went: stores it with new times. */
int directory_changed(struct op *op, struct attr *directory);
/* The inode lost this name: one link less, and to the trash with the last.  Stores *a. */
int name_lost(struct op *op, struct attr *a, uint64_t parent, const void *name, size_t size);
