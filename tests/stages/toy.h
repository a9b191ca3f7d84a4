/* A model for tests of the policy, without a device: drives the policy as the engine does and renders its operations as
 * text. Buffers are symbolic and distinct, so the waits are exactly those that data needs. */
#ifndef ZERO_TESTS_STAGES_TOY_H
#define ZERO_TESTS_STAGES_TOY_H

#include "engine/base/hazard.h"
#include "offload/expand.h"
#include "stages/policy.h"

enum { TOY_REGIONS_MAX = 8, TOY_USES_MAX = 8, TOY_OPERATIONS_MAX = 8192 };

struct toy {
    struct policy policy;
    struct offload *offload; /* NULL: everything is in memory */
    struct region region[TOY_REGIONS_MAX];
    struct use use[TOY_USES_MAX];
    uint16_t refresh[TOY_REGIONS_MAX];
    const char *name[TOY_REGIONS_MAX]; /* of regions */
    bool again[TOY_USES_MAX];          /* the last of what is run again together */
    struct hazards hazards;
    struct hazard_record record[BUFFER_KINDS * TOY_REGIONS_MAX];
    struct operation list[TOY_OPERATIONS_MAX];
    struct operation_list out;
    uint32_t micro;
};

/* `plain` units a, b, c ...: one region and one use each. */
const struct stage *toy_stage(const char *name); /* NULL: there is none */

void toy_plain(struct toy *toy, const struct stage *stage, uint32_t units, uint32_t micro_steps,
               enum accumulation accumulation, uint32_t depth);
/* The model of lists.txt. */
void toy_tied(struct toy *toy, const struct stage *stage, const uint32_t mesh[AXES], uint32_t micro_steps,
              enum accumulation accumulation, uint32_t depth);

/* The waits of the operations from `from` on, with one buffer per kind and region. The functions below call it. */
void toy_waits(struct toy *toy, uint32_t from);

void toy_fill(struct toy *toy);
/* One pass over all uses whose first region's name is not in `skip` ("ac"). */
void toy_pass(struct toy *toy, bool evaluating, const char *skip);
/* Units are run again `segment` at a time, counted from the first; the last unit's segment is not run again. */
void toy_segments(struct toy *toy, uint32_t segment);
/* One training pass with this recomputation, of all uses whose first region's name is not in `skip`. */
void toy_pass_again(struct toy *toy, const char *skip);
void toy_step(struct toy *toy, bool skipped);
void toy_flush(struct toy *toy);

/* "gather a · forward a (gather 1) · ...": waits are stream and point. Waits for the operation's own stream, and waits
 * that an earlier wait of the same stream implies, are part of the operation and are shown, too. */
void toy_render(const struct toy *toy, char *out, uint32_t capacity);
/* Renders the letters that the lists.txt of tests/stages and tests/offload use. */
void toy_letters(const struct toy *toy, char *out, uint32_t capacity);

#endif
