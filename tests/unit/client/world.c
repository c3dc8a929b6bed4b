#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include "../temporary.h"
#include "base/log.h"
#include "world.h"

void server_up(struct world *w)
{
	struct server_options o = {
		.data = w->folder, .grace_s = 0, .lease_ms = w->lease_ms, .session_timeout_s = w->session_timeout_s
	};
	char error[512] = "";
	if (server_start(&o, &w->server, error, sizeof(error)) < 0)
		fail_msg("server: %s", error);
	snprintf(w->address, sizeof(w->address), "%s", server_address(w->server));
}

int administrate(struct world *w, uint16_t op, const ProtobufCMessage *request)
{
	struct rpc_options o = { .servers = w->address, .timeout_ms = 5000, .hello = WIRE__HELLO_REQUEST__INIT };
	struct rpc_call call = { .op = op, .request = request };
	Wire__HelloReply *hello;
	struct arena arena;
	struct rpc *rpc;
	char error[512] = "";
	int r;
	o.hello.version = PROTOCOL_VERSION;
	arena_init(&arena, 0);
	if (rpc_open(&o, &arena, &hello, &rpc, error, sizeof(error)) < 0)
		fail_msg("%s", error);
	r = rpc_call(rpc, &call, &arena);
	rpc_close(rpc);
	arena_free(&arena);
	return r;
}

struct client *client_up(struct world *w) { return client_up_at(w->address); }

struct client *client_up_at(const char *address)
{
	struct client_options o = {
		.servers = address, .volume = "test", .host = "here", .mount_point = "/x", .timeout_ms = 20000
	};
	struct client *client;
	char error[512] = "";
	if (client_connect(&o, &client, error, sizeof(error)) < 0)
		fail_msg("client: %s", error);
	return client;
}

void world_up(struct world *w, const char *compression) { world_up_with(w, compression, BLOCK); }

void world_up_with(struct world *w, const char *compression, uint32_t block_size)
{
	Wire__Volume v = WIRE__VOLUME__INIT;
	*w = (struct world){ 0 };
	log_set_level(LOG_LEVEL_ERROR);
	temporary_template(w->folder, sizeof(w->folder), "test");
	assert_non_null(mkdtemp(w->folder));
	server_up(w);
	v.name = "test";
	v.block_size = block_size;
	v.compression = (char *)compression;
	assert_int_equal(administrate(w, WIRE__OP__VOLUME_CREATE, &v.base), 0);
	w->client = client_up(w);
}

void world_down(struct world *w)
{
	char command[128];
	if (w->client)
		assert_int_equal(client_disconnect(w->client), 0);
	server_stop(w->server);
	snprintf(command, sizeof(command), "rm -rf '%s'", w->folder);
	assert_int_equal(system(command), 0);
}
