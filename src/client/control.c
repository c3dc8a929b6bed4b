/* A thread that accepts, and one for each connection:
 *
 *   line --> request --> answer --> line ...        until the peer hangs up, or is silent (without an order) for SILENT_MS,
 *                                                   or does not take an answer within ANSWER_S, or the end
 *
 * Work that takes long (warming) looks now and then whether the peer is still there. */
#include "client/control.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <dirent.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/control_request.h"
#include "client/state.h"
#include "client/warm.h"

#define SILENT_MS 60000
#define ANSWER_S 10
#define NEXT_WAIT_MS 500 /* for room in an order; then the peer asks again */
#define SUFFIX ".sock"

struct connection_slot {
	struct control *control;
	int fd;     /* -1: free */
	bool ended; /* to be joined */
	pthread_t thread;
};

struct control {
	struct client *client;
	struct control_options options;
	char *mount_point;
	char folder[80], name[40];
	int folder_fd, listener;
	ino_t inode; /* of the socket */
	pthread_t thread;
	bool started;
	_Atomic bool stopping;
	pthread_mutex_t lock; /* guards the slots */
	struct connection_slot slots[CONTROL_CONNECTIONS];
};

/* ---- Where the socket is ---- */

static bool folder_of(unsigned n, uid_t user, char *out, size_t size)
{
	const char *runtime = user == geteuid() ? getenv("XDG_RUNTIME_DIR") : NULL;

	if (user == 0)
		return n == 0 && snprintf(out, size, "/run/epochfs") < (int)size;
	if (!runtime || runtime[0] != '/')
		n++;
	switch (n) {
	case 0: return snprintf(out, size, "%s/epochfs", runtime) < (int)size;
	case 1: return snprintf(out, size, "/tmp/epochfs-%u", (unsigned)user) < (int)size;
	case 2: return snprintf(out, size, "/run/user/%u/epochfs", (unsigned)user) < (int)size;
	default: return false;
	}
}

bool control_place(unsigned n, uid_t user, dev_t device, char *out, size_t size)
{
	char folder[80];

	return folder_of(n, user, folder, sizeof(folder)) &&
	       snprintf(out, size, "%s/%u-%u" SUFFIX, folder, major(device), minor(device)) < (int)size;
}

