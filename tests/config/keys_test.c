/* The table itself: every row does what its use promises, by iteration; a new USED row must be added to
 * `effects`. */
#include "engine/config/config.h"
#include "engine/config/key.h"
#include "engine/config/value.h"
#include "tests/check.h"

#include <stdlib.h>

/* {"a": {"b": VALUE}} for path a.b */
static void document(const char *path, const char *value, char *out) {
    char *at = out;
    int depth = 0;
    at += sprintf(at, "{\"");
    for (const char *c = path; *c; c++) {
        if (*c == '.')
            at += sprintf(at, "\": {\""), depth++;
        else
            *at++ = *c;
    }
    at += sprintf(at, "\": %s", value);
    while (depth-- >= 0) *at++ = '}';
    *at = 0;
}

static zero_status read_one(const char *path, const char *value, struct config *config,
                            struct zero_error *error) {
    char json[1024];
    document(path, value, json);
    error_clear(error);
    return config_read(json, config, error);
}

/* A value of the row's type that is not its default. */
static void other_value(const struct config_key *key, char *out) {
    static const char *const by_type[KEY_TYPES] = {[KEY_INT] = "977",
                                                   [KEY_REAL] = "0.375",
                                                   [KEY_STRING] = "\"other\"",
                                                   [KEY_LIST] = "[\"other\"]",
                                                   [KEY_OPAQUE] = "{\"other\": 1}"};
    const char *fallback = key->fallback ? key->fallback : "";
    if (key->type == KEY_BOOL) {
        strcpy(out, strcmp(fallback, "true") == 0 ? "false" : "true");
    } else if (key->type == KEY_CHOICE) {
        struct key_choice choice;
        for (uint32_t i = 0; config_key_choice_at(key, i, &choice); i++) {
            sprintf(out, "\"%.*s\"", choice.length, choice.text);
            if (strcmp(out, fallback) != 0) break;
        }
    } else {
        strcpy(out, by_type[key->type]);
    }
}

static void every_refused_key_gives_its_reason(void) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        struct config config;
        struct zero_error error;
        char value[128];
        if (key->use != KEY_REFUSED) continue;
        other_value(key, value);
        if (!CHECK_INT(read_one(key->path, value, &config, &error), ZERO_E_UNSUPPORTED))
            fprintf(stderr, "%s\n", error.message);
        CHECK_CONTAINS(error.message, key->note);
        CHECK(strncmp(error.message, key->path, strlen(key->path)) == 0);
        config_free(&config);
        count++;
        CHECK_INT(read_one(key->path, key->fallback ? key->fallback : "null", &config, &error), ZERO_OK);
        CHECK_INT(config.line_count, 0);
        config_free(&config);
    }
    CHECK(count > 40);
}

static void every_accepted_key_gives_one_line(void) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        struct config config;
        struct zero_error error;
        char value[128];
        if (key->use != KEY_ACCEPTED) continue;
        other_value(key, value);
        for (int same = 0; same < 2; same++) {
            const char *json = same && key->fallback ? key->fallback : value;
            if (!CHECK_INT(read_one(key->path, json, &config, &error), ZERO_OK))
                fprintf(stderr, "%s\n", error.message);
            CHECK_INT(config.line_count, 1);
            if (config.line_count == 1) {
                CHECK(strncmp(config.lines[0], key->path, strlen(key->path)) == 0);
                CHECK_CONTAINS(config.lines[0], key->note);
            }
            config_free(&config);
        }
        count++;
    }
    CHECK(count > 150);
}

/* ---- every used key changes the resolved configuration: `value` is written to `path`, `field` must then
 * differ ---- */

#define FIELD(f) offsetof(struct config, f), sizeof(((struct config *)0)->f)

