/* Stored form and back.
 *
 * Zstandard's contexts cost more to make than a chunk costs to compress, so each
 * thread keeps one of each kind; they go with the thread. */
#include <errno.h>
#include <lz4.h>
#include <pthread.h>
#include <stdbool.h>
#include <xxhash.h>
#include <zstd.h>
#include <zstd_errors.h>
#include "block/extent.h"
#include "block/object.h"

static pthread_once_t keys_once = PTHREAD_ONCE_INIT;
static pthread_key_t compressor_key, decompressor_key;
static bool keys_made;

static void compressor_free(void *c) { ZSTD_freeCCtx(c); }

static void decompressor_free(void *d) { ZSTD_freeDCtx(d); }

static void keys_make(void)
{
	if (pthread_key_create(&compressor_key, compressor_free) != 0)
		return;
	if (pthread_key_create(&decompressor_key, decompressor_free) != 0) {
		pthread_key_delete(compressor_key);
		return;
	}
	keys_made = true;
}

static ZSTD_CCtx *compressor_of_thread(void)
{
	pthread_once(&keys_once, keys_make);
	ZSTD_CCtx *c = keys_made ? pthread_getspecific(compressor_key) : NULL;
	if (c || !keys_made)
		return c;
	c = ZSTD_createCCtx();
	if (c && pthread_setspecific(compressor_key, c) != 0) {
		ZSTD_freeCCtx(c);
		return NULL;
	}
	return c;
}

static ZSTD_DCtx *decompressor_of_thread(void)
{
	pthread_once(&keys_once, keys_make);
	ZSTD_DCtx *d = keys_made ? pthread_getspecific(decompressor_key) : NULL;
	if (d || !keys_made)
		return d;
	d = ZSTD_createDCtx();
	if (d && pthread_setspecific(decompressor_key, d) != 0) {
		ZSTD_freeDCtx(d);
		return NULL;
	}
	return d;
}

static uint32_t chunk_raw_length(uint32_t raw_length, uint32_t chunk)
{
	uint32_t left = raw_length - chunk * CHUNK_BYTES;
	return left < CHUNK_BYTES ? left : CHUNK_BYTES;
}

static int zstd_chunk(const uint8_t *raw, uint32_t length, int level, uint8_t *out, size_t room)
{
	ZSTD_CCtx *c = compressor_of_thread();
	if (!c)
		return -ENOMEM;
	size_t n = ZSTD_compressCCtx(c, out, room, raw, length, level);
	if (!ZSTD_isError(n))
		return (int)n;
	return ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation ? -ENOMEM : 0;
}

/* Writes the chunk's stored form, at most `length` bytes; its length or -ENOMEM.
 * The compressors get one byte less than the chunk has, so that what does not
 * become smaller does not fit. */
static int chunk_encode(const uint8_t *raw, uint32_t length, enum codec codec, int level, uint8_t *out)
{
	int n = 0;
	if (codec == CODEC_LZ4)
		n = LZ4_compress_default((const char *)raw, (char *)out, (int)length, (int)length - 1);
	else if (codec == CODEC_ZSTD)
		n = zstd_chunk(raw, length, level, out, length - 1);
	if (n != 0)
		return n;
	memcpy(out, raw, length);
	return (int)length;
}

/* Not less: on a few bytes no codec shows what it can. */
#define SLICE_BYTES 4096u
#define SLICE_EVERY (4 * CHUNK_BYTES)
#define SLICES_LEAST 4u

static bool slice_shrinks(const uint8_t *slice, enum codec codec)
{
	uint8_t out[SLICE_BYTES];
	int n = chunk_encode(slice, SLICE_BYTES, codec, 1, out);
	return n >= 0 && n <= (int)(SLICE_BYTES - SLICE_BYTES / 32);
}

