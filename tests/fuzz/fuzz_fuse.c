/* Requests as /dev/fuse would bring them, and as io_uring would. */
#include <errno.h>
#include "fuse/request.h"
#include "fuse/slot.h"
#include "tests/fuzz/fuzz.h"

static size_t string_length(const char *s) { return s ? strlen(s) : 0; }

static void result_check(int status, const struct fuse_request *q, size_t size)
{
	REQUIRE(status == 0 || status == -EBADMSG || status == -ENOSYS);
	REQUIRE(fuse_opcode_name(q->opcode) != NULL);
	(void)fuse_opcode_is_silent(q->opcode);
	if (status)
		return;
	size_t sum = string_length(q->name) + string_length(q->second);
	for (size_t i = 0; i < q->data_size; i++)
		sum += q->data[i];
	REQUIRE(sum <= size * 255);
	(void)fuse_request_is_harmless(q);
}

static void request_try(const uint8_t *bytes, size_t size)
{
	struct fuse_request q;
	int status = fuse_request_decode(bytes, size, &q);
	result_check(status, &q, size);
}

/* The first byte after the headers says how much of the rest is the payload. */
static void slot_try(const uint8_t *bytes, size_t size)
{
	static struct slot *s;
	CLEANUP_FREE uint8_t *copy = malloc(SLOT_COPY_BYTES);
	size_t heads = sizeof(struct fuse_in_header) + sizeof(s->header->op_in) + 1, rest = size - heads;
	struct fuse_request q;
	bool copied;
	if (size < heads || (!s && !(s = slot_new(0))))
		return;
	memcpy(s->header->in_out, bytes, sizeof(struct fuse_in_header));
	memcpy(s->header->op_in, bytes + sizeof(struct fuse_in_header), sizeof(s->header->op_in));
	memcpy(s->payload, bytes + heads, rest);
	s->header->ring_ent_in_out.payload_sz = (uint32_t)(bytes[heads - 1] & 0x80 ? rest : bytes[heads - 1]);
	result_check(slot_decode(s, copy, &q, &copied), &q, FUSE_DATA_MAX);
}

/* As it came, and again with the length in the header put right. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	CLEANUP_FREE uint8_t *copy = malloc(size ? size : 1);
	if (size)
		memcpy(copy, data, size);
	request_try(copy, size);
	slot_try(copy, size);
	if (size >= 4) {
		uint32_t length = (uint32_t)size;
		memcpy(copy, &length, 4);
		request_try(copy, size);
		slot_try(copy, size);
	}
	return 0;
}
