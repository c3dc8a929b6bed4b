#include "cli/ask.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "rpc/caller.h"

/* How long a call may take, all tries together: longer than any single request
 * runs, short enough to sit through. */
#define CALL_TIMEOUT_MS 30000
#define OPEN_TIMEOUT_MS 10000 /* hello is answered at once by any server that is alive */

/* What to do about a server that cannot be talked to. */
static const char *advice(int error)
{
	switch (-error) {
	case EINVAL: return "an address is unix:PATH or HOST:PORT";
	case ENXIO: return "is it spelled right? --server and EPOCHFS_SERVER name the server";
	case EACCES:
	case EPERM:
		return "run this as root or as the user the server runs as, or name a server you may use with --server or "
		       "EPOCHFS_SERVER";
	case ETIMEDOUT: return "is it stopped, or overloaded? --server and EPOCHFS_SERVER name another";
	default: return "is it running? --server and EPOCHFS_SERVER name another";
	}
}

static int connect_quietly(struct ask *a, int64_t timeout_ms, char *error, size_t error_size)
{
	struct rpc_options options = { .timeout_ms = CALL_TIMEOUT_MS,
				       .open_timeout_ms = timeout_ms,
				       .hello = WIRE__HELLO_REQUEST__INIT };
	Wire__HelloReply *hello;
	char host[256] = "";
	int r;

	gethostname(host, sizeof(host) - 1);
	options.servers = a->server;
	options.hello.version = PROTOCOL_VERSION;
	options.hello.host = host;
	options.hello.pid = (uint32_t)getpid();
	r = rpc_open(&options, &a->arena, &hello, &a->rpc, error, error_size);
	if (r)
		a->rpc = NULL;
	return r;
}

static int connect_within(struct ask *a, int64_t timeout_ms)
{
	char error[ASK_WHY] = "";
	int r = connect_quietly(a, timeout_ms, error, sizeof(error));

	if (r)
		verb_fail("cannot %s: %s; %s", a->what, error[0] ? error : strerror(-r), advice(r));
	return r;
}

static void ask_init(struct ask *a, const char *server, const char *what_format, va_list args)
{
	*a = (struct ask){ .server = server ? server : SERVER_DEFAULT };
	arena_init(&a->arena, 0);
	vsnprintf(a->what, sizeof(a->what), what_format, args);
}

int ask_open(struct ask *a, const char *server, const char *what_format, ...)
{
	va_list args;

	va_start(args, what_format);
	ask_init(a, server, what_format, args);
	va_end(args);
	return connect_within(a, OPEN_TIMEOUT_MS);
}

int ask_open_within(struct ask *a, const char *server, int64_t timeout_ms, const char *what_format, ...)
{
	va_list args;

	va_start(args, what_format);
	ask_init(a, server, what_format, args);
	va_end(args);
	return connect_within(a, timeout_ms);
}

int ask_open_quietly(struct ask *a, const char *server, int64_t timeout_ms)
{
	char error[ASK_WHY] = "";

	*a = (struct ask){ .server = server ? server : SERVER_DEFAULT };
	arena_init(&a->arena, 0);
	return connect_quietly(a, timeout_ms, error, sizeof(error));
}

void ask_close(struct ask *a)
{
	if (a->rpc)
		rpc_close(a->rpc);
	arena_free(&a->arena);
	a->rpc = NULL;
}

int ask_quietly(struct ask *a, uint16_t op, const void *request, void *reply, char *why, size_t why_size)
{
	Wire__Empty empty = WIRE__EMPTY__INIT;
	struct rpc_call call = {
		.op = op, .request = request ? request : &empty.base, .reply = reply, .why = why, .why_size = why_size
	};

	why[0] = 0;
	return rpc_call(a->rpc, &call, &a->arena);
}

int ask_failed(struct ask *a, int error, const char *why)
{
	if (why[0])
		return verb_fail("cannot %s: %s", a->what, why);
	if (error == -EIO)
		return verb_fail("cannot %s: the server at %s does not answer; see its log", a->what, a->server);
	return verb_fail("cannot %s: %s", a->what, strerror(-error));
}

int ask_call(struct ask *a, uint16_t op, const void *request, void *reply)
{
	char why[ASK_WHY];
	int r = ask_quietly(a, op, request, reply, why, sizeof(why));

	if (r)
		ask_failed(a, r, why);
	return r;
}

int ask_confirm(const char *format, ...)
{
	CLEANUP_FREE char *line = NULL;
	size_t capacity = 0;
	ssize_t length;
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputs(" [y/N] ", stderr);
	length = getline(&line, &capacity, stdin);
	if (length <= 0) {
		fputc('\n', stderr);
		return 0;
	}
	line[strcspn(line, "\n")] = 0;
	return !strcasecmp(line, "y") || !strcasecmp(line, "yes");
}
