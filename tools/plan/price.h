/* What one configuration takes on one machine: bytes by the engine's own plan, traffic and time by the operations of a
 * step. No rank is started and nothing is allocated but the plan's tables. */
#ifndef ZERO_TOOLS_PLAN_PRICE_H
#define ZERO_TOOLS_PLAN_PRICE_H

#include "engine/zero.h"
#include "tools/plan/edit.h"
#include "tools/plan/machine.h"
#include "tools/plan/shapes.h"
#include "tools/plan/timeline.h"

/* What the rows of a table have in common. */
struct scenario {
    struct machine machine;
    struct shapes shapes;
    const char *config;    /* JSON text of a configuration that was read; cells replace its stage and tiers */
    uint32_t ranks, nodes; /* ranks = nodes * ranks on a node */
    uint32_t threads;      /* of a rank that computes on the host */
    uint32_t recompute;    /* blocks together, in rows with recomputation */
    bool recompute_on_cpu; /* struct shapes_recompute */
    bool processes;        /* ranks are processes: on a host their reductions take staging */
};

enum shortage { SHORT_DEVICE, SHORT_CPU, SHORT_NVME, SHORTAGES }; /* as zero_tier */

struct price {
    struct cell cell;
    uint64_t parameters; /* of the model */
    enum dtype compute;
    uint64_t param_bytes, grad_bytes, state_bytes, gathered_bytes, staging_bytes, activation_bytes,
        activation_host_bytes;       /* of a rank; the last: of the activations, in host memory */
    uint64_t tier_bytes[ZERO_TIERS]; /* of a rank, activations included */
    uint64_t short_bytes[SHORTAGES]; /* by how much it does not fit */
    bool fits;
    /* If it fits: */
    struct step_price step;
    enum resource bound; /* what is busy longest */
    double tokens;       /* of a step, all ranks */
    double tokens_per_s;
    double flops_share;   /* of the device's dense peak, recomputation not counted (MFU) */
    double drive_days;    /* that the drives' endurance lasts; NaN: nothing is written, or unknown */
    double cost_per_giga; /* of 1e9 tokens; NaN: no price */
};

/* ZERO_E_CONFIG, ZERO_E_UNSUPPORTED: the configuration cannot be. */
zero_status price_cell(const struct scenario *scenario, const struct cell *cell, struct price *out,
                       struct zero_error *error);

#endif
