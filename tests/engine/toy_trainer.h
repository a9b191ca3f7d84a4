/* Trains the toy model through zero.h on ranks that are threads; and serially, as an oracle without stages, shards or
 * streams.
 *
 * On a device whose memory the host cannot touch, the trainer computes on copies. */
#ifndef ZERO_TESTS_ENGINE_TOY_TRAINER_H
#define ZERO_TESTS_ENGINE_TOY_TRAINER_H

#include "engine/zero.h"
#include "tests/engine/toy_model.h"

enum { TOY_STEPS_MAX = 200 };

enum toy_memory {
    TOY_SLOTS,      /* the engine's */
    TOY_SPANS,      /* its own, lent in two pieces */
    TOY_GIVEN,      /* gradients are given by zero_param_give_grad, */
    TOY_UNIT_GIVEN, /* or by zero_unit_give_grads */
    TOY_ADDS,       /* the engine's, to which the host always adds */
    TOY_SPANS_ADD,  /* the same in its own memory, from which the fp32 weights are filled */
    TOY_MEMORIES
};

struct optimizer_params;
typedef void (*toy_update_fn)(uint32_t param, uint32_t applied, struct optimizer_params *params);

struct toy_setup {
    uint32_t ranks, stage, micro_steps, depth, steps, threshold;
    /* Ranks of a shard group, as `tiers` or `extra` say; 0: all. For the oracle alone. */
    uint32_t shard_ranks;
    /* scales gradients before they are sent, as `extra` says; 0: no scaling. For the oracle, as `sum`. */
    float factor;
    int sum;          /* over ranks, not the mean */
    const char *mode; /* "last", "every", "auto" */
    int vertical; /* each use has all micro-batches of a step. The head is not tied then; units are not skipped */
    int ties;     /* it is, also in vertical order */
    int untied;            /* the same model, horizontally */
    int updates;           /* in the backward; needs clip 0, or a shadow */
    double waits;          /* the share of them that wait for the next forward */
    int shadow;            /* the state on a drive has one, and writes over an earlier one */
    const char *optimizer; /* a JSON object, or NULL: AdamW with weight decay */
    int muon;              /* Muon updates matrices, and that AdamW the rest; `optimizer` is NULL */
    int lamb; /* Lamb updates all tensors; 2: matrices, and that AdamW the rest; 1 with `muon`: the rest */
    const char *groups;  /* param_groups, each after a comma; or NULL */
    const char *offload; /* "none" or "cpu" */
    const char *tiers;   /* replaces `offload`: keys of zero_optimization for tiers; or NULL */
    zero_dtype compute;
    const char *communication;          /* "fp32", "bf16", "fp16"; NULL: the type of compute */
    uint32_t scale_power, scale_window; /* of fp16 */
    const char *comm;                   /* more keys of comm, each after a comma; or NULL */
    const char *extra;                  /* more keys of the configuration, each after a comma; or NULL */
    double timeout_s;
    const char *config;  /* the whole configuration, instead of the fields above; or NULL */
    uint64_t nvme_bytes; /* reserved on the NVMe tier */
    double clip;
    int nan_step;       /* in this step a gradient of the last rank is NaN; -1: never */
    uint32_t nan_every; /* and in every nan_every-th step; 0: none */
    int evaluate;       /* an evaluation pass after every micro-step and every step */
    int free_order;     /* passes are in any order: forwards run again in between, */
    uint32_t bound; /* with so many units in use at once (a forward inside a backward: 2); 0: any number */
    int twice;      /* and with this, the whole backward */
    /* Bit u: unit u, a block, is held, and computed in the uses of others. Without recomputation. */
    uint32_t hold;
    int interrupt;    /* an evaluation between the forward and the backward of every training pass */
    uint64_t cancels; /* seed of passes that are begun, cancelled and done again; 0: none */
    int flush;        /* before counters are read: no transfer is under way then */
    int memory;       /* where the host keeps parameters and gradients: enum toy_memory */
    /* Blocks whose activations are dropped and computed again together: 1, 2 or 3; 0: none. */
    uint32_t recompute;  /* in free order, inside the backward of the segment's last block */
    int skip_unit;       /* this unit is left out of every step's first micro-step; -1: none */
    uint32_t skip_micro; /* or of this one; not for the oracle */
    /* Called before a parameter is declared; or NULL. */
    zero_status (*declare)(zero_engine *engine, uint32_t param, zero_param *out);
    void (*begin)(zero_engine *engine); /* before commit; or NULL */
    /* For the oracle: changes a parameter's settings as the configuration or these functions do, for the update after
     * `applied` others; or NULL. */
    toy_update_fn update;
    uint32_t frozen;         /* bit i: parameter i is frozen, too */
    uint32_t kept;           /* bit i: parameter i stays fp32; the bit of its owner counts */
    int kept_by_pattern;     /* not by its flag: by `extra` */
    const char *device;      /* the device whose memory the engine uses: "sim" or "cuda"; NULL: the host */
    uint64_t seed;           /* of sim */
    const char *device_comm; /* replaces `comm` when the same test runs on a device; or NULL */
    /* Called on every rank before a step, when the gradients are complete; or NULL. */
    zero_status (*before)(zero_engine *engine, uint32_t step, void *user);
    /* Called on every rank between steps, when so many are done: from 0, after the fill, to `steps`; or NULL. */
    zero_status (*between)(zero_engine *engine, uint32_t steps, void *user);
    /* Called on every rank after the training; or NULL. */
    void (*after)(zero_engine *engine, void *user);
    void *user;
};

struct toy_result {
    zero_status status;
    char error[512], hash[33];
    double loss[TOY_STEPS_MAX], norm[TOY_STEPS_MAX], scale[TOY_STEPS_MAX];
    uint64_t skipped, repeated;
    float weights[TOY_PARAMS][TOY_VOCAB * TOY_WIDTH];
    uint32_t threads;
    zero_plan plan;
    uint64_t planned[ZERO_TIERS], measured[ZERO_TIERS]; /* bytes: the sums of rank 0's rows */
    zero_counters first, last; /* after fill and the first step, and at the end, of rank 0 */
};

/* Where state and parameters may be, for toy_setup.tiers, and the first stage at which that is possible. */
enum { TOY_TIERS = 4 };
extern const struct toy_tiers {
    const char *name, *json;
    uint32_t stage_min;
} toy_tiers[TOY_TIERS];

struct toy_setup toy_setup_default(void);
void toy_train(const struct toy_setup *setup, struct toy_result *out);
void toy_oracle(const struct toy_setup *setup, struct toy_result *out); /* status, loss, weights */
int toy_config(const struct toy_setup *setup, char *out, size_t capacity);

/* The name of the parameter that this one is tied to; NULL: none. */
const char *toy_tied_to(const struct toy_setup *setup, uint32_t param);

/* In a run that computes in `run`. */
zero_dtype toy_dtype(const struct toy_setup *setup, uint32_t param, zero_dtype run);

/* One rank's part on an engine that the caller made; collective. */
zero_status toy_train_rank(zero_engine *engine, const struct toy_setup *setup, struct toy_result *out);

#endif
