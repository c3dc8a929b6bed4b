#include "fuse/channel.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "fuse/thread.h"
#include "fuse/waiter.h"

#define DEVICE "/dev/fuse"

/* More threads than this with nothing to do, and one of them ends.  Well above what one
 * burst leaves behind, so that threads are not made and ended all the time. */
#define IDLE_MOST 16

/* A buffer begins so that the data of a WRITE, which follows two headers, stands on a page. */
#define PAGE 4096u
#define BUFFER_SHIFT (PAGE - FUSE_WRITE_HEAD)
#define BUFFER_BYTES (FUSE_WRITE_HEAD + FUSE_DATA_MAX + PAGE)
_Static_assert(BUFFER_SHIFT + BUFFER_BYTES == CLIENT_BUFFER_BYTES, "the client's buffers are made for requests");

/* From here on a WRITE's buffer is offered to the client, which saves it a copy. */
#define LOAN_BYTES (512u << 10)

/* A device that requests are read from.  The kernel takes an answer only through the one its request came from, and
 * gives up what was not answered when that is closed: so it stays while somebody is to be answered later. */
struct device {
	int fd;
	bool cloned; /* else it is the caller's, and stays open */
	atomic_int refs;
};

enum worker_state { WORKER_FREE, WORKER_RUNNING, WORKER_ENDED };

/* `state` and `thread` are guarded by the channel's lock, and so is `device` for other
 * threads than the worker's own. */
struct worker {
	struct channel *channel;
	enum worker_state state;
	pthread_t thread;
	struct device *device;
	uint8_t *buffer;     /* one of the client's */
	atomic_bool reading; /* from the device: may be woken */
	/* What it is working on, for INTERRUPT: the request, 0 if none or none that may be
	 * answered early, and the thread that waits for it. */
	atomic_uint_fast64_t unique;
	atomic_uint waiter;
};

struct channel {
	struct session *session;
	struct channel_options options;
	atomic_bool stopping;
	atomic_int idle; /* threads waiting for a request */

	pthread_mutex_t lock; /* guards what follows; taken for a moment only */
	pthread_cond_t ended;
	unsigned running;
	int error; /* the first one that ended a thread */
	struct worker workers[CHANNEL_THREADS_MOST];
};

/* The transport's side of an answer. */
struct channel_reply {
	struct reply reply;
	struct device *device;
};

static void device_unref(struct device *d)
{
	if (!d || atomic_fetch_sub(&d->refs, 1) != 1)
		return;
	if (d->cloned)
		close(d->fd);
	free(d);
}

static int channel_send(struct reply *r, const struct iovec *parts, int count)
{
	struct channel_reply *cr = (struct channel_reply *)r;

	return writev(cr->device->fd, parts, count) < 0 ? -errno : 0;
}

static struct reply *channel_keep(const struct reply *r)
{
	struct channel_reply *kept = malloc(sizeof(*kept));

	if (!kept)
		return NULL;
	*kept = *(const struct channel_reply *)r;
	atomic_fetch_add(&kept->device->refs, 1);
	return &kept->reply;
}

static void channel_forget(struct reply *kept)
{
	device_unref(((struct channel_reply *)kept)->device);
	free(kept);
}

/* Answers a request that another thread works on.  That thread's own answer then finds
 * nobody (ENOENT), and it takes back what it had to hand over.  False: nobody works on it. */
static bool worker_interrupt(struct channel *c, uint64_t unique)
{
	LOCKED(&c->lock);
	for (unsigned i = 0; i < CHANNEL_THREADS_MOST; i++) {
		struct worker *w = &c->workers[i];

		if (w->state != WORKER_RUNNING || atomic_load(&w->unique) != unique)
			continue;
		if (waiter_is_dying(atomic_load(&w->waiter))) {
			struct channel_reply r = { .reply = { .unique = unique, .send = channel_send }, .device = w->device };

			reply_error(&r.reply, -EINTR);
		}
		return true;
	}
	return false;
}

