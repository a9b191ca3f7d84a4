/* What DeepSpeed 0.19 takes and other readers might not: each row is a configuration and what follows from it. */
#include "engine/config/config.h"
#include "engine/config/key.h"
#include "engine/config/value.h"
#include "tests/check.h"

/* Reads and resolves {"train_batch_size": 4, <members>} for one rank, twice, as a planner may. */
static zero_status resolved(const char *members, struct config *config, struct zero_error *error) {
    char json[1024];
    error_clear(error);
    snprintf(json, sizeof json, "{\"train_batch_size\": 4, %s}", members);
    zero_status status = config_read(json, config, error);
    for (int again = 0; again < 2 && !status; again++) status = config_resolve(config, 1, error);
    return status;
}

static const struct {
    const char *members, *key, *text; /* NULL: it is taken, and no more */
} taken[] = {
    /* 1, 1.0 and true are alike, and have one text */
    {"\"prescale_gradients\": 1", "prescale_gradients", "true"},
    {"\"prescale_gradients\": 0.0", "prescale_gradients", "false"},
    {"\"zero_allow_untested_optimizer\": 1, \"sparse_gradients\": 0, \"sequence_parallel_size\": true", NULL,
     NULL},
    {"\"zero_optimization\": {\"stage\": true, \"overlap_comm\": 0, \"zero_quantized_gradients\": 1.0}",
     "zero_optimization.zero_quantized_gradients", "true"},
    {"\"zero_optimization\": {\"stage\": 3, \"zero_quantized_weights\": 1}",
     "zero_optimization.zero_quantized_weights", "true"},
    {"\"zero_optimization\": {\"stage\": true}", "zero_optimization.stage", "1"},
    {"\"gradient_clipping\": false", "gradient_clipping", "0"},
    {"\"fp16\": {\"enabled\": 1, \"hysteresis\": true}", "fp16.hysteresis", "1"},
    {"\"curriculum_learning\": {\"enabled\": 0}, \"elasticity\": {\"enabled\": 0.0}", NULL, NULL},
    /* "auto" is the default */
    {"\"zero_optimization\": {\"sub_group_size\": \"auto\"}", "zero_optimization.sub_group_size", "1e9"},
    {"\"zero_optimization\": {\"zero_quantized_weights\": \"auto\"}",
     "zero_optimization.zero_quantized_weights", "false"},
    {"\"zero_optimization\": {\"leaf_module\": \"auto\", \"zenflow\": \"auto\", \"zeropp_loco_param\": "
     "\"auto\"}",
     NULL, NULL},
    {"\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\", \"nvme_path\": \"auto\", "
     "\"ratio\": \"auto\"}}",
     "zero_optimization.offload_optimizer.nvme_path", NULL},
    {"\"bf16\": {\"enabled\": \"auto\", \"bf16_optimizer_states\": \"auto\"}", "bf16.bf16_optimizer_states",
     "false"},
    /* ranges of a block that is off, or of a scale that does not move */
    {"\"fp16\": {\"enabled\": false, \"loss_scale\": -1, \"loss_scale_window\": 0, \"hysteresis\": 0, "
     "\"min_loss_scale\": 1e30, "
     "\"initial_scale_power\": 999}",
     "fp16.min_loss_scale", "1e30"},
    {"\"fp16\": {\"hysteresis\": 0}", NULL, NULL},
    {"\"fp16\": {\"enabled\": true, \"loss_scale\": 128, \"loss_scale_window\": 0}", NULL, NULL},
    {"\"aio\": {\"block_size\": 100, \"queue_depth\": 0}, \"zero_optimization\": {\"offload_optimizer\": "
     "{\"device\": \"none\", \"ratio\": 2, \"buffer_count\": 5000}}",
     "aio.block_size", "100"},
    /* numbers and booleans in quotes, in blocks that pydantic reads */
    {"\"fp16\": {\"enabled\": \"True\", \"loss_scale\": \"0\", \"initial_scale_power\": \"8\"}",
     "fp16.initial_scale_power", "8"},
    {"\"bf16\": {\"enabled\": \"yes\"}", "bf16.enabled", "true"},
    {"\"zero_optimization\": {\"stage\": \"2\", \"overlap_comm\": \"off\", \"reduce_bucket_size\": \"500\", "
     "\"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": \"1\", \"ratio\": \"0.5\"}}",
     "zero_optimization.offload_optimizer.ratio", "0.5"},
    {"\"zero_optimization\": {\"stage\": 3, \"zero_quantized_weights\": \"true\"}",
     "zero_optimization.zero_quantized_weights", "true"},
    /* ranks that share with no other; blocks of blocks that are off */
    {"\"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 0}, \"tensor_parallel\": "
     "{\"autotp_size\": 1}",
     "zero_optimization.zero_hpz_partition_size", "0"},
    {"\"compression_training\": {\"weight_quantization\": {\"shared_parameters\": {\"enabled\": false}, "
     "\"different_groups\": {}}}",
     NULL, NULL},
    /* names without a prefix */
    {"\"zero_optimization\": {\"prefetch_bucket_size\": 9}", "zero_optimization.stage3_prefetch_bucket_size",
     "9"},
    {"\"zero_optimization\": {\"max_live_parameters\": 1e3, \"stage3_max_live_parameters\": 1000}",
     "zero_optimization.stage3_max_live_parameters", "1000"},
    {"\"zero_optimization\": {\"gather_16bit_weights_on_model_save\": true, \"max_reuse_distance\": 1e9}",
     NULL, NULL},
    /* a boolean in place of the block */
    {"\"zero_optimization\": true, \"allgather_size\": 500000000", "zero_optimization.stage", "1"},
    {"\"zero_optimization\": false", "zero_optimization.stage", "0"},
    /* limits without a bound */
    {"\"steps_per_print\": 2147483647", "steps_per_print", "2147483647"},
    {"\"steps_per_print\": 1e999", NULL, NULL},
    {"\"steps_per_print\": null", "steps_per_print", "null"},
    {"\"steps_per_print\": \"auto\"", "steps_per_print", "10"},
    {"\"zero_optimization\": {\"sub_group_size\": 1000000000000000000000}", NULL, NULL},
    {"\"zero_optimization\": {\"sub_group_size\": 0, \"offload_optimizer\": {\"device\": \"cpu\", "
     "\"buffer_count\": 0}}",
     NULL, NULL},
    {"\"zero_optimization\": {\"reduce_bucket_size\": 1e20, \"stage3_max_reuse_distance\": Infinity}", NULL,
     NULL},
    {"\"disable_allgather\": true", "disable_allgather", "true"},
    /* none are computed again */
    {"\"activation_checkpointing\": {\"number_checkpoints\": false}", "activation_checkpointing.interval",
     "0"},
    {"\"activation_checkpointing\": {\"number_checkpoints\": null}", "activation_checkpointing.interval",
     "0"},
    {"\"activation_checkpointing\": {\"number_checkpoints\": 0}", "activation_checkpointing.interval", "0"},
    {"\"activation_checkpointing\": {\"number_checkpoints\": \"auto\"}", "activation_checkpointing.interval",
     "0"},
    /* the type of sums chooses the mode */
    {"\"gradient_accumulation_steps\": 2, \"bf16\": {\"enabled\": true}, \"data_types\": "
     "{\"grad_accum_dtype\": \"fp32\"}",
     "gradient_accumulation_mode", "\"every\""},
    {"\"gradient_accumulation_steps\": 2, \"fp16\": {\"enabled\": true}, \"data_types\": "
     "{\"grad_accum_dtype\": \"fp32\"}, "
     "\"zero_optimization\": true",
     "gradient_accumulation_mode", "\"every\""},
    {"\"gradient_accumulation_steps\": 2, \"data_types\": {\"grad_accum_dtype\": \"fp32\"}",
     "gradient_accumulation_mode", "\"last\""},
    {"\"gradient_accumulation_steps\": 2, \"bf16\": {\"enabled\": true}", "gradient_accumulation_mode",
     "\"last\""},
    /* the group that Muon implies */
    {"\"optimizer\": {\"type\": \"Muon\", \"params\": {\"lr\": 0.5, \"weight_decay\": 0.25}}", "param_groups",
     "[{\"optimizer\": \"AdamW\", \"lr\": 0.5, \"weight_decay\": 0.25}]"},
    {"\"optimizer\": {\"type\": \"Muon\", \"params\": {\"lr\": 0.5, \"muon_lr\": 0.125}}", "param_groups",
     "[{\"optimizer\": \"AdamW\", \"lr\": 0.5, \"weight_decay\": 0}]"},
    {"\"optimizer\": {\"type\": \"Muon\", \"params\": {\"adam_lr\": 0.5, \"muon_lr\": 0.125}}",
     "optimizer.params.lr", "0.125"},
    {"\"optimizer\": {\"type\": \"Muon\"}", "optimizer.params.weight_decay", "0"},
    /* keys that DeepSpeed does not read */
    {"\"optimizer\": {\"type\": \"Adam\", \"adam_w_mode\": false}, \"logging_batch_size_per_gpu\": \"auto\", "
     "\"$schema\": \"x\", \"nebula\": {\"enabled\": false, \"persistent_time_interval\": 100}, "
     "\"num_processes\": 8",
     "optimizer.params.adam_w_mode", "true"},
    {"\"_optimizer\": {\"type\": \"SGD\"}, \"//\": \"a note\", \"#stage\": 3, \"comms_config\": {}, "
     "\"monitor_config\": [], "
     "\"dataloader_settings\": 1, \"zero3_init_flag\": true, \"description\": \"a note\"",
     NULL, NULL},
};

