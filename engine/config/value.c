/* Stores a JSON value in a typed field: one check per type, then the action for the key's use. */
#include "engine/config/value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/limits.h"
#include "engine/config/suggest.h"
#include "engine/config/text/scan.h"
#include "stages/stage.h"

struct store {
    struct config *config;
    const struct config_key *key;
    const struct config_value *value;
    void *field; /* NULL: the key has no field, and the value is only checked */
    struct zero_error *error;
};

/* ---- error messages ---- */

struct shown {
    char text[72];
};

/* The value as JSON text. A long text is cut between two UTF-8 characters. */
static struct shown show(const struct config_value *value) {
    struct shown out;
    size_t length = strlen(value->text), most = sizeof out.text - 4;
    if (length < sizeof out.text) return memcpy(out.text, value->text, length + 1), out;
    while (most > 0 && ((unsigned char)value->text[most] & 0xC0) == 0x80) most--;
    memcpy(out.text, value->text, most);
    memcpy(out.text + most, "...", 4);
    return out;
}

static const char *kind_name(enum value_kind kind) {
    static const char *const names[] = {"null",     "a boolean", "an integer", "a number",
                                        "a string", "a list",    "an object"};
    return names[kind];
}

/* Whether the string is a number, true or false in quotes, which is the most common mistake. */
static bool quoted(const struct config_value *value) {
    if (value->kind != VALUE_STRING) return false;
    return strcmp(value->string, "true") == 0 || strcmp(value->string, "false") == 0 ||
           (value->string[0] && strspn(value->string, "0123456789.eE+-") == strlen(value->string));
}

/* "auto" is a string itself, so it has to be named only where a string is not expected. */
static zero_status wrong_type(const struct store *s) {
    bool string = s->key->type == KEY_STRING || s->key->type == KEY_CHOICE;
    bool automatic = config_key_takes_auto(s->key) && !string;
    char near[72] = "";
    if (automatic && s->value->kind == VALUE_STRING)
        suggest_choice(s->key, s->value->string, near, sizeof near);
    return error_set(s->error, ZERO_E_CONFIG, "%s: %s is %s where %s%s is expected%s", s->key->path,
                     show(s->value).text, kind_name(s->value->kind), config_key_type_name(s->key->type),
                     automatic ? " or \"auto\"" : "",
                     quoted(s->value) ? ": remove the quotes"
                     : *near          ? ": did you mean \"auto\"?"
                                      : "");
}

static bool is_of(const struct config_key *key, const char *const *blocks) {
    for (; *blocks; blocks++)
        if (!strncmp(key->path, *blocks, strlen(*blocks))) return true;
    return false;
}

/* A block that is off may hold any number. config_check_range refuses the number where the block is on; the field stays as it is. */
bool config_ranges_later(const struct config_key *key) {
    static const char *const blocks[] = {"fp16.", "aio.", "zero_optimization.offload_optimizer.", NULL};
    return (key->type == KEY_INT || key->type == KEY_REAL) && is_of(key, blocks);
}

static zero_status out_of_range(const struct store *s) {
    char min[32], max[32];
    if (config_ranges_later(s->key) && s->field) return ZERO_OK;
    return error_set(s->error, ZERO_E_CONFIG, "%s: %s is outside its range: give %s from %s to %s",
                     s->key->path, show(s->value).text, config_key_type_name(s->key->type),
                     config_number_text(s->key->min, min), config_number_text(config_key_max(s->key), max));
}

/* ---- one check per type; each writes its field ---- */

/* To DeepSpeed, as to Python, true is 1 and 1.0, but for the scales of fp16. A model's keys and the engine's own are strict. */
static bool alike(const struct config_key *key) {
    static const char *const strict[] = {"fp16.loss_scale",
                                         "fp16.min_loss_scale",
                                         "model.",
                                         "data.",
                                         "device.",
                                         "comm.",
                                         "memory.",
                                         "nvme.",
                                         "debug.",
                                         "trace.",
                                         "ema.",
                                         "seed",
                                         "threads",
                                         "max_skipped_steps",
                                         NULL};
    return !is_of(key, strict);
}

static bool is_number(const struct config_value *v) { return v->kind == VALUE_INT || v->kind == VALUE_REAL; }

static bool stands_for_number(const struct store *s) {
    return is_number(s->value) || (s->value->kind == VALUE_BOOL && alike(s->key));
}

static bool stands_for_boolean(const struct store *s) {
    const struct config_value *v = s->value;
    return v->kind == VALUE_BOOL || (is_number(v) && (v->real == 0 || v->real == 1) && alike(s->key));
}