/* The client may keep the buffer, so another is at hand before it is asked. */
static void write_handle(struct worker *w, struct fuse_request *q, struct reply *r)
{
	struct fuse_loan loan = { .buffer = w->buffer };
	struct client *client = w->channel->session->client;
	void *spare = client_buffer_take(client);

	if (spare)
		q->loan = &loan;
	session_handle(w->channel->session, q, r);
	if (loan.kept)
		w->buffer = spare;
	else
		client_buffer_give(client, spare);
}

static void interrupt_handle(struct channel *c, uint64_t unique)
{
	const struct channel_options *o = &c->options;

	if (!worker_interrupt(c, unique) && !(o->interrupt && o->interrupt(o->context, unique)))
		session_interrupt(c->session, unique);
}

static void request_handle(struct worker *w, const uint8_t *bytes, size_t size)
{
	struct channel_reply r = { .reply = { .send = channel_send, .keep = channel_keep, .forget = channel_forget },
				   .device = w->device };
	struct fuse_request q;
	int error = fuse_request_decode(bytes, size, &q);

	r.reply.unique = q.unique;
	if (!session_accept(&q, error, &r.reply))
		return;
	if (q.opcode == FUSE_INTERRUPT) {
		interrupt_handle(w->channel, q.in.interrupt.unique);
		return;
	}
	if (fuse_request_is_harmless(&q)) {
		atomic_store_explicit(&w->waiter, q.pid, memory_order_relaxed);
		atomic_store(&w->unique, q.unique);
	}
	if (q.opcode == FUSE_WRITE && q.data_size >= LOAN_BYTES)
		write_handle(w, &q, &r.reply);
	else
		session_handle(w->channel->session, &q, &r.reply);
	atomic_store_explicit(&w->unique, 0, memory_order_relaxed);
}

static int worker_start(struct channel *c);

/* The next request: its size, 0 to stop, or -errno. */
static ssize_t request_next(struct worker *w, uint8_t *buffer)
{
	struct channel *c = w->channel;
	ssize_t n;

	do {
		atomic_store(&w->reading, true);
		n = atomic_load(&c->stopping) ? 0 : read(w->device->fd, buffer, BUFFER_BYTES);
		atomic_store(&w->reading, false);
		/* ENOENT: the request was taken back before it could be read. */
	} while (n < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT));
	/* Unmounted; the last of a lazily unmounted one looks like an abort. */
	if (n < 0)
		return errno == ENODEV || errno == ECONNABORTED ? 0 : -errno;
	return n;
}

static int worker_loop(struct worker *w)
{
	struct channel *c = w->channel;

	for (;;) {
		uint8_t *buffer = w->buffer + BUFFER_SHIFT;
		ssize_t n;

		if (atomic_fetch_add(&c->idle, 1) >= IDLE_MOST) {
			atomic_fetch_sub(&c->idle, 1);
			return 0;
		}
		n = request_next(w, buffer);
		if (atomic_fetch_sub(&c->idle, 1) == 1 && n > 0)
			worker_start(c);
		if (n <= 0)
			return (int)n;
		request_handle(w, buffer, (size_t)n);
	}
}

static void worker_release(struct worker *w)
{
	client_buffer_give(w->channel->session->client, w->buffer);
	w->buffer = NULL;
	device_unref(w->device);
	w->device = NULL;
}

static void *worker_run(void *argument)
{
	struct worker *w = argument;
	struct channel *c = w->channel;
	int error = worker_loop(w);
	bool last;

	{
		LOCKED(&c->lock);
		worker_release(w);
		w->state = WORKER_ENDED;
		if (error && !c->error)
			c->error = error;
		last = --c->running == 0;
		error = c->error;
		if (last && c->options.ended)
			c->options.ended(c->options.context, error);
		pthread_cond_broadcast(&c->ended);
	}
	return NULL;
}

