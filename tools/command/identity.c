#include "tools/command/identity.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/hash.h"
#include "engine/base/regular_file.h"
#include "engine/config/key.h"
#include "tools/command/new_file.h"
#include "tools/command/own_file.h"

void identity_begin(struct identity *identity) {
    uint64_t word[2];
    if (getrandom(word, sizeof word, 0) != sizeof word) {
        word[0] = clock_now_ns();
        word[1] = hash_bytes(HASH_START ^ (uint64_t)getpid(), word, sizeof *word);
    }
    snprintf(identity->id, sizeof identity->id, "%016" PRIx64 "%016" PRIx64, word[0], word[1]);
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    strftime(identity->begun, sizeof identity->begun, "%Y-%m-%d %H:%M:%S", &local);
    identity->ended = false;
}

/* ---- the values ---- */

/* Keys that say how the work is done, and do not change the result. A name that ends in a dot stands for all keys below
 * it. */
static const char *const manners[] = {"activation_checkpointing.",
                                      "aio.",
                                      "checkpoint.",
                                      "comm.",
                                      "data.bytes",
                                      "data.path", /* the hash of the contents replaces the path */
                                      "data_types.grad_accum_dtype",
                                      "debug.",
                                      "device.",
                                      "gradient_accumulation_mode",
                                      "gradient_accumulation_steps",
                                      "gradient_predivide_factor",
                                      "max_skipped_steps",
                                      "memory.",
                                      "model.gradient_checkpointing",
                                      "nvme.",
                                      "prescale_gradients",
                                      "steps_per_print",
                                      "threads",
                                      "trace.",
                                      "train_micro_batch_size_per_gpu",
                                      "zero_optimization."};
/* Keys that change the result although `manners` covers them. */
static const char *const exceptions[] = {"comm.quantized_gradient_bits", "device.attention",
                                         "zero_optimization.zero_quantized_gradients",
                                         "zero_optimization.zero_quantized_weights"};

static bool matters(const struct config_key *key) {
    if (key->use != KEY_USED) return false;
    for (size_t i = 0; i < sizeof exceptions / sizeof *exceptions; i++)
        if (strcmp(key->path, exceptions[i]) == 0) return true;
    for (size_t i = 0; i < sizeof manners / sizeof *manners; i++) {
        size_t length = strlen(manners[i]);
        bool group = manners[i][length - 1] == '.';
        if (group ? strncmp(key->path, manners[i], length) == 0 : strcmp(key->path, manners[i]) == 0)
            return false;
    }
    return true;
}

enum { VALUE_BYTES = 64 };
#define OTHERS "others"
#define PRODUCTS "device.products"

/* Writes each value in one spelling, without blanks: 1e-2 is 0.01, "adamw" is "AdamW". A long value becomes its
 * hash. */
static void spell(const char *text, char out[VALUE_BYTES]) {
    char *end, plain[4 * VALUE_BYTES];
    double number = strtod(text, &end);
    size_t length = 0;
    if (end != text && !*end) {
        snprintf(out, VALUE_BYTES, "%.15g", number);
        return;
    }
    for (const char *at = text; *at && length < sizeof plain - 1; at++)
        if (!isspace((unsigned char)*at)) plain[length++] = (char)tolower((unsigned char)*at);
    plain[length] = 0;
    if (length < VALUE_BYTES)
        memcpy(out, plain, length + 1);
    else
        snprintf(out, VALUE_BYTES, "#%016" PRIx64, hash_string(HASH_START, text));
}

/* The key's value in this configuration. False: the key has no value, or its value does not change the result. */
static bool value_of(const struct config *config, uint32_t index, char out[VALUE_BYTES]) {
    const struct config_key *key = config_key_at(index);
    const char *text = config->entries[index].text;
    if (!text || !matters(key)) return false;
    bool names_files = key->type == KEY_EVAL && !isdigit((unsigned char)*text);
    if (names_files) return false;
    spell(text, out);
    return true;
}

static bool is_default(const struct config *config, uint32_t index, const char *value) {
    const struct config_key *key = config_key_at(index);
    char usual[VALUE_BYTES];
    if (config->entries[index].source == CONFIG_DEFAULT) return true;
    if (!key->fallback) return false;
    spell(key->fallback, usual);
    return strcmp(usual, value) == 0;
}

