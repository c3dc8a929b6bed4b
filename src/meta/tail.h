/* The last key of a table, as the open batch knows it (view.c). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VIEW_KEY_MAX 511u /* LMDB's limit */

struct view_tail {
	bool known;
	size_t size;
	uint8_t key[VIEW_KEY_MAX];
};
