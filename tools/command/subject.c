#include "tools/command/subject.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/checkpoint/checkpoint.h"
#include "tools/text/format.h"
#include "tools/weights/weights.h"

/* The optimizer has no state. */
#define BEGIN                                                                                                \
    "{\"train_micro_batch_size_per_gpu\": %" PRIu64 ", \"seed\": %" PRIu64                                   \
    ", \"optimizer\": {\"type\": \"SGD\"}"

static bool has(const char *directory, const char *name) {
    char path[4096];
    return snprintf(path, sizeof path, "%s/%s", directory, name) < (int)sizeof path &&
           access(path, F_OK) == 0;
}

/* ---- what is noted of the source ---- */

static void read_ends(struct subject *s, const char *text) {
    for (char *end; *text && s->end_count < SUBJECT_ENDS_MAX; text = end) {
        end = (char *)text + 1;
        if (!isdigit((unsigned char)*text) && *text != '-') continue;
        long id = strtol(text, &end, 10);
        if (id >= 0 && end > text) s->ends[s->end_count++] = (int32_t)id;
        if (end == text) end++;
    }
}

static zero_status take_note(void *user, const char *key, const char *value) {
    struct subject *s = user;
    if (strcmp(key, "source") == 0) snprintf(s->tokenizer, sizeof s->tokenizer, "%s", value);
    if (strcmp(key, "eos_token_id") == 0) read_ends(s, value);
    if (strcmp(key, "bos_token_id") == 0 && isdigit((unsigned char)*value))
        s->begin = (int32_t)strtol(value, NULL, 10), s->has_begin = true;
    return ZERO_OK;
}

/* A chat model may end its texts with other tokens than its config.json says. */
static void read_generation(struct subject *s) {
    char path[4096 + 32], *text;
    size_t bytes;
    struct zero_error ignored = ERROR_NONE;
    struct json *document;
    snprintf(path, sizeof path, "%s/generation_config.json", s->tokenizer);
    if (!*s->tokenizer || access(path, R_OK) != 0) return;
    if (storage_read_text(storage_posix(), path, 1 << 20, &text, &bytes, &ignored)) return;
    if (json_parse(text, bytes, path, &document, &ignored) == ZERO_OK) {
        const struct json *ends = json_get(document, "eos_token_id");
        if (ends) read_ends(s, json_text(ends));
        json_free(document);
    }
    free(text);
}

/* ---- a checkpoint ---- */

static bool is_on(const struct manifest *m, const char *key) {
    const char *value = manifest_config(m, key);
    return value && strcmp(value, "true") == 0;
}

/* The settings of the run's data, but its files. */
static char *begin_of(const struct manifest *m, uint64_t batch, uint64_t seed) {
    static const char *const keys[] = {"document_end", "bytes", "eval"};
    char *text = NULL, key[64];
    size_t length;
    FILE *f = open_memstream(&text, &length);
    if (!f) return NULL;
    fprintf(f, BEGIN ", \"data\": {\"order\": \"sequential\"", batch, seed);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(key, sizeof key, "data.%s", keys[i]);
        if (manifest_config(m, key)) fprintf(f, ", \"%s\": %s", keys[i], manifest_config(m, key));
    }
    fputc('}', f);
    return fclose(f) == 0 ? text : (free(text), NULL);
}

static zero_status read_checkpoint(struct subject *s, const struct checkpoint *c, uint64_t batch,
                                   uint64_t seed, struct zero_error *error) {
    const struct manifest *m = &c->manifest;
    const char *context = manifest_config(m, "data.context");
    snprintf(s->path, sizeof s->path, "%s", c->path);
    if (!manifest_config(m, "model.vocab_size"))
        return error_set(error, ZERO_E_ARGUMENT,
                         "%s is not a GPT's checkpoint: its configuration has no model block", c->path);
    for (uint32_t i = 0; i < m->notes.count; i++)
        take_note(s, m->notes.entry[i].key, m->notes.entry[i].value);
    char *begin = begin_of(m, batch, seed);
    zero_status status = begin ? weights_block_config(m, begin, &s->config, error)
                               : error_set(error, ZERO_E_MEMORY, "no memory for the run's settings");
    free(begin);
    if (!status) s->model = weights_model(&s->config.model);
    s->context = context ? strtoull(context, NULL, 10) : 0;
    if (!s->context) s->context = s->model.context;
    if (!manifest_note(m, "run")) s->context = 0; /* imported, or of a program */
    s->dtype = is_on(m, "bf16.enabled") || is_on(m, "bfloat16.enabled") ? DTYPE_BF16
               : is_on(m, "fp16.enabled")                               ? DTYPE_F16
                                                                        : DTYPE_F32;
    s->model.documents = s->config.data.document_end >= 0;
    return status;
}

