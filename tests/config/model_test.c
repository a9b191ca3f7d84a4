/* The model block: the defaults and spellings of each architecture, and which blocks are recomputed. */
#include <string.h>

#include "engine/config/config.h"
#include "tests/check.h"

#define LLAMA(members) "{\"train_batch_size\": 2, \"model\": {\"model_type\": \"llama\", " members "}}"

/* Each architecture has its own defaults; one spelling of a key is as good as another. */
static void models(void) {
#define LLAMA3(rest)                                                                                         \
    "\"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4, \"original_max_position_embeddings\": " \
    "77, " rest
    static const struct {
        const char *json;
        uint64_t layers, width, heads, kv_heads, head_width, context, vocab, inner;
        bool tied;
        double theta, factor;
    } cases[] = {
        {"{\"train_batch_size\": 2}", 12, 768, 12, 0, 0, 1024, 50257, 3072, true, 0, 0},
        {"{\"train_batch_size\": 2, \"model\": {\"n_embd\": 24, \"n_inner\": null, \"n_ctx\": 9}}", 12, 24,
         12, 0, 0, 9, 50257, 96, true, 0, 0},
        {LLAMA("\"hidden_act\": \"silu\""), 32, 4096, 32, 32, 128, 2048, 32000, 11008, false, 1e4, 0},
        {LLAMA("\"num_hidden_layers\": 3, \"hidden_size\": 64, \"num_attention_heads\": 4, "
               "\"num_key_value_heads\": 2, "
               "\"head_dim\": 6, \"max_position_embeddings\": 33, \"vocab_size\": 256, "
               "\"intermediate_size\": 99, "
               "\"tie_word_embeddings\": true, \"rope_theta\": 5e5, \"rope_scaling\": null"),
         3, 64, 4, 2, 6, 33, 256, 99, true, 5e5, 0},
        {LLAMA("\"rope_scaling\": {" LLAMA3("\"rope_type\": \"llama3\"}")), 32, 4096, 32, 32, 128, 2048,
         32000, 11008, false, 1e4, 8},
        {LLAMA("\"rope_scaling\": {" LLAMA3("\"type\": \"llama3\"}")), 32, 4096, 32, 32, 128, 2048, 32000,
         11008, false, 1e4, 8},
        {LLAMA("\"num_key_value_heads\": null, \"head_dim\": null, \"num_attention_heads\": 64"), 32, 4096,
         64, 64, 64, 2048, 32000, 11008, false, 1e4, 0},
        {LLAMA("\"rope_theta\": 1000000, \"rope_parameters\": {\"rope_theta\": 1000000.0}"), 32, 4096, 32, 32,
         128, 2048, 32000, 11008, false, 1e6, 0},
        {LLAMA("\"rope_parameters\": {" LLAMA3("\"rope_type\": \"llama3\", \"rope_theta\": 7}")), 32, 4096,
         32, 32, 128, 2048, 32000, 11008, false, 7, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config config;
        struct zero_error error;
        error_clear(&error);
        CHECK_INT(config_read(cases[i].json, &config, &error), ZERO_OK);
        for (int again = 0; again < 2; again++) {
            const struct config_model *m = &config.model;
            int same = CHECK_INT(config_resolve(&config, 1, &error), ZERO_OK);
            same &= CHECK_INT(m->layers, cases[i].layers), same &= CHECK_INT(m->width, cases[i].width);
            same &= CHECK_INT(m->heads, cases[i].heads), same &= CHECK_INT(m->kv_heads, cases[i].kv_heads);
            same &= CHECK_INT(m->head_width, cases[i].head_width),
                same &= CHECK_INT(m->context, cases[i].context);
            same &= CHECK_INT(m->vocab, cases[i].vocab), same &= CHECK_INT(m->inner, cases[i].inner);
            same &= CHECK_INT(m->tied, cases[i].tied);
            same &= CHECK_INT(m->rope.type, cases[i].factor > 0 ? CONFIG_ROPE_LLAMA3 : CONFIG_ROPE_DEFAULT);
            if (!strcmp(config_architecture((uint32_t)m->type), "llama")) {
                same &= CHECK_DOUBLE(m->rope.theta, cases[i].theta, 0);
                same &= CHECK_DOUBLE(m->rope.factor, cases[i].factor, 0);
                same &= CHECK_INT(m->rope.original_context, cases[i].factor > 0 ? 77 : 0);
            }
            if (!same) fprintf(stderr, "in %s: %s\n", cases[i].json, error.message);
        }
        config_free(&config);
    }
}

/* Defaults of the relatives, and which blocks have the window: of 4 blocks. */
static void relatives(void) {
#define MODEL(type, members)                                                                                 \
    "{\"train_batch_size\": 2, \"model\": {\"model_type\": \"" type "\", \"num_hidden_layers\": 4" members   \
    "}}"
    static const struct {
        const char *json;
        uint64_t kv_heads, head_width, context, inner, vocab, window, from;
    } cases[] = {
        {MODEL("mistral", ""), 8, 128, 131072, 14336, 32000, 4096, 0},
        {MODEL("mistral", ", \"sliding_window\": null, \"head_dim\": 6"), 8, 6, 131072, 14336, 32000, 0, 0},
        {MODEL("mistral", ", \"num_key_value_heads\": null"), 32, 128, 131072, 14336, 32000, 4096, 0},
        {MODEL("qwen2", ", \"num_key_value_heads\": null, \"num_attention_heads\": 64"), 64, 64, 32768, 22016,
         151936, 0, 0},
        {MODEL("qwen3", ", \"num_key_value_heads\": null, \"num_attention_heads\": 8"), 8, 128, 32768, 22016,
         151936, 0, 0},
        {MODEL("qwen2", ""), 32, 128, 32768, 22016, 151936, 0, 0},
        {MODEL("qwen2", ", \"use_sliding_window\": true, \"max_window_layers\": 3"), 32, 128, 32768, 22016,
         151936, 4096, 3},
        {MODEL("qwen2", ", \"use_sliding_window\": true"), 32, 128, 32768, 22016, 151936, 0, 0},
        {MODEL("qwen3", ", \"hidden_size\": 1000, \"sliding_window\": 9, \"use_sliding_window\": true, "
                        "\"layer_types\": [\"full_attention\", \"full_attention\", \"sliding_attention\", "
                        "\"sliding_attention\"]"),
         32, 128, 32768, 22016, 151936, 9, 2},
        {MODEL("llama", ", \"sliding_window\": null"), 32, 128, 2048, 11008, 32000, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config config;
        struct zero_error error;
        error_clear(&error);
        CHECK_INT(config_read(cases[i].json, &config, &error), ZERO_OK);
        for (int again = 0; again < 2; again++) {
            const struct config_model *m = &config.model;
            int same = CHECK_INT(config_resolve(&config, 1, &error), ZERO_OK);
            same &= CHECK_INT(m->kv_heads, cases[i].kv_heads),
                same &= CHECK_INT(m->head_width, cases[i].head_width);
            same &= CHECK_INT(m->context, cases[i].context), same &= CHECK_INT(m->inner, cases[i].inner);
            same &= CHECK_INT(m->vocab, cases[i].vocab), same &= CHECK_INT(m->window, cases[i].window);
            same &= CHECK_INT(m->window_from, cases[i].from);
            if (!same) fprintf(stderr, "in %s: %s\n", cases[i].json, error.message);
        }
        config_free(&config);
    }
}

static void recomputation(void) {
    static const struct {
        const char *keys;
        uint64_t blocks;
        enum tier_kind tier;
    } cases[] = {
        {"", 0, TIER_DEVICE},
        {", \"activation_checkpointing\": {\"partition_activations\": true, \"number_checkpoints\": null}", 0,
         TIER_DEVICE},
        {", \"model\": {\"gradient_checkpointing\": true}", 1, TIER_DEVICE},
        {", \"activation_checkpointing\": {\"cpu_checkpointing\": true}", 1, TIER_CPU},
        {", \"activation_checkpointing\": {\"interval\": 3, \"cpu_checkpointing\": true}", 3, TIER_CPU},
        {", \"activation_checkpointing\": {\"nvme_checkpointing\": true, \"nvme_path\": \"/a\"}", 1,
         TIER_NVME},
        {", \"activation_checkpointing\": {\"nvme_checkpointing\": true}, \"zero_optimization\": {\"stage\": "
         "3, "
         "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/a\"}}",
         1, TIER_NVME},
        {", \"activation_checkpointing\": {\"interval\": 0}", 0, TIER_DEVICE},
        {", \"activation_checkpointing\": {\"number_checkpoints\": 1}", 12, TIER_DEVICE}, /* of 12 blocks */
        {", \"activation_checkpointing\": {\"number_checkpoints\": 5}, \"model\": "
         "{\"gradient_checkpointing\": true}",
         3, TIER_DEVICE},
        {", \"activation_checkpointing\": {\"number_checkpoints\": 100}", 1, TIER_DEVICE},
        {", \"activation_checkpointing\": {\"number_checkpoints\": 2}, \"model\": {\"n_layer\": 5}", 3,
         TIER_DEVICE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[512];
        struct config config;
        struct zero_error error;
        error_clear(&error);
        snprintf(json, sizeof json, "{\"train_batch_size\": 2%s}", cases[i].keys);
        CHECK_INT(config_read(json, &config, &error), ZERO_OK);
        for (int again = 0; again < 2; again++) {
            CHECK_INT(config_resolve(&config, 1, &error), ZERO_OK);
            int same = CHECK_INT(config.recompute.blocks, cases[i].blocks);
            same &= CHECK_INT(config.recompute.tier, cases[i].tier);
            if (!same) fprintf(stderr, "in %s: %s\n", json, error.message);
        }
        config_free(&config);
    }
}

int main(void) {
    models();
    relatives();
    recomputation();
    return check_end();
}
