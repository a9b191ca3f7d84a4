/* Files: those in configs/ resolve for 1 and 2 ranks; files in the manner of Hugging Face's examples; a
 * model's own. */
#include "engine/config/config.h"
#include "engine/config/value.h"
#include "tests/check.h"

#include <stdlib.h>
#include <string.h>

#define FILES "tests/config/files/"

static void read_ok(const char *path, struct config *config) {
    struct zero_error error;
    error_clear(&error);
    if (!CHECK_INT(config_read(path, config, &error), ZERO_OK)) fprintf(stderr, "%s\n", error.message);
}

static void resolve_ok(struct config *config, uint32_t ranks) {
    struct zero_error error;
    error_clear(&error);
    if (!CHECK_INT(config_resolve(config, ranks, &error), ZERO_OK)) fprintf(stderr, "%s\n", error.message);
}

static void ready_made_files(void) {
    static const struct {
        const char *path;
        uint64_t stage;
        int optimizer_tier, param_tier;
    } files[] = {{"configs/zero0.json", 0, TIER_DEVICE, TIER_DEVICE},
                 {"configs/zero1.json", 1, TIER_DEVICE, TIER_DEVICE},
                 {"configs/zero2.json", 2, TIER_DEVICE, TIER_DEVICE},
                 {"configs/zero3.json", 3, TIER_DEVICE, TIER_DEVICE},
                 {"configs/zero0-cpu-offload.json", 0, TIER_CPU, TIER_DEVICE},
                 {"configs/zero1-cpu-offload.json", 1, TIER_CPU, TIER_DEVICE},
                 {"configs/zero2-cpu-offload.json", 2, TIER_CPU, TIER_DEVICE},
                 {"configs/zero3-cpu-offload.json", 3, TIER_CPU, TIER_DEVICE},
                 {"configs/zero0-nvme-offload.json", 0, TIER_NVME, TIER_DEVICE},
                 {"configs/zero1-nvme-offload.json", 1, TIER_NVME, TIER_DEVICE},
                 {"configs/zero2-nvme-offload.json", 2, TIER_NVME, TIER_DEVICE},
                 {"configs/zero3-nvme-offload.json", 3, TIER_NVME, TIER_DEVICE},
                 {"configs/zero3-tiered-offload.json", 3, TIER_NVME, TIER_DEVICE},
                 {"configs/zero3-param-cpu-offload.json", 3, TIER_DEVICE, TIER_CPU},
                 {"configs/zero3-all-cpu-offload.json", 3, TIER_CPU, TIER_CPU},
                 {"configs/zero3-nvme-cpu-offload.json", 3, TIER_NVME, TIER_CPU},
                 {"configs/zero3-param-nvme-offload.json", 3, TIER_DEVICE, TIER_NVME},
                 {"configs/zero3-all-nvme-offload.json", 3, TIER_NVME, TIER_NVME},
                 {"configs/zero3-untied.json", 3, TIER_DEVICE, TIER_DEVICE},
                 {"configs/finetune-head.json", 3, TIER_DEVICE, TIER_DEVICE},
                 {"configs/llama-demo.json", 3, TIER_DEVICE, TIER_DEVICE},
                 {"configs/zero3-recompute.json", 3, TIER_DEVICE, TIER_DEVICE},
                 {"configs/demo.json", 3, TIER_NVME, TIER_DEVICE}};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct config config;
        read_ok(files[i].path, &config);
        for (uint32_t ranks = 2; ranks > 0;
             ranks--) { /* resolving again must not see what was derived before */
            resolve_ok(&config, ranks);
            CHECK_INT(config.micro_batch * config.accumulation_steps * ranks, 16);
        }
        CHECK_INT(config.stage, files[i].stage);
        CHECK_INT(config.optimizer_tier, files[i].optimizer_tier);
        CHECK_INT(config.param_tier, files[i].param_tier);
        CHECK(config.model.given);
        CHECK_INT(config.line_count, 0);
        CHECK_INT(config.data.paths.count, 1);
        config_free(&config);
    }
}

static void files_of_groups(void) {
    static const struct {
        const char *path;
        uint64_t stage, shard_ranks; /* of 4 ranks */
        int reshard, optimizer_tier;
    } files[] = {{"configs/zero0-hsdp.json", 0, 2, RESHARD_ALL, TIER_DEVICE},
                 {"configs/zero1-hsdp.json", 1, 2, RESHARD_ALL, TIER_DEVICE},
                 {"configs/zero2-hsdp.json", 2, 2, RESHARD_ALL, TIER_DEVICE},
                 {"configs/zero3-hsdp.json", 3, 2, RESHARD_ALL, TIER_DEVICE},
                 {"configs/zero3-hsdp-nvme-offload.json", 3, 2, RESHARD_ALL, TIER_NVME},
                 {"configs/zero3-hpz.json", 3, 2, RESHARD_GROUP, TIER_DEVICE},
                 {"configs/zero3-hpz-nvme-offload.json", 3, 2, RESHARD_GROUP, TIER_NVME},
                 {"configs/zero3-zeropp.json", 3, 2, RESHARD_GROUP, TIER_DEVICE},
                 {"configs/zero3-keep.json", 3, 4, RESHARD_NONE, TIER_DEVICE}};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct config config;
        read_ok(files[i].path, &config);
        resolve_ok(&config, 4);
        CHECK_INT(config.stage, files[i].stage);
        CHECK_INT(config.shard_ranks, files[i].shard_ranks);
        CHECK_INT(config.reshard, files[i].reshard);
        CHECK_INT(config.optimizer_tier, files[i].optimizer_tier);
        CHECK_INT(config.line_count, 0);
        config_free(&config);
    }
}

