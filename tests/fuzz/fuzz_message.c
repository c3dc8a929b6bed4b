/* Every protobuf message, unpacked with an arena that has a limit: the first two
 * bytes choose it. */
#include "base/arena.h"
#include "epochfs.pb-c.h"
#include "tests/fuzz/fuzz.h"

#define ARENA_LIMIT (1u << 20)

static const ProtobufCMessageDescriptor *const messages[] = {
	&wire__empty__descriptor,
	&wire__error_reply__descriptor,
	&wire__hello_request__descriptor,
	&wire__hello_reply__descriptor,
	&wire__lease_reply__descriptor,
	&wire__reclaim_request__descriptor,
	&wire__reserve_request__descriptor,
	&wire__reserve_reply__descriptor,
	&wire__alloc_objects_request__descriptor,
	&wire__alloc_objects_reply__descriptor,
	&wire__inode_request__descriptor,
	&wire__name_request__descriptor,
	&wire__resolve_request__descriptor,
	&wire__entry_reply__descriptor,
	&wire__readdir_request__descriptor,
	&wire__readdir_reply__descriptor,
	&wire__bytes_reply__descriptor,
	&wire__xattr_request__descriptor,
	&wire__statfs_reply__descriptor,
	&wire__extents_request__descriptor,
	&wire__extents_reply__descriptor,
	&wire__open_request__descriptor,
	&wire__close_request__descriptor,
	&wire__create_request__descriptor,
	&wire__link_request__descriptor,
	&wire__rename_request__descriptor,
	&wire__removed_reply__descriptor,
	&wire__setattr_request__descriptor,
	&wire__commit_request__descriptor,
	&wire__commit_reply__descriptor,
	&wire__fallocate_request__descriptor,
	&wire__clone_request__descriptor,
	&wire__object_request__descriptor,
	&wire__volume__descriptor,
	&wire__volume_reply__descriptor,
	&wire__volume_list_reply__descriptor,
	&wire__volume_name_request__descriptor,
	&wire__volume_set_request__descriptor,
	&wire__trash_list_request__descriptor,
	&wire__trash_list_reply__descriptor,
	&wire__trash_restore_request__descriptor,
	&wire__trash_restore_reply__descriptor,
	&wire__trash_empty_request__descriptor,
	&wire__trash_empty_reply__descriptor,
	&wire__job_start_request__descriptor,
	&wire__job_poll_request__descriptor,
	&wire__job_reply__descriptor,
	&wire__status_reply__descriptor,
	&wire__session_begin__descriptor,
	&wire__session_end__descriptor,
	&wire__session_revoke__descriptor,
	&wire__reap_request__descriptor,
	&wire__reap_reply__descriptor,
	&wire__object_list__descriptor,
	&wire__repack_request__descriptor,
	&wire__repack_reply__descriptor,
	&wire__fix_request__descriptor,
	&wire__lease_request__descriptor,
	&wire__alloc_inodes_request__descriptor,
	&wire__alloc_inodes_reply__descriptor,
	&wire__create_many_request__descriptor,
	&wire__create_many_reply__descriptor,
	&wire__lock_request__descriptor,
	&wire__lock_reply__descriptor,
	&wire__lock_wait_reply__descriptor,
	&wire__lock_reclaim_request__descriptor,
	&wire__lock_reclaim_reply__descriptor,
	&wire__return_request__descriptor,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct arena arena;
	if (size < 1)
		return 0;
	const ProtobufCMessageDescriptor *type = messages[data[0] % (sizeof messages / sizeof *messages)];
	arena_init(&arena, ARENA_LIMIT);
	ProtobufCMessage *m = protobuf_c_message_unpack(type, &arena.allocator, size - 1, data + 1);
	REQUIRE(arena.taken <= ARENA_LIMIT);
	if (m) {
		/* What came in can be sent on, and says the same there. */
		size_t packed = protobuf_c_message_get_packed_size(m);
		CLEANUP_FREE uint8_t *out = malloc(packed + 1);
		REQUIRE(protobuf_c_message_pack(m, out) == packed);
	}
	arena_free(&arena);
	return 0;
}
