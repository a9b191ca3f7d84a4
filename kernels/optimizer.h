/* Optimizers: one table, one file each. An update is one pass over memory: unscale, clip, decay, moments,
 * master, cast-out. The update of one element is one inline function made of IEEE add, multiply, fma, divide
 * and square root only (adamw.h and its siblings), so that scalar C, AVX2, AVX-512 and CUDA give the same
 * bits. NaNs that come out are the one NaN 0x7fc00000. Threads: pure functions; `threads` of OpenMP inside
 * one call. Bits do not depend on the number of threads, nor on how a shard is cut into calls. */
#ifndef ZERO_KERNELS_OPTIMIZER_H
#define ZERO_KERNELS_OPTIMIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/dtype.h"
#include "kernels/isa.h"

enum { OPTIMIZER_STATES_MAX = 2, OPTIMIZER_SCALARS_MAX = 16 };

struct optimizer_params;

/* A host program's own: what its row calls. */
struct optimizer_caller {
    void (*prepare)(void *user, const struct optimizer_params *params, uint64_t step, float *scalars);
    void (*update)(void *user, float *master, float *state0, float *state1, const float *gradient,
                   float gradient_scale, const float *scalars, uint64_t count);
    void *user;
};

/* What the configuration says, per parameter group; constant over a run except lr. Fields an optimizer has no
 * use for are ignored. Doubles: rounded to fp32 once, in optimizer_prepare. */
struct optimizer_params {
    double lr, beta1, beta2, eps, weight_decay, momentum, dampening, lr_decay;
    bool nesterov, bias_correction;
    bool amsgrad;                          /* no optimizer here has it: the configuration refuses it */
    const struct optimizer_caller *caller; /* of optimizer_of_caller's row */
};

/* One step's scalars of one group, made once per step in double precision and rounded to fp32: bias
 * corrections, running powers, lr. Opaque to callers: kernels read the slots by their own enum. */
struct optimizer_scalars {
    float value[OPTIMIZER_SCALARS_MAX];
    const struct optimizer_caller *caller;
};

struct optimizer_args {
    uint64_t count; /* elements; nothing need be aligned beyond its element */
    float *master;  /* fp32 weights, updated; NULL: out and master_low are the weights (state_format.h) */
    uint16_t *master_low;
    void *state[OPTIMIZER_STATES_MAX]; /* moments in the order of the table's state_names, updated; zero at
                                          first */
    enum dtype state_dtype;            /* fp32, or bf16, rounded stochastically: */
    uint64_t rounding_key, first;      /* from a key of step and array, and the first element's index */
    const void *gradient;              /* sums over ranks and micro-steps */
    enum dtype gradient_dtype;         /* fp32, bf16 or fp16: widened inside */
    float gradient_scale;              /* 1 / (ranks * micro-steps * loss scale) times the clip factor */
    void *out;                         /* the weights cast to out_dtype, or NULL: compute reads the master */
    enum dtype out_dtype;
    const struct optimizer_scalars *scalars;
    uint32_t threads; /* at least 1; 1 enters no OpenMP region; small calls use fewer */
};

/* The pure loop: all fp32, no two arrays overlap, states that the optimizer has not may be NULL. */
typedef void optimizer_loop(float *__restrict__ master, float *__restrict__ state0,
                            float *__restrict__ state1, const float *__restrict__ gradient,
                            float gradient_scale, const struct optimizer_scalars *scalars, uint64_t count);

struct optimizer {
    const char *name;  /* "adamw" */
    const char *title; /* DeepSpeed's and PyTorch's name: "AdamW" */
    uint32_t state_count;
    const char *state_names[OPTIMIZER_STATES_MAX]; /* "exp_avg", "exp_avg_sq": names in checkpoints */
    struct optimizer_params defaults;              /* DeepSpeed's, else PyTorch's */

    /* Scalars of step `step` (1 for the first). Local, no state. Call it through optimizer_prepare. */
    void (*prepare)(const struct optimizer_params *params, uint64_t step,
                    struct optimizer_scalars *out_scalars);

    /* By instruction set, NULL where not built; optimizer_update picks the best the CPU has. */
    optimizer_loop *update[KERNEL_ISAS];

    /* How many of the states these parameters use; NULL: all. SGD without momentum uses none. */
    uint32_t (*states_used)(const struct optimizer_params *params);
};

extern const struct optimizer *const optimizers[]; /* ends with NULL */

/* By name, upper or lower case; NULL when there is none. */
const struct optimizer *optimizer_find(const char *name);

/* A row that calls params->caller, for all instruction sets. Borrows the names. */
struct optimizer optimizer_of_caller(const char *name, uint32_t state_count, const char *const *state_names,
                                     const struct optimizer_params *defaults);

/* States to allocate: the first so many of state_names; the others may be NULL in optimizer_args. */
uint32_t optimizer_states_used(const struct optimizer *optimizer, const struct optimizer_params *params);

/* optimizer->prepare in the kernels' floating-point environment: the host's rounding mode does not reach the
 * scalars. */
void optimizer_prepare(const struct optimizer *optimizer, const struct optimizer_params *params,
                       uint64_t step, struct optimizer_scalars *out_scalars);

/* One pass over args->count elements. Sets and restores MXCSR (round to nearest, no flush to zero). */
void optimizer_update(const struct optimizer *optimizer, const struct optimizer_args *args);
void optimizer_update_isa(const struct optimizer *optimizer, enum kernel_isa isa,
                          const struct optimizer_args *args);

#endif
