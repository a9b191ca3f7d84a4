#include "tools/train/feed.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/system/regular_file.h"

/* Enough samples for a steady mean, and few enough that the evaluation takes a small part of the time. */
enum { HELD_OUT_SAMPLES_MAX = 256 };

/* ---- bytes as tokens ---- */

enum { BYTES = 256 }; /* the vocabulary of bytes */

/* Files whose bytes are no text: by their first bytes, or by their names. */
static const struct kind {
    const char *begins, *pattern, *name;
} kinds[] = {
    {"\x1f\x8b", "*.@(gz|tgz)", "compressed"},
    {"\x28\xb5\x2f\xfd", "*.@(zst|zstd)", "compressed"},
    {"BZh", "*.@(bz2|xz|lz4|7z)", "compressed"},
    {"PK\3\4", "*.@(zip|tar|xlsx)", "an archive"},
    {"{\"", "*.@(jsonl|ndjson)", "JSON lines"},
    {"[{\"", "*.json", "JSON"},
    {"PAR1", "*.@(parquet|arrow|feather|csv|tsv)", "a table"},
    {"\x93NUMPY", "*.@(npy|npz|h5|safetensors)", "an array"},
};

static const struct kind *kind_of(const char *path) {
    static const struct kind binary = {.name = "binary"};
    char head[512];
    FILE *file = regular_file_open(path);
    size_t bytes = file ? fread(head, 1, sizeof head, file) : 0;
    if (file) fclose(file);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t length = strlen(kinds[i].begins);
        bool begins = bytes >= length && memcmp(head, kinds[i].begins, length) == 0;
        if (begins || fnmatch(kinds[i].pattern, path, FNM_EXTMATCH | FNM_CASEFOLD) == 0) return &kinds[i];
    }
    return memchr(head, 0, bytes) ? &binary : NULL;
}

#define MAKE                                                                                                 \
    "make a token file (.bin) of it with tools/tokenize (zero-tokenize where zero is installed): "           \
    "tools/tokenize MODEL-DIRECTORY OUT.bin FILE%s"

static const char *or_bytes(enum dataset_use use) {
    return use == DATASET_TRAIN ? ", or add \"bytes\": true to the data block to train on its bytes" : "";
}

/* The bytes of a file are tokens only of a model that reads bytes. */
static zero_status check_bytes(const struct config *config, enum dataset_use use, const struct corpus *corpus,
                               struct zero_error *error) {
    if (corpus->token_bytes != 1 || config->data.bytes) return ZERO_OK;
    if (config->model.vocab != BYTES) {
        const struct kind *kind = kind_of(corpus->files[0].path);
        return error_set(error, ZERO_E_ARGUMENT,
                         "data: %s is %s, and the tokens of a model with vocab_size %" PRIu64
                         " are not bytes: " MAKE,
                         corpus->files[0].path, kind ? kind->name : "text", config->model.vocab,
                         kind ? "" : or_bytes(use));
    }
    for (uint64_t i = 0; i < corpus->file_count; i++) {
        const struct kind *kind = kind_of(corpus->files[i].path);
        if (kind)
            return error_set(error, ZERO_E_ARGUMENT, "data: %s is %s, not text: " MAKE, corpus->files[i].path,
                             kind->name, or_bytes(use));
    }
    return ZERO_OK;
}

static zero_status open_checked(const struct config *config, enum dataset_use use,
                                const struct config_paths *paths, struct zero_error *error,
                                struct corpus **out) {
    zero_status status = corpus_open((const char *const *)paths->items, (uint32_t)paths->count, error, out);
    return status == ZERO_OK ? check_bytes(config, use, *out, error) : status;
}

/* ---- samples ---- */

static zero_status too_short(const char *what, uint64_t tokens, uint32_t context, const char *key,
                             struct zero_error *error) {
    return error_set(error, ZERO_E_ARGUMENT,
                     "data: the %s has %" PRIu64 " tokens, too few for one sample of %" PRIu32
                     " (%s) and its last target",
                     what, tokens, context, key);
}

static zero_status hold_out(const struct config *config, struct dataset *dataset, struct zero_error *error) {
    struct order *train = &dataset->train_order, *held_out = &dataset->held_out_order;
    const struct config_eval *eval = &config->data.eval;
    *held_out = *train;
    held_out->samples = 0, held_out->shuffled = false;
    if (eval->paths.count) {
        TRY(open_checked(config, DATASET_TRAIN, &eval->paths, error, &dataset->held_out));
        if ((dataset->held_out->token_bytes == 1) != (dataset->train->token_bytes == 1))
            return error_set(error, ZERO_E_ARGUMENT,
                             "data: the training data and data.eval are of two kinds: one is text, "
                             "the other token files");
        held_out->samples = order_samples(dataset->held_out->tokens, held_out->context);
        if (!held_out->samples)
            return too_short("held-out data", dataset->held_out->tokens, held_out->context,
                             "model.n_positions", error);
    } else if (eval->fraction > 0) {
        uint64_t held = (uint64_t)((double)train->samples * eval->fraction);
        if (held == 0) held = 1;
        if (held >= train->samples)
            return error_set(error, ZERO_E_ARGUMENT,
                             "data: holding back %" PRIu64 " of %" PRIu64 " samples leaves none to "
                             "train on; give more data or a smaller data.eval.fraction",
                             held, train->samples);
        train->samples -= held;
        held_out->samples = held;
        held_out->first = train->samples * train->context;
        dataset->held_out = dataset->train;
    }
    return ZERO_OK;
}

