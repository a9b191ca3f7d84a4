/* Resolves values that need more than one key or the number of ranks: "auto", an optimizer's defaults, conflicts. It reads only
 * written values, never values that an earlier call derived. Therefore it may run again with another number of ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/numbers/dtype.h"
#include "engine/config/key.h"
#include "engine/config/resolve/resolve.h"
#include "engine/config/value.h"
#include "kernels/optimizer.h"
#include "kernels/quantize.h"
#include "offload/tier.h"
#include "stages/stage.h"

/* ---- stage ---- */

/* To reduce only in the last micro-step, a rank must accumulate full gradients. Stages that shard gradients have no
 * room for them. */
static zero_status resolve_accumulation(struct config *config, struct zero_error *error) {
    static const char path[] = "gradient_accumulation_mode";
    char text[16];
    if (config_written(config, path)) return ZERO_OK;
    config->accumulation_mode = (int)stage_find((uint32_t)config->stage, RESHARD_ALL)->accumulation;
    snprintf(text, sizeof text, "\"%s\"", accumulations[config->accumulation_mode].name);
    return config_derived(config, path, text, error);
}

#define CHECKPOINTING "activation_checkpointing"

static zero_status resolve_persistence(struct config *config, struct zero_error *error) {
    static const char path[] = "zero_optimization.stage3_param_persistence_threshold";
    if (!config_automatic(config, path)) return ZERO_OK;
    config->persistence_threshold = config->model.given ? 10 * config->model.width : 100000;
    return config_derived_int(config, path, config->persistence_threshold, error);
}

#define OPTIMIZER_PARAMS "optimizer.params."
#define WEIGHTS "zero_optimization.zero_quantized_weights"

bool config_codes_weights(const struct config *config) {
    bool codes = config->quantized_weights != CODE_NONE;
    for (uint32_t g = 0; g < config->groups.count; g++)
        codes |= config->groups.item[g].weight_code > CODE_NONE;
    return codes;
}

/* The key, or the first group, that asks for codes. */
static zero_status refuse_codes(const struct config *config, struct zero_error *error) {
    char path[64] = WEIGHTS;
    for (uint32_t g = config->groups.count; g-- > 0 && !config->quantized_weights;)
        if (config->groups.item[g].weight_code > CODE_NONE)
            snprintf(path, sizeof path, "param_groups[%u].zero_quantized_weights", g);
    return error_set(error, ZERO_E_CONFIG,
                     "%s: at stage %llu the weights that are gathered are the ones that train: set "
                     "zero_optimization.stage to %u, or remove it",
                     path, (unsigned long long)config->stage, stage_first(stage_shards_params));
}

/* true and "int8" are one setting, so they have one text where runs and ranks are compared. */
static zero_status resolve_weight_code(struct config *config, struct zero_error *error) {
    config->weight_code = config_weight_code(config->quantized_weights);
    if (config->quantized_weights != CODE_INT8) return ZERO_OK;
    return config_entry_set(config, config_key_find(WEIGHTS), config_entry(config, WEIGHTS)->source, "true",
                            error);
}

/* Quantized messages need `ordered` reductions for gradients, and sharded parameters (stage 3) for weights. */
static zero_status resolve_quantized(struct config *config, struct zero_error *error) {
    uint64_t bits = config->comm.quantized_gradient_bits;
    if (config_codes_weights(config) && !config_shards_params(config)) return refuse_codes(config, error);
    /* The padding shares blocks of codes with weights, and its gradients are zero. */
    if (config_codes_weights(config) && config_written(config, OPTIMIZER_PARAMS "eps") &&
        config->optimizer.eps == 0)
        return error_set(error, ZERO_E_CONFIG,
                         OPTIMIZER_PARAMS "eps: with zero_quantized_weights an update divides by it where a "
                                          "gradient is zero: set it above 0");
    if (bits != 4 && bits != 8)
        return error_set(error, ZERO_E_CONFIG,
                         "comm.quantized_gradient_bits: codes have 4 or 8 bits: set it to one");
    if (config->quantized_gradients && config->comm.reduction == CONFIG_REDUCTION_NATIVE)
        return error_set(error, ZERO_E_CONFIG,
                         "zero_optimization.zero_quantized_gradients: native reductions add elements: set "
                         "comm.reduction to \"ordered\", or remove it");
    return resolve_weight_code(config, error);
}

