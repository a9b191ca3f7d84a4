/* The simulated part of a model: its units, their parameters, and the time of computing. Plain data, borrowed. */
#pragma once

#include "engine/base/error.h"
#include "engine/base/limits.h"
#include "kernels/quantize.h"

struct sim_param { /* in the order of units */
    char name[NAME_BYTES_MAX];
    const char *tied_to;  /* a parameter of an earlier unit, or NULL */
    uint32_t unit, flags; /* ZERO_FROZEN, ZERO_NO_DECAY */
    uint64_t count;
    uint64_t columns;      /* of a matrix; 0: it has one dimension */
    bool other;            /* sim_setup.other updates it */
    enum code_format code; /* struct model_param */
};

struct sim_unit {
    char name[NAME_BYTES_MAX];
    uint64_t flops; /* of one micro-step's forward on one rank; used if sim_setup.work is NULL */
};

struct sim_model {
    struct sim_unit *unit;
    uint32_t units;
    struct sim_param *param;
    uint32_t params;
};

/* Makes `units` equal units with `params` parameters in total, each unit with a matrix and a bias; 2 operations per
 * parameter and token. sim_model_free frees it. */
zero_status sim_model_uniform(uint32_t units, uint64_t params, uint64_t tokens, struct sim_model *out,
                              struct zero_error *error);
void sim_model_free(struct sim_model *model);
