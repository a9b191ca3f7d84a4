/* Finds keys that were written and have no effect because of other keys. */
#include <stdio.h>
#include <string.h>

#include "engine/config/config.h"
#include "engine/config/key.h"
#include "engine/config/resolve/resolve.h"
#include "offload/tier.h"

#define WHOLE "below stage 3, where parameters are whole on every rank"

static bool left_to_host(const struct config *c) { return !c->host_obeys; }
static bool not_fp16(const struct config *c) { return c->compute_dtype != DTYPE_F16; }
static bool not_stage_3(const struct config *c) { return !config_shards_params(c); }
static bool whole_on_device(const struct config *c) {
    return not_stage_3(c) && (c->cpu_offload_param || tier_table[c->param_device]->kind != TIER_DEVICE);
}
static bool exact_gradients(const struct config *c) { return !c->quantized_gradients; }
static bool one_micro_step(const struct config *c) { return !config_accumulates(c); }
static bool saves_at_once(const struct config *c) { return !c->checkpoint_async; }
static bool no_drive(const struct config *c) {
    return c->optimizer_tier != TIER_NVME && c->param_tier != TIER_NVME && !c->recompute.on_drive;
}
static bool no_average(const struct config *c) { return c->ema.decay == 0; }
static bool checkpoints_in_memory(const struct config *c) { return !c->recompute.on_drive; }
static bool state_on_device(const struct config *c) { return c->optimizer_tier == TIER_DEVICE; }
static bool state_in_memory(const struct config *c) { return c->optimizer_tier != TIER_NVME; }
static bool params_in_memory(const struct config *c) { return c->param_tier != TIER_NVME; }
static bool all_in_memory(const struct config *c) { return state_in_memory(c) && params_in_memory(c); }
static bool not_cut(const struct config *c) { return all_in_memory(c) && !c->terms.device_share; }

static const struct idle {
    const char *keys[12]; /* keys, or the beginnings of keys (ending in a point) */
    const char *but;      /* except this key, which makes the choice or has its own row */
    bool (*idle)(const struct config *config);
    const char *why;
} idles[] = {
    {{"steps_per_print", "tensorboard.", "csv_monitor.", "activation_checkpointing.",
      "model.gradient_checkpointing", "data.", "device.attention", "device.graphs", "device.outputs",
      "zero_optimization.vocabulary_block_rows"},
     "activation_checkpointing.nvme_path",
     left_to_host,
     "unless this program obeys them itself, as `zero train` does"},
    {{"fp16."}, "fp16.enabled", not_fp16, "while fp16.enabled is false"},
    {{"zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.stage3_max_live_parameters"},
     NULL,
     not_stage_3,
     WHOLE},
    {{"zero_optimization.offload_param.device", "zero_optimization.cpu_offload_param"},
     NULL,
     whole_on_device,
     WHOLE},
    {{"comm.quantized_gradient_bits"},
     NULL,
     exact_gradients,
     "while zero_optimization.zero_quantized_gradients is false"},
    {{"ema."}, "ema.decay", no_average, "while ema.decay is 0"},
    {{"zero_optimization.micro_order"}, NULL, one_micro_step, "while a step has one micro-step"},
    {{"checkpoint.async_bytes"}, NULL, saves_at_once, "while checkpoint.async is false"},
    {{"aio.", "nvme."}, NULL, no_drive, "while nothing is on NVMe"},
    {{"activation_checkpointing.nvme_path"},
     NULL,
     checkpoints_in_memory,
     "but for zero_engine_add_scratch while activation_checkpointing.nvme_checkpointing is false"},
    {{"zero_optimization.sub_group_size"},
     NULL,
     not_cut,
     "but where a GPU's host updates, while neither state nor parameters are on NVMe"},
    {{"zero_optimization.offload_optimizer.buffer_count"},
     NULL,
     all_in_memory,
     "while neither state nor parameters are on NVMe"},
    {{"zero_optimization.offload_optimizer.ratio"}, NULL, state_on_device, "while its device is \"none\""},
    {{"zero_optimization.offload_optimizer.nvme_path"},
     NULL,
     state_in_memory,
     "but for zero_engine_park while its device is not \"nvme\""},
    {{"zero_optimization.offload_param.nvme_path"},
     NULL,
     params_in_memory,
     "but for zero_engine_park while its device is not \"nvme\""},
};

static bool names(const struct idle *row, const char *path) {
    if (row->but && !strcmp(path, row->but)) return false;
    for (int k = 0; row->keys[k]; k++)
        if (!strncmp(path, row->keys[k], strlen(row->keys[k]))) return true;
    return false;
}

bool config_key_idle(const struct config *config, const char *path) {
    bool idle = false;
    for (size_t i = 0; i < sizeof idles / sizeof *idles && !idle; i++)
        idle = names(&idles[i], path) && idles[i].idle(config);
    return idle;
}

bool config_idle(const struct config *config, uint32_t index, char *out, size_t capacity) {
    size_t at = 0;
    *out = 0;
    if (index == sizeof idles / sizeof *idles) return false;
    const struct idle *row = &idles[index];
    for (uint32_t i = 0; i < config_key_count() && row->idle(config); i++) {
        const struct config_key *key = config_key_at(i);
        if (key->use != KEY_USED || !names(row, key->path) || !config_written(config, key->path)) continue;
        int n = snprintf(out + at, capacity - at, "%s%s", at ? ", " : "", key->path);
        at = at + (size_t)n < capacity ? at + (size_t)n : capacity - 1;
    }
    if (at) snprintf(out + at, capacity - at, ": no effect %s", row->why);
    return true;
}
