/* zero: ZeRO data parallelism for native trainers. The engine shards parameters, gradients and optimizer states over the ranks, as
 * far as the configuration says (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
 * Models"). The trainer's source is the same for every stage, every tier and every number of ranks. This header is the contract of
 * each function; engine/EMBEDDING.md shows whole programs.
 *
 * The order of calls:
 *
 *   zero_engine_init
 *   { zero_engine_add_unit, { zero_unit_add_param } } for every unit
 *   zero_engine_commit, zero_engine_fill
 *   per step:
 *     gradient_accumulation_steps times (with zero_optimization.micro_order "vertical" once: see zero_unit_next_micro):
 *       zero_micro_begin(ZERO_TRAIN)
 *       forward_begin/end of the units in the order in which they were added
 *       backward_begin/end of the units in reverse order
 *     zero_engine_step
 *   between micro-steps: zero_micro_begin(ZERO_EVAL), forward_begin/end of the units; also between a forward and its backward, which
 *     zero_micro_resume leads back to
 *   zero_micro_cancel drops a pass
 *   between steps: zero_engine_flush, _get, _put, _hash, _save, _load; zero_engine_ema_begin and _end;
 *     zero_engine_park and _unpark
 *   zero_engine_destroy
 *
 * A pass may skip units (a backward needs its forward), but not reorder them, unless zero_engine_free_order was called. A call out of
 * order returns ZERO_E_ORDER, names the unit and the state, and changes nothing.
 *
 * All ranks call a collective function in the same order, with the same arguments. Two ranks that wait for each other in different calls
 * get ZERO_E_DIVERGED after two seconds, and the sentence names both calls. The other functions are local. (Where the host
 * cuts its model, "the same" of units and parameters is the same on the ranks of one model rank: see "pieces of a model" below.)
 * Threads: one thread at a time calls an engine. Several engines can live in one process. A function of the host that the engine
 * calls may call the functions that only read what this rank knows. `log` and `interrupted`, which any thread of the engine calls,
 * must call no function of the engine. A function of the host that throws (C++) or, in the host's own thread, is left by longjmp ends
 * the run: the call that led to it, or the next one, returns ZERO_E_ARGUMENT, a failure of the engine; zero_engine_destroy waits for
 * nothing then. Exceptions of `log` are dropped; one of `interrupted` interrupts. The library never exits the process and prints
 * nothing: its lines go to the log callback.
 * A failure of the engine is sticky: every later call that would change or move anything returns the same failure. Functions that
 * only read what this rank knows (rank, size, steps, note, memory, counters, loss_scale) still answer. A refused call
 * (ZERO_E_ARGUMENT, ZERO_E_ORDER) is no failure of the engine: nothing has changed. Two refusals are failures of the engine,
 * whatever their status: of a declared model, by _commit or _plan, and of the values of a host's schedule, by a step. After any
 * status but ZERO_OK, zero_last_error() is a sentence that says what went wrong, where, and what to do instead. Structs begin with
 * struct_size, which the caller sets to sizeof the struct. 0 is refused. A larger struct, of a newer header, is accepted while the
 * part that this library does not know is zero, as in openat2(2). ZERO_INIT is the initialiser. */
#ifndef ZERO_ENGINE_ZERO_H
#define ZERO_ENGINE_ZERO_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/log_level.h"
#include "engine/base/status.h"

/* The version of this header. A program that was built with an earlier one runs on a later library while ZERO_ABI_VERSION is the
 * same: it moves with every change that breaks such a program, and libzero.so.N and the symbol version ZERO_N with it. */
#define ZERO_VERSION_MAJOR 0
#define ZERO_VERSION_MINOR 1
#define ZERO_VERSION_PATCH 0
#define ZERO_ABI_VERSION 0

/* A struct of this header with its struct_size, and zero otherwise: `zero_param param = ZERO_INIT(zero_param);`. */
#ifdef __cplusplus
#define ZERO_INIT(type) (zero_init<type>())
#else
#define ZERO_INIT(type) ((type){.struct_size = sizeof(type)})
#endif

