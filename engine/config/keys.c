/* The table of keys, generated from keys.def, and look-ups in it. Constant; any thread. */
#include "engine/config/key.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/config/config.h"
#include "kernels/optimizer.h"
#include "kernels/quantize.h"
#include "offload/tier.h"
#include "stages/stage.h"

/* ---- tables whose rows are choices ---- */

static const char *optimizer_row(uint32_t index) {
    return optimizers[index] ? optimizers[index]->title : NULL;
}

static const char *tier_row(uint32_t index) { return tier_table[index] ? tier_table[index]->choice : NULL; }

static const char *schedule_row(uint32_t index) {
    return lr_schedules[index] ? lr_schedules[index]->name : NULL;
}

static const char *accumulation_row(uint32_t index) {
    return index < ACCUMULATIONS ? accumulations[index].name : NULL;
}

static const char *dtype_row(uint32_t index) {
    return index < DTYPE_U8 ? dtype_name((enum dtype)index) : NULL;
}

/* CODE_NONE, the first, is false. */
static const char *code_row(uint32_t index) {
    return !index ? "false" : index < CODE_FORMATS ? code_format_name((enum code_format)index) : NULL;
}

#define CHOICES(list, choices) static const char choices_##list[] = choices;
#define CHOICE(enumerator, name) name "|"
#define REFUSED_NAMES(names) names
#include "engine/config/choices.def"

/* ---- the keys ---- */

#define INT_MIN_MAX -1, KEY_UNBOUNDED
#define FIELD(field) offsetof(struct config, field)

static const struct config_key keys[] = {
#define USED_BOOL(path, field, fallback, automatic, help)                                                    \
    {path, KEY_BOOL, KEY_USED, FIELD(field), fallback, 0, 0, NULL, NULL, automatic, NULL, help},
#define USED_INT(path, field, fallback, min, max, automatic, help)                                           \
    {path, KEY_INT, KEY_USED, FIELD(field), fallback, min, max, NULL, NULL, automatic, NULL, help},
#define USED_LIMIT(path, field, fallback, min, max, automatic, help)                                         \
    {path, KEY_LIMIT, KEY_USED, FIELD(field), fallback, min, max, NULL, NULL, automatic, NULL, help},
#define USED_REAL(path, field, fallback, min, max, automatic, help)                                          \
    {path, KEY_REAL, KEY_USED, FIELD(field), fallback, min, max, NULL, NULL, automatic, NULL, help},
#define USED_CHOICE(path, field, fallback, choices, automatic, reason, help)                                 \
    {path, KEY_CHOICE, KEY_USED, FIELD(field), fallback, 0, 0, choices, NULL, automatic, reason, help},
#define USED_ROWS(path, field, fallback, row, choices, automatic, reason, help)                              \
    {path, KEY_CHOICE, KEY_USED, FIELD(field), fallback, 0, 0, choices, row, automatic, reason, help},
#define USED_SWITCH(path, field, fallback, row, choices, automatic, help)                                    \
    {path, KEY_SWITCH, KEY_USED, FIELD(field), fallback, 0, 0, choices, row, automatic, NULL, help},
#define USED(path, type, field, fallback, automatic, help)                                                   \
    {path, type, KEY_USED, FIELD(field), fallback, 0, 0, NULL, NULL, automatic, NULL, help},
#define ACCEPTED(path, type, fallback, note, help)                                                           \
    {path, type, KEY_ACCEPTED, 0, fallback, INT_MIN_MAX, NULL, NULL, fallback, note, help},
#define ACCEPTED_CHOICE(path, fallback, choices, note, help)                                                 \
    {path, KEY_CHOICE, KEY_ACCEPTED, 0, fallback, INT_MIN_MAX, choices, NULL, fallback, note, help},
#define REFUSED(path, type, fallback, reason, help)                                                          \
    {path, type, KEY_REFUSED, 0, fallback, INT_MIN_MAX, NULL, NULL, fallback, reason, help},
#define REFUSED_CHOICE(path, fallback, choices, reason, help)                                                \
    {path, KEY_CHOICE, KEY_REFUSED, 0, fallback, INT_MIN_MAX, choices, NULL, fallback, reason, help},
#include "engine/config/keys.def"
};

enum { KEYS = sizeof keys / sizeof keys[0] };

uint32_t config_key_count(void) { return KEYS; }
const struct config_key *config_key_at(uint32_t index) { return &keys[index]; }
uint32_t config_key_index(const struct config_key *key) { return (uint32_t)(key - keys); }

/* The keys in the order of their paths: an engine looks up hundreds of keys when it opens. */
static const struct config_key *by_path[KEYS];
static pthread_once_t sorted = PTHREAD_ONCE_INIT;

