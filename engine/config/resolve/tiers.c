#include "engine/config/resolve/resolve.h"

#include <stdio.h>
#include <string.h>

#include "offload/tier.h"
#include "stages/stage.h"

#define OFFLOAD_OPTIMIZER "zero_optimization.offload_optimizer"
#define OFFLOAD_PARAM "zero_optimization.offload_param"
#define OFFLOAD_GRADIENTS "zero_optimization.offload_gradients"

/* The row of tier_table behind a device. The part of tiered state that is not on the device is on the drive, if there
 * is one. */
static const struct tier_ops *tier_of(const struct config *c, int device) {
    return tier_table[tier_table[device] ? device : (int)(c->optimizer_paths.count ? TIER_NVME : TIER_CPU)];
}

/* The row for parameters. Below stage 3 parameters are whole on the device, whatever offload_param says, as in DeepSpeed. */
static int param_device(const struct config *c) {
    return config_shards_params(c) ? c->param_device : (int)TIER_DEVICE;
}

/* Sets the kind of the tier that `device` chose. DeepSpeed's old keys mean device "cpu". */
static zero_status resolve_device(struct config *config, const char *path, int *device, int *out_tier,
                                  const char *old, bool given, struct zero_error *error) {
    bool written = config_written(config, path);
    if (given && written && (!tier_table[*device] || tier_table[*device]->kind != TIER_CPU))
        return error_set(error, ZERO_E_CONFIG, "%s: true contradicts %s: remove %s", old, path, old);
    if (given && !written) *device = TIER_CPU;
    *out_tier = (int)tier_of(config, *device)->kind;
    return given && !written ? config_derived(config, path, "\"cpu\"", error) : ZERO_OK;
}

static zero_status check_drive(const char *path, int device, const struct config_paths *paths,
                               struct zero_error *error) {
    if (!tier_table[device] || tier_table[device]->kind != TIER_NVME || paths->count) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     "%s.device: \"%s\" needs a directory on the drive: set %s.nvme_path", path,
                     tier_table[device]->choice, path);
}

const struct config_paths *config_drive_paths(const struct config *c) {
    return c->optimizer_tier == TIER_NVME ? &c->optimizer_paths : &c->param_paths;
}

const struct config_paths *config_scratch_paths(const struct config *c) {
    bool offloads = c->optimizer_tier == TIER_NVME || c->param_tier == TIER_NVME;
    return offloads ? config_drive_paths(c) : &c->recompute.paths;
}

const struct config_paths *config_park_paths(const struct config *c) {
    return c->optimizer_paths.count ? &c->optimizer_paths : &c->param_paths;
}

const struct tier_ops *config_tier(const struct config *c, enum tier_kind kind) {
    if (c->optimizer_tier == (int)kind) return tier_of(c, c->optimizer_device);
    return tier_table[c->param_tier == (int)kind ? param_device(c) : (int)kind];
}

bool config_same_paths(const struct config_paths *a, const struct config_paths *b) {
    if (a->count != b->count) return false;
    for (uint64_t i = 0; i < a->count; i++)
        if (strcmp(a->items[i], b->items[i])) return false;
    return true;
}

zero_status config_check_offload(const struct config *c, struct zero_error *error) {
    const struct config_paths *state = &c->optimizer_paths, *params = &c->param_paths;
    if (!state->count || !params->count || config_same_paths(params, state)) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     OFFLOAD_PARAM ".nvme_path: a rank has one set of swap files: give it the same paths "
                                   "as " OFFLOAD_OPTIMIZER ".nvme_path");
}

zero_status config_check_distinct(const char *path, const struct config_paths *paths,
                                  struct zero_error *error) {
    for (uint64_t i = 1; i < paths->count; i++)
        for (uint64_t k = 0; k < i; k++)
            if (!strcmp(paths->items[i], paths->items[k]))
                return error_set(error, ZERO_E_CONFIG,
                                 "%s.nvme_path: \"%s\" stands twice: name each drive once", path,
                                 paths->items[i]);
    return ZERO_OK;
}

/* A gradient is read together with its chunk of state for the host's update, so its tier may not be slower than that of the
 * state. By default both have one tier; but with native reductions, which are not cut into chunks, gradients are not on a
 * drive. */
