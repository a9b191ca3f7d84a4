/* Rules between keys: the batch triple, optimizers, conflicts, values from the command line. */
#include "engine/config/config.h"
#include "engine/config/value.h"
#include "kernels/optimizer.h"
#include "tests/check.h"

static const struct {
    uint64_t train, micro, steps;
    uint32_t ranks;
    uint64_t out[3];
    const char *message;
} triples[] = {
    {16, 8, 1, 2, {16, 8, 1}, NULL},
    {16, 8, 0, 2, {16, 8, 1}, NULL},
    {16, 8, 0, 1, {16, 8, 2}, NULL},
    {16, 0, 2, 2, {16, 4, 2}, NULL},
    {0, 4, 3, 2, {24, 4, 3}, NULL},
    {16, 0, 0, 4, {16, 4, 1}, NULL},
    {0, 4, 0, 4, {16, 4, 1}, NULL},
    {0,
     0,
     2,
     1,
     {0},
     "train_batch_size: it is missing, as is train_micro_batch_size_per_gpu: give one of them"},
    {17,
     8,
     1,
     2,
     {0},
     "train_batch_size: 17 is not train_micro_batch_size_per_gpu 8 * gradient_accumulation_steps 1 * 2 ranks "
     "= 16: change "
     "one of them, or leave one out to have it derived"},
    {10,
     3,
     0,
     1,
     {0},
     "train_batch_size: 10 is not a multiple of train_micro_batch_size_per_gpu 3 * 1 rank = 3: choose a "
     "multiple of 3, as 9"},
    {3,
     0,
     0,
     2,
     {0},
     "train_batch_size: 3 is not a multiple of gradient_accumulation_steps 1 * 2 ranks = 2: choose a "
     "multiple of 2, as 2"},
    {4,
     8,
     0,
     1,
     {0},
     "train_batch_size: 4 is not a multiple of train_micro_batch_size_per_gpu 8 * 1 rank = 8: choose a "
     "multiple of 8, as 8"},
    {4294967297,
     1,
     0,
     1,
     {0},
     "gradient_accumulation_steps: the other keys make it 4294967297, more than 1000000: lower "
     "train_batch_size, or share it out between train_micro_batch_size_per_gpu and "
     "gradient_accumulation_steps"},
    {4294967297,
     0,
     0,
     1,
     {0},
     "train_micro_batch_size_per_gpu: the other keys make it 4294967297, more than 1000000: lower "
     "train_batch_size, or share it out between train_micro_batch_size_per_gpu and "
     "gradient_accumulation_steps"},
    {1000000, 0, 0, 1, {1000000, 1000000, 1}, NULL},
    {0, 1000000, 1000000, 1, {1000000000000, 1000000, 1000000}, NULL},
    {0,
     1000000,
     1000000,
     18446745,
     {0},
     "train_batch_size: train_micro_batch_size_per_gpu 1000000 * gradient_accumulation_steps 1000000 * "
     "18446745 ranks is more than 1000000000000: lower one of them"},
    /* the product's 64 bits would be those of 926290448384 */
    {926290448384,
     1000000,
     1000000,
     18446745,
     {0},
     "train_batch_size: train_micro_batch_size_per_gpu 1000000 * gradient_accumulation_steps 1000000 * "
     "18446745 ranks is more than 1000000000000: lower one of them"},
};

#define LLAMA(members) "{\"train_batch_size\": 2, \"model\": {\"model_type\": \"llama\", " members "}}"
#define QWEN(members) "{\"train_batch_size\": 2, \"model\": {\"model_type\": \"qwen2\", " members "}}"

static void set_count(struct config *config, const char *path, uint64_t number, struct zero_error *error) {
    char json[32];
    snprintf(json, sizeof json, "%" PRIu64, number);
    if (number) CHECK_INT(config_set(config, path, json, error), ZERO_OK);
}

static void batch_triples(void) {
    for (size_t i = 0; i < sizeof triples / sizeof triples[0]; i++) {
        struct config config;
        struct zero_error error;
        error_clear(&error);
        CHECK_INT(config_read("{}", &config, &error), ZERO_OK);
        set_count(&config, "train_batch_size", triples[i].train, &error);
        set_count(&config, "train_micro_batch_size_per_gpu", triples[i].micro, &error);
        set_count(&config, "gradient_accumulation_steps", triples[i].steps, &error);
        zero_status status = config_resolve(&config, triples[i].ranks, &error);
        CHECK_INT(status, triples[i].message ? ZERO_E_CONFIG : ZERO_OK);
        CHECK_STRING(error.message, triples[i].message ? triples[i].message : "");
        if (!triples[i].message) {
            CHECK_INT(config.train_batch, triples[i].out[0]);
            CHECK_INT(config.micro_batch, triples[i].out[1]);
            CHECK_INT(config.accumulation_steps, triples[i].out[2]);
        }
        config_free(&config);
    }
}

