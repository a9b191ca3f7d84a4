/* The model block. Each architecture has its own key names for the same sizes, its own defaults, and keys that other
 * architectures do not have. The defaults are those of Hugging Face's GPT2Config, LlamaConfig, MistralConfig,
 * Qwen2Config and Qwen3Config. */
#include <math.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/config/config.h"
#include "engine/config/key.h"
#include "engine/config/resolve/resolve.h"
#include "engine/config/value.h"

enum { ALIASES_MAX = 2 };

enum architecture { GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, ARCHITECTURES };

static zero_status resolve_gpt2(struct config *config, struct zero_error *error);
static zero_status resolve_llama(struct config *config, struct zero_error *error);

static const struct {
    const char *name;          /* Hugging Face's model_type */
    const char *width, *heads; /* the keys that have these numbers */
    zero_status (*resolve)(struct config *config, struct zero_error *error);
    const char *class; /* in "architectures" */
} architectures[ARCHITECTURES] = {
    [GPT2] = {"gpt2", "n_embd", "n_head", resolve_gpt2, "\"GPT2LMHeadModel\""},
    [LLAMA] = {"llama", "hidden_size", "num_attention_heads", resolve_llama, "\"LlamaForCausalLM\""},
    [MISTRAL] = {"mistral", "hidden_size", "num_attention_heads", resolve_llama, "\"MistralForCausalLM\""},
    [QWEN2] = {"qwen2", "hidden_size", "num_attention_heads", resolve_llama, "\"Qwen2ForCausalLM\""},
    [QWEN3] = {"qwen3", "hidden_size", "num_attention_heads", resolve_llama, "\"Qwen3ForCausalLM\""},
};

const char *config_architecture(uint32_t index) {
    return index < ARCHITECTURES ? architectures[index].name : NULL;
}

/* fallback: the default per architecture, as JSON; NULL: the architecture has no such key; "": the key has no
 * default, and its value may come from other keys. */
struct model_key {
    const char *path, *fallback[ARCHITECTURES];
    const char *instead;            /* the other architecture's name for this key */
    const char *alias[ALIASES_MAX]; /* names of the same key in other files; all share one field */
};

#define MODEL(key) "model." key
#define STRETCH(key)                                                                                         \
    { MODEL("rope_parameters." key) }
#define ONLY_GPT2(value)                                                                                     \
    { [GPT2] = value }
#define NOT_GPT2(value)                                                                                      \
    { [LLAMA] = value, [MISTRAL] = value, [QWEN2] = value, [QWEN3] = value }

static const struct model_key keys[] = {
    {MODEL("n_layer"), ONLY_GPT2("12"), "num_hidden_layers", {0}},
    {MODEL("n_embd"), ONLY_GPT2("768"), "hidden_size", {0}},
    {MODEL("n_head"), ONLY_GPT2("12"), "num_attention_heads", {0}},
    {MODEL("n_positions"), ONLY_GPT2("1024"), "max_position_embeddings", {MODEL("n_ctx")}},
    {MODEL("n_inner"), ONLY_GPT2(""), "intermediate_size", {0}},
    {MODEL("activation_function"), ONLY_GPT2("\"gelu_new\""), "hidden_act", {0}},
    {MODEL("layer_norm_epsilon"), ONLY_GPT2("1e-5"), "rms_norm_eps", {0}},
    {MODEL("num_hidden_layers"), NOT_GPT2("32"), "n_layer", {0}},
    {MODEL("hidden_size"), NOT_GPT2("4096"), "n_embd", {0}},
    {MODEL("num_attention_heads"), NOT_GPT2("32"), "n_head", {0}},
    {MODEL("max_position_embeddings"),
     {NULL, "2048", "131072", "32768", "32768"},
     "n_positions",
     {MODEL("max_sequence_length")}},
    {MODEL("intermediate_size"), {NULL, "11008", "14336", "22016", "22016"}, "n_inner", {0}},
    {MODEL("hidden_act"), NOT_GPT2("\"silu\""), "activation_function", {0}},
    {MODEL("rms_norm_eps"), NOT_GPT2("1e-6"), "layer_norm_epsilon", {0}},
    {MODEL("num_key_value_heads"), {NULL, "", "8", "32", "32"}, NULL, {0}},
    {MODEL("head_dim"), {NULL, "", "", "", "128"}, NULL, {0}},
    {MODEL("sliding_window"), {NULL, NULL, "4096", "4096", "4096"}, NULL, {0}},
    {MODEL("use_sliding_window"), {[QWEN2] = "false", [QWEN3] = "false"}, NULL, {0}},
    {MODEL("max_window_layers"), {[QWEN2] = "28", [QWEN3] = "28"}, NULL, {0}},
    {MODEL("rope_theta"), NOT_GPT2("10000"), NULL, STRETCH("rope_theta")},
    {MODEL("rope_scaling.rope_type"),
     NOT_GPT2("\"default\""),
     NULL,
     {MODEL("rope_parameters.rope_type"), MODEL("rope_scaling.type")}},
    {MODEL("rope_scaling.factor"), NOT_GPT2(""), NULL, STRETCH("factor")},
    {MODEL("rope_scaling.low_freq_factor"), NOT_GPT2(""), NULL, STRETCH("low_freq_factor")},
    {MODEL("rope_scaling.high_freq_factor"), NOT_GPT2(""), NULL, STRETCH("high_freq_factor")},
    {MODEL("rope_scaling.original_max_position_embeddings"), NOT_GPT2(""), NULL,
     STRETCH("original_max_position_embeddings")},
    {MODEL("rope_scaling.beta_fast"), NOT_GPT2(""), NULL, STRETCH("beta_fast")},
    {MODEL("rope_scaling.beta_slow"), NOT_GPT2(""), NULL, STRETCH("beta_slow")},
    {MODEL("rope_scaling.attention_factor"), NOT_GPT2(""), NULL, STRETCH("attention_factor")},
    {MODEL("rope_scaling.mscale"), NOT_GPT2(""), NULL, STRETCH("mscale")},
    {MODEL("rope_scaling.mscale_all_dim"), NOT_GPT2(""), NULL, STRETCH("mscale_all_dim")},
    {MODEL("rope_scaling.truncate"), NOT_GPT2(""), NULL, STRETCH("truncate")},
    {MODEL("vocab_size"), {"50257", "32000", "32000", "151936", "151936"}, NULL, {0}},
    {MODEL("tie_word_embeddings"), {"true", "false", "false", "false", "false"}, NULL, {0}},
};
enum { KEYS = sizeof keys / sizeof *keys };

