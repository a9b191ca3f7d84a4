#include "engine/comm/block.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"

/* The oldest call of the group that is not done; its sequence: there is none. */
static uint64_t oldest(const struct comm_group *group) {
    uint64_t first = group->sequence;
    for (uint32_t slot = 0; slot < COMM_CALLS_MAX; slot++) {
        const struct comm_work *work = &group->works[slot];
        if (work->busy && work->record.sequence < first) first = work->record.sequence;
    }
    return first;
}

struct comm_block block_make(const struct comm *comm, const char *what, const char *unit) {
    struct comm_block block = {0};
    for (const struct comm_group *group = comm->groups; group; group = group->next) {
        uint64_t first = oldest(group);
        if (first == group->sequence) continue;
        if (block.calls == BLOCK_CALLS) return (struct comm_block){0};
        block.call[block.calls].key = group->key, block.call[block.calls++].sequence = first;
    }
    utf8_copy(block.what, sizeof block.what, what ? what : "a call");
    utf8_copy(block.unit, sizeof block.unit, unit);
    return block;
}

bool block_readable(const struct comm_block *block) {
    return block->calls <= BLOCK_CALLS && memchr(block->what, 0, sizeof block->what) &&
           memchr(block->unit, 0, sizeof block->unit);
}

enum { TEXT_BYTES = 100 };

static const char *text_of(const struct comm_block *block, char text[TEXT_BYTES]) {
    bool unit = block->unit[0];
    snprintf(text, TEXT_BYTES, "%s%s%s%s", block->what, unit ? " of \"" : "", block->unit, unit ? "\"" : "");
    return text;
}

zero_status block_raise(struct comm *comm, const struct comm_block *mine, uint32_t peer,
                        const struct comm_block *theirs) {
    char text[TEXT_BYTES], peer_text[TEXT_BYTES];
    return comm_raise(comm, ZERO_E_DIVERGED, -1, false,
                      "rank %u waits in %s and rank %u in %s, each for what the other does not do: all ranks "
                      "must make the same calls in the same order",
                      comm->rank, text_of(mine, text), peer, text_of(theirs, peer_text));
}
