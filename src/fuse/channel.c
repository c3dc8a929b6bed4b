/* Who reads.
 *
 * The kernel wakes a thread for each request that finds one waiting in read(), the one that has waited longest first.  So with many
 * threads waiting every request costs a switch to a thread that is cold; with few, those that came meanwhile are read without any.
 * Therefore few threads read, one for every two CPUs, and the others are parked.  A request may take long, though, and then others
 * must not wait for it.  When the last reader has got one
 *
 *   and such requests took long lately,   a parked thread reads in its place at once, or a new one is started,
 *                                         and there are some more readers for a while
 *   else                                  the lookout sees to that if none was taken until its next look
 *
 * A request that nobody reads for a while can be what those being handled wait for: so the lookout waits for nothing else.
 *
 * Where one program asks one thing after the other, most of its time goes into waking: the reader, and the CPU it slept on.  So
 * there only one thread reads, and it does not sleep at once: it lets others have the CPU and looks again, for as long as a program
 * takes for its next request.  That it is so is found out by looking now and then: in half of all cases a request must come
 * meanwhile, to a reader beside whom nobody is busy.  Where others keep the CPU for long, the reader sleeps, as who is woken is let
 * in before them. */
#include "fuse/channel.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "fuse/thread.h"
#include "fuse/waiter.h"

#define DEVICE "/dev/fuse"

#define READERS_MOST 8u
#define READERS_MORE 3u     /* while requests take long, so that the last one is not relieved each time */
#define HURRIED 64          /* requests after a slow one for which that lasts */
#define SLOW_NS (50 * 1000) /* most that need nobody take less */
#define SLOW_FEW 2 /* so many of the last eight of a kind were, and the next one is taken for slow, too: one may be chance */
#define SLOW_KINDS 64
#define AWAKE_NS (30 * 1000)         /* so long it is looked again */
#define AWAKE_FEW 8                  /* so many of the last 16 times a request came meanwhile: it is done each time */
#define AWAKE_SELDOM 16              /* else once in so many */
#define KEPT_NS (500 * 1000)         /* who has kept the CPU for longer is no program that asks: it is not done ... */
#define CROWDED_NS (100 * NS_PER_MS) /* ... for so long; twice as long if it comes to that again within a second */
#define CROWDED_MOST_NS (6 * NS_PER_S)
#define LOOK_NS NS_PER_MS
#define LOOKS_IDLE 16 /* in a row that found somebody reading: then it sleeps until there is nobody */

/* More threads than this with nothing to do, and one of them ends.  Well above what one
 * burst leaves behind, so that threads are not made and ended all the time. */
#define PARKED_MOST 12

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
	uint8_t *buffer;      /* one of the client's */
	atomic_bool reading;  /* from the device: may be woken */
	unsigned accompanied; /* looks in a row that found another request, or one being handled */
	/* Under the channel's lock: */
	bool parked;
	pthread_cond_t unparked;
	struct worker *parked_before;
	/* What it is working on, for INTERRUPT: the request, 0 if none or none that may be
	 * answered early, and the thread that waits for it. */
	atomic_uint_fast64_t unique;
	atomic_uint waiter;
};

struct channel {
	struct session *session;
	struct channel_options options;
	atomic_bool stopping;
	unsigned readers_most;
	atomic_uint readers; /* threads that read, or are about to */
	atomic_uint taken;   /* requests so far */
	atomic_int hurried;
	_Atomic uint8_t slow[SLOW_KINDS]; /* by opcode: a bit for each of the last eight */
	atomic_uint busy;                 /* requests that are being handled */
	_Atomic uint16_t awaited;         /* a bit for each of the last looks: one came meanwhile */
	atomic_uint unlooked;             /* waits in which it was not looked, lately */
	atomic_bool looking;              /* somebody does */
	_Atomic int64_t crowded_until_ns;
	_Atomic int64_t crowded_ns; /* how long that was */
	atomic_bool lookout_asleep;
	bool has_lookout;
	pthread_t lookout;

	pthread_mutex_t lock; /* guards what follows; taken for a moment only */
	pthread_cond_t ended;
	pthread_cond_t look;   /* wakes the lookout */
	struct worker *parked; /* the last one first: it is the warmest */
	unsigned parked_count;
	unsigned running;
	int error; /* the first one that ended a thread */
	struct worker workers[CHANNEL_THREADS_MOST];
};