zero_status subject_checkpoints(const char *path, char out[4096], struct zero_error *error) {
    bool within = has(path, "checkpoints"), run = !has(path, "manifest.json") && !has(path, "latest");
    snprintf(out, 4096, "%s%s", path, run && within ? "/checkpoints" : "");
    if (access(path, F_OK) != 0)
        return error_set(error, ZERO_E_ARGUMENT, "%s is not there: give a run's directory, or a checkpoint",
                         path);
    if (run && !within && has(path, "run.json"))
        return error_set(error, ZERO_E_ARGUMENT,
                         "%s is a run that saved no checkpoint: zero train --save-every N makes them", path);
    return ZERO_OK;
}

static zero_status open_checkpoint(struct subject *s, const char *path, uint64_t batch, uint64_t seed,
                                   struct zero_error *error) {
    char inner[4096];
    struct checkpoint checkpoint;
    TRY(subject_checkpoints(path, inner, error));
    zero_status status = checkpoint_open(storage_posix(), inner, &checkpoint, error);
    if (!status) status = read_checkpoint(s, &checkpoint, batch, seed, error);
    checkpoint_close(&checkpoint);
    return status;
}

/* ---- weights of other programs ---- */

/* A run's directory, and the checkpoint of a C host, may have a config.json, too. */
static bool is_foreign(const char *path) {
    size_t length = strlen(path);
    if (has(path, "manifest.json") || has(path, "run.json")) return false;
    return has(path, "config.json") || (length > 4 && strcmp(path + length - 4, ".bin") == 0);
}

static zero_status open_foreign(struct subject *s, const char *path, uint64_t batch, uint64_t seed,
                                struct zero_error *error) {
    char json[256];
    TRY(weights_open(path, &s->pretrained.weights, error));
    snprintf(s->path, sizeof s->path, "%s", path);
    snprintf(json, sizeof json, BEGIN "}", batch, seed);
    zero_status status = config_read(json, &s->config, error);
    if (!status) status = config_resolve(&s->config, 1, error);
    s->config.model = s->pretrained.weights->config.model;
    s->model = s->pretrained.weights->model;
    return status ? status : weights_note_source(s->pretrained.weights, take_note, s);
}

/* If the model's directory is gone, the run keeps its tokenizer. */
static void find_tokenizer(struct subject *s) {
    char run[SUBJECT_RUN_BYTES];
    subject_run(s, run);
    if (!*s->tokenizer || !*run || access(s->tokenizer, F_OK) == 0 || !has(run, WEIGHTS_COMPANIONS "/of_run"))
        return;
    if (strlen(run) + sizeof "/" WEIGHTS_COMPANIONS > sizeof s->tokenizer) return;
    sprintf(s->tokenizer, "%s/" WEIGHTS_COMPANIONS, run);
}

/* ---- interface ---- */

zero_status subject_open(const char *path, uint64_t batch, uint64_t seed, struct subject *out,
                         struct zero_error *error) {
    *out = (struct subject){.pretrained = {.directory = path}};
    TRY(is_foreign(path) ? open_foreign(out, path, batch, seed, error)
                         : open_checkpoint(out, path, batch, seed, error));
    find_tokenizer(out);
    read_generation(out);
    out->has_begin &= (uint32_t)out->begin < out->model.vocab;
    const char *problem = gpt_config_problem(&out->model);
    return problem ? error_set(error, ZERO_E_CONFIG, "%s: the model: %s", out->path, problem) : ZERO_OK;
}

void subject_close(struct subject *s) {
    pretrained_close(&s->pretrained);
    config_free(&s->config);
    if (s->local) zero_local_destroy(s->local);
}

zero_status subject_failed(zero_status status, struct zero_error *error) {
    return status ? agreement_engine_failed(status, error)
                  : error_set(error, ZERO_E_INTERNAL, "%s", zero_last_error());
}

