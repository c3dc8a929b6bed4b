#include "rpc/frame.h"
#include <errno.h>
#include "base/bytes.h"

#define STATUS_MAX 4095u /* the kernel's largest errno */

void frame_pack(const struct frame *f, uint8_t out[FRAME_HEADER])
{
	put_le32(out, f->message_length);
	put_le32(out + 4, f->bulk_length);
	put_le16(out + 8, f->op);
	put_le16(out + 10, f->flags);
	put_le32(out + 12, f->status);
	put_le64(out + 16, f->id);
	put_le64(out + 24, f->number);
	put_le64(out + 32, f->clock);
}

int frame_unpack(const uint8_t in[FRAME_HEADER], struct frame *out)
{
	struct frame f = {
		.message_length = get_le32(in),
		.bulk_length = get_le32(in + 4),
		.op = get_le16(in + 8),
		.flags = get_le16(in + 10),
		.status = get_le32(in + 12),
		.id = get_le64(in + 16),
		.number = get_le64(in + 24),
		.clock = get_le64(in + 32),
	};

	if (f.message_length > FRAME_MESSAGE_MAX || f.bulk_length > FRAME_BULK_MAX)
		return -EBADMSG;
	if ((f.flags & ~FRAME_REPLY) || f.status > STATUS_MAX)
		return -EBADMSG;
	if (!(f.flags & FRAME_REPLY) && f.status)
		return -EBADMSG;
	*out = f;
	return 0;
}
