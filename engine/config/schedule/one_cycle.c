/* OneCycle (Smith 2018, "A disciplined approach to neural network hyper-parameters"): lr goes up and down once,
 * between cycle_min_lr and cycle_max_lr, while the momentum (beta1) goes down and up. Then both decay, if
 * decay_step_size is not 0. If the schedule cycles the momentum, it sets beta2 to 0.99, and the first update uses
 * cycle_min_mom, as in DeepSpeed. */
#include <math.h>

#include "engine/config/schedule/lr_schedule.h"

static const double cycled_beta2 = 0.99;

struct cycle {
    double first, second, total; /* steps */
    double stairs[2];            /* of the two halves; 0: smooth */
};

static struct cycle cycle_of(const struct lr_schedule_params *p) {
    int64_t second_stairs =
        p->cycle_second_stair_count < 0 ? p->cycle_first_stair_count : p->cycle_second_stair_count;
    double first = p->cycle_first_step_size,
           second = p->cycle_second_step_size < 0 ? first : p->cycle_second_step_size;
    return (struct cycle){
        first, second, first + second, {(double)p->cycle_first_stair_count, (double)second_stairs}};
}

/* The stair follows from the step's position in the cycle. The smooth factor is not used for it, because rounding may
 * leave this factor just below the stair that it should reach. */
static double stair(const struct cycle *c, double step, double stairs) {
    double at = fmod(step, c->total);
    double position = at <= c->first ? at * stairs / c->first : (c->total - at) * stairs / c->second;
    return floor(position) / stairs;
}

/* 0 at the ends of the cycle, 1 at its peak. */
static double factor(const struct cycle *c, int64_t iteration) {
    double step = (double)(iteration + 1), ratio = c->first / c->total;
    double x = 1 + step / c->total - floor(1 + step / c->total);
    bool rising = x <= ratio;
    double stairs = c->stairs[rising ? 0 : 1];
    if (stairs > 0) return stair(c, step, stairs);
    return rising ? x / ratio : (x - 1) / (ratio - 1);
}

static bool decays(const struct lr_schedule_params *p, double rate) {
    return p->decay_step_size != 0 && rate != 0;
}

static double decay(const struct lr_schedule_params *p, const struct cycle *c, int64_t iteration,
                    double rate) {
    return 1 + rate * (((double)iteration - c->total + 1) / p->decay_step_size);
}

static double lr_at(const struct lr_schedule_params *p, const struct cycle *c, uint32_t group,
                    int64_t iteration) {
    double min = lr_number(&p->cycle_min_lr, group), max = lr_number(&p->cycle_max_lr, group);
    if (iteration < 0) return min;
    if ((double)iteration < c->total) return min + (max - min) * factor(c, iteration);
    return decays(p, p->decay_lr_rate) ? min / decay(p, c, iteration, p->decay_lr_rate) : min;
}

static double momentum_at(const struct lr_schedule_params *p, const struct cycle *c, uint32_t group,
                          int64_t iteration) {
    double min = lr_number(&p->cycle_min_mom, group), max = lr_number(&p->cycle_max_mom, group);
    if (iteration < 0) return min;
    if ((double)iteration < c->total) return max - (max - min) * factor(c, iteration);
    return decays(p, p->decay_mom_rate) ? max * decay(p, c, iteration, p->decay_mom_rate) : max;
}

static struct lr_setting at(const struct lr_schedule_params *p, uint32_t group, int64_t iteration,
                            struct lr_setting given) {
    struct cycle c = cycle_of(p);
    given.lr = lr_at(p, &c, group, iteration);
    if (!p->cycle_momentum) return given;
    given.beta1 = momentum_at(p, &c, group, iteration);
    given.beta2 = cycled_beta2;
    return given;
}

const struct lr_schedule lr_one_cycle = {.name = "OneCycle",
                                         .keys = {{"last_batch_iteration", "-1"},
                                                  {"cycle_min_lr", NULL},
                                                  {"cycle_max_lr", NULL},
                                                  {"decay_lr_rate", "0"},
                                                  {"cycle_first_step_size", "2000"},
                                                  {"cycle_second_step_size", ""},
                                                  {"cycle_first_stair_count", "0"},
                                                  {"cycle_second_stair_count", ""},
                                                  {"decay_step_size", "0"},
                                                  {"cycle_momentum", "true"},
                                                  {"cycle_min_mom", "0.8"},
                                                  {"cycle_max_mom", "0.9"},
                                                  {"decay_mom_rate", "0"}},
                                         .at = at,
                                         .cycles_momentum = true};
