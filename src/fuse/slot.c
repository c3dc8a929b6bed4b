#include "fuse/slot.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096u
#define STRUCT_AT 512u /* in the first page, behind the kernel's header */
#define SLOT_BYTES (PAGE + FUSE_DATA_MAX)
#define TRIM_BYTES (64u << 10)
#define OP_IN_BYTES sizeof(((struct fuse_uring_req_header *)0)->op_in)
#define HEADS_BYTES (sizeof(struct fuse_in_header) + OP_IN_BYTES)

_Static_assert(sizeof(struct fuse_uring_req_header) <= STRUCT_AT, "the kernel's header and ours do not overlap");
_Static_assert(STRUCT_AT + sizeof(struct slot) + HEADS_BYTES <= PAGE, "all heads fit into one page");

struct slot *slot_new(uint16_t queue)
{
	uint8_t *memory = mmap(NULL, SLOT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct slot *s;

	if (memory == MAP_FAILED)
		return NULL;
	s = (struct slot *)(memory + STRUCT_AT);
	s->header = (struct fuse_uring_req_header *)memory;
	s->payload = memory + PAGE;
	s->queue = queue;
	return s;
}

void slot_free(struct slot *s) { munmap(s->header, SLOT_BYTES); }

bool slot_is_large(const struct slot *s) { return s->used > TRIM_BYTES; }

void slot_trim_sent(struct slot *s)
{
	if (!slot_is_large(s))
		return;
	madvise(s->payload + TRIM_BYTES, FUSE_DATA_MAX - TRIM_BYTES, MADV_DONTNEED);
	s->used = 0;
}

void slot_trim(struct slot *s)
{
	if (s->header->ring_ent_in_out.payload_sz <= TRIM_BYTES)
		slot_trim_sent(s);
}

/* What one thread has answered comes before what another is then asked.  The kernel sees to that, but ThreadSanitizer does not know
 * (as it does of read and write). */
#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *address);
void __tsan_release(void *address);
static char kernel;
#define KERNEL_ASKS() __tsan_acquire(&kernel)
#define KERNEL_IS_ANSWERED() __tsan_release(&kernel)
#else
#define KERNEL_ASKS() (void)0
#define KERNEL_IS_ANSWERED() (void)0
#endif

static void slot_use(struct slot *s, size_t bytes)
{
	if (bytes > s->used)
		s->used = bytes;
}

static void command_fill(struct slot *s, struct io_uring_sqe *sqe, uint32_t command, uint64_t commit_id)
{
	struct fuse_uring_cmd_req *request = (struct fuse_uring_cmd_req *)sqe->cmd;

	memset(sqe, 0, 2 * sizeof(*sqe));
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->flags = IOSQE_FIXED_FILE;
	sqe->cmd_op = command;
	request->qid = s->queue;
	request->commit_id = commit_id;
	io_uring_sqe_set_data(sqe, s);
}

void slot_register(struct slot *s, struct io_uring_sqe *sqe)
{
	command_fill(s, sqe, FUSE_IO_URING_CMD_REGISTER, 0);
	s->memory[0] = (struct iovec){ s->header, sizeof(*s->header) };
	s->memory[1] = (struct iovec){ s->payload, FUSE_DATA_MAX };
	sqe->addr = (uintptr_t)s->memory;
	sqe->len = 2;
}

void slot_commit(struct slot *s, struct io_uring_sqe *sqe)
{
	KERNEL_IS_ANSWERED();
	command_fill(s, sqe, FUSE_IO_URING_CMD_COMMIT_AND_FETCH, s->header->ring_ent_in_out.commit_id);
}

uint64_t slot_unique(const struct slot *s) { return s->header->ring_ent_in_out.commit_id; }

uint32_t slot_opcode(const struct slot *s) { return ((const struct fuse_in_header *)s->header->in_out)->opcode; }

/* The decoder wants one piece.  A large payload stays where it is, and the headers are put before it. */
int slot_decode(struct slot *s, uint8_t *copy, struct fuse_request *out, bool *copied)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)s->header->in_out;
	size_t payload = s->header->ring_ent_in_out.payload_sz, heads = in->len - payload;
	uint8_t *bytes;

	KERNEL_ASKS();
	*copied = payload <= SLOT_COPIED_MAX;
	if (payload > FUSE_DATA_MAX || in->len < payload || heads < sizeof(*in) || heads > HEADS_BYTES) {
		*out = (struct fuse_request){ .opcode = in->opcode, .unique = slot_unique(s) };
		return -EBADMSG;
	}
	slot_use(s, payload);
	bytes = *copied ? copy : s->payload - heads;
	memcpy(bytes, in, sizeof(*in));
	memcpy(bytes + sizeof(*in), s->header->op_in, heads - sizeof(*in));
	if (*copied)
		memcpy(bytes + heads, s->payload, payload);
	return fuse_request_decode(bytes, heads + payload, out);
}

int slot_answer(struct slot *s, const struct iovec *parts, int count)
{
	size_t bytes = 0;

	for (int i = 1; i < count; i++)
		bytes += parts[i].iov_len;
	if (bytes > FUSE_DATA_MAX)
		return -EMSGSIZE;
	memcpy(s->header->in_out, parts[0].iov_base, sizeof(struct fuse_out_header));
	s->header->ring_ent_in_out.payload_sz = (uint32_t)bytes;
	slot_use(s, bytes);
	bytes = 0;
	for (int i = 1; i < count; i++) {
		memcpy(s->payload + bytes, parts[i].iov_base, parts[i].iov_len);
		bytes += parts[i].iov_len;
	}
	return 0;
}

void slot_answer_error(struct slot *s, int error)
{
	struct fuse_out_header h = { .len = sizeof(h), .error = error, .unique = slot_unique(s) };

	memcpy(s->header->in_out, &h, sizeof(h));
	s->header->ring_ent_in_out.payload_sz = 0;
}