zero_status dataset_open(const struct config *config, enum dataset_use use, struct zero_error *error,
                         struct dataset *out) {
    struct dataset dataset = {0};
    if (config->data.paths.count == 0)
        return error_set(error, ZERO_E_ARGUMENT,
                         "data: there is nothing to train on; give --data PATH or data.path");
    zero_status status = open_checked(config, use, &config->data.paths, error, &dataset.train);
    if (status != ZERO_OK) return dataset_close(&dataset), status;
    uint32_t context = (uint32_t)config->model.context;
    dataset.train_order = (struct order){
        .samples = order_samples(dataset.train->tokens, context),
        .context = context,
        .shuffled = config->data.order == CONFIG_ORDER_SHUFFLED,
        .seed = config->seed,
        .documents = config->data.document_end >= 0,
        .document_end = (int32_t)config->data.document_end,
    };
    status = dataset.train_order.samples
                 ? use == DATASET_TRAIN ? hold_out(config, &dataset, error) : ZERO_OK
                 : too_short(use == DATASET_TRAIN ? "training data" : "data", dataset.train->tokens, context,
                             use == DATASET_TRAIN ? "model.n_positions" : "--context", error);
    if (status == ZERO_OK)
        *out = dataset;
    else
        dataset_close(&dataset);
    return status;
}

void dataset_close(struct dataset *dataset) {
    if (dataset->held_out != dataset->train) corpus_close(dataset->held_out);
    corpus_close(dataset->train);
    *dataset = (struct dataset){0};
}

/* ---- the samples of a rank ---- */

uint64_t dataset_measured(const struct dataset *dataset) {
    uint64_t samples = dataset->held_out ? dataset->held_out_order.samples : 0;
    return samples < HELD_OUT_SAMPLES_MAX ? samples : HELD_OUT_SAMPLES_MAX;
}

/* The number of the `index`th sample that is measured. */
static uint64_t measured_sample(const struct dataset *dataset, uint64_t index) {
    uint64_t samples = dataset->held_out_order.samples, measured = dataset_measured(dataset);
    return index * (samples / measured) + index * (samples % measured) / measured;
}

zero_status feed_open(const struct dataset *dataset, const struct config *config, uint32_t rank,
                      uint32_t ranks, struct zero_error *error, struct feed *out) {
    struct feed feed = {
        .dataset = dataset,
        .rank = rank,
        .ranks = ranks,
        .batch = (uint32_t)config->micro_batch,
        .micro_count = (uint32_t)config->accumulation_steps,
        .context = dataset->train_order.context,
    };
    uint64_t at_once = (uint64_t)feed.batch * ranks;
    feed.held_out_micros = (dataset_measured(dataset) + at_once - 1) / at_once;
    size_t tokens = (size_t)feed.micro_count * feed.batch * feed.context;
    feed.tokens = malloc(tokens * sizeof *feed.tokens);
    feed.targets = malloc(tokens * sizeof *feed.targets);
    zero_status status = ZERO_OK;
    if (!feed.tokens || !feed.targets)
        status = error_set(error, ZERO_E_MEMORY, "data: no memory for a step's %zu tokens", tokens);
    uint32_t vocab = (uint32_t)config->model.vocab;
    if (status == ZERO_OK) status = reader_open(dataset->train, vocab, error, &feed.train);
    if (status == ZERO_OK && dataset->held_out)
        status = reader_open(dataset->held_out, vocab, error, &feed.held_out);
    if (status == ZERO_OK)
        *out = feed;
    else
        feed_close(&feed);
    return status;
}

void feed_close(struct feed *feed) {
    reader_close(feed->train);
    reader_close(feed->held_out);
    free(feed->tokens);
    free(feed->targets);
    *feed = (struct feed){0};
}

zero_status feed_read_step(struct feed *feed, uint64_t step, struct zero_error *error) {
    for (uint32_t micro = 0; micro < feed->micro_count; micro++) {
        struct sample_place at = {
            step - feed->first_step, micro, feed->micro_count, feed->rank, feed->ranks, feed->batch};
        uint64_t position = feed->first_sample + order_position(at);
        size_t to = (size_t)micro * feed->batch * feed->context;
        TRY(order_read(&feed->dataset->train_order, feed->train, position, feed->batch, feed->tokens + to,
                       feed->targets + to, error));
    }
    return ZERO_OK;
}

zero_status feed_read_held_out(struct feed *feed, uint64_t micro, uint32_t *out_count,
                               struct zero_error *error) {
    const struct dataset *dataset = feed->dataset;
    uint64_t first = order_position((struct sample_place){micro, 0, 1, feed->rank, feed->ranks, feed->batch});
    uint64_t measured = dataset_measured(dataset), left = measured > first ? measured - first : 0;
    uint32_t count = left < feed->batch ? (uint32_t)left : feed->batch;
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < count && status == ZERO_OK; i++) {
        size_t to = (size_t)i * feed->context;
        status = order_read(&dataset->held_out_order, feed->held_out, measured_sample(dataset, first + i), 1,
                            feed->tokens + to, feed->targets + to, error);
    }
    *out_count = count;
    return status;
}

bool feed_leaves_out(const struct corpus *corpus, const struct order *order) {
    return corpus->mask || order->documents;
}

uint64_t feed_counted(const struct feed *feed, uint64_t samples) {
    return order_counted(feed->targets, samples * feed->context);
}
