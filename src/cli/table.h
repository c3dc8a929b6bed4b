/* Aligned columns for people.
 *
 *	NAME      USED     FILES
 *	training  1.2 GiB  12,345
 *
 * A table keeps copies of its cells and prints them when all widths are known.
 * Failed allocations are remembered and reported by table_print.  One thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define TABLE_COLUMNS 10

struct table {
	const char *headers[TABLE_COLUMNS];
	bool right[TABLE_COLUMNS]; /* numbers */
	int columns;
	char **cells;
	size_t count;
	bool failed;
};

/* Titles parted by '|'; one that starts with '>' is aligned to the right:
 * "NAME|>FILES|MOUNT POINT".  NULL: no titles, `columns` of text. */
void table_init(struct table *t, char *titles, int columns);
void table_cell(struct table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
int table_print(struct table *t, FILE *to); /* and frees it; 0 or -ENOMEM */
