/* Ranks that make different calls of the interface, such as one that saves while another begins its next step, post to different
 * groups, and then wait for each other without end. A rank whose call waits for others alone, with nothing else of its own under way,
 * is *blocked*, and tells which calls it waits for. If two ranks are blocked, and each waits only for calls that the other has not
 * posted, then neither can go on, whatever the others do. A rank that computes, loads data, writes a file or is in a function of
 * the host is not blocked: it is never accused.
 * Threads: the comm's owner makes a block; whoever holds the lock of its copies reads them. */
#pragma once

#include "engine/comm/transport.h"

enum { BLOCK_CALLS = 4 };

#define BLOCK_NS                                                                                             \
    1000000000ull /* a block is this old before it is told, and as old again before it is judged */

struct comm_block {
    uint64_t calls; /* 0: not blocked */
    struct {
        uint64_t key, sequence; /* of a group, and of the oldest call there that is not done */
    } call[BLOCK_CALLS];
    char what[40], unit[40]; /* the call of the interface, and its unit or "" */
};

/* calls 0: the rank waits for nothing, or on more than BLOCK_CALLS groups. */
struct comm_block block_make(const struct comm *comm, const char *what, const char *unit);

/* A block from another rank: its numbers and texts end inside. */
bool block_readable(const struct comm_block *block);

zero_status block_raise(struct comm *comm, const struct comm_block *mine, uint32_t peer,
                        const struct comm_block *theirs);
