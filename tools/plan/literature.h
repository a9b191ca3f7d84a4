/* The tables of the literature beside what the engine would plan for the same: each with where it stands and, where
 * they differ, why. */
#ifndef ZERO_TOOLS_PLAN_LITERATURE_H
#define ZERO_TOOLS_PLAN_LITERATURE_H

#include <stdint.h>
#include <stdio.h>

#include "engine/base/error.h"
#include "tools/plan/edit.h"

struct literature_row {
    const char *model;
    uint32_t ranks;
    struct cell cell;
    uint32_t micro_steps; /* with more than one, stages 0 and 1 keep a whole gradient: reduced in the last */
    enum {
        LITERATURE_RANK,
        LITERATURE_DEVICE,
        LITERATURE_ALL
    } of;              /* bytes of a rank, those of its device alone, all */
    double bytes;      /* the source's */
    double parameters; /* that it reckons with; ours has the model's true shapes */
    const char *source, *why;
};

const struct literature_row *literature_at(uint32_t index); /* NULL past the last */

/* Parameters, gradients and states, as planned; *out_parameters: of the model. */
zero_status literature_bytes(const struct literature_row *row, double *out_bytes, double *out_parameters,
                             struct zero_error *error);

zero_status literature_print(FILE *out, struct zero_error *error);

#endif