static const struct effect {
    const char *path, *value, *with;
    size_t offset, bytes;
} effects[] = {
    {"train_batch_size", "64", "", FIELD(train_batch)},
    {"train_micro_batch_size_per_gpu", "4", "", FIELD(micro_batch)},
    {"gradient_accumulation_steps", "8", "", FIELD(accumulation_steps)},
    {"gradient_accumulation_mode", "\"every\"", "", FIELD(accumulation_mode)},
    {"gradient_accumulation_by_program", "true", "", FIELD(terms.by_program)},
    {"prescale_gradients", "true", "", FIELD(terms.gradient_factor)},
    {"gradient_predivide_factor", "4", "", FIELD(terms.gradient_factor)},
    {"gradient_allreduce_op", "\"sum\"", "", FIELD(gradient_op)},
    {"gradient_clipping", "0", "", FIELD(gradient_clipping)},
    {"optimizer.type", "\"lion\"", "", FIELD(optimizer.name)},
    {"optimizer.params.lr", "0.5", "", FIELD(optimizer.lr)},
    {"optimizer.params.betas", "[0.5, 0.6]", "", FIELD(optimizer.betas)},
    {"optimizer.params.eps", "0.5", "", FIELD(optimizer.eps)},
    {"optimizer.params.weight_decay", "0.5", "", FIELD(optimizer.weight_decay)},
    {"optimizer.params.momentum", "0.5", "sgd", FIELD(optimizer.momentum)},
    {"optimizer.params.dampening", "0.5", "sgd", FIELD(optimizer.dampening)},
    {"optimizer.params.nesterov", "true", "nesterov", FIELD(optimizer.nesterov)},
    {"optimizer.params.lr_decay", "0.5", "adagrad", FIELD(optimizer.lr_decay)},
    {"optimizer.params.bias_correction", "false", "", FIELD(optimizer.bias_correction)},
    {"optimizer.params.adam_w_mode", "false", "adam", FIELD(optimizer.name)},
    {"optimizer.params.torch_adam", "true", "", FIELD(optimizer.weight_decay)},
    {"optimizer.params.ns_steps", "3", "muon", FIELD(optimizer.ns_steps)},
    {"optimizer.params.adjust_lr_fn", "\"match_rms_adamw\"", "muon", FIELD(optimizer.adjust_lr)},
    {"optimizer.params.muon_lr", "0.5", "muon", FIELD(optimizer.muon_lr)},
    {"optimizer.params.adam_lr", "0.5", "muon", FIELD(optimizer.adam_lr)},
    {"optimizer.params.ns_dtype", "\"bf16\"", "muon", FIELD(optimizer.ns_dtype)},
    {"optimizer.params.max_coeff", "0.5", "lamb", FIELD(optimizer.max_coeff)},
    {"optimizer.params.min_coeff", "0.5", "lamb", FIELD(optimizer.min_coeff)},
    {"param_groups", "[{\"match\": \"*\", \"lr\": 0.5}]", "", FIELD(groups.count)},
    {"scheduler.type", "\"WarmupLR\"", "", FIELD(schedule_row)},
    {"scheduler.params.warmup_min_lr", "[0.5]", "decay", FIELD(schedule.warmup_min_lr)},
    {"scheduler.params.warmup_max_lr", "0.5", "decay", FIELD(schedule.warmup_max_lr)},
    {"scheduler.params.warmup_num_steps", "7", "decay", FIELD(schedule.warmup_num_steps)},
    {"scheduler.params.warmup_type", "\"linear\"", "decay", FIELD(schedule.warmup_type)},
    {"scheduler.params.total_num_steps", "7", "decay", FIELD(schedule.total_num_steps)},
    {"scheduler.params.warmup_min_ratio", "0.5", "cosine", FIELD(schedule.warmup_min_ratio)},
    {"scheduler.params.cos_min_ratio", "0.5", "cosine", FIELD(schedule.cos_min_ratio)},
    {"scheduler.params.last_batch_iteration", "7", "decay", FIELD(schedule.last_batch_iteration)},
    {"scheduler.params.lr_range_test_min_lr", "0.5", "range", FIELD(schedule.range_min_lr)},
    {"scheduler.params.lr_range_test_step_size", "7", "range", FIELD(schedule.range_step_size)},
    {"scheduler.params.lr_range_test_step_rate", "7", "range", FIELD(schedule.range_step_rate)},
    {"scheduler.params.lr_range_test_staircase", "true", "range", FIELD(schedule.range_staircase)},
    {"scheduler.params.cycle_min_lr", "0.5", "cycle", FIELD(schedule.cycle_min_lr)},
    {"scheduler.params.cycle_max_lr", "0.5", "cycle", FIELD(schedule.cycle_max_lr)},
    {"scheduler.params.decay_lr_rate", "0.5", "cycle", FIELD(schedule.decay_lr_rate)},
    {"scheduler.params.cycle_first_step_size", "7", "cycle", FIELD(schedule.cycle_first_step_size)},
    {"scheduler.params.cycle_second_step_size", "7", "cycle", FIELD(schedule.cycle_second_step_size)},
    {"scheduler.params.cycle_first_stair_count", "7", "cycle", FIELD(schedule.cycle_first_stair_count)},
    {"scheduler.params.cycle_second_stair_count", "7", "cycle", FIELD(schedule.cycle_second_stair_count)},
    {"scheduler.params.decay_step_size", "7", "cycle", FIELD(schedule.decay_step_size)},
    {"scheduler.params.cycle_momentum", "false", "cycle", FIELD(schedule.cycle_momentum)},
    {"scheduler.params.cycle_min_mom", "0.5", "cycle", FIELD(schedule.cycle_min_mom)},
    {"scheduler.params.cycle_max_mom", "0.5", "cycle", FIELD(schedule.cycle_max_mom)},
    {"scheduler.params.decay_mom_rate", "-0.5", "cycle", FIELD(schedule.decay_mom_rate)},
    {"scheduler.params.step_size", "7", "steps", FIELD(schedule.step_size)},
    {"scheduler.params.gamma", "0.5", "steps", FIELD(schedule.gamma)},
    {"scheduler.params.milestones", "[3, 5]", "multi", FIELD(schedule.milestones)},
    {"scheduler.params.factor", "0.5", "constant", FIELD(schedule.factor)},
    {"scheduler.params.total_iters", "7", "linear", FIELD(schedule.total_iters)},
    {"scheduler.params.start_factor", "0.5", "linear", FIELD(schedule.start_factor)},
    {"scheduler.params.end_factor", "0.5", "linear", FIELD(schedule.end_factor)},
    {"scheduler.params.power", "2", "polynomial", FIELD(schedule.power)},
    {"scheduler.params.T_max", "7", "annealing", FIELD(schedule.t_max)},
    {"scheduler.params.eta_min", "0.5", "annealing", FIELD(schedule.eta_min)},
    {"scheduler.params.T_0", "7", "restarts", FIELD(schedule.t_0)},
    {"scheduler.params.T_mult", "7", "restarts", FIELD(schedule.t_mult)},
    {"scheduler.params.base_lr", "0.5", "cyclic", FIELD(schedule.base_lr)},
    {"scheduler.params.max_lr", "0.5", "cyclic", FIELD(schedule.max_lr)},
    {"scheduler.params.step_size_up", "7", "cyclic", FIELD(schedule.step_size_up)},
    {"scheduler.params.step_size_down", "7", "cyclic", FIELD(schedule.step_size_down)},
    {"scheduler.params.mode", "\"triangular2\"", "cyclic", FIELD(schedule.cyclic_mode)},
    {"scheduler.params.base_momentum", "0.5", "cyclic", FIELD(schedule.base_momentum)},
    {"scheduler.params.max_momentum", "0.5", "cyclic", FIELD(schedule.max_momentum)},
    {"scheduler.params.total_steps", "70", "one_cycle", FIELD(schedule.total_steps)},
    {"scheduler.params.pct_start", "0.5", "one_cycle", FIELD(schedule.pct_start)},
    {"scheduler.params.anneal_strategy", "\"linear\"", "one_cycle", FIELD(schedule.anneal_strategy)},
    {"scheduler.params.div_factor", "7", "one_cycle", FIELD(schedule.div_factor)},
    {"scheduler.params.final_div_factor", "7", "one_cycle", FIELD(schedule.final_div_factor)},
    {"scheduler.params.three_phase", "true", "one_cycle", FIELD(schedule.three_phase)},
    {"scheduler.params.num_warmup_steps", "7", "stable", FIELD(schedule.num_warmup_steps)},
    {"scheduler.params.num_training_steps", "7", "stable", FIELD(schedule.num_training_steps)},
    {"scheduler.params.min_lr", "0.5", "floor", FIELD(schedule.min_lr_rate)},
    {"scheduler.params.min_lr_rate", "0.5", "share", FIELD(schedule.min_lr_rate)},
    {"scheduler.params.num_decay_steps", "7", "stable", FIELD(schedule.num_decay_steps)},
    {"scheduler.params.num_stable_steps", "7", "rest", FIELD(schedule.num_stable_steps)},
    {"scheduler.params.min_lr_ratio", "0.5", "stable", FIELD(schedule.min_lr_ratio)},
    {"scheduler.params.decay_type", "\"linear\"", "stable", FIELD(schedule.decay_type)},
    {"communication_data_type", "\"bf16\"", "", FIELD(communication_dtype)},
    {"bf16.enabled", "true", "", FIELD(compute_dtype)},
    {"bfloat16.enabled", "true", "", FIELD(compute_dtype)},
    {"torch_autocast.enabled", "true", "", FIELD(compute_dtype)},
    {"torch_autocast.dtype", "\"torch.float16\"", "autocast", FIELD(compute_dtype)},
    {"tensorboard.enabled", "true", "", FIELD(tensorboard.enabled)},
    {"tensorboard.output_path", "\"x\"", "", FIELD(tensorboard.output_path)},
    {"tensorboard.job_name", "\"x\"", "", FIELD(tensorboard.job_name)},
    {"csv_monitor.enabled", "true", "", FIELD(csv_monitor.enabled)},
    {"csv_monitor.output_path", "\"x\"", "", FIELD(csv_monitor.output_path)},
    {"csv_monitor.job_name", "\"x\"", "", FIELD(csv_monitor.job_name)},
    {"fp16.enabled", "true", "", FIELD(compute_dtype)},
    {"fp16.loss_scale", "128", "", FIELD(fp16.loss_scale)},
    {"fp16.initial_scale_power", "3", "", FIELD(fp16.initial_scale_power)},
    {"fp16.loss_scale_window", "3", "", FIELD(fp16.loss_scale_window)},
    {"fp16.hysteresis", "3", "", FIELD(fp16.hysteresis)},
    {"fp16.consecutive_hysteresis", "true", "", FIELD(fp16.consecutive_hysteresis)},
    {"fp16.min_loss_scale", "3", "", FIELD(fp16.min_loss_scale)},
    {"data_types.grad_accum_dtype", "\"bf16\"", "", FIELD(accumulation_dtype)},
    {"zero_optimization.stage", "3", "", FIELD(stage)},
    {"zero_optimization.offload_optimizer.device", "\"cpu\"", "", FIELD(optimizer_tier)},
    {"zero_optimization.offload_optimizer.nvme_path", "[\"/a\", \"/b\"]", "", FIELD(optimizer_paths.count)},
    {"zero_optimization.offload_optimizer.buffer_count", "5", "", FIELD(terms.slots)},
    {"zero_optimization.offload_optimizer.ratio", "0.5", "sharded on nvme", FIELD(terms.device_share)},
    {"zero_optimization.offload_param.device", "\"cpu\"", "stage3", FIELD(param_tier)},
    {"zero_optimization.offload_param.nvme_path", "\"/a\"", "", FIELD(param_paths.count)},
    {"zero_optimization.offload_gradients.device", "\"none\"", "sharded on nvme", FIELD(grad_tier)},
    {"zero_optimization.cpu_offload", "true", "", FIELD(optimizer_tier)},
    {"zero_optimization.cpu_offload_param", "true", "stage3", FIELD(param_tier)},
    {"zero_optimization.piece_bytes", "65536", "", FIELD(terms.piece_bytes)},
    {"zero_optimization.sub_group_size", "1024", "", FIELD(terms.chunk_elements_max)},
    {"aio.block_size", "8192", "", FIELD(aio_block_bytes)},
    {"aio.queue_depth", "3", "", FIELD(aio_queue_depth)},
    {"nvme.io_uring", "\"never\"", "", FIELD(nvme_uring)},
    {"nvme.masters", "\"split\"", "bf16 on nvme", FIELD(masters)},
    {"zero_optimization.offload_optimizer.masters", "\"split\"", "bf16 in host memory", FIELD(masters)},
    {"bf16.bf16_optimizer_states", "true", "bf16 on nvme", FIELD(bf16_states)},
    {"nvme.shadow", "true", "bf16 on nvme", FIELD(nvme_shadow)},
    {"checkpoint.async", "true", "", FIELD(checkpoint_async)},
    {"checkpoint.async_bytes", "\"1MiB\"", "", FIELD(checkpoint_async_bytes)},
    {"checkpoint.writers_per_node", "1", "", FIELD(checkpoint_writers)},
    {"nvme.endurance_tbw", "600", "", FIELD(nvme_endurance_tbw)},
    {"zero_optimization.stage3_param_persistence_threshold", "7e3", "", FIELD(persistence_threshold)},
    {"zero_optimization.mics_shard_size", "1", "", FIELD(shard_ranks)},
    {"zero_optimization.zero_hpz_partition_size", "2", "stage3", FIELD(hpz_ranks)},
    {"zero_optimization.zero_quantized_weights", "\"fp8_e4m3\"", "stage3", FIELD(weight_code)},
    {"zero_optimization.zero_quantized_gradients", "true", "", FIELD(quantized_gradients)},
    {"comm.quantized_gradient_bits", "8", "", FIELD(comm.quantized_gradient_bits)},
    {"comm.node_ranks", "1", "", FIELD(node_group)},
    {"comm.reshard_after_forward", "false", "stage3", FIELD(reshard)},
    {"max_skipped_steps", "3", "", FIELD(max_skipped_steps)},
    {"steps_per_print", "3", "", FIELD(steps_per_print)},
    {"debug.compare_every", "7", "", FIELD(compare_every)},
    {"ema.decay", "0.5", "", FIELD(ema.decay)},
    {"ema.every", "7", "", FIELD(ema.every)},
    {"ema.begin", "7", "", FIELD(ema.begin)},
    {"ema.warmup", "true", "", FIELD(ema.warmup)},
    {"seed", "7", "", FIELD(seed)},
    {"threads", "3", "", FIELD(threads)},
    {"comm.timeout_s", "3", "", FIELD(comm.timeout_s)},
    {"comm.checksum", "false", "", FIELD(comm.checksum)},
    {"comm.reduction", "\"native\"", "", FIELD(comm.reduction)},
    {"device.type", "\"cuda\"", "", FIELD(device_type)},
    {"device.index", "3", "", FIELD(device_index)},
    {"device.graphs", "false", "", FIELD(device_graphs)},
    {"device.attention", "\"mma\"", "", FIELD(device_attention)},
    {"device.keep_outputs", "true", "", FIELD(device_outputs)},
    {"comm.prefetch_depth", "3", "", FIELD(terms.depth)},
    {"comm.backward_prefetch_depth", "3", "", FIELD(terms.backward_depth)},
    {"zero_optimization.stage3_max_live_parameters", "3", "", FIELD(terms.live_max)},
    {"zero_optimization.stage3_prefetch_bucket_size", "3", "", FIELD(terms.ahead_max)},
    {"memory.device", "\"8GiB\"", "", FIELD(budget_bytes[TIER_DEVICE])},
    {"memory.cpu", "1e9", "", FIELD(budget_bytes[TIER_CPU])},
    {"memory.device_margin", "1e9", "", FIELD(device_margin)},
    {"memory.nvme", "4096", "", FIELD(budget_bytes[TIER_NVME])},
    {"data.path", "\"/usr/include\"", "", FIELD(data.paths.count)},
    {"data.bytes", "true", "", FIELD(data.bytes)},
    {"data.order", "\"shuffled\"", "", FIELD(data.order)},
    {"data.document_end", "7", "", FIELD(data.document_end)},
    {"data.context", "33", "llama", FIELD(model.context)},
    {"data.eval", "0.25", "", FIELD(data.eval.fraction)},
    {"model.model_type", "\"llama\"", "", FIELD(model.layers)},
    {"model.num_hidden_layers", "3", "llama", FIELD(model.layers)},
    {"model.hidden_size", "64", "llama", FIELD(model.width)},
    {"model.intermediate_size", "33", "llama", FIELD(model.inner)},
    {"model.num_attention_heads", "8", "llama", FIELD(model.heads)},
    {"model.num_key_value_heads", "8", "llama", FIELD(model.kv_heads)},
    {"model.head_dim", "6", "llama", FIELD(model.head_width)},
    {"model.max_sequence_length", "33", "llama", FIELD(model.context)},
    {"model.max_position_embeddings", "33", "llama", FIELD(model.context)},
    {"model.rms_norm_eps", "0.5", "llama", FIELD(model.layer_norm_epsilon)},
    {"model.hidden_act", "\"swish\"", "llama", FIELD(model.hidden_act)},
    {"model.rope_theta", "500", "llama", FIELD(model.rope.theta)},
    {"model.rope_scaling.rope_type", "\"llama3\"", "nothing", FIELD(model.rope.type)},
    {"model.rope_scaling.type", "\"default\"", "nothing", FIELD(model.rope.type)},
    {"model.rope_scaling.factor", "3", "stretched", FIELD(model.rope.factor)},
    {"model.rope_scaling.low_freq_factor", "0.5", "stretched", FIELD(model.rope.low)},
    {"model.rope_scaling.high_freq_factor", "6", "stretched", FIELD(model.rope.high)},
    {"model.rope_scaling.original_max_position_embeddings", "99", "stretched",
     FIELD(model.rope.original_context)},
    {"model.rope_parameters.rope_theta", "500", "llama", FIELD(model.rope.theta)},
    {"model.rope_parameters.rope_type", "\"llama3\"", "nothing", FIELD(model.rope.type)},
    {"model.rope_parameters.factor", "3", "stretched in transformers 5", FIELD(model.rope.factor)},
    {"model.rope_parameters.low_freq_factor", "0.5", "stretched in transformers 5", FIELD(model.rope.low)},
    {"model.rope_parameters.high_freq_factor", "6", "stretched in transformers 5", FIELD(model.rope.high)},
    {"model.rope_parameters.original_max_position_embeddings", "99", "stretched in transformers 5",
     FIELD(model.rope.original_context)},
    {"model.rope_scaling.beta_fast", "7", "yarn", FIELD(model.rope.high)},
    {"model.rope_scaling.beta_slow", "7", "yarn", FIELD(model.rope.low)},
    {"model.rope_scaling.attention_factor", "7", "yarn", FIELD(model.rope.attention)},
    {"model.rope_scaling.mscale", "2", "yarn", FIELD(model.rope.attention)},
    {"model.rope_scaling.mscale_all_dim", "2", "yarn", FIELD(model.rope.attention)},
    {"model.rope_scaling.truncate", "false", "yarn", FIELD(model.rope.truncate)},
    {"model.rope_parameters.beta_fast", "7", "yarn in transformers 5", FIELD(model.rope.high)},
    {"model.rope_parameters.beta_slow", "7", "yarn in transformers 5", FIELD(model.rope.low)},
    {"model.rope_parameters.attention_factor", "7", "yarn in transformers 5", FIELD(model.rope.attention)},
    {"model.rope_parameters.mscale", "2", "yarn in transformers 5", FIELD(model.rope.attention)},
    {"model.rope_parameters.mscale_all_dim", "2", "yarn in transformers 5", FIELD(model.rope.attention)},
    {"model.rope_parameters.truncate", "false", "yarn in transformers 5", FIELD(model.rope.truncate)},
    {"model.sliding_window", "null", "mistral", FIELD(model.window)},
    {"model.use_sliding_window", "true", "qwen3", FIELD(model.window)},
    {"model.max_window_layers", "1", "windows", FIELD(model.window_from)},
    {"model.layer_types", "[\"full_attention\", \"sliding_attention\"]", "windows", FIELD(model.window_from)},
    {"comm.transport", "\"nccl\"", "", FIELD(comm.transport)},
    {"trace.steps", "3", "", FIELD(trace_steps)},
    {"trace.first_step", "3", "", FIELD(trace_first)},
    {"model.n_layer", "3", "", FIELD(model.layers)},
    {"model.n_embd", "24", "", FIELD(model.width)},
    {"model.n_head", "3", "", FIELD(model.heads)},
    {"model.n_positions", "33", "", FIELD(model.context)},
    {"model.n_ctx", "33", "", FIELD(model.context)},
    {"model.vocab_size", "33", "", FIELD(model.vocab)},
    {"model.n_inner", "33", "", FIELD(model.inner)},
    {"model.activation_function", "\"gelu_pytorch_tanh\"", "", FIELD(model.activation)},
    {"model.layer_norm_epsilon", "0.5", "", FIELD(model.layer_norm_epsilon)},
    {"model.gradient_checkpointing", "true", "", FIELD(recompute.blocks)},
    {"activation_checkpointing.interval", "2", "", FIELD(recompute.blocks)},
    {"activation_checkpointing.number_checkpoints", "3", "", FIELD(recompute.blocks)},
    {"activation_checkpointing.cpu_checkpointing", "true", "", FIELD(recompute.on_cpu)},
    {"activation_checkpointing.nvme_checkpointing", "true", "scratch", FIELD(recompute.tier)},
    {"activation_checkpointing.nvme_path", "[\"/a\", \"/b\"]", "", FIELD(recompute.paths.count)},
    {"zero_optimization.micro_order", "\"vertical\"", "", FIELD(micro_order)},
    {"zero_optimization.update_in_backward", "true", "unclipped", FIELD(terms.update_in_backward)},
    {"zero_optimization.update_in_forward", "0.5", "updates in the backward", FIELD(terms.waiting_share)},
    {"zero_optimization.vocabulary_block_rows", "33", "", FIELD(model.vocab_block)},
    {"model.initializer_range", "0.5", "", FIELD(model.initializer_range)},
    {"model.tie_word_embeddings", "false", "", FIELD(model.tied)},
};

