/* A server, a volume named "test" and a client of it, in this process. */
#pragma once
#include "../await.h"
#include "client/client.h"
#include "rpc/caller.h"
#include "server/server.h"

#define BLOCK (64u << 10)

static const struct client_identity root = { 0, 0, 022 };

struct world {
	char folder[64];
	struct server *server;
	struct client *client;
	char address[128];
	int64_t lease_ms, session_timeout_s; /* of the next server_up; 0: as usual */
};

void world_up(struct world *w, const char *compression);
void world_up_with(struct world *w, const char *compression, uint32_t block_size);
void world_down(struct world *w); /* client NULL: it is gone already */
void server_up(struct world *w);
struct client *client_up(struct world *w); /* another client */
struct client *client_up_at(const char *address);
/* One administrative request; the server's status. */
int administrate(struct world *w, uint16_t op, const ProtobufCMessage *request);
