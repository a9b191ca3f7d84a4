/* The messages that a user reads: exact texts, suggestions, sizes. */
#include "engine/base/utf8.h"
#include "engine/config/config.h"
#include "engine/config/key.h"
#include "engine/config/suggest.h"
#include "engine/config/value.h"
#include "tests/check.h"

#include <stdlib.h>

static const struct {
    const char *json;
    zero_status status;
    const char *message;
} cases[] = {
    {"{\"zero_optimisation\": {\"stage\": 3}}", ZERO_E_CONFIG,
     "zero_optimisation: unknown key: did you mean \"zero_optimization\"?"},
    {"{\"zero_optimization\": {\"stge\": 3}}", ZERO_E_CONFIG,
     "zero_optimization.stge: unknown key: did you mean \"stage\"?"},
    /* several at once; a wrong choice hides what depends on it */
    {"{\"zero_optimization\": {\"stge\": 3, \"stage\": 4}, \"seed\": \"1\", \"optimizer\": {\"type\": "
     "\"OneBitLamb\", \"params\": "
     "{\"max_coeff\": 1}}}",
     ZERO_E_CONFIG,
     "zero_optimization.stge: unknown key: did you mean \"stage\"?; also: zero_optimization.stage: 4 is "
     "outside its range: give an "
     "integer from 0 to 3; also: seed: \"1\" is a string where an integer is expected: remove the quotes; "
     "also: optimizer.type: "
     "\"OneBitLamb\" is not supported here: only AdamW, Adam, SGD, Lion, Adagrad, Muon and Lamb are here: "
     "choose one of "
     "them"},
    {"{\"stage\": 3}", ZERO_E_CONFIG, "stage: unknown key: its name here is zero_optimization.stage"},
    {"{\"zero_hpz_partition_size\": 2}", ZERO_E_CONFIG,
     "zero_hpz_partition_size: unknown key: it belongs elsewhere: zero_optimization.zero_hpz_partition_size"},
    {"{\"optimizer\": {\"momentum\": 1}}", ZERO_E_CONFIG,
     "optimizer.momentum: unknown key: it belongs elsewhere: optimizer.params.momentum"},
    {"{\"zero_optimization\": {\"offload_optimizer\": {\"devcie\": \"cpu\"}}}", ZERO_E_CONFIG,
     "zero_optimization.offload_optimizer.devcie: unknown key: did you mean \"device\"?"},
    {"{\"zero_optimization\": {\"quantized_weights\": 1}}", ZERO_E_CONFIG,
     "zero_optimization.quantized_weights: unknown key: did you mean \"zero_quantized_weights\"?"},
    {"{\"frobnicate_xyzzy\": 1}", ZERO_E_CONFIG,
     "frobnicate_xyzzy: unknown key: zero config --help lists all keys"},
    {"{\"zero_optimization.stage\": 3}", ZERO_E_CONFIG,
     "zero_optimization.stage: unknown key: a key may not contain a point: write nested objects"},
    {"{\"zero_optimization\": {\"stage\": 4}}", ZERO_E_CONFIG,
     "zero_optimization.stage: 4 is outside its range: give an integer from 0 to 3"},
    {"{\"zero_optimization\": {\"stage\": \"three\"}}", ZERO_E_CONFIG,
     "zero_optimization.stage: \"three\" is a string where an integer or \"auto\" is expected"},
    {"{\"zero_optimization\": {\"aio\": {\"queue_depth\": 8}}}", ZERO_E_CONFIG,
     "zero_optimization.aio: unknown key: it belongs elsewhere: aio, at the top"},
    {"{\"zero_optimization\": {\"stage\": 1.5}}", ZERO_E_CONFIG,
     "zero_optimization.stage: 1.5 is a number where an integer or \"auto\" is expected"},
    {"{\"zero_optimization\": {\"stage\": null}}", ZERO_E_CONFIG,
     "zero_optimization.stage: null is null where an integer or \"auto\" is expected"},
    {"{\"zero_optimization\": {\"stage\": \"Auto\"}}", ZERO_E_CONFIG,
     "zero_optimization.stage: \"Auto\" is a string where an integer or \"auto\" is expected: did you mean "
     "\"auto\"?"},
    {"{\"zero_optimization\": {\"stage\": \"atuo\"}}", ZERO_E_CONFIG,
     "zero_optimization.stage: \"atuo\" is a string where an integer or \"auto\" is expected: did you mean "
     "\"auto\"?"},
    {"{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"atuo\"}}}", ZERO_E_CONFIG,
     "zero_optimization.offload_optimizer.device: \"atuo\" is none of \"none\", \"cpu\", \"nvme\", "
     "\"tiered\", "
     "\"auto\"; did you mean \"auto\"?"},
    {"{\"zero_optimization\": {\"offload_optimizer\": \"atuo\"}}", ZERO_E_CONFIG,
     "zero_optimization.offload_optimizer: \"atuo\" stands where an object or \"auto\" is expected: see zero "
     "config --help"},
    {"{\"zero_optimization\": {\"offload_optimizer\": \"cpu\"}}", ZERO_E_CONFIG,
     "zero_optimization.offload_optimizer: \"cpu\" stands where an object or \"auto\" is expected: see zero "
     "config "
     "--help"},
    {"{\"aio\": \"auto\"}", ZERO_E_CONFIG,
     "aio: \"auto\" stands where an object is expected: see zero config --help"},
    {"{\"zero_optimization\": 2}", ZERO_E_CONFIG,
     "zero_optimization: 2 stands where an object, true or false is expected: see zero config --help"},
    {"{\"wall_clock_breakdown\": \"true\"}", ZERO_E_CONFIG,
     "wall_clock_breakdown: \"true\" is a string where true or false or \"auto\" is expected: remove the "
     "quotes"},
    {"{\"zero_optimization\": {\"zero_quantized_weights\": \"fp8\"}}", ZERO_E_CONFIG,
     "zero_optimization.zero_quantized_weights: \"fp8\" is none of false, \"int4\", \"int8\", \"fp8_e4m3\", "
     "true, \"auto\""},
    {"{\"zero_optimization\": {\"zero_quantized_weights\": \"fp8_e5m2\"}}", ZERO_E_CONFIG,
     "zero_optimization.zero_quantized_weights: \"fp8_e5m2\" is none of false, \"int4\", \"int8\", "
     "\"fp8_e4m3\", true, \"auto\"; did you mean \"fp8_e4m3\"?"},
    {"{\"device\": {\"keep_outputs\": \"true\"}}", ZERO_E_CONFIG,
     "device.keep_outputs: \"true\" is a string where true, false or a string is expected: remove the "
     "quotes"},
    {"{\"zero_optimization\": {\"zero_quantized_weights\": 8}}", ZERO_E_CONFIG,
     "zero_optimization.zero_quantized_weights: 8 is an integer where true, false or a string or \"auto\" is "
     "expected"},
    {"{\"device\": {\"keep_outputs\": \"all\"}}", ZERO_E_CONFIG,
     "device.keep_outputs: \"all\" is none of false, true, \"auto\""},
    {"{\"param_groups\": [{\"match\": \"*\", \"zero_quantized_weights\": \"fp16\"}]}", ZERO_E_CONFIG,
     "param_groups[0].zero_quantized_weights: \"fp16\" stands where true, false, \"int4\", \"int8\" or "
     "\"fp8_e4m3\" is expected"},
    {"{\"param_groups\": [{\"match\": \"*\", \"zero_quantized_weights\": \"false\"}]}", ZERO_E_CONFIG,
     "param_groups[0].zero_quantized_weights: \"false\" stands where true, false, \"int4\", \"int8\" or "
     "\"fp8_e4m3\" is expected"},
    {"{\"torch_autocast\": {\"dtype\": \"float8\"}}", ZERO_E_CONFIG,
     "torch_autocast.dtype: \"float8\" is none of \"bfloat16\", \"float16\", \"torch.bfloat16\", "
     "\"torch.float16\"; did you mean \"float16\"?"},
    {"{\"optimizer\": {\"type\": \"OneBitLamb\", \"params\": {\"max_coeff\": 1}}}", ZERO_E_UNSUPPORTED,
     "optimizer.type: \"OneBitLamb\" is not supported here: only AdamW, Adam, SGD, Lion, Adagrad, Muon and "
     "Lamb are "
     "here: "
     "choose one of them"},
    {"{\"optimizer\": {\"type\": \"AdamWW\"}}", ZERO_E_CONFIG,
     "optimizer.type: \"AdamWW\" is none of \"AdamW\", \"Adam\", \"SGD\", \"Lion\", \"Adagrad\", \"Muon\", "
     "\"Lamb\"; "
     "did you "
     "mean \"AdamW\"?"},
    {"{\"optimizer\": {\"params\": {\"lr\": -1}}}", ZERO_E_CONFIG,
     "optimizer.params.lr: -1 is outside its range: give a number from 0 to 1e+30"},
    {"{\"optimizer\": {\"params\": {\"lr\": 1e999}}}", ZERO_E_CONFIG,
     "optimizer.params.lr: 1e999 is outside its range: give a number from 0 to 1e+30"},
    {"{\"optimizer\": {\"params\": {\"betas\": [0.9, 1.0]}}}", ZERO_E_CONFIG,
     "optimizer.params.betas: 1.0 is outside its range: give numbers of at least 0 and less than 1"},
    {"{\"optimizer\": {\"params\": {\"betas\": [0.9]}}}", ZERO_E_CONFIG,
     "optimizer.params.betas: [ 0.9 ] is a list where a list of two numbers, as [0.9, 0.999] or \"auto\" is "
     "expected"},
    {"{\"scheduler\": {\"params\": {\"patience\": 10}, \"type\": \"ReduceLROnPlateau\"}}", ZERO_E_UNSUPPORTED,
     "scheduler.type: \"ReduceLROnPlateau\" is not supported here: its rates follow from functions, losses "
     "or "
     "other schedules, which a file cannot name: choose another one, or give your own to "
     "zero_engine_set_schedule"},
    {"{\"scheduler\": {\"type\": \"WarmupDecay\"}}", ZERO_E_CONFIG,
     "scheduler.type: \"WarmupDecay\" is none of \"WarmupLR\", \"WarmupDecayLR\", \"WarmupCosineLR\", "
     "\"OneCycle\", \"LRRangeTest\", \"StepLR\", \"MultiStepLR\", \"ConstantLR\", \"LinearLR\", "
     "\"ExponentialLR\", \"PolynomialLR\", \"CosineAnnealingLR\", \"CosineAnnealingWarmRestarts\", "
     "\"CyclicLR\", \"OneCycleLR\", \"cosine_with_min_lr\", \"warmup_stable_decay\"; did you mean "
     "\"WarmupDecayLR\"?"},
    {"{\"scheduler\": {\"params\": {\"cycle_min_lr\": [0.1, -1]}}}", ZERO_E_CONFIG,
     "scheduler.params.cycle_min_lr: [ 0.1, -1 ] is a list where a number of at least 0, or a list of one "
     "for "
     "each parameter group, is expected"},
    {"{\"scheduler\": {\"params\": {\"warmup_num_steps\": 0}}}", ZERO_E_CONFIG,
     "scheduler.params.warmup_num_steps: 0 is outside its range: give an integer from 1 to 1e+12"},
    {"{\"memory\": {\"device\": \"8 gigs\"}}", ZERO_E_CONFIG,
     "memory.device: \"8 gigs\" is a string where a size in bytes, as 8589934592 or \"8GiB\" or "
     "\"unlimited\" is expected"},
    {"{\"data\": {\"path\": []}}", ZERO_E_CONFIG,
     "data.path: [ ] is a list where a path or a list of paths is expected"},
    {"{\"data\": {\"path\": [\"a\", 1]}}", ZERO_E_CONFIG,
     "data.path: [ \"a\", 1 ] is a list where a path or a list of paths is expected"},
    {"{\"data\": {\"eval\": 1.0}}", ZERO_E_CONFIG,
     "data.eval: 1.0 is a number where a fraction below 1, a path or a list of paths is expected"},
    {"{\"data_types\": {\"buffer_dtype\": \"fp32\"}}", ZERO_E_UNSUPPORTED,
     "data_types.buffer_dtype: \"fp32\" is not supported here: buffers are the program's, and keep their own "
     "type: remove it"},
    {"{\"data_types\": {\"keep_in_fp32_modules\": [\"e_score_correction_bias\"]}}", ZERO_E_UNSUPPORTED,
     "data_types.keep_in_fp32_modules: [ \"e_score_correction_bias\" ] is not supported here: buffers are "
     "the program's, and keep "
     "their own type: remove it; parameters stay fp32 in a group of param_groups with \"dtype\": \"fp32\""},
    {"{\"seed\": 1,\n\"seed\": 2}", ZERO_E_CONFIG,
     "configuration:2:1: key \"seed\" stands twice in one object: remove one"},
    {"{\"device\": {\"products\": \"timed\"}}", ZERO_E_UNSUPPORTED,
     "device.products: \"timed\" is not supported here: the choice by time is gone, and each shape uses the "
     "algorithm that cuBLASLt "
     "proposes first: remove the key"},
    {"{\"device\": {\"attention\": \"timed\"}}", ZERO_E_UNSUPPORTED,
     "device.attention: \"timed\" is not supported here: the choice by time is gone: write \"auto\", or "
     "\"mma\""},
    {"{\"model\": {\"hidden_size\": 4, \"model_type\": \"bert\"}}", ZERO_E_UNSUPPORTED,
     "model.model_type: \"bert\" is not supported here: only gpt2, llama, mistral, qwen2 and qwen3 are here: "
     "choose one of them"},
    /* a near name is one that is here, although another one is nearer */
    {"{\"model\": {\"model_type\": \"qwen\"}}", ZERO_E_CONFIG,
     "model.model_type: \"qwen\" is none of \"gpt2\", \"llama\", \"mistral\", \"qwen2\", \"qwen3\"; did you "
     "mean "
     "\"qwen2\"?"},
    {"{\"model\": {\"model_type\": \"gpt_neo\"}}", ZERO_E_CONFIG,
     "model.model_type: \"gpt_neo\" is none of \"gpt2\", \"llama\", \"mistral\", \"qwen2\", \"qwen3\""},
    {"{\"model\": {\"model_type\": \"llama\", \"rope_scaling\": {\"factor\": 2, \"type\": \"dynamic\"}}}",
     ZERO_E_UNSUPPORTED,
     "model.rope_scaling.type: \"dynamic\" is not supported here: positions are stretched as default, "
     "linear, llama3 "
     "and yarn have it: take a model of such a type"},
    {"{\"model\": {\"model_type\": \"llama\", \"attention_bias\": true}}", ZERO_E_UNSUPPORTED,
     "model.attention_bias: true is not supported here: this version has no Llama with biases, only a qwen2, "
     "with those "
     "of queries, keys and values: take a model without them"},
    {"{\"model\": {\"scale_attn_by_inverse_layer_idx\": true}}", ZERO_E_UNSUPPORTED,
     "model.scale_attn_by_inverse_layer_idx: true is not supported here: attention is scaled alike in all "
     "layers here: "
     "take a model of that kind"},
    {"{\"model\": {\"model_type\": \"llama\", \"hidden_act\": \"gelu\"}}", ZERO_E_UNSUPPORTED,
     "model.hidden_act: \"gelu\" is not supported here: the MLP is gated by SiLU: write \"silu\""},
};