static const struct {
    const char *optimizer, *name;
    double lr, beta2, eps, weight_decay;
    const char *message;
} resolved[] = {
    {"{}", "adamw", 1e-3, 0.999, 1e-8, 0, NULL},
    {"{\"type\": \"adamw\"}", "adamw", 1e-3, 0.999, 1e-8, 0, NULL},
    {"{\"type\": \"Adam\"}", "adamw", 1e-3, 0.999, 1e-8, 0, NULL},
    {"{\"type\": \"Adam\", \"params\": {\"adam_w_mode\": false}}", "adam", 1e-3, 0.999, 1e-8, 0, NULL},
    {"{\"type\": \"FusedAdam\"}", "adamw", 1e-3, 0.999, 1e-8, 0, NULL},
    {"{\"type\": \"CPUAdam\"}", "adamw", 1e-3, 0.999, 1e-8, 0, NULL},
    {"{\"type\": \"DeepSpeedCPUAdam\"}", "adamw", 1e-3, 0.999, 1e-8, 0, NULL},
    {"{\"type\": \"DeepSpeedCPUAdam\", \"_comment\": [1], \"params\": {\"adam_w_mode\": false, \"_comment "
     "lr\": \"?\"}}",
     "adam", 1e-3, 0.999, 1e-8, 0, NULL},
    {"{\"type\": \"AdamW\", \"params\": {\"adam_w_mode\": false}}", "adamw", 1e-3, 0.999, 1e-8, 0, NULL},
    {"{\"type\": \"AdamW\", \"params\": {\"torch_adam\": true}}", "adamw", 1e-3, 0.999, 1e-8, 0.01, NULL},
    {"{\"type\": \"Adam\", \"params\": {\"torch_adam\": true}}", "adamw", 1e-3, 0.999, 1e-8, 0.01, NULL},
    {"{\"type\": \"AdamW\", \"params\": {\"torch_adam\": true, \"weight_decay\": 0.1}}", "adamw", 1e-3, 0.999,
     1e-8, 0.1, NULL},
    {"{\"type\": \"Adam\", \"params\": {\"torch_adam\": true, \"adam_w_mode\": false}}", "adam", 1e-3, 0.999,
     1e-8, 0, NULL},
    {"{\"type\": \"SGD\", \"params\": {\"momentum\": 0.9, \"nesterov\": true}}", "sgd", 1e-3, 0, 0, 0, NULL},
    {"{\"type\": \"SGD\", \"params\": {\"betas\": \"auto\", \"eps\": \"auto\"}}", "sgd", 1e-3, 0, 0, 0, NULL},
    {"{\"type\": \"Lion\"}", "lion", 1e-3, 0.999, 0, 0, NULL},
    {"{\"type\": \"Adagrad\"}", "adagrad", 1e-2, 0, 1e-10, 0, NULL},
    {"{\"type\": \"AdamW\", \"params\": {\"momentum\": 0.9}}", NULL, 0, 0, 0, 0,
     "optimizer.params.momentum: AdamW has no such parameter: remove it; it has lr, betas, eps, "
     "weight_decay, "
     "bias_correction, adam_w_mode, torch_adam"},
    {"{\"type\": \"SGD\", \"params\": {\"eps\": 1e-8}}", NULL, 0, 0, 0, 0,
     "optimizer.params.eps: SGD has no such parameter: remove it; it has lr, weight_decay, momentum, "
     "dampening, nesterov"},
    {"{\"type\": \"SGD\", \"params\": {\"nesterov\": true}}", NULL, 0, 0, 0, 0,
     "optimizer.params.nesterov: true needs momentum above 0 and dampening 0: set them, or set it to false"},
};

static void optimizer_rows(void) {
    for (size_t i = 0; i < sizeof resolved / sizeof resolved[0]; i++) {
        struct config config;
        struct zero_error error;
        char json[512];
        error_clear(&error);
        snprintf(json, sizeof json, "{\"train_batch_size\": 2, \"optimizer\": %s}", resolved[i].optimizer);
        CHECK_INT(config_read(json, &config, &error), ZERO_OK);
        for (int again = 0; again < 2; again++) {
            zero_status status = config_resolve(&config, 1, &error);
            CHECK_INT(status, resolved[i].message ? ZERO_E_CONFIG : ZERO_OK);
            CHECK_STRING(error.message, resolved[i].message ? resolved[i].message : "");
            if (resolved[i].message) break;
            CHECK_STRING(config.optimizer.name, resolved[i].name);
            CHECK_DOUBLE(config.optimizer.lr, resolved[i].lr, 0);
            CHECK_DOUBLE(config.optimizer.betas[1], resolved[i].beta2, 0);
            CHECK_DOUBLE(config.optimizer.eps, resolved[i].eps, 0);
            CHECK_DOUBLE(config.optimizer.weight_decay, resolved[i].weight_decay, 0);
        }
        config_free(&config);
    }
}

