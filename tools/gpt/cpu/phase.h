/* A phase: groups of independent tasks that run in one parallel region, so that a group with few or uneven tasks does
 * not leave threads idle. */
#pragma once

#include <stdatomic.h>

#include "tools/gpt/math/parallel.h"
#include "tools/gpt/model.h"

enum { PHASE_GROUPS_MAX = 8 };

struct phase {
    struct {
        parallel_fn task;
        void *context;
        uint32_t end; /* after the group's last index */
    } group[PHASE_GROUPS_MAX];
    uint32_t groups;
};

/* Groups start in the order in which they are added; add long tasks first. */
void phase_add(struct phase *phase, uint32_t count, parallel_fn task, void *context);
void phase_run(struct phase *phase, uint32_t threads);

/* The gradient of a weight [outer][inner]: left^T right over `rows`, in panels of the weight's rows. */
struct weight_gradient {
    struct gpt *gpt;
    const struct view *view;
    const float *left, *right; /* [rows][outer], rows left_ld apart; [rows][inner] */
    uint64_t left_ld;
    uint32_t rows, outer, inner;
    int add;
    uint16_t *rounded; /* bf16: the rounded right factor, by weight_gradient_round; one task per tile */
};
void weight_gradient_round(void *weight, uint32_t index, uint32_t thread);
uint32_t weight_gradient_tiles(const struct weight_gradient *weight); /* 0: fp32 needs no rounding */
uint32_t weight_gradient_panels(const struct weight_gradient *weight);
void weight_gradient_panel(void *weight, uint32_t index, uint32_t thread);
