/* A hash map from 64-bit keys to pointers.  Open addressing, grows by doubling,
 * about 24 bytes an entry.  NULL is not a value.  The caller owns keys, values
 * and locking.  A map that has become nearly empty shrinks. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct intmap {
	struct intmap_slot *slots;
	size_t used, capacity;
};

void intmap_free(struct intmap *m); /* not the values */
void *intmap_get(const struct intmap *m, uint64_t key);
int intmap_set(struct intmap *m, uint64_t key, void *value); /* 0 or -ENOMEM */
void *intmap_remove(struct intmap *m, uint64_t key);         /* the value, or NULL */
/* for (size_t i = 0; intmap_next(m, &i, &key, &value);): any order; the map
 * may not change while iterating. */
bool intmap_next(const struct intmap *m, size_t *position, uint64_t *key, void **value);
