/* WarmupDecayLR: lr goes up to warmup_max_lr, then linearly down to warmup_min_lr at total_num_steps. */
#include "engine/config/schedule/warmup.h"

static double gamma_of(const struct lr_schedule_params *p, int64_t iteration) {
    if (warming(p, iteration)) return warmup_ramp(p, iteration);
    double total = (double)p->total_num_steps;
    return fmax(0, (total - (double)iteration) / fmax(1, total - warmup_steps(p)));
}

static struct lr_setting at(const struct lr_schedule_params *p, uint32_t group, int64_t iteration,
                            struct lr_setting given) {
    return warmup_setting(p, group, iteration, gamma_of(p, iteration), given);
}

const struct lr_schedule lr_warmup_decay = {.name = "WarmupDecayLR",
                                            .keys = {{"warmup_min_lr", "0"},
                                                     {"warmup_max_lr", "0.001"},
                                                     {"warmup_num_steps", "1000"},
                                                     {"warmup_type", "\"log\""},
                                                     {"total_num_steps", NULL},
                                                     {"last_batch_iteration", "-1"}},
                                            .at = at};