/* The limits for gathers ahead of their use. */
static zero_status resolve_gathers(struct config *config, struct zero_error *error) {
    static const char live[] = "zero_optimization.stage3_max_live_parameters",
                      ahead[] = "zero_optimization.stage3_prefetch_bucket_size";
    config->terms.live_max = config_written(config, live) ? config->live_parameters : UINT64_MAX;
    config->terms.ahead_max = config_written(config, ahead) ? config->prefetch_bucket : UINT64_MAX;
    if (!config_written(config, "comm.backward_prefetch_depth"))
        config->terms.backward_depth = config->terms.depth;
    return config_derived_int(config, "comm.backward_prefetch_depth", config->terms.backward_depth, error);
}

/* ---- element types ---- */

const struct config_type_key config_type_keys[CONFIG_TYPE_KEYS] = {
    {"bf16", "bf16.enabled", DTYPE_BF16},
    {"bfloat16", "bfloat16.enabled", DTYPE_BF16},
    {"fp16", "fp16.enabled", DTYPE_F16}};

static bool *enabled(struct config *config, const struct config_type_key *key) {
    return (bool *)((char *)config + config_key_find(key->path)->offset);
}

/* "auto" is true if the model's config.json says that its weights have this type, and no type of compute is set to true;
 * else "auto" is false. */
static zero_status fill_types(struct config *config, struct zero_error *error) {
    const struct config_type_key *key = config_type_keys, *end = key + CONFIG_TYPE_KEYS;
    const char *type = config_entry(config, "model.dtype")->text;
    if (!type) type = config_entry(config, "model.torch_dtype")->text;
    for (; key < end; key++)
        if (config_written(config, key->path) && *enabled(config, key)) return ZERO_OK; /* the user chose */
    for (key = config_type_keys; key < end && type; key++) {
        char own[16]; /* in quotes, as the model's */
        snprintf(own, sizeof own, "\"%s\"", dtype_rows[key->dtype].torch);
        if (!config_automatic(config, key->path) || strcmp(type, own) != 0) continue;
        *enabled(config, key) = true;
        TRY(config_derived(config, key->path, "true", error));
    }
    return ZERO_OK;
}

/* PyTorch's autocast computes in the narrow type and keeps fp32 weights, as bf16.enabled and fp16.enabled do. */
static zero_status take_autocast(struct config *config, struct zero_error *error) {
    bool half = config->autocast_dtype % 2;
    if (!config->autocast) return ZERO_OK;
    *(half ? &config->fp16.enabled : &config->bf16) = true;
    return config_derived(config, half ? "fp16.enabled" : "bf16.enabled", "true", error);
}

static zero_status check_params(const struct config *config, struct zero_error *error) {
    static const char path[] = "data_types.param_dtype";
    const char *compute = dtype_name((enum dtype)config->compute_dtype);
    const char *text = config_entry(config, path)->text; /* in quotes */
    if (!config_written(config, path) || !strncasecmp(text + 1, compute, strlen(compute))) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     "%s: %s contradicts the type of compute, %s, which parameters have: remove it, or "
                     "change bf16.enabled or fp16.enabled",
                     path, text, compute);
}

static zero_status resolve_compute(struct config *config, struct zero_error *error) {
    TRY(fill_types(config, error));
    TRY(take_autocast(config, error));
    if (config->bfloat16 && config_written(config, "bf16.enabled") && !config->bf16)
        return error_set(error, ZERO_E_CONFIG,
                         "bfloat16.enabled: true contradicts bf16.enabled: remove bfloat16");
    bool bf16 = config->bf16 || config->bfloat16;
    if (bf16 && config->fp16.enabled)
        return error_set(
            error, ZERO_E_CONFIG,
            "fp16.enabled: bf16 is enabled too, and compute has one type: set one of them to false");
    if (config->bf16_states && !bf16)
        return error_set(error, ZERO_E_CONFIG,
                         "bf16.bf16_optimizer_states: states are in bf16 only where compute is: set "
                         "bf16.enabled, or remove it");
    config->compute_dtype = bf16 ? DTYPE_BF16 : config->fp16.enabled ? DTYPE_F16 : DTYPE_F32;
    return check_params(config, error);
}