static void takes(void) {
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        struct config config;
        struct zero_error error;
        if (!CHECK_INT(resolved(taken[i].members, &config, &error), ZERO_OK))
            fprintf(stderr, "%s: %s\n", taken[i].members, error.message);
        const char *text = taken[i].key ? config_entry(&config, taken[i].key)->text : NULL;
        if (taken[i].text && CHECK(text)) CHECK_STRING(text, taken[i].text);
        if (taken[i].key && !taken[i].text) CHECK(!text);
        config_free(&config);
    }
}

/* Limits that have no bound are the largest that the engine has; 0 elements of a chunk are the default. */
static void limits(void) {
    static const struct {
        const char *members;
        uint64_t steps, elements;
    } rows[] = {
        {"\"steps_per_print\": 1e999, \"zero_optimization\": {\"sub_group_size\": 1000000000000000000000}",
         1000000000000000000u, 1000000000000000000u},
        {"\"steps_per_print\": null, \"zero_optimization\": {\"sub_group_size\": 0}", 0, 1000000000},
        {"\"steps_per_print\": false, \"zero_optimization\": {\"sub_group_size\": \"auto\"}", 0, 1000000000},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct config config;
        struct zero_error error;
        CHECK_INT(resolved(rows[i].members, &config, &error), ZERO_OK);
        CHECK_INT(config.steps_per_print, rows[i].steps);
        CHECK_INT(config.terms.chunk_elements_max, rows[i].elements);
        config_free(&config);
    }
}

