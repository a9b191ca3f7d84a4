/* The schedules of torch.optim.lr_scheduler, by their closed forms: equal to PyTorch's, which multiply from step to step, within
 * rounding. `t` is the number of earlier updates (PyTorch's last_epoch). "given" is the optimizer's own lr. */
#include <math.h>

#include "engine/config/schedule/lr_schedule.h"

static double step_of(int64_t iteration) { return (double)(iteration + 1); }

static double share_of(const struct lr_schedule_params *p, double t) {
    return fmin(t, (double)p->total_iters) / (double)p->total_iters;
}

static struct lr_setting step_at(const struct lr_schedule_params *p, uint32_t group, int64_t iteration,
                                 struct lr_setting given) {
    given.lr *= pow(p->gamma, floor(step_of(iteration) / (double)p->step_size));
    return given;
}

static struct lr_setting multi_step_at(const struct lr_schedule_params *p, uint32_t group, int64_t iteration,
                                       struct lr_setting given) {
    for (uint32_t i = 0; i < p->milestones.count; i++)
        if (p->milestones.value[i] <= step_of(iteration)) given.lr *= p->gamma;
    return given;
}

static struct lr_setting constant_at(const struct lr_schedule_params *p, uint32_t group, int64_t iteration,
                                     struct lr_setting given) {
    if (step_of(iteration) < (double)p->total_iters) given.lr *= p->factor;
    return given;
}

static struct lr_setting linear_at(const struct lr_schedule_params *p, uint32_t group, int64_t iteration,
                                   struct lr_setting given) {
    given.lr *= p->start_factor + (p->end_factor - p->start_factor) * share_of(p, step_of(iteration));
    return given;
}

static struct lr_setting exponential_at(const struct lr_schedule_params *p, uint32_t group, int64_t iteration,
                                        struct lr_setting given) {
    given.lr *= pow(p->gamma, step_of(iteration));
    return given;
}

static struct lr_setting polynomial_at(const struct lr_schedule_params *p, uint32_t group, int64_t iteration,
                                       struct lr_setting given) {
    given.lr *= pow(1 - share_of(p, step_of(iteration)), p->power);
    return given;
}

static double half_cosine(double from, double to, double share) {
    return to + (from - to) / 2 * (1 + cos(M_PI * share));
}

/* Loshchilov and Hutter 2017, "SGDR: Stochastic gradient descent with warm restarts"; here without restarts. */
static struct lr_setting cosine_at(const struct lr_schedule_params *p, uint32_t group, int64_t iteration,
                                   struct lr_setting given) {
    given.lr = half_cosine(given.lr, p->eta_min, step_of(iteration) / (double)p->t_max);
    return given;
}

static struct lr_setting restarts_at(const struct lr_schedule_params *p, uint32_t group, int64_t iteration,
                                     struct lr_setting given) {
    double period = (double)p->t_0, t = step_of(iteration);
    if (p->t_mult == 1) t = fmod(t, period);
    for (; t >= period; period *= (double)p->t_mult) t -= period;
    given.lr = half_cosine(given.lr, p->eta_min, t / period);
    return given;
}

/* Smith 2017, "Cyclical learning rates for training neural networks". */
static struct lr_setting cyclic_at(const struct lr_schedule_params *p, uint32_t group, int64_t iteration,
                                   struct lr_setting given) {
    double up = (double)p->step_size_up, down = p->step_size_down < 0 ? up : (double)p->step_size_down;
    double t = step_of(iteration), cycle = floor(1 + t / (up + down)), x = 1 + t / (up + down) - cycle;
    double ratio = up / (up + down), scale = x <= ratio ? x / ratio : (x - 1) / (ratio - 1);
    if (p->cyclic_mode == LR_TRIANGULAR2) scale /= pow(2, cycle - 1);
    if (p->cyclic_mode == LR_EXP_RANGE) scale *= pow(p->gamma, t);
    double base = lr_number(&p->base_lr, group), most = lr_number(&p->max_lr, group);
    double low = lr_number(&p->base_momentum, group), high = lr_number(&p->max_momentum, group);
    given.lr = base + (most - base) * scale;
    if (p->cycle_momentum) given.beta1 = high - (high - low) * scale;
    return given;
}

