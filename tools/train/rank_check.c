/* Whether all ranks got the same options and data. Processes that a launcher started may have different ones. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/hash.h"
#include "tools/train/trainer.h"

struct value {
    const char *option;
    uint64_t number; /* 0: the option is not given */
    enum { COUNT, FLAG, HASH } kind;
};

enum { FILES, TOKENS, PATHS, CONTENTS, WEIGHTS, DATA_VALUES, VALUES_MAX = 16 };

static uint64_t hash_text(const char *text) { return text ? hash_string(HASH_START, text) : 0; }

static uint32_t list_options(const struct job *job, struct value *out) {
    const struct value values[] = {
        {"--steps", job->steps, COUNT},        {"--eval-every", job->eval_every, COUNT},
        {"--ema", job->eval_average, FLAG},    {"--save-every", job->save_every, COUNT},
        {"--keep", job->keep, COUNT},          {"--continue", job->run.again, FLAG},
        {"--resume", job->run.resume, FLAG},   {"--resume", job->run.resume_step, COUNT},
        {"--recover", job->run.recover, FLAG}, {"--recover", hash_text(job->run.recover_id), HASH},
        {"--sample", job->sample, COUNT},      {"--prompt", hash_text(job->prompt), HASH}};
    memcpy(out, values, sizeof values);
    return sizeof values / sizeof *values;
}

static void list_data(const struct job *job, uint64_t out[DATA_VALUES]) {
    const struct dataset *data = &job->dataset;
    out[FILES] = data->train->file_count;
    out[TOKENS] = data->train->tokens;
    out[PATHS] = corpus_hash(data->train, HASH_START);
    if (data->held_out) out[PATHS] = corpus_hash(data->held_out, out[PATHS]);
    out[CONTENTS] = job->run.data_contents;
    out[WEIGHTS] = job->pretrained.identity;
}

/* Copies rank 0's numbers to all ranks. Each number travels as two halves, because a double holds a half exactly. */
static zero_status share_first(zero_engine *engine, const uint64_t *mine, uint32_t count, uint64_t *first) {
    double halves[2 * (VALUES_MAX + DATA_VALUES)] = {0};
    for (uint32_t i = 0; i < count && zero_engine_rank(engine) == 0; i++)
        halves[2 * i] = (double)(mine[i] >> 32), halves[2 * i + 1] = (double)(mine[i] & UINT32_MAX);
    zero_status status = zero_engine_sum(engine, halves, 2 * count);
    for (uint32_t i = 0; i < count; i++)
        first[i] = (uint64_t)halves[2 * i] << 32 | (uint64_t)halves[2 * i + 1];
    return status;
}

/* Writes "--steps 5", or "without --steps". */
static void describe(const struct value *value, uint64_t number, char *out, size_t size) {
    if (!number)
        snprintf(out, size, "without %s", value->option);
    else if (value->kind == COUNT)
        snprintf(out, size, "with %s %" PRIu64, value->option, number);
    else
        snprintf(out, size, "with %s%s", value->option, value->kind == HASH ? " of another text" : "");
}

static void compare_options(const struct value *value, uint32_t count, const uint64_t *first,
                            struct zero_error *error) {
    for (uint32_t i = 0; i < count; i++) {
        if (value[i].number == first[i]) continue;
        char mine[64], others[64];
        describe(&value[i], value[i].number, mine, sizeof mine);
        describe(&value[i], first[i], others, sizeof others);
        error_set(error, ZERO_E_DIVERGED,
                  "this rank was started %s, and rank 0 %s: start all ranks with the same options", mine,
                  others);
    }
}

/* Ranks on different hosts may find different files under the same paths. They would then train on samples that the
 * user did not choose, or wait for each other forever. */
static void compare_data(uint32_t rank, const uint64_t *mine, const uint64_t *first,
                         struct zero_error *error) {
    if (mine[FILES] != first[FILES] || mine[TOKENS] != first[TOKENS] || mine[PATHS] != first[PATHS])
        error_set(error, ZERO_E_DIVERGED,
                  "data: rank %u has other files than rank 0: %" PRIu64 " files with %" PRIu64
                  " tokens, rank 0 %" PRIu64 " with %" PRIu64
                  "; all hosts must hold the same files, by paths, sizes and contents",
                  rank, mine[FILES], mine[TOKENS], first[FILES], first[TOKENS]);
    else if (mine[CONTENTS] != first[CONTENTS])
        error_set(error, ZERO_E_DIVERGED,
                  "data: rank %u has files of the same paths and sizes as rank 0, but of other contents "
                  "(%016" PRIx64 ", rank 0 %016" PRIx64 "); copy the files of one host to the others",
                  rank, mine[CONTENTS], first[CONTENTS]);
    else if (mine[WEIGHTS] != first[WEIGHTS])
        error_set(error, ZERO_E_DIVERGED,
                  "weights: rank %u begins with other weights than rank 0: all hosts must hold the same "
                  "files in the directory of --model, or all begin with --random",
                  rank);
}

zero_status rank_check(zero_engine *engine, const struct job *job, struct zero_error *error) {
    struct value value[VALUES_MAX];
    uint64_t mine[VALUES_MAX + DATA_VALUES], first[VALUES_MAX + DATA_VALUES];
    uint32_t rank = zero_engine_rank(engine), options = list_options(job, value);
    for (uint32_t i = 0; i < options; i++) mine[i] = value[i].number;
    list_data(job, mine + options);
    TRY(share_first(engine, mine, options + DATA_VALUES, first));
    compare_options(value, options, first, error);
    compare_data(rank, mine + options, first + options, error);
    return ZERO_OK;
}