static void messages(void) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct config config;
        struct zero_error error;
        error_clear(&error);
        CHECK_INT(config_read(cases[i].json, &config, &error), cases[i].status);
        CHECK_STRING(error.message, cases[i].message);
        config_free(&config);
    }
}

/* Writes {"a": {"b": VALUE}} for the key a.b. */
static void write_nested(const char *path, const char *value, char *out, size_t size) {
    size_t at = (size_t)snprintf(out, size, "{\""), depth = 1;
    for (; *path; path++) {
        if (*path == '.')
            at += (size_t)snprintf(out + at, size - at, "\": {\""), depth++;
        else
            out[at++] = *path;
    }
    at += (size_t)snprintf(out + at, size - at, "\": %s", value);
    while (depth--) out[at++] = '}';
    out[at] = 0;
}

/* A wrong value of a key that takes "auto" is told so, where the value is not a string of any kind. */
static void auto_is_named(void) {
    uint32_t keys = 0;
    for (uint32_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        struct config config;
        struct zero_error error;
        char json[400];
        if (key->type == KEY_STRING || key->type == KEY_PATHS || key->type == KEY_EVAL ||
            key->type == KEY_OPAQUE)
            continue;
        write_nested(key->path, "\"auto\"", json, sizeof json);
        error_clear(&error);
        bool takes = config_read(json, &config, &error) == ZERO_OK;
        config_free(&config);
        write_nested(key->path, "\"atuo\"", json, sizeof json);
        error_clear(&error);
        zero_status status = config_read(json, &config, &error);
        config_free(&config);
        if (!takes) continue;
        bool named = CHECK_INT(status, ZERO_E_CONFIG) & CHECK_CONTAINS(error.message, "\"auto\"");
        if (!named) fprintf(stderr, "of %s\n", key->path);
        keys++;
    }
    CHECK(keys > 50);
}

