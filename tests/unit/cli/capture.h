/* What a function prints: standard output or error goes to a temporary file
 * between capture_begin and capture_end. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

struct capture {
	int saved, target;
	FILE *stream, *file;
	char text[16384];
};

static inline void capture_begin(struct capture *c, FILE *stream)
{
	fflush(stream);
	c->stream = stream;
	c->target = fileno(stream);
	c->saved = dup(c->target);
	c->file = tmpfile();
	assert_non_null(c->file);
	assert_true(dup2(fileno(c->file), c->target) >= 0);
}

static inline const char *capture_end(struct capture *c)
{
	size_t length;

	fflush(c->stream);
	dup2(c->saved, c->target);
	close(c->saved);
	rewind(c->file);
	length = fread(c->text, 1, sizeof(c->text) - 1, c->file);
	c->text[length] = 0;
	fclose(c->file);
	return c->text;
}

static inline void assert_contains(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("\"%s\" does not contain \"%s\"", text, part);
}
