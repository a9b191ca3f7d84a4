/* The model block. Each architecture has its own key names for the same sizes, its own defaults, and keys that other
 * architectures do not have. The defaults are those of Hugging Face's GPT2Config and LlamaConfig. */
#include <string.h>

#include "engine/config/config.h"
#include "engine/config/given.h"
#include "engine/config/key.h"
#include "engine/config/value.h"

enum type { GPT2, LLAMA, TYPES };
enum { ALIASES_MAX = 2 };

static zero_status resolve_gpt2(struct config *config, struct zero_error *error);
static zero_status resolve_llama(struct config *config, struct zero_error *error);

static const struct {
    const char *name, *width, *heads; /* the keys that have these numbers */
    zero_status (*resolve)(struct config *config, struct zero_error *error);
} architectures[TYPES] = {[GPT2] = {"gpt2", "n_embd", "n_head", resolve_gpt2},
                          [LLAMA] = {"llama", "hidden_size", "num_attention_heads", resolve_llama}};

const char *config_architecture(uint32_t index) { return index < TYPES ? architectures[index].name : NULL; }

/* fallback: the default per architecture, as JSON; NULL: the architecture has no such key; "": the key has no
 * default. */
struct model_key {
    const char *path, *fallback[TYPES];
    const char *instead;            /* the other architecture's name for this key */
    const char *alias[ALIASES_MAX]; /* names of the same key in other files; all share one field */
};

#define MODEL(key) "model." key
#define STRETCH(key)                                                                                         \
    { MODEL("rope_parameters." key) }

static const struct model_key keys[] = {
    {MODEL("n_layer"), {"12", NULL}, "num_hidden_layers", {0}},
    {MODEL("n_embd"), {"768", NULL}, "hidden_size", {0}},
    {MODEL("n_head"), {"12", NULL}, "num_attention_heads", {0}},
    {MODEL("n_positions"), {"1024", NULL}, "max_position_embeddings", {MODEL("n_ctx")}},
    {MODEL("n_inner"), {"", NULL}, "intermediate_size", {0}},
    {MODEL("activation_function"), {"\"gelu_new\"", NULL}, "hidden_act", {0}},
    {MODEL("layer_norm_epsilon"), {"1e-5", NULL}, "rms_norm_eps", {0}},
    {MODEL("num_hidden_layers"), {NULL, "32"}, "n_layer", {0}},
    {MODEL("hidden_size"), {NULL, "4096"}, "n_embd", {0}},
    {MODEL("num_attention_heads"), {NULL, "32"}, "n_head", {0}},
    {MODEL("max_position_embeddings"), {NULL, "2048"}, "n_positions", {0}},
    {MODEL("intermediate_size"), {NULL, "11008"}, "n_inner", {0}},
    {MODEL("hidden_act"), {NULL, "\"silu\""}, "activation_function", {0}},
    {MODEL("rms_norm_eps"), {NULL, "1e-6"}, "layer_norm_epsilon", {0}},
    {MODEL("num_key_value_heads"), {NULL, ""}, NULL, {0}},
    {MODEL("head_dim"), {NULL, ""}, NULL, {0}},
    {MODEL("rope_theta"), {NULL, "10000"}, NULL, STRETCH("rope_theta")},
    {MODEL("rope_scaling.rope_type"),
     {NULL, "\"default\""},
     NULL,
     {MODEL("rope_parameters.rope_type"), MODEL("rope_scaling.type")}},
    {MODEL("rope_scaling.factor"), {NULL, ""}, NULL, STRETCH("factor")},
    {MODEL("rope_scaling.low_freq_factor"), {NULL, ""}, NULL, STRETCH("low_freq_factor")},
    {MODEL("rope_scaling.high_freq_factor"), {NULL, ""}, NULL, STRETCH("high_freq_factor")},
    {MODEL("rope_scaling.original_max_position_embeddings"),
     {NULL, ""},
     NULL,
     STRETCH("original_max_position_embeddings")},
    {MODEL("vocab_size"), {"50257", "32000"}, NULL, {0}},
    {MODEL("tie_word_embeddings"), {"true", "false"}, NULL, {0}},
};
enum { KEYS = sizeof keys / sizeof *keys };

/* ---- one key ---- */

static zero_status no_such_key(const char *path, const struct model_key *key, int type,
                               struct zero_error *error) {
    if (key->instead)
        return error_set(error, ZERO_E_CONFIG, "%s: a %s has no such key: write %s instead", path,
                         architectures[type].name, key->instead);
    return error_set(error, ZERO_E_CONFIG, "%s: a %s has no such key: remove it", path,
                     architectures[type].name);
}

static zero_status contradiction(const struct config *c, const char *path, const char *alias,
                                 struct zero_error *error) {
    return error_set(error, ZERO_E_CONFIG,
                     "%s: %s is not %s %s, of which it is another name: remove one of them", alias,
                     config_entry(c, alias)->text, path, config_entry(c, path)->text);
}