static zero_status resolve_grad_tier(struct config *c, struct zero_error *error) {
    static const char path[] = OFFLOAD_GRADIENTS ".device";
    bool whole = !stage_shards_grads(stage_find((uint32_t)c->stage, RESHARD_ALL));
    if (!config_written(c, path)) {
        char text[32];
        c->grad_device = whole ? (int)TIER_DEVICE : c->tiered ? c->optimizer_tier : c->optimizer_device;
        if (c->comm.reduction == CONFIG_REDUCTION_NATIVE && tier_table[c->grad_device]->kind == TIER_NVME)
            c->grad_device = (int)TIER_CPU;
        c->grad_tier = (int)tier_table[c->grad_device]->kind;
        snprintf(text, sizeof text, "\"%s\"", tier_table[c->grad_device]->choice);
        return config_derived(c, path, text, error);
    }
    const char *choice = tier_table[c->grad_device]->choice;
    c->grad_tier = (int)tier_table[c->grad_device]->kind;
    if (c->grad_tier != TIER_DEVICE && whole)
        return error_set(error, ZERO_E_CONFIG,
                         OFFLOAD_GRADIENTS
                         ".device: gradients are whole on every rank at stage %llu: set "
                         "zero_optimization.stage to %u, which trains to the same bits, or remove the block",
                         (unsigned long long)c->stage, stage_first(stage_shards_grads));
    if (c->grad_tier == TIER_NVME && c->comm.reduction == CONFIG_REDUCTION_NATIVE)
        return error_set(error, ZERO_E_CONFIG,
                         OFFLOAD_GRADIENTS ".device: \"%s\" cuts reductions into chunks, and the bits of "
                                           "comm.reduction \"native\" may depend on their size: set it "
                                           "to \"cpu\", or comm.reduction to \"ordered\"",
                         choice);
    if (c->grad_tier <= c->optimizer_tier) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     OFFLOAD_GRADIENTS
                     ".device: \"%s\" needs the optimizer state there, too: set " OFFLOAD_OPTIMIZER
                     ".device to \"%s\"",
                     choice, choice);
}

/* The share that `ratio` leaves to the device. */
static zero_status resolve_share(struct config *c, struct zero_error *error) {
    bool given = config_written(c, OFFLOAD_OPTIMIZER ".ratio");
    c->tiered = !tier_table[c->optimizer_device];
    c->terms.device_share = c->tiered && !given ? 1 : 1 - c->host_ratio;
    if (c->optimizer_tier == TIER_DEVICE) c->terms.device_share = 0;
    c->fills_device = c->tiered || (c->optimizer_tier != TIER_DEVICE && !given && !c->nvme_shadow &&
                                    c->budget_bytes[TIER_DEVICE] != CONFIG_BYTES_UNLIMITED);
    if (!c->nvme_shadow || !c->terms.device_share) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     "%s: nvme.shadow keeps all optimizer state on the drive: %s, or remove nvme.shadow",
                     c->tiered ? OFFLOAD_OPTIMIZER ".device" : OFFLOAD_OPTIMIZER ".ratio",
                     c->tiered ? "set it to \"nvme\"" : "set it to 1.0");
}

zero_status config_resolve_offload(struct config *c, struct zero_error *error) {
    zero_status status =
        resolve_device(c, OFFLOAD_OPTIMIZER ".device", &c->optimizer_device, &c->optimizer_tier,
                       "zero_optimization.cpu_offload", c->cpu_offload, error);
    if (!status)
        status = resolve_device(c, OFFLOAD_PARAM ".device", &c->param_device, &c->param_tier,
                                "zero_optimization.cpu_offload_param", c->cpu_offload_param, error);
    if (!status) status = check_drive(OFFLOAD_OPTIMIZER, c->optimizer_device, &c->optimizer_paths, error);
    if (!config_shards_params(c)) c->param_tier = TIER_DEVICE;
    if (!status) status = check_drive(OFFLOAD_PARAM, param_device(c), &c->param_paths, error);
    if (!status) status = resolve_share(c, error);
    if (!c->terms.chunk_elements_max)
        c->terms.chunk_elements_max = 1000000000; /* DeepSpeed takes 0 for these two */
    if (!c->terms.slots) c->terms.slots = 4;
    if (status) return status;
    status = resolve_grad_tier(c, error);
    if (status) return status;
    if (c->param_tier == c->optimizer_tier && tier_table[param_device(c)] != tier_of(c, c->optimizer_device))
        return error_set(error, ZERO_E_CONFIG,
                         OFFLOAD_PARAM ".device: \"%s\" and \"%s\" of " OFFLOAD_OPTIMIZER
                                       " share one memory: choose one of them for both",
                         tier_table[param_device(c)]->choice, tier_of(c, c->optimizer_device)->choice);
    if (c->param_tier == TIER_NVME && c->optimizer_tier == TIER_NVME) status = config_check_offload(c, error);
    if (!status) status = config_check_distinct(OFFLOAD_OPTIMIZER, &c->optimizer_paths, error);
    if (status) return status;
    if (c->aio_block_bytes % 4096)
        return error_set(error, ZERO_E_CONFIG, "aio.block_size: %llu is not a multiple of 4096: use %llu",
                         (unsigned long long)c->aio_block_bytes,
                         (unsigned long long)(c->aio_block_bytes / 4096 * 4096));
    return ZERO_OK;
}
