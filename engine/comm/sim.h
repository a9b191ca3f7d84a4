/* Transport sim: many virtual ranks in one thread, from a seed; hostile within what the contract of comm.h
 * allows.
 *
 * A call completes at a random test after all members have posted it, for each rank by itself. Until then its
 * outputs are poisoned with 0xff bytes (NaN; not the targets of `add`, not in-place sources) and staging too,
 * so that whoever reads early computes rubbish; whoever writes early is found at completion and named:
 * ZERO_E_INTERNAL. Allocates in post: a copy of every posted buffer. */
#ifndef ZERO_ENGINE_COMM_SIM_H
#define ZERO_ENGINE_COMM_SIM_H

#include <stdbool.h>
#include <stdint.h>

struct comm;
struct sim_world;

/* A call that all of its members have posted. */
struct sim_meeting {
    const uint32_t *ranks; /* of the members, ascending, in the world */
    uint32_t members;
    uint32_t poster;    /* the last of them, in the world, */
    const void *source; /* and what it sends of its own: source_bytes from there */
    uint64_t source_bytes;
    uint64_t bytes; /* that each of them sends (struct comm_counters) */
    bool reduces;
};

/* Virtual time, in the place of chance. */
struct sim_network {
    void *user;
    const uint64_t *now_ns;
    /* Called once for each call, by the last member's post: when each member's part of it is done. */
    void (*meet)(void *user, const struct sim_meeting *meeting, uint64_t *out_done_at_ns);
};

struct sim_options {
    uint32_t ranks;
    uint64_t seed;
    double
        completion; /* the chance that a test of a call that may complete completes it, above 0, at most 1 */
    bool without_data;    /* calls have no buffers: sizes and order only */
    bool without_staging; /* reductions need no scratch */
    const struct sim_network
        *network; /* decides when calls complete, in the place of `completion`; or NULL */
};

/* Each rank opens a comm with options.sim = world, options.rank and options.size. NULL where memory is short.
 */
struct sim_world *sim_world_create(const struct sim_options *options);
void sim_world_destroy(struct sim_world *world); /* after every rank has closed its comm */

/* What the control channel of other transports finds: `rank` has been silent for so long. All ranks fail. */
void sim_raise_silent(struct comm *finder, uint32_t rank, double silent_s);
/* Or that it beats and does not take its part in a call that the finder waits for, for so long. False: it waits for none
 * of them; nothing is raised. */
bool sim_raise_stuck(struct comm *finder, uint32_t rank, double waited_s);

#endif
