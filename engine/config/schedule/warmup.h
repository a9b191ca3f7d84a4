/* The ramp that the warm-up schedules share: from 0 to 1 over warmup_num_steps, but over at least 2 steps. */
#pragma once

#include <math.h>

#include "engine/config/schedule/lr_schedule.h"

static inline double warmup_steps(const struct lr_schedule_params *p) {
    return p->warmup_num_steps < 2 ? 2 : (double)p->warmup_num_steps;
}

static inline bool warming(const struct lr_schedule_params *p, int64_t iteration) {
    return (double)iteration < warmup_steps(p);
}

static inline double warmup_ramp(const struct lr_schedule_params *p, int64_t iteration) {
    double steps = warmup_steps(p);
    return p->warmup_type == LR_WARMUP_LINEAR ? (double)iteration / steps
                                              : 1.0 / log(steps) * log((double)(iteration + 1));
}

/* Interpolates from min (`gamma` 0) to max (`gamma` 1); min before DeepSpeed's first step(). */
static inline struct lr_setting warmup_setting(const struct lr_schedule_params *p, uint32_t group,
                                               int64_t iteration, double gamma, struct lr_setting given) {
    double min = lr_number(&p->warmup_min_lr, group);
    double max = p->warmup_max_lr.count ? lr_number(&p->warmup_max_lr, group) : given.lr;
    given.lr = iteration < 0 ? min : min + (max - min) * gamma;
    return given;
}