static size_t field_bytes(enum key_type type) {
    static const size_t bytes[KEY_TYPES] = {[KEY_BOOL] = sizeof(bool),
                                            [KEY_INT] = sizeof(uint64_t),
                                            [KEY_REAL] = sizeof(double),
                                            [KEY_CHOICE] = sizeof(int)};
    return bytes[type];
}

static zero_status store_default(struct config *config, const struct model_key *key,
                                 struct zero_error *error) {
    const struct config_key *k = config_key_find(key->path);
    const char *text = key->fallback[config->model.type];
    if (*text) return config_store_text(config, k, text, CONFIG_DEFAULT, error);
    memset((char *)config + k->offset, 0, field_bytes(k->type));
    return config_entry_set(config, k, CONFIG_DEFAULT, NULL, error);
}

/* Takes the key's value from any of its names. A value from an alias is also recorded under the key's own name. */
static zero_status resolve_key(struct config *config, const struct model_key *key, struct zero_error *error) {
    const struct config_key *k = config_key_find(key->path);
    bool member = key->fallback[config->model.type] != NULL, given = config_written(config, key->path);
    zero_status status = ZERO_OK;
    if (given && !member) return no_such_key(key->path, key, config->model.type, error);
    for (int i = 0; i < ALIASES_MAX && key->alias[i] && !status; i++) {
        if (!config_written(config, key->alias[i])) continue;
        if (!member) return no_such_key(key->alias[i], key, config->model.type, error);
        const char *text = config_entry(config, key->alias[i])->text;
        if (given && strcmp(text, config_entry(config, key->path)->text) != 0)
            return contradiction(config, key->path, key->alias[i], error);
        if (!given) status = config_store_text(config, k, text, CONFIG_DERIVED, error);
        given = true;
    }
    if (given || status) return status;
    return member ? store_default(config, key, error)
                  : config_entry_set(config, k, CONFIG_DEFAULT, NULL, error);
}

/* ---- between keys ---- */

static zero_status check_rope(const struct config *config, struct zero_error *error) {
    static const char *const parts[] = {MODEL("rope_scaling.factor"), MODEL("rope_scaling.low_freq_factor"),
                                        MODEL("rope_scaling.high_freq_factor"),
                                        MODEL("rope_scaling.original_max_position_embeddings")};
    const struct config_rope *r = &config->model.rope;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        bool given = config_entry(config, parts[i])->text != NULL;
        if (given && r->type == CONFIG_ROPE_DEFAULT)
            return error_set(error, ZERO_E_CONFIG,
                             "%s: only rope_type \"llama3\" has it: set that, or remove it", parts[i]);
        if (!given && r->type == CONFIG_ROPE_LLAMA3)
            return error_set(error, ZERO_E_CONFIG, "%s: it is missing: rope_type \"llama3\" needs it",
                             parts[i]);
    }
    if (r->type == CONFIG_ROPE_DEFAULT || r->low < r->high) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG, "%s: %g is not below high_freq_factor %g: lower it", parts[1],
                     r->low, r->high);
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
    m->kv_heads = m->head_width = 0;
    if (!config_written(config, MODEL("n_inner"))) m->inner = 4 * m->width;
    return config_derived_int(config, MODEL("n_inner"), m->inner, error);
}

static zero_status resolve_llama(struct config *config, struct zero_error *error) {
    struct config_model *m = &config->model;
    if (!m->kv_heads) m->kv_heads = m->heads;
    if (!m->head_width) m->head_width = m->width / m->heads;
    zero_status status = config_derived_int(config, MODEL("num_key_value_heads"), m->kv_heads, error);
    if (!status) status = config_derived_int(config, MODEL("head_dim"), m->head_width, error);
    if (status) return status;
    if (m->heads % m->kv_heads)
        return error_set(
            error, ZERO_E_CONFIG,
            "model.num_key_value_heads: %llu does not divide num_attention_heads %llu: choose a divisor",
            (unsigned long long)m->kv_heads, (unsigned long long)m->heads);
    if (m->head_width % 2)
        return error_set(error, ZERO_E_CONFIG,
                         "model.head_dim: %llu is odd, and rotary positions turn pairs: choose an even one",
                         (unsigned long long)m->head_width);
    status = check_rope(config, error);
    return status ? status : shorten(config, error);
}

zero_status config_resolve_model(struct config *config, struct zero_error *error) {
    struct config_model *m = &config->model;
    zero_status status = ZERO_OK;
    for (int i = 0; i < KEYS && !status; i++) status = resolve_key(config, &keys[i], error);
    if (status) return status;
    if (m->width % m->heads)
        return error_set(error, ZERO_E_CONFIG, "model.%s: %llu does not divide %s %llu: choose a divisor",
                         architectures[m->type].heads, (unsigned long long)m->heads,
                         architectures[m->type].width, (unsigned long long)m->width);
    return architectures[m->type].resolve(config, error);
}