/* ---- one key ---- */

static zero_status no_such_key(const char *path, const struct model_key *key, int type,
                               struct zero_error *error) {
    if (key->instead)
        return error_set(error, ZERO_E_CONFIG, "%s: a %s has no such key: write %s instead", path,
                         config_architecture(type), key->instead);
    return error_set(error, ZERO_E_CONFIG, "%s: a %s has no such key: remove it", path,
                     config_architecture(type));
}

static zero_status contradiction(const struct config *c, const char *path, const char *alias,
                                 struct zero_error *error) {
    return error_set(error, ZERO_E_CONFIG,
                     "%s: %s is not %s %s, of which it is another name: remove one of them", alias,
                     config_entry(c, alias)->text, path, config_entry(c, path)->text);
}

static zero_status store_default(struct config *config, const struct model_key *key,
                                 struct zero_error *error) {
    const struct config_key *k = config_key_find(key->path);
    const char *text = key->fallback[config->model.type];
    /* Transformers derives this one in every architecture, whatever the default is. */
    bool derived = strcmp(key->path, MODEL("num_key_value_heads")) == 0;
    bool null = config_entry(config, key->path)->null;
    for (int i = 0; i < ALIASES_MAX && key->alias[i]; i++) null |= config_entry(config, key->alias[i])->null;
    if (null && *text && !derived)
        return error_set(
            error, ZERO_E_CONFIG,
            "%s: it is null, and a %s needs a value: write one, or remove the key for the default, %s",
            key->path, config_architecture(config->model.type), text);
    if (*text && !null) return config_store_text(config, k, text, CONFIG_DEFAULT, error);
    return config_leave_out(config, k, error);
}

/* A null says that the model lacks what the key describes. */
static bool is_null(const struct config *config, const char *path) {
    const char *text = config_entry(config, path)->text;
    return text && strcmp(text, "null") == 0;
}

/* Takes the key's value from any of its names. A value from an alias is also recorded under the key's own name. */
static zero_status resolve_key(struct config *config, const struct model_key *key, struct zero_error *error) {
    const struct config_key *k = config_key_find(key->path);
    bool member = key->fallback[config->model.type] != NULL, given = config_written(config, key->path);
    zero_status status = ZERO_OK;
    if (given && !member && !is_null(config, key->path))
        return no_such_key(key->path, key, config->model.type, error);
    for (int i = 0; i < ALIASES_MAX && key->alias[i] && !status; i++) {
        if (!config_written(config, key->alias[i])) continue;
        if (!member) return no_such_key(key->alias[i], key, config->model.type, error);
        const char *text = config_entry(config, key->alias[i])->text;
        if (given && !config_same(text, config_entry(config, key->path)->text))
            return contradiction(config, key->path, key->alias[i], error);
        if (!given) status = config_store_text(config, k, text, CONFIG_DERIVED, error);
        given = true;
    }
    if (given || status) return status;
    return member ? store_default(config, key, error)
                  : config_entry_set(config, k, CONFIG_DEFAULT, NULL, error);
}