static void hostile_keys(void) {
    struct config config;
    struct zero_error error;
    char json[600] = "{\"";
    for (int i = 0; i < 200; i++) strcat(json, "\xc3\xa9");
    strcat(json, "\": 1}");
    error_clear(&error);
    CHECK_INT(config_read(json, &config, &error), ZERO_E_CONFIG);
    CHECK_CONTAINS(error.message, "\xc3\xa9: unknown key");
    config_free(&config);
    error_clear(&error);
    CHECK_INT(config_read("{\"a\\nb\": 1}", &config, &error), ZERO_E_CONFIG);
    CHECK_CONTAINS(error.message, "a?b: unknown key");
    config_free(&config);
}

/* Wherever a long text is cut, the message is UTF-8. */
static void long_texts(void) {
    static const char *const texts[] = {"{\"aio\": \"%s\"}",
                                        "{\"param_groups\": [\"%s\"]}",
                                        "{\"param_groups\": [{\"match\": \"a\", \"%s\": 1}]}",
                                        "{\"param_groups\": [{\"match\": \"a\", \"lr\": \"%s\"}]}",
                                        "{\"%s\": 1, \"%s\": 2}",
                                        "/nowhere/%s"};
    struct config config;
    struct zero_error error;
    char name[403] = "", json[1000];
    for (int i = 0; i < 200; i++) strcat(name, "\xc3\xa9");
    for (int shift = 0; shift < 2; shift++, memmove(name + 1, name, sizeof name - 1), *name = 'e')
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            snprintf(json, sizeof json, texts[i], name, name);
            error_clear(&error);
            CHECK(config_read(json, &config, &error) != ZERO_OK);
            if (!CHECK(utf8_is(error.message))) fprintf(stderr, "%s: %s\n", texts[i], error.message);
            config_free(&config);
        }
}

