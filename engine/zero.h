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

typedef enum zero_mode { ZERO_TRAIN, ZERO_EVAL } zero_mode;
typedef enum zero_tier { ZERO_DEVICE, ZERO_CPU, ZERO_NVME, ZERO_TIERS } zero_tier;
typedef enum zero_kind {
    ZERO_PARAM, /* the fp32 master weights; of frozen parameters, which have none, the parameters */
    ZERO_GRAD, /* the mean gradient over ranks and micro-steps, before clipping: between the last backward and
                  step */
    ZERO_STATE0, /* the optimizer's first state: exp_avg, momentum_buffer, sum */
    ZERO_STATE1  /* its second: exp_avg_sq */
} zero_kind;

enum { ZERO_DIMS_MAX = 8 };

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
    uint32_t plan_ranks;      /* 0, or: no rank is started. The engine stands for one of so many, for
                                 zero_engine_plan and nothing else */
    uint32_t plan_node_ranks; /* of those, on one node; 0: all */
    int plan_processes;       /* those ranks are processes, whose reductions take staging; 0: threads */
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
    ZERO_NO_DECAY = 2 /* weight decay 0 */
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
                  slot may be NULL. Their memory is not in the plan: declare it with zero_engine_reserve */
    uint32_t span_count;
} zero_param;

/* `name`: unique, copied. *out lives as long as the engine. ZERO_E_ORDER after commit. */
zero_status zero_engine_add_unit(zero_engine *engine, const char *name, zero_unit **out);
zero_status zero_unit_add_param(zero_unit *unit, const zero_param *param);

/* Declares memory of the host program (activations, workspaces), so that budgets and reports cover it. Per
 * rank. */
zero_status zero_engine_reserve(zero_engine *engine, zero_tier tier, uint64_t bytes, const char *name);

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
 * many bytes it is short and what to change. */
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

/* Initialises the weights: called for ranges of elements that this rank owns, in any order; writes `count`
 * elements from element `first` of `param` to `out`. The value of an element must not depend on the range.
 * Collective. */
typedef void (*zero_fill_fn)(void *user, const char *param, uint64_t first, uint64_t count, float *out);
zero_status zero_engine_fill(zero_engine *engine, zero_fill_fn fill, void *user);

/* In place of zero_engine_fill, with "nvme": {"shadow": true}: goes on from the last step that was whole on all ranks when
 * an earlier run with this configuration, model and number of ranks ended, however it ended. `fill` is called for frozen
 * parameters. *out_step (may be NULL): optimizer updates done. ZERO_E_IO: there is none; nothing has changed. Collective. */
zero_status zero_engine_recover(zero_engine *engine, zero_fill_fn fill, void *user, uint64_t *out_step);

/* ---- training: collective, though ranks may be at different units; begin waits for what the unit needs ----
 */

zero_status zero_micro_begin(zero_engine *engine, zero_mode mode);
zero_status zero_forward_begin(zero_unit *unit);
zero_status zero_forward_end(zero_unit *unit);
zero_status zero_backward_begin(zero_unit *unit);
zero_status zero_backward_end(zero_unit *unit);

/* Between backward_begin and backward_end of a unit that has `param`: its gradient, made elsewhere, in place
 * of writing to the slot's grad. `grad`: all elements, of type zero_engine_dtype; read before the call
 * returns. Local. */
zero_status zero_param_give_grad(zero_unit *unit, const char *param, const void *grad);

typedef struct zero_step_info {
    size_t struct_size;
    uint64_t step;    /* optimizer updates done, this one included unless skipped */
    double grad_norm; /* global, of the mean gradient, before clipping */
    double lr;        /* of group 0, as used */
    int skipped;      /* a gradient was inf or NaN on some rank: no rank updated anything */
    uint64_t skipped_total;
    double loss_scale; /* that this step's gradients were made with */
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

/* The learning rate from the next step on; rank 0's is used on all ranks. `group`: 0 for all. Local. */
zero_status zero_engine_set_lr(zero_engine *engine, int group, double lr);

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
 * A save that fails changes nothing in the engine: training can go on. ZERO_E_IO names file and reason. */
zero_status zero_engine_save(zero_engine *engine, const char *dir);

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

/* Deletes all checkpoints in `dir` but the `keep` newest (at least 1) up to the latest. */
zero_status zero_engine_prune(zero_engine *engine, const char *dir, uint64_t keep);

/* What the host program wants to find again: texts that the next saves keep, and that a load replaces: how many
 * samples were used, the state of its generators. At most 64, of at most 4,095 bytes; NULL removes one. The same
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

#ifdef __cplusplus
}
#endif
#endif