static zero_engine *open_engine(struct subject *s) {
    static const char *const types[] = {[DTYPE_F32] = "",
                                        [DTYPE_BF16] = ", \"bf16\": {\"enabled\": true}",
                                        [DTYPE_F16] = ", \"fp16\": {\"enabled\": true}"};
    char json[256];
    snprintf(json, sizeof json, BEGIN "%s}", s->config.micro_batch, s->config.seed, types[s->dtype]);
    zero_runtime runtime = {.struct_size = sizeof runtime, .local = s->local};
    return zero_engine_init_with(json, &runtime);
}

void subject_run(const struct subject *s, char out[SUBJECT_RUN_BYTES]) {
    *out = 0;
    if (s->pretrained.weights) return;
    snprintf(out, SUBJECT_RUN_BYTES, "%s/../..", s->path);
    if (!has(out, "run.json")) *out = 0;
}

void subject_settings(const struct subject *s, char *out, size_t capacity) {
    *out = 0;
    if (!s->context) return;
    snprintf(out, capacity, "of the run: %s, sequences of %s tokens%s%s", dtype_name(s->dtype),
             format_grouped(s->context).chars, s->lacks ? "; in fp32, because " : "",
             s->lacks ? s->lacks : "");
}

zero_status subject_load(struct subject *s, zero_engine **out_engine, struct gpt **out_gpt,
                         struct zero_error *error) {
    *out_engine = NULL, *out_gpt = NULL;
    s->local = zero_local_create(1);
    if (!s->local) return subject_failed(ZERO_OK, error);
    zero_engine *engine = *out_engine = open_engine(s);
    const char *lacks = engine ? gpt_engine_problem(engine) : NULL;
    if (lacks && s->dtype != DTYPE_F32) {
        s->lacks = lacks, s->dtype = DTYPE_F32;
        zero_engine_destroy(engine);
        zero_local_destroy(s->local);
        s->local = zero_local_create(1);
        engine = *out_engine = s->local ? open_engine(s) : NULL;
    }
    if (!engine) return subject_failed(ZERO_OK, error);
    zero_status status = gpt_create(engine, &s->model, (uint32_t)s->config.micro_batch, out_gpt);
    if (status == ZERO_E_MEMORY && !*gpt_last_error() && !*zero_last_error())
        return error_set(error, status, "no memory for the activations of %u x %u tokens: ask for fewer",
                         (unsigned)s->config.micro_batch, s->model.context);
    if (!status) status = zero_engine_commit(engine, NULL);
    if (status) return subject_failed(status, error);
    if (s->average && s->pretrained.weights)
        return error_set(error, ZERO_E_ARGUMENT,
                         "--ema: %s is no checkpoint, and only checkpoints have averaged weights: drop it",
                         s->path);
    if (!s->pretrained.weights) {
        status = (s->average ? zero_engine_load_ema : zero_engine_load_weights)(engine, s->path);
        return status ? subject_failed(status, error) : ZERO_OK;
    }
    struct pretrained_fill fill = {&s->pretrained, error};
    status = zero_engine_fill(engine, pretrained_fill, &fill);
    if (error->code) return error->code;
    return status ? subject_failed(status, error) : ZERO_OK;
}

zero_status subject_decoder(const struct subject *s, const char *path, struct decoder **out,
                            struct zero_error *error) {
    *out = NULL;
    if (path) return decoder_open(path, out, error);
    if (*s->tokenizer) *out = subject_find_decoder(s->tokenizer, "sample");
    return ZERO_OK;
}

struct decoder *subject_find_decoder(const char *directory, const char *command) {
    struct decoder *decoder = NULL;
    struct zero_error why = ERROR_NONE;
    if (access(directory, F_OK) != 0)
        fprintf(stderr,
                "zero %s: warning: numbers of tokens follow in place of text: %s, from which the model came, "
                "is not there any more; zero sample --tokenizer PATH names where its tokenizer is now\n",
                command, directory);
    if (has(directory, "tokenizer.json") && decoder_open(directory, &decoder, &why) != ZERO_OK)
        fprintf(stderr, "zero %s: warning: numbers of tokens follow in place of text: %s\n", command,
                why.message);
    return decoder;
}
