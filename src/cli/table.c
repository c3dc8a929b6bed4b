#include "cli/table.h"
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void table_init(struct table *t, char *titles, int columns)
{
	*t = (struct table){ .columns = titles ? 0 : columns };
	while (titles && *titles && t->columns < TABLE_COLUMNS) {
		size_t length = strcspn(titles, "|");
		bool last = !titles[length];

		titles[length] = 0;
		t->right[t->columns] = titles[0] == '>';
		t->headers[t->columns++] = titles + (titles[0] == '>');
		titles += length + !last;
	}
}

void table_cell(struct table *t, const char *format, ...)
{
	char **bigger = reallocarray(t->cells, t->count + 1, sizeof(*t->cells));
	va_list args;

	if (!bigger) {
		t->failed = true;
		return;
	}
	t->cells = bigger;
	va_start(args, format);
	if (vasprintf(&t->cells[t->count], format, args) < 0)
		t->failed = true;
	else
		t->count++;
	va_end(args);
}

static int text_columns(const char *text)
{
	int columns = 0;

	for (; *text; text++)
		columns += ((unsigned char)*text & 0xc0) != 0x80;
	return columns;
}

static void print_cell(FILE *to, const struct table *t, int column, const char *text, int width)
{
	int missing = width - text_columns(text);
	bool last = column == t->columns - 1;

	if (column)
		fputs("  ", to);
	if (t->right[column])
		fprintf(to, "%*s%s", missing, "", text);
	else
		fprintf(to, "%s%*s", text, last ? 0 : missing, "");
}

static void print_rows(const struct table *t, FILE *to)
{
	int widths[TABLE_COLUMNS] = { 0 };

	for (int c = 0; c < t->columns; c++)
		widths[c] = t->headers[c] ? text_columns(t->headers[c]) : 0;
	for (size_t i = 0; i < t->count; i++) {
		int columns = text_columns(t->cells[i]), c = (int)(i % (size_t)t->columns);

		widths[c] = columns > widths[c] ? columns : widths[c];
	}
	for (int c = 0; t->headers[0] && c < t->columns; c++)
		print_cell(to, t, c, t->headers[c], widths[c]);
	if (t->headers[0])
		fputc('\n', to);
	for (size_t i = 0; i < t->count; i++) {
		int c = (int)(i % (size_t)t->columns);

		print_cell(to, t, c, t->cells[i], widths[c]);
		if (c == t->columns - 1)
			fputc('\n', to);
	}
}

int table_print(struct table *t, FILE *to)
{
	bool failed = t->failed;

	if (!failed)
		print_rows(t, to);
	for (size_t i = 0; i < t->count; i++)
		free(t->cells[i]);
	free(t->cells);
	*t = (struct table){ 0 };
	return failed ? -ENOMEM : 0;
}