/* Settings for which there is no room are kept as one hash, named "others". */
void identity_describe(struct identity *identity, const struct config *config, uint64_t data_contents,
                       const char *products) {
    enum { ROOM_FOR_OTHERS = 32 };
    uint64_t others = HASH_START;
    size_t at = 0;
    if (*products)
        at += (size_t)snprintf(identity->settings, VALUE_BYTES + sizeof PRODUCTS, PRODUCTS "=%s", products);
    snprintf(identity->data, sizeof identity->data, "%016" PRIx64, data_contents);
    for (uint32_t i = 0; i < config_key_count(); i++) {
        char value[VALUE_BYTES];
        if (!value_of(config, i, value) || is_default(config, i, value)) continue;
        const char *path = config_key_at(i)->path;
        size_t length = strlen(path) + strlen(value) + 2;
        if (at + length + ROOM_FOR_OTHERS < sizeof identity->settings)
            at += (size_t)sprintf(identity->settings + at, "%s%s=%s", at ? " " : "", path, value);
        else
            others = hash_string(hash_string(others, path), value);
    }
    identity->settings[at] = 0;
    if (others != HASH_START) sprintf(identity->settings + at, " " OTHERS "=#%016" PRIx64, others);
}

/* Finds the value of `path` in a description. False: the description has none. */
static bool find_setting(const char *settings, const char *path, size_t path_length, char out[VALUE_BYTES]) {
    for (const char *at = settings; *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        const char *equals = memchr(at, '=', length);
        size_t name = equals ? (size_t)(equals - at) : length, value = equals ? length - name - 1 : 0;
        if (name == path_length && memcmp(at, path, name) == 0 && value < VALUE_BYTES) {
            memcpy(out, equals ? equals + 1 : "", value);
            out[value] = 0;
            return true;
        }
        at += length;
    }
    return false;
}

/* ---- differences ---- */

struct list {
    char *out;
    size_t size, at;
    uint32_t count;
};

enum { TOLD_MAX = 4 };

static void add(struct list *list, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (list->at) list->at += (size_t)snprintf(list->out + list->at, list->size - list->at, "; ");
    if (list->at < list->size)
        list->at += (size_t)vsnprintf(list->out + list->at, list->size - list->at, format, args);
    if (list->at >= list->size) list->at = list->size - 1;
    va_end(args);
}

/* Choices for other shapes, as with another micro-batch, do not count as different: another number of ranks may cut
 * the batch in another way. */
static bool is_timed(const char *value) {
    return strncmp(value, PRODUCTS_TIMED, sizeof PRODUCTS_TIMED - 1) == 0;
}

static bool same_value(const char *then, const char *now) {
    enum { SHAPES_END = sizeof PRODUCTS_TIMED - 1 + 16 };
    bool other_shapes = is_timed(then) && is_timed(now) && strncmp(then, now, SHAPES_END) != 0;
    return other_shapes || strcmp(then, now) == 0;
}

static void tell(struct list *list, const char *path, int path_length, const char *earlier, const char *own) {
    if (list->count++ >= TOLD_MAX) return;
    if (strncmp(path, OTHERS "=", sizeof OTHERS) == 0)
        add(list, "other settings differ");
    else if (is_timed(earlier) && is_timed(own))
        add(list, "its products were chosen otherwise (" PRODUCTS
                  " or device.attention is \"timed\"): on another GPU, with another cuBLASLt, or its choice "
                  "is lost");
    else
        add(list, "its %.*s is %s, this configuration has %s", path_length, path, earlier, own);
}

/* A setting in the earlier list was given then; a setting that is not in the list had its default. */
static void compare_earlier(const struct identity *earlier, const struct identity *own,
                            const struct config *config, struct list *list) {
    char then[VALUE_BYTES], now[VALUE_BYTES];
    for (const char *at = earlier->settings; *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " "), name = strcspn(at, "=");
        if (name > length) name = length;
        char path[128];
        snprintf(path, sizeof path, "%.*s", (int)name, at);
        find_setting(at, at, name, then);
        const struct config_key *key = config_key_find(path);
        bool has = find_setting(own->settings, path, name, now) ||
                   (key && value_of(config, config_key_index(key), now));
        if (!has || !same_value(then, now)) tell(list, at, (int)name, then, has ? now : "the default");
        at += length;
    }
}