static zero_status set_bool(struct store *s) {
    if (!stands_for_boolean(s)) return wrong_type(s);
    if (s->field) *(bool *)s->field = s->value->real != 0;
    return ZERO_OK;
}

static zero_status set_int(struct store *s) {
    const struct config_value *v = s->value;
    double real = v->real, max = config_key_max(s->key);
    if (!stands_for_number(s)) return wrong_type(s);
    if (v->kind == VALUE_REAL && real != floor(real)) return wrong_type(s);
    if (max == KEY_UNBOUNDED && real > max) real = max;
    if (real < s->key->min || real > max) return out_of_range(s);
    if (s->field)
        *(uint64_t *)s->field = v->kind == VALUE_INT && real == v->real ? (uint64_t)v->integer
                                : real < 0                              ? (uint64_t)(int64_t)real
                                                                        : (uint64_t)real;
    return ZERO_OK;
}

static zero_status set_limit(struct store *s) {
    if (s->value->kind != VALUE_NULL) return set_int(s);
    *(uint64_t *)s->field = 0;
    return ZERO_OK;
}

static zero_status set_stage(struct store *s) {
    zero_status status = set_int(s);
    bool found = !status && stage_find((uint32_t) * (uint64_t *)s->field, RESHARD_ALL);
    return status || found ? status : out_of_range(s);
}

static zero_status set_real(struct store *s) {
    const struct config_value *v = s->value;
    if (!stands_for_number(s)) return wrong_type(s);
    if (!(v->real >= s->key->min && v->real <= s->key->max)) return out_of_range(s);
    if (s->field) *(double *)s->field = v->real;
    return ZERO_OK;
}

static bool is_boolean(const struct key_choice *c) {
    return !strncmp(c->text, "true", (size_t)c->length) || !strncmp(c->text, "false", (size_t)c->length);
}

/* Lists the supported choices: "none", "cpu", "auto". */
static void list_choices(const struct config_key *key, char *out, size_t out_bytes) {
    struct key_choice c;
    size_t length = 0;
    for (uint32_t i = 0; config_key_choice_at(key, i, &c); i++) {
        const char *quote = is_boolean(&c) ? "" : "\"";
        if (!c.refused && length < out_bytes)
            length += (size_t)snprintf(out + length, out_bytes - length, "%s%s%.*s%s", length ? ", " : "",
                                       quote, c.length, c.text, quote);
    }
    if (config_key_takes_auto(key) && length < out_bytes)
        snprintf(out + length, out_bytes - length, ", \"auto\"");
}

static zero_status choose(struct store *s, const char *text) {
    char reason[256];
    bool refused = false;
    int index = config_key_choice(s->key, text, &refused);
    if (index < 0) {
        char all[400], near[72];
        list_choices(s->key, all, sizeof all);
        suggest_choice(s->key, text, near, sizeof near);
        return error_set(s->error, ZERO_E_CONFIG, "%s: %s is none of %s%s%s%s", s->key->path,
                         show(s->value).text, all, *near ? "; did you mean \"" : "", near,
                         *near ? "\"?" : "");
    }
    if (refused)
        return error_set(s->error, ZERO_E_UNSUPPORTED, "%s: %s is not supported here: %s", s->key->path,
                         show(s->value).text, config_key_reason(s->key, reason));
    if (s->field) *(int *)s->field = index;
    return ZERO_OK;
}

static zero_status set_choice(struct store *s) {
    return s->value->kind == VALUE_STRING ? choose(s, s->value->string) : wrong_type(s);
}

static zero_status set_switch(struct store *s) {
    if (stands_for_boolean(s)) return choose(s, s->value->real ? "true" : "false");
    return quoted(s->value) ? wrong_type(s) : set_choice(s);
}

static zero_status set_string(struct store *s) {
    if (s->value->kind != VALUE_STRING) return wrong_type(s);
    if (!s->field) return ZERO_OK;
    char *copy = strdup(s->value->string), **field = s->field;
    if (!copy) return error_set(s->error, ZERO_E_MEMORY, "%s: no memory for it", s->key->path);
    free(*field);
    *field = copy;
    return ZERO_OK;
}
static zero_status set_list(struct store *s) {
    return s->value->kind == VALUE_LIST ? ZERO_OK : wrong_type(s);
}
static zero_status set_opaque(struct store *s) { return ZERO_OK; }

