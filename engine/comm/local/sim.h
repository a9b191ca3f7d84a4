/* Transport sim: many virtual ranks in one thread, driven by a seed. It does anything that the contract of comm.h
 * allows, in order to find ranks that break the contract.
 *
 * After all members have posted a call, each rank's part completes at a random test of this rank. Until then, the
 * outputs and the staging are filled with 0xff bytes (NaN), except targets of `add` and in-place sources. A rank that
 * reads an output too early therefore computes wrong results. A rank that writes to a buffer too early gets
 * ZERO_E_INTERNAL at completion, with a message that names it. A post allocates: it copies every posted buffer. */
#pragma once

#include "engine/comm/comm.h"

struct sim_world;

/* A call that all of its members have posted. */
struct sim_meeting {
    const uint32_t *ranks; /* world ranks of the members, ascending */
    uint32_t members;
    uint32_t poster;    /* world rank of the member that posted last */
    const void *source; /* the source of `poster`: source_bytes bytes */
    uint64_t source_bytes;
    struct comm_sent sent; /* by each member */
    bool reduces;
    uint64_t own_bytes; /* of a reduction of one member: what its sum reads and writes */
};

/* Completes calls at virtual times instead of at random tests. */
struct sim_network {
    void *user;
    const uint64_t *now_ns;
    /* The last member's post calls it once per call. It sets the time at which each member's part is done. */
    void (*meet)(void *user, const struct sim_meeting *meeting, uint64_t *out_done_at_ns);
};

struct sim_options {
    uint32_t ranks;
    uint64_t seed;
    /* The probability that a test completes a call that may complete: above 0, at most 1. */
    double completion;
    bool without_data;    /* calls have no buffers: sizes and order only */
    bool without_staging; /* reductions need no staging */
    bool levels;          /* reductions send by levels, as transport nccl's */
    /* comm_one_order; two ranks that post their common calls in different orders get ZERO_E_DIVERGED */
    bool one_order;
    const struct sim_network *network; /* decides when calls complete, instead of `completion`; or NULL */
};

/* Each rank opens a comm with options.sim = world, options.rank and options.size. NULL: no memory. */
struct sim_world *sim_world_create(const struct sim_options *options);
void sim_world_destroy(struct sim_world *world); /* after every rank has closed its comm */

/* Raises the failure that the control channel of other transports would find: `rank` has been silent for `silent_s`
 * seconds. All ranks fail. */
void sim_raise_silent(struct comm *finder, uint32_t rank, double silent_s);
/* The same for a `rank` that sends heartbeats, but for `waited_s` seconds has not posted a call that `finder` waits
 * for. False: `finder` waits for no call of `rank`, and nothing is raised. */
bool sim_raise_stuck(struct comm *finder, uint32_t rank, double waited_s);
