/* The scrub: whole files are read by the kernel without us, so somebody has to look after
 * them.  One process a directory (an F_OFD lock) goes round its buckets and compares
 * every chunk of every whole file with its checksum, a few at a time.  A process that has a
 * damaged one open learns of it when it opens it again, the one that scrubs at once. */
#include <fcntl.h>
#include <stdlib.h>
#include "base/cleanup.h"
#include "cache/state.h"

#define SCRUB_BYTE 1025 /* of the state file: locked by the process that scrubs */

static bool scrub_lock(struct cache_dir *d)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SCRUB_BYTE, .l_len = 1 };
	return fcntl(d->state_fd, F_OFD_SETLK, &lock) == 0;
}

static void file_done(struct cache_scrub *s)
{
	if (s->file)
		cache_file_close(s->file);
	s->file = NULL;
}

static void scrub_next_dir(struct cache *c)
{
	struct cache_scrub *s = &c->scrub;
	file_done(s);
	s->dir = (s->dir + 1) % c->dir_count;
	s->bucket = 0;
	s->key_count = 0;
}

/* The keys of the bucket's files. */
static void bucket_load(struct cache_scrub *s, struct cache_dir *d)
{
	DIR *stream = cache_bucket_list(d, s->bucket);
	struct dirent *entry;
	struct cache_key key;
	s->key_count = 0;
	while (stream && (entry = readdir(stream))) {
		if (cache_name_parse(entry->d_name, &key) != 'f')
			continue;
		if ((s->key_count & (s->key_count - 1)) == 0) {
			struct cache_key *more = realloc(s->keys, (s->key_count ? s->key_count * 2 : 1) * sizeof *more);
			if (!more)
				break;
			s->keys = more;
		}
		s->keys[s->key_count++] = key;
	}
	if (stream)
		closedir(stream);
}

/* The next whole file of those that were listed; false: there is none. */
static bool file_next(struct cache_scrub *s, struct cache_dir *d)
{
	while (s->key_count > 0) {
		s->chunk = 0;
		if (cache_file_find(d, &s->keys[--s->key_count], &s->file) != 0)
			continue;
		if (atomic_load(&s->file->sealed))
			return true;
		file_done(s);
	}
	return false;
}

/* Those of this process that have it open verify it anew. */
static void file_doubt(struct cache *c, const struct cache_file *damaged)
{
	struct cache_file *f;
	size_t i = 0;
	uint64_t number;
	LOCKED(&c->files_lock);
	while (intmap_next(&c->files, &i, &number, (void **)&f))
		if (number == damaged->number)
			cache_chunks_doubt(f);
}

/* Lists one bucket at most: in a cache of packs, where there is nothing to verify, it would be all of them each time. */
static void dir_scrub(struct cache *c, struct cache_dir *d, uint64_t bytes)
{
	struct cache_scrub *s = &c->scrub;
	uint64_t chunks = (bytes + CACHE_CHUNK - 1) / CACHE_CHUNK;
	bool listed = false;
	while (chunks > 0) {
		if (!s->file && !file_next(s, d)) {
			if (s->bucket == CACHE_BUCKETS) {
				scrub_next_dir(c);
				return;
			}
			if (listed)
				return;
			bucket_load(s, d);
			s->bucket++;
			listed = true;
			continue;
		}
		uint64_t before = s->chunk;
		int error = cache_chunks_verify(s->file, &s->chunk, chunks, true);
		uint64_t done = s->chunk - before + (error != 0);
		atomic_fetch_add(&c->scrubbed, done * CACHE_CHUNK);
		chunks -= done < chunks ? done : chunks;
		if (error)
			file_doubt(c, s->file);
		if (error || s->chunk >= s->file->chunks)
			file_done(s);
	}
}

void cache_scrub_tend(struct cache *c, uint64_t bytes)
{
	struct cache_dir *d = &c->dirs[c->scrub.dir];
	struct cache_scrub *s = &c->scrub;
	pthread_rwlock_rdlock(&d->lock);
	if (s->file && s->file->generation != d->generation)
		file_done(s);
	if (atomic_load(&d->in_use) && scrub_lock(d))
		dir_scrub(c, d, bytes);
	else
		scrub_next_dir(c);
	pthread_rwlock_unlock(&d->lock);
}

void cache_scrub_free(struct cache *c)
{
	file_done(&c->scrub);
	free(c->scrub.keys);
}
