/* zero: ZeRO data parallelism for native trainers. Parameters, gradients and optimizer states are sharded
 * over ranks as far as the configuration says (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward
 * Training Trillion Parameter Models"); the trainer's source is the same for every stage, tier and number of
 * ranks.
 *
 * The order of calls:
 *
 *   zero_engine_init
 *   { zero_engine_add_unit, { zero_unit_add_param } } for every unit
 *   zero_engine_commit, zero_engine_fill
 *   per step:
 *     gradient_accumulation_steps times:
 *       zero_micro_begin(ZERO_TRAIN)
 *       forward_begin/end of the units in the order in which they were added
 *       backward_begin/end of the units in reverse order
 *     zero_engine_step
 *   between micro-steps: zero_micro_begin(ZERO_EVAL), forward_begin/end of the units
 *   between steps: zero_engine_flush, _get, _put, _hash, _save, _load
 *   zero_engine_destroy
 *
 * Units may be skipped in a pass (a backward needs its forward), not reordered. A call out of order returns ZERO_E_ORDER, names the unit and
 * the state, and changes nothing.
 *
 * Collective functions are called by all ranks, in the same order, with the same arguments. Others are local.
 * Threads: any one thread at a time per engine. Several engines can live in one process. The library never
 * exits the process and prints nothing: lines go to the log callback. A failure is sticky: every later call
 * returns it. After any status but ZERO_OK, zero_last_error() is a sentence that says what, where and what to
 * do instead. */
#ifndef ZERO_ENGINE_ZERO_H
#define ZERO_ENGINE_ZERO_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/log.h"
#include "engine/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zero_engine zero_engine;
/* Parameters gathered, released and reduced together: a transformer's block. */
typedef struct zero_unit zero_unit;
typedef struct zero_local zero_local;
struct device; /* engine/device/device.h */

typedef enum zero_mode { ZERO_TRAIN, ZERO_EVAL } zero_mode;
typedef enum zero_tier { ZERO_DEVICE, ZERO_CPU, ZERO_NVME, ZERO_TIERS } zero_tier;
typedef enum zero_kind {
    ZERO_PARAM, /* the fp32 master weights; of frozen parameters, which have none, the parameters */
    ZERO_GRAD, /* the mean gradient over ranks and micro-steps, before clipping: between the last backward and
                  step */
    ZERO_STATE0, /* the optimizer's first state: exp_avg, momentum_buffer, sum */
    ZERO_STATE1  /* its second: exp_avg_sq */
} zero_kind;

enum { ZERO_DIMS_MAX = 8, ZERO_GROUPS_MAX = 8 };

/* ---- opening ---- */

/* What the host program lends. All borrowed until zero_engine_destroy. Zero-initialise, then set struct_size.
 */
typedef struct zero_runtime {
    size_t struct_size;
    zero_local
        *local; /* ranks are threads of this process: their common world, and this thread's rank in it */
    uint32_t local_rank;
    void *mpi_comm;   /* points to an MPI_Comm whose ranks train together; NULL: MPI_COMM_WORLD where mpirun
                         started us */
    uint32_t threads; /* of the CPU per rank, in kernels; 0: the configuration's, else the CPUs that init's
                         thread may run on, as mpirun's binding leaves them, / the ranks that share them all */
    zero_log_fn log;
    void *log_user;
    const char *model; /* path of a Hugging Face config.json, or of its directory, in place of the
                          configuration's model block; or NULL. Read by init alone. The same on all ranks */
    uint64_t
        total_steps; /* that the host will train, which is what "auto" means as scheduler.params.total_num_steps;
                             0: unknown */
    uint32_t plan_ranks;      /* 0, or: no rank is started. The engine stands for one of so many, for
                                 zero_engine_plan and nothing else */
    uint32_t plan_node_ranks; /* of those, on one node; 0: all */
    int plan_processes;       /* those ranks are processes, whose reductions take staging; 0: threads */
    int cuda; /* 1: the host computes on the GPU, if there is one (device.type "auto"); slots may point there. With
                 plan_ranks: there is one */
    void
        *cuda_stream; /* its CUstream, of the GPU's primary context, on which it enqueues all that uses slots;
                              NULL: zero_engine_cuda gives one */
    struct device *device; /* an opened row of engine/device/device.h, taken over, on failure too; NULL: by
                              device.type */
    int discard_shadow; /* 1: with nvme.shadow, files of another size that an earlier run has left in nvme_path are
                              made anew; 0: they are refused at commit */
    int (*interrupted)(
        void *user); /* or NULL: asked about every 100 ms while this rank waits for others, from init to
                                       destroy, on any thread of the engine. Not 0: all ranks fail with
                                       ZERO_E_INTERRUPTED */
    void *interrupted_user;
} zero_runtime;