#ifdef __cplusplus
extern "C++" {
template <class type> type zero_init() {
    type value = type();
    value.struct_size = sizeof value;
    return value;
}
}
extern "C" {
#endif

typedef struct zero_engine zero_engine;
/* Parameters that are gathered, released and reduced together: a transformer's block. */
typedef struct zero_unit zero_unit;
/* A declared parameter: from zero_unit_param or zero_engine_param, valid as long as the engine. */
typedef struct zero_handle zero_handle;
typedef struct zero_local zero_local;

typedef enum zero_mode { ZERO_TRAIN, ZERO_EVAL } zero_mode;
typedef enum zero_tier { ZERO_DEVICE, ZERO_CPU, ZERO_NVME } zero_tier;
typedef enum zero_kind {
    /* The fp32 master weights. A frozen parameter has no master: the parameter itself. */
    ZERO_PARAM,
    /* The mean gradient over ranks and micro-steps, before clipping: between the last backward and the step. With
     * zero_optimization.update_in_backward only where steps are clipped. */
    ZERO_GRAD,
    ZERO_STATE0, /* the optimizer's first state: exp_avg, momentum_buffer, sum */
    ZERO_STATE1, /* its second state: exp_avg_sq */
    /* The averaged weights, fp32 ("ema" of the configuration). A frozen parameter has none: its weights do not change. */
    ZERO_EMA
} zero_kind;

enum { ZERO_TIERS = 3, ZERO_DIMS_MAX = 8, ZERO_GROUPS_MAX = 8 };

/* ---- opening ---- */

/* The host program's input to the engine. Zero-initialize it, then set struct_size. Pointers are borrowed until
 * zero_engine_destroy. */
typedef struct zero_runtime {
    size_t struct_size;
    /* Where ranks are threads of this process: their common world, and this thread's rank in it. Else `local_rank` is this rank's
     * number on its host: without device.index, the rank takes the GPU with this number (modulo the number of GPUs). 0 without `size`
     * below: the launcher's number, if there is one. */
    zero_local *local;
    uint32_t local_rank;
    /* Points to an MPI_Comm whose ranks train together. NULL: MPI_COMM_WORLD, where mpirun started the process. zero_engine_destroy
     * comes before the host's MPI_Finalize. */
    void *mpi_comm;
    /* CPU threads of a rank, in kernels. 0: the configuration's number; else the CPUs that the calling thread may run on (as
     * mpirun's binding or taskset leaves them), divided by the ranks that share exactly these CPUs, however they were started. */
    uint32_t threads;
    zero_log_fn log;
    void *log_user;
    /* Path of a Hugging Face config.json, or of its directory, in place of the configuration's model block; or NULL. Read by init
     * alone. The same on all ranks. */
    const char *model;
    /* Steps that the host will train: the meaning of "auto" for scheduler.params.total_num_steps. 0: unknown. */
    uint64_t total_steps;
    /* Not 0: no rank is started. The engine stands for one of so many ranks, for zero_engine_plan alone. */
    uint32_t plan_ranks;
    uint32_t plan_node_ranks; /* of those ranks, how many share a node; 0: all. Model ranks are adjacent */
    int plan_processes; /* 1: those ranks are processes, with `cuda` of a GPU each; 0: threads, of one GPU */
    /* 1: the host computes on the GPU, if there is one (device.type "auto"); slots may then point to its memory. 2: there is one, and
     * without it init fails. With plan_ranks: there is a GPU. */
    int cuda;
    /* The host's CUstream, of the GPU's primary context, on which the host enqueues all work on slots; not the per-thread default
     * stream. NULL: the engine makes one, which zero_engine_cuda returns, or see cuda_default_stream. */
    void *cuda_stream;
    /* NULL: by device.type. For the engine's own tests: an opened struct device, which the engine owns from now on, also after a
     * failure. */
    void *device;
    /* With nvme.shadow, where an earlier run has left a shadow in nvme_path. 1: commit replaces files of another size, and files
     * that some of the nvme_paths lack, and a fill or a load overwrites the shadow. 0: commit refuses such files; see
     * zero_engine_discard_shadow. */
    int discard_shadow;
    /* NULL, or a function that is called about every 100 ms while this rank waits for others, from init to destroy, on any thread
     * of the engine. If it returns anything but 0, all ranks fail with ZERO_E_INTERRUPTED. Over MPI, before all ranks have come
     * to init, this rank leaves alone, and the others fail with ZERO_E_PEER after 10 x comm.timeout_s. */
    int (*interrupted)(void *user);
    void *interrupted_user;
    /* Not 0: this process is rank `rank` of `size` ranks, which find each other over TCP: rank 0 listens at `port`, and all ranks
     * give the same `address` (a name or an address of rank 0's host) and `port`. With 1 rank both may be missing. */
    uint32_t rank, size;
    const char *address;
    uint32_t port;
    /* 1: the host enqueues all work on slots on the legacy default stream, CU_STREAM_LEGACY, whose handle is also 0. */
    int cuda_default_stream;
    /* Where processes meet over TCP: the job's secret, a text of 16 to 4096 bytes, the same on all ranks. NULL: that of the environment
     * variable ZERO_JOB_SECRET, or of the file, which only its owner may read, that ZERO_JOB_SECRET_FILE names. Without a secret any
     * program that reaches rank 0's port may take part. One rank alone ignores it; threads, MPI and a plan refuse it. */
    const char *secret;
    /* Where the host cuts its layers itself (tensor parallel, pipeline parallel, or both): which piece this rank computes, and the
     * number of pieces. 0 and 0: the model is whole. The ranks above are all ranks of the job, in any order. Each model rank has equally
     * many: its *data ranks*, in the order of ranks. See "pieces of a model" below. */
    uint32_t model_rank, model_size;
} zero_runtime;

/* Pieces of a model (engine/EMBEDDING.md, "Tensor and pipeline parallel programs"). Each model rank declares its own units and
 * parameters, and uses them in its own order. What goes over which ranks:
 *
 *   data ranks    stages, gathers, reductions and the mean; the declared model, the order of uses, zero_engine_get and _put
 *   all ranks     norm, clipping, skipped steps, loss scale, learning rates; hash, save, load, sum; failures; every call between passes
 *
 * Batch sizes, keys that cut the ranks into groups, and "auto" count data ranks. Configuration, optimizer and parameter groups are
 * the same on all ranks. Two model ranks do not declare the same parameter, unless it is ZERO_MODEL_REPLICATED, or they have
 * different rows of one tensor (zero_param.tensor_row). Commit returns ZERO_E_DIVERGED, on all ranks, if the pieces do not make one
 * model. It refuses zero_optimization.update_in_backward with nvme.shadow: a backward would wait for the backwards of other model
 * ranks. */

/* Ranks: what is given first in this list decides.
 *
 *   1. zero_runtime.plan_ranks: none is started
 *   2. zero_runtime.local, .local_rank: threads of this process
 *   3. zero_runtime.mpi_comm: the ranks of a communicator
 *   4. zero_runtime.rank, .size, .address, .port: processes that meet over TCP
 *   5. mpirun, or srun --mpi=pmix: OMPI_COMM_WORLD_RANK, ...; PMIX_RANK with SLURM_NTASKS, ...
 *   6. torchrun: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 *   7. none of these: one rank
 *
 * With 1 to 4 the environment is not read (3 reads this rank's number on its host, if local_rank is 0). ZERO_E_ARGUMENT: two of 1
 * to 4; a rank that is not below its size; a size above 1 without address or port; rank, address or port without size.
 * ZERO_E_UNSUPPORTED: another MPI's launcher (PMI_SIZE), or srun without PMIx, started several processes. If a rank does not
 * come, every other rank gets ZERO_E_PEER after 10 x comm.timeout_s. If the host has not called MPI_Init, the engine calls it.
 * MPI_Init waits for all processes, without a limit, and asks no zero_runtime.interrupted. */

/* `json`: the text of a DeepSpeed configuration, the path of a .json file, or base64 of the text. As in DeepSpeed the text may have
 * comments (#, //, and as in C), commas behind a last member, keys without quotes and single quotes. NULL: it failed, see
 * zero_last_error(). Collective. */
zero_engine *zero_engine_init(const char *json);
zero_engine *zero_engine_init_with(const char *json, const zero_runtime *runtime);

/* Ends this rank's part, soon, whatever the other ranks do: takes part in the calls of the steps that it has made, unless nothing
 * moves for a second or all of it takes 10 x comm.timeout_s (the log then says what has not ended), and gives the other ranks a
 * second to destroy theirs. During a network outage it waits for the end of the outage, as long as a rank may be silent. A drive
 * that never ends a request still holds the call: the request's memory is in use. A rank that later makes a collective call gets
 * ZERO_E_PEER, which says who left. Over MPI alone, whose MPI_Finalize is collective, it waits for the other ranks' destroy, at
 * most 10 x comm.timeout_s. NULL is allowed. Units and the addresses in slots are no longer valid. In a forked child it does
 * nothing: the rank is the parent's. Other calls return ZERO_E_ORDER there, and connections are closed in it. (A program that becomes a
 * daemon does so before it opens an engine.) */
void zero_engine_destroy(zero_engine *engine);

/* Ends the run on all ranks because the host cannot go on: an exception of its own, for example. `why`: a sentence, which the other ranks
 * get with ZERO_E_PEER ("rank 1 failed: ..."). This rank's next calls return ZERO_E_INTERRUPTED. Another status
 * than ZERO_OK: the engine has failed before. Local. */
zero_status zero_engine_fail(zero_engine *engine, const char *why);

/* The same as zero_engine_init_with, with a status. *out is set on success only. Collective. */
zero_status zero_engine_open(const char *json, const zero_runtime *runtime, zero_engine **out);

/* The sentence of this thread's last failure; "" if there was none. Valid until the thread's next call. Local. */
const char *zero_last_error(void);

/* The same, with its parts. Valid until the thread's next call. ZERO_E_ARGUMENT: `out` is NULL, or its struct_size is 0; the last
 * failure stays the one before. Local. */
typedef struct zero_failure {
    size_t struct_size;
    zero_status code;     /* ZERO_OK: there was no failure */
    int32_t rank;         /* the rank at fault, where one is known; else -1 */
    uint64_t step;        /* optimizer updates done when an engine failed */
    const char *call;     /* the function that returned it: "zero_forward_begin" */
    const char *unit;     /* the name of the unit that it was given; NULL: none */
    const char *sentence; /* as zero_last_error */
} zero_failure;
zero_status zero_last_failure(zero_failure *out);

/* A world whose ranks are threads. Create it once, give it to each rank's zero_engine_init_with, and destroy it after all ranks
 * have destroyed their engines. Local. */
zero_local *zero_local_create(uint32_t ranks);
void zero_local_destroy(zero_local *local);

/* The configuration as strict JSON, for a host that reads keys itself: `json` as zero_engine_init takes it, which may have comments or
 * be base64. Writes `out` where `capacity` has room. Returns the number of bytes, a final zero included; 0: it failed, see
 * zero_last_error(). Local. */
size_t zero_config_text(const char *json, char *out, size_t capacity);

const char *zero_version(void); /* of the library: "0.1.0" */
int zero_abi_version(void);     /* of the library: its ZERO_ABI_VERSION */
uint32_t zero_engine_rank(const zero_engine *engine);
uint32_t zero_engine_size(const zero_engine *engine); /* the number of ranks */
/* This rank among those with its model rank, and their number: which samples it reads. Where the model is whole, they are
 * zero_engine_rank and _size. Local. */
uint32_t zero_engine_data_rank(const zero_engine *engine);
uint32_t zero_engine_data_size(const zero_engine *engine);
/* CPU threads of this rank. The engine sets them for its own kernels alone: a host that uses OpenMP calls
 * omp_set_num_threads(zero_engine_threads(engine)), so that the ranks of one host share its CPUs. Local. */
uint32_t zero_engine_threads(const zero_engine *engine);

/* Settings in effect, for the host's loop. A step has accumulation_steps micro-steps, each of micro_batch samples on each
 * rank: train_batch samples on all (data) ranks. Local. */
uint64_t zero_engine_micro_batch(const zero_engine *engine);
uint64_t zero_engine_accumulation_steps(const zero_engine *engine);
/* The micro-steps of a pass, and of each use in it (zero_unit_next_micro): 1, or with zero_optimization.micro_order "vertical" all of a
 * step. A step has accumulation_steps / use_micros training passes. Local. */
uint64_t zero_engine_use_micros(const zero_engine *engine);
uint64_t zero_engine_train_batch(const zero_engine *engine);
uint64_t zero_engine_seed(const zero_engine *engine);
double zero_engine_clipping(const zero_engine *engine); /* 0: off */

/* The value of any key as JSON text: given, resolved from "auto", or the default. `key`: the path, "optimizer.params.lr". A choice
 * that the engine makes at opening stays "auto": zero_engine_threads and zero_engine_cuda have the result. NULL: the key has no
 * value, or there is no such key (zero_last_error() then says so). Before zero_engine_commit, valid until then; afterwards as long
 * as the engine. Local. */
const char *zero_engine_setting(const zero_engine *engine, const char *key);

/* The type in which host and engine share parameters, gradients, slots and spans: fp32, or by the configuration's bf16.enabled or
 * fp16.enabled; zero_param_dtype says which parameters stay fp32. zero_engine_get and _put always move fp32. A program that knows of floats
 * alone needs no call of these two; where the configuration enables a narrower type, its zero_micro_begin returns ZERO_E_ORDER, unless
 * it has called one of the two, or declared a parameter ZERO_KEEP_FP32. Local. */
typedef enum zero_dtype { ZERO_F32, ZERO_BF16, ZERO_F16 } zero_dtype;
zero_dtype zero_engine_dtype(const zero_engine *engine);

/* The GPU's index, and the stream on which the host enqueues all work on slots and spans, between begin and end. -1: the CPU, where
 * the host computes between begin and end. `out_stream` (a CUstream) may be NULL. Local.
 * On a GPU, begin returns when this stream has been made to wait for the gathered parameters, and end when the engine has recorded
 * what was enqueued: the host may run ahead of the GPU, and reads slots only by work on this stream. (Begin waits itself where threads
 * share one GPU, or state or parameters are in host memory or on a drive.) A gather that fails later is a failure of a later call,
 * and the stream goes on, so that a host that waits for its stream does not hang; what it then computes is void.
 * Any call may make the engine's GPU the calling thread's current one, and leaves it so: a host that also computes on another GPU makes
 * that one current again (cudaSetDevice). */
int zero_engine_cuda(const zero_engine *engine, void **out_stream);

/* ---- declaring the model: local, the same on all ranks, before commit ---- */

/* Where the engine writes the addresses of a parameter, whose elements are of type zero_param_dtype. The host owns the slot, which
 * must live as long as the engine. */
typedef struct zero_slot {
    /* All elements. Valid from forward_begin to forward_end and from backward_begin to backward_end. Weights are read alone: what a use
     * writes there is lost, or differs by rank; zero_engine_put changes them. */
    const void *param;
    /* Valid from backward_begin to backward_end; NULL for frozen parameters. The host writes or adds d loss / d param of its
     * micro-batch's mean loss, times zero_engine_loss_scale. */
    void *grad;
    int add; /* 0: grad holds garbage: overwrite all of it; 1: add to it */
} zero_slot;

enum {
    ZERO_FROZEN = 1,   /* no gradient, no optimizer state */
    ZERO_NO_DECAY = 2, /* weight decay 0, also in a group that has one */
    /* The host always adds to the gradient (`+=`), in a slot and in spans: the engine clears it before. zero_slot.add is 1. */
    ZERO_ADDS_GRAD = 4,
    /* The parameter stays fp32 where the run's type is narrower (routers, norms): its weights, gradient and the sum over ranks, in
     * slots and spans, at rest and gathered. It is its own master. A unit may have both kinds. As the configuration's param_groups
     * with "dtype": "fp32". */
    ZERO_KEEP_FP32 = 8,
    /* Where the host cuts its model (zero_runtime.model_size): other model ranks may have a parameter of the same name, or with the
     * same rows of the same tensor, and it is the same one. It counts once, on the first model rank that has it: in the norm, in
     * checkpoints and in the weights' hash. The host gives it the same gradient and the same weights on all model ranks that have it. */
    ZERO_MODEL_REPLICATED = 16,
    /* The host gives the gradient in each backward of the unit (zero_unit_give_grads, zero_param_give_grad) and writes to no slot:
     * `grad` may not be touched. Where it can, the engine then plans no memory for the whole gradient (zero_unit_reads_given). */
    ZERO_GIVES_GRAD = 32
};

/* A piece of a parameter in the host program's own memory: for trainers that keep, say, all layers of a kind in one array. */
typedef struct zero_span {
    void *param, *grad; /* grad may be NULL for frozen parameters */
    uint64_t count;     /* elements, of type zero_param_dtype */
} zero_span;

typedef struct zero_param {
    size_t struct_size;
    const char *name; /* unique in the engine, UTF-8 of any length; copied */
    uint32_t dims;    /* 1 to ZERO_DIMS_MAX */
    uint32_t flags;   /* ZERO_FROZEN, ZERO_NO_DECAY, ZERO_ADDS_GRAD, ZERO_KEEP_FP32, ZERO_MODEL_REPLICATED,
                       * ZERO_GIVES_GRAD */
    /* NULL, or a parameter of an earlier unit that is the same as this one, with an equal count of elements. This unit then
     * gathers the earlier unit too, and the gradients of both uses add up. */
    const char *tied_to;
    zero_slot *slot;
    /* NULL: the parameter lives in the engine's memory. Else `span_count` pieces, in order, of the host's memory, borrowed until
     * destroy. The weights are there from begin to end; backward_end takes the gradients from there (the host overwrites them, the
     * engine adds). Stages 0 to 2 only; the slot may then be NULL. The plan does not count the host's memory (on a GPU, GPU memory):
     * declare it with zero_engine_reserve. Weights of two parameters in the same memory are tied, or both are frozen: else commit returns
     * ZERO_E_ARGUMENT. EMBEDDING.md, "Your own arrays", has a table of what lives there without a copy: such weights the host writes
     * only before zero_engine_fill, and such gradients it leaves alone from the step's first backward_end to zero_engine_step's return;
     * the array then holds this rank's gradient, or the ranks' sum. Else begin copies weights, and backward_end gradients: from
     * zero_plan.param_bytes, and to grad_bytes or gathered_bytes. The spans then have a step's update from the unit's next begin on, or
     * once zero_engine_flush has returned; zero_engine_get has it at once. */
    const zero_span *spans;
    uint32_t span_count;
    /* 0, or a number from zero_engine_add_group. A pattern of the configuration's param_groups that matches the name goes first,
     * and may freeze the parameter. */
    uint32_t group;
    /* NULL, or the `user` that fill functions get for this parameter, in place of that of zero_engine_fill. */
    void *user;
    uint64_t shape[ZERO_DIMS_MAX]; /* the first `dims` of them */
    /* NULL, or the initial weights: all elements in fp32, in host memory, for zero_engine_fill and _recover without a function. They
     * are read there alone, at every stage; each rank reads those that it owns. */
    const float *values;
    /* NULL, or pointers of the host's own, of any type ((void **)&layer->weight), that the engine sets as it sets slot->param and
     * slot->grad; NULL after the use. Beside a slot or in place of one: without a slot the host does not learn `add`, so that a
     * grad_pointer needs ZERO_ADDS_GRAD. They must live as long as the engine. Parameters that are not in use at once may share
     * them. */
    void **param_pointer, **grad_pointer;
    /* Elements of an array of the host's that come before this parameter: the pointers point to where the array would begin. For
     * programs that have all layers of a kind in one array, and find layer l at `array + l * size`. */
    uint64_t pointer_offset;
    /* NULL, or the name of a tensor that is cut along its first dimension: this parameter has the rows that follow those of the
     * parameters which were added before with the same tensor. `name` is then the name of this part alone. Checkpoints, the
     * weights' hash, fill functions (`param`, and `first` in the tensor) and the patterns of param_groups use the whole tensor
     * under its own name, so they are the same for a model that is not cut, or is cut at other rows. The parts of a tensor have
     * equal other dimensions, flags and group. No part may be tied to another parameter, but other parameters may be tied to a
     * part. */
    const char *tensor;
    /* With `tensor`, where parts of it are on other model ranks (zero_runtime.model_size): this parameter has the rows from
     * tensor_row on, and the whole tensor has tensor_rows rows, on all model ranks together. A rank adds its parts in the order of
     * rows. 0 and 0: the rows follow those that this rank added before, and there are no others. */
    uint64_t tensor_row, tensor_rows;
    /* NULL, or a second name, which patterns of param_groups match as well: where the program's own name differs from that in files. */
    const char *alias;
} zero_param;

/* Parameters with a learning rate and a weight decay of their own. */
typedef struct zero_group {
    size_t struct_size;
    double lr, weight_decay; /* below 0: the configuration's */
} zero_group;

/* *out: the group's number, for zero_param.group and zero_engine_set_lr. Group 0 has the parameters that no other group has; the
 * groups of the configuration's param_groups are 1, 2, ... in their order; the host's groups follow. ZERO_E_ARGUMENT: there would
 * be more than ZERO_GROUPS_MAX groups. Local, before commit, the same on all ranks. */
zero_status zero_engine_add_group(zero_engine *engine, const zero_group *group, int *out);

/* `name`: unique, UTF-8, copied. *out lives as long as the engine. ZERO_E_ORDER after commit. */
zero_status zero_engine_add_unit(zero_engine *engine, const char *name, zero_unit **out);
zero_status zero_unit_add_param(zero_unit *unit, const zero_param *param);

/* Handles of parameters: by the order in which the unit's were added, from 0; or by name. NULL: there is none. Local. */
zero_handle *zero_unit_param(const zero_unit *unit, uint32_t index);
zero_handle *zero_engine_param(const zero_engine *engine, const char *name);
const char *zero_param_name(const zero_handle *param);
uint64_t zero_param_count(const zero_handle *param); /* elements */
/* The type of its elements in slots and spans, and of gradients that are given: zero_engine_dtype, or fp32 where ZERO_KEEP_FP32 or the
 * configuration's param_groups say so. A tied parameter has its owner's type. Local. */
zero_dtype zero_param_dtype(const zero_handle *param);

/* Passes use units in any order, any number of times: a backward may run twice, or two forwards before it; gradients add up. A unit may
 * begin between another one's begin and end, up to 64 deep: a forward inside a backward then needs no segment. (A backward inside one of
 * the same unit, or of a unit that is tied to it in the same spans, needs ZERO_ADDS_GRAD or slots: where the host overwrites the spans,
 * its begin returns ZERO_E_ORDER.) Ranks use the units alike. Without this call, units are used in the order in which they were added.
 * The price: nothing is gathered ahead, and what a pass has gathered, and its whole gradients, stay in memory until it ends. Before
 * commit, the same on all ranks. Local. */
zero_status zero_engine_free_order(zero_engine *engine);

/* The same with a bound: at most `units` units are in use at once (0: any number). A unit counts once, from its first begin to its last
 * end, and a held one does not count; 1 is enough where no use begins inside another one. A begin above the bound returns ZERO_E_ORDER
 * and changes nothing.
 *
 * - The plan has room for the parameters, and for the whole gradients, of as many of the largest units, and for parameters that
 * several units share. Each parameter and gradient keeps its one address. (On a GPU whose driver has no virtual memory,
 * or where its pages of 2 MiB would take no less, there is room for all of them.) - Units that
 * are not in use stay gathered while there is room: a larger bound saves gathers. With one more than the program needs, a gradient
 * is reduced while the next unit computes. - A gradient is reduced after its unit's last backward: when each forward before the
 * pass's first backward has had its own backward. If the unit has a later backward, or must make room earlier, its gradient is
 * reduced in parts, whose rounded sums are added, in the same way at every stage. */
zero_status zero_engine_free_order_within(zero_engine *engine, uint32_t units);

/* Holds the unit: its parameters are in use with every other unit of a pass, for parameters that the whole model uses. Their slots
 * are valid from the first begin of a pass to its last end; in a backward the host adds to grad in any unit's use (add is 1). A
 * pass does not begin or end the unit itself. It stays gathered, and its gradient is reduced after the pass's last backward. A held
 * unit has slots, not spans. If a unit is held, another unit may have no parameters: its uses mark the begin and the end of the
 * held unit's uses. Before commit, the same on all ranks. Local. */
zero_status zero_unit_hold(zero_unit *unit);

/* 1: the unit uses a parameter that is trained, or a held unit does. 0: all of them are frozen, by the host or by the configuration's
 * param_groups; if no earlier unit is trained either, a host may leave out the backward of this unit and of the units before it.
 * Local. */
int zero_unit_trains(const zero_unit *unit);

/* After commit: the addresses of a parameter and of its gradient (NULL: frozen, in several spans, or read where it is given) in every
 * use, until zero_engine_destroy or zero_engine_park. Between a use's begin and end they are those of the slot; at other times the
 * memory holds something else, or nothing: within a bound, a GPU that reads it fails. `add` is 0. For views of an
 * autograd, and for graphs of a GPU. Where a use has several micro-batches, a gradient may have a second address (zero_unit_next_micro). ZERO_E_ORDER before commit and while the engine is
 * parked. Local. */
zero_status zero_param_addresses(const zero_handle *param, zero_slot *out);

/* 1: in every use the elements of `param` begin where those of `before` end, and so do their gradients, if both are trained: the two
 * are one array, which one matrix product can read or write. The answer is the same at every stage and tier, so weights keep their bits
 * if a program's products depend on it. 0: they are apart: the end of `before` is not on a cache line, they are of different kinds (one
 * is frozen, small, kept in fp32 or gathered in other codes) or of different units, or one has spans, or is tied to one that has them.
 * 0 before commit. Local. */
int zero_param_adjoins(const zero_handle *param, const zero_handle *before);

/* The input of an update: the configuration's optimizer.params, by group, after a schedule. */
typedef struct zero_optimizer_params {
    size_t struct_size; /* set by the engine */
    double lr, beta1, beta2, eps, weight_decay, momentum, dampening;
} zero_optimizer_params;

enum { ZERO_STATES_MAX = 2, ZERO_SCALARS_MAX = 16 };

/* The data that an update needs at once. An update that needs more than one element has parts, and the engine moves the data
 * between the parts. On a given number of ranks the weights then have the same bits at all stages, on all tiers, and with any size
 * of chunks. The parts on elements are called as zero_optimizer.update is.
 *
 * TENSOR: two norms of a whole parameter (LAMB, LARS).
 *   1. before     updates the states from the gradient, and leaves weight[] as it is.
 *   2. direction  makes the direction from weights and states, and writes it over weight[], which is a copy.
 *   3. trust      is given the norms of the parameter's weights and of its direction, and changes the scalars of this parameter.
 *   4. update     makes the direction again, from weights and states, and moves the weights. The gradient is NULL. The states stay.
 * Commit refuses it, with a sentence, for parameters that are rows of a tensor.
 *
 * MATRIX: a whole parameter of two dimensions (Muon). Others need a group of param_groups with another optimizer.
 *   1. before     updates the states from the gradient, and writes the direction to weight[], which has no values before.
 *   2. matrix     changes a whole matrix of directions. One rank of all calls it for each matrix.
 *   3. update     moves the weights along the directions: gradient[] is them, gradient_scale 1. The states are NULL.
 * Commit refuses it, with a sentence, on a GPU, for parameters of other dimensions, and for parameters that are rows of a tensor.
 *  */
typedef enum zero_scope { ZERO_SCOPE_ELEMENT, ZERO_SCOPE_TENSOR, ZERO_SCOPE_MATRIX } zero_scope;

/* An optimizer of the host's own. It sees fp32 alone: the engine decides where states live, in which type gradients are, and how
 * weights are cast. */
typedef struct zero_optimizer {
    size_t struct_size;
    const char *name; /* in checkpoints; UTF-8 of at most 31 bytes, copied */
    uint32_t states;  /* numbers per element beside the weight; 0 at first */
    /* 1: states may be kept in bf16, rounded stochastically (bf16.bf16_optimizer_states). 0: refuses such a configuration. */
    int rounds_states;
    /* Computes what is constant over one update of one group. `step` is 1 for the first. */
    void (*prepare)(void *user, const zero_optimizer_params *params, uint64_t step,
                    float scalars[ZERO_SCALARS_MAX]);
    /* Updates `count` elements; the mean, clipped gradient is gradient[i] * gradient_scale. Unused states are NULL. Several threads
     * may call it at once, on any cut of a shard into ranges: the result of an element must not depend on the range. The engine's padding
     * between parameters comes along: weights, states and gradients of 0. With zero_quantized_weights, whose codes share scales with it,
     * keep its weights 0. */
    void (*update)(void *user, float *weight, float *state0, float *state1, const float *gradient,
                   float gradient_scale, const float *scalars, uint64_t count);
    void *user;
    /* In checkpoints: all different, UTF-8 of at most 31 bytes, without '/' and '#', not "param" or "ema". Copied. */
    const char *state_names[ZERO_STATES_MAX];
    zero_scope scope; /* it has the functions of its scope, and no others */
    void (*before)(void *user, float *weight, float *state0, float *state1, const float *gradient,
                   float gradient_scale, const float *scalars, uint64_t count);
    void (*direction)(void *user, float *weight, const float *state0, const float *state1,
                      const float *scalars, uint64_t count);
    /* Euclidean norms. Each rank that has a part of the parameter calls it, with the same norms: it may read no other data. */
    void (*trust)(void *user, double weight_norm, double direction_norm, float scalars[ZERO_SCALARS_MAX]);
    /* direction: the matrix, row by row. It may use `threads` threads, and its results must not depend on their number. scratch: as many
     * floats as matrix_scratch says, from a cache line on; they have no values before. One call at a time on a rank. The calling thread
     * rounds to nearest and keeps denormals, as for the other functions; threads of the host's own have the host's settings. */
    void (*matrix)(void *user, float *direction, uint64_t rows, uint64_t columns, const float *scalars,
                   float *scratch, uint32_t threads);
    uint64_t (*matrix_scratch)(uint64_t rows, uint64_t columns); /* the same on all ranks; NULL: none */
} zero_optimizer;

/* Replaces the configuration's optimizer, and is given its optimizer.params. Before commit, the same on all ranks. Local. */
zero_status zero_engine_set_optimizer(zero_engine *engine, const zero_optimizer *optimizer);

/* Declares that the host keeps no activations of the units first ... last (in the order of use) between their forward and their
 * backward, and may run their forwards again, in that order, right before the backward of `last` (Chen et al. 2016, section 3). The
 * plan then has room for what is gathered again. Segments do not overlap. One unit by itself needs no declaration: its forward may
 * always be run again right before its backward. */
zero_status zero_engine_add_segment(zero_unit *first, zero_unit *last);

/* Declares memory of the host program (activations, workspaces), per rank, so that budgets and reports count it. */
zero_status zero_engine_reserve(zero_engine *engine, zero_tier tier, uint64_t bytes, const char *name);

/* Declares spare memory: memory of the device that the host program can use, but can do without, such as room for outputs that its
 * backward else computes again: at most `parts` parts of part_bytes bytes each. Commit grants as many parts as the plan leaves room
 * for, first those that were declared first: within memory.device, and on a GPU within what is free there. Of the free memory,
 * memory.device_margin stays free, or a twentieth of the GPU's memory if that is more; ranks that are threads on one GPU divide the
 * rest. State that fills the device takes its room before spare memory of several parts. All ranks get the number of the rank with
 * the least room. Where nothing bounds the device's memory, all parts are granted. *out_granted lives until commit, which sets it;
 * before, it is 0. Allocate the granted parts after commit: from then on they count as a reservation. zero_engine_plan grants within
 * memory.device alone.
 * ZERO_E_ARGUMENT: parts of 0 bytes, or more than 8 spare memories. Before commit, the same on all ranks. Local. */
zero_status zero_engine_reserve_spare(zero_engine *engine, uint64_t part_bytes, uint64_t parts,
                                      const char *name, uint64_t *out_granted);

/* A scratch: places of equal size on the drive, for data that the host computes and needs only later, such as the activations
 * between forward and backward. Its files have no name, so that nothing stays when the process ends. The drive is that of the state
 * or the parameters, or else activation_checkpointing.nvme_path; memory.nvme counts the bytes, and zero_plan and zero_counters the
 * traffic. */
typedef struct zero_scratch zero_scratch;
typedef struct zero_scratch_needs {
    size_t struct_size;
    const char *name;                   /* in reports and messages; copied; at most 63 bytes */
    uint64_t place_bytes;               /* of a place: a multiple of 4096 */
    uint64_t places;                    /* at least 1 */
    uint64_t step_stores, step_fetches; /* of a step with all its micro-steps: for the plan's traffic */
} zero_scratch_needs;

/* Declares a scratch, per rank. *out lives as long as the engine. ZERO_E_CONFIG: the configuration names no drive. ZERO_E_ARGUMENT: a
 * size, or more than 8 of them. Before commit. Local. */
zero_status zero_engine_add_scratch(zero_engine *engine, const zero_scratch_needs *needs, zero_scratch **out);

/* Start to write a place from memory, or to read it into memory: place_bytes bytes of host memory, at a multiple of 4096, which the
 * engine borrows until zero_scratch_wait of that place returns. One transfer of a place at a time: a call waits for the one before.
 * Of different places, any number may be in flight, in any order. _fetch: the place was stored before. _wait returns once no
 * transfer of the place is in flight, also after a failure; fetched bytes are then verified. A transfer that fails, and bytes that
 * come back damaged, end the run on all ranks: ZERO_E_IO, and the sentence names the path and the offset. After commit, inside uses
 * and outside of them. Nothing is allocated. Local. */
zero_status zero_scratch_store(zero_scratch *scratch, uint64_t place, const void *memory);
zero_status zero_scratch_fetch(zero_scratch *scratch, uint64_t place, void *memory);
zero_status zero_scratch_wait(zero_scratch *scratch, uint64_t place);

/* Records when each operation of `steps` steps, from `first_step` on (this engine's first step is 1), started and was done, in 1 MiB
 * of cpu memory, for zero_engine_write_trace. The configuration's trace block goes before this call. 0 steps: none. Before commit,
 * the same on all ranks. Local. */
zero_status zero_engine_trace(zero_engine *engine, uint64_t first_step, uint64_t steps);

/* ---- commit: plans all memory, checks it against the budgets, allocates it once. Collective ---- */

typedef struct zero_plan {
    size_t struct_size;
    uint64_t params;        /* of the model; tied ones count once; without padding */
    uint64_t params_padded; /* as laid out: aligned, and padded so that units cut into equal shards */
    uint64_t param_bytes, grad_bytes, state_bytes; /* at rest, per rank, on all tiers; averaged weights are state */
    uint64_t gathered_bytes; /* the planned intervals of gathered units and their gradients */
    /* The part of gathered_bytes that could be saved if a gathered parameter or gradient had another address in each use. */
    uint64_t lasting_bytes;
    uint64_t staging_bytes; /* reductions, messages, chunks and parameters on their way to and from a drive */
    uint64_t reserved_bytes;       /* zero_engine_reserve, _reserve_spare and _add_scratch, and the trace */
    uint64_t resident_state_bytes; /* the part of state_bytes that is not on a drive */
    /* Of one step with all its micro-steps, from the second step on; scratches are included. */
    uint64_t drive_read_bytes, drive_write_bytes;
    /* Steps that nvme.endurance_tbw lasts while all ranks of a node write. 0: the key is not given. */
    double drive_life_steps;
    /* Masters beside narrower parameters, in memory: fp32 weights, or the 16 bits that bf16 parameters lack. Those on a drive are in
     * state_bytes. */
    uint64_t master_bytes;
    uint64_t bytes[ZERO_TIERS]; /* per rank and tier; equals what is allocated */
    /* zero_optimization.update_in_backward with gradient_clipping: the additional bytes that a step moves if its norm
     * is above gradient_clipping. */
    uint64_t repeat_read_bytes, repeat_write_bytes;
} zero_plan;

/* `out` may be NULL. ZERO_E_DIVERGED: ranks declared different models. ZERO_E_BUDGET names the tier, by how many bytes the budget is
 * too small, keys with values with which the plan fits (each was planned), and the largest owners. */
zero_status zero_engine_commit(zero_engine *engine, zero_plan *out);

/* With zero_runtime.plan_ranks, after the model is declared: the plan that commit would make for one of that many ranks.
 * Allocates nothing, needs no other rank, and refuses nothing for a budget. Once. Local. */
zero_status zero_engine_plan(zero_engine *engine, zero_plan *out);

/* The rows of the memory report, index 0, 1, ...: ZERO_E_ARGUMENT past the last. A tier's planned bytes add up to zero_plan.bytes;
 * measured is what was allocated (a reservation counts as declared). Of a parked engine: the memory that it takes while parked.
 * Local. */
typedef struct zero_memory_row {
    size_t struct_size;
    zero_tier tier;
    const char *name; /* "parameters", "gradients", "optimizer state", ... */
    uint64_t planned, measured;
} zero_memory_row;
zero_status zero_engine_memory(const zero_engine *engine, uint32_t index, zero_memory_row *out);

/* The owners of all tiers' planned memory, index 0, 1, ..., the largest first: ZERO_E_ARGUMENT past the last. Together they are the
 * rows without their alignment; of a parked engine, the rows before it was parked. Local. */
typedef struct zero_memory_owner {
    size_t struct_size;
    zero_tier tier;
    const char *unit; /* NULL: of all units together, or of none */
    const char *what; /* the row, or the reservation's name */
    uint64_t bytes;
} zero_memory_owner;
zero_status zero_engine_memory_owner(const zero_engine *engine, uint32_t index, zero_memory_owner *out);

/* Initializes the weights: called for ranges of elements that this rank owns, in any order; writes `count`
 * elements from element `first` of `param` to `out`. The value of an element must not depend on the range. `user`: zero_param.user
 * where that is set. `fill` NULL: the weights are zero_param.values, else those in the spans; each rank gives the elements that it
 * owns. Collective. */
typedef void (*zero_fill_fn)(void *user, const char *param, uint64_t first, uint64_t count, float *out);
zero_status zero_engine_fill(zero_engine *engine, zero_fill_fn fill, void *user);

/* With "nvme": {"shadow": true}: the shadow of an earlier run that commit found in nvme_path. */
typedef enum zero_shadow {
    ZERO_SHADOW_NONE,
    /* A step that is whole on all ranks, with this configuration, model and number of ranks: zero_engine_recover goes on from it. */
    ZERO_SHADOW_USABLE,
    /* The same of another stage, model, optimizer, type or layout, in the files that this run writes to. */
    ZERO_SHADOW_OTHER,
    /* Of another number of ranks: in files of its own, which this run leaves as they are. */
    ZERO_SHADOW_OTHER_RANKS,
    /* A step that cannot be recovered: the commit cannot be read, or files of some ranks are missing. */
    ZERO_SHADOW_DAMAGED
} zero_shadow;

/* From commit on. *out_step (may be NULL): the updates that the earlier run had done; 0 where the commit cannot be read. The same on
 * all ranks. Files of another size are refused by commit, unless zero_runtime.discard_shadow is set. Local. */
zero_shadow zero_engine_shadow(const zero_engine *engine, uint64_t *out_step);
/* One sentence that says what was found, what differs and what to do; "" without nvme.shadow. It lives as long as the engine. */
const char *zero_engine_shadow_text(const zero_engine *engine);
/* The note that the earlier run's host had set, or NULL; it lives as long as the engine. Local. */
const char *zero_engine_shadow_note(const zero_engine *engine, const char *key);

/* zero_engine_fill and _load return ZERO_E_ORDER where they would write over a shadow that commit found (USABLE, OTHER, DAMAGED).
 * After this call, or with zero_runtime.discard_shadow, they do write over it: nothing is lost before the fill, or before the load
 * has read its checkpoint. A shadow of this engine's own steps, recovered ones included, may always be overwritten. Local, after
 * commit, the same on all ranks. */
zero_status zero_engine_discard_shadow(zero_engine *engine);

/* In place of zero_engine_fill, with "nvme": {"shadow": true}: goes on from the last step that was whole on all ranks when
 * an earlier run with this configuration, model and number of ranks ended, however it ended. `fill` is called for frozen
 * parameters; NULL as in zero_engine_fill. *out_step (may be NULL): optimizer updates done. Notes are those that were set when the
 * step or the flush after that step began. ZERO_E_IO: the shadow is not ZERO_SHADOW_USABLE, and why; nothing has changed. Damage that
 * shows only in the data is a failure of the engine, which names the chunk. Collective. */
zero_status zero_engine_recover(zero_engine *engine, zero_fill_fn fill, void *user, uint64_t *out_step);

/* ---- training: collective, though ranks may be at different units ---- */

/* Begin waits for what the unit needs (on a GPU: see zero_engine_cuda). */

/* After the forward of the last unit, forward_begin and _end recompute: a unit whose backward comes next, or the units of its
 * segment, one after another up to that unit. A recomputed unit stays gathered for its backward; once it is, the others of its
 * segment are refused (ZERO_E_ORDER). An evaluation is collective at stage 3 alone: below, where parameters rest whole, each rank may
 * evaluate by itself, as often as it likes; so may it cancel an evaluation, and resume after it. */
zero_status zero_micro_begin(zero_engine *engine, zero_mode mode);

/* Goes on with a training pass after an evaluation. A zero_micro_begin(ZERO_EVAL) between the forward and the backward of a training
 * pass interrupts it: units that were kept for the backward are released. After the evaluation, or several, zero_micro_resume leads
 * back to the first backward, or to a recomputation before it. ZERO_E_ORDER: no training pass is interrupted. Collective. */
zero_status zero_micro_resume(zero_engine *engine);

/* Drops the open pass, also inside a unit's begin and end: after an exception in a forward, for example. Before the first backward
 * of the pass, only the pass is dropped: it is not counted, and adds to no gradient. After the first backward, and between the
 * micro-steps of a step where no pass is open, all micro-steps of this step are dropped, and the step begins anew. An evaluation is
 * dropped alone; a training pass that it has interrupted stays, for zero_micro_resume or another zero_micro_cancel. All ranks call
 * it at the same place of the pass, but for an evaluation at stages 0 to 2. Model ranks may be at different places, and a backward
 * that has begun on one of them counts on
 * all. ZERO_E_ORDER, and nothing is dropped: the ranks are at different places, or there is nothing to drop. A rank that waits in
 * begin for a rank which cancels does not return before its deadline. With zero_optimization.update_in_backward ZERO_E_ORDER from
 * the first backward of a step's last micro-step on. Collective. */
zero_status zero_micro_cancel(zero_engine *engine);

zero_status zero_forward_begin(zero_unit *unit);
zero_status zero_forward_end(zero_unit *unit);
zero_status zero_backward_begin(zero_unit *unit);
zero_status zero_backward_end(zero_unit *unit);

/* Inside a use: the unit goes on with the next micro-batch. A forward, a recomputation and a backward have zero_engine_use_micros
 * micro-batches each, in the order of micro-steps; an evaluation has at most so many. The parameters stay where they are. In a
 * backward each micro-batch has its own gradient: read `grad` and `add` of the slot again, since two addresses may take turns, of
 * which zero_param_addresses has the first. The call takes the gradient of the micro-batch before (from slot, spans or given
 * memory) as backward_end does, and the weights are the same as with one pass per micro-step. The host keeps the activations of
 * all micro-batches from forward to backward. ZERO_E_ORDER: the unit is not in use, or all micro-batches of the use are done. */
zero_status zero_unit_next_micro(zero_unit *unit);

/* Between backward_begin and backward_end of the parameter's unit: gives a gradient that was computed elsewhere, instead of
 * writing to the slot's grad. `grad`: all elements, of type zero_param_dtype. The CPU reads it before the call returns, but for
 * zero_unit_reads_given; a GPU reads it in the order of the host's stream, from GPU memory or page-locked memory. Local. */
zero_status zero_param_give_grad(zero_handle *param, const void *grad);

/* The same for all parameters of a unit, on all threads of the rank. `grads`: one address for each parameter, in the order in which
 * they were added. NULL: nothing is given; the gradient is zero if nothing else adds to it. The entry of a frozen parameter is not
 * read; that of a parameter with spans is NULL. Local. */
zero_status zero_unit_give_grads(zero_unit *unit, const void *const *grads);

/* 1: the engine reads gradients that are given to this unit (ZERO_GIVES_GRAD) while it reduces them, after zero_backward_end. The host
 * then keeps the memory as it is until a step has returned, or the second zero_backward_begin that follows of a unit with this answer;
 * what the host enqueues on its stream from then on may write there. 0: as zero_param_give_grad says. After commit. Local. */
int zero_unit_reads_given(const zero_unit *unit);

typedef struct zero_step_info {
    size_t struct_size;
    uint64_t step;    /* optimizer updates done, this one included unless skipped */
    double grad_norm; /* global, of the mean gradient, before clipping */
    double lr;        /* of group 0, as used */
    int skipped;      /* a gradient was inf or NaN on some rank: no rank updated anything */
    uint64_t skipped_total;
    double loss_scale; /* the loss scale of this step's gradients */
    uint32_t groups;
    double beta1; /* of group 0, as used: a schedule may cycle it */
    /* Of a skipped step: among the units with inf or NaN gradients, the one nearest to the loss, of the highest model rank that has
     * one; else NULL. Lives as long as the engine. */
    const char *overflow_unit;
    double group_lr[ZERO_GROUPS_MAX]; /* of each group, as used */
    /* zero_optimization.update_in_backward: the norm was above gradient_clipping, so the updates of the backward were repeated,
     * clipped. repeated_total: such steps of this engine; no checkpoint has it. */
    int repeated;
    uint64_t repeated_total;
} zero_step_info;

/* After gradient_accumulation_steps micro-steps, or with gradient_accumulation_by_program after one or more: agrees norm and skip, clips, updates. `out` may be NULL. ZERO_E_OVERFLOW: fp16's
 * dynamic loss scale is at its minimum and gradients still overflow; or max_skipped_steps steps in a row were skipped (on the rank
 * that stores the gradient; the other ranks get ZERO_E_PEER in this call or a later one). With zero_optimization.update_in_backward
 * the last micro-step's backward has updated the weights, with the settings of the time when its pass began; ZERO_E_ORDER if it had
 * no backward. With nvme.shadow this call repeats the updates if the step is clipped, and takes them back if the step is skipped.
 * Without nvme.shadow it returns ZERO_E_OVERFLOW if a gradient of the step is inf or NaN. Collective. */
zero_status zero_engine_step(zero_engine *engine, zero_step_info *out);

/* Waits until everything is up to date on its tier, and in spans. With nvme.shadow it also commits the last step. What was filled, loaded or put
 * since then is committed with the next step; with zero_optimization.update_in_backward already before that. Collective. */
zero_status zero_engine_flush(zero_engine *engine);

/* Gives the device's memory back between two steps, for a program that uses the device for something else meanwhile, and takes it
 * again. Collective.
 *
 * _park: flushes; then what rests in the device's memory (weights, optimizer states) goes to `tier`: ZERO_CPU (pinned where the
 * device is a GPU) or ZERO_NVME (nameless files in the configuration's nvme_path, with checksums that are verified on the way
 * back). While the engine is parked, every call but _unpark, zero_engine_destroy, those of scratches and those that only read what
 * this rank knows returns ZERO_E_ORDER, and zero_engine_memory reports the memory that the parked engine takes. On CPUs a small
 * part of the device's memory stays: messages of the ranks. ZERO_E_ARGUMENT: another tier, or no nvme_path; ZERO_E_ORDER: not
 * between steps; ZERO_E_BUDGET, ZERO_E_MEMORY, ZERO_E_IO: the tier has no room, or failed. All ranks then answer the same, and
 * nothing has changed. _unpark: the training goes on with the same bits. Addresses in slots and those of zero_param_addresses may
 * be others than before: ask again, and make graphs of a GPU that hold them anew. Handles stay valid. ZERO_E_BUDGET, ZERO_E_MEMORY:
 * the device has too little free memory; ZERO_E_IO: the drive failed, or what it returned is damaged. All ranks then answer the
 * same, and the engine stays parked: give memory back, and call it again. */
zero_status zero_engine_park(zero_engine *engine, zero_tier tier);
zero_status zero_engine_unpark(zero_engine *engine);

/* Lets evaluations compute with the averaged weights ("ema" of the configuration), between two steps. Collective.
 *
 * _begin: averages and weights exchange their places in memory or on the drive, so no additional memory is needed. Until _end the
 * engine takes passes of ZERO_EVAL, zero_engine_sum, zero_engine_flush (which commits no shadow then), zero_engine_destroy, and
 * calls that neither read nor change weights, such as zero_engine_prune; every other call returns ZERO_E_ORDER. In bf16 and fp16
 * the program computes with the averages rounded to nearest; in bf16 one that is halfway rounds to the larger magnitude. Frozen
 * parameters keep their weights. _end: weights and averages are in their places again, with the same bits. State on a drive is
 * read and written once by each of the two; only read where its masters are fp32 beside narrower parameters. ZERO_E_ARGUMENT:
 * there are no averages; ZERO_E_ORDER: not between steps, or before a fill. */
zero_status zero_engine_ema_begin(zero_engine *engine);
zero_status zero_engine_ema_end(zero_engine *engine);

/* Multiply the loss by this factor before backward. The engine divides everything that it reports and applies by this factor. It
 * is 1 unless compute is fp16. Only zero_engine_step, _fill, _recover and the loads change it. Local. */
float zero_engine_loss_scale(const zero_engine *engine);

/* The learning rate from the next step on; rank 0's is used on all ranks. With
 * zero_optimization.update_in_backward it is taken when the last training pass of a step begins, and all ranks set the same. `group`: 0
 * where there are no others. ZERO_E_ORDER where a schedule sets it. Local. */
zero_status zero_engine_set_lr(zero_engine *engine, int group, double lr);
/* In the same way a group's betas: at least 0, below 1. Optimizers without betas ignore them. A checkpoint does not keep them. */
zero_status zero_engine_set_betas(zero_engine *engine, int group, double beta1, double beta2);
/* In the same way all numbers of a group that its optimizer has; the others are ignored. Each rank updates with its own eps, weight_decay,
 * momentum and dampening, so all ranks set the same (else zero_engine_step returns ZERO_E_DIVERGED). lr and betas of rank 0 are used, and
 * are left as they are where a schedule sets them. ZERO_E_ARGUMENT: a number that no update can use, or a momentum for which the plan has no
 * state. */
zero_status zero_engine_set_params(zero_engine *engine, int group, const zero_optimizer_params *params);
/* These numbers as they are now. ZERO_E_ARGUMENT: there is no such group. Local. */
zero_status zero_engine_params(const zero_engine *engine, int group, zero_optimizer_params *out);
/* The rate that the configuration, a load or zero_engine_set_lr has given, from which a schedule starts; -1: there is no such group.
 * Local. */
double zero_engine_lr(const zero_engine *engine, int group);

/* The settings that an update uses for a parameter group. Optimizers without betas ignore them. */
typedef struct zero_setting {
    size_t struct_size; /* set by the engine */
    double lr, beta1, beta2;
} zero_setting;

/* A schedule of the host's own, in place of the configuration's; NULL: the configuration's again, or none. Called before each step
 * for each group, in zero_engine_step's thread; rank 0's values are used on all ranks. With zero_optimization.update_in_backward it
 * is called in the zero_micro_begin of a step's last training pass, again if that pass is dropped, and all ranks return the same.
 * `step`: updates done, 0 before the first; a skipped step does not advance it, a load takes it from the checkpoint, so that a
 * function of `step` goes on by itself. `setting` holds the group's own values; the function replaces them by the values that the
 * step is to use: lr finite and at least 0, betas at least 0 and below 1. Otherwise the calling function returns ZERO_E_ARGUMENT, a
 * failure of the engine. Local. */
typedef void (*zero_schedule_fn)(void *user, uint64_t step, int group, zero_setting *setting);
zero_status zero_engine_set_schedule(zero_engine *engine, zero_schedule_fn schedule, void *user);

/* ---- state: collective, between steps. _get, _put, _hash and _save also between the micro-steps of a step, whose gradients stay ---- */

/* Elements [first, first + count) of a parameter or its state, as fp32, on every rank. put: all ranks give the same. Each model rank
 * names a parameter of its own; several model ranks then return ZERO_E_ORDER until all have called zero_engine_save_wait after a save
 * in the background.
 * Where weights are bf16, a master that lies halfway between an even bf16 number and the next larger one, in magnitude, moves by
 * one unit of fp32 towards zero, whoever writes it (fill, put, load, update): so every tier can keep it in 16 bits beside the
 * weight. */
zero_status zero_engine_get(zero_engine *engine, const char *param, zero_kind kind, float *out,
                            uint64_t first, uint64_t count);
zero_status zero_engine_put(zero_engine *engine, const char *param, zero_kind kind, const float *in,
                            uint64_t first, uint64_t count);
zero_status zero_param_get(const zero_handle *param, zero_kind kind, float *out, uint64_t first,
                           uint64_t count);
zero_status zero_param_put(zero_handle *param, zero_kind kind, const float *in, uint64_t first,
                           uint64_t count);

/* The elements of a parameter or of its state that this rank stores; *out_count 0: none. All ranks together store each element, at
 * stage 0 and for replicated state more than one rank. After commit. Local. */
zero_status zero_param_owned(const zero_handle *param, zero_kind kind, uint64_t *out_first,
                             uint64_t *out_count);

/* As zero_param_get and _put, for elements that this rank stores: no other rank takes part, so that a host can read and write
 * checkpoints of its own format. Not ZERO_GRAD. ZERO_E_ORDER before all ranks have called zero_engine_flush after a step, and while a
 * save in the background is under way (zero_engine_save_wait). Local.
 * After zero_param_put_owned all ranks call zero_engine_written, which is collective, before any other collective call. Ranks that
 * store the same element must put the same. */
zero_status zero_param_get_owned(const zero_handle *param, zero_kind kind, float *out, uint64_t first,
                                 uint64_t count);
zero_status zero_param_put_owned(zero_handle *param, zero_kind kind, const float *in, uint64_t first,
                                 uint64_t count);
zero_status zero_engine_written(zero_engine *engine);

/* 32 hexadecimal digits and a final zero: equal if and only if (up to collisions) all fp32 masters are equal
 * bit for bit under equal names; does not depend on stage, tier or ranks. No rank ever holds more than its
 * shard. */
zero_status zero_engine_hash(zero_engine *engine, char out[33]);

/* Sums over all ranks in rank order, in double; the same bits on all ranks. count <= 64. For losses and stop
 * flags. Also before commit, and within a pass, not between a unit's begin and end. */
zero_status zero_engine_sum(zero_engine *engine, double *values, uint32_t count);

/* Rank 0's bytes to all ranks, as many on each: for first values, and for what one rank has read or drawn. From commit on, between
 * passes. */
zero_status zero_engine_broadcast(zero_engine *engine, void *data, uint64_t bytes);
/* The same from rank `root`. */
zero_status zero_engine_broadcast_from(zero_engine *engine, uint32_t root, void *data, uint64_t bytes);

/* ---- checkpoints: collective, between steps (_save: see above). engine/checkpoint/FORMAT.md says what is in the files ---- */

/* Saves weights, optimizer state, step counters and notes as `dir`/step_NNNNNNNN, named by the number of
 * updates done, and moves `dir`/latest to it. `dir` is one directory that all ranks share; its parent is there.
 * A crash at any moment leaves the checkpoints that were complete before, and this one is complete or not seen.
 * A checkpoint of the same step is replaced. Writes from where the state lives through 256 KiB of the plan.
 * A save that fails changes nothing in the engine: training can go on. ZERO_E_IO names file and reason. A left-over of
 * an earlier save that cannot be removed is logged, once. Once all ranks have called it, comm.timeout_s limits silence alone: ranks wait
 * for one that writes for as long as it takes, as in _save_wait, _load and _prune. */
zero_status zero_engine_save(zero_engine *engine, const char *dir);

/* With "checkpoint": {"async": true} _save returns when the save has begun, and training goes on while it is written; a
 * later step, or this function, makes it complete. The save goes to where `dir` was at the call, also if the host then
 * changes its current directory. Calls that read or change state between steps (_get, _put, _fill, _hash, _load, _prune,
 * the next _save) wait for the save first. This function waits too, and returns the status of the last save, as _save
 * would have returned it. A save that fails is logged. _destroy leaves an incomplete save behind as a crash would. */
zero_status zero_engine_save_wait(zero_engine *engine);

/* Goes on from a checkpoint, saved at any stage, on any tier and number of ranks, of the same model and optimizer: after
 * zero_engine_commit, in place of zero_engine_fill. `dir`: as for save (its latest is meant), or one step's directory in it. Each
 * rank reads the parts that it stores, and verifies their checksums. The learning rate is the saved one: call zero_engine_set_lr
 * afterwards to change it. A checkpoint without optimizer state (an imported one) begins with zero moments. ZERO_E_ABSENT: `dir` is
 * not there, or no save has ended in
 * it; ZERO_E_IO: a part is missing or damaged, which file and where; ZERO_E_ARGUMENT: of another model or optimizer, and which
 * parameter differs; in all cases the
 * engine is as it was, unless damage shows only in the data: that failure is sticky. _weights: the weights alone; moments and step
 * count begin anew, with any optimizer. _ema: the same, with the averaged weights as the weights; ZERO_E_ARGUMENT: the checkpoint
 * has none. Averaged weights that a load does not find, or take, begin as the weights. */
zero_status zero_engine_load(zero_engine *engine, const char *dir);
zero_status zero_engine_load_weights(zero_engine *engine, const char *dir);
zero_status zero_engine_load_ema(zero_engine *engine, const char *dir);

/* Deletes all checkpoints in `dir` but the `keep` newest (at least 1) up to the latest. A checkpoint that cannot be deleted
 * as a whole (it contains a directory, a link or another user's file) stays as a whole: the call deletes the others, and then
 * returns ZERO_E_IO. If the host has set the note "run", a checkpoint with another note "run" is another run's: it stays, and
 * is not counted. */
zero_status zero_engine_prune(zero_engine *engine, const char *dir, uint64_t keep);

/* Notes of the host program: texts that the next saves keep, and that a load replaces: for example the
 * number of samples used, or the state of its generators. At most 64, UTF-8 of at most 4,095 bytes (with a shadow, which keeps them with
 * each step, 2,047 bytes together: those of keys and texts, and 2 for each note); NULL removes one. The same on all ranks; rank 0's are
 * saved. Local. The result of _note is valid until the next set or load. */
zero_status zero_engine_set_note(zero_engine *engine, const char *key, const char *value);
const char *zero_engine_note(const zero_engine *engine, const char *key); /* NULL: none */

/* What the host keeps with a checkpoint and is more than a note, for all ranks or of each rank: rank 0's next save writes the bytes of
 * _file to program.bin in the step's directory, and each rank's the bytes of its _rank_file to program-00003.bin, of rank 3. The host
 * reads them there; a checksum is the host's affair. Other ranks may load: they find the files of those that saved. Borrowed until that
 * save returns (one in the background, too). NULL: none. Local. */
zero_status zero_engine_set_file(zero_engine *engine, const void *data, uint64_t bytes);
zero_status zero_engine_set_rank_file(zero_engine *engine, const void *data, uint64_t bytes);

uint64_t zero_engine_steps(const zero_engine *engine); /* optimizer updates done, a loaded run's included */
/* Training passes since the last step, an open one included, without those that were cancelled. A host that an exception has left
 * between a call and the line after it learns from this function whether the call was done. */
uint32_t zero_engine_passes(const zero_engine *engine);

/* ---- counters, per rank, since init. Local ---- */

typedef struct zero_counters {
    size_t struct_size;
    uint64_t gather_calls, gather_elements;   /* of parameters (zero0: gradients); sent by this rank */
    uint64_t reduce_calls, reduce_elements;   /* of gradients */
    uint64_t wire_bytes;                      /* payload of both, sent by this rank */
    uint64_t control_messages, control_bytes; /* all else: agreements, sums, hashes, _get, heartbeats */
    double compute_s; /* between begin and end: on a GPU, the host's time to enqueue its work */
    double wait_s;    /* inside begin, end, step: the host waits for other ranks, a device or a drive */
    double update_s;  /* in the optimizer */
    /* Of the nvme tier, of scratches and of parks that have ended; without their first writing. */
    uint64_t drive_read_bytes, drive_write_bytes;
} zero_counters;
zero_status zero_engine_counters(const zero_engine *engine, zero_counters *out);

/* The operations that zero_engine_trace kept so far, as Chrome trace events (Trace Event Format, Google 2016), which ui.perfetto.dev
 * reads: a process per rank, the first 16 of them, a thread per stream of the executor; microseconds since all ranks were
 * together at the begin of the first step. One file, made anew, in a directory that all ranks share. Ends the tracing.
 * ZERO_E_IO on all ranks where one cannot write; the training may go on. Collective, between steps. */
zero_status zero_engine_write_trace(zero_engine *engine, const char *path);

#ifdef __cplusplus
}
#endif
#endif