/* The transport's side of an answer. */
struct channel_reply {
	struct reply reply;
	struct device *device;
	struct worker *worker; /* NULL once it is kept */
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
	kept->worker = NULL;
	atomic_fetch_add(&kept->device->refs, 1);
	return &kept->reply;
}

static void channel_forget(struct reply *kept)
{
	device_unref(((struct channel_reply *)kept)->device);
	free(kept);
}

/* Answers a request that a thread works on.  That thread's own answer then finds nobody (ENOENT), and it takes back what it had to
 * hand over. */
static void answer_early(const struct worker *w, uint64_t unique, uint32_t waiter)
{
	struct channel_reply r = { .reply = { .unique = unique, .send = channel_send }, .device = w->device };

	if (waiter_is_dying(waiter))
		reply_error(&r.reply, -EINTR);
}

/* False: nobody works on it. */
static bool worker_interrupt(struct channel *c, uint64_t unique)
{
	LOCKED(&c->lock);
	for (unsigned i = 0; i < CHANNEL_THREADS_MOST; i++) {
		const struct worker *w = &c->workers[i];

		if (w->state != WORKER_RUNNING || atomic_load(&w->unique) != unique)
			continue;
		answer_early(w, unique, atomic_load(&w->waiter));
		return true;
	}
	return false;
}

static void channel_interrupts_allow(struct reply *r, uint32_t waiter)
{
	struct worker *w = ((struct channel_reply *)r)->worker;

	atomic_store_explicit(&w->waiter, waiter, memory_order_relaxed);
	atomic_store(&w->unique, r->unique);
	if (session_interrupt_noted(w->channel->session, r->unique))
		answer_early(w, r->unique, waiter);
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

	session_interrupt_note(c->session, unique);
	if (!worker_interrupt(c, unique) && !(o->interrupt && o->interrupt(o->context, unique)))
		session_interrupt(c->session, unique);
}

static void request_handle(struct worker *w, const uint8_t *bytes, size_t size)
{
	struct channel_reply r = { .reply = { .send = channel_send,
					      .interrupts_allow = channel_interrupts_allow,
					      .keep = channel_keep,
					      .forget = channel_forget },
				   .device = w->device,
				   .worker = w };
	struct fuse_request q;
	int error = fuse_request_decode(bytes, size, &q);

	r.reply.unique = q.unique;
	if (!session_accept(&q, error, &r.reply))
		return;
	if (q.opcode == FUSE_INTERRUPT) {
		interrupt_handle(w->channel, q.in.interrupt.unique);
		return;
	}
	if (q.opcode == FUSE_WRITE && q.data_size >= LOAN_BYTES)
		write_handle(w, &q, &r.reply);
	else
		session_handle(w->channel->session, &q, &r.reply);
	atomic_store_explicit(&w->unique, 0, memory_order_relaxed);
}

/* ---- Readers ---- */

static int worker_start(struct channel *c);

/* The channel's lock is held. */
static bool parked_wake(struct channel *c)
{
	struct worker *w = c->parked;

	if (!w)
		return false;
	c->parked = w->parked_before;
	c->parked_count--;
	w->parked = false;
	atomic_fetch_add(&c->readers, 1);
	pthread_cond_signal(&w->unparked);
	return true;
}

static void lookout_wake(struct channel *c)
{
	LOCKED(&c->lock);
	pthread_cond_signal(&c->look);
}

/* Somebody has to read in place of those that are busy. */
static void reader_relieve(struct channel *c)
{
	{
		LOCKED(&c->lock);
		if (parked_wake(c))
			return;
	}
	if (worker_start(c) < 0)
		lookout_wake(c); /* which tries again */
}

/* What several threads note at once may get lost. */
static void slow_note(struct channel *c, uint32_t opcode, bool slow)
{
	_Atomic uint8_t *kind = &c->slow[opcode % SLOW_KINDS];
	uint8_t before = atomic_load_explicit(kind, memory_order_relaxed), after = (uint8_t)(before << 1 | slow);

	if (after != before)
		atomic_store_explicit(kind, after, memory_order_relaxed);
}

static bool slow_lately(struct channel *c, uint32_t opcode)
{
	return __builtin_popcount(atomic_load_explicit(&c->slow[opcode % SLOW_KINDS], memory_order_relaxed)) >= SLOW_FEW;
}

static bool is_worth_a_look(uint16_t awaited) { return __builtin_popcount(awaited) >= AWAKE_FEW; }