static void distances(void) {
    CHECK_INT(suggest_distance("stage", "stage", 5), 0);
    CHECK_INT(suggest_distance("Stage", "sTAGE", 5), 0);
    CHECK_INT(suggest_distance("stge", "stage", 5), 1);
    CHECK_INT(suggest_distance("satge", "stage", 5), 1);
    CHECK_INT(suggest_distance("", "abc", 5), 3);
    CHECK_INT(suggest_distance("kitten", "sitting", 5), 3);
    CHECK_INT(suggest_distance("kitten", "sitting", 1), 2);
}

static void sizes(void) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"8GiB", 8ull << 30},
                {"512MiB", 512ull << 20},
                {"1e9", 1000000000},
                {"1.5 KiB", 1536},
                {"16gb", 16000000000ull},
                {"0", 0},
                {"7B", 7},
                {"2TiB", 2ull << 40},
                {"unlimited", CONFIG_BYTES_UNLIMITED}};
    static const char *const bad[] = {
        "", "GiB", "8G", "-1", "1e", "8GiBs", "nan", "1e30", "9999999999999999999", ".5GiB"};
    uint64_t bytes;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        if (CHECK(config_size_parse(good[i].text, &bytes))) CHECK_INT(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (!CHECK(!config_size_parse(bad[i], &bytes))) fprintf(stderr, "%s\n", bad[i]);
    }
}

int main(void) {
    messages();
    auto_is_named();
    hostile_keys();
    long_texts();
    distances();
    sizes();
    return check_end();
}
