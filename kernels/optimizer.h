/* Optimizers: one table, and one file per optimizer.
 *
 * An update is one pass over memory: unscale, clip, decay, moments, master, average, cast-out. The update of one element is
 * one inline function that uses only IEEE add, multiply, fma, divide and square root (adamw.h and the other headers).
 * So scalar C, AVX2, AVX-512, NEON and CUDA give the same bits. A NaN in a result is always the one NaN 0x7fc00000. The
 * bits do not depend on the number of threads, nor on how a shard is cut into calls.
 *
 * Threads: pure functions; one call uses `threads` OpenMP threads. */
#pragma once

#include "engine/base/numbers/dtype.h"
#include "engine/base/update.h"
#include "kernels/isa.h"

enum {
    OPTIMIZER_STATES_MAX = 2,
    OPTIMIZER_SCALARS_MAX = 16,
    OPTIMIZER_KEYS_MAX = 11,
    OPTIMIZER_CLASSES_MAX = 3
};

struct host_fault;
struct optimizer_params;
struct matrix_step;

/* The functions of an optimizer that the program brings; its rows call those that its scope has. */
struct optimizer_caller {
    struct host_fault *fault; /* once a function has thrown, none is called; NULL: they do not throw */
    void *owner;              /* of prepare, which the engine has: the program knows other params */
    void (*prepare)(void *owner, const struct optimizer_params *params, uint64_t step, float *scalars);
    void *user; /* of the others, which are the program's */
    void (*update)(void *user, float *master, float *state0, float *state1, const float *gradient,
                   float gradient_scale, const float *scalars, uint64_t count);
    void (*before)(void *user, float *master, float *state0, float *state1, const float *gradient,
                   float gradient_scale, const float *scalars, uint64_t count);
    void (*direction)(void *user, float *master, const float *state0, const float *state1,
                      const float *scalars, uint64_t count);
    void (*trust)(void *user, double weights, double direction, float *scalars); /* norms */
    void (*matrix)(void *user, float *direction, uint64_t rows, uint64_t columns, const float *scalars,
                   float *scratch, uint32_t threads);
};

/* The parameters of one parameter group from the configuration. Only lr and the betas change during a run. An
 * optimizer ignores the fields that it does not use. optimizer_prepare rounds the doubles to fp32, once. */
struct optimizer_params {
    double lr, beta1, beta2, eps, weight_decay, momentum, dampening, lr_decay;
    bool nesterov, bias_correction;
    double max_coeff, min_coeff;           /* of Lamb: bounds of a tensor's ratio of norms */
    uint32_t ns_steps;                     /* of Muon, as the next two: steps of the iteration */
    bool match_rms, ns_bf16;               /* adjust_lr_fn "match_rms_adamw"; ns_dtype "bf16" */
    bool amsgrad;                          /* no optimizer implements it: the configuration refuses it */
    const struct optimizer_caller *caller; /* for the row of optimizer_of_caller */
};

/* The scalars of one group for one step: bias corrections, running powers, lr. They are computed once per step in
 * double and rounded to fp32. Opaque to callers: each kernel reads the entries by its own enum. */
struct optimizer_scalars {
    float value[OPTIMIZER_SCALARS_MAX];
    const struct optimizer_caller *caller;
};

struct optimizer_args {
    uint64_t count; /* elements; arrays need no alignment beyond that of an element */
    float *master;  /* fp32 weights, updated; NULL: out and master_low hold the weights (state_format.h) */
    uint16_t *master_low;
    /* The moments, updated, in the order of the table's state_names. They must be zero at first. */
    void *state[OPTIMIZER_STATES_MAX];
    enum dtype state_dtype; /* fp32; or bf16, rounded stochastically */
    /* For this rounding: the key of the step and array, and the index of the first element. */
    uint64_t rounding_key, first;
    /* sums over ranks and micro-steps; NULL: the row reads none, and leaves the states */
    const void *gradient;
    enum dtype gradient_dtype; /* fp32, bf16 or fp16; the update widens it */
    float gradient_scale;      /* 1 / (ranks * micro-steps * loss scale) times the clip factor */
    /* The weights cast to out_dtype. NULL: the program computes with the master. */
    void *out;
    enum dtype out_dtype;
    /* The averaged weights, fp32, which move by this share towards the updated masters (average.h); or NULL. */
    float *average;
    float average_share;
    uint32_t threads; /* at least 1; 1 enters no OpenMP region; small calls use fewer threads */
    const struct optimizer_scalars *scalars;
};

/* The loop of an optimizer. All arrays are fp32 and do not overlap. States that the optimizer does not have may be
 * NULL. */
typedef void optimizer_loop(float *__restrict__ master, float *__restrict__ state0,
                            float *__restrict__ state1, const float *__restrict__ gradient,
                            float gradient_scale, const struct optimizer_scalars *scalars, uint64_t count);

/* A key below optimizer.params of the configuration, and its default as JSON. */
struct optimizer_key {
    const char *name, *fallback;
};

