#include "client/control_request.h"
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <string.h>
#include "client/warm.h"

#define AHEAD_MAX 1000000

static bool number_get(const json_t *value, uint64_t *out)
{
	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return false;
	*out = (uint64_t)json_integer_value(value);
	return true;
}

static bool op_get(const json_t *object, enum control_op *out)
{
	static const struct {
		const char *text;
		enum control_op op;
	} ops[] = { { "status", CONTROL_STATUS }, { "store", CONTROL_STORE }, { "warm", CONTROL_WARM },
		    { "order", CONTROL_ORDER },   { "next", CONTROL_NEXT },   { "progress", CONTROL_PROGRESS } };
	const char *text = json_string_value(json_object_get(object, "op"));

	for (size_t i = 0; text && i < sizeof(ops) / sizeof(ops[0]); i++) {
		if (!strcmp(ops[i].text, text)) {
			*out = ops[i].op;
			return true;
		}
	}
	return false;
}

/* [inode, size] or [inode, from, to] */
static bool file_get(const json_t *tuple, enum control_op op, struct control_file *out)
{
	size_t numbers = op == CONTROL_WARM ? 3 : 2;

	if (!json_is_array(tuple) || json_array_size(tuple) != numbers || !number_get(json_array_get(tuple, 0), &out->inode) ||
	    !out->inode || !number_get(json_array_get(tuple, numbers - 1), &out->to))
		return false;
	out->from = 0;
	return numbers == 2 || (number_get(json_array_get(tuple, 1), &out->from) && out->from <= out->to);
}

static bool files_get(const json_t *object, struct control_request *out)
{
	const json_t *files = json_object_get(object, "files");

	if (!json_is_array(files) || json_array_size(files) > CONTROL_FILES)
		return false;
	out->count = (uint32_t)json_array_size(files);
	for (uint32_t i = 0; i < out->count; i++)
		if (!file_get(json_array_get(files, i), out->op, &out->files[i]))
			return false;
	return true;
}

static unsigned flags_get(const json_t *object)
{
	return (json_is_true(json_object_get(object, "pin")) ? WARM_PIN : 0) |
	       (json_is_true(json_object_get(object, "unpin")) ? WARM_UNPIN : 0) |
	       (json_is_true(json_object_get(object, "verify")) ? WARM_VERIFY : 0);
}

static const char *request_take(const json_t *object, struct control_request *out)
{
	if (!json_is_object(object))
		return "it is no JSON object";
	if (!op_get(object, &out->op))
		return "there is no such op";
	out->count = 0;
	out->flags = flags_get(object);
	out->pinned = json_is_true(json_object_get(object, "pinned"));
	if ((out->op == CONTROL_WARM || out->op == CONTROL_NEXT) && !files_get(object, out))
		return "the files make no sense";
	if (out->op == CONTROL_WARM && (out->flags & WARM_PIN) && (out->flags & WARM_UNPIN))
		return "it cannot be pinned and not pinned";
	if (out->op == CONTROL_ORDER &&
	    (!number_get(json_object_get(object, "window"), &out->window) || !out->window ||
	     !number_get(json_object_get(object, "ahead"), &out->ahead) || !out->ahead || out->ahead > AHEAD_MAX))
		return "the window makes no sense";
	return NULL;
}

int control_decode(const char *line, size_t length, struct control_request *out, const char **why)
{
	json_error_t error;
	json_t *object = json_loadb(line, length, JSON_REJECT_DUPLICATES, &error);

	*why = object ? request_take(object, out) : "it is no JSON";
	json_decref(object);
	return *why ? -EBADMSG : 0;
}