/* One that nobody else could have made, or can write to. */
static int folder_open(struct control *k, char *why, size_t why_size)
{
	struct stat st;

	if (!folder_of(0, geteuid(), k->folder, sizeof(k->folder))) {
		snprintf(why, why_size, "XDG_RUNTIME_DIR is too long");
		return -ENAMETOOLONG;
	}
	if (mkdir(k->folder, geteuid() ? 0700 : 0755) < 0 && errno != EEXIST) {
		snprintf(why, why_size, "cannot make %s: %s", k->folder, strerror(errno));
		return -errno;
	}
	k->folder_fd = open(k->folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (k->folder_fd < 0 || fstat(k->folder_fd, &st) < 0) {
		snprintf(why, why_size, "cannot open %s: %s", k->folder, strerror(errno));
		return -errno;
	}
	if (st.st_uid != geteuid() || (st.st_mode & 022)) {
		snprintf(why, why_size, "%s belongs to somebody else, or others can write to it", k->folder);
		return -EPERM;
	}
	return 0;
}

static int address_of(const char *folder, const char *name, struct sockaddr_un *out)
{
	*out = (struct sockaddr_un){ .sun_family = AF_UNIX };
	return snprintf(out->sun_path, sizeof(out->sun_path), "%s/%s", folder, name) < (int)sizeof(out->sun_path) ? 0
														  : -ENAMETOOLONG;
}

/* Nobody listens there. */
static bool is_dead(const char *folder, const char *name)
{
	CLEANUP_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct sockaddr_un address;

	return fd >= 0 && address_of(folder, name, &address) == 0 &&
	       connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 && errno == ECONNREFUSED;
}

/* The folder is locked.  What mounts left that were killed. */
static void dead_remove(const char *folder, int folder_fd)
{
	int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
	struct dirent *entry;

	if (!stream) {
		if (fd >= 0)
			close(fd);
		return;
	}
	while ((entry = readdir(stream))) {
		size_t length = strlen(entry->d_name), suffix = sizeof(SUFFIX) - 1;

		if (length > suffix && !strcmp(entry->d_name + length - suffix, SUFFIX) && is_dead(folder, entry->d_name))
			unlinkat(folder_fd, entry->d_name, 0);
	}
	closedir(stream);
}

/* Another user's folder may be locked for ever. */
void control_clear(uid_t user)
{
	char folder[80];

	for (unsigned n = 0; folder_of(n, user, folder, sizeof(folder)); n++) {
		CLEANUP_FD int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

		if (fd >= 0 && flock(fd, LOCK_EX | (user == geteuid() ? 0 : LOCK_NB)) == 0)
			dead_remove(folder, fd); /* closing it unlocks it */
	}
}

/* The folder is locked.  It listens before it has its name. */
static int listener_make(struct control *k)
{
	struct sockaddr_un address;
	struct stat st;
	char new[48];
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	k->listener = fd;
	snprintf(new, sizeof(new), "%s.new", k->name);
	unlinkat(k->folder_fd, new, 0);
	if (address_of(k->folder, new, &address) < 0)
		return -ENAMETOOLONG;
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || fchmodat(k->folder_fd, new, 0600, 0) < 0 ||
	    listen(fd, CONTROL_CONNECTIONS) < 0 || fstatat(k->folder_fd, new, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    renameat(k->folder_fd, new, k->folder_fd, k->name) < 0)
		return -errno;
	k->inode = st.st_ino;
	return 0;
}

static int listener_open(struct control *k, char *why, size_t why_size)
{
	int r = folder_open(k, why, why_size);

	if (r < 0)
		return r;
	snprintf(k->name, sizeof(k->name), "%u-%u" SUFFIX, major(k->options.device), minor(k->options.device));
	flock(k->folder_fd, LOCK_EX);
	dead_remove(k->folder, k->folder_fd);
	r = listener_make(k);
	flock(k->folder_fd, LOCK_UN);
	if (r < 0)
		snprintf(why, why_size, "cannot listen on %s/%s: %s", k->folder, k->name, strerror(-r));
	return r;
}

/* Unless the name is already that of another one: the device number is free once it is unmounted. */
static void listener_close(struct control *k)
{
	struct stat st;

	if (k->listener < 0)
		return;
	flock(k->folder_fd, LOCK_EX);
	if (k->inode && fstatat(k->folder_fd, k->name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_ino == k->inode)
		unlinkat(k->folder_fd, k->name, 0);
	flock(k->folder_fd, LOCK_UN);
	close(k->listener);
}

/* ---- A connection ---- */

struct peer {
	struct control *control;
	struct client *client;
	int fd;
	struct told_order *order; /* NULL: none was begun */
	char line[CONTROL_LINE];
	size_t length;
	struct control_request request;
};

static bool is_gone(void *context)
{
	struct peer *p = context;
	struct pollfd poll_one = { p->fd, POLLRDHUP, 0 };

	return atomic_load(&p->control->stopping) ||
	       (poll(&poll_one, 1, 0) > 0 && (poll_one.revents & (POLLRDHUP | POLLHUP | POLLERR)));
}

static bool answer(struct peer *p, json_t *value)
{
	CLEANUP_FREE char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
	size_t length = text ? strlen(text) : 0, done = 0;

	json_decref(value);
	if (!text)
		return false;
	text[length++] = '\n'; /* where the 0 was */
	while (done < length) {
		ssize_t n = send(p->fd, text + done, length - done, MSG_NOSIGNAL);

		if (n <= 0 && errno != EINTR)
			return false;
		done += n > 0 ? (size_t)n : 0;
	}
	return true;
}

static json_t *refusal(const char *why) { return json_pack("{s:s}", "error", why); }

static json_t *file_json(const struct warm_result *r, int error)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:b, s:i}", "bytes", (json_int_t)r->bytes, "fetched", (json_int_t)r->fetched,
			 "missing", (json_int_t)r->missing, "damaged", (json_int_t)r->damaged, "here", r->here, "error", -error);
}

