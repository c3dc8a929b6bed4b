/* A unix socket with a name of its own, beside that of the data directory.
 *
 * The server holds a lock (flock) on the file PATH.lock as long as it has the socket, so that of two servers one is the first.  Only the
 * server's user can open that file.  A socket that a killed server left is replaced.  The start is refused if somebody listens at the
 * socket, or if PATH is no socket.  One thread. */
#pragma once
#include <stddef.h>
#include <sys/types.h>

struct named_socket {
	char *address; /* "unix:PATH", absolute; NULL: there is none */
	dev_t device;
	ino_t inode; /* 0: it has not been made */
	int lock_fd; /* -1: not locked */
};

/* 0 and a listening descriptor, or -errno and a sentence; socket_remove in either case. */
int socket_make(const char *address, struct named_socket *out, int *out_fd, char *error, size_t error_size);
/* Removes the name, unless it is another one's by now.  Call it while the socket still listens: then nobody takes it for one that was left. */
void socket_remove(struct named_socket *s);