static bool one_asks(struct channel *c) { return is_worth_a_look(atomic_load_explicit(&c->awaited, memory_order_relaxed)); }

/* Those who parked because one was enough.  Who is not parked reads, or will when it has handled what it has. */
static void readers_return(struct channel *c)
{
	LOCKED(&c->lock);
	for (unsigned unparked = c->running - c->parked_count; unparked < c->readers_most && parked_wake(c); unparked++)
		;
}

static void awaited_set(struct channel *c, uint16_t after)
{
	uint16_t before = atomic_exchange_explicit(&c->awaited, after, memory_order_relaxed);

	if (is_worth_a_look(before) && !is_worth_a_look(after))
		readers_return(c);
}

static void awaited_note(struct channel *c, bool came)
{
	awaited_set(c, (uint16_t)(atomic_load_explicit(&c->awaited, memory_order_relaxed) << 1 | came));
}

/* Counts down from the last slow one. */
static void hurried_note(struct channel *c, bool slow)
{
	int left = atomic_load_explicit(&c->hurried, memory_order_relaxed), next = slow ? HURRIED : left ? left - 1 : 0;

	if (next != left)
		atomic_store_explicit(&c->hurried, next, memory_order_relaxed);
}

/* The calling thread has got a request. */
static void reader_leave(struct channel *c, uint32_t opcode)
{
	bool slow = slow_lately(c, opcode);

	hurried_note(c, slow);
	atomic_fetch_add_explicit(&c->taken, 1, memory_order_relaxed);
	if (atomic_fetch_sub(&c->readers, 1) != 1)
		return;
	if (!c->has_lookout || slow)
		reader_relieve(c);
	else if (atomic_load(&c->lookout_asleep))
		lookout_wake(c);
}

/* It has got none, and there will be none: all others are to see that for themselves, one after the other. */
static void reader_end(struct channel *c)
{
	LOCKED(&c->lock);
	atomic_fetch_sub(&c->readers, 1);
	parked_wake(c);
}

/* False: there are enough without it. */
static bool reader_enter(struct channel *c)
{
	unsigned readers = atomic_load(&c->readers);
	bool hurried = atomic_load_explicit(&c->hurried, memory_order_relaxed);
	unsigned most = hurried ? c->readers_most + READERS_MORE : one_asks(c) ? 1 : c->readers_most;

	while (readers < most) {
		if (atomic_compare_exchange_weak(&c->readers, &readers, readers + 1))
			return true;
	}
	return false;
}

/* Until it is this thread's turn to read.  False: it is one too many.  Who leaves last looks for parked ones after that, and
 * who parks looks at the number of readers after it is among the parked. */
static bool reader_park(struct worker *w)
{
	struct channel *c = w->channel;

	LOCKED(&c->lock);
	if (c->parked_count >= PARKED_MOST)
		return false;
	w->parked = true;
	w->parked_before = c->parked;
	c->parked = w;
	c->parked_count++;
	if (!atomic_load(&c->readers))
		parked_wake(c);
	while (w->parked)
		pthread_cond_wait(&w->unparked, &c->lock);
	return true;
}

/* ---- The lookout ---- */

/* The lock is held.  Until there is nobody reading, or it is over. */
static void lookout_sleep(struct channel *c)
{
	atomic_store(&c->lookout_asleep, true);
	while (!atomic_load(&c->stopping) && (atomic_load(&c->readers) || !c->running))
		pthread_cond_wait(&c->look, &c->lock);
	atomic_store(&c->lookout_asleep, false);
}

/* Until its next look; false: it is over. */
static bool lookout_wait(struct channel *c, unsigned idle)
{
	struct timespec until;

	LOCKED(&c->lock);
	if (idle >= LOOKS_IDLE || !c->running)
		lookout_sleep(c);
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += LOOK_NS;
	until.tv_sec += until.tv_nsec / NS_PER_S;
	until.tv_nsec %= NS_PER_S;
	if (!atomic_load(&c->stopping))
		pthread_cond_clockwait(&c->look, &c->lock, CLOCK_MONOTONIC, &until);
	return !atomic_load(&c->stopping);
}

static void *lookout_run(void *argument)
{
	struct channel *c = argument;
	unsigned taken = 0, idle = LOOKS_IDLE;

	while (lookout_wait(c, idle)) {
		unsigned now = atomic_load(&c->taken);
		bool unread = !atomic_load(&c->readers);

		idle = unread ? 0 : idle + 1;
		if (unread && now == taken)
			reader_relieve(c);
		taken = now;
	}
	return NULL;
}