static zero_status set_size(struct store *s) {
    const struct config_value *v = s->value;
    uint64_t bytes = 0;
    bool fine = false;
    if (v->kind == VALUE_STRING) fine = config_size_parse(v->string, &bytes);
    if (is_number(v) && v->real >= 0 && v->real < 9e18 && v->real == floor(v->real))
        fine = true, bytes = (uint64_t)v->real;
    if (!fine) return wrong_type(s);
    *(uint64_t *)s->field = bytes;
    return ZERO_OK;
}

static zero_status set_betas(struct store *s) {
    const struct config_value *v = s->value;
    if (v->kind != VALUE_LIST || v->count != 2) return wrong_type(s);
    for (int i = 0; i < 2; i++) {
        const struct config_value *beta = &v->items[i];
        if (!is_number(beta)) return wrong_type(s);
        if (!(beta->real >= 0 && beta->real < 1))
            return error_set(s->error, ZERO_E_CONFIG,
                             "%s: %s is outside its range: give numbers of at least 0 and less than 1",
                             s->key->path, show(beta).text);
    }
    double *field = s->field;
    field[0] = v->items[0].real, field[1] = v->items[1].real;
    return ZERO_OK;
}

static zero_status set_numbers(struct store *s) {
    const struct config_value *v = s->value;
    struct lr_numbers numbers = {.count = 1, .each = v->kind == VALUE_LIST};
    if (numbers.each) numbers.count = (uint32_t)(v->count <= LR_GROUPS_MAX ? v->count : 0);
    if (!numbers.count) return wrong_type(s);
    for (uint32_t i = 0; i < numbers.count; i++) {
        const struct config_value *item = numbers.each ? &v->items[i] : v;
        if (!is_number(item) || item->real < 0) return wrong_type(s);
        numbers.value[i] = item->real;
    }
    *(struct lr_numbers *)s->field = numbers;
    return ZERO_OK;
}

static void free_paths(struct config_paths *paths) {
    for (uint64_t i = 0; i < paths->count; i++) free(paths->items[i]);
    free(paths->items);
    *paths = (struct config_paths){0};
}

static zero_status copy_paths(struct store *s, const struct config_value *items, uint64_t count,
                              struct config_paths *paths) {
    for (uint64_t i = 0; i < count; i++) {
        if (items[i].kind != VALUE_STRING || !items[i].string[0]) return wrong_type(s);
    }
    free_paths(paths);
    paths->items = calloc(count, sizeof *paths->items);
    for (; paths->items && paths->count < count; paths->count++) {
        paths->items[paths->count] = strdup(items[paths->count].string);
        if (!paths->items[paths->count]) break;
    }
    if (paths->count < count)
        return error_set(s->error, ZERO_E_MEMORY, "%s: no memory for the paths", s->key->path);
    return ZERO_OK;
}

static zero_status set_paths_to(struct store *s, struct config_paths *paths) {
    const struct config_value *v = s->value;
    if (v->kind == VALUE_STRING) return copy_paths(s, v, 1, paths);
    if (v->kind != VALUE_LIST || v->count == 0) return wrong_type(s);
    return copy_paths(s, v->items, v->count, paths);
}

static zero_status set_paths(struct store *s) { return set_paths_to(s, s->field); }

static zero_status set_group(struct store *s) {
    const struct config_value *v = s->value;
    bool ranks = v->kind == VALUE_INT && v->integer >= 1 && v->integer <= RANKS_MAX;
    if (v->kind != VALUE_BOOL && !ranks) return wrong_type(s);
    *(uint64_t *)s->field = ranks ? (uint64_t)v->integer : !v->boolean;
    return ZERO_OK;
}

static zero_status set_eval(struct store *s) {
    struct config_eval *eval = s->field;
    const struct config_value *v = s->value;
    if (!is_number(v)) {
        zero_status status = set_paths_to(s, &eval->paths);
        if (status == ZERO_OK) eval->fraction = 0;
        return status;
    }
    if (!(v->real >= 0 && v->real < 1)) return wrong_type(s);
    free_paths(&eval->paths);
    eval->fraction = v->real;
    return ZERO_OK;
}

static zero_status set_groups(struct store *s) {
    if (s->value->kind != VALUE_LIST) return wrong_type(s);
    return config_groups_read(s->value, s->key->path, s->field, s->error);
}

static zero_status (*const setters[KEY_TYPES])(struct store *) = {
    [KEY_BOOL] = set_bool,       [KEY_INT] = set_int,       [KEY_REAL] = set_real,
    [KEY_CHOICE] = set_choice,   [KEY_STRING] = set_string, [KEY_SIZE] = set_size,
    [KEY_BETAS] = set_betas,     [KEY_PATHS] = set_paths,   [KEY_GROUP] = set_group,
    [KEY_EVAL] = set_eval,       [KEY_LIST] = set_list,     [KEY_OPAQUE] = set_opaque,
    [KEY_NUMBERS] = set_numbers, [KEY_GROUPS] = set_groups, [KEY_STAGE] = set_stage,
    [KEY_LIMIT] = set_limit,     [KEY_SWITCH] = set_switch,
};