/* Both need to know which backward is the last one of a step. */
static zero_status check_by_program(struct config *c, struct zero_error *error) {
    bool vertical = c->micro_order == CONFIG_VERTICAL;
    if (!c->terms.by_program || (!vertical && !c->terms.update_in_backward)) return ZERO_OK;
    return error_set(
        error, ZERO_E_CONFIG,
        "gradient_accumulation_by_program: the last micro-step of a step is not known before the "
        "step, and %s needs to know it: remove one of them",
        vertical ? "zero_optimization.micro_order \"vertical\"" : "zero_optimization.update_in_backward");
}

/* A forward's part of a pass with recomputation. Of updates that take as long as a pass (or less, but longer than its backward), this
 * share has room under the forward, and the others under the backward, however fast the machine is. */
#define WAITING_SHARE 0.25

/* An update in the backward knows neither the norm of all gradients nor whether the step will be skipped. A shadow keeps the values
 * before the update. */
static zero_status check_updates(struct config *c, struct zero_error *error) {
    static const char path[] = "zero_optimization.update_in_backward",
                      share[] = "zero_optimization.update_in_forward";
    bool window = c->terms.update_in_backward && !c->nvme_shadow;
    c->chooses_waiting = !config_written(c, share);
    if (c->chooses_waiting)
        c->terms.waiting_share = window && c->optimizer_tier != TIER_DEVICE ? WAITING_SHARE : 0;
    if (c->terms.waiting_share > 0 && !window)
        return error_set(error, ZERO_E_CONFIG,
                         "zero_optimization.update_in_forward: updates wait for the next forward only beside "
                         "others in the backward, and without a shadow: %s, or remove it",
                         c->nvme_shadow ? "remove nvme.shadow" : "set zero_optimization.update_in_backward");
    if (!c->terms.update_in_backward || c->nvme_shadow) return ZERO_OK;
    if (c->compute_dtype == DTYPE_F16)
        return error_set(error, ZERO_E_CONFIG,
                         "%s: a step whose fp16 gradients overflow is skipped, and updates would have begun: "
                         "set nvme.shadow, which can take them back, or compute in bf16, or remove it",
                         path);
    if (c->gradient_clipping > 0)
        return error_set(error, ZERO_E_CONFIG,
                         "%s: clipping to %g needs the norm of all gradients before the first update: set "
                         "gradient_clipping to 0, or nvme.shadow, with which a clipped step is updated "
                         "again, or remove it",
                         path, c->gradient_clipping);
    return ZERO_OK;
}

static zero_status check_average(struct config *c, struct zero_error *error) {
    if (c->ema.decay < 1) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     "ema.decay: with 1 the average never moves: give less, such as 0.999; or 0, for none");
}

static zero_status check_checkpoint(struct config *config, struct zero_error *error) {
    uint64_t bytes = config->checkpoint_async_bytes;
    if (config->checkpoint_async && config->nvme_shadow)
        return error_set(
            error, ZERO_E_CONFIG,
            "checkpoint.async: with nvme.shadow every step waits for the save: remove one of them");
    if (config->checkpoint_async && config->checkpoint_writers)
        return error_set(
            error, ZERO_E_CONFIG,
            "checkpoint.writers_per_node: with checkpoint.async training would wait for the turns "
            "of all writers: set it to 0, or checkpoint.async to false");
    if (bytes >= 1 << 20 && bytes != CONFIG_BYTES_UNLIMITED) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     "checkpoint.async_bytes: it is memory that each rank sets aside: give at least "
                     "\"1MiB\", and an end; the default is \"64MiB\"");
}

/* A master weight can be split into its bf16 parameter and a remainder, if the parameter is the master weight rounded
 * to bf16. */
static zero_status resolve_masters(struct config *config, struct zero_error *error) {
    static const char path[] = "zero_optimization.offload_optimizer.masters", old[] = "nvme.masters";
    bool away = config->optimizer_tier != TIER_DEVICE, was = config_written(config, old);
    bool can = config->compute_dtype == DTYPE_BF16 && away && !config->nvme_shadow;
    const char *said = was ? old : path;
    if (!config_written(config, path))
        config->masters = CONFIG_MASTERS_AUTO; /* drops an earlier derived value */
    if (was && config->masters != CONFIG_MASTERS_AUTO && config->masters != config->nvme_masters)
        return error_set(error, ZERO_E_CONFIG, "%s: contradicts %s: remove %s", old, path, old);
    if (was) config->masters = config->nvme_masters;
    if (config->nvme_shadow && config->optimizer_tier != TIER_NVME)
        return error_set(error, ZERO_E_CONFIG,
                         "nvme.shadow: it keeps optimizer state on a drive: set offload_optimizer.device to "
                         "\"nvme\", or remove it");
    if (config->nvme_shadow && config->masters == CONFIG_MASTERS_SPLIT)
        return error_set(error, ZERO_E_CONFIG,
                         "%s: \"split\" leaves half of a master in memory, and nvme.shadow needs all of it "
                         "on the drive: remove one of them",
                         said);
    if (config->masters == CONFIG_MASTERS_SPLIT && !can)
        return error_set(
            error, ZERO_E_CONFIG,
            "%s: \"split\" needs bf16.enabled and offload_optimizer.device \"cpu\" or \"nvme\": set "
            "them, or use \"auto\"",
            said);
    if (config->masters != CONFIG_MASTERS_AUTO) return ZERO_OK;
    config->masters = can ? CONFIG_MASTERS_SPLIT : CONFIG_MASTERS_FP32;
    return config_derived(config, path, can ? "\"split\"" : "\"fp32\"", error);
}

