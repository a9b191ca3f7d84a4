/* Declarations that the simulator's files share; only for them. */
#pragma once

#include "engine/comm/local/sim.h"
#include "engine/executor/stream/inspect.h"
#include "engine/run/events.h"
#include "tools/plan/loop.h"
#include "tools/sim/clock.h"
#include "tools/sim/ledger.h"
#include "tools/sim/random.h"
#include "tools/sim/sim.h"

enum {
    STEPS_MAX = 100000,
    SIM_STUCK_TIMEOUTS = 10 /* as engine/comm/control.c waits for a rank that sends beats */
};

/* A rank's host writes the weights, trains, flushes, and waits for the end. */
enum rank_phase { RANK_FILLS, RANK_TRAINS, RANK_FLUSHED };

enum link { LINK_INSIDE, LINK_BETWEEN, LINKS }; /* inside a node; between nodes */

struct rank {
    struct run *run;
    uint32_t index;
    struct comm *comm;
    struct comm_group *world, *group[AXES_BOTH + 1][STREAMS];
    struct device *device;
    struct device_pace pace;
    uint64_t link_free_ns[LINKS]; /* when each link is free again */
    uint64_t memory_ns;           /* speeds_pass, of its host */
    uint64_t paced;               /* items of work so far */
    struct tier *drive;
    struct policy policy;
    struct region *region;
    void *memory[TIERS]; /* with data: the rank's own memory */
    struct agreement *agreement;
    struct executor *executor;
    struct executor_watch watch;
    struct ledger ledger;
    struct trace_events events; /* event NULL: the rank is not traced */
    uint64_t *updated;          /* per region: updated elements, over all steps */

    enum rank_phase phase;
    struct loop loop;
    uint64_t emitted; /* operations so far */
    uint64_t turns;   /* actions of the host so far */
    bool busy, lost, ended;
    bool fresh[USE_REGIONS_MAX]; /* per region of the current use: its gradient begins at zero */
    struct update_settings update;
    struct optimizer_scalars scalars[4]; /* model_scalars; the other optimizer's parameters are group 1 */
    uint64_t applied;
    struct zero_error error; /* the error that ended the rank */
    uint64_t ended_ns;

    uint8_t *before; /* with data: the parameters of the use at its start */
    bool waiting;
    enum sim_wait wait;
    uint64_t waits_since, compute_ns, wait_ns[WAITS];
};

struct emitted { /* the operation with this number */
    uint64_t number, what;
    uint32_t rank; /* the rank that emitted it first */
};

struct run {
    const struct sim_setup *setup;
    struct clock clock;
    struct sim_network network;
    struct sim_world *world;
    uint64_t meetings;
    struct model model;
    zero_slot slot; /* no rank's */
    struct pass pass;
    struct blueprint blueprint; /* each rank's policy begins as a copy of its policy */
    struct ledger_plan ledger;
    void *memory[TIERS]; /* without data: reserved addresses without memory */
    struct rank *rank;
    uint32_t ranks;
    uint32_t live; /* ranks that have not ended */
    struct sim_faults faults;
    uint32_t faulted;  /* a mask of the faults that end ranks: which have happened, */
    uint64_t fault_ns; /* and when the last one happened */
    bool failing;      /* some rank ended with an error */
    struct zero_error violation;
    uint64_t schedule;
    struct agreement *agreed; /* per step: the contribution of the first rank that got there */
    struct emitted *emitted;  /* a ring: the operations that the first rank emitted */
    uint64_t emitted_count;   /* size of the ring: ranks are less than two steps apart */
    uint64_t *agreed_ns;      /* per step: when the last rank got there */
};

/* The host is in a backward, or begins one. */
static inline bool rank_backward(const struct rank *r) {
    return !loop_use(&r->loop)->recomputes && policy_backward(&r->policy, loop_use(&r->loop)->position);
}

/* A random time of at most setup->chaos_ns, or half of chaos_ns after the last random event. */
uint64_t run_chaos_ns(const struct run *run, enum random_use use, uint64_t a, uint64_t b);

/* Reports a broken invariant. The first one is kept and ends the run. */
void run_violated(struct run *run, uint32_t rank, zero_status code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

const char *run_unit_name(const struct run *run, uint32_t region);

/* ---- network.c, device.c, drive.c ---- */

void network_open(struct run *run);
zero_status device_attach(struct rank *rank, struct zero_error *error);
/* data is in the host's part of the rank's memory */
bool rank_on_host(const struct rank *rank, const void *data);
zero_status drive_open(struct rank *rank, struct zero_error *error);
/* Immediate requests end at once: for the host's own accesses before virtual time begins and after it ends. */
void drive_set_immediate(struct tier *drive, bool immediate);

/* ---- rank.c: the parts of a rank ---- */

/* Opens the communicator and its groups; the plan needs them. */
zero_status rank_join(struct rank *rank, struct run *run, uint32_t index, struct zero_error *error);
zero_status rank_open(struct rank *rank, struct zero_error *error);
void rank_close(struct rank *rank);

/* ---- host.c: the rank's host ---- */

/* Continues as far as possible now. */
void rank_go(struct rank *rank);

/* ---- same.c: all ranks emit the same operations ---- */

/* An upper estimate of the operations that a rank emits in a step. */
uint64_t same_operations(const struct run *run);
/* The policy listed these operations. */
void same_listed(struct rank *rank, const struct operation_list *list);
/* The ranks agreed on a step. */
void same_agreement(struct rank *rank);

/* ---- wait.c ---- */

enum sim_wait rank_blame(const struct rank *rank);

/* ---- data.c: for a host that computes ---- */

void data_fill(struct rank *rank);
void data_begin(struct rank *rank);
void data_compute(struct rank *rank);
void data_collect(struct run *run);

/* The timeline of the first ranks (engine/run/events.h) in virtual time. sim_trace_open takes memory for the rank's events, if the rank is traced. False: there is none. */
bool sim_trace_open(struct rank *rank);
/* After the run: returns the number of operations that had no room. */
uint64_t sim_trace_write(struct run *run);
