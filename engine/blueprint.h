/* What an engine has planned, for those who price it (tools/plan): the policy and the plan of one rank, as commit would
 * use them. Borrowed from the engine, until its destroy; running the policy is the borrower's right. */
#ifndef ZERO_ENGINE_BLUEPRINT_H
#define ZERO_ENGINE_BLUEPRINT_H

#include "engine/comm/comm.h"
#include "engine/config/config.h"
#include "engine/plan.h"

struct blueprint {
    const struct config *config; /* resolved */
    const struct model *model;
    struct policy *policy; /* opened; nothing was emitted */
    const struct plan *plan;
    const struct optimizer *optimizer;
    const struct optimizer_params *params; /* of the first group */
    struct comm_group *const (*group)[STREAMS]; /* [AXES_BOTH + 1]: by axes and stream; those in use */
    uint32_t ranks, state_count;
    uint32_t param_bits, gradient_bits; /* struct executor_options */
    struct precision precision;
};

/* After zero_engine_plan. */
struct blueprint engine_blueprint(zero_engine *engine);

#endif