/* Resolves a key that names an element type: the written value, else `otherwise`. */
static zero_status derive_dtype(struct config *config, const char *path, int *dtype, int otherwise,
                                struct zero_error *error) {
    char text[16];
    if (config_written(config, path)) return ZERO_OK;
    *dtype = otherwise;
    snprintf(text, sizeof text, "\"%s\"", dtype_name((enum dtype)otherwise));
    return config_derived(config, path, text, error);
}

/* In which type a mode adds the gradients of micro-steps. */
static int sums_of(const struct config *config, int mode) {
    return mode == ACCUMULATE_EVERY ? DTYPE_F32 : config->compute_dtype;
}

/* Sums in fp32 choose the mode that has them, at any stage. The other mode takes memory for whole gradients, so the user writes it. */
static zero_status choose_accumulation(struct config *config, struct zero_error *error) {
    static const char path[] = "gradient_accumulation_mode";
    char text[16];
    if (config_written(config, path) || config->accumulation_dtype != DTYPE_F32 ||
        config->compute_dtype == DTYPE_F32)
        return ZERO_OK;
    config->accumulation_mode = ACCUMULATE_EVERY;
    snprintf(text, sizeof text, "\"%s\"", accumulations[ACCUMULATE_EVERY].name);
    return config_derived(config, path, text, error);
}

static zero_status refuse_sums(const struct config *config, const char *path, struct zero_error *error) {
    int mode = config->accumulation_mode,
        other = mode == ACCUMULATE_EVERY ? ACCUMULATE_LAST : ACCUMULATE_EVERY;
    bool helps = sums_of(config, other) == config->accumulation_dtype;
    return error_set(error, ZERO_E_CONFIG,
                     "%s: with gradient_accumulation_mode \"%s\" and compute in %s gradients are added in "
                     "%s: remove it%s%s%s",
                     path, accumulations[mode].name, dtype_name((enum dtype)config->compute_dtype),
                     dtype_name((enum dtype)sums_of(config, mode)),
                     helps ? ", or write \"gradient_accumulation_mode\": \"" : "",
                     helps ? accumulations[other].name : "", helps ? "\"" : "");
}

/* Resolves the element types in which gradients are sent and added. Runs after resolve_accumulation. */
static zero_status resolve_gradients(struct config *config, struct zero_error *error) {
    static const char path[] = "data_types.grad_accum_dtype";
    bool asked = config_written(config, path) && config_accumulates(config);
    zero_status status = asked ? choose_accumulation(config, error) : ZERO_OK;
    int sums = sums_of(config, config->accumulation_mode);
    if (!status)
        status = derive_dtype(config, "communication_data_type", &config->communication_dtype,
                              config->compute_dtype, error);
    if (!status) status = derive_dtype(config, path, &config->accumulation_dtype, sums, error);
    if (status || !config_accumulates(config) || config->accumulation_dtype == sums) return status;
    return refuse_sums(config, path, error);
}

/* DeepSpeed's rules (runtime/engine.py, allreduce_bucket): prescaling divides by the number of ranks and ignores
 * predivide; a sum is not divided. */
static zero_status resolve_division(struct config *config, uint32_t ranks, struct zero_error *error) {
    bool sum = config->gradient_op == CONFIG_GRADIENT_SUM;
    double factor = config->prescale ? 1.0 / ranks : 1.0 / config->predivide;
    config->terms.gradient_factor = factor == 1 ? 0 : (float)factor;
    if (!sum || (!config->prescale && config->predivide == 1)) return ZERO_OK;
    return error_set(
        error, ZERO_E_CONFIG,
        "gradient_allreduce_op: \"sum\" divides nothing, which contradicts %s: remove one of them",
        config->prescale ? "prescale_gradients" : "gradient_predivide_factor");
}

