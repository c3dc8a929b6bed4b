/* Keys.  Ids are handed out in ascending ranges, so 256 neighbours share a folder:
 *
 *   o/12/34/0000000005123456    folders: bits 16-23, then bits 8-15 of the id
 *
 * A folder is made once for 256 objects (making it durable costs two or three
 * fsyncs), what was written together lies together, and at a hundred million
 * objects a folder still holds only about 1,500. */
#include "block/object.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include "base/bytes.h"

static const char footer_magic[8] = { 'E', 'P', 'O', 'C', 'H', 'F', 'S', '1' };

void object_footer_make(uint64_t object, uint64_t payload_length, uint8_t out[OBJECT_FOOTER])
{
	memcpy(out, footer_magic, 8);
	put_le64(out + 8, object);
	put_le64(out + 16, payload_length);
	put_le64(out + 24, XXH3_64bits(out, 24));
}

int object_footer_check(const uint8_t footer[OBJECT_FOOTER], uint64_t object, uint64_t object_size)
{
	if (object_size <= OBJECT_FOOTER || object_size > OBJECT_SIZE_MAX)
		return -EBADMSG;
	if (memcmp(footer, footer_magic, 8) != 0 || get_le64(footer + 24) != XXH3_64bits(footer, 24))
		return -EBADMSG;
	if (get_le64(footer + 8) != object || get_le64(footer + 16) != object_size - OBJECT_FOOTER)
		return -EBADMSG;
	return 0;
}

char *object_key(char out[OBJECT_KEY_TEXT], uint64_t object)
{
	snprintf(out, OBJECT_KEY_TEXT, "o/%02x/%02x/%016jx", (unsigned)(object >> 16 & 0xff), (unsigned)(object >> 8 & 0xff),
		 (uintmax_t)object);
	return out;
}

/* Only the very text object_key makes is a key: anything else is not ours. */
int object_key_parse(const char *key, uint64_t *out_object)
{
	char again[OBJECT_KEY_TEXT];
	uint64_t object = 0;
	if (strlen(key) != 24)
		return -EINVAL;
	for (const char *p = key + 8; *p; p++) {
		if (*p >= '0' && *p <= '9')
			object = object << 4 | (uint64_t)(*p - '0');
		else if (*p >= 'a' && *p <= 'f')
			object = object << 4 | (uint64_t)(*p - 'a' + 10);
		else
			return -EINVAL;
	}
	if (strcmp(object_key(again, object), key) != 0)
		return -EINVAL;
	*out_object = object;
	return 0;
}
