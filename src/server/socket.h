/* A unix socket with a name of its own, beside that of the data directory.
 *
 * A name that a server left which is gone is taken over; one that somebody listens at, or that is no socket, is refused.  Meanwhile the
 * folder is locked (flock), so that of two servers one is the first.  One thread. */
#pragma once
#include <stddef.h>
#include <sys/types.h>

struct named_socket {
	char *address; /* "unix:PATH", absolute; NULL: there is none */
	ino_t inode;   /* 0: it has not been made */
};

/* 0 and a listening descriptor, or -errno and a sentence. */
int socket_make(const char *address, struct named_socket *out, int *out_fd, char *error, size_t error_size);
/* Takes the name away, unless it is another one's by now. */
void socket_remove(struct named_socket *s);