/* `json`: the text of a DeepSpeed configuration, or the path of a .json file. Collective. Ranks come from
 * mpirun (or srun --mpi=pmix); without it there is one rank. NULL on failure: see zero_last_error(). */
zero_engine *zero_engine_init(const char *json);
zero_engine *zero_engine_init_with(const char *json, const zero_runtime *runtime);

/* Ends the rank's part; waits for nothing. NULL is allowed. Units and slots' pointers die with it. */
void zero_engine_destroy(zero_engine *engine);

/* This thread's last failure: one sentence, "" if there was none. Valid until the thread's next call. */
const char *zero_last_error(void);

/* A world whose ranks are threads: create once, lend it to each rank's zero_engine_init_with, destroy after
 * all have destroyed their engines. */
zero_local *zero_local_create(uint32_t ranks);
void zero_local_destroy(zero_local *local);

const char *zero_version(void);
uint32_t zero_engine_rank(const zero_engine *engine);
uint32_t zero_engine_size(const zero_engine *engine); /* the number of ranks */
uint32_t
zero_engine_threads(const zero_engine *engine); /* CPU threads of this rank: for the host's own kernels */

/* The type of what host and engine share in compute: parameters, gradients, slots, spans. By the
 * configuration: fp32, or bf16.enabled, or fp16.enabled. What zero_engine_get and _put move is fp32 always. */
typedef enum zero_dtype { ZERO_F32, ZERO_BF16, ZERO_F16 } zero_dtype;
zero_dtype zero_engine_dtype(const zero_engine *engine);

/* The GPU's index, and the stream on which the host enqueues all that uses slots and spans, between begin and end: a
 * begin returns when what it gathered is there, an end when it has noted what was enqueued. -1: the CPU, where the host
 * computes between begin and end. `out_stream` (a CUstream) may be NULL. Local. */
int zero_engine_cuda(const zero_engine *engine, void **out_stream);

/* ---- declaring the model: local, the same on all ranks, before commit ---- */

/* Where the engine leaves a parameter's addresses, of elements of type zero_engine_dtype. The host owns the
 * slot; it lives as long as the engine. */
typedef struct zero_slot {
    void *param; /* all elements; valid from forward_begin to forward_end and from backward_begin to
                     backward_end */
    void *grad;  /* from backward_begin to backward_end: the host writes or adds d loss / d param of its
                     micro-batch's mean loss, times zero_engine_loss_scale; NULL for frozen parameters */
    int add;     /* 0: grad holds garbage, overwrite all of it; 1: add to it */
} zero_slot;

enum {
    ZERO_FROZEN = 1,  /* no gradient, no optimizer state */
    ZERO_NO_DECAY = 2 /* weight decay 0, whatever its group has */
};

/* A piece of a parameter in the host program's own memory, for trainers that keep, say, all layers of a kind
 * in one array. `grad` may be NULL for frozen parameters. */
typedef struct zero_span {
    void *param, *grad;
    uint64_t count; /* elements, of type zero_engine_dtype */
} zero_span;

typedef struct zero_param {
    size_t struct_size;
    const char *name; /* unique in the engine; copied */
    uint32_t dims;    /* 1 to ZERO_DIMS_MAX */
    uint64_t shape[ZERO_DIMS_MAX];
    uint32_t flags;
    const char
        *tied_to; /* NULL, or a parameter of an earlier unit that this one is the same as: the owner's unit is
                     gathered for this unit too, and their gradients add up; shapes have equal counts */
    zero_slot *slot;
    const zero_span *
        spans; /* NULL: the parameter lives in the engine's memory. Else `span_count` pieces, in order, of the
                  host's memory, borrowed until destroy: begin copies the weights there, backward_end takes
                  the gradients from there (the host overwrites them; the engine adds). Stages 0 to 2; the
                  slot may be NULL. Their memory, on a GPU its own, is not in the plan: declare it with
                  zero_engine_reserve */
    uint32_t span_count;
    uint32_t
        group; /* 0, or one of zero_engine_add_group; a pattern of the configuration's param_groups that matches the
                       name decides instead, and may freeze it */
} zero_param;

