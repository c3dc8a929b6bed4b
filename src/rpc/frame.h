/* A frame: header, message, bulk bytes.  All little-endian.
 *
 *   0  message length 4     up to FRAME_MESSAGE_MAX
 *   4  bulk length 4        up to FRAME_BULK_MAX
 *   8  op 2                 enum Op of proto/epochfs.proto
 *  10  flags 2              FRAME_REPLY
 *  12  status 4             reply: 0 or a positive errno
 *  16  id 8                 pairs a reply with its request
 *  24  number 8             request: of the mutation in its session, 0 if none
 *  32  clock 8              request: all mutations below this number were answered
 *                           reply: the server's wall clock, ns
 *
 * Checked before any memory is taken. */
#pragma once
#include <stdint.h>

#define FRAME_HEADER 40u
#define FRAME_MESSAGE_MAX (4u << 20)
#define FRAME_BULK_MAX ((128u << 20) + 4096)
#define PROTOCOL_VERSION 1u

enum frame_flags { FRAME_REPLY = 1 };

struct frame {
	uint32_t message_length, bulk_length;
	uint16_t op, flags;
	uint32_t status;
	uint64_t id, number, clock;
};

void frame_pack(const struct frame *f, uint8_t out[FRAME_HEADER]);
int frame_unpack(const uint8_t in[FRAME_HEADER], struct frame *out); /* 0 or -EBADMSG */