/* ---- Threads ---- */

static void crowded(struct channel *c, int64_t now)
{
	int64_t lasted = atomic_load_explicit(&c->crowded_ns, memory_order_relaxed);
	bool again = now < atomic_load_explicit(&c->crowded_until_ns, memory_order_relaxed) + NS_PER_S;

	lasted = !lasted || !again ? CROWDED_NS : lasted < CROWDED_MOST_NS ? lasted * 2 : lasted;
	atomic_store_explicit(&c->crowded_ns, lasted, memory_order_relaxed);
	atomic_store_explicit(&c->crowded_until_ns, now + lasted, memory_order_relaxed);
	awaited_set(c, 0);
}

/* Until a request is there, or none came in time. */
static void look_again(struct channel *c, struct pollfd *device)
{
	int64_t before, now = clock_steady_ns(), until = now + AWAKE_NS;
	bool came;

	do {
		before = now;
		sched_yield();
		now = clock_steady_ns();
		came = poll(device, 1, 0) != 0;
	} while (!came && now < until);
	if (now - before > KEPT_NS)
		crowded(c, now);
	else
		awaited_note(c, came && now < until);
}

static bool is_look_due(struct channel *c)
{
	if (clock_steady_ns() < atomic_load_explicit(&c->crowded_until_ns, memory_order_relaxed))
		return false;
	return one_asks(c) || atomic_fetch_add_explicit(&c->unlooked, 1, memory_order_relaxed) % AWAKE_SELDOM == 0;
}

/* One at a time, as one request is enough for all. */
static void stay_awake(struct worker *w)
{
	struct channel *c = w->channel;
	struct pollfd device = { .fd = w->device->fd, .events = POLLIN };

	if (!is_look_due(c) || atomic_exchange(&c->looking, true))
		return;
	if (atomic_load(&c->busy) || poll(&device, 1, 0) != 0) {
		if (w->accompanied++) /* a single one can be a RELEASE, which nobody waits for before he asks on */
			awaited_note(c, false);
	} else {
		w->accompanied = 0;
		look_again(c, &device);
	}
	atomic_store(&c->looking, false);
}

/* The next request: its size, 0 to stop, or -errno. */
static ssize_t request_next(struct worker *w, uint8_t *buffer)
{
	struct channel *c = w->channel;
	ssize_t n;

	if (!atomic_load(&c->stopping))
		stay_awake(w);
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
		int64_t began;
		uint32_t opcode;
		ssize_t n;

		if (!reader_enter(c) && !reader_park(w))
			return 0;
		n = request_next(w, buffer);
		if (n <= 0) {
			if (n == 0 && c->options.unmounted && !atomic_load(&c->stopping))
				c->options.unmounted(c->options.context);
			reader_end(c);
			return (int)n;
		}
		opcode = ((const struct fuse_in_header *)buffer)->opcode;
		began = clock_steady_ns();
		atomic_fetch_add(&c->busy, 1);
		reader_leave(c, opcode);
		request_handle(w, buffer, (size_t)n);
		atomic_fetch_sub(&c->busy, 1);
		slow_note(c, opcode, clock_steady_ns() - began > SLOW_NS);
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

static unsigned readers_most(void)
{
	long most = sysconf(_SC_NPROCESSORS_ONLN) / 2;

	return most < 1 ? 1 : most > READERS_MOST ? READERS_MOST : (unsigned)most;
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
	pthread_cond_init(&c->look, NULL);
	for (unsigned i = 0; i < CHANNEL_THREADS_MOST; i++)
		c->workers[i] = (struct worker){ .channel = c, .unparked = PTHREAD_COND_INITIALIZER };
	c->readers_most = readers_most();
	thread_wakeable();
	/* Without one, busy threads are relieved at once. */
	c->has_lookout = !thread_start(&c->lookout, lookout_run, c);
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
		pthread_cond_signal(&c->look);
		while (c->running)
			workers_wake(c);
	}
	if (c->has_lookout)
		pthread_join(c->lookout, NULL);
	for (unsigned i = 0; i < CHANNEL_THREADS_MOST; i++) {
		if (c->workers[i].state == WORKER_ENDED)
			pthread_join(c->workers[i].thread, NULL);
	}
	pthread_cond_destroy(&c->ended);
	pthread_cond_destroy(&c->look);
	pthread_mutex_destroy(&c->lock);
	free(c);
}