/* Once the server has not answered within the time-out, the others need not wait for that, too. */
static json_t *warm(struct peer *p)
{
	json_t *list = json_array();
	bool away = false;

	if (!p->client->cache) {
		json_decref(list);
		return refusal("this mount has no cache directory; mount it with --cache-dir");
	}
	for (uint32_t i = 0; i < p->request.count; i++) {
		const struct control_file *f = &p->request.files[i];
		struct warm_stretch s = { f->inode, f->from, f->to, p->request.flags, is_gone, p };
		struct warm_result result = { 0 };
		int r = away ? -EHOSTUNREACH : is_gone(p) ? -ECANCELED : warm_to_disk(p->client, &s, &result);

		if (r == -EIO && !lease_in_contact(p->client))
			r = -EHOSTUNREACH;
		away = r == -EHOSTUNREACH;
		json_array_append_new(list, file_json(&result, r));
	}
	return json_pack("{s:o, s:b}", "files", list, "away", away);
}

static json_t *order_begin(struct peer *p)
{
	struct told_progress progress;
	int r;

	if (p->order)
		return refusal("there is an order already; another one needs another connection");
	r = told_begin(p->client, p->request.window, p->request.ahead, &p->order);
	if (r == -EMFILE)
		return refusal("there are too many orders at the same time");
	if (r < 0)
		return refusal("no memory");
	told_progress(p->client, p->order, &progress);
	return json_pack("{s:I, s:b}", "window_bytes", (json_int_t)progress.window, "memory", p->client->cache == NULL);
}

static json_t *order_next(struct peer *p)
{
	uint32_t done = 0;
	int r = 0;

	if (!p->order)
		return refusal("no order was begun");
	for (; done < p->request.count && r == 0; done += r == 0)
		r = told_add(p->client, p->order, p->request.files[done].inode, p->request.files[done].to,
			     done ? 0 : NEXT_WAIT_MS);
	return r == -ENOMEM ? refusal("no memory") : json_pack("{s:i}", "taken", (int)done);
}

static json_t *order_progress(struct peer *p)
{
	struct told_progress progress;

	if (!p->order)
		return refusal("no order was begun");
	told_progress(p->client, p->order, &progress);
	return control_progress(&progress);
}

/* For whoever cannot sync through the mount, because it is not mounted where he is. */
static json_t *store(struct peer *p)
{
	const struct control_options *o = &p->control->options;
	int r = p->client->read_only ? 0 : client_store_everything(p->client);

	return json_pack("{s:i, s:b, s:o}", "pid", (int)getpid(), "mounted", o->lives(o->context), "failure",
			 r < 0 ? json_string(strerror(-r)) : json_null());
}

static json_t *handle(struct peer *p, size_t length)
{
	const char *why;

	if (control_decode(p->line, length, &p->request, &why) < 0)
		return refusal(why);
	switch (p->request.op) {
	case CONTROL_STORE: return store(p);
	case CONTROL_WARM: return warm(p);
	case CONTROL_ORDER: return order_begin(p);
	case CONTROL_NEXT: return order_next(p);
	case CONTROL_PROGRESS: return order_progress(p);
	default: return control_status(p->client, &p->control->options, p->request.pinned);
	}
}

/* More of a line.  False: there will be none. */
static bool receive(struct peer *p)
{
	struct pollfd wait = { p->fd, POLLIN, 0 };
	ssize_t n;
	int r;

	if (p->length == sizeof(p->line)) {
		answer(p, refusal("the line is too long"));
		return false;
	}
	do {
		r = poll(&wait, 1, p->order && !p->length ? -1 : SILENT_MS);
	} while (r < 0 && errno == EINTR);
	if (r <= 0 || atomic_load(&p->control->stopping))
		return false;
	n = recv(p->fd, p->line + p->length, sizeof(p->line) - p->length, 0);
	p->length += n > 0 ? (size_t)n : 0;
	return n > 0 || (n < 0 && errno == EINTR);
}

static void serve(struct peer *p)
{
	while (!atomic_load(&p->control->stopping)) {
		char *end = memchr(p->line, '\n', p->length);
		size_t length = end ? (size_t)(end - p->line) : 0;

		if (!end && !receive(p))
			return;
		if (!end)
			continue;
		if (!answer(p, handle(p, length)))
			return;
		memmove(p->line, end + 1, p->length - length - 1);
		p->length -= length + 1;
	}
}

static void *connection_run(void *context)
{
	struct connection_slot *s = context;
	struct control *k = s->control;
	struct peer *p = calloc(1, sizeof(*p));

	if (p) {
		p->control = k;
		p->client = k->client;
		p->fd = s->fd;
		serve(p);
		if (p->order)
			told_end(k->client, p->order);
		free(p);
	}
	LOCKED(&k->lock);
	close(s->fd);
	s->fd = -1;
	s->ended = true;
	return NULL;
}