static void hugging_face_zero2(void) {
    struct config config;
    read_ok(FILES "zero2_like_hf.json", &config);
    resolve_ok(&config, 2);
    CHECK_INT(config.train_batch, 16);
    CHECK_INT(config.micro_batch, 8);
    CHECK_INT(config.accumulation_steps, 1);
    CHECK_DOUBLE(config.optimizer.lr, 5e-5, 0);
    CHECK_DOUBLE(config.optimizer.betas[1], 0.999, 0);
    CHECK_DOUBLE(config.gradient_clipping, 1.0, 0);
    CHECK_INT(config.optimizer_tier, TIER_CPU);
    CHECK_INT(config.accumulation_mode, ACCUMULATE_EVERY);
    CHECK_INT(config.line_count, 8);
    char *text = config_print(&config);
    CHECK_CONTAINS(text,
                   "optimizer.params.lr                                      \"auto\" -> 5e-5         auto");
    CHECK_CONTAINS(text,
                   "train_batch_size                                         \"auto\" -> 16           auto");
    CHECK_CONTAINS(
        text, "gradient_accumulation_mode                               \"every\"                derived");
    free(text);
    config_free(&config);
}

static void hugging_face_zero3(void) {
    struct config config;
    read_ok(FILES "zero3_like_hf.json", &config);
    resolve_ok(&config, 4);
    CHECK_INT(config.stage, 3);
    CHECK_INT(config.persistence_threshold, 640); /* 10 * n_embd, as Hugging Face resolves it */
    CHECK_INT(config.train_batch, 32);
    config_free(&config);
}

static void a_model_of_its_own(void) {
    struct config config;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(config_read("{\"train_batch_size\": 2, \"model\": {\"n_layer\": 2}}", &config, &error),
              ZERO_OK);
    if (!CHECK_INT(config_read_model(&config, "tests/config/files", &error), ZERO_OK))
        fprintf(stderr, "%s\n", error.message);
    resolve_ok(&config, 1);
    CHECK_INT(config.model.layers, 12);
    CHECK_INT(config.model.inner, 4 * 768);
    CHECK(config_entry(&config, "model.n_layer")->source == CONFIG_MODEL_FILE);
    config_free(&config);
}

/* If config.json replaces a block, nothing of the block stays: no value that the file lacks or has as null, and no
 * line. */
/* In the manner of Llama 3.2 1B's. */
static void a_llama(void) {
    struct config config;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(
        config_read("{\"train_batch_size\": 2, \"data\": {\"context\": 1024}, \"model\": {\"model_type\": "
                    "\"mistral\", \"sliding_window\": 4}}",
                    &config, &error),
        ZERO_OK);
    if (!CHECK_INT(config_read_model(&config, "tests/config/files/llama", &error), ZERO_OK))
        fprintf(stderr, "%s\n", error.message);
    for (uint32_t ranks = 2; ranks > 0; ranks--) resolve_ok(&config, ranks);
    CHECK_STRING(config_architecture((uint32_t)config.model.type), "llama");
    CHECK_INT(config.model.width, 2048);
    CHECK_INT(config.model.kv_heads, 8);
    CHECK_INT(config.model.head_width, 64);
    CHECK_INT(config.model.context, 1024);
    CHECK_STRING(config_entry(&config, "model.max_position_embeddings")->text, "131072");
    CHECK_INT(config.model.window, 0); /* that of the block is gone */
    CHECK_DOUBLE(config.model.rope.theta, 5e5, 0);
    CHECK_DOUBLE(config.model.rope.factor, 32, 0);
    CHECK_INT(config.model.rope.original_context, 8192);
    CHECK_INT(config.model.tied, true);
    config_free(&config);
}