bool extent_may_shrink(const struct iovec *raw, size_t count, enum codec codec)
{
	uint64_t length = 0, every, next = 0, begin = 0;
	bool looked = false;
	for (size_t i = 0; i < count; i++)
		length += raw[i].iov_len;
	if (codec == CODEC_NONE || length < 2 * CHUNK_BYTES)
		return codec != CODEC_NONE;
	every = length / SLICES_LEAST < SLICE_EVERY ? length / SLICES_LEAST : SLICE_EVERY;
	for (size_t i = 0; i < count; begin += raw[i++].iov_len) {
		if (next < begin)
			next = begin; /* parts before were too small for a slice */
		/* Slices do not reach over the end of a part; one that would is moved to where it does not. */
		for (; next < begin + raw[i].iov_len && raw[i].iov_len >= SLICE_BYTES; next += every) {
			uint64_t at = next - begin, last = raw[i].iov_len - SLICE_BYTES;
			looked = true;
			if (slice_shrinks((const uint8_t *)raw[i].iov_base + (at < last ? at : last), codec))
				return true;
		}
	}
	return !looked; /* all parts are small: nobody knows */
}

/* Fills `out`, which has room for raw_length and the table; sets the extent's
 * lengths, checksum and codec. */
static int chunks_encode(const uint8_t *raw, uint32_t raw_length, enum codec codec, int level, uint8_t *out, struct extent *e)
{
	uint8_t table[CHUNK_ENTRY * (BLOCK_MAX / CHUNK_BYTES)];
	uint32_t chunks = extent_chunks(raw_length), table_bytes = extent_table_bytes(raw_length), at = 0;
	uint64_t checksum = 0;
	for (uint32_t i = 0; i < chunks; i++) {
		int n = chunk_encode(raw + i * CHUNK_BYTES, chunk_raw_length(raw_length, i), codec, level, out + at);
		if (n < 0)
			return n;
		put_le32(table + i * CHUNK_ENTRY, (uint32_t)n);
		checksum = XXH3_64bits(out + at, (size_t)n);
		put_le64(table + i * CHUNK_ENTRY + 4, checksum);
		at += (uint32_t)n;
	}
	memcpy(out + at, table, table_bytes);
	e->raw_length = raw_length;
	e->stored_length = at + table_bytes;
	e->checksum = table_bytes ? XXH3_64bits(table, table_bytes) : checksum;
	e->codec = at == raw_length ? CODEC_NONE : (uint8_t)codec;
	return 0;
}

int extent_encode(const void *raw, uint32_t raw_length, enum codec codec, int level, struct buf *out, struct extent *e)
{
	size_t begin = out->len, most = (size_t)raw_length + extent_table_bytes(raw_length);
	if (raw_length == 0 || raw_length > BLOCK_MAX || begin + most > OBJECT_SIZE_MAX - OBJECT_FOOTER)
		return -EINVAL;
	uint8_t *at = buf_extend(out, most);
	if (!at)
		return -ENOMEM;
	int error = chunks_encode(raw, raw_length, codec, level, at, e);
	if (error) {
		out->len = begin;
		return error;
	}
	out->len = begin + e->stored_length;
	e->skip = 0;
	e->length = raw_length;
	e->object_offset = (uint32_t)begin;
	return 0;
}

/* The checksum of the next n bytes of the parts, `at` bytes into the first; moves on. */
static uint64_t parts_checksum(const struct iovec **part, size_t *at, uint32_t n)
{
	uint8_t joined[CHUNK_BYTES];
	uint32_t have = 0;
	while ((*part)->iov_len == *at) {
		(*part)++;
		*at = 0;
	}
	if ((*part)->iov_len - *at >= n) {
		*at += n;
		return XXH3_64bits((const uint8_t *)(*part)->iov_base + *at - n, n);
	}
	while (have < n) {
		size_t left = (*part)->iov_len - *at, take = left < n - have ? left : n - have;
		memcpy(joined + have, (const uint8_t *)(*part)->iov_base + *at, take);
		have += (uint32_t)take;
		*at += take;
		if (have < n) {
			(*part)++;
			*at = 0;
		}
	}
	return XXH3_64bits(joined, n);
}

