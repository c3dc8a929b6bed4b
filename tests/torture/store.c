/* Objects: encode two extents into one, put it, read it back, decode, list, delete. */
#include <errno.h>
#include <string.h>
#include "base/cleanup.h"
#include "block/extent.h"
#include "block/object.h"
#include "store/store.h"
#include "tests/torture/inject.h"

#define RAW 150000u
#define OBJECT 0x51234u

struct scenario {
	char folder[100], url[120];
	uint8_t raw[RAW];
	bool put_done, delete_done;
};

static void prepare(void *context)
{
	struct scenario *s = context;
	torture_folder(s->folder, sizeof s->folder, "store");
	snprintf(s->url, sizeof s->url, "dir:%s/objects", s->folder);
	for (uint32_t i = 0; i < RAW; i++)
		s->raw[i] = (uint8_t)(i / 700);
	s->put_done = s->delete_done = false;
}

static int object_put(struct scenario *s, struct store *store, struct extent extents[2])
{
	CLEANUP_BUF struct buf payload = { 0 };
	char key[OBJECT_KEY_TEXT];
	uint8_t footer[OBJECT_FOOTER];
	int error = extent_encode(s->raw, RAW, CODEC_ZSTD, 3, &payload, &extents[0]);
	if (!error)
		error = extent_encode(s->raw, 5000, CODEC_LZ4, 0, &payload, &extents[1]);
	if (error)
		return error;
	object_footer_make(OBJECT, payload.len, footer);
	struct iovec parts[] = { { payload.data, payload.len }, { footer, sizeof footer } };
	error = store_put(store, object_key(key, OBJECT), parts, 2);
	s->put_done = !error;
	return error;
}

static int object_get(struct scenario *s, struct store *store, const struct extent *e)
{
	char key[OBJECT_KEY_TEXT];
	CLEANUP_FREE uint8_t *stored = malloc(e->stored_length);
	CLEANUP_FREE uint8_t *raw = malloc(e->raw_length);
	if (!stored || !raw)
		return -ENOMEM;
	int error = store_get(store, object_key(key, OBJECT), e->object_offset, stored, e->stored_length);
	if (!error)
		error = extent_decode(e, stored, raw);
	if (!error)
		REQUIRE(memcmp(raw, s->raw, e->raw_length) == 0);
	return error;
}

static int count_one(void *context, const char *key, uint64_t size)
{
	uint64_t object;
	REQUIRE(object_key_parse(key, &object) == 0 && object == OBJECT && size > OBJECT_FOOTER);
	++*(int *)context;
	return 0;
}

static int objects_use(struct scenario *s, struct store *store)
{
	struct extent extents[2] = { 0 };
	struct store_space space;
	char key[OBJECT_KEY_TEXT];
	int listed = 0, error = object_put(s, store, extents);
	for (int i = 0; !error && i < 2; i++)
		error = object_get(s, store, &extents[i]);
	if (!error)
		error = store_list(store, "o/", count_one, &listed);
	if (!error)
		REQUIRE(listed == 1);
	if (!error)
		error = store_space(store, &space);
	if (!error) {
		int fd = store_descriptor(store, object_key(key, OBJECT));
		if (fd >= 0)
			close(fd);
		error = fd < 0 ? fd : 0;
	}
	if (!error)
		error = store_delete(store, object_key(key, OBJECT));
	s->delete_done = !error;
	return error;
}

static int run(void *context)
{
	struct scenario *s = context;
	struct store *store;
	char error[200];
	int status = store_open(s->url, &store, error, sizeof error);
	if (status)
		return status;
	status = objects_use(s, store);
	store_close(store);
	return status;
}

/* The object is there whole or not at all, and nothing else is. */
static void verify(void *context, int status)
{
	struct scenario *s = context;
	struct store *store;
	char error[200], key[OBJECT_KEY_TEXT];
	uint8_t footer[OBJECT_FOOTER];
	uint64_t size = 0;
	int listed = 0;
	REQUIRE(store_open(s->url, &store, error, sizeof error) == 0);
	int found = store_stat(store, object_key(key, OBJECT), &size);
	REQUIRE(found == 0 || found == -ENOENT);
	if (s->put_done && !s->delete_done)
		REQUIRE(found == 0);
	if (s->delete_done)
		REQUIRE(found == -ENOENT);
	if (found == 0) {
		REQUIRE(store_get(store, key, size - OBJECT_FOOTER, footer, OBJECT_FOOTER) == 0);
		REQUIRE(object_footer_check(footer, OBJECT, size) == 0);
	}
	REQUIRE(store_list(store, "", count_one, &listed) == 0);
	REQUIRE(listed == (found == 0));
	store_close(store);
	torture_folder_remove(s->folder);
}

int main(int argc, char **argv)
{
	static struct scenario s;
	static const struct torture t = { .name = "store", .prepare = prepare, .run = run, .verify = verify, .context = &s };
	return torture_main(&t, argc, argv);
}