/* ---- one action per use of a key ---- */

static bool same(const struct config_value *a, const struct config_value *b) {
    bool numbers = (is_number(a) || a->kind == VALUE_BOOL) && (is_number(b) || b->kind == VALUE_BOOL);
    if (numbers) return a->real == b->real;
    if (a->kind != b->kind) return false;
    if (a->kind == VALUE_STRING) return strcasecmp(a->string, b->string) == 0;
    return a->kind == VALUE_NULL;
}

struct comparison {
    const struct config_value *value;
    const char *text;
    bool same;
};

static zero_status compare(void *user, const struct config_value *fallback) {
    struct comparison *c = user;
    c->same = same(c->value, fallback);
    return ZERO_OK;
}

zero_status config_value_same(const struct config_value *value, const char *text, bool *out_same,
                              struct zero_error *error) {
    struct comparison c = {.value = value};
    zero_status status = config_value_parse(text, compare, &c, error);
    *out_same = c.same;
    return status;
}

static zero_status compare_texts(void *user, const struct config_value *value) {
    struct comparison *c = user;
    return config_value_same(value, c->text, &c->same, NULL);
}

bool config_same(const char *a, const char *b) {
    struct comparison c = {.text = b};
    return strcmp(a, b) == 0 || (config_value_parse(a, compare_texts, &c, NULL) == ZERO_OK && c.same);
}

/* A block that asks for nothing: it is empty, holds "enabled": false, or blocks alone that are off. */
static bool is_off(const struct config_value *v) {
    if (v->kind == VALUE_LIST) return v->count == 0;
    bool off = v->kind == VALUE_OBJECT;
    for (uint64_t i = 0; off && !v->boolean && i < v->count; i++) off = is_off(&v->items[i]);
    return off;
}

/* A refused key may hold a value that changes nothing: its default, one rank that would share with no other, or a block that is off. */
static zero_status refuse(struct store *s) {
    const struct config_value *v = s->value;
    bool counts = s->key->type == KEY_INT && s->key->fallback;
    bool same =
        s->key->type == KEY_OPAQUE ? is_off(v) : counts && is_number(v) && (v->real == 0 || v->real == 1);
    zero_status status = ZERO_OK;
    if (!same && s->key->fallback) status = config_value_same(v, s->key->fallback, &same, s->error);
    if (status || same) return status;
    return error_set(s->error, ZERO_E_UNSUPPORTED, "%s: %s is not supported here: %s", s->key->path,
                     show(v).text, s->key->note);
}

static zero_status accept(struct store *s) {
    struct config *config = s->config;
    char *line = NULL;
    char **lines = realloc(config->lines, (config->line_count + 1) * sizeof *lines);
    if (lines) config->lines = lines;
    if (!lines ||
        asprintf(&line, "%s = %s: accepted; %s", s->key->path, show(s->value).text, s->key->note) < 0)
        return error_set(s->error, ZERO_E_MEMORY, "%s: no memory for its log line", s->key->path);
    lines[config->line_count++] = line;
    return ZERO_OK;
}

static zero_status use(struct store *s) { return ZERO_OK; }

static zero_status (*const uses[])(struct store *) = {
    [KEY_USED] = use, [KEY_ACCEPTED] = accept, [KEY_REFUSED] = refuse};

zero_status config_entry_set(struct config *config, const struct config_key *key, enum config_source source,
                             const char *text, struct zero_error *error) {
    char *copy = text ? strdup(text) : NULL;
    if (text && !copy) return error_set(error, ZERO_E_MEMORY, "%s: no memory for its value", key->path);
    struct config_entry *entry = &config->entries[config_key_index(key)];
    bool null = entry->null && (source == CONFIG_DEFAULT || source == CONFIG_DERIVED);
    free(entry->text);
    *entry = (struct config_entry){.source = source, .text = copy, .null = null};
    return ZERO_OK;
}

struct config_entry *config_entry(const struct config *config, const char *path) {
    return &config->entries[config_key_index(config_key_find(path))];
}

