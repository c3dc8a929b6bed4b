#include <errno.h>
#include "base/cleanup.h"
#include "meta/machine.h"

#define ANSWER_KEY 16u
#define ANSWER_HEAD 4u

static void answer_key(uint64_t session, uint64_t number, uint8_t key[ANSWER_KEY])
{
	put_be64(key, session);
	put_be64(key + 8, number);
}

int answer_find(struct view *v, uint64_t session, uint64_t number, int *status, struct span *packed)
{
	uint8_t key[ANSWER_KEY];
	struct span value;
	int r;

	answer_key(session, number, key);
	r = view_get(v, TABLE_ANSWER, key, sizeof(key), &value);
	if (r < 0)
		return r;
	if (value.size < ANSWER_HEAD)
		return -EBADMSG;
	*status = -(int)get_le32(value.data);
	*packed = (struct span){ value.data + ANSWER_HEAD, value.size - ANSWER_HEAD };
	return 0;
}

int answer_keep(struct view *v, uint64_t session, uint64_t number, int status, const void *packed, size_t size)
{
	uint8_t key[ANSWER_KEY];
	CLEANUP_BUF struct buf value = { 0 };

	buf_le32(&value, (uint32_t)-status);
	buf_append(&value, packed, size);
	if (value.failed)
		return -ENOMEM;
	answer_key(session, number, key);
	return view_put(v, TABLE_ANSWER, key, sizeof(key), value.data, value.len);
}

int answers_trim(struct view *v, uint64_t session, uint64_t below, unsigned max)
{
	uint8_t key[ANSWER_KEY];
	struct cursor c;
	int r;

	answer_key(session, 0, key);
	for (unsigned i = 0; i < max; i++) {
		r = cursor_open(&c, v, TABLE_ANSWER);
		if (r < 0)
			return r;
		r = cursor_seek(&c, key, sizeof(key));
		if (r == 0 && c.key.size == ANSWER_KEY)
			memcpy(key, c.key.data, ANSWER_KEY);
		cursor_close(&c);
		if (r < 0)
			return r == -ENOENT ? 0 : r;
		if (get_be64(key) != session || get_be64(key + 8) >= below)
			return 0;
		r = view_delete(v, TABLE_ANSWER, key, sizeof(key));
		if (r < 0)
			return r;
	}
	return 0;
}