static const struct {
    const char *members, *message;
} refused[] = {
    /* true is not the scale of fp16, as in DeepSpeed, nor a number of the engine's own or of a model */
    {"\"fp16\": {\"enabled\": true, \"loss_scale\": true}",
     "fp16.loss_scale: true is a boolean where a number or \"auto\" is expected"},
    {"\"fp16\": {\"min_loss_scale\": true}",
     "fp16.min_loss_scale: true is a boolean where an integer or \"auto\" is expected"},
    {"\"model\": {\"n_layer\": true}", "model.n_layer: true is a boolean where an integer is expected"},
    {"\"seed\": true", "seed: true is a boolean where an integer is expected"},
    {"\"device\": {\"graphs\": 1}", "device.graphs: 1 is an integer where true or false is expected"},
    {"\"prescale_gradients\": 2",
     "prescale_gradients: 2 is an integer where true or false or \"auto\" is expected"},
    /* ranges of a block that is on */
    {"\"fp16\": {\"enabled\": true, \"loss_scale_window\": 0}",
     "fp16.loss_scale_window: 0 is outside its range: give an integer from 1 to 1e+12"},
    {"\"torch_autocast\": {\"enabled\": true, \"dtype\": \"float16\"}, \"fp16\": {\"initial_scale_power\": "
     "999}",
     "fp16.initial_scale_power: 999 is outside its range: give an integer from 0 to 127"},
    {"\"fp16\": {\"enabled\": true, \"loss_scale\": -1}",
     "fp16.loss_scale: -1 is outside its range: give a number from 0 to 1e+30"},
    {"\"aio\": {\"queue_depth\": 0}, \"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\", "
     "\"nvme_path\": \"/a\"}}",
     "aio.queue_depth: 0 is outside its range: give an integer from 1 to 4096"},
    {"\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 2}}",
     "zero_optimization.offload_optimizer.ratio: 2 is outside its range: give a number from 0 to 1"},
    /* quotes that DeepSpeed does not take either */
    {"\"fp16\": {\"loss_scale\": \"true\"}",
     "fp16.loss_scale: \"true\" is a string where a number or \"auto\" is expected: remove the quotes"},
    {"\"optimizer\": {\"params\": {\"lr\": \"1e-4\"}}",
     "optimizer.params.lr: \"1e-4\" is a string where a number or \"auto\" is expected: remove the quotes"},
    /* both spellings, in either order */
    {"\"zero_optimization\": {\"prefetch_bucket_size\": 1, \"stage3_prefetch_bucket_size\": 2}",
     "zero_optimization.stage3_prefetch_bucket_size: it is written with and without \"stage3_\", as 1 and as "
     "2: remove one of "
     "them"},
    {"\"zero_optimization\": {\"stage3_max_reuse_distance\": \"auto\", \"max_reuse_distance\": 2}",
     "zero_optimization.stage3_max_reuse_distance: it is written with and without \"stage3_\", as \"auto\" "
     "and as 2: remove one "
     "of them"},
    /* a key that DeepSpeed does not read, and that means one that is read */
    {"\"checkpoint_engine\": 1", "checkpoint_engine: unknown key: zero config --help lists all keys"},
    {"\"gradient_cliping\": 1", "gradient_cliping: unknown key: did you mean \"gradient_clipping\"?"},
    {"\"max_grad_norm\": 1", "max_grad_norm: unknown key: its name here is gradient_clipping"},
    {"\"learning_rate\": 1", "learning_rate: unknown key: its name here is optimizer.params.lr"},
    {"\"zero_stage\": 1", "zero_stage: unknown key: its name here is zero_optimization.stage"},
    {"\"mixed_precision\": \"bf16\"",
     "mixed_precision: unknown key: its name here is bf16.enabled or fp16.enabled"},
    {"\"warmup_steps\": 1", "warmup_steps: unknown key: its name here is scheduler.params.warmup_num_steps"},
    {"\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_steps\": 1}}",
     "scheduler.params.warmup_steps: unknown key: its name here is scheduler.params.warmup_num_steps"},
    {"\"offload_optimizer\": {\"device\": \"cpu\"}",
     "offload_optimizer: unknown key: its name here is zero_optimization.offload_optimizer.device"},
    {"\"zero_optimization\": {\"_stage\": 1}",
     "zero_optimization._stage: unknown key: did you mean \"stage\"?"},
};

static void refuses(void) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct config config;
        struct zero_error error;
        CHECK_INT(resolved(refused[i].members, &config, &error), ZERO_E_CONFIG);
        CHECK_STRING(error.message, refused[i].message);
        config_free(&config);
    }
}

/* DeepSpeed drops each "auto" of these blocks. */
static void every_auto(void) {
    static const char *const blocks[] = {"zero_optimization.", "bf16.", "fp16."};
    uint32_t count = 0;
    for (uint32_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        struct config config;
        struct zero_error error;
        bool inside = false;
        for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
            inside |= !strncmp(key->path, blocks[b], strlen(blocks[b]));
        if (!inside) continue;
        error_clear(&error);
        CHECK_INT(
            config_read("{\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": 3}}", &config, &error),
            ZERO_OK);
        if (!CHECK_INT(config_set(&config, key->path, "\"auto\"", &error), ZERO_OK))
            fprintf(stderr, "%s\n", error.message);
        config_free(&config);
        count++;
    }
    CHECK(count > 60);
}

int main(void) {
    takes();
    every_auto();
    limits();
    refuses();
    return check_end();
}
