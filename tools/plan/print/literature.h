/* Tables of the literature beside the engine's plan for the same case: each row names its place in the source and, if
 * the numbers differ, the reason. */
#pragma once

#include <stdio.h>

#include "engine/base/error.h"
#include "tools/plan/edit.h"

struct literature_row {
    const char *model;
    uint32_t ranks;
    struct cell cell;
    /* with more than one, stages 0 and 1 keep a whole gradient until the last one reduces it */
    uint32_t micro_steps;
    enum {
        LITERATURE_RANK,
        LITERATURE_DEVICE,
        LITERATURE_ALL
    } of;              /* bytes of a rank; only those of its device; bytes of all ranks */
    double bytes;      /* the bytes that the source gives */
    double parameters; /* the source's number of parameters; ours follows the model's true shapes */
    const char *source, *why;
};

const struct literature_row *literature_at(uint32_t index); /* NULL past the last */

/* The bytes of parameters, gradients and states in the engine's plan; *out_parameters: the model's parameters. */
zero_status literature_bytes(const struct literature_row *row, double *out_bytes, double *out_parameters,
                             struct zero_error *error);

zero_status literature_print(FILE *out, struct zero_error *error);