static void a_model_in_place_of_the_block(void) {
    static const char text[] =
        "{\"train_batch_size\": 2, \"wall_clock_breakdown\": true, \"zero_optimization\": "
        "{\"stage3_param_persistence_threshold\": \"auto\"}, \"model\": {\"n_inner\": 128, \"n_ctx\": 77, "
        "\"n_embd\": 64, \"n_head\": 2, \"tie_word_embeddings\": false, \"resid_pdrop\": 0.5, \"n_special\": "
        "3}}";
    struct config config;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(config_read(text, &config, &error), ZERO_OK);
    CHECK_INT(config.line_count, 3);
    for (int again = 0; again < 2; again++) {
        if (!CHECK_INT(config_read_model(&config, "tests/config/files", &error), ZERO_OK))
            fprintf(stderr, "%s\n", error.message);
        resolve_ok(&config, 1);
        CHECK(config.model.given);
        CHECK_INT(config.model.inner, 4 * 768);
        CHECK_INT(config.model.context, 1024);
        CHECK_INT(config.model.tied, true);
        CHECK(config_entry(&config, "model.tie_word_embeddings")->source == CONFIG_DEFAULT);
        CHECK_STRING(config_entry(&config, "model.n_special")->text, "0");
        CHECK_INT(config.persistence_threshold, 10 * 768);
        CHECK_CONTAINS(config.lines[0], "wall_clock_breakdown = true");
        for (uint64_t i = 1; i < config.line_count; i++) {
            CHECK(!strstr(config.lines[i], "n_special"));
            CHECK(!strstr(config.lines[i], "resid_pdrop = 0.5"));
        }
    }
    config_free(&config);
}

/* Ranks compare this text. */
static void long_values_are_printed_whole(void) {
    static const char path[] = "/a/path/of/more/than/forty/characters/whose/ends/alone/differ/1.txt";
    struct config config;
    struct zero_error error;
    char json[256], row[512];
    error_clear(&error);
    snprintf(json, sizeof json, "{\"train_batch_size\": 2, \"data\": {\"path\": \"%s\"}}", path);
    CHECK_INT(config_read(json, &config, &error), ZERO_OK);
    resolve_ok(&config, 1);
    char *text = config_print(&config);
    snprintf(row, sizeof row, "\n%-56s \"%s\"\n%80s%-12s ", "data.path", path, "", "file");
    CHECK_CONTAINS(text, row);
    free(text);
    config_free(&config);
}

/* A file with comments is read as the same text is, and as base64 of the text. */
static void edited_files(void) {
    static const char *const texts[] = {
        FILES "edited.json",
        "/* a note */ {train_batch_size: 4, # per step\n 'zero_optimization': {'stage': 2,},}",
        "eyJ0cmFpbl9iYXRjaF9zaXplIjogNCwgInplcm9fb3B0aW1pemF0aW9uIjogeyJzdGFnZSI6IDJ9fQ==",
        "IyBhIG5vdGU_IAp7dHJhaW5fYmF0Y2hfc2l6ZTogNCwgemVyb19vcHRpbWl6YXRpb246IHtzdGFnZTogMn19",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct config config;
        read_ok(texts[i], &config);
        resolve_ok(&config, 1);
        CHECK_INT(config.train_batch, 4);
        CHECK_INT(config.stage, 2);
        config_free(&config);
    }
    static const struct {
        const char *text, *message;
    } wrong[] = {
        {"{train_batch_size: 4,\n # no\n stage}", "configuration:3:7: a colon is expected after the key"},
        {"eyJ0cmFpbl9iYXRjaF9zaXplIjogNCwgInplcm9fb3B0aW1pemF0aW9uIjog",
         "configuration in base64:1:46: the text ends too early"},
        {"c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2V"
         "jcmV0"
         "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0=",
         "the configuration is no file, and no base64 of one: give a path, JSON that starts with {, or all "
         "of its base64"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct config config;
        struct zero_error error;
        error_clear(&error);
        CHECK_INT(config_read(wrong[i].text, &config, &error), ZERO_E_CONFIG);
        CHECK_STRING(error.message, wrong[i].message);
        config_free(&config);
    }
}

/* A model's file is strict JSON, as Transformers reads it. */
static void strict_model(void) {
    struct config config;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(config_read("{\"train_batch_size\": 2}", &config, &error), ZERO_OK);
    CHECK_INT(config_read_model(&config, FILES "edited.json", &error), ZERO_E_CONFIG);
    CHECK_CONTAINS(error.message, FILES "edited.json:1:1: a byte order mark");
    config_free(&config);
}

static void missing_files(void) {
    struct config config;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(config_read("/nonexistent.json", &config, &error), ZERO_E_IO);
    CHECK_STRING(error.message, "/nonexistent.json: cannot be opened: No such file or directory; give a "
                                "file, or JSON that starts with {");
    config_free(&config);
    error_clear(&error);
    CHECK_INT(config_read("tests/config", &config, &error), ZERO_E_IO);
    CHECK_CONTAINS(error.message, "tests/config: cannot be read: Is a directory");
    config_free(&config);
}

int main(void) {
    ready_made_files();
    files_of_groups();
    hugging_face_zero2();
    hugging_face_zero3();
    a_model_of_its_own();
    a_llama();
    a_model_in_place_of_the_block();
    long_values_are_printed_whole();
    edited_files();
    strict_model();
    missing_files();
    return check_end();
}
