/* The main thread of a mount sleeps on a descriptor of signals and one of events:
 *
 *   starting --(INIT answered)--> up --(signal)--> stopping ----------------------> over
 *       |                          |                                                  ^
 *       |                          +--(unmounted by others)--> (last request ended)---+
 *       +--(INIT refused, device failed)----------------------------------------------+
 *
 * The events come from the channel's threads, which only set a word and wake us. */
#include "fuse/mount.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/descriptors.h"
#include "base/log.h"
#include "base/notify.h"
#include "client/control.h"
#include "fuse/channel.h"
#include "fuse/describe.h"
#include "fuse/mountdirs.h"
#include "fuse/news.h"
#include "fuse/passthrough.h"
#include "fuse/remount.h"
#include "fuse/ring.h"
#include "fuse/session.h"

#define READAHEAD_KIB 512     /* also what each fault of a mapping brings, for which nobody gave advice */
#define THREADS_BESIDE_RING 2 /* FORGETs and INTERRUPTs are all that comes by the channel then */

#ifndef PR_SET_IO_FLUSHER
#define PR_SET_IO_FLUSHER 57
#endif

enum event { EVENT_READY = 1, EVENT_ENDED = 2, EVENT_UNMOUNTED = 4 };

struct mount {
	const struct mount_options *options;
	struct mountpoint point;
	struct client *client;
	struct session session;
	struct remount remount;
	struct channel *channel;
	struct ring *ring; /* NULL: all requests come by the channel */
	int device, signals, events;
	pthread_mutex_t ending; /* guards the closing of the device */
	atomic_uint happened;   /* enum event */
	atomic_int error;       /* of the event that brought one */
};

static void event_raise(struct mount *m, enum event event, int error)
{
	uint64_t one = 1;

	if (error)
		atomic_store(&m->error, error);
	atomic_fetch_or(&m->happened, event);
	if (write(m->events, &one, sizeof(one)) < 0)
		log_error("cannot wake the main thread: %s", strerror(errno));
}

static void on_ready(void *context, int error) { event_raise(context, EVENT_READY, error); }

static void on_recall(void *context)
{
	struct mount *m = context;

	session_recall(&m->session);
}

static void on_uncovered(void *context, uint64_t directory)
{
	struct mount *m = context;

	session_uncover(&m->session, directory);
}

static void on_moved(void *context, uint64_t inode)
{
	struct mount *m = context;

	session_moved(&m->session, inode);
}

static void on_extend(void *context, uint64_t inode, uint64_t size)
{
	struct mount *m = context;

	session_extend(&m->session, inode, size);
}

static void on_forget(void *context, uint64_t inode, uint64_t from, uint64_t to)
{
	struct mount *m = context;

	session_forget(&m->session, inode, from, to);
}

static void on_changed(void *context, const struct client_news *news, size_t count)
{
	struct mount *m = context;

	news_tell(&m->session, news, count);
}

static void on_unmounted(void *context) { event_raise(context, EVENT_UNMOUNTED, 0); }

static void on_ended(void *context, int error) { event_raise(context, EVENT_ENDED, error); }

static bool on_interrupt(void *context, uint64_t unique)
{
	struct mount *m = context;

	return m->ring && ring_interrupt(m->ring, unique);
}

/* Waits for one of `events` or a signal, which is returned; 0 if it was an event. */
static int mount_wait(struct mount *m, unsigned events)
{
	struct pollfd fds[] = { { m->signals, POLLIN, 0 }, { m->events, POLLIN, 0 }, { m->remount.watch, POLLPRI, 0 } };

	while (!(atomic_load(&m->happened) & events)) {
		struct signalfd_siginfo info;
		uint64_t count;

		if (poll(fds, sizeof(fds) / sizeof(fds[0]), -1) < 0)
			continue;
		if (fds[2].revents)
			remount_look(&m->remount);
		if (fds[0].revents && read(m->signals, &info, sizeof(info)) == sizeof(info))
			return (int)info.ssi_signo;
		if (fds[1].revents && read(m->events, &count, sizeof(count)) < 0)
			continue;
	}
	return 0;
}

