#include <errno.h>
#include <stdlib.h>
#include "base/cleanup.h"
#include "meta/machine.h"

struct session_opens {
	struct intmap files; /* inode_key -> the number it was last opened with, and 1 */
};

static void session_opens_free(struct session_opens *s)
{
	if (!s)
		return;
	intmap_free(&s->files);
	free(s);
}

void opens_init(struct opens *o) { pthread_mutex_init(&o->lock, NULL); }

void opens_free(struct opens *o)
{
	uint64_t key;
	void *value;

	for (size_t i = 0; intmap_next(&o->sessions, &i, &key, &value);)
		session_opens_free(value);
	intmap_free(&o->sessions);
	intmap_free(&o->files);
	pthread_mutex_destroy(&o->lock);
}

static uintptr_t holders(const struct opens *o, uint64_t file) { return (uintptr_t)intmap_get(&o->files, file); }

static void holder_gone(struct opens *o, uint64_t file)
{
	uintptr_t count = holders(o, file);

	if (count > 1)
		intmap_set(&o->files, file, (void *)(count - 1)); /* replaces: needs no memory */
	else
		intmap_remove(&o->files, file);
}

int meta_opened(struct meta *m, uint64_t session, uint32_t volume, uint64_t inode, uint64_t number)
{
	struct opens *o = &m->opens;
	uint64_t file = inode_key(volume, inode);
	struct session_opens *s;
	uint64_t before;
	int r;
	LOCKED(&o->lock);

	s = intmap_get(&o->sessions, session);
	if (!s) {
		s = calloc(1, sizeof(*s));
		if (!s)
			return -ENOMEM;
		r = intmap_set(&o->sessions, session, s);
		if (r < 0) {
			session_opens_free(s);
			return r;
		}
	}
	before = (uintptr_t)intmap_get(&s->files, file);
	if (before > number)
		return 0;
	r = intmap_set(&s->files, file, (void *)(uintptr_t)(number + 1));
	if (r < 0 || before)
		return r;
	r = intmap_set(&o->files, file, (void *)(holders(o, file) + 1));
	if (r < 0)
		intmap_remove(&s->files, file);
	return r;
}

bool meta_closed(struct meta *m, uint64_t session, uint32_t volume, uint64_t inode, uint64_t number)
{
	struct opens *o = &m->opens;
	uint64_t file = inode_key(volume, inode);
	struct session_opens *s;
	uint64_t opened;
	LOCKED(&o->lock);

	s = intmap_get(&o->sessions, session);
	opened = s ? (uintptr_t)intmap_get(&s->files, file) : 0;
	if (!opened || opened > number + 1)
		return false;
	intmap_remove(&s->files, file);
	holder_gone(o, file);
	return true;
}

bool meta_is_open(struct meta *m, uint32_t volume, uint64_t inode)
{
	LOCKED(&m->opens.lock);
	return holders(&m->opens, inode_key(volume, inode)) > 0;
}

uint64_t meta_open_count(struct meta *m, uint64_t session)
{
	const struct session_opens *s;
	LOCKED(&m->opens.lock);

	s = intmap_get(&m->opens.sessions, session);
	return s ? s->files.used : 0;
}

void meta_session_forget(struct meta *m, uint64_t session)
{
	struct opens *o = &m->opens;
	struct session_opens *s;
	uint64_t file;
	void *value;
	LOCKED(&o->lock);

	s = intmap_remove(&o->sessions, session);
	if (!s)
		return;
	for (size_t i = 0; intmap_next(&s->files, &i, &file, &value);)
		holder_gone(o, file);
	session_opens_free(s);
}