/* Parameters with a lr and a weight decay of their own. */
typedef struct zero_group {
    size_t struct_size;
    double lr, weight_decay; /* below 0: the configuration's */
} zero_group;

/* *out: its number, as zero_param.group and zero_engine_set_lr take it. Group 0 has what no other one has; those of the
 * configuration's param_groups are 1, 2, ... in their order; the host's follow. ZERO_E_ARGUMENT: all together are more
 * than ZERO_GROUPS_MAX. Local, before commit, the same on all ranks. */
zero_status zero_engine_add_group(zero_engine *engine, const zero_group *group, int *out);

/* `name`: unique, copied. *out lives as long as the engine. ZERO_E_ORDER after commit. */
zero_status zero_engine_add_unit(zero_engine *engine, const char *name, zero_unit **out);
zero_status zero_unit_add_param(zero_unit *unit, const zero_param *param);

/* 1: a parameter that the unit uses is trained; 0: all are frozen, by the host or by the configuration's param_groups,
 * and where no earlier unit is trained either, a host that leaves out their backward trains the same. Local. */
int zero_unit_trains(const zero_unit *unit);

/* An optimizer of the host's own. `update` may be called from several threads at once, on any cut of a shard into ranges:
 * what it makes of an element must not depend on the range. Where state lives, in which type gradients are, and the cast of the
 * weights are the engine's affair: it sees fp32 alone. */
typedef struct
    zero_optimizer_params { /* of the configuration's optimizer.params, by group, after a schedule */
    double lr, beta1, beta2, eps, weight_decay, momentum, dampening;
} zero_optimizer_params;

enum { ZERO_STATES_MAX = 2, ZERO_SCALARS_MAX = 16 };

typedef struct zero_optimizer {
    size_t struct_size;
    const char *name;                         /* in checkpoints; at most 31 bytes, copied */
    uint32_t states;                          /* numbers per element beside the weight; 0 at first */
    const char *state_names[ZERO_STATES_MAX]; /* in checkpoints; at most 31 bytes, copied */
    int rounds_states; /* 1: its states may be kept in bf16, rounded stochastically (bf16.bf16_optimizer_states);
                          0: such a configuration is refused */
    /* What is constant over an update of one group, from doubles: `step` is 1 for the first. */
    void (*prepare)(void *user, const zero_optimizer_params *params, uint64_t step,
                    float scalars[ZERO_SCALARS_MAX]);
    /* `count` elements; the mean, clipped gradient is gradient[i] * gradient_scale. States that it has not are NULL. */
    void (*update)(void *user, float *weight, float *state0, float *state1, const float *gradient,
                   float gradient_scale, const float *scalars, uint64_t count);
    void *user;
} zero_optimizer;

/* In place of the configuration's, whose optimizer.params it is given. Before commit, the same on all ranks. Local. */
zero_status zero_engine_set_optimizer(zero_engine *engine, const zero_optimizer *optimizer);
/* Declares that the host keeps no activations of units first ... last (in the order of use) between their forward and
 * their backward, and may run their forwards again, in that order, right before the backward of `last` (Chen et al. 2016,
 * section 3): what is gathered for them is then in the plan. Segments do not overlap. One unit by itself needs no
 * declaration: its forward may always be run again right before its backward. */
zero_status zero_engine_add_segment(zero_unit *first, zero_unit *last);

/* Declares memory of the host program (activations, workspaces), so that budgets and reports cover it. Per
 * rank. */
zero_status zero_engine_reserve(zero_engine *engine, zero_tier tier, uint64_t bytes, const char *name);

/* Keeps when each operation of `steps` steps from `first_step` (this engine's first is 1) started and was done: 1 MiB of cpu
 * memory, for zero_engine_write_trace. The configuration's trace block goes before it. Before commit, the same on all
 * ranks; 0 steps: none. Local. */
zero_status zero_engine_trace(zero_engine *engine, uint64_t first_step, uint64_t steps);

/* ---- commit: plans all memory, checks it against the budgets, allocates it once. Collective ---- */

