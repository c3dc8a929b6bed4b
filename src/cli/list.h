/* A list of paths from a file or standard input ("-"), one a line, or each ended by a zero byte.  Empty ones are left out.  One thread. */
#pragma once
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

struct list {
	FILE *file;
	int end;     /* '\n' or 0 */
	off_t start; /* where it began; -1: it can be read once only */
	char *line;
	size_t capacity;
};

int list_open(struct list *l, const char *path, bool zeroes); /* 0 or -errno; list_close it in any case */
/* The same list, from its start, with a place of its own.  None, if the other is none.  0 or -errno; -ESPIPE: it can be read once only. */
int list_open_again(struct list *l, const struct list *other);
char *list_next(struct list *l); /* until the next call; NULL: that was all */
void list_close(struct list *l);
