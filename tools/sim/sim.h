/* The simulator: runs the engine's own executor and stages on virtual ranks, in one thread and in virtual time. The
 * transport, device and drive are virtual; the emitted operations, their order, the plan and the waits are real.
 * Without data the ranks share the model, the plan and addresses that have no memory; with data (a host computes) every
 * rank has memory.
 *
 * Checked at every event:
 *   - the k-th operation of a communicator has the same fingerprint on all its ranks (engine/comm/local/comm_sim.c)
 *   - two operations in flight share no byte that one of them writes, and the data that an operation reads was written
 *     and not overwritten since (ledger.h); with data also byte by byte
 *   - each rank updates every part of its shards once a step that is not skipped, and the shards of all ranks cover every unit exactly once
 *   - all ranks emit the same operations (same.c); at least one rank can always continue
 *   - after a fault that ends ranks, every live rank ends within the deadline, with an error that names the cause
 *
 * A run is a function of its setup: the same seed gives the same events. Local; one thread; no mutable globals. */
#pragma once

#include <stdio.h>

#include "engine/blueprint/blueprint.h"
#include "engine/zero.h"
#include "stages/stage.h"
#include "tools/plan/machine/speeds.h"
#include "tools/plan/pass.h"
#include "tools/sim/faults.h"
#include "tools/sim/model.h"

/* The host that computes, with data. Arrays have the indices of the model's parameters; those of other units are
 * NULL. */
struct sim_arrays {
    float **param, **grad; /* grad: NULL in a forward, and for frozen parameters */
};

struct sim_host {
    void *user;
    zero_fill_fn fill; /* for parameters that are not tied to others */
    void (*micro)(void *user, uint32_t rank, uint32_t step,
                  uint32_t micro); /* that the next computation is for */
    /* Adds to the gradients, which are zero at first. */
    void (*compute)(void *user, uint32_t rank, uint32_t unit, bool backward, const struct sim_arrays *arrays);
    float **weights; /* for parameters that are not tied to others: set at the end */
};

/* Breaks invariants on purpose, for tests. */
struct sim_sabotage {
    void *user;
    void (*listed)(void *user, uint32_t rank, struct operation_list *list); /* a broken stage, or NULL */
    void (*polled)(void *user, uint32_t rank, struct executor *executor);   /* after every poll; or NULL */
    void (*planned)(void *user, struct plan *plan);                         /* or NULL */
    uint32_t odd_depth; /* odd ranks gather this many units further ahead */
    bool unequal;       /* ranks may emit different operations; the simulation must find the consequences */
};

struct sim_setup {
    const struct sim_model *model;
    /* The number of ranks is that of the mesh. With data: fp32, and the host's memory. */
    struct terms terms;
    uint32_t steps;
    uint64_t persistence_threshold;
    const struct optimizer *optimizer;
    struct optimizer_params params[2]; /* with weight decay and without */
    const struct optimizer *other;     /* of the parameters that say so; NULL: `optimizer` */
    struct optimizer_params other_params[2];
    double clip;   /* 0: none */
    bool staging;  /* calls need scratch: reductions, as with MPI; with levels, gathers with a stride, too */
    bool levels;   /* and send by levels, as with NCCL */
    bool evaluate; /* an evaluation pass after every micro-step and every step */
    /* left out of every step's first micro-step (vertical: of all), only without segments; -1: none */
    int32_t skip_unit;
    struct pass_segments segments; /* recomputed in the backward */
    /* A bit for each step. skipped: as if a gradient were inf. repeated: without data, with terms.repeats, as if it were clipped. */
    uint32_t skipped, repeated;
    /* Per unit; NULL: from the model's operations and `speeds`, a backward twice a forward. */
    const struct pass_work *work;

    uint64_t seed;
    struct speeds speeds;
    bool one_order; /* comm_one_order: ranks post the calls of all groups in one order, as on several GPUs */
    uint64_t chaos_ns; /* not 0: everything takes a random time of at most chaos_ns, instead of `speeds` */
    /* this many events take random times, later ones equal times; UINT64_MAX: all are random */
    uint64_t chaos_events;
    uint32_t faults;     /* a mask of enum sim_fault */
    uint64_t timeout_ns; /* how long a rank may be silent */

    const struct sim_host *host;         /* NULL: without data */
    const struct sim_sabotage *sabotage; /* or NULL */
    FILE *trace;                         /* Chrome trace events of the first `trace_ranks` ranks; or NULL */
    uint32_t trace_ranks;
};

static inline bool sim_step_bit(uint32_t steps, uint32_t step) { return step < 32 && steps >> step & 1; }

/* The reason why a host does not compute: the kind of operation that blocks all others that it needs. */
enum sim_wait { WAIT_GATHER, WAIT_REDUCE, WAIT_AGREE, WAIT_UPDATE, WAIT_DRIVE, WAITS };
const char *sim_wait_name(enum sim_wait wait);

struct sim_result {
    /* ZERO_OK: every invariant held. Else the broken one, and when; error.rank: where. */
    zero_status status;
    struct zero_error error;
    uint64_t events, end_ns;
    uint64_t operations; /* the executors' trace hash: of all operations that a rank emitted */
    uint64_t schedule;   /* hash of all events and their times, on all ranks */

    uint64_t step_ns; /* from one agreement to the next: the median; with a single step: all of it */
    uint64_t compute_ns, wait_ns[WAITS];                      /* per step, the mean over ranks */
    uint64_t most_wait_ns;                                    /* of the rank that waits longest, per step */
    uint64_t wire_bytes, drive_read_bytes, drive_write_bytes; /* per step and rank, the mean */
    uint64_t planned_bytes[TIERS];                            /* per rank */

    uint64_t untraced; /* operations for which the timeline had no room */
    struct sim_faults faults;
    uint32_t faulted;  /* a mask of the faults that came and end ranks, */
    uint64_t fault_ns; /* the time of the last one, */
    uint64_t ended_ns; /* and the time when the last live rank ended */
    uint32_t ended;    /* ranks that ended with an error */
    char ending[1024]; /* the error message of one of them */
};

/* ZERO_E_ARGUMENT, ZERO_E_MEMORY: the run could not begin; `error` says why. Else returns ZERO_OK and sets
 * out->status. */
zero_status sim_run(const struct sim_setup *setup, struct sim_result *out, struct zero_error *error);

/* The same with numbers.c as the host; out->error also holds a difference from serial training. */
zero_status numbers_run(const struct sim_setup *setup, struct sim_result *out, struct zero_error *error);
