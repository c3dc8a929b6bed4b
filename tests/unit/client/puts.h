/* What the server in this process is given to store: puts can be held up, and commits are noted.  The test is linked with
 * --wrap for store_put and meta_submit. */
#pragma once
#include <stdint.h>

#define PUTS_ALL (-1)

void puts_hold(int first); /* of objects that begin with this byte, or PUTS_ALL; what was counted and noted is forgotten */
void puts_go_on(void);
int puts_done(void); /* objects that are in the store since then */
/* Where each commit of the file ended, in the order they came; how many. */
int commits_of(uint64_t inode, uint64_t *ends, int most);
