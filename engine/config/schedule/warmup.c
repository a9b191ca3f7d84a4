/* WarmupLR: lr goes up to warmup_max_lr (by default the optimizer's lr), and stays there. */
#include "engine/config/schedule/warmup.h"

static struct lr_setting at(const struct lr_schedule_params *p, uint32_t group, int64_t iteration,
                            struct lr_setting given) {
    return warmup_setting(p, group, iteration, warming(p, iteration) ? warmup_ramp(p, iteration) : 1, given);
}

const struct lr_schedule lr_warmup = {.name = "WarmupLR",
                                      .keys = {{"warmup_min_lr", "0"},
                                               {"warmup_max_lr", ""},
                                               {"warmup_num_steps", "1000"},
                                               {"warmup_type", "\"log\""},
                                               {"last_batch_iteration", "-1"}},
                                      .at = at};