static const struct {
    const char *name, *path, *json;
} settings[] = {
    {"sgd", "optimizer.type", "\"SGD\""},
    {"scratch", "activation_checkpointing.nvme_path", "\"/a\""},
    {"adagrad", "optimizer.type", "\"Adagrad\""},
    {"adam", "optimizer.type", "\"Adam\""},
    {"muon", "optimizer.type", "\"Muon\""},
    {"lamb", "optimizer.type", "\"Lamb\""},
    {"nesterov", "optimizer.type", "\"SGD\""},
    {"nesterov", "optimizer.params.momentum", "0.9"},
    {"stage3", "zero_optimization.stage", "3"},
    {"decay", "scheduler.type", "\"WarmupDecayLR\""},
    {"decay", "scheduler.params.total_num_steps", "100"},
    {"cosine", "scheduler.type", "\"WarmupCosineLR\""},
    {"cosine", "scheduler.params.total_num_steps", "100"},
    {"range", "scheduler.type", "\"LRRangeTest\""},
    {"cycle", "scheduler.type", "\"OneCycle\""},
    {"cycle", "scheduler.params.cycle_min_lr", "0.1"},
    {"cycle", "scheduler.params.cycle_max_lr", "0.2"},
    {"autocast", "torch_autocast.enabled", "true"},
    {"steps", "scheduler.type", "\"StepLR\""},
    {"steps", "scheduler.params.step_size", "3"},
    {"multi", "scheduler.type", "\"MultiStepLR\""},
    {"multi", "scheduler.params.milestones", "[1]"},
    {"constant", "scheduler.type", "\"ConstantLR\""},
    {"linear", "scheduler.type", "\"LinearLR\""},
    {"polynomial", "scheduler.type", "\"PolynomialLR\""},
    {"annealing", "scheduler.type", "\"CosineAnnealingLR\""},
    {"annealing", "scheduler.params.T_max", "5"},
    {"restarts", "scheduler.type", "\"CosineAnnealingWarmRestarts\""},
    {"restarts", "scheduler.params.T_0", "5"},
    {"cyclic", "scheduler.type", "\"CyclicLR\""},
    {"cyclic", "scheduler.params.base_lr", "0.1"},
    {"cyclic", "scheduler.params.max_lr", "0.2"},
    {"one_cycle", "scheduler.type", "\"OneCycleLR\""},
    {"one_cycle", "scheduler.params.max_lr", "0.1"},
    {"one_cycle", "scheduler.params.total_steps", "50"},
    {"floor", "scheduler.type", "\"cosine_with_min_lr\""},
    {"floor", "scheduler.params.num_training_steps", "50"},
    {"floor", "scheduler.params.min_lr", "0.1"},
    {"share", "scheduler.type", "\"cosine_with_min_lr\""},
    {"share", "scheduler.params.num_training_steps", "50"},
    {"share", "scheduler.params.min_lr_rate", "0.1"},
    {"stable", "scheduler.type", "\"warmup_stable_decay\""},
    {"stable", "scheduler.params.num_decay_steps", "5"},
    {"stable", "scheduler.params.num_training_steps", "50"},
    {"rest", "scheduler.type", "\"warmup_stable_decay\""},
    {"rest", "scheduler.params.num_decay_steps", "5"},
    {"rest", "scheduler.params.num_stable_steps", "5"},
    {"sharded on nvme", "zero_optimization.stage", "2"},
    {"sharded on nvme", "zero_optimization.offload_optimizer.device", "\"nvme\""},
    {"sharded on nvme", "zero_optimization.offload_optimizer.nvme_path", "\"/a\""},
    {"bf16 on nvme", "bf16.enabled", "true"},
    {"bf16 on nvme", "zero_optimization.offload_optimizer.device", "\"nvme\""},
    {"bf16 on nvme", "zero_optimization.offload_optimizer.nvme_path", "\"/a\""},
    {"bf16 on nvme", "nvme.masters", "\"fp32\""},
    {"bf16 in host memory", "bf16.enabled", "true"},
    {"bf16 in host memory", "zero_optimization.offload_optimizer.device", "\"cpu\""},
    {"bf16 in host memory", "zero_optimization.offload_optimizer.masters", "\"fp32\""},
    {"llama", "model.model_type", "\"llama\""},
    {"stretched", "model.model_type", "\"llama\""},
    {"stretched", "model.rope_scaling.rope_type", "\"llama3\""},
    {"stretched", "model.rope_scaling.factor", "8"},
    {"stretched", "model.rope_scaling.low_freq_factor", "1"},
    {"stretched", "model.rope_scaling.high_freq_factor", "4"},
    {"stretched", "model.rope_scaling.original_max_position_embeddings", "8192"},
    {"mistral", "model.model_type", "\"mistral\""},
    {"qwen3", "model.model_type", "\"qwen3\""},
    {"windows", "model.model_type", "\"qwen2\""},
    {"windows", "model.num_hidden_layers", "2"},
    {"windows", "model.use_sliding_window", "true"},
    {"windows", "model.max_window_layers", "0"},
    {"yarn", "model.model_type", "\"llama\""},
    {"yarn", "model.rope_scaling.rope_type", "\"yarn\""},
    {"yarn", "model.rope_scaling.factor", "8"},
    {"yarn", "model.rope_scaling.mscale", "0.5"},
    {"yarn", "model.rope_scaling.mscale_all_dim", "0.7"},
    {"yarn in transformers 5", "model.model_type", "\"llama\""},
    {"yarn in transformers 5", "model.rope_parameters.rope_type", "\"yarn\""},
    {"yarn in transformers 5", "model.rope_parameters.factor", "8"},
    {"yarn in transformers 5", "model.rope_parameters.mscale", "0.5"},
    {"yarn in transformers 5", "model.rope_parameters.mscale_all_dim", "0.7"},
    {"unclipped", "gradient_clipping", "0"},
    {"updates in the backward", "gradient_clipping", "0"},
    {"updates in the backward", "zero_optimization.update_in_backward", "true"},
    {"stretched in transformers 5", "model.model_type", "\"llama\""},
    {"stretched in transformers 5", "model.rope_parameters.rope_type", "\"llama3\""},
    {"stretched in transformers 5", "model.rope_parameters.factor", "8"},
    {"stretched in transformers 5", "model.rope_parameters.low_freq_factor", "1"},
    {"stretched in transformers 5", "model.rope_parameters.high_freq_factor", "4"},
    {"stretched in transformers 5", "model.rope_parameters.original_max_position_embeddings", "8192"},
};

