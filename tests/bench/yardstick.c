/* yardstick: an empty FUSE file system that answers at once.
 *
 *   yardstick DIR [--files N] [--folders F] [--size BYTES] [--threads T] [--timeout SECONDS]
 *
 * It has the names and sizes of load's image folder (images.c), but holds nothing: every answer is
 * arithmetic on the node id.  So it shows what /dev/fuse and the wake-ups cost, which no file system can
 * go below that answers the same requests.  --timeout is for how long the kernel keeps names
 * and attributes; 0, the default, makes it ask each time.
 *
 * Root only.  Runs until DIR is unmounted (umount DIR). */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define DEVICE "/dev/fuse"
#define THREADS_MAX 16
#define WRITE_MAX 65536
#define REQUEST_MAX (WRITE_MAX + 4096)
#define FOLDER_FIRST 2 /* node ids: 1 is the root, then the folders, from FILE_FIRST on the files */
#define FILE_FIRST (1ULL << 32)

struct tree {
	uint64_t files, folders, size, timeout_s;
	time_t mounted;
};

struct server {
	struct tree tree;
	int device;
};

/* As image_bytes of images.c has it. */
static uint64_t file_bytes(const struct tree *t, uint64_t file)
{
	uint64_t z = file + 0x9e3779b97f4a7c15ULL;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return t->size / 2 + (z ^ (z >> 31)) % t->size;
}

static void attributes_of(const struct tree *t, uint64_t node, struct fuse_attr *a)
{
	bool file = node >= FILE_FIRST;

	*a = (struct fuse_attr){
		.ino = node,
		.size = file ? file_bytes(t, node - FILE_FIRST) : 4096,
		.mode = file ? S_IFREG | 0644 : S_IFDIR | 0755,
		.nlink = file ? 1 : 2,
		.blksize = 4096,
		.atime = (uint64_t)t->mounted,
		.mtime = (uint64_t)t->mounted,
		.ctime = (uint64_t)t->mounted,
	};
	a->blocks = (a->size + 511) / 512;
}

/* The node of a name, 0 if there is none. */
static uint64_t node_find(const struct tree *t, uint64_t parent, const char *name)
{
	char *end;
	uint64_t number = strtoull(name, &end, 10);

	if (*end || end == name)
		return 0;
	if (parent == FUSE_ROOT_ID)
		return number < t->folders ? FOLDER_FIRST + number : 0;
	if (parent >= FILE_FIRST || number >= t->files || number * t->folders / t->files != parent - FOLDER_FIRST)
		return 0;
	return FILE_FIRST + number;
}

static void answer(int device, uint64_t unique, int error, const void *data, size_t size)
{
	struct fuse_out_header header = { .len = (uint32_t)(sizeof(header) + size), .error = error, .unique = unique };
	struct iovec parts[] = { { &header, sizeof(header) }, { (void *)data, size } };

	if (writev(device, parts, size ? 2 : 1) < 0 && errno != ENOENT && errno != ENODEV)
		perror("yardstick: cannot answer");
}

static void answer_init(int device, const struct fuse_in_header *in, const struct fuse_init_in *init)
{
	struct fuse_init_out out = {
		.major = FUSE_KERNEL_VERSION,
		.minor = init->minor < FUSE_KERNEL_MINOR_VERSION ? init->minor : FUSE_KERNEL_MINOR_VERSION,
		.max_readahead = init->max_readahead,
		.flags = init->flags & (FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_PARALLEL_DIROPS),
		.max_background = 64,
		.congestion_threshold = 48,
		.max_write = WRITE_MAX,
		.time_gran = 1,
	};

	answer(device, in->unique, 0, &out, sizeof(out));
}

static void answer_lookup(const struct tree *t, int device, const struct fuse_in_header *in, const char *name)
{
	struct fuse_entry_out out = { .entry_valid = t->timeout_s, .attr_valid = t->timeout_s };

	out.nodeid = node_find(t, in->nodeid, name);
	if (!out.nodeid) {
		answer(device, in->unique, -ENOENT, NULL, 0);
		return;
	}
	attributes_of(t, out.nodeid, &out.attr);
	answer(device, in->unique, 0, &out, sizeof(out));
}

static void answer_getattr(const struct tree *t, int device, const struct fuse_in_header *in)
{
	struct fuse_attr_out out = { .attr_valid = t->timeout_s };

	attributes_of(t, in->nodeid, &out.attr);
	answer(device, in->unique, 0, &out, sizeof(out));
}