/* Stores the value of "auto". An accepted key accepts "auto" as any other value. */
static zero_status store_auto(struct store *s, enum config_source source) {
    enum config_source as = source == CONFIG_DEFAULT ? CONFIG_DEFAULT : CONFIG_AUTO;
    if (s->key->use == KEY_ACCEPTED) {
        zero_status status = accept(s);
        return status ? status : config_entry_set(s->config, s->key, as, s->value->text, s->error);
    }
    if (*s->key->automatic) return config_store_text(s->config, s->key, s->key->automatic, as, s->error);
    if (s->key->type == KEY_INT) *(uint64_t *)s->field = 0;
    if (s->key->type == KEY_NUMBERS) *(struct lr_numbers *)s->field = (struct lr_numbers){0};
    return config_entry_set(s->config, s->key, as, "\"auto\"", s->error);
}

/* In DeepSpeed a null for warmup_max_lr is the optimizer's lr, as "auto" is here, and not the default. */
static bool is_auto(const struct config_key *key, const struct config_value *value) {
    if (value->kind == VALUE_NULL) return key->type == KEY_NUMBERS && key->automatic && !*key->automatic;
    return value->kind == VALUE_STRING && strcmp(value->string, "auto") == 0 && config_key_takes_auto(key);
}

/* Runs and ranks compare texts, so true and 1 have one. */
static const char *text_of(const struct store *s) {
    enum key_type type = s->key->type;
    bool boolean = type == KEY_BOOL || type == KEY_SWITCH;
    bool number = type == KEY_INT || type == KEY_LIMIT || type == KEY_REAL || type == KEY_STAGE;
    if (boolean && is_number(s->value)) return s->value->real ? "true" : "false";
    if (number && s->value->kind == VALUE_BOOL) return s->value->real ? "1" : "0";
    return s->value->text;
}

/* A number or a boolean in quotes as JSON, where DeepSpeed's reader of the block (pydantic) takes quotes; else NULL. */
static const char *unquoted(const struct config_key *key, const struct config_value *v) {
    static const char *const blocks[] = {
        "zero_optimization.", "fp16.",  "bf16.",           "comms_logger.",  "tensorboard.",     "wandb.",
        "csv_monitor.",       "comet.", "flops_profiler.", "hybrid_engine.", "tensor_parallel.", NULL};
    static const char *const words[] = {"false", "true", "0", "1", "no", "yes",
                                        "off",   "on",   "n", "y", "f",  "t"};
    struct zero_error ignored = ERROR_NONE;
    if (v->kind != VALUE_STRING || !is_of(key, blocks)) return NULL;
    if (key->type == KEY_BOOL || key->type == KEY_SWITCH)
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (!strcasecmp(v->string, words[i])) return words[i % 2];
    bool number = key->type == KEY_INT || key->type == KEY_REAL || key->type == KEY_STAGE;
    bool digits = v->string[0] && strspn(v->string, "0123456789.eE+-") == strlen(v->string);
    bool whole = number && digits && !config_scan_value(v->string, strlen(v->string), "", &ignored);
    return whole ? v->string : NULL;
}

zero_status config_store(struct config *config, const struct config_key *key,
                         const struct config_value *value, enum config_source source,
                         struct zero_error *error) {
    struct store s = {.config = config, .key = key, .value = value, .error = error};
    if (key->use == KEY_USED) s.field = (char *)config + key->offset;
    bool not_given = value->kind == VALUE_NULL && (!key->fallback || key->use != KEY_USED);
    const char *bare = unquoted(key, value);
    if (bare) return config_store_text(config, key, bare, source, error);
    if (is_auto(key, value)) return store_auto(&s, source);
    if (not_given && key->type != KEY_LIMIT) return config_entry(config, key->path)->null = true, ZERO_OK;
    TRY(setters[key->type](&s));
    TRY(uses[key->use](&s));
    return config_entry_set(config, key, source, text_of(&s), error);
}

struct text_store {
    struct config *config;
    const struct config_key *key;
    enum config_source source;
    struct zero_error *error;
};

static zero_status store_visited(void *user, const struct config_value *value) {
    struct text_store *t = user;
    return config_store(t->config, t->key, value, t->source, t->error);
}

static zero_status check_visited(void *user, const struct config_value *value) {
    struct store *s = user;
    s->value = value;
    return value->real >= s->key->min && value->real <= s->key->max ? ZERO_OK : out_of_range(s);
}

zero_status config_check_range(const struct config *config, const struct config_key *key,
                               struct zero_error *error) {
    struct store s = {.key = key, .error = error};
    return config_value_parse(config_entry(config, key->path)->text, check_visited, &s, error);
}

zero_status config_store_text(struct config *config, const struct config_key *key, const char *json,
                              enum config_source source, struct zero_error *error) {
    struct text_store t = {config, key, source, error};
    return config_value_parse(json, store_visited, &t, error);
}