/* Resolved for 2 ranks; the batch is left to `effect` where that is what it sets. */
static void resolved(const struct effect *effect, bool apply, struct config *config) {
    struct zero_error error;
    error_clear(&error);
    config_read("{}", config, &error);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (strcmp(settings[i].name, effect->with) == 0)
            config_set(config, settings[i].path, settings[i].json, &error);
    }
    if (apply) config_set(config, effect->path, effect->value, &error);
    if (strncmp(effect->path, "train_", 6) != 0 || !apply)
        config_set(config, "train_micro_batch_size_per_gpu", "2", &error);
    if (!CHECK_INT(config_resolve(config, 2, &error), ZERO_OK))
        fprintf(stderr, "%s: %s\n", effect->path, error.message);
}

static void every_used_key_has_an_effect(void) {
    for (size_t i = 0; i < sizeof effects / sizeof effects[0]; i++) {
        const struct effect *e = &effects[i];
        struct config before, after;
        if (strcmp(e->with, "nothing") == 0) continue; /* it means nothing without others: resolve_test.c */
        resolved(e, false, &before);
        resolved(e, true, &after);
        bool differs = memcmp((char *)&before + e->offset, (char *)&after + e->offset, e->bytes) != 0;
        if (!CHECK(differs)) fprintf(stderr, "%s = %s changed nothing\n", e->path, e->value);
        config_free(&before);
        config_free(&after);
    }
}