typedef struct zero_plan {
    size_t struct_size;
    uint64_t params;            /* of the model, tied ones once, without padding */
    uint64_t params_padded;     /* as laid out: aligned, and padded so that units cut into equal shards */
    uint64_t bytes[ZERO_TIERS]; /* per rank and tier; equals what is allocated */
    uint64_t param_bytes, grad_bytes, state_bytes; /* at rest, per rank, on all tiers */
    uint64_t gathered_bytes; /* the planned intervals of gathered units and their gradients */
    uint64_t staging_bytes; /* reductions, messages, chunks and parameters on their way to and from a drive */
    uint64_t reserved_bytes; /* zero_engine_reserve */
    uint64_t
        resident_state_bytes; /* of state_bytes, what is not on the drive: all, unless it is offloaded to nvme */
    uint64_t drive_read_bytes,
        drive_write_bytes; /* of one step, all its micro-steps, from the second step on */
    double
        drive_life_steps; /* that nvme.endurance_tbw lasts, all ranks of a node writing; 0: it is not given */
    uint64_t
        master_bytes; /* fp32 weights beside narrower parameters, in memory; those on nvme are in state_bytes */
} zero_plan;

/* `out` may be NULL. ZERO_E_DIVERGED: ranks declared different models. ZERO_E_BUDGET names the tier, by how
 * many bytes it is short, keys with values with which it would fit (each was planned), and the largest owners. */
zero_status zero_engine_commit(zero_engine *engine, zero_plan *out);

/* With zero_runtime.plan_ranks, after the model is declared: what commit would plan for one of so many ranks. Nothing
 * is allocated, nobody else is needed, and budgets refuse nothing. Once. Local. */
zero_status zero_engine_plan(zero_engine *engine, zero_plan *out);

/* The rows of the memory report, index 0, 1, ...: ZERO_E_ARGUMENT past the last. A tier's planned bytes add
 * up to zero_plan.bytes; measured is what was allocated (a reservation is the host's: measured as declared).
 * Local. */
typedef struct zero_memory_row {
    zero_tier tier;
    const char *name; /* "parameters", "gradients", "optimizer state", ... */
    uint64_t planned, measured;
} zero_memory_row;
zero_status zero_engine_memory(const zero_engine *engine, uint32_t index, zero_memory_row *out);

/* Who owns a tier's planned memory, index 0, 1, ..., the largest first of all tiers; together they are the rows but for their
 * alignment. ZERO_E_ARGUMENT past the last. Local. */
typedef struct zero_memory_owner {
    zero_tier tier;
    const char *unit; /* NULL: of all units together, or of none */
    const char *what; /* the row that it is a part of, or the reservation's name */
    uint64_t bytes;
} zero_memory_owner;
zero_status zero_engine_memory_owner(const zero_engine *engine, uint32_t index, zero_memory_owner *out);

/* Initialises the weights: called for ranges of elements that this rank owns, in any order; writes `count`
 * elements from element `first` of `param` to `out`. The value of an element must not depend on the range.
 * Collective. */
typedef void (*zero_fill_fn)(void *user, const char *param, uint64_t first, uint64_t count, float *out);
zero_status zero_engine_fill(zero_engine *engine, zero_fill_fn fill, void *user);

/* With "nvme": {"shadow": true}, from commit on: 1 if nvme_path held, before this run, a whole step of an earlier one, of
 * any model and configuration with files of this size; *out_step (may be NULL): updates that it had done. A fill or a load
 * overwrites it. A host that must keep another run's shadow checks first. zero_engine_shadow_note: the note that the
 * earlier host set, or NULL; it lives as long as the engine. Local. */
int zero_engine_shadow(const zero_engine *engine, uint64_t *out_step);
const char *zero_engine_shadow_note(const zero_engine *engine, const char *key);

/* In place of zero_engine_fill, with "nvme": {"shadow": true}: goes on from the last step that was whole on all ranks when
 * an earlier run with this configuration, model and number of ranks ended, however it ended. `fill` is called for frozen
 * parameters. *out_step (may be NULL): optimizer updates done. Notes are those that were set when the step or the flush after
 * that step began. ZERO_E_IO: there is none; nothing has changed. Collective. */
zero_status zero_engine_recover(zero_engine *engine, zero_fill_fn fill, void *user, uint64_t *out_step);

/* ---- training: collective, though ranks may be at different units; begin waits for what the unit needs ----
 */

/* After a micro-step's first backward, forward_begin and _end recompute: of a unit whose backward comes next, or of the
 * units of its segment, one after another up to it. Such a unit stays gathered for its backward. */
