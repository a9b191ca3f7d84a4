#include "engine/state/training.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/state/step_settings.h"

static struct loss_scale configured_loss_scale(const struct config *c) {
    if (c->compute_dtype != DTYPE_F16) return (struct loss_scale){.value = 1};
    bool dynamic = c->fp16.loss_scale == 0;
    double first = ldexp(1, (int)c->fp16.initial_scale_power);
    return (struct loss_scale){.value = dynamic ? first : c->fp16.loss_scale,
                               .dynamic = dynamic,
                               .min = (double)c->fp16.min_loss_scale,
                               .window = c->fp16.loss_scale_window,
                               .hysteresis = c->fp16.hysteresis,
                               .consecutive = c->fp16.consecutive_hysteresis,
                               .allowed = c->fp16.hysteresis};
}

static struct optimizer_params configured_params(const struct config_optimizer *c) {
    return (struct optimizer_params){.lr = c->muon_lr > 0 ? c->muon_lr : c->lr,
                                     .beta1 = c->betas[0],
                                     .beta2 = c->betas[1],
                                     .eps = c->eps,
                                     .weight_decay = c->weight_decay,
                                     .momentum = c->momentum,
                                     .dampening = c->dampening,
                                     .lr_decay = c->lr_decay,
                                     .max_coeff = c->max_coeff,
                                     .min_coeff = c->min_coeff,
                                     .nesterov = c->nesterov,
                                     .ns_steps = (uint32_t)c->ns_steps,
                                     .match_rms = c->adjust_lr == CONFIG_LR_MATCH_RMS,
                                     .ns_bf16 = c->ns_dtype == CONFIG_NS_BF16,
                                     .bias_correction = c->bias_correction};
}

static void count_others(struct training *training) {
    const struct param_groups *g = &training->groups;
    if (g->other && g->other->state_count > training->state_count)
        training->state_count = g->other->state_count;
}

static int beginning(const char *name) {
    return (int)utf8_prefix(name, strnlen(name, OPTIMIZER_NAMES_BYTES / 2 - 1));
}

const char *training_optimizer_name(const struct training *training, char text[OPTIMIZER_NAMES_BYTES]) {
    const struct optimizer *other = training->groups.other;
    if (!other) return training->optimizer->name;
    const char *name = training->optimizer->name;
    snprintf(text, OPTIMIZER_NAMES_BYTES, "%.*s+%.*s", beginning(name), name, beginning(other->name),
             other->name);
    return text;
}

const char *training_state_name(const struct training *training, uint32_t k) {
    const struct optimizer *row = training->optimizer, *other = training->groups.other;
    return other && other->state_count > row->state_count ? other->state_names[k] : row->state_names[k];
}

zero_status training_open(struct training *training, const struct config *config, const struct log *log,
                          uint32_t rank, uint32_t size, struct zero_error *error) {
    struct optimizer_params first = configured_params(&config->optimizer);
    *training = (struct training){.config = config, .log = log, .rank = rank, .size = size};
    training_restart_loss_scale(training);
    training->optimizer = optimizer_find(config->optimizer.name);
    if (!training->optimizer)
        return error_set(error, ZERO_E_CONFIG, "optimizer.type: there is no optimizer \"%s\"",
                         config->optimizer.name);
    groups_open(&training->groups, &config->groups, &first);
    training->state_count = optimizer_states_used(training->optimizer, &first);
    count_others(training);
    return settings_open(training, error);
}

void training_restart_loss_scale(struct training *training) {
    training->loss_scale = configured_loss_scale(training->config);
}

void training_restart(struct training *training) {
    training->steps = training->skipped = training->skipped_in_a_row = 0;
    training_restart_loss_scale(training);
    settings_restart(training);
}

zero_status training_set_optimizer(struct training *training, const zero_optimizer *optimizer,
                                   struct zero_error *error) {
    struct user_optimizer *user = &training->user_optimizer;
    TRY(user_optimizer_check(optimizer, training->config->bf16_states, error));
    user_optimizer_set(user, optimizer, &training->optimizer->defaults, training->fault);
    training->optimizer = &user->rows.row;
    training->state_count = optimizer->states;
    count_others(training);
    for (uint32_t g = 0; g < GROUP_MAX; g++) training->groups.params[g].caller = &user->caller;
    return ZERO_OK;
}

/* The gradients were made with this step's loss scale, which changes only after this. */
double training_mean(const struct training *training, float gradient_factor) {
    const struct config *c = training->config;
    double ranks = c->gradient_op == CONFIG_GRADIENT_SUM ? 1 : training->size,
           micro_steps = (double)c->accumulation_steps;
    return 1.0 / (ranks * micro_steps * training->loss_scale.value *
                  (gradient_factor != 0 ? (double)gradient_factor : 1));
}