/* What an update of each scope (engine/base/update.h) needs at once. ELEMENT: an element. MATRIX: a whole parameter of two dimensions;
 * its update has three parts.
 *   1. `before`, on elements: updates the states, and makes the direction from states and gradient.
 *   2. `matrix`, on a whole matrix of directions.
 *   3. `update`, on elements: moves the weights along the direction, which takes the gradient's place.
 * TENSOR: two norms of a whole parameter (tensor_norms.h); its update has three parts, and no direction is stored.
 *   1. `before`, on elements: updates the states, and leaves the weights.
 *   2. `direction`, on elements: makes the direction from weights and states. The norms are those of weights and directions.
 *   3. `trust` puts what the norms say into the scalars; `update`, on elements, makes the direction again and moves the weights. */

/* Sums of squares over a tensor, or over a part of it. */
struct tensor_norms {
    double weights, direction;
};

struct optimizer {
    const char *name;  /* in checkpoints: "adamw" */
    const char *title; /* in the configuration, as in DeepSpeed and PyTorch: "AdamW" */
    const char *classes[OPTIMIZER_CLASSES_MAX]; /* DeepSpeed's classes: other names in the configuration */
    /* The keys that it has, in the order of keys.def. The defaults are DeepSpeed's, of SGD PyTorch's. */
    struct optimizer_key keys[OPTIMIZER_KEYS_MAX];
    const char *torch_weight_decay; /* the default of weight_decay with torch_adam; NULL: the same */
    /* DeepSpeed's "Adam" is this optimizer, unless params.adam_w_mode is false; else NULL. */
    const struct optimizer *decoupled;
    uint32_t state_count;
    const char *state_names[OPTIMIZER_STATES_MAX]; /* "exp_avg", "exp_avg_sq": names in checkpoints */
    struct optimizer_params defaults;              /* for programs without a configuration */

    /* Computes the scalars of step `step` (the first step is 1). It has no state. Call it through optimizer_prepare. */
    void (*prepare)(const struct optimizer_params *params, uint64_t step,
                    struct optimizer_scalars *out_scalars);

    /* By instruction set; NULL: not built. optimizer_update takes the best one of the CPU. */
    optimizer_loop *update[KERNEL_ISAS];

    enum optimizer_scope scope;
    /* Of scopes TENSOR and MATRIX, else NULL: a row with the states. That of a matrix writes the direction in the master's place. */
    const struct optimizer *before;
    /* Of scope TENSOR, else NULL. direction: a row with the states, which writes the direction in the master's place, and reads no
     * gradient; nor does `update`. trust: changes the scalars of one tensor; call it through optimizer_trust. */
    const struct optimizer *direction;
    void (*trust)(const struct tensor_norms *norms, struct optimizer_scalars *scalars);
    /* Of scope MATRIX, else NULL. matrix: changes a direction in place; its bits do not depend on the number of threads.
     * matrix_scratch: the floats that this needs. */
    void (*matrix)(float *direction, uint64_t rows, uint64_t columns, const struct optimizer_scalars *scalars,
                   float *scratch, uint32_t threads);
    uint64_t (*matrix_scratch)(uint64_t rows, uint64_t columns);
    /* For a device: the steps of `matrix` (matrix_step.h), one after another from 0. False: there are no more. NULL: only the host has
     * `matrix`. */
    bool (*matrix_step)(uint32_t at, float *direction, uint64_t rows, uint64_t columns,
                        const struct optimizer_scalars *scalars, float *scratch, struct matrix_step *out);

    /* The number of states that these parameters use; NULL: all. SGD without momentum uses none. */
    uint32_t (*states_used)(const struct optimizer_params *params);
};

#define OPTIMIZER(name) extern const struct optimizer optimizer_##name;
#include "kernels/optimizers.def"
extern const struct optimizer *const optimizers[]; /* ends with NULL */

/* Finds an optimizer by name, upper or lower case; NULL: there is none. */
const struct optimizer *optimizer_find(const char *name);

/* The row of an optimizer that the program brings, and those of its parts on elements. */
struct optimizer_rows {
    struct optimizer row, before, direction;
};

/* Makes the functions of rows->row, which has all else already (of scope MATRIX matrix_scratch, too): they call params->caller, on all
 * instruction sets. The row points to the others, which must not move. */
void optimizer_of_caller(struct optimizer_rows *rows);

/* The number of states to allocate, from the first of state_names on; the others may be NULL in optimizer_args. */
uint32_t optimizer_states_used(const struct optimizer *optimizer, const struct optimizer_params *params);

/* Calls optimizer->prepare in the kernels' floating-point environment, so that the program's rounding mode does not
 * change the scalars. */
void optimizer_prepare(const struct optimizer *optimizer, const struct optimizer_params *params,
                       uint64_t step, struct optimizer_scalars *out_scalars);

/* Calls optimizer->trust in the kernels' floating-point environment. */
void optimizer_trust(const struct optimizer *optimizer, const struct tensor_norms *norms,
                     struct optimizer_scalars *scalars);

/* Updates args->count elements in one pass. Sets and restores the floating-point environment (round to nearest, no flush to zero). */
void optimizer_update(const struct optimizer *optimizer, const struct optimizer_args *args);
void optimizer_update_isa(const struct optimizer *optimizer, enum kernel_isa isa,
                          const struct optimizer_args *args);