static zero_status resolve_precision(struct config *config, struct zero_error *error) {
    zero_status status = resolve_compute(config, error);
    return status ? status : resolve_gradients(config, error);
}

/* ---- optimizer ---- */

#define DECAY OPTIMIZER_PARAMS "weight_decay"

/* The optimizer's default for the key below optimizer.params; NULL: the optimizer has no such key. */
static const char *optimizer_fallback(const struct optimizer *optimizer, const char *name) {
    for (int i = 0; i < OPTIMIZER_KEYS_MAX && optimizer->keys[i].name; i++)
        if (strcmp(optimizer->keys[i].name, name) == 0) return optimizer->keys[i].fallback;
    return NULL;
}

static zero_status no_such_param(const struct optimizer *optimizer, const char *path,
                                 struct zero_error *error) {
    char has[160];
    size_t length = 0;
    for (int i = 0; i < OPTIMIZER_KEYS_MAX && optimizer->keys[i].name && length < sizeof has; i++)
        length += (size_t)snprintf(has + length, sizeof has - length, "%s%s", i ? ", " : "",
                                   optimizer->keys[i].name);
    return error_set(error, ZERO_E_CONFIG, "%s: %s has no such parameter: remove it; it has %s", path,
                     optimizer->title, has);
}

static zero_status resolve_param(struct config *config, const struct optimizer *optimizer,
                                 const struct config_key *key, struct zero_error *error) {
    const char *fallback = optimizer_fallback(optimizer, key->path + strlen(OPTIMIZER_PARAMS));
    bool given = config_written(config, key->path);
    /* A template for several optimizers may hold "auto" for a parameter that this optimizer does not have. */
    if (!fallback && given) return no_such_param(optimizer, key->path, error);
    if (given || (config_automatic(config, key->path) && fallback)) return ZERO_OK;
    if (fallback) return config_store_text(config, key, fallback, CONFIG_DEFAULT, error);
    return config_leave_out(config, key, error);
}

static zero_status check_optimizer(const struct config *config, struct zero_error *error) {
    const struct config_optimizer *o = &config->optimizer;
    if (o->nesterov && (o->momentum <= 0 || o->dampening != 0))
        return error_set(error, ZERO_E_CONFIG,
                         "optimizer.params.nesterov: true needs momentum above 0 and dampening 0: set them, "
                         "or set it to false");
    if (o->min_coeff > o->max_coeff)
        return error_set(
            error, ZERO_E_CONFIG,
            "optimizer.params.min_coeff: %g is above max_coeff, %g: make it smaller, or max_coeff larger",
            o->min_coeff, o->max_coeff);
    if (o->torch_adam && config_written(config, OPTIMIZER_PARAMS "bias_correction"))
        return error_set(error, ZERO_E_CONFIG,
                         "optimizer.params.bias_correction: PyTorch's Adam has no such parameter: remove it "
                         "or torch_adam");
    return ZERO_OK;
}

/* "Adam" is AdamW unless the run's adam_w_mode says otherwise, as in DeepSpeed; so it is in a group beside any optimizer. */
static const struct optimizer *meant(const struct config *config, const struct optimizer *row) {
    bool coupled = config_written(config, OPTIMIZER_PARAMS "adam_w_mode") && !config->optimizer.adam_w_mode;
    return row->decoupled && !coupled ? row->decoupled : row;
}

bool config_takes_implied(const char *name, uint32_t dims, bool *out_named) {
    *out_named = strcasestr(name, "embed") || strcasestr(name, "lm_head");
    return *out_named || dims < 2;
}

/* A group without patterns for what Muon does not update. Its text is that of a written group. */
static zero_status imply_group(struct config *config, struct zero_error *error) {
    const struct config_optimizer *o = &config->optimizer;
    bool betas = config_written(config, OPTIMIZER_PARAMS "betas"), decay = config_written(config, DECAY);
    struct config_group *group = calloc(1, sizeof *group);
    if (!group) return error_set(error, ZERO_E_MEMORY, "no memory for the parameter groups");
    *group = (struct config_group){.implied = true,
                                   .lr = -1,
                                   .weight_decay = decay ? o->weight_decay : -1,
                                   .weight_code = -1,
                                   .optimizer = optimizer_find("AdamW"),
                                   .betas = {betas ? o->betas[0] : -1, betas ? o->betas[1] : -1}};
    config->groups = (struct config_groups){group, 1};
    return ZERO_OK;
}

