/* Text for a terminal: wrapped paragraphs and the likeliest meaning of a typing
 * error.  No state. */
#pragma once
#include <stddef.h>
#include <stdio.h>

#define WRAP_COLUMNS 80

/* Prints paragraphs (parted by empty lines; single line breaks are spaces; a line
 * that starts with a space is kept as it is), indented and wrapped. */
void wrap_print(FILE *to, int indent, const char *text);

/* The EXAMPLES section of a help text: pairs of lines, a command and what it does. */
void examples_print(FILE *to, const char *examples);

/* The candidate closest to what was typed, or NULL if none is close.  Fed one by
 * one: start with a zeroed struct nearest. */
struct nearest {
	const char *best;
	size_t distance;
};
void nearest_consider(struct nearest *n, const char *typed, const char *candidate);