static int signals_open(struct mount *m)
{
	struct sigaction ignore = { .sa_handler = SIG_IGN };
	sigset_t set;

	sigaction(SIGPIPE, &ignore, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	m->signals = signalfd(-1, &set, SFD_CLOEXEC);
	m->events = eventfd(0, EFD_CLOEXEC);
	return m->signals < 0 || m->events < 0 ? -errno : 0;
}

static int mount_connect(struct mount *m, char *why, size_t why_size)
{
	struct client_options o = m->options->client;
	char host[256] = "";

	gethostname(host, sizeof(host) - 1);
	o.host = host;
	o.mount_point = m->point.path;
	o.read_only = m->options->flags.read_only;
	return client_connect(&o, &m->client, why, why_size);
}

/* What programs wrote through mappings is still in the kernel's pages. */
static void mount_sync(struct mount *m)
{
	CLEANUP_FD int fd = open(m->point.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || syncfs(fd))
		log_warn("cannot sync %s: %s", m->point.path, strerror(errno));
}

/* The channel still serves, as unmounting makes the kernel write pages and look around. */
static void mount_unmount(struct mount *m)
{
	char why[512];

	if (!mountpoint_is_ours(&m->point) || !mountpoint_unmount(&m->point, false, why, sizeof(why)))
		return;
	log_info("%s is in use; it is detached, and programs that use it get errors", m->point.path);
	mount_sync(m);
	if (mountpoint_unmount(&m->point, true, why, sizeof(why)))
		log_error("cannot unmount %s: %s", m->point.path, why);
}

/* Without a ring the mount serves all the same, but for one that must have it: `error`, and why. */
static int ring_do_without(struct mount *m, int error, const char *reason, char *why, size_t why_size)
{
	if (m->options->ring == RING_ALWAYS) {
		snprintf(why, why_size, "%s", reason);
		return error;
	}
	log_info("%s: no io_uring: %s", m->point.path, reason);
	return 0;
}

static int mount_ring_start(struct mount *m, char *why, size_t why_size)
{
	char reason[256];
	int error;

	if (m->options->ring == RING_NEVER)
		return 0;
	if (!ring_possible(reason, sizeof(reason))) {
		if (m->options->ring != RING_ALWAYS)
			return 0;
		snprintf(why, why_size, "%s", reason);
		return -EOPNOTSUPP;
	}
	error = ring_start(&m->session, m->device, &m->ring);
	if (error) {
		snprintf(reason, sizeof(reason), "cannot set up io_uring: %s", strerror(-error));
		return ring_do_without(m, error, reason, why, why_size);
	}
	m->session.ring_wanted = true;
	return 0;
}

/* After INIT: the kernel waits for it.  If the kernel has refused it, the ring stays, but nothing comes by it. */
static int mount_ring_open(struct mount *m, char *why, size_t why_size)
{
	int error = -EOPNOTSUPP;

	if (!m->ring)
		return 0;
	if (atomic_load(&m->session.ring_agreed))
		error = ring_open(m->ring);
	if (!error)
		return 0;
	atomic_store(&m->session.ring_agreed, false);
	if (error == -EOPNOTSUPP)
		return ring_do_without(m, error, "the kernel has refused it", why, why_size);
	snprintf(why, why_size, "cannot use io_uring: %s; mount with --fuse-uring off", strerror(-error));
	return error;
}

/* There, what others write is seen by who opens a file anew: so opens must be told. */
static bool mount_is_relaxed(const struct mount *m)
{
	struct volume_info volume;

	client_volume(m->client, &volume);
	return volume.relaxed;
}

static int session_start(struct mount *m, char *why, size_t why_size)
{
	int error = session_init(&m->session, m->client, &m->options->flags);

	if (error) {
		snprintf(why, why_size, "%s", strerror(-error));
		mount_unmount(m);
		close(m->device);
		m->device = -1;
		return error;
	}
	m->session.unopened = m->options->flags.read_only && !m->options->shared_locks && m->options->pass != PASS_ALWAYS &&
			      (client_is_replica(m->client) || !mount_is_relaxed(m));
	m->session.pass_wanted = m->options->pass != PASS_NEVER && m->options->client.cache_dir_count > 0 && !m->session.unopened;
	m->session.writes_back = m->options->client.writeback_dir != NULL;
	m->session.given.told = client_is_replica(m->client);
	m->session.ready = on_ready;
	m->session.context = m;
	m->session.device = m->device;
	client_on_recall(m->client, &(struct client_events){ .recalled = on_recall,
							     .uncovered = on_uncovered,
							     .moved = on_moved,
							     .extend = on_extend,
							     .forget = on_forget,
							     .changed = on_changed,
							     .context = m });
	return 0;
}

/* Serves until INIT was answered. */
static int init_await(struct mount *m, char *why, size_t why_size)
{
	int error;

	if (mount_wait(m, EVENT_READY | EVENT_ENDED)) {
		snprintf(why, why_size, "interrupted");
		return -EINTR;
	}
	error = atomic_load(&m->error);
	if (!error && !(atomic_load(&m->happened) & EVENT_READY))
		error = -ENODEV;
	if (error)
		snprintf(why, why_size, "%s",
			 error == -EPROTONOSUPPORT ? "this kernel's FUSE is too old; Linux 5.12 or later is needed"
						   : strerror(-error));
	return error;
}

static void pass_explain(int error, const char *directory, char *why, size_t why_size)
{
	if (error == -EOPNOTSUPP)
		snprintf(why, why_size, "files cannot be passed through: the kernel does not offer it; Linux 6.9 does");
	else if (error == -EPERM)
		snprintf(why, why_size, "files cannot be passed through: that takes CAP_SYS_ADMIN");
	else if (error == -ELOOP)
		snprintf(why, why_size, "files cannot be passed through from %s: it is on a stacked file system (overlayfs)",
			 directory);
	else
		snprintf(why, why_size, "files cannot be passed through from %s: %s", directory, strerror(-error));
}

/* After INIT.  A mount that must pass files through fails where it cannot.  Of several directories those that are out of use are left
 * out: they may come back. */
static int mount_pass_try(struct mount *m, char *why, size_t why_size)
{
	const struct client_options *o = &m->options->client;
	int error = 0, unused = 0, used = 0;

	if (m->options->pass != PASS_ALWAYS) {
		if (atomic_load(&m->session.pass_agreed))
			passthrough_try(&m->session, NULL); /* so that it is known, and said, from the beginning */
		return 0;
	}
	for (int i = 0; !error && i < o->cache_dir_count; i++) {
		int r = client_cache_error(m->client, i);

		if (r) {
			unused = r;
			continue;
		}
		used++;
		error = passthrough_try(&m->session, o->cache_dirs[i]);
		if (error)
			pass_explain(error, o->cache_dirs[i], why, why_size);
	}
	if (error || used)
		return error;
	snprintf(why, why_size, "files cannot be passed through: the cache directory %s cannot be used: %s",
		 o->cache_dirs[o->cache_dir_count - 1], strerror(-unused));
	return unused;
}

/* The options as they are at present. */
static void mounted_of(void *context, struct control_mounted *out)
{
	struct mount *m = context;
	struct mount_options o = *m->options;

	remount_look(&m->remount);
	o.flags.atime = (enum mountpoint_atime)atomic_load(&m->session.atime);
	o.flags.nodiratime = atomic_load(&m->session.nodiratime);
	mount_options_describe(&o, &out->options);
	out->read_only = atomic_load(&m->session.read_only);
}

static const char *transport_of(void *context)
{
	struct mount *m = context;

	return atomic_load(&m->session.ring_agreed) ? "io_uring" : "/dev/fuse";
}

static bool cache_is_used(struct mount *m)
{
	for (int i = 0; i < m->options->client.cache_dir_count; i++)
		if (!client_cache_error(m->client, i))
			return true;
	return false;
}

/* Why no file would be passed through now; NULL: nothing is in the way. */
static const char *pass_obstacle(struct mount *m)
{
	const struct mount_options *o = m->options;
	int error = atomic_load(&m->session.pass_error);

	if (o->pass == PASS_NEVER)
		return "switched off";
	if (!o->client.cache_dir_count)
		return "there is no --cache-dir";
	if (client_is_replica(m->client))
		return "replicas do not";
	if (m->session.unopened)
		return "read-only mounts do if told to: --passthrough on";
	if (!atomic_load(&m->session.pass_agreed))
		return "the kernel does not offer it";
	if (error)
		return error == EPERM ? "it takes root (CAP_SYS_ADMIN)" : strerror(error);
	if (!cache_is_used(m))
		return "no cache directory is in use";
	if (!client_is_alone(m->client) && !mount_is_relaxed(m))
		return o->client.read_only ? "another mount may write to the volume" : "the volume has another mount";
	return NULL;
}

static void passing_of(void *context, struct control_passing *out)
{
	struct mount *m = context;

	*out = (struct control_passing){ .obstacle = pass_obstacle(m),
					 .files = atomic_load(&m->session.modes.passing),
					 .opens = atomic_load(&m->session.modes.passed) };
}

/* It may not be where it was mounted first, and still be in another mount namespace. */
static bool mount_lives(void *context)
{
	struct mount *m = context;
	LOCKED(&m->ending);
	struct pollfd device = { m->device, 0, 0 };

	return m->device >= 0 && poll(&device, 1, 0) == 0;
}

/* Before INIT is answered: whoever can use the mount can ask it; and before all that takes time, for those who look for the mount in
 * mountinfo.  Status, warm, prefetch and remount depend on it; without it all else works. */
static void mount_control_start(struct mount *m)
{
	char why[512];
	struct control_options o = { .device = m->point.device,
				     .mount_point = m->point.path,
				     .mounted = mounted_of,
				     .transport = transport_of,
				     .passing = passing_of,
				     .lives = mount_lives,
				     .context = m };
	if (control_start(m->client, &o, why, sizeof(why)) < 0)
		log_warn("%s: no control socket, so epochfs status DIR, warm, prefetch and mount -o remount do not work here: %s",
			 m->point.path, why);
}

/* Mounts and answers INIT.  (The kernel holds back all other requests until then.) */
static int mount_start(struct mount *m, char *why, size_t why_size)
{
	struct channel_options co = { .unmounted = on_unmounted, .ended = on_ended, .interrupt = on_interrupt, .context = m };
	int error;

	m->device = mountpoint_mount(&m->point, &m->options->flags, why, why_size);
	if (m->device < 0)
		return m->device;
	error = session_start(m, why, why_size);
	if (error)
		return error;
	remount_begin(&m->remount, &m->point, &m->session);
	mount_control_start(m);
	error = mount_ring_start(m, why, why_size);
	if (error)
		return error;
	co.fd = m->device;
	co.threads_first = m->ring ? THREADS_BESIDE_RING : 0;
	error = channel_start(&m->session, &co, &m->channel);
	if (error) {
		snprintf(why, why_size, "cannot start threads: %s", strerror(-error));
		return error;
	}
	error = init_await(m, why, why_size);
	if (!error)
		error = mount_ring_open(m, why, why_size);
	return error ? error : mount_pass_try(m, why, why_size);
}

static void *second_signal(void *argument)
{
	struct mount *m = argument;
	struct signalfd_siginfo info;

	if (read(m->signals, &info, sizeof(info)) == sizeof(info)) {
		log_error("ended by a second signal; what was written to %s and not yet stored is lost", m->point.path);
		_exit(1);
	}
	return NULL;
}

static void device_close(struct mount *m)
{
	LOCKED(&m->ending);
	close(m->device);
	m->device = -1;
}

/* Stops serving; then the kernel can change nothing more, and what is left is stored.
 * This may take as long as the client waits for its server, so a second signal cuts it short. */
static int mount_finish(struct mount *m)
{
	pthread_t impatient;
	bool watching = m->client && !pthread_create(&impatient, NULL, second_signal, m);
	int error = 0;

	if (m->device >= 0)
		mount_unmount(m);
	if (m->client)
		client_unmounted(m->client);
	/* In this order: making the kernel forget may wait for requests that are served now. */
	if (m->client)
		client_on_recall(m->client, NULL);
	if (m->ring)
		ring_stop(m->ring);
	if (m->channel)
		channel_stop(m->channel);
	if (m->device >= 0) {
		session_end(&m->session);
		device_close(m);
	}
	ring_free(m->ring);
	if (m->client)
		error = client_disconnect(m->client); /* and nobody asks for the state of the mount any more */
	remount_end(&m->remount);
	if (watching) {
		pthread_cancel(impatient);
		pthread_join(impatient, NULL);
	}
	return error;
}

static int mount_serve(struct mount *m, char *why, size_t why_size)
{
	int error = m->options->up ? m->options->up(m->options->context) : 0, signal;

	if (error) {
		snprintf(why, why_size, "%s", strerror(-error));
		return error;
	}
	mountpoint_readahead(&m->point, READAHEAD_KIB);
	notify_service_manager("READY=1");
	log_info("volume %s is mounted on %s, requests come by %s", m->options->client.volume, m->point.path, transport_of(m));
	signal = mount_wait(m, EVENT_ENDED | EVENT_UNMOUNTED);
	if (!signal) {
		client_unmounted(m->client);
		signal = mount_wait(m, EVENT_ENDED);
	}
	notify_service_manager("STOPPING=1");
	if (signal)
		log_info("%s: unmounting %s", strsignal(signal), m->point.path);
	error = signal ? 0 : atomic_load(&m->error);
	if (error)
		snprintf(why, why_size, "the connection to the kernel failed: %s", strerror(-error));
	return error;
}

int mount_run(const struct mount_options *options, char *why, size_t why_size)
{
	struct mount m = { .options = options,
			   .device = -1,
			   .signals = -1,
			   .events = -1,
			   .ending = PTHREAD_MUTEX_INITIALIZER,
			   .remount = { .watch = -1 } };
	int error = mountpoint_prepare(options->directory, &m.point, why, why_size), last;

	if (!error)
		error = mountdirs_check(&options->client, m.point.path, why, why_size);
	if (error)
		return error;
	error = signals_open(&m);
	if (error)
		snprintf(why, why_size, "%s", strerror(-error));
	descriptors_allow_all(); /* the cache on the disk keeps some open */
	/* When memory is short the kernel may want to write pages of this mount: our own memory
	 * must not wait for that. */
	prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
	if (!error)
		error = mount_connect(&m, why, why_size);
	if (!error)
		error = mount_start(&m, why, why_size);
	if (!error)
		error = mount_serve(&m, why, why_size);
	last = mount_finish(&m);
	if (last && !error) {
		snprintf(why, why_size, "not everything that was written could be stored: %s", strerror(-last));
		error = last;
	}
	if (!error)
		log_info("volume %s is unmounted from %s", options->client.volume, m.point.path);
	close(m.events);
	close(m.signals);
	return error;
}