/* "Adam" is the same in a group as in the run. */
static void adam_of_a_group(void) {
    static const struct {
        const char *optimizer, *group, *name;
    } cases[] = {
        {"{\"type\": \"Muon\"}", "Adam", "adamw"},
        {"{\"type\": \"Adam\"}", "Adam", "adamw"},
        {"{\"type\": \"Muon\"}", "AdamW", "adamw"},
        {"{\"type\": \"SGD\"}", "Lion", "lion"},
        {"{\"type\": \"Adam\", \"params\": {\"adam_w_mode\": true}}", "Adam", "adamw"},
        {"{\"type\": \"Adam\", \"params\": {\"adam_w_mode\": false}}", "Adam", "adam"},
        {"{\"type\": \"Adam\", \"params\": {\"adam_w_mode\": false}}", "AdamW", "adamw"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config config;
        struct zero_error error;
        char json[256];
        error_clear(&error);
        snprintf(json, sizeof json,
                 "{\"train_batch_size\": 2, \"optimizer\": %s, \"param_groups\": [{\"match\": \"a\"}, "
                 "{\"match\": \"*\", "
                 "\"optimizer\": \"%s\"}]}",
                 cases[i].optimizer, cases[i].group);
        CHECK_INT(config_read(json, &config, &error), ZERO_OK);
        for (int again = 0; again < 2; again++) {
            CHECK_INT(config_resolve(&config, 1, &error), ZERO_OK);
            CHECK(!config.groups.item[0].optimizer);
            if (!CHECK_STRING(config.groups.item[1].optimizer->name, cases[i].name))
                fprintf(stderr, "in %s\n", json);
        }
        config_free(&config);
    }
}

static void accumulation_mode_follows_the_stage(void) {
    static const int expected[4] = {ACCUMULATE_LAST, ACCUMULATE_LAST, ACCUMULATE_EVERY, ACCUMULATE_EVERY};
    for (int stage = 0; stage < 4; stage++) {
        struct config config;
        struct zero_error error;
        char number[16];
        error_clear(&error);
        snprintf(number, sizeof number, "%d", stage);
        CHECK_INT(config_read("{\"train_batch_size\": 2}", &config, &error), ZERO_OK);
        CHECK_INT(config_set(&config, "zero_optimization.stage", number, &error), ZERO_OK);
        CHECK_INT(config_resolve(&config, 1, &error), ZERO_OK);
        CHECK_INT(config.accumulation_mode, expected[stage]);
        CHECK_INT(config_set(&config, "gradient_accumulation_mode", "\"last\"", &error), ZERO_OK);
        CHECK_INT(config_resolve(&config, 1, &error), ZERO_OK);
        CHECK_INT(config.accumulation_mode, ACCUMULATE_LAST);
        config_free(&config);
    }
}

static const struct {
    const char *json;
    int compute, communication, accumulation;
} precisions[] = {
    {"", DTYPE_F32, DTYPE_F32, DTYPE_F32},
    {", \"bf16\": {\"enabled\": false}, \"fp16\": {\"loss_scale\": 8}", DTYPE_F32, DTYPE_F32, DTYPE_F32},
    {", \"bf16\": {\"enabled\": true}", DTYPE_BF16, DTYPE_BF16, DTYPE_BF16},
    {", \"bf16\": {\"enabled\": true}, \"data_types\": {\"param_dtype\": \"BF16\"}", DTYPE_BF16, DTYPE_BF16,
     DTYPE_BF16},
    {", \"fp16\": {\"enabled\": true}, \"data_types\": {\"param_dtype\": \"auto\"}", DTYPE_F16, DTYPE_F16,
     DTYPE_F16},
    {", \"data_types\": {\"param_dtype\": \"fp32\", \"buffer_dtype\": null}", DTYPE_F32, DTYPE_F32,
     DTYPE_F32},
    {", \"bf16\": {\"enabled\": \"auto\"}, \"fp16\": {\"enabled\": true}", DTYPE_F16, DTYPE_F16, DTYPE_F16},
    {", \"bfloat16\": {\"enabled\": true}", DTYPE_BF16, DTYPE_BF16, DTYPE_BF16},
    {", \"bf16\": {\"enabled\": true}, \"communication_data_type\": null", DTYPE_BF16, DTYPE_BF16,
     DTYPE_BF16},
    {", \"bf16\": {\"enabled\": true}, \"communication_data_type\": \"FP32\"", DTYPE_BF16, DTYPE_F32,
     DTYPE_BF16},
    {", \"communication_data_type\": \"fp16\"", DTYPE_F32, DTYPE_F16, DTYPE_F32},
    /* Stages 2 and 3 reduce in every micro-step: shards add up in fp32. */
    {", \"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 2}", DTYPE_BF16, DTYPE_BF16,
     DTYPE_F32},
    {", \"bf16\": {\"enabled\": true}, \"gradient_accumulation_steps\": 2, \"data_types\": "
     "{\"grad_accum_dtype\": \"bf16\"}",
     DTYPE_BF16, DTYPE_BF16, DTYPE_BF16},
    {", \"bf16\": {\"enabled\": true}, \"gradient_accumulation_steps\": 1, \"data_types\": "
     "{\"grad_accum_dtype\": \"fp32\"}", /* nothing accumulates */
     DTYPE_BF16, DTYPE_BF16, DTYPE_F32},
};

static void element_types(void) {
    for (size_t i = 0; i < sizeof precisions / sizeof precisions[0]; i++) {
        struct config config;
        struct zero_error error;
        char json[512];
        error_clear(&error);
        snprintf(json, sizeof json, "{\"train_batch_size\": 2%s}", precisions[i].json);
        CHECK_INT(config_read(json, &config, &error), ZERO_OK);
        for (int again = 0; again < 2; again++) {
            CHECK_INT(config_resolve(&config, 1, &error), ZERO_OK);
            int same = CHECK_INT(config.compute_dtype, precisions[i].compute);
            same &= CHECK_INT(config.communication_dtype, precisions[i].communication);
            same &= CHECK_INT(config.accumulation_dtype, precisions[i].accumulation);
            if (!same) fprintf(stderr, "in %s: %s\n", json, error.message);
        }
        config_free(&config);
    }
}

static void conflicts(void) {
    static const struct {
        const char *json, *message;
    } cases[] = {
        {"{\"train_batch_size\": 2, \"model\": {\"n_embd\": 10, \"n_head\": 3}}",
         "model.n_head: 3 does not divide n_embd 10: choose a divisor"},
        {"{\"train_batch_size\": 2, \"model\": {\"n_ctx\": 10, \"n_positions\": 12}}",
         "model.n_ctx: 10 is not model.n_positions 12, of which it is another name: remove one of them"},
        {"{\"train_batch_size\": 2, \"activation_checkpointing\": {\"interval\": 2, \"number_checkpoints\": "
         "3}}",
         "activation_checkpointing.interval: 2 contradicts number_checkpoints: remove one of them"},
        {"{\"train_batch_size\": 2, \"activation_checkpointing\": {\"interval\": 0, \"cpu_checkpointing\": "
         "true}}",
         "activation_checkpointing.interval: 0 contradicts cpu_checkpointing: remove one of them"},
        {"{\"train_batch_size\": 2, \"activation_checkpointing\": {\"interval\": 0, \"nvme_checkpointing\": "
         "true, \"nvme_path\": \"/a\"}}",
         "activation_checkpointing.interval: 0 contradicts nvme_checkpointing: remove one of them"},
        {"{\"train_batch_size\": 2, \"activation_checkpointing\": {\"cpu_checkpointing\": true, "
         "\"nvme_checkpointing\": true, \"nvme_path\": \"/a\"}}",
         "activation_checkpointing.nvme_checkpointing: true contradicts cpu_checkpointing: remove one of "
         "them"},
        {"{\"train_batch_size\": 2, \"activation_checkpointing\": {\"nvme_checkpointing\": true}}",
         "activation_checkpointing.nvme_checkpointing: true needs a directory on the drive: set "
         "activation_checkpointing.nvme_path"},
        {"{\"train_batch_size\": 2, \"activation_checkpointing\": {\"nvme_checkpointing\": true, "
         "\"nvme_path\": "
         "\"/b\"}, \"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
         "\"/a\"}}}",
         "activation_checkpointing.nvme_path: a rank has one set of drives: give it the paths of "
         "zero_optimization's offload, or remove it"},
        {"{\"train_batch_size\": 2, \"activation_checkpointing\": {\"nvme_checkpointing\": true, "
         "\"nvme_path\": "
         "[\"/a\", \"/a\"]}}",
         "activation_checkpointing.nvme_path: \"/a\" stands twice: name each drive once"},
        {"{\"train_batch_size\": 2, \"activation_checkpointing\": {\"interval\": 0}, \"model\": "
         "{\"gradient_checkpointing\": true}}",
         "activation_checkpointing.interval: 0 contradicts model.gradient_checkpointing: remove one of them"},
        {"{\"train_batch_size\": 2, \"data\": {\"context\": 64}}",
         "data.context: the samples of a gpt2 are of n_positions tokens: set that, and remove this"},
        {LLAMA("\"max_position_embeddings\": 63}, \"data\": {\"context\": 64"),
         "data.context: 64 is more than max_position_embeddings 63: lower it"},
        {LLAMA("\"n_embd\": 64"), "model.n_embd: a llama has no such key: write hidden_size instead"},
        {LLAMA("\"n_ctx\": 64"),
         "model.n_ctx: a llama has no such key: write max_position_embeddings instead"},
        {"{\"train_batch_size\": 2, \"model\": {\"head_dim\": 8}}",
         "model.head_dim: a gpt2 has no such key: remove it"},
        {"{\"train_batch_size\": 2, \"model\": {\"rope_parameters\": {\"factor\": 8}}}",
         "model.rope_parameters.factor: a gpt2 has no such key: remove it"},
        {LLAMA("\"hidden_size\": 10, \"num_attention_heads\": 3"),
         "model.num_attention_heads: 3 does not divide hidden_size 10: choose a divisor"},
        {LLAMA("\"num_attention_heads\": 4, \"num_key_value_heads\": 3"),
         "model.num_key_value_heads: 3 does not divide num_attention_heads 4: choose a divisor"},
        {LLAMA("\"head_dim\": 7"),
         "model.head_dim: 7 is odd, and rotary positions turn pairs: choose an even one"},
        {LLAMA("\"rope_scaling\": {\"factor\": 8}"), "model.rope_scaling.factor: rope_type is \"default\", "
                                                     "which has no such member: remove it, or write the "
                                                     "rope_type to which it belongs"},
        {LLAMA("\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2, \"beta_fast\": 3}"),
         "model.rope_scaling.beta_fast: rope_type is \"linear\", which has no such member: remove it, or "
         "write the "
         "rope_type to which it belongs"},
        {LLAMA("\"rope_scaling\": {\"rope_type\": \"yarn\"}"),
         "model.rope_scaling.factor: it is missing: rope_type \"yarn\" needs it"},
        {LLAMA("\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"beta_fast\": 3, \"beta_slow\": 4}"),
         "model.rope_scaling.beta_slow: 4 is not below beta_fast 3: lower it"},
        {"{\"train_batch_size\": 2, \"model\": {\"layer_types\": [\"sliding_attention\"]}}",
         "model.layer_types: a gpt2 has no such key: remove it"},
        {LLAMA("\"sliding_window\": 9"), "model.sliding_window: a llama has no such key: remove it"},
        {QWEN("\"num_hidden_layers\": 2, \"use_sliding_window\": true, \"layer_types\": "
              "[\"sliding_attention\", "
              "\"full_attention\"]"),
         "model.layer_types: a block without a window follows one that has it, and here all blocks from the "
         "first one "
         "with the window on have it: take a model of that kind"},
        {QWEN("\"num_hidden_layers\": 2, \"layer_types\": [\"sliding_attention\", \"sliding_attention\"]"),
         "model.layer_types: it names sliding_attention, and there is no sliding_window: set "
         "use_sliding_window and "
         "sliding_window"},
        {QWEN("\"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\"]"),
         "model.layer_types: it has 1 blocks, and num_hidden_layers is 2: make them equal"},
        {LLAMA("\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8}"),
         "model.rope_scaling.low_freq_factor: it is missing: rope_type \"llama3\" needs it"},
        {LLAMA("\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
               "\"high_freq_factor\": 1, \"original_max_position_embeddings\": 8192}"),
         "model.rope_scaling.low_freq_factor: 4 is not below high_freq_factor 1: lower it"},
        {LLAMA("\"max_position_embeddings\": 2048, \"max_sequence_length\": 4096"),
         "model.max_sequence_length: 4096 is not model.max_position_embeddings 2048, of which it is another "
         "name: remove "
         "one of them"},
        {LLAMA(
             "\"architectures\": [\"OtherForCausalLM\"], \"auto_map\": {\"AutoModelForCausalLM\": \"a.B\"}"),
         "model.auto_map: the model is computed by code of its own, which is not run here: take a model of "
         "which model_type "
         "and architectures (\"LlamaForCausalLM\") are here"},
        {LLAMA("\"rms_norm_eps\": null"), "model.rms_norm_eps: it is null, and a llama needs a value: write "
                                          "one, or remove the key for the default, 1e-6"},
        {QWEN("\"vocab_size\": null"), "model.vocab_size: it is null, and a qwen2 needs a value: write one, "
                                       "or remove the key for the default, 151936"},
        {LLAMA("\"rope_parameters\": {\"rope_theta\": null}"),
         "model.rope_theta: it is null, and a llama needs a value: write one, or remove the key for the "
         "default, 10000"},
        {LLAMA("\"rope_theta\": 5e5, \"rope_parameters\": {\"rope_theta\": 1e4}"),
         "model.rope_parameters.rope_theta: 1e4 is not model.rope_theta 5e5, of which it is another name: "
         "remove "
         "one of them"},
        {"{\"train_batch_size\": 2, \"zero_optimization\": {\"cpu_offload\": true, \"offload_optimizer\": "
         "{\"device\": "
         "\"none\"}}}",
         "zero_optimization.cpu_offload: true contradicts zero_optimization.offload_optimizer.device: remove "
         "zero_optimization.cpu_offload"},
        {"{\"train_batch_size\": 2, \"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\"}}}",
         "zero_optimization.offload_optimizer.device: \"nvme\" needs a directory on the drive: set "
         "zero_optimization.offload_optimizer.nvme_path"},
        {"{\"train_batch_size\": 2, \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": "
         "{\"device\": "
         "\"nvme\", \"nvme_path\": \"/a\"}, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": "
         "\"/b\"}}}",
         "zero_optimization.offload_param.nvme_path: a rank has one set of swap files: give it the same "
         "paths as "
         "zero_optimization.offload_optimizer.nvme_path"},
        {"{\"train_batch_size\": 2, \"nvme\": {\"masters\": \"split\"}, \"bf16\": {\"enabled\": true}}",
         "nvme.masters: \"split\" needs bf16.enabled and offload_optimizer.device \"cpu\" or \"nvme\": set "
         "them, "
         "or use \"auto\""},
        {"{\"train_batch_size\": 2, \"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\", "
         "\"masters\": \"split\"}}}",
         "zero_optimization.offload_optimizer.masters: \"split\" needs bf16.enabled and "
         "offload_optimizer.device "
         "\"cpu\" or \"nvme\": set them, or use \"auto\""},
        {"{\"train_batch_size\": 2, \"bf16\": {\"enabled\": true}, \"nvme\": {\"masters\": \"fp32\"}, "
         "\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\", \"masters\": \"split\"}}}",
         "nvme.masters: contradicts zero_optimization.offload_optimizer.masters: remove nvme.masters"},
        {"{\"train_batch_size\": 2, \"bf16\": {\"bf16_optimizer_states\": true}}",
         "bf16.bf16_optimizer_states: states are in bf16 only where compute is: set bf16.enabled, or remove "
         "it"},
        {"{\"train_batch_size\": 2, \"zero_optimization\": {\"offload_optimizer\": {\"nvme_path\": [\"/a\", "
         "\"/b\", \"/a\"]}}}",
         "zero_optimization.offload_optimizer.nvme_path: \"/a\" stands twice: name each drive once"},
        {"{\"train_batch_size\": 2, \"ema\": {\"decay\": 1}}",
         "ema.decay: with 1 the average never moves: give less, such as 0.999; or 0, for none"},
        {"{\"train_batch_size\": 2, \"checkpoint\": {\"async\": true, \"writers_per_node\": 1}}",
         "checkpoint.writers_per_node: with checkpoint.async training would wait for the turns of all writers: "
         "set it to 0, or checkpoint.async to false"},
        {"{\"train_batch_size\": 2, \"nvme\": {\"shadow\": true}}",
         "nvme.shadow: it keeps optimizer state on a drive: set offload_optimizer.device to \"nvme\", or "
         "remove it"},
        {"{\"train_batch_size\": 2, \"nvme\": {\"shadow\": true}, \"zero_optimization\": "
         "{\"offload_optimizer\": "
         "{\"device\": \"tiered\", \"nvme_path\": \"/a\"}}}",
         "zero_optimization.offload_optimizer.device: nvme.shadow keeps all optimizer state on the drive: "
         "set it to "
         "\"nvme\", or remove nvme.shadow"},
        {"{\"train_batch_size\": 2, \"nvme\": {\"shadow\": true}, \"zero_optimization\": "
         "{\"offload_optimizer\": "
         "{\"device\": \"nvme\", \"nvme_path\": \"/a\", \"ratio\": 0.5}}}",
         "zero_optimization.offload_optimizer.ratio: nvme.shadow keeps all optimizer state on the drive: set "
         "it to "
         "1.0, or remove nvme.shadow"},
        {"{\"train_batch_size\": 2, \"aio\": {\"block_size\": 5000}}",
         "aio.block_size: 5000 is not a multiple of 4096: use 4096"},
        {"{\"train_batch_size\": 2, \"bf16\": {\"enabled\": true}, \"fp16\": {\"enabled\": true}}",
         "fp16.enabled: bf16 is enabled too, and compute has one type: set one of them to false"},
        {"{\"train_batch_size\": 2, \"bf16\": {\"enabled\": true}, \"data_types\": {\"param_dtype\": "
         "\"fp32\"}}",
         "data_types.param_dtype: \"fp32\" contradicts the type of compute, bf16, which parameters have: "
         "remove it, or change "
         "bf16.enabled or fp16.enabled"},
        {"{\"train_batch_size\": 2, \"data_types\": {\"param_dtype\": \"fp16\"}}",
         "data_types.param_dtype: \"fp16\" contradicts the type of compute, fp32, which parameters have: "
         "remove it, or change "
         "bf16.enabled or fp16.enabled"},
        {"{\"train_batch_size\": 2, \"bf16\": {\"enabled\": false}, \"bfloat16\": {\"enabled\": true}}",
         "bfloat16.enabled: true contradicts bf16.enabled: remove bfloat16"},
        {"{\"train_batch_size\": 4, \"gradient_accumulation_steps\": 2, \"bf16\": {\"enabled\": true}, "
         "\"gradient_accumulation_mode\": \"last\", \"data_types\": {\"grad_accum_dtype\": \"fp32\"}}",
         "data_types.grad_accum_dtype: with gradient_accumulation_mode \"last\" and compute in bf16 "
         "gradients are added in bf16: remove it, or write \"gradient_accumulation_mode\": \"every\""},
        {"{\"train_batch_size\": 4, \"gradient_accumulation_steps\": 2, \"bf16\": {\"enabled\": true}, "
         "\"zero_optimization\": {\"stage\": 3}, \"data_types\": {\"grad_accum_dtype\": \"bf16\"}}",
         "data_types.grad_accum_dtype: with gradient_accumulation_mode \"every\" and compute in bf16 "
         "gradients are added in fp32: remove it, or write \"gradient_accumulation_mode\": \"last\""},
        {"{\"train_batch_size\": 4, \"gradient_accumulation_steps\": 2, \"bf16\": {\"enabled\": true}, "
         "\"data_types\": {\"grad_accum_dtype\": \"fp16\"}}",
         "data_types.grad_accum_dtype: with gradient_accumulation_mode \"last\" and compute in bf16 "
         "gradients are added in bf16: remove it"},
        {"{\"train_batch_size\": 2, \"zero_optimization\": {\"stage\": 2, \"zero_quantized_weights\": true}}",
         "zero_optimization.zero_quantized_weights: at stage 2 the weights that are gathered are the ones "
         "that train: "
         "set zero_optimization.stage to 3, or remove it"},
        {"{\"train_batch_size\": 2, \"zero_optimization\": {\"stage\": 1}, \"param_groups\": [{\"match\": "
         "\"a\"}, "
         "{\"match\": \"b\", \"zero_quantized_weights\": false}, {\"match\": \"c\", "
         "\"zero_quantized_weights\": \"fp8_e4m3\"}, {\"match\": \"d\", \"zero_quantized_weights\": true}]}",
         "param_groups[2].zero_quantized_weights: at stage 1 the weights that are gathered are the ones that "
         "train: "
         "set zero_optimization.stage to 3, or remove it"},
        {"{\"train_batch_size\": 2, \"optimizer\": {\"type\": \"Adagrad\", \"params\": {\"eps\": 0}}, "
         "\"zero_optimization\": {\"stage\": 3, \"zero_quantized_weights\": true}}",
         "optimizer.params.eps: with zero_quantized_weights an update divides by it where a gradient is "
         "zero: "
         "set it above 0"},
        {"{\"train_batch_size\": 2, \"comm\": {\"quantized_gradient_bits\": 6}}",
         "comm.quantized_gradient_bits: codes have 4 or 8 bits: set it to one"},
        {"{\"train_batch_size\": 2, \"comm\": {\"reduction\": \"native\"}, \"zero_optimization\": "
         "{\"zero_quantized_gradients\": true}}",
         "zero_optimization.zero_quantized_gradients: native reductions add elements: set comm.reduction to "
         "\"ordered\", or remove it"},
        {"{\"train_batch_size\": 2, \"gradient_allreduce_op\": \"sum\", \"prescale_gradients\": true}",
         "gradient_allreduce_op: \"sum\" divides nothing, which contradicts prescale_gradients: remove one "
         "of them"},
        {"{\"train_batch_size\": 2, \"gradient_allreduce_op\": \"sum\", \"gradient_predivide_factor\": 2}",
         "gradient_allreduce_op: \"sum\" divides nothing, which contradicts gradient_predivide_factor: "
         "remove one of "
         "them"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct config config;
        struct zero_error error;
        error_clear(&error);
        CHECK_INT(config_read(cases[i].json, &config, &error), ZERO_OK);
        CHECK_INT(config_resolve(&config, 1, &error), ZERO_E_CONFIG);
        CHECK_STRING(error.message, cases[i].message);
        config_free(&config);
    }
}

#define SCHEDULED(optimizer, groups, type, params)                                                           \
    "{\"train_batch_size\": 2, \"optimizer\": {\"type\": \"" optimizer "\"}" groups                          \
    ", \"scheduler\": {\"type\": \"" type "\", \"params\": {" params "}}}"
#define ONE_CYCLE_LR "\"max_lr\": 1, \"total_steps\": 9"
#define ONE_CYCLE "\"cycle_min_lr\": 1, \"cycle_max_lr\": 2"
#define OF_BIASES(optimizer) ", \"param_groups\": [{\"match\": \"*.bias\", \"optimizer\": \"" optimizer "\"}]"

/* PyTorch's schedules cycle the momentum of an optimizer that has no betas; DeepSpeed's OneCycle leaves it. */
#define FLOOR(params) SCHEDULED("AdamW", "", "cosine_with_min_lr", "\"num_training_steps\": 9" params)
#define STABLE(params) SCHEDULED("AdamW", "", "warmup_stable_decay", "\"num_decay_steps\": 9" params)

static void a_schedule_that_is_unclear_is_refused(void) {
    static const struct {
        const char *json, *message;
    } cases[] = {
        {SCHEDULED("SGD", "", "OneCycleLR", ONE_CYCLE_LR),
         "scheduler.params.cycle_momentum: OneCycleLR cycles beta1, also by default, and SGD has no betas: "
         "set it to false"},
        {SCHEDULED("SGD", "", "CyclicLR", "\"base_lr\": 1, \"max_lr\": 2, \"cycle_momentum\": true"),
         "scheduler.params.cycle_momentum: CyclicLR cycles beta1, also by default, and SGD has no betas: set "
         "it to false"},
        {SCHEDULED("AdamW", OF_BIASES("SGD"), "OneCycleLR", ONE_CYCLE_LR),
         "scheduler.params.cycle_momentum: OneCycleLR cycles beta1, also by default, and SGD has no betas: "
         "set it to false"},
        {SCHEDULED("Muon", OF_BIASES("AdamW"), "OneCycleLR", ONE_CYCLE_LR),
         "scheduler.params.cycle_momentum: OneCycleLR cycles beta1, also by default, and Muon has no betas: "
         "set it to false"},
        {SCHEDULED("SGD", "", "OneCycleLR", ONE_CYCLE_LR ", \"cycle_momentum\": false"), ""},
        {SCHEDULED("SGD", "", "OneCycle", ONE_CYCLE), ""},
        {SCHEDULED("AdamW", OF_BIASES("Lion"), "OneCycleLR", ONE_CYCLE_LR), ""},
        {FLOOR(""),
         "scheduler.params.min_lr and min_lr_rate: cosine_with_min_lr needs one of them: write it"},
        {FLOOR(", \"min_lr\": 0, \"min_lr_rate\": 0.1"),
         "scheduler.params.min_lr and min_lr_rate: cosine_with_min_lr needs one of them: remove the other"},
        {FLOOR(", \"min_lr_rate\": 0.1"), ""},
        {STABLE(""),
         "scheduler.params.num_stable_steps and num_training_steps: warmup_stable_decay needs one of "
         "them: write it"},
        {STABLE(", \"num_stable_steps\": 0"), ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config config;
        struct zero_error error;
        error_clear(&error);
        CHECK_INT(config_read(cases[i].json, &config, &error), ZERO_OK);
        CHECK_INT(config_resolve(&config, 1, &error), *cases[i].message ? ZERO_E_CONFIG : ZERO_OK);
        CHECK_STRING(error.message, cases[i].message);
        config_free(&config);
    }
}

static void command_line(void) {
    static const char *const paths[] = {"a b", "\"c\""};
    struct config config;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(config_read("{\"train_batch_size\": 2, \"data\": {\"path\": \"x\", \"eval\": [\"y\"]}}",
                          &config, &error),
              ZERO_OK);
    CHECK_INT(config.data.eval.paths.count, 1);
    CHECK_INT(config_set_paths(&config, "data.path", paths, 2, &error), ZERO_OK);
    CHECK_INT(config.data.paths.count, 2);
    CHECK_STRING(config.data.paths.items[0], "a b");
    CHECK_INT(config_set(&config, "data.eval", "0.5", &error), ZERO_OK);
    CHECK_INT(config.data.eval.paths.count, 0);
    CHECK(config_entry(&config, "data.path")->source == CONFIG_COMMAND);
    CHECK_INT(config_set(&config, "data.pth", "1", &error), ZERO_E_ARGUMENT);
    error_clear(&error);
    CHECK_INT(config_set(&config, "optimizer.params.lr", "NaN", &error), ZERO_E_CONFIG);
    CHECK_STRING(error.message,
                 "optimizer.params.lr:1:1: NaN, Infinity and +1 are not JSON: write a finite number");
    error_clear(&error);
    CHECK_INT(config_set(&config, "data.path", "'x'", &error), ZERO_E_CONFIG);
    CHECK_STRING(error.message, "data.path:1:1: strings stand in double quotes");
    error_clear(&error);
    CHECK_INT(config_set(&config, "seed", " 7 8", &error), ZERO_E_CONFIG);
    CHECK_STRING(error.message, "seed:1:4: text after the end of the value: remove it");
    CHECK_INT(config_set(&config, "seed", " 7 ", &error), ZERO_OK);
    CHECK_INT(config.seed, 7);
    config_free(&config);
}

/* An engine cannot ask the planner: it names the key, and what to do. */
static void what_the_planner_chooses(void) {
    static const struct {
        const char *members, *key;
    } cases[] = {
        {"\"zero_optimization\": {\"stage\": \"auto\"}", "zero_optimization.stage"},
        {"\"zero_optimization\": {\"offload_optimizer\": \"auto\"}",
         "zero_optimization.offload_optimizer.device"},
        {"\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"auto\", \"nvme_path\": \"d\"}}",
         "zero_optimization.offload_optimizer.device"},
        {"\"zero_optimization\": {\"offload_param\": \"auto\"}", "zero_optimization.offload_param.device"},
        {"\"zero_optimization\": {\"offload_gradients\": \"auto\"}",
         "zero_optimization.offload_gradients.device"},
        {"\"activation_checkpointing\": {\"interval\": \"auto\"}", "activation_checkpointing.interval"},
        /* another key decides */
        {"\"activation_checkpointing\": {\"interval\": \"auto\", \"cpu_checkpointing\": true}", NULL},
        {"\"activation_checkpointing\": {\"interval\": \"auto\", \"number_checkpoints\": 2}", NULL},
        {"\"activation_checkpointing\": {\"interval\": \"auto\", \"nvme_checkpointing\": true, "
         "\"nvme_path\": \"d\"}",
         NULL},
        {"\"activation_checkpointing\": {\"interval\": \"auto\"}, \"model\": {\"gradient_checkpointing\": "
         "true}",
         NULL},
        {"\"zero_optimization\": {\"cpu_offload\": true, \"offload_optimizer\": \"auto\"}", NULL},
        {"\"zero_optimization\": {\"stage\": 3, \"cpu_offload_param\": true, \"offload_param\": \"auto\"}",
         NULL},
        {"\"zero_optimization\": {\"stage\": 1}, \"train_micro_batch_size_per_gpu\": \"auto\"", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[256], expected[400];
        struct config config;
        struct zero_error error;
        error_clear(&error);
        snprintf(json, sizeof json, "{\"train_batch_size\": 2, %s}", cases[i].members);
        if (!CHECK_INT(config_read(json, &config, &error), ZERO_OK))
            fprintf(stderr, "in %s: %s\n", json, error.message);
        if (cases[i].key) CHECK_STRING(config_unchosen(&config), cases[i].key);
        CHECK(cases[i].key || !config_unchosen(&config));
        CHECK_INT(config_resolve(&config, 1, &error), cases[i].key ? ZERO_E_CONFIG : ZERO_OK);
        snprintf(expected, sizeof expected,
                 "%s: \"auto\" is chosen by `zero train`, or by `zero plan CONFIG.json --write-config FILE`, "
                 "which writes the "
                 "choice out: give that FILE here, or a value",
                 cases[i].key ? cases[i].key : "");
        if (cases[i].key) CHECK_STRING(error.message, expected);
        config_free(&config);
    }
}

/* "auto" is the type of the model, not always fp32. */
static void types_of_the_model(void) {
    static const struct {
        const char *members;
        int dtype;
    } cases[] = {
        {"\"bf16\": {\"enabled\": \"auto\"}, \"model\": {\"torch_dtype\": \"bfloat16\"}", DTYPE_BF16},
        {"\"bfloat16\": {\"enabled\": \"auto\"}, \"model\": {\"dtype\": \"bfloat16\"}", DTYPE_BF16},
        {"\"bf16\": {\"enabled\": \"auto\"}, \"fp16\": {\"enabled\": \"auto\"}, \"model\": {\"dtype\": "
         "\"float16\"}",
         DTYPE_F16},
        {"\"bf16\": {\"enabled\": \"auto\"}, \"model\": {\"dtype\": \"float32\"}", DTYPE_F32},
        {"\"bf16\": {\"enabled\": \"auto\"}", DTYPE_F32},
        {"\"bf16\": {\"enabled\": false}, \"model\": {\"dtype\": \"bfloat16\"}", DTYPE_F32},
        {"\"bf16\": {\"enabled\": true}, \"fp16\": {\"enabled\": \"auto\"}, \"model\": {\"dtype\": "
         "\"float16\"}",
         DTYPE_BF16},
        {"\"bf16\": {\"enabled\": \"auto\"}, \"fp16\": {\"enabled\": true}, \"model\": {\"dtype\": "
         "\"bfloat16\"}",
         DTYPE_F16},
        {"\"model\": {\"dtype\": \"bfloat16\"}", DTYPE_F32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[256];
        struct config config;
        struct zero_error error;
        error_clear(&error);
        snprintf(json, sizeof json, "{\"train_batch_size\": 2, %s}", cases[i].members);
        CHECK_INT(config_read(json, &config, &error), ZERO_OK);
        for (int again = 0; again < 2; again++) {
            int same = CHECK_INT(config_resolve(&config, 1, &error), ZERO_OK);
            same &= CHECK_INT(config.compute_dtype, cases[i].dtype);
            if (!same) fprintf(stderr, "in %s: %s\n", json, error.message);
        }
        config_free(&config);
    }
}

int main(void) {
    batch_triples();
    optimizer_rows();
    adam_of_a_group();
    accumulation_mode_follows_the_stage();
    element_types();
    conflicts();
    a_schedule_that_is_unclear_is_refused();
    command_line();
    types_of_the_model();
    what_the_planner_chooses();
    return check_end();
}
