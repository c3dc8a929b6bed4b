/* Spools: written data on the local disk that is not at the server yet.
 *
 *   DIR/id                            16 bytes, random: the write-back directory's id, which the server knows
 *   DIR/HISTORY-VOLUME/lock           held by the mount that uses this folder
 *   DIR/HISTORY-VOLUME/INODE.GENERATION    a spool: data of one file, a log that is only appended to
 *
 * A folder belongs to one volume of one server (HISTORY is what its metadata say of themselves), so
 * that data of another one is never taken for this one's.  A generation is never used again in a folder.
 *
 * A spool, all numbers little-endian:
 *
 *   head     "EpSpool1", inode 8, generation 8, durable 8, zeroes 24, checksum 8    (64 bytes)
 *   records  magic 4, type 4, sequence 8, a 8, b 8, c 8, length 4, zero 4, zero 8, checksum 8    (64 bytes), `length` data bytes
 *
 *     DATA   a: offset in the file, b: XXH3 of the bytes that follow
 *     NOTE   a: the file's size, b: mtime, c: ctime; what stands before it is the file's content as of then
 *
 * Checksums are XXH3 of what is before them, seeded with the generation.  Sequences count from 1.  After a crash what counts is
 * everything up to the last note.  What is behind it was never promised, and may be torn.  Up to `durable` all was
 * synced before the head was written: damage before that is damage, and is said.
 *
 * A spool is used under its inode's lock, but for spool_sync and spool_read; the folder's functions by any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPOOL_ID 16u

struct spool_folder;
struct spool;

/* Makes the directory if it is missing.  -ENOTEMPTY: it is in use for something else. */
int spool_id(const char *directory, uint8_t out[SPOOL_ID], char *error, size_t error_size);
/* -EBUSY: another mount uses it.  `limit`: bytes of all spools in it. */
int spool_folder_open(const char *directory, const uint8_t history[16], uint32_t volume, uint64_t limit,
		      struct spool_folder **out, char *error, size_t error_size);
void spool_folder_close(struct spool_folder *f);
uint64_t spool_folder_bytes(struct spool_folder *f);
bool spool_folder_is_filling(struct spool_folder *f); /* more than half of the limit */
const char *spool_folder_path(const struct spool_folder *f);
const char *spool_folder_directory(const struct spool_folder *f); /* that it is in: DIR */
int spool_folder_each(struct spool_folder *f, int (*each)(void *context, uint64_t inode, uint64_t generation), void *context);
void spool_folder_delete(struct spool_folder *f, uint64_t inode, uint64_t generation);

/* A new one, with a reference.  -ENOSPC: the limit, or the disk; -EIO ... */
int spool_new(struct spool_folder *f, uint64_t inode, struct spool **out);
void spool_ref(struct spool *s);
void spool_unref(struct spool *s); /* NULL is fine; the file stays */
void spool_delete(struct spool *s);
uint64_t spool_generation(const struct spool *s);

/* Where the bytes of a DATA record are, and their checksum: only all of them together can be verified. */
struct spool_record {
	uint64_t place, sum;
	uint32_t length;
};
int spool_append(struct spool *s, uint64_t offset, const void *data, uint32_t length, struct spool_record *out);
int spool_note(struct spool *s, uint64_t size, int64_t mtime_ns, int64_t ctime_ns);
uint64_t spool_end(const struct spool *s);
int spool_sync(struct spool *s, uint64_t upto); /* what was appended before it ended there is durable; from any thread */
int spool_read(const struct spool *s, uint64_t place, void *into, size_t length);
int spool_read_record(const struct spool *s, const struct spool_record *record,
		      void *into);                                          /* -EIO: or it is not what was written */
int spool_verify(const struct spool *s, const struct spool_record *record); /* likewise, and logged; -ENOMEM */

/* Opens one that is there and goes through its records, to go on with it.  `each` gets every DATA record up to the last note.
 * -ENODATA: it has no note, nothing in it was promised; -EBADMSG: what was promised is damaged. */
struct spool_state {
	uint64_t size;
	int64_t mtime_ns, ctime_ns;
};
int spool_load(struct spool_folder *f, uint64_t inode, uint64_t generation,
	       int (*each)(void *context, struct spool *s, uint64_t offset, const struct spool_record *record), void *context,
	       struct spool_state *state, struct spool **out);
