#include "tools/run_directory/run_directory.h"

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
#include "engine/base/system/regular_file.h"
#include "engine/config/key.h"
#include "tools/run_directory/file.h"

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

/* Keys that say how the work is done, and do not change the result. A name that ends in a dot stands for all keys below it. The hash of
 * the contents replaces data.path. */
static const char manners[] =
    "activation_checkpointing. aio. checkpoint. comm. data.bytes data.path data_types.grad_accum_dtype "
    "debug. device. gradient_accumulation_mode gradient_accumulation_steps gradient_predivide_factor "
    "max_skipped_steps memory. model.gradient_checkpointing nvme. prescale_gradients steps_per_print "
    "threads trace. train_micro_batch_size_per_gpu zero_optimization. ";
/* Keys that change the result although `manners` covers them. */
static const char exceptions[] =
    "comm.quantized_gradient_bits device.attention zero_optimization.zero_quantized_gradients "
    "zero_optimization.zero_quantized_weights ";

static bool is_among(const char *path, const char *names) {
    for (size_t length; (length = strcspn(names, " ")); names += length + 1) {
        bool group = names[length - 1] == '.';
        if (strncmp(path, names, length) == 0 && (group || !path[length])) return true;
    }
    return false;
}

static bool matters(const struct config_key *key) {
    return key->use == KEY_USED && (is_among(key->path, exceptions) || !is_among(key->path, manners));
}

enum { VALUE_BYTES = 64 };
#define OTHERS "others"

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
void identity_describe(struct identity *identity, const struct config *config, uint64_t data_contents) {
    enum { ROOM_FOR_OTHERS = 32 };
    uint64_t others = HASH_START;
    size_t at = 0;
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

struct setting {
    char path[128], value[VALUE_BYTES];
};

/* Reads the setting at *at of a description, and moves *at behind it. False: none is left. */
static bool next_setting(const char **at, struct setting *out) {
    *at += strspn(*at, " ");
    size_t length = strcspn(*at, " "), name = strcspn(*at, " ="), value = name + (name < length);
    snprintf(out->path, sizeof out->path, "%.*s", (int)name, *at);
    snprintf(out->value, sizeof out->value, "%.*s", (int)(length - value), *at + value);
    *at += length;
    return length > 0;
}

/* False: the description has no such setting. */
static bool find_setting(const char *settings, const char *path, char out[VALUE_BYTES]) {
    struct setting s;
    while (next_setting(&settings, &s))
        if (strcmp(s.path, path) == 0) return strcpy(out, s.value), true;
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

static void tell(struct list *list, const char *path, const char *earlier, const char *own) {
    if (list->count++ >= TOLD_MAX) return;
    if (strcmp(path, OTHERS) == 0)
        add(list, "other settings differ");
    else
        add(list, "its %s is %s, this configuration has %s", path, earlier, own);
}

static void usual_value(const char *path, char out[VALUE_BYTES]) {
    const struct config_key *key = config_key_find(path);
    if (key && key->fallback)
        spell(key->fallback, out);
    else
        snprintf(out, VALUE_BYTES, "the default");
}

/* A setting in the earlier list was given then; a setting that is not in the list had its default. */
bool identity_differs(const struct identity *earlier, const struct identity *own, const struct config *config,
                      char *out, size_t size) {
    struct list list = {.out = out, .size = size};
    struct setting s;
    char other[VALUE_BYTES];
    *out = 0;
    for (const char *at = earlier->settings; next_setting(&at, &s);) {
        const struct config_key *key = config_key_find(s.path);
        bool has = find_setting(own->settings, s.path, other) ||
                   (key && value_of(config, config_key_index(key), other));
        if (!has || strcmp(s.value, other) != 0) tell(&list, s.path, s.value, has ? other : "the default");
    }
    for (const char *at = own->settings; next_setting(&at, &s);) {
        if (find_setting(earlier->settings, s.path, other)) continue;
        usual_value(s.path, other);
        tell(&list, s.path, other, s.value);
    }
    if (strcmp(earlier->data, own->data) != 0) list.count++, add(&list, "the contents of its data differ");
    return list.count > 0;
}

/* ---- the file ---- */

enum { FILE_BYTES = 160, PATH_BYTES = 4096 + 32 };

/* False: the name is too long. */
static bool path_of(const char *run, char out[PATH_BYTES]) {
    return snprintf(out, PATH_BYTES, "%s/identity", run) < PATH_BYTES;
}

void identity_read(const char *run, struct identity *out) {
    char path[PATH_BYTES], line[512];
    memset(out, 0, sizeof *out);
    FILE *file = path_of(run, path) ? regular_file_open(path) : NULL;
    while (file && fgets(line, sizeof line, file)) {
        sscanf(line, "id %32[^\n]", out->id);
        sscanf(line, "begun %31[^\n]", out->begun);
        if (strncmp(line, "ended ", 6) == 0) out->ended = strncmp(line + 6, "yes", 3) == 0;
    }
    if (file) fclose(file);
}

zero_status identity_check(const char *run, struct zero_error *error) {
    char path[PATH_BYTES];
    const char *problem = path_of(run, path) ? own_file_problem(path, "id ", FILE_BYTES) : NULL;
    return problem ? error_set(error, ZERO_E_IO, "%s %s or name another --run DIR", path, problem) : ZERO_OK;
}

zero_status identity_write(const char *run, const struct identity *identity, struct zero_error *error) {
    char path[PATH_BYTES], text[FILE_BYTES];
    TRY(identity_check(run, error));
    path_of(run, path);
    snprintf(text, sizeof text, "id %s\nbegun %s\nended %s\n", identity->id, identity->begun,
             identity->ended ? "yes" : "no");
    return new_file_write(path, text, error);
}

/* ---- the ranks and their notes ---- */

/* All but `ended`. Rank 0 alone knows the first three. */
static const struct {
    const char *note;
    size_t at, size;
} texts[] = {
#define TEXT(note, field)                                                                                    \
    { note, offsetof(struct identity, field), sizeof((struct identity *)0)->field }
    TEXT("run", id),    TEXT("begun", begun),       TEXT("directory", directory),
    TEXT("data", data), TEXT("settings", settings),
#undef TEXT
};
enum { TEXTS = sizeof texts / sizeof *texts, SHARED = 3 };

static char *text_at(struct identity *identity, int i) { return (char *)identity + texts[i].at; }

zero_status identity_share(zero_engine *engine, struct identity *identity) {
    for (int i = 0; i < SHARED; i++) TRY(share_text(engine, text_at(identity, i), texts[i].size));
    return ZERO_OK;
}

zero_status identity_note(zero_engine *engine, struct identity *identity) {
    for (int i = 0; i < TEXTS; i++) TRY(zero_engine_set_note(engine, texts[i].note, text_at(identity, i)));
    return ZERO_OK;
}

zero_status identity_note_end(zero_engine *engine, bool ended) {
    return zero_engine_set_note(engine, "ended", ended ? "yes" : NULL);
}

void identity_noted(const zero_engine *engine, const char *(*note)(const zero_engine *, const char *),
                    struct identity *out) {
    memset(out, 0, sizeof *out);
    for (int i = 0; i < TEXTS; i++) {
        const char *text = note(engine, texts[i].note);
        snprintf(text_at(out, i), texts[i].size, "%s", text ? text : "");
    }
    out->ended = note(engine, "ended") != NULL;
}