static void every_used_key_has_a_row(void) {
    for (uint32_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        size_t found = key->use != KEY_USED;
        for (size_t e = 0; e < sizeof effects / sizeof effects[0]; e++)
            found += strcmp(effects[e].path, key->path) == 0;
        if (!CHECK_INT(found, 1)) fprintf(stderr, "%s\n", key->path);
    }
}

static void every_row_is_complete(void) {
    for (uint32_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        CHECK(key->help && *key->help);
        CHECK(key->use == KEY_USED || (key->note && *key->note));
        bool chosen = key->type == KEY_CHOICE || key->type == KEY_SWITCH;
        CHECK(chosen == (key->choices || key->row));
        if (!CHECK(!key->choices || !strchr(key->choices, '!') || key->note || key->row))
            fprintf(stderr, "%s\n", key->path);
        CHECK_INT(config_key_index(config_key_find(key->path)), i); /* no path stands twice */
        if (!CHECK(!config_key_is_object(key->path)))
            fprintf(stderr, "%s is a key and an object\n", key->path);
    }
}

static void help_and_print_name_every_used_key(void) {
    struct config config;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(config_read("{\"train_batch_size\": 2, \"wall_clock_breakdown\": true}", &config, &error),
              ZERO_OK);
    CHECK_INT(config_resolve(&config, 1, &error), ZERO_OK);
    char *help = config_help(), *print = config_print(&config);
    for (uint32_t i = 0; i < config_key_count(); i++) {
        CHECK_CONTAINS(help, config_key_at(i)->path);
        if (config_key_at(i)->use == KEY_USED) CHECK_CONTAINS(print, config_key_at(i)->path);
    }
    CHECK_CONTAINS(print,
                   "wall_clock_breakdown                                     true                   file");
    CHECK(!strstr(print, "wandb"));
    free(help), free(print);
    config_free(&config);
}

int main(void) {
    every_row_is_complete();
    every_refused_key_gives_its_reason();
    every_accepted_key_gives_one_line();
    every_used_key_has_a_row();
    every_used_key_has_an_effect();
    help_and_print_name_every_used_key();
    return check_end();
}