int extent_describe(const struct iovec *raw, size_t count, struct buf *out, struct extent *e)
{
	uint64_t length = 0, checksum = 0;
	size_t at = 0;
	for (size_t i = 0; i < count; i++)
		length += raw[i].iov_len;
	if (length == 0 || length > BLOCK_MAX)
		return -EINVAL;
	uint32_t raw_length = (uint32_t)length, chunks = extent_chunks(raw_length), table_bytes = extent_table_bytes(raw_length);
	uint8_t *table = table_bytes ? buf_extend(out, table_bytes) : NULL;
	if (table_bytes && !table)
		return -ENOMEM;
	for (uint32_t i = 0; i < chunks; i++) {
		uint32_t n = chunk_raw_length(raw_length, i);
		checksum = parts_checksum(&raw, &at, n);
		if (!table)
			break;
		put_le32(table + i * CHUNK_ENTRY, n);
		put_le64(table + i * CHUNK_ENTRY + 4, checksum);
	}
	e->raw_length = e->length = raw_length;
	e->stored_length = raw_length + table_bytes;
	e->checksum = table ? XXH3_64bits(table, table_bytes) : checksum;
	e->codec = CODEC_NONE;
	e->skip = 0;
	return 0;
}

int extent_table_check(const struct extent *e, const void *table, size_t size, uint32_t *offsets, uint64_t *checksums)
{
	const uint8_t *p = table;
	uint32_t chunks = extent_chunks(e->raw_length), at = 0;
	if (extent_check(e) || size != extent_table_bytes(e->raw_length))
		return -EBADMSG;
	if (size == 0) {
		offsets[0] = 0;
		offsets[1] = e->stored_length;
		checksums[0] = e->checksum;
		return 0;
	}
	if (XXH3_64bits(p, size) != e->checksum)
		return -EBADMSG;
	for (uint32_t i = 0; i < chunks; i++, p += CHUNK_ENTRY) {
		uint32_t stored = get_le32(p), raw = chunk_raw_length(e->raw_length, i);
		if (stored == 0 || stored > raw || (e->codec == CODEC_NONE && stored != raw))
			return -EBADMSG;
		offsets[i] = at;
		checksums[i] = get_le64(p + 4);
		at += stored;
	}
	offsets[chunks] = at;
	return at + size == e->stored_length ? 0 : -EBADMSG;
}

static int chunk_decompress(enum codec codec, const void *stored, uint32_t stored_length, void *raw, uint32_t raw_length)
{
	if (codec == CODEC_LZ4) {
		int n = LZ4_decompress_safe(stored, raw, (int)stored_length, (int)raw_length);
		return n == (int)raw_length ? 0 : -EBADMSG;
	}
	if (codec != CODEC_ZSTD)
		return -EBADMSG;
	ZSTD_DCtx *d = decompressor_of_thread();
	if (!d)
		return -ENOMEM;
	size_t n = ZSTD_decompressDCtx(d, raw, raw_length, stored, stored_length);
	if (ZSTD_isError(n) && ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation)
		return -ENOMEM;
	return n == raw_length ? 0 : -EBADMSG;
}

int chunk_decode(enum codec codec, uint64_t checksum, const void *stored, uint32_t stored_length, void *raw, uint32_t raw_length)
{
	if (stored_length == 0 || stored_length > raw_length || raw_length > CHUNK_BYTES)
		return -EBADMSG;
	if (XXH3_64bits(stored, stored_length) != checksum)
		return -EBADMSG;
	if (stored_length < raw_length)
		return chunk_decompress(codec, stored, stored_length, raw, raw_length);
	if (stored != raw)
		memcpy(raw, stored, raw_length);
	return 0;
}

int extent_decode(const struct extent *e, const void *stored, void *raw)
{
	uint32_t offsets[BLOCK_MAX / CHUNK_BYTES + 1];
	uint64_t checksums[BLOCK_MAX / CHUNK_BYTES];
	const uint8_t *from = stored;
	uint8_t *to = raw;
	if (extent_check(e))
		return -EBADMSG;
	uint32_t table_bytes = extent_table_bytes(e->raw_length);
	int error = extent_table_check(e, from + e->stored_length - table_bytes, table_bytes, offsets, checksums);
	for (uint32_t i = 0; !error && i < extent_chunks(e->raw_length); i++)
		error = chunk_decode(e->codec, checksums[i], from + offsets[i], offsets[i + 1] - offsets[i],
				     to + (size_t)i * CHUNK_BYTES, chunk_raw_length(e->raw_length, i));
	return error;
}