/* ---- Accepting ---- */

static bool is_welcome(int fd)
{
	struct ucred peer;
	socklen_t length = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && (peer.uid == 0 || peer.uid == geteuid());
}

static void slot_join(struct connection_slot *s)
{
	if (!s->ended)
		return;
	pthread_join(s->thread, NULL);
	s->ended = false;
}

/* False: there is no slot, or no thread. */
static bool slot_use(struct control *k, int fd)
{
	LOCKED(&k->lock);

	for (int i = 0; i < CONTROL_CONNECTIONS; i++) {
		struct connection_slot *s = &k->slots[i];

		if (s->fd >= 0)
			continue;
		slot_join(s);
		s->control = k;
		s->fd = fd;
		if (pthread_create(&s->thread, NULL, connection_run, s) == 0)
			return true;
		s->fd = -1;
		return false;
	}
	return false;
}

static void *control_run(void *context)
{
	struct control *k = context;
	static const char busy[] = "{\"error\": \"the mount has too many connections\"}\n";

	while (!atomic_load(&k->stopping)) {
		struct timeval patience = { .tv_sec = ANSWER_S };
		int fd = accept4(k->listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0) {
			/* No descriptors, no memory: that passes. */
			if (!atomic_load(&k->stopping))
				nanosleep(&(struct timespec){ .tv_nsec = 100 * NS_PER_MS }, NULL);
			continue;
		}
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
		if (!is_welcome(fd) || atomic_load(&k->stopping)) {
			close(fd);
		} else if (!slot_use(k, fd)) {
			(void)!send(fd, busy, sizeof(busy) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
			close(fd);
		}
	}
	return NULL;
}

/* ---- Life ---- */

static void control_free(struct control *k)
{
	listener_close(k);
	if (k->folder_fd >= 0)
		close(k->folder_fd);
	pthread_mutex_destroy(&k->lock);
	free(k->mount_point);
	free(k);
}

static struct control *control_new(struct client *c, const struct control_options *o)
{
	struct control *k = calloc(1, sizeof(*k));

	if (!k)
		return NULL;
	k->client = c;
	k->folder_fd = k->listener = -1;
	for (int i = 0; i < CONTROL_CONNECTIONS; i++)
		k->slots[i].fd = -1;
	pthread_mutex_init(&k->lock, NULL);
	k->mount_point = strdup(o->mount_point);
	k->options = *o;
	k->options.mount_point = k->mount_point;
	if (k->mount_point)
		return k;
	control_free(k);
	return NULL;
}

int control_start(struct client *c, const struct control_options *options, char *why, size_t why_size)
{
	struct control *k = control_new(c, options);
	int r;

	snprintf(why, why_size, "no memory");
	if (!k)
		return -ENOMEM;
	r = listener_open(k, why, why_size);
	if (r == 0) {
		r = -pthread_create(&k->thread, NULL, control_run, k);
		if (r < 0)
			snprintf(why, why_size, "cannot start a thread: %s", strerror(-r));
	}
	if (r < 0) {
		control_free(k);
		return r;
	}
	c->control = k;
	return 0;
}

void control_stop(struct client *c)
{
	struct control *k = c->control;

	if (!k)
		return;
	atomic_store(&k->stopping, true);
	shutdown(k->listener, SHUT_RDWR); /* accept returns */
	pthread_join(k->thread, NULL);
	pthread_mutex_lock(&k->lock);
	for (int i = 0; i < CONTROL_CONNECTIONS; i++)
		if (k->slots[i].fd >= 0)
			shutdown(k->slots[i].fd, SHUT_RDWR);
	pthread_mutex_unlock(&k->lock);
	for (int i = 0; i < CONTROL_CONNECTIONS; i++)
		if (k->slots[i].control) {
			/* One whose thread has ended by itself was joined, or is marked. */
			pthread_mutex_lock(&k->lock);
			bool running = k->slots[i].fd >= 0 || k->slots[i].ended;
			pthread_mutex_unlock(&k->lock);
			if (running)
				pthread_join(k->slots[i].thread, NULL);
		}
	control_free(k);
	c->control = NULL;
}
