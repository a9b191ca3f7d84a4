/* The price of one configuration on one machine: bytes from the engine's own plan, traffic and time from the operations
 * of a step. It starts no rank and allocates nothing but the plan's tables. */
#pragma once

#include "engine/zero.h"
#include "tools/plan/edit.h"
#include "tools/plan/host_work.h"
#include "tools/plan/machine/machine.h"
#include "tools/plan/shapes.h"
#include "tools/plan/space.h"
#include "tools/plan/timeline.h"

/* The settings that the rows of a table have in common. */
struct scenario {
    struct machine machine;
    struct shapes shapes;
    const char *config; /* JSON text of a configuration without errors; cells replace its stage and tiers */
    uint32_t ranks, nodes;     /* ranks = nodes * ranks on a node */
    uint32_t threads;          /* of a rank, if it computes on the host */
    const struct space *space; /* the rows; NULL: space_all, with `recompute` */
    uint32_t recompute;        /* blocks of a segment, in rows with recomputation */
    uint32_t segments;         /* above 0: recompute follows from it and the layers */
    zero_tier checkpoints;     /* struct shapes_recompute */
    bool processes;            /* ranks are processes: on a host their reductions need staging */
    bool bytes_alone;          /* prices have no times */
    bool times_always;         /* prices have times where there is no room, too */
    bool traced;               /* count the bytes of the timeline that `zero train` keeps */
    enum gpt_outputs outputs;  /* struct shapes_recompute */
    /* On a GPU. NULL: that of tools/gpt. */
    const struct work_style *style;
};

enum shortage { SHORT_DEVICE, SHORT_CPU, SHORT_NVME, SHORTAGES }; /* in the order of zero_tier */

struct price {
    struct cell cell;
    uint64_t parameters; /* of the model */
    uint64_t micro_batch;
    enum dtype compute;
    /* of a rank; activation_host_bytes: the activations in host memory */
    uint64_t param_bytes, grad_bytes, state_bytes, gathered_bytes, staging_bytes, activation_bytes,
        activation_host_bytes;
    /* Of the activations, outputs that are kept because there is room, in so many blocks. */
    uint64_t spare_bytes;
    uint32_t kept[GPT_OUTPUT_KINDS];
    double kept_s; /* computing of a step that blocks do not repeat, because they keep parts */
    uint64_t tier_bytes[ZERO_TIERS]; /* of a rank, with activations */
    double left_bytes[SHORTAGES];    /* bytes that are free; below 0: that are missing */
    uint64_t short_bytes[SHORTAGES]; /* bytes that are missing */
    bool fits;
    /* Set only if the configuration fits, or with times_always: */
    struct step_price step;
    enum resource bound; /* the resource that is busy longest */
    double tokens;       /* of a step, all ranks */
    double tokens_per_s;
    double flops_share;   /* of the device's dense peak, without recomputation (MFU) */
    double drive_days;    /* until the drives' endurance is used up; NaN: no writes, or unknown */
    double cost_per_giga; /* per 1e9 tokens; NaN: no price */
};

/* ZERO_E_CONFIG, ZERO_E_UNSUPPORTED: the configuration is not possible. */
zero_status price_cell(const struct scenario *scenario, const struct cell *cell, struct price *out,
                       struct zero_error *error);