/* Muon's own rates: of the matrices, and of the groups with another optimizer that say none. */
static zero_status resolve_muon(struct config *config, struct zero_error *error) {
    const struct config_optimizer *o = &config->optimizer;
    bool matrices = optimizers[o->type]->scope == SCOPE_MATRIX;
    zero_status status = matrices && !config->groups.count ? imply_group(config, error) : ZERO_OK;
    if (status || !matrices) return status;
    double lr = o->adam_lr > 0 ? o->adam_lr : o->muon_lr > 0 ? o->lr : -1;
    for (uint32_t g = 0; g < config->groups.count; g++)
        if (config->groups.item[g].optimizer && config->groups.item[g].lr < 0) config->groups.item[g].lr = lr;
    char text[120], number[32], decay[32];
    const struct config_group *first = config->groups.item;
    const struct config_key *key = config_key_find(OPTIMIZER_PARAMS "lr");
    if (o->muon_lr > 0) /* what a host is told of group 0 */
        status = config_entry_set(config, key, config_entry(config, key->path)->source,
                                  config_number_text(o->muon_lr, number), error);
    if (status || !first->implied) return status;
    snprintf(text, sizeof text, "[{\"optimizer\": \"AdamW\", \"lr\": %s, \"weight_decay\": %s}]",
             config_number_text(lr >= 0 ? lr : o->lr, number),
             config_number_text(first->weight_decay >= 0 ? first->weight_decay
                                                         : first->optimizer->defaults.weight_decay,
                                decay));
    return config_derived(config, "param_groups", text, error);
}

static zero_status resolve_optimizer(struct config *config, struct zero_error *error) {
    const struct optimizer *optimizer = optimizers[config->optimizer.type];
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < config_key_count() && !status; i++) {
        const struct config_key *key = config_key_at(i);
        if (key->use == KEY_USED && strncmp(key->path, OPTIMIZER_PARAMS, strlen(OPTIMIZER_PARAMS)) == 0)
            status = resolve_param(config, optimizer, key, error);
    }
    if (!status) status = resolve_muon(config, error);
    if (status) return status;
    optimizer = meant(config, optimizer);
    config->optimizer.name = optimizer->name;
    for (uint32_t g = 0; g < config->groups.count; g++) {
        struct config_group *group = &config->groups.item[g];
        if (group->optimizer) group->optimizer = meant(config, group->optimizer);
    }
    if (config->optimizer.torch_adam && optimizer->torch_weight_decay &&
        config_entry(config, DECAY)->source == CONFIG_DEFAULT)
        status = config_store_text(config, config_key_find(DECAY), optimizer->torch_weight_decay,
                                   CONFIG_DEFAULT, error);
    return status ? status : check_optimizer(config, error);
}

/* ---- recomputation ---- */

zero_status config_check_scratch(const struct config *c, const struct config_paths *offload,
                                 struct zero_error *error) {
    const struct config_recompute *r = &c->recompute;
    if (!r->on_drive || !r->paths.count || !offload->count || config_same_paths(&r->paths, offload))
        return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     CHECKPOINTING ".nvme_path: a rank has one set of drives: give it the paths of "
                                   "zero_optimization's offload, or remove it");
}

/* Where the inputs of segments wait. Scratch and swap files are in the same directories. */
static zero_status resolve_checkpoints(struct config *c, struct zero_error *error) {
    struct config_recompute *r = &c->recompute;
    r->tier = r->on_drive ? TIER_NVME : r->on_cpu ? TIER_CPU : TIER_DEVICE;
    if (!r->on_drive) return ZERO_OK;
    const struct config_paths *paths = config_scratch_paths(c);
    if (r->on_cpu)
        return error_set(error, ZERO_E_CONFIG,
                         CHECKPOINTING
                         ".nvme_checkpointing: true contradicts cpu_checkpointing: remove one of them");
    if (!paths->count)
        return error_set(error, ZERO_E_CONFIG,
                         CHECKPOINTING
                         ".nvme_checkpointing: true needs a directory on the drive: set " CHECKPOINTING
                         ".nvme_path");
    zero_status status = config_check_scratch(c, paths, error);
    return status ? status : config_check_distinct(CHECKPOINTING, &r->paths, error);
}

