/* Requests as /dev/fuse would bring them. */
#include <errno.h>
#include "fuse/request.h"
#include "tests/fuzz/fuzz.h"

static size_t string_length(const char *s) { return s ? strlen(s) : 0; }

static void request_try(const uint8_t *bytes, size_t size)
{
	struct fuse_request q;
	int status = fuse_request_decode(bytes, size, &q);
	REQUIRE(status == 0 || status == -EBADMSG || status == -ENOSYS);
	REQUIRE(fuse_opcode_name(q.opcode) != NULL);
	(void)fuse_opcode_is_silent(q.opcode);
	if (status)
		return;
	size_t sum = string_length(q.name) + string_length(q.second);
	for (size_t i = 0; i < q.data_size; i++)
		sum += q.data[i];
	REQUIRE(sum <= size * 255);
	(void)fuse_request_is_harmless(&q);
}

/* As it came, and again with the length in the header put right. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	CLEANUP_FREE uint8_t *copy = malloc(size ? size : 1);
	if (size)
		memcpy(copy, data, size);
	request_try(copy, size);
	if (size >= 4) {
		uint32_t length = (uint32_t)size;
		memcpy(copy, &length, 4);
		request_try(copy, size);
	}
	return 0;
}