static void request_answer(const struct tree *t, int device, const struct fuse_in_header *in)
{
	static const struct fuse_open_out opened = { .open_flags = FOPEN_KEEP_CACHE | FOPEN_NOFLUSH };
	static const struct fuse_statfs_out statistics = { .st = { .bsize = 4096, .namelen = 255, .frsize = 4096 } };

	switch (in->opcode) {
	case FUSE_INIT: answer_init(device, in, (const struct fuse_init_in *)(in + 1)); break;
	case FUSE_LOOKUP: answer_lookup(t, device, in, (const char *)(in + 1)); break;
	case FUSE_GETATTR: answer_getattr(t, device, in); break;
	case FUSE_OPEN:
	case FUSE_OPENDIR: answer(device, in->unique, 0, &opened, sizeof(opened)); break;
	case FUSE_STATFS: answer(device, in->unique, 0, &statistics, sizeof(statistics)); break;
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_DESTROY: answer(device, in->unique, 0, NULL, 0); break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT: break; /* nobody waits for an answer */
	default: answer(device, in->unique, -ENOSYS, NULL, 0);
	}
}

/* Each thread reads from a device of its own, as the mount's do. */
static void *serve(void *argument)
{
	const struct server *s = argument;
	uint8_t *request = aligned_alloc(4096, REQUEST_MAX);
	uint32_t source = (uint32_t)s->device;
	int device = open(DEVICE, O_RDWR | O_CLOEXEC);

	if (!request || device < 0 || ioctl(device, FUSE_DEV_IOC_CLONE, &source) < 0) {
		perror("yardstick: cannot start a thread");
		exit(1);
	}
	for (;;) {
		ssize_t have = read(device, request, REQUEST_MAX);

		if (have >= (ssize_t)sizeof(struct fuse_in_header))
			request_answer(&s->tree, device, (const struct fuse_in_header *)request);
		else if (have >= 0 || (errno != ENOENT && errno != EINTR && errno != EAGAIN))
			break;
	}
	close(device);
	free(request);
	return NULL;
}

static int serve_until_unmounted(struct server *s, const char *folder, unsigned threads)
{
	pthread_t ids[THREADS_MAX];
	char options[128];

	s->device = open(DEVICE, O_RDWR | O_CLOEXEC);
	if (s->device < 0) {
		perror("yardstick: cannot open " DEVICE);
		return 1;
	}
	snprintf(options, sizeof(options), "fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other", s->device);
	if (mount("yardstick", folder, "fuse.yardstick", MS_NOSUID | MS_NODEV | MS_NOATIME, options)) {
		fprintf(stderr, "yardstick: cannot mount on %s: %s\n", folder, strerror(errno));
		return 1;
	}
	for (unsigned i = 0; i < threads; i++)
		if (pthread_create(&ids[i], NULL, serve, s)) {
			umount2(folder, MNT_DETACH);
			return 1;
		}
	for (unsigned i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	return 0;
}

static uint64_t number_parse(const char *text)
{
	char *end;
	uint64_t value = strtoull(text, &end, 10);

	if (*end || end == text) {
		fprintf(stderr, "yardstick: %s is not a number\n", text);
		exit(2);
	}
	return value;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "files", required_argument, NULL, 'n' },   { "folders", required_argument, NULL, 'd' },
		{ "size", required_argument, NULL, 's' },    { "threads", required_argument, NULL, 't' },
		{ "timeout", required_argument, NULL, 'o' }, { 0 },
	};
	struct server server = { .tree = { .files = 1000, .folders = 1, .size = 4096, .mounted = time(NULL) } };
	uint64_t threads = 4;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'n': server.tree.files = number_parse(optarg); break;
		case 'd': server.tree.folders = number_parse(optarg); break;
		case 's': server.tree.size = number_parse(optarg); break;
		case 't': threads = number_parse(optarg); break;
		case 'o': server.tree.timeout_s = number_parse(optarg); break;
		default: return 2;
		}
	}
	if (argc - optind != 1 || !threads || threads > THREADS_MAX || !server.tree.files || !server.tree.folders ||
	    !server.tree.size) {
		fprintf(stderr, "yardstick: use it as yardstick DIR [--files N] [--folders F] [--size BYTES] [--threads T] "
				"[--timeout SECONDS]\n");
		return 2;
	}
	return serve_until_unmounted(&server, argv[optind], (unsigned)threads);
}
