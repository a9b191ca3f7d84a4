/* WarmupCosineLR: the optimizer's lr times a ratio. The ratio goes up from warmup_min_ratio to 1, then down along half
 * a cosine to cos_min_ratio, and stays there. The first update has the ratio 0. */
#include "engine/config/schedule/warmup.h"

static const double pi = 3.14159265358979323846;

static double ratio(const struct lr_schedule_params *p, int64_t iteration) {
    if (iteration < 0) return 0;
    if (warming(p, iteration))
        return p->warmup_min_ratio + warmup_ramp(p, iteration) * (1 - p->warmup_min_ratio);
    double steps = warmup_steps(p), total = fmax(1, (double)p->total_num_steps - steps);
    double progress = fmin(1, ((double)iteration - steps + 1) / total);
    return fmax(0, p->cos_min_ratio + (1 - p->cos_min_ratio) * ((1 + cos(pi * progress)) / 2));
}

static struct lr_setting at(const struct lr_schedule_params *p, uint32_t group, int64_t iteration,
                            struct lr_setting given) {
    given.lr *= ratio(p, iteration);
    return given;
}

const struct lr_schedule lr_warmup_cosine = {.name = "WarmupCosineLR",
                                             .keys = {{"warmup_num_steps", "1000"},
                                                      {"warmup_type", "\"log\""},
                                                      {"total_num_steps", NULL},
                                                      {"warmup_min_ratio", "0"},
                                                      {"cos_min_ratio", "0.0001"},
                                                      {"last_batch_iteration", "-1"}},
                                             .at = at};