/* A device of the thread's own, if it may be opened (a user whose mount fusermount3 made
 * often may not). */
static struct device *device_open(int fd)
{
	struct device *d = calloc(1, sizeof(*d));
	uint32_t source = (uint32_t)fd;
	int clone;

	if (!d)
		return NULL;
	d->refs = 1;
	d->fd = fd;
	clone = open(DEVICE, O_RDWR | O_CLOEXEC);
	if (clone < 0)
		return d;
	if (ioctl(clone, FUSE_DEV_IOC_CLONE, &source) < 0) {
		close(clone);
		return d;
	}
	d->fd = clone;
	d->cloned = true;
	return d;
}

static int worker_create(struct worker *w)
{
	int error;

	w->buffer = client_buffer_take(w->channel->session->client);
	w->device = device_open(w->channel->options.fd);
	if (!w->buffer || !w->device) {
		worker_release(w);
		return -ENOMEM;
	}
	atomic_store(&w->unique, 0);
	error = thread_start(&w->thread, worker_run, w);
	if (error)
		worker_release(w);
	return error;
}

static int worker_start(struct channel *c)
{
	struct worker *free_one = NULL;
	int error;

	LOCKED(&c->lock);
	if (c->running >= c->options.threads_most || atomic_load(&c->stopping))
		return 0;
	for (unsigned i = 0; i < c->options.threads_most && !free_one; i++) {
		if (c->workers[i].state != WORKER_RUNNING)
			free_one = &c->workers[i];
	}
	if (!free_one)
		return 0;
	if (free_one->state == WORKER_ENDED)
		pthread_join(free_one->thread, NULL);
	free_one->state = WORKER_FREE;
	error = worker_create(free_one);
	if (error) {
		log_warn("fuse: cannot start a thread: %s", strerror(-error));
		return error;
	}
	free_one->state = WORKER_RUNNING;
	c->running++;
	return 0;
}

int channel_start(struct session *s, const struct channel_options *options, struct channel **out)
{
	struct channel *c = calloc(1, sizeof(*c));
	int error = 0;

	if (!c)
		return -ENOMEM;
	c->session = s;
	c->options = *options;
	if (!c->options.threads_first)
		c->options.threads_first = CHANNEL_THREADS_FIRST;
	if (!c->options.threads_most || c->options.threads_most > CHANNEL_THREADS_MOST)
		c->options.threads_most = CHANNEL_THREADS_MOST;
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->ended, NULL);
	for (unsigned i = 0; i < CHANNEL_THREADS_MOST; i++)
		c->workers[i] = (struct worker){ .channel = c };
	thread_wakeable();
	for (unsigned i = 0; i < c->options.threads_first && !error; i++)
		error = worker_start(c);
	if (error && !channel_threads(c)) {
		channel_stop(c);
		return error;
	}
	*out = c;
	return 0;
}

unsigned channel_threads(struct channel *c)
{
	LOCKED(&c->lock);
	return c->running;
}

/* A signal may come just before the thread goes to sleep in read(), and be lost; so it is
 * sent again until all have seen it. */
static void workers_wake(struct channel *c)
{
	for (unsigned i = 0; i < CHANNEL_THREADS_MOST; i++) {
		if (c->workers[i].state == WORKER_RUNNING && atomic_load(&c->workers[i].reading))
			thread_wake(c->workers[i].thread);
	}
	thread_wake_pause(&c->ended, &c->lock);
}

void channel_stop(struct channel *c)
{
	atomic_store(&c->stopping, true);
	{
		LOCKED(&c->lock);
		while (c->running)
			workers_wake(c);
	}
	for (unsigned i = 0; i < CHANNEL_THREADS_MOST; i++) {
		if (c->workers[i].state == WORKER_ENDED)
			pthread_join(c->workers[i].thread, NULL);
	}
	pthread_cond_destroy(&c->ended);
	pthread_mutex_destroy(&c->lock);
	free(c);
}
