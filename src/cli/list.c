#include "cli/list.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int list_open(struct list *l, const char *path, bool zeroes)
{
	*l = (struct list){ .file = strcmp(path, "-") ? fopen(path, "re") : stdin, .end = zeroes ? 0 : '\n' };
	return l->file ? 0 : -errno;
}

char *list_next(struct list *l)
{
	ssize_t n;

	while (l->file && (n = getdelim(&l->line, &l->capacity, l->end, l->file)) > 0) {
		if (l->line[n - 1] == l->end)
			l->line[--n] = 0;
		if (n)
			return l->line;
	}
	return NULL;
}

void list_close(struct list *l)
{
	if (l->file && l->file != stdin)
		fclose(l->file);
	free(l->line);
	*l = (struct list){ 0 };
}
