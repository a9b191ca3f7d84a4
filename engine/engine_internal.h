/* The engine's own struct and what its files share; not for others.
 *
 *   DECLARING --commit--> READY --micro_begin--> PASS --forward/backward_begin--> USE --end--> PASS
 *   PASS --step, flush, get, put, hash--> READY
 *
 * Threads: the host's thread owns everything; the progress thread touches only the executor, under
 * `lock`, and tells other ranks of its failures. */
#ifndef ZERO_ENGINE_ENGINE_INTERNAL_H
#define ZERO_ENGINE_ENGINE_INTERNAL_H

#include "engine/checkpoint/manifest.h"
#include "engine/comm/comm.h"
#include "engine/config/config.h"
#include "engine/executor/executor.h"
#include "engine/host_memory.h"
#include "engine/loss_scale.h"
#include "engine/progress.h"
#include "engine/turn.h"
#include "engine/zero.h"

enum phase { PHASE_DECLARING, PHASE_READY, PHASE_PASS, PHASE_USE };

enum { RESERVATIONS_MAX = 32, SUM_VALUES_MAX = 64, PIECE_BYTES = 256 * 1024 };

struct reservation {
    zero_tier tier;
    uint64_t bytes;
    char name[64];
};

enum { OPTIMIZER_NAME_BYTES = 32 };

/* What zero_engine_set_optimizer brought. */
struct hosts_optimizer {
    zero_optimizer given;
    char name[OPTIMIZER_NAME_BYTES], state[OPTIMIZER_STATES_MAX][OPTIMIZER_NAME_BYTES];
    struct optimizer_caller caller;
    struct optimizer row;
};

struct zero_engine {
    struct config config;
    struct log log;
    struct zero_error error;                  /* sticky */
    uint32_t rank, size, threads, node_ranks; /* node_ranks: on this rank's node */
    struct host_memory host_memory;           /* what its processes may take, and ... */
    uint32_t memory_ranks;                    /* ... the ranks that share it */

    struct comm *comm;
    struct comm *data;        /* of `group`: NCCL beside comm where processes have GPUs, else comm itself */
    struct comm_group *world; /* of comm */
    struct comm_group *group[AXES_BOTH + 1][STREAMS];
    struct device *device;
    bool separate; /* the device's memory is not the host's to touch; of a plan: would not be */
    struct tier *tier[TIERS];
    struct faults *faults;          /* tests set it before commit: of the drive; NULL: none */
    zero_local *local;              /* NULL: ranks are processes */
    int (*interrupted)(void *user); /* zero_runtime's, with ... */
    void *interrupted_user;
    struct kept *kept; /* made at init, for zero_engine_destroy, which must not fail */

    struct precision precision;
    struct model model;
    struct region *regions;
    uint16_t *refresh;
    struct policy policy;
    struct plan plan;
    struct executor *executor;
    const struct optimizer *optimizer;
    struct optimizer_params params[GROUP_MAX]; /* by group; lr and betas as given, before any schedule */
    uint32_t groups;
    uint64_t matched[GROUP_MAX]; /* by group of the configuration: the patterns that a parameter matched */
    struct lr_schedule_params schedule; /* the configuration's, begun where a loaded run's had come to */
    zero_schedule_fn schedule_fn;       /* the host's, in its place; or NULL */
    void *schedule_user;
    struct hosts_optimizer hosts_optimizer; /* e->optimizer is its row, if there is one */
    uint32_t state_count;
    struct loss_scale loss_scale; /* 1 unless compute is fp16 */
    struct reservation reservation[RESERVATIONS_MAX];
    uint32_t reservations;
    struct saver *saver;           /* a save in the background; NULL: none */
    struct zero_error saved;       /* how the last one ended */
    bool left_told;                /* a save has warned of what it could not remove */
    struct manifest_entries notes; /* the host's, for checkpoints */
    bool discard_shadow;           /* zero_runtime.discard_shadow */
    bool shadow_found;             /* at commit: a whole step of an earlier run, of any layout */
    uint64_t shadow_steps;
    struct manifest_entries shadow_notes;
    uint8_t *sum_message, *piece; /* in the plan's messages */
    uint8_t
        *bounce[2]; /* the same: what passes between a separate device and the host's calls, its saver's */
    uint64_t trace_first, trace_steps; /* steps to trace, as the host asked for them; 0 steps: none */
    struct trace *trace;               /* or NULL */

