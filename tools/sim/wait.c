/* Finds what a waiting host waits for: starts from the operation that it needs and follows unmet waits to one that is
 * in flight. */
#include "tools/sim/run.h"

const char *sim_wait_name(enum sim_wait wait) {
    static const char *const names[WAITS] = {"gathers", "reductions", "agreements", "updates", "drives"};
    return names[wait];
}

static const enum sim_wait waits[STREAMS] = {
    [STREAM_COMPUTE] = WAIT_UPDATE, [STREAM_GATHER] = WAIT_GATHER, [STREAM_REDUCE] = WAIT_REDUCE,
    [STREAM_UPDATE] = WAIT_UPDATE,  [STREAM_FETCH] = WAIT_DRIVE,   [STREAM_STORE] = WAIT_DRIVE,
    [STREAM_PARAM] = WAIT_DRIVE,    [STREAM_GRAD] = WAIT_DRIVE,    [STREAM_CONTROL] = WAIT_AGREE};

static enum stream needed(const struct rank *rank) {
    if (rank->phase == RANK_TRAINS && rank->loop.next == MOVE_COMPUTE) return STREAM_COMPUTE;
    if (rank->phase == RANK_TRAINS && rank->loop.next == MOVE_AGREED) return STREAM_CONTROL;
    for (int s = 0; s < STREAMS; s++) /* waits for room for an event, or for the end */
        if (stream_busy(rank->executor, (enum stream)s)) return (enum stream)s;
    return STREAM_CONTROL;
}

enum sim_wait rank_blame(const struct rank *rank) {
    enum stream stream = needed(rank);
    for (int hops = 0; hops < STREAMS; hops++) {
        enum stream next = stream_waits_for(rank->executor, stream);
        if (next == stream) break;
        stream = next;
    }
    return waits[stream];
}