bool config_asks_recompute(const struct config *config) {
    const struct config_recompute *r = &config->recompute;
    return r->checkpoints || r->on_cpu || r->on_drive || r->every;
}

/* Any of these keys turns recomputation on. Results do not depend on it, so a file for another system may ask for
 * it. */
static zero_status resolve_recompute(struct config *config, struct zero_error *error) {
    static const char path[] = CHECKPOINTING ".interval";
    struct config_recompute *r = &config->recompute;
    bool asked = config_asks_recompute(config);
    TRY(resolve_checkpoints(config, error));
    if (config_written(config, path)) {
        if (r->checkpoints || (asked && !r->blocks))
            return error_set(error, ZERO_E_CONFIG, "%s: %llu contradicts %s: remove one of them", path,
                             (unsigned long long)r->blocks,
                             r->checkpoints ? "number_checkpoints"
                             : r->on_cpu    ? "cpu_checkpointing"
                             : r->on_drive  ? "nvme_checkpointing"
                                            : "model.gradient_checkpointing");
        return ZERO_OK;
    }
    r->blocks = asked;
    if (r->checkpoints) r->blocks = (config->model.layers + r->checkpoints - 1) / r->checkpoints;
    return config_derived_int(config, path, r->blocks, error);
}

/* A dynamic loss scale that begins too high skips many steps before it fits. */
static zero_status resolve_skips(struct config *config, struct zero_error *error) {
    static const char path[] = "max_skipped_steps";
    if (!config_written(config, path)) config->max_skipped_steps = config->fp16.enabled ? 100 : 10;
    return config_derived_int(config, path, config->max_skipped_steps, error);
}

/* Of the keys that have an effect. Beside a static scale the keys of a dynamic one have none. */
static zero_status check_ranges(struct config *config, struct zero_error *error) {
    for (uint32_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        bool still = config->fp16.loss_scale > 0 && !strncmp(key->path, "fp16.", 5) &&
                     strcmp(key->path, "fp16.loss_scale") != 0;
        bool checked = config_ranges_later(key) && config_written(config, key->path) && !still;
        if (checked && !config_key_idle(config, key->path)) TRY(config_check_range(config, key, error));
    }
    return ZERO_OK;
}

/* ---- what the planner chooses ---- */

/* A key whose value follows from another key is derived, not chosen by the planner. */
const char *config_unchosen(const struct config *config) {
    const struct {
        const char *path;
        bool decided;
    } keys[] = {{"zero_optimization.stage", false},
                {"zero_optimization.offload_optimizer.device", config->cpu_offload},
                {"zero_optimization.offload_param.device", config->cpu_offload_param},
                {"zero_optimization.offload_gradients.device", false},
                {CHECKPOINTING ".interval", config_asks_recompute(config)}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!keys[i].decided && config_automatic(config, keys[i].path)) return keys[i].path;
    return NULL;
}

/* The planner stands above the engine: an engine cannot ask it. */
static zero_status check_chosen(const struct config *config, struct zero_error *error) {
    const char *path = config_unchosen(config);
    if (!path) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     "%s: \"auto\" is chosen by `zero train`, or by `zero plan CONFIG.json --write-config "
                     "FILE`, which writes the choice out: give that FILE here, or a value",
                     path);
}

zero_status config_resolve(struct config *config, uint32_t ranks, struct zero_error *error) {
    static zero_status (*const parts[])(struct config *, struct zero_error *) = {
        config_resolve_model, resolve_accumulation,
        resolve_precision,    config_resolve_offload,
        resolve_masters,      resolve_persistence,
        resolve_gathers,      resolve_quantized,
        resolve_optimizer,    config_resolve_scheduler,
        resolve_recompute,    check_ranges,
        check_checkpoint,     check_updates,
        check_average,        resolve_skips,
        check_by_program};
    if (ranks == 0) return error_set(error, ZERO_E_ARGUMENT, "config_resolve: 0 ranks: give at least 1");
    zero_status status = check_chosen(config, error);
    if (!status) status = config_resolve_batch(config, ranks, error);
    if (!status) status = config_resolve_mesh(config, ranks, error);
    if (!status) status = resolve_division(config, ranks, error);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && status == ZERO_OK; i++)
        status = parts[i](config, error);
    if (!status) config_resolve_terms(config, ranks);
    return status;
}
