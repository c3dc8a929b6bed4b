/* Changes of a replica (client_news), told to the kernel, which may keep names and attributes for as long as the replica is
 * served: nothing else than this makes it ask again.
 *
 * An answer can be on its way while the kernel is told that it is out of date:
 *
 *   an answer that was made before the change   carries no leave to keep it (given_enter), if it is sent after the first of
 *                                               the news; one sent before is there when they come, or being taken in
 *   a name that is being taken in               the kernel has a lock of the directory from before it asks until the name is
 *                                               in its cache, and telling it of a name takes the same lock: so it waits
 *   attributes of an inode it has               it counts what it was told, and does not take older ones in
 *   attributes of one it is just making         telling it finds no such inode.  The name it is being made for is in the
 *                                               directory the inode says is its own: that is waited for as above, with a name
 *                                               that nobody can have, and it is told once more
 *   the same, with several names                the directory may be another one: such attributes are only given for
 *                                               a second (given_of)
 *
 * From a thread that handles no requests: the kernel makes it wait for them. */
#pragma once
#include <stddef.h>

struct session;
struct client_news;

void news_tell(struct session *s, const struct client_news *news, size_t count);
