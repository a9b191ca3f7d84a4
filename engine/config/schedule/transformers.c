/* Schedules of transformers.optimization, by its names: a cosine that ends at a floor, and warm-up, stable rate and decay (Hu et al.
 * 2024, "MiniCPM", section 4). The rate is the optimizer's lr times a ratio. After num_training_steps the
 * cosine stays at its floor; Transformers' rises again. `t` is the number of earlier updates. */
#include <math.h>

#include "engine/config/schedule/lr_schedule.h"

static double step_of(int64_t iteration) { return (double)(iteration + 1); }

static double share(double t, double from, double steps) { return (t - from) / fmax(1, steps); }

static double above(double floor, double ratio) { return fmax(0, ratio * (1 - floor) + floor); }

static struct lr_setting cosine_at(const struct lr_schedule_params *p, uint32_t group, int64_t iteration,
                                   struct lr_setting given) {
    double t = step_of(iteration), warmup = (double)p->num_warmup_steps;
    double length = (double)p->num_training_steps - warmup;
    given.lr *= t < warmup ? share(t, 0, warmup)
                           : above(p->min_lr_rate, 0.5 * (1 + cos(M_PI * fmin(1, share(t, warmup, length)))));
    return given;
}

static double decayed(int type, double share) {
    return type == LR_DECAY_LINEAR ? 1 - share
           : type == LR_DECAY_SQRT ? 1 - sqrt(share)
                                   : 0.5 * (1 + cos(M_PI * share));
}

static struct lr_setting stable_at(const struct lr_schedule_params *p, uint32_t group, int64_t iteration,
                                   struct lr_setting given) {
    double t = step_of(iteration), warmup = (double)p->num_warmup_steps, decay = (double)p->num_decay_steps;
    double stable = p->num_stable_steps >= 0 ? (double)p->num_stable_steps
                                             : (double)p->num_training_steps - warmup - decay;
    double ratio = t < warmup                    ? share(t, 0, warmup)
                   : t < warmup + stable         ? 1
                   : t < warmup + stable + decay ? decayed(p->decay_type, share(t, warmup + stable, decay))
                                                 : 0;
    given.lr *= above(p->min_lr_ratio, ratio);
    return given;
}

const struct lr_schedule lr_cosine_with_min_lr = {.name = "cosine_with_min_lr",
                                                  .keys = {{"num_warmup_steps", "0"},
                                                           {"num_training_steps", NULL},
                                                           {"min_lr", ""},
                                                           {"min_lr_rate", ""}},
                                                  .at = cosine_at},
                         lr_warmup_stable_decay = {.name = "warmup_stable_decay",
                                                   .keys = {{"num_warmup_steps", "0"},
                                                            {"num_decay_steps", NULL},
                                                            {"num_training_steps", ""},
                                                            {"num_stable_steps", ""},
                                                            {"min_lr_ratio", "0"},
                                                            {"decay_type", "\"cosine\""}},
                                                   .at = stable_at};
