/* What the simulator's files share of one run; not for others. */
#ifndef ZERO_TOOLS_SIM_RUN_H
#define ZERO_TOOLS_SIM_RUN_H

#include "engine/comm/sim.h"
#include "engine/executor/inspect.h"
#include "tools/sim/clock.h"
#include "tools/sim/ledger.h"
#include "tools/sim/random.h"
#include "tools/sim/sim.h"

enum {
    STEPS_MAX = 100000,
    SIM_STUCK_TIMEOUTS = 10 /* as engine/comm/control.c waits for a rank that beats */
};

/* What a rank's host does next. */
enum next {
    NEXT_FILL,
    NEXT_PASS,
    NEXT_BEGIN,
    NEXT_COMPUTE,
    NEXT_END,
    NEXT_AGREE,
    NEXT_APPLY,
    NEXT_SETTLE,
    NEXT_FLUSH,
    NEXT_DONE
};

enum link { LINK_INSIDE, LINK_BETWEEN, LINKS }; /* of a node; between nodes */

struct rank {
    struct run *run;
    uint32_t index;
    struct comm *comm;
    struct comm_group *world, *group[AXES_BOTH + 1][STREAMS];
    struct device *device;
    struct device_pace pace;
    uint64_t link_free_ns[LINKS]; /* when each has sent what it has to */
    uint64_t paced;               /* pieces of work so far */
    struct tier *drive;
    struct policy policy;
    struct region *region;
    void *memory[TIERS]; /* with data: its own */
    struct agreement *agreement;
    struct executor *executor;
    struct executor_watch watch;
    struct ledger ledger;
    uint64_t *updated; /* per region: elements, over all steps */

    enum next next;
    uint64_t emitted;          /* operations so far */
    uint32_t step, micro, use; /* of the pass: run->pass */
    uint64_t turns;            /* of the host, so far */
    bool evaluating, busy, lost, ended;
    bool uncommitted;            /* with a shadow: a step was applied since the last commit */
    bool fresh[USE_REGIONS_MAX]; /* of the use that is being computed: its gradients begin anew */
    struct point agreed;
    uint64_t applied;
    struct zero_error error; /* it ended with */
    uint64_t ended_ns;

    uint8_t *before; /* with data: the parameters of the use at its start */
    bool waiting;
    enum sim_wait wait;
    uint64_t waits_since, compute_ns, wait_ns[WAITS];
};

struct emitted { /* a rank's so-manyth operation */
    uint64_t number, what;
    uint32_t rank; /* which came to it first */
};

struct run {
    const struct sim_setup *setup;
    struct clock clock;
    struct sim_network network;
    struct sim_world *world;
    uint64_t meetings;
    struct model model;
    zero_slot slot; /* nobody's */
    struct pass pass;
    struct policy policy; /* as every rank's is at first */
    struct region *region;
    uint16_t *refresh;
    struct plan plan;
    struct ledger_plan ledger;
    void *memory[TIERS]; /* without data: reserved addresses, nothing behind them */
    struct rank *rank;
    uint32_t ranks, state_count;
    uint32_t live; /* ranks that have not ended */
    struct sim_faults faults;
    bool faulted[SIM_FAULT_KINDS]; /* of those that end ranks: it happened, */
    uint64_t fault_ns;             /* the last one now */
    bool failing;                  /* some rank ended with an error */
    struct zero_error violation;
    uint64_t schedule;
    struct agreement *agreed; /* per step: what the first rank there contributed */
    struct emitted *emitted;  /* a ring: what the first rank there emitted */
    uint64_t emitted_count;   /* of the ring: ranks are less than two steps apart */
    uint64_t *agreed_ns;      /* per step: when the last one was there */
};

/* A random time of at most setup->chaos_ns, or half of that once chance no longer rules. */
uint64_t run_chaos_ns(const struct run *run, enum random_use use, uint64_t a, uint64_t b);

/* An invariant broke: the first one is kept, and ends the run. */
void run_violated(struct run *run, uint32_t rank, zero_status code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

const char *run_unit_name(const struct run *run, uint32_t region);

/* ---- network.c, device.c, drive.c ---- */

void network_open(struct run *run);
zero_status device_attach(struct rank *rank, struct zero_error *error);
bool rank_on_host(const struct rank *rank, const void *data); /* in the host's part of its memory */
zero_status drive_open(struct rank *rank, struct zero_error *error);
/* What is posted is done at once: the host's own access, before time begins and after it ends. */
void drive_set_immediate(struct tier *drive, bool immediate);

/* ---- rank.c: what a rank owns ---- */

/* Opens communicator and groups, which the plan needs. */
zero_status rank_join(struct rank *rank, struct run *run, uint32_t index, struct zero_error *error);
zero_status rank_open(struct rank *rank, struct zero_error *error);
void rank_close(struct rank *rank);

/* ---- host.c: what its host does ---- */

/* Goes on as far as it can now. */
void rank_go(struct rank *rank);
/* What it does now, of a pass. */
const struct pass_use *rank_use(const struct rank *rank);
bool rank_backward(const struct rank *rank);

/* ---- same.c: all ranks do the same ---- */

/* The most operations that a rank emits in a step, about. */
uint64_t same_operations(const struct run *run);
/* What the policy listed. */
void same_listed(struct rank *rank, const struct operation_list *list);
/* It was agreed on a step. */
void same_agreement(struct rank *rank);

/* ---- wait.c ---- */

enum sim_wait rank_blame(const struct rank *rank);

/* ---- data.c: where there is a host that computes ---- */

void data_fill(struct rank *rank);
void data_begin(struct rank *rank);
void data_compute(struct rank *rank);
void data_collect(struct run *run);

#endif
