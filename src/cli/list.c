#include "cli/list.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int list_open(struct list *l, const char *path, bool zeroes)
{
	struct stat st;

	*l = (struct list){ .file = strcmp(path, "-") ? fopen(path, "re") : stdin, .end = zeroes ? 0 : '\n' };
	if (!l->file)
		return -errno;
	if (fstat(fileno(l->file), &st) < 0)
		return -errno;
	l->start = S_ISREG(st.st_mode) ? ftello(l->file) : -1;
	/* It can be opened, and would read as an empty list. */
	return S_ISDIR(st.st_mode) ? -EISDIR : 0;
}

/* By its descriptor: the name may be another file's by now, or be that of standard input. */
int list_open_again(struct list *l, const struct list *other)
{
	char path[40];

	*l = (struct list){ .end = other->end, .start = other->start };
	if (!other->file)
		return 0;
	if (other->start < 0)
		return -ESPIPE;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fileno(other->file));
	l->file = fopen(path, "re");
	return l->file && fseeko(l->file, l->start, SEEK_SET) == 0 ? 0 : -errno;
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