    struct turn lock; /* guards the executor and its mechanisms */
    struct progress *progress;

    enum phase phase;
    zero_mode mode;
    bool plans_only, planned; /* zero_runtime.plan_ranks; zero_engine_plan was called */
    bool filled;
    bool uncommitted;                 /* steps were applied since the last commit (shadow.h) */
    uint32_t micro;                   /* training passes since the last step */
    uint64_t steps, skipped, version; /* version: of the weights, for borrowed copies */
    struct zero_unit *unit;           /* PHASE_USE: whose */
    bool backward;                    /* PHASE_USE: which */
    bool recomputes;                  /* PHASE_USE: a forward inside the backward */
    struct zero_unit *recompute_next; /* a recomputation has begun and goes on with this unit; else NULL */
    uint64_t compute_began;
    double compute_s, wait_s;
};

/* This thread's last failure. Returns `status`. */
zero_status last_error_set(zero_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A mistake of the caller: nothing changes. */
#define refuse last_error_set

/* One event under the lock. */
#define ENGINE_EVENT(e, call)                                                                                \
    __extension__({                                                                                          \
        turn_take(&(e)->lock);                                                                               \
        zero_status event_status = (call);                                                                   \
        turn_give(&(e)->lock);                                                                               \
        event_status ? engine_fail(e, executor_error((e)->executor)) : ZERO_OK;                              \
    })

/* ---- opening (join.c, local.c) ---- */

/* Reads the configuration, finds the other ranks and agrees with them. Ends alike on all ranks. */
zero_status engine_join(zero_engine *engine, const char *json, const zero_runtime *runtime,
                        struct zero_error *error);

/* As the configuration and the runtime say; a device that the runtime brings is the engine's in any case. */
zero_status engine_open_device(zero_engine *engine, const zero_runtime *runtime, struct zero_error *error);

uint32_t local_ranks(const zero_local *local);
struct local_world *local_world_of(const zero_local *local);

/* The stage's row of placements. */
const struct stage *engine_stage(const zero_engine *engine);

/* What may outlive an engine, because peers may still read it. */
struct kept *kept_create(void);
void *kept_message(struct kept *kept, uint64_t bytes); /* zeroed; replaces the one before. NULL: no memory */
void kept_release(zero_engine *engine, bool peers_use_it);

/* ---- a use's slots (slots.c) ---- */

void slots_start_gradient(zero_engine *engine, const struct zero_unit *unit, uint16_t region);
void slots_set(zero_engine *engine, const struct zero_unit *unit, bool backward);
void slots_clear(zero_engine *engine, const struct zero_unit *unit, bool backward);

/* Overwrites or adds, in the compute type: narrow ones are added in fp32 and rounded. Like all that uses slots, queued
 * on the host's stream of the device. */
void gradient_take(zero_engine *engine, void *sum, const void *gradient, uint64_t count, bool add);

/* Work on that stream; a failure is the device's, whose next test tells it. */
void slots_copy(zero_engine *engine, void *target, const void *source, uint64_t bytes);
void slots_clear_memory(zero_engine *engine, void *memory, uint64_t bytes);

/* ---- memory that may be the device's (reach.c) ---- */

/* Copies between memories, of which one may be a separate device's, and waits for it. The device's failure is sticky. */
zero_status reach_copy(zero_engine *engine, void *target, const void *source, uint64_t bytes);
zero_status reach_clear(zero_engine *engine, void *memory, uint64_t bytes);
/* The address is a separate device's. */
bool reach_is_device(const zero_engine *engine, const void *address);

/* ---- calls between steps ---- */

/* ZERO_E_ORDER once the engine is planned or committed. */
zero_status engine_check_declaring(zero_engine *engine, const char *what);

/* ZERO_E_ORDER before commit and inside a use; _between also where a pass would be ended too early. */
zero_status engine_check_outside(zero_engine *engine, const char *what);
zero_status engine_check_between(zero_engine *engine, const char *what);

/* A failure of the engine: sticky, and told to all ranks. */
zero_status engine_fail(zero_engine *engine, const struct zero_error *error);

/* ZERO_OK, or the sticky failure with its sentence. */
zero_status engine_check(zero_engine *engine);

/* Runs the executor until the condition holds. */
zero_status engine_drive(zero_engine *engine, bool (*holds)(const struct executor *, struct point),
                         struct point point);
zero_status engine_drive_idle(zero_engine *engine);
zero_status engine_drive_room(zero_engine *engine);

/* ZERO_E_ORDER where ending the open pass would lose a forward. */
zero_status engine_check_pass(const zero_engine *engine, const char *what);

/* Ends an open pass, brings everything up to date: what every function "between steps" begins with. */
zero_status engine_settle(zero_engine *engine);

/* Parameters were written at rest: what is replicated is gathered again. */
zero_status engine_written(zero_engine *engine);

/* Parameters in the host's own memory (borrowed.c): weights go there at a begin, gradients come from there at
 * an end. `from`: the flat buffers' addresses of the parameter. */
zero_status borrowed_check(const zero_engine *engine, struct zero_error *error);
void borrowed_take_weights(zero_engine *engine, struct model_param *param, const void *flat);
void borrowed_give_gradients(zero_engine *engine, struct model_param *param, void *flat, bool add);

/* What gradients are multiplied with before they are sent; 0: nothing. */
float engine_gradient_factor(const zero_engine *engine);

/* What makes of the sum of what was sent the gradient that is asked for: the mean over micro-steps, and over ranks or
 * not; unscaled, too. */
double engine_mean(const zero_engine *engine);

/* By the configuration, as it is now. */
void engine_open_precision(zero_engine *engine);

/* As the configuration has it at the start of a training. */
struct loss_scale engine_loss_scale(const zero_engine *engine);

/* What zero_engine_fill does for parameters that have no state; and its end: parameters were written at rest. */
zero_status access_fill_frozen(zero_engine *engine, zero_fill_fn fill, void *user);
zero_status access_filled(zero_engine *engine);

/* Posts a collective on the world and waits for it, while all else goes on. */
zero_status engine_call(zero_engine *engine, const struct comm_call *call);

/* Collective: `otherwise` on all ranks if some rank's hash is not rank 0's; `what` is hashed:
 * "configuration". */
zero_status engine_compare(zero_engine *engine, uint64_t hash, zero_status otherwise, const char *what,
                           struct zero_error *error);

/* Collective: each value becomes the least of all ranks'. */
zero_status engine_least(zero_engine *e, uint64_t *values, uint32_t count, const char *what,
                         struct zero_error *error);

/* Collective: each rank's own failure in `mine` (code ZERO_OK: none), else that another rank failed. A
 * failure is told only when all ranks are here, so that no rank hears of it in an earlier call, instead of
 * its own. */
zero_status engine_agree_error(zero_engine *engine, const struct zero_error *mine, const char *what);

/* What one rank tells the others beside its status. */
struct said {
    uint64_t code, word[2];
};

/* Collective: all ranks return the same: ZERO_OK, or the failure of the lowest rank that has one, in its words.
 * Unlike engine_agree_error's, the failure is not the engine's: nothing is sticky. out_all[r], until the next
 * collective call: what rank r said. */
zero_status engine_agree_said(zero_engine *engine, const struct zero_error *mine, const uint64_t word[2],
                              const char *what, const struct said **out_all);

#endif