static void usual_value(const char *path, size_t path_length, char out[VALUE_BYTES]) {
    char name[128];
    snprintf(name, sizeof name, "%.*s", (int)path_length, path);
    const struct config_key *key = config_key_find(name);
    if (key && key->fallback)
        spell(key->fallback, out);
    else
        snprintf(out, VALUE_BYTES, "the default");
}

static void compare_own(const struct identity *earlier, const struct identity *own, struct list *list) {
    char now[VALUE_BYTES], then[VALUE_BYTES];
    for (const char *at = own->settings; *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " "), name = strcspn(at, "=");
        if (name > length) name = length;
        find_setting(at, at, name, now);
        if (!find_setting(earlier->settings, at, name, then)) {
            usual_value(at, name, then);
            tell(list, at, (int)name, then, now);
        }
        at += length;
    }
}

bool identity_differs(const struct identity *earlier, const struct identity *own, const struct config *config,
                      char *out, size_t size) {
    struct list list = {.out = out, .size = size};
    *out = 0;
    compare_earlier(earlier, own, config, &list);
    compare_own(earlier, own, &list);
    if (strcmp(earlier->data, own->data) != 0) list.count++, add(&list, "the contents of its data differ");
    return list.count > 0;
}

/* ---- the file ---- */

#define FILE_NAME "identity"
enum { FILE_BYTES = 160 };

static void put(char *out, size_t size, const char *text) { snprintf(out, size, "%s", text ? text : ""); }

void identity_read(const char *run, struct identity *out) {
    char path[4096 + 32], line[512];
    memset(out, 0, sizeof *out);
    if (snprintf(path, sizeof path, "%s/" FILE_NAME, run) >= (int)sizeof path) return;
    FILE *file = regular_file_open(path);
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *value = strchr(line, ' ');
        if (!value) continue;
        *value++ = 0;
        if (strcmp(line, "id") == 0) put(out->id, sizeof out->id, value);
        if (strcmp(line, "begun") == 0) put(out->begun, sizeof out->begun, value);
        if (strcmp(line, "ended") == 0) out->ended = strcmp(value, "yes") == 0;
    }
    if (file) fclose(file);
}

zero_status identity_check(const char *run, struct zero_error *error) {
    char path[4096 + 32];
    if (snprintf(path, sizeof path, "%s/" FILE_NAME, run) >= (int)sizeof path) return ZERO_OK;
    const char *problem = own_file_problem(path, "id ", FILE_BYTES);
    return problem ? error_set(error, ZERO_E_IO, "%s %s or name another --run DIR", path, problem) : ZERO_OK;
}

zero_status identity_write(const char *run, const struct identity *identity, struct zero_error *error) {
    char path[4096 + 32], text[FILE_BYTES];
    zero_status status = identity_check(run, error);
    if (status != ZERO_OK) return status;
    snprintf(path, sizeof path, "%s/" FILE_NAME, run);
    snprintf(text, sizeof text, "id %s\nbegun %s\nended %s\n", identity->id, identity->begun,
             identity->ended ? "yes" : "no");
    return new_file_write(path, text, error);
}

/* ---- notes ---- */

zero_status identity_note(zero_engine *engine, const struct identity *identity) {
    const char *const pairs[][2] = {{"run", identity->id},
                                    {"begun", identity->begun},
                                    {"directory", identity->directory},
                                    {"data", identity->data},
                                    {"settings", identity->settings}};
    zero_status status = ZERO_OK;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && status == ZERO_OK; i++)
        status = zero_engine_set_note(engine, pairs[i][0], pairs[i][1]);
    return status;
}

zero_status identity_note_end(zero_engine *engine, bool ended) {
    return zero_engine_set_note(engine, "ended", ended ? "yes" : NULL);
}

void identity_noted(const zero_engine *engine, const char *(*note)(const zero_engine *, const char *),
                    struct identity *out) {
    memset(out, 0, sizeof *out);
    put(out->id, sizeof out->id, note(engine, "run"));
    put(out->begun, sizeof out->begun, note(engine, "begun"));
    put(out->directory, sizeof out->directory, note(engine, "directory"));
    put(out->data, sizeof out->data, note(engine, "data"));
    put(out->settings, sizeof out->settings, note(engine, "settings"));
    out->ended = note(engine, "ended") != NULL;
}