static double anneal(const struct lr_schedule_params *p, double from, double to, double share) {
    return p->anneal_strategy == LR_ANNEAL_COS ? half_cosine(from, to, share) : from + (to - from) * share;
}

/* Smith and Topin 2018, "Super-convergence". After its last step it stays, where PyTorch ends with an error. If pct_start * total_steps
 * is 1, it begins at the peak, where PyTorch divides by zero. */
static struct lr_setting one_cycle_at(const struct lr_schedule_params *p, uint32_t group, int64_t iteration,
                                      struct lr_setting given) {
    double last = (double)p->total_steps - 1, t = fmin(step_of(iteration), last);
    double most = lr_number(&p->max_lr, group), first = most / p->div_factor,
           least = first / p->final_div_factor;
    double low = lr_number(&p->base_momentum, group), high = lr_number(&p->max_momentum, group);
    double peak = p->pct_start * (double)p->total_steps - 1;
    const struct {
        double end, lr, momentum; /* the value at the end of each phase */
    } phases[] = {{0, first, high},
                  {peak, most, low},
                  {p->three_phase ? 2 * peak : last, p->three_phase ? first : least, high},
                  {last, least, high}};
    int phase = t <= phases[1].end ? 1 : t <= phases[2].end ? 2 : 3;
    double begin = phases[phase - 1].end, length = phases[phase].end - begin,
           share = length > 0 ? (t - begin) / length : 1;
    given.lr = anneal(p, phases[phase - 1].lr, phases[phase].lr, share);
    if (p->cycle_momentum) given.beta1 = anneal(p, phases[phase - 1].momentum, phases[phase].momentum, share);
    return given;
}

#define THIRD "0.3333333333333333"

const struct lr_schedule
    lr_torch_step = {.name = "StepLR", .keys = {{"gamma", "0.1"}, {"step_size", NULL}}, .at = step_at},
    lr_torch_multi_step = {.name = "MultiStepLR",
                           .keys = {{"gamma", "0.1"}, {"milestones", NULL}},
                           .at = multi_step_at},
    lr_torch_constant = {.name = "ConstantLR",
                         .keys = {{"factor", THIRD}, {"total_iters", "5"}},
                         .at = constant_at},
    lr_torch_linear = {.name = "LinearLR",
                       .keys = {{"total_iters", "5"}, {"start_factor", THIRD}, {"end_factor", "1"}},
                       .at = linear_at},
    lr_torch_exponential = {.name = "ExponentialLR", .keys = {{"gamma", NULL}}, .at = exponential_at},
    lr_torch_polynomial = {.name = "PolynomialLR",
                           .keys = {{"total_iters", "5"}, {"power", "1"}},
                           .at = polynomial_at},
    lr_torch_cosine = {.name = "CosineAnnealingLR",
                       .keys = {{"T_max", NULL}, {"eta_min", "0"}},
                       .at = cosine_at},
    lr_torch_restarts = {.name = "CosineAnnealingWarmRestarts",
                         .keys = {{"eta_min", "0"}, {"T_0", NULL}, {"T_mult", "1"}},
                         .at = restarts_at},
    lr_torch_cyclic = {.name = "CyclicLR",
                       .keys = {{"cycle_momentum", "true"},
                                {"gamma", "1"},
                                {"base_lr", NULL},
                                {"max_lr", NULL},
                                {"step_size_up", "2000"},
                                {"step_size_down", ""},
                                {"mode", "\"triangular\""},
                                {"base_momentum", "0.8"},
                                {"max_momentum", "0.9"}},
                       .at = cyclic_at,
                       .cycles_momentum = true},
    lr_torch_one_cycle = {.name = "OneCycleLR",
                          .keys = {{"cycle_momentum", "true"},
                                   {"max_lr", NULL},
                                   {"base_momentum", "0.85"},
                                   {"max_momentum", "0.95"},
                                   {"total_steps", NULL},
                                   {"pct_start", "0.3"},
                                   {"anneal_strategy", "\"cos\""},
                                   {"div_factor", "25"},
                                   {"final_div_factor", "10000"},
                                   {"three_phase", "false"}},
                          .at = one_cycle_at,
                          .cycles_momentum = true};