zero_status zero_micro_begin(zero_engine *engine, zero_mode mode);
zero_status zero_forward_begin(zero_unit *unit);
zero_status zero_forward_end(zero_unit *unit);
zero_status zero_backward_begin(zero_unit *unit);
zero_status zero_backward_end(zero_unit *unit);

/* Between backward_begin and backward_end of a unit that has `param`: its gradient, made elsewhere, in place
 * of writing to the slot's grad. `grad`: all elements, of type zero_engine_dtype; read before the call
 * returns, or, on a GPU, whose memory or page-locked memory it then is, in the order of the host's stream. Local. */
zero_status zero_param_give_grad(zero_unit *unit, const char *param, const void *grad);

typedef struct zero_step_info {
    size_t struct_size;
    uint64_t step;    /* optimizer updates done, this one included unless skipped */
    double grad_norm; /* global, of the mean gradient, before clipping */
    double lr;        /* of group 0, as used */
    int skipped;      /* a gradient was inf or NaN on some rank: no rank updated anything */
    uint64_t skipped_total;
    double loss_scale; /* that this step's gradients were made with */
    uint32_t groups;
    double group_lr[ZERO_GROUPS_MAX]; /* of each group, as used */
    double beta1;                     /* of group 0, as used: a schedule may cycle it */
    const char
        *overflow_unit; /* of a skipped step: of the units with inf or NaN gradients the one nearest to the
                                         loss; else NULL. Lives as long as the engine */
} zero_step_info;

/* After gradient_accumulation_steps micro-steps: agrees norm and skip, clips, updates. `out` may be NULL.
 * ZERO_E_OVERFLOW: fp16's dynamic loss scale is at its minimum and gradients still overflow. */
zero_status zero_engine_step(zero_engine *engine, zero_step_info *out);

/* Waits until everything is up to date on its tier. With nvme.shadow it also commits the last step: what was filled, loaded
 * or put since is committed with the next one. Collective. */
zero_status zero_engine_flush(zero_engine *engine);

/* Multiply the loss by it before backward: the engine divides it out of all that it reports and applies. 1
 * unless compute is fp16; changed by zero_engine_step alone. Local. */
float zero_engine_loss_scale(const zero_engine *engine);

/* The learning rate from the next step on; rank 0's is used on all ranks. `group`: 0 where there are no others.
 * ZERO_E_ORDER where a schedule sets it. Local. */
zero_status zero_engine_set_lr(zero_engine *engine, int group, double lr);

/* What an update takes of a parameter group; optimizers that have no betas ignore them. */
typedef struct zero_setting {
    double lr, beta1, beta2;
} zero_setting;

/* A schedule of the host's own, in place of the configuration's; NULL: the configuration's again, or none. Called before each
 * step for each group, in zero_engine_step's thread; rank 0's values are used on all ranks. `step`: updates done,
 * 0 before the first; a skipped step does not advance it, a load takes it from the checkpoint, so that a function of
 * `step` goes on by itself. `setting` holds what the group was given, and takes what the step is to use: lr finite and at
 * least 0, betas at least 0 and below 1, else zero_engine_step returns ZERO_E_ARGUMENT. Local. */
typedef void (*zero_schedule_fn)(void *user, uint64_t step, int group, zero_setting *setting);
zero_status zero_engine_set_schedule(zero_engine *engine, zero_schedule_fn schedule, void *user);

/* ---- state: collective, between steps ---- */

/* Elements [first, first + count) of a parameter or its state, as fp32, on every rank. put: all ranks give
 * the same. */
zero_status zero_engine_get(zero_engine *engine, const char *param, zero_kind kind, float *out,
                            uint64_t first, uint64_t count);
zero_status zero_engine_put(zero_engine *engine, const char *param, zero_kind kind, const float *in,
                            uint64_t first, uint64_t count);

/* 32 hexadecimal digits and a final zero: equal if and only if (up to collisions) all fp32 masters are equal
 * bit for bit under equal names; does not depend on stage, tier or ranks. No rank ever holds more than its
 * shard. */
zero_status zero_engine_hash(zero_engine *engine, char out[33]);

/* Sums over ranks in rank order, in double; the same bits on all ranks. count <= 64. For losses and stop
 * flags. Also within a pass, not between a unit's begin and end. */
zero_status zero_engine_sum(zero_engine *engine, double *values, uint32_t count);

/* ---- checkpoints: collective, between steps. engine/checkpoint/FORMAT.md says what is in the files ---- */

