/* What proto/epochfs.proto says about the ops a caller may use: which message
 * answers, and whether it is a mutation, to be numbered in a session. */
#pragma once
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

struct schema_op {
	uint16_t op;
	const char *name;
	const ProtobufCMessageDescriptor *reply;
	bool mutation;
};
const struct schema_op *schema_find(uint16_t op); /* NULL: not for callers */