static int compare(const void *a, const void *b) {
    const struct config_key *const *one = a, *const *other = b;
    return strcmp((*one)->path, (*other)->path);
}

static void sort(void) {
    for (uint32_t i = 0; i < KEYS; i++) by_path[i] = &keys[i];
    qsort(by_path, KEYS, sizeof *by_path, compare);
}

const struct config_key *config_key_find(const char *path) {
    const struct config_key wanted = {.path = path}, *key = &wanted;
    pthread_once(&sorted, sort);
    const struct config_key *const *found = bsearch(&key, by_path, KEYS, sizeof *by_path, compare);
    return found ? *found : NULL;
}

bool config_key_is_object(const char *path) {
    size_t length = strlen(path);
    for (uint32_t i = 0; i < KEYS; i++) {
        if (strncmp(keys[i].path, path, length) == 0 && keys[i].path[length] == '.') return true;
    }
    return false;
}

double config_key_max(const struct config_key *key) {
    return key->type == KEY_STAGE ? stage_number_max() : key->max;
}

const char *config_key_type_name(enum key_type type) {
    static const char *const names[KEY_TYPES] = {
        [KEY_BOOL] = "true or false",
        [KEY_INT] = "an integer",
        [KEY_LIMIT] = "an integer or null",
        [KEY_REAL] = "a number",
        [KEY_STAGE] = "an integer",
        [KEY_CHOICE] = "a string",
        [KEY_SWITCH] = "true, false or a string",
        [KEY_STRING] = "a string",
        [KEY_SIZE] = "a size in bytes, as 8589934592 or \"8GiB\" or \"unlimited\"",
        [KEY_BETAS] = "a list of two numbers, as [0.9, 0.999]",
        [KEY_NUMBERS] = "a number of at least 0, or a list of one for each parameter group,",
        [KEY_PATHS] = "a path or a list of paths",
        [KEY_GROUP] = "true, false or a number of ranks",
        [KEY_GROUPS] = ("a list of objects with match, lr, weight_decay, frozen, dtype, optimizer, betas, "
                        "zero_quantized_weights"),
        [KEY_EVAL] = "a fraction below 1, a path or a list of paths",
        [KEY_LIST] = "a list",
        [KEY_OPAQUE] = "a value",
    };
    return names[type];
}

bool config_key_choice_at(const struct config_key *key, uint32_t index, struct key_choice *out) {
    uint32_t at = 0;
    for (const char *name; key->row && (name = key->row(at)); at++)
        if (at == index) return *out = (struct key_choice){name, (int)strlen(name), false}, true;
    for (const char *c = key->choices; c && *c; at++) {
        const char *end = strchr(c, '|'), *start = c + (*c == '!');
        int length = (int)(end ? (size_t)(end - start) : strlen(start));
        if (at == index) return *out = (struct key_choice){start, length, *c == '!'}, true;
        c = end ? end + 1 : NULL;
    }
    return false;
}

/* The title of the optimizer that has a class of this name; else the text itself. */
static const char *optimizer_of_class(const char *text) {
    for (int i = 0; optimizers[i]; i++)
        for (int c = 0; c < OPTIMIZER_CLASSES_MAX && optimizers[i]->classes[c]; c++)
            if (strcasecmp(optimizers[i]->classes[c], text) == 0) return optimizers[i]->title;
    return text;
}

int config_key_choice(const struct config_key *key, const char *text, bool *out_refused) {
    struct key_choice c;
    if (key->row == optimizer_row) text = optimizer_of_class(text);
    for (uint32_t i = 0; config_key_choice_at(key, i, &c); i++)
        if (strlen(text) == (size_t)c.length && strncasecmp(c.text, text, (size_t)c.length) == 0)
            return *out_refused = c.refused, (int)i;
    return -1;
}

bool config_key_takes_auto(const struct config_key *key) {
    if (key->use == KEY_ACCEPTED) return true;
    return key->automatic && strcmp(key->automatic, "\"auto\"") != 0;
}

const char *config_key_reason(const struct config_key *key, char text[256]) {
    struct key_choice c, next;
    int length = snprintf(text, 256, "only ");
    if (key->note) return key->note;
    for (uint32_t i = 0; config_key_choice_at(key, i, &c) && !c.refused && length < 200; i++) {
        bool last = !config_key_choice_at(key, i + 1, &next) || next.refused;
        length += snprintf(text + length, 256 - (size_t)length, "%s%.*s",
                           !i     ? ""
                           : last ? " and "
                                  : ", ",
                           c.length, c.text);
    }
    snprintf(text + length, 256 - (size_t)length, " are here: choose one of them");
    return text;
}
