#include "cli/wrap.h"
#include <stdbool.h>
#include <string.h>

static void pad(FILE *to, int indent) { fprintf(to, "%*s", indent, ""); }

/* One paragraph of running text; returns where it ended. */
static const char *print_paragraph(FILE *to, int indent, const char *text)
{
	int column = 0;

	while (*text && !(text[0] == '\n' && (text[1] == '\n' || text[1] == ' ' || !text[1]))) {
		size_t length = strcspn(text, " \n");

		if (length) {
			if (column && column + 1 + (int)length > WRAP_COLUMNS) {
				fputc('\n', to);
				column = 0;
			}
			if (!column) {
				pad(to, indent);
				column = indent;
			} else {
				fputc(' ', to);
				column++;
			}
			fwrite(text, 1, length, to);
			column += (int)length;
			text += length;
		}
		if (*text == ' ' || (*text == '\n' && text[1] != '\n' && text[1] != ' '))
			text++;
	}
	if (column)
		fputc('\n', to);
	return text;
}

void wrap_print(FILE *to, int indent, const char *text)
{
	while (*text) {
		if (*text == '\n') {
			if (text[1] == '\n')
				fputc('\n', to);
			text++;
		} else if (*text == ' ') {
			size_t length = strcspn(text, "\n");

			pad(to, indent);
			fwrite(text, 1, length, to);
			fputc('\n', to);
			text += length;
		} else {
			text = print_paragraph(to, indent, text);
		}
	}
}

void examples_print(FILE *to, const char *examples)
{
	bool command = true;

	fprintf(to, "EXAMPLES\n");
	while (*examples) {
		size_t length = strcspn(examples, "\n");

		fprintf(to, "%s%.*s\n", command ? "    " : "        ", (int)length, examples);
		examples += length + (examples[length] == '\n');
		command = !command;
	}
}

/* Edit distance with swapped neighbours counted once; words longer than this are
 * never typing errors of each other. */
#define WORD_MAX 40

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static size_t word_distance(const char *a, const char *b)
{
	size_t n = strlen(a), m = strlen(b);
	size_t rows[3][WORD_MAX + 1];

	if (n > WORD_MAX || m > WORD_MAX)
		return WORD_MAX;
	for (size_t j = 0; j <= m; j++)
		rows[0][j] = j;
	for (size_t i = 1; i <= n; i++) {
		size_t *now = rows[i % 3], *before = rows[(i - 1) % 3], *swap = rows[(i + 1) % 3];

		now[0] = i;
		for (size_t j = 1; j <= m; j++) {
			now[j] = smaller(before[j - 1] + (a[i - 1] != b[j - 1]), smaller(before[j], now[j - 1]) + 1);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				now[j] = smaller(now[j], swap[j - 2] + 1);
		}
	}
	return rows[n % 3][m];
}

void nearest_consider(struct nearest *n, const char *typed, const char *candidate)
{
	size_t length = strlen(typed);
	size_t distance = word_distance(typed, candidate);
	size_t allowed = length <= 3 ? 1 : length <= 6 ? 2 : 3;

	/* What was typed may also just be cut short. */
	if (length >= 3 && !strncmp(typed, candidate, length))
		distance = 1;
	if (distance <= allowed && (!n->best || distance < n->distance)) {
		n->best = candidate;
		n->distance = distance;
	}
}