/* ---- between keys ---- */

/* The members of rope_scaling: the types that need one, and the types that may have it. */
#define ROPE(type) (1u << CONFIG_ROPE_##type)
static const struct rope_member {
    const char *path;
    unsigned needs, has;
} rope_members[] = {
    {MODEL("rope_scaling.factor"), ROPE(LINEAR) | ROPE(LLAMA3) | ROPE(YARN), 0},
    {MODEL("rope_scaling.low_freq_factor"), ROPE(LLAMA3), 0},
    {MODEL("rope_scaling.high_freq_factor"), ROPE(LLAMA3), 0},
    {MODEL("rope_scaling.original_max_position_embeddings"), 0, ROPE(LLAMA3) | ROPE(YARN)},
    {MODEL("rope_scaling.beta_fast"), 0, ROPE(YARN)},
    {MODEL("rope_scaling.beta_slow"), 0, ROPE(YARN)},
    {MODEL("rope_scaling.attention_factor"), 0, ROPE(YARN)},
    {MODEL("rope_scaling.mscale"), 0, ROPE(YARN)},
    {MODEL("rope_scaling.mscale_all_dim"), 0, ROPE(YARN)},
    {MODEL("rope_scaling.truncate"), 0, ROPE(YARN)},
};

static zero_status check_rope_members(const struct config *config, struct zero_error *error) {
    const char *type = config_entry(config, MODEL("rope_scaling.rope_type"))->text;
    for (size_t i = 0; i < sizeof rope_members / sizeof *rope_members; i++) {
        const struct rope_member *m = &rope_members[i];
        unsigned bit = 1u << config->model.rope.type;
        bool given = config_entry(config, m->path)->text != NULL;
        if (given && !((m->needs | m->has) & bit))
            return error_set(error, ZERO_E_CONFIG,
                             "%s: rope_type is %s, which has no such member: remove it, or write the "
                             "rope_type to which it belongs",
                             m->path, type);
        if (!given && (m->needs & bit))
            return error_set(error, ZERO_E_CONFIG, "%s: it is missing: rope_type %s needs it", m->path, type);
    }
    return ZERO_OK;
}

/* As Peng et al. 2023, YaRN, section 3.4, has it. */
static double attention_scale(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static void resolve_yarn(struct config *config) {
    struct config_rope *r = &config->model.rope;
    bool both = r->mscale > 0 && r->mscale_all_dim > 0;
    r->low = r->beta_slow > 0 ? r->beta_slow : 1;
    r->high = r->beta_fast > 0 ? r->beta_fast : 32;
    r->attention = r->attention_factor > 0 ? r->attention_factor
                   : both
                       ? attention_scale(r->factor, r->mscale) / attention_scale(r->factor, r->mscale_all_dim)
                       : attention_scale(r->factor, 1);
    if (!config_entry(config, MODEL("rope_scaling.truncate"))->text) r->truncate = true;
}

static zero_status resolve_rope(struct config *config, struct zero_error *error) {
    struct config_rope *r = &config->model.rope;
    TRY(check_rope_members(config, error));
    bool ranges = r->type == CONFIG_ROPE_LLAMA3 || r->type == CONFIG_ROPE_YARN,
         yarn = r->type == CONFIG_ROPE_YARN;
    if (ranges && !config_entry(config, MODEL("rope_scaling.original_max_position_embeddings"))->text)
        r->original_context = config->model.context;
    r->attention = 1;
    if (yarn) resolve_yarn(config);
    if (!ranges || r->low < r->high) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG, MODEL("rope_scaling.%s") ": %g is not below %s %g: lower it",
                     yarn ? "beta_slow" : "low_freq_factor", r->low, yarn ? "beta_fast" : "high_freq_factor",
                     r->high);
}

/* Reads the kinds of the blocks from layer_types, in place of max_window_layers: full attention in the first blocks, and
 * the window in all others. */
static zero_status read_layer_types(const struct config_model *m, const char *text, uint64_t *out_from,
                                    struct zero_error *error) {
    static const char path[] = MODEL("layer_types");
    static const char sliding[] = "\"sliding_attention\"", full[] = "\"full_attention\"";
    uint64_t count = 0;
    *out_from = m->layers;
    for (const char *at = strchr(text, '"'); at; count++) {
        bool slides = strncmp(at, sliding, sizeof sliding - 1) == 0;
        if (!slides && strncmp(at, full, sizeof full - 1) != 0)
            return error_set(
                error, ZERO_E_CONFIG,
                "%s: %.*s is neither full_attention nor sliding_attention: take a model of these", path,
                utf8_fit(at, 40), at);
        if (slides && *out_from == m->layers) *out_from = count;
        if (!slides && *out_from < m->layers)
            return error_set(error, ZERO_E_CONFIG,
                             "%s: a block without a window follows one that has it, and here all blocks from "
                             "the first one with the window on have it: take a model of that kind",
                             path);
        at = strchr(strchr(at + 1, '"') + 1, '"');
    }
    if (count == m->layers) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     "%s: it has %llu blocks, and num_hidden_layers is %llu: make them equal", path,
                     (unsigned long long)count, (unsigned long long)m->layers);
}