/* Saves weights, optimizer state, step counters and notes as `dir`/step_NNNNNNNN, named by the number of
 * updates done, and moves `dir`/latest to it. `dir` is one directory that all ranks share; its parent is there.
 * A crash at any moment leaves the checkpoints that were complete before, and this one is complete or not seen.
 * A checkpoint of the same step is replaced. Writes from where the state lives through 256 KiB of the plan.
 * A save that fails changes nothing in the engine: training can go on. ZERO_E_IO names file and reason. A left-over of
 * an earlier save that cannot be removed is logged, once. */
zero_status zero_engine_save(zero_engine *engine, const char *dir);

/* With "checkpoint": {"async": true} _save returns when the save has begun, and training goes on while it is written; a
 * later step, or this function, makes it complete. What reads or changes state between steps (_get, _put, _fill, _hash, _load,
 * _prune, the next _save) waits for it first. This one waits too, and says how the last save ended: with what _save
 * would have returned. A save that fails is logged. _destroy leaves an incomplete save behind as a crash would. */
zero_status zero_engine_save_wait(zero_engine *engine);

/* Goes on from a checkpoint, saved at any stage, on any tier and number of ranks, of the same model and
 * optimizer: after zero_engine_commit, in place of zero_engine_fill. `dir`: as for save (its latest is meant), or
 * one step's directory in it. Each rank reads what it holds and verifies the checksums of that. The learning rate
 * is the saved one: call zero_engine_set_lr afterwards to change it. A checkpoint without optimizer state (an
 * imported one) begins with zero moments. ZERO_E_IO: missing or damaged, which file and where;
 * ZERO_E_ARGUMENT: of another model or optimizer, and which parameter differs; in both cases the engine is as it
 * was, unless damage shows only in the data: that failure is sticky. _weights: the weights alone; moments and step
 * count begin anew, with any optimizer. */
zero_status zero_engine_load(zero_engine *engine, const char *dir);
zero_status zero_engine_load_weights(zero_engine *engine, const char *dir);

/* Deletes all checkpoints in `dir` but the `keep` newest (at least 1) up to the latest. One that cannot be deleted whole
 * (there is a directory in it, or a link, or another user's file) stays whole: ZERO_E_IO, once the others are deleted. */
zero_status zero_engine_prune(zero_engine *engine, const char *dir, uint64_t keep);

/* What the host program wants to find again: texts that the next saves keep, and that a load replaces: how many
 * samples were used, the state of its generators. At most 64, of at most 4,095 bytes (with a shadow, which keeps them with each
 * step, 2,048 bytes of keys and texts together); NULL removes one. The same
 * on all ranks; rank 0's are saved. Local. The result of _note is valid until the next set or load. */
zero_status zero_engine_set_note(zero_engine *engine, const char *key, const char *value);
const char *zero_engine_note(const zero_engine *engine, const char *key); /* NULL: none */

uint64_t zero_engine_steps(const zero_engine *engine); /* optimizer updates done, a loaded run's included */

/* ---- counters, per rank, since init. Local ---- */

typedef struct zero_counters {
    size_t struct_size;
    uint64_t gather_calls, gather_elements;       /* of parameters (zero0: gradients); sent by this rank */
    uint64_t reduce_calls, reduce_elements;       /* of gradients */
    uint64_t wire_bytes;                          /* payload of both, sent by this rank */
    uint64_t control_messages, control_bytes;     /* all else: agreements, sums, hashes, _get, heartbeats */
    double compute_s;                             /* between begin and end */
    double wait_s;                                /* inside begin, end, step: waiting for others */
    double update_s;                              /* in the optimizer */
    uint64_t drive_read_bytes, drive_write_bytes; /* of the nvme tier; without its first writing */
} zero_counters;
zero_status zero_engine_counters(const zero_engine *engine, zero_counters *out);

/* What zero_engine_trace kept so far, as Chrome trace events (Trace Event Format, Google 2016), which ui.perfetto.dev
 * reads: a process per rank, the first 16 of them, a thread per stream of the executor; microseconds since all ranks were
 * together at the begin of the first step. One file, made anew, in a directory that all ranks share. Ends the tracing.
 * ZERO_E_IO on all ranks where one cannot write; the training may go on. Collective, between steps. */
zero_status zero_engine_write_trace(zero_engine *engine, const char *path);

#ifdef __cplusplus
}
#endif
#endif