static zero_status resolve_window(struct config *config, struct zero_error *error) {
    struct config_model *m = &config->model;
    bool qwen = m->type == QWEN2 || m->type == QWEN3;
    const char *types = config_entry(config, MODEL("layer_types"))->text;
    uint64_t from = qwen ? m->max_window_layers : 0;
    m->window = qwen && !m->use_sliding_window ? 0 : m->sliding_window;
    TRY(types ? read_layer_types(m, types, &from, error) : ZERO_OK);
    if (types && from < m->layers && !m->window)
        return error_set(error, ZERO_E_CONFIG,
                         "%s: it names sliding_attention, and there is no sliding_window: %s",
                         MODEL("layer_types"), qwen ? "set use_sliding_window and sliding_window" : "set it");
    if (from >= m->layers) m->window = 0;
    m->window_from = m->window ? from : 0;
    return ZERO_OK;
}

/* Sets a shorter context. This is possible with rotary positions, because no parameter depends on the context then. */
static zero_status shorten(struct config *config, struct zero_error *error) {
    uint64_t *context = &config->model.context, wanted = config->data.context;
    if (wanted > *context)
        return error_set(error, ZERO_E_CONFIG,
                         "data.context: %llu is more than max_position_embeddings %llu: lower it",
                         (unsigned long long)wanted, (unsigned long long)*context);
    if (wanted) *context = wanted;
    return ZERO_OK;
}

static zero_status resolve_gpt2(struct config *config, struct zero_error *error) {
    struct config_model *m = &config->model;
    if (config->data.context)
        return error_set(
            error, ZERO_E_CONFIG,
            "data.context: the samples of a gpt2 are of n_positions tokens: set that, and remove this");
    if (config_written(config, MODEL("layer_types")) && !is_null(config, MODEL("layer_types")))
        return error_set(error, ZERO_E_CONFIG, "model.layer_types: a gpt2 has no such key: remove it");
    m->kv_heads = m->head_width = m->window = 0;
    if (!config_written(config, MODEL("n_inner"))) m->inner = 4 * m->width;
    return config_derived_int(config, MODEL("n_inner"), m->inner, error);
}

static zero_status resolve_llama(struct config *config, struct zero_error *error) {
    struct config_model *m = &config->model;
    if (!m->kv_heads) m->kv_heads = m->heads;
    if (!m->head_width) m->head_width = m->width / m->heads;
    TRY(config_derived_int(config, MODEL("num_key_value_heads"), m->kv_heads, error));
    TRY(config_derived_int(config, MODEL("head_dim"), m->head_width, error));
    if (m->heads % m->kv_heads)
        return error_set(
            error, ZERO_E_CONFIG,
            "model.num_key_value_heads: %llu does not divide num_attention_heads %llu: choose a divisor",
            (unsigned long long)m->kv_heads, (unsigned long long)m->heads);
    if (m->head_width % 2)
        return error_set(error, ZERO_E_CONFIG,
                         "model.head_dim: %llu is odd, and rotary positions turn pairs: choose an even one",
                         (unsigned long long)m->head_width);
    zero_status status = resolve_rope(config, error);
    if (!status) status = resolve_window(config, error);
    return status ? status : shorten(config, error);
}

/* A model with code of its own may compute anything, unless it names a type and a class that are here. */
static zero_status check_own_code(struct config *config, struct zero_error *error) {
    const char *map = config_entry(config, MODEL("auto_map"))->text,
               *classes = config_entry(config, MODEL("architectures"))->text,
               *class = architectures[config->model.type].class;
    config->model.own_code = map && strchr(map, '"');
    if (!config->model.own_code ||
        (config_written(config, MODEL("model_type")) && classes && strstr(classes, class)))
        return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     "model.auto_map: the model is computed by code of its own, which is not run here: take "
                     "a model of which model_type and architectures (%s) are here",
                     class);
}

zero_status config_resolve_model(struct config *config, struct zero_error *error) {
    struct config_model *m = &config->model;
    TRY(check_own_code(config, error));
    for (int i = 0; i < KEYS; i++) TRY(resolve_key(config, &keys[i], error));
    if (!m->head_width && m->width % m->heads)
        return error_set(error, ZERO_E_CONFIG, "model.%s: %llu does not divide %s %llu: choose a divisor",
                         architectures[m->type].heads, (unsigned long long)m->heads,
                         architectures[m->type].width, (unsigned long long)m->width);
    return architectures[m->type].resolve(config, error);
}
