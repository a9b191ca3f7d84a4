/* `zero eval`: the loss and the perplexity of a model on data, on one rank. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/command/command.h"
#include "tools/command/subject.h"
#include "tools/text/format.h"
#include "tools/train/feed.h"

enum { CONTEXT = 1024, BATCH = 4 }; /* if nothing else is asked for */

struct arguments {
    struct option_list data;
    uint64_t context, batch, samples;
    bool average;
};

static const struct option options[] = {
    {"--data", "PATH...",
     "token files (.bin) and directories of them; text, where the model's tokens are bytes (what the run "
     "held out: data.eval)",
     LIST(data)},
    {"--context", "N",
     "tokens of a sample (those of the run's samples; of a directory the model's context, at most 1024; of a "
     "GPT-2 always the model's)",
     COUNT(context)},
    {"--samples", "N", "at most N samples, from the beginning (all)", COUNT(samples)},
    {"--batch", "N", "samples at a time: more memory, fewer passes (4)", COUNT(batch)},
    {"--ema", NULL, "takes the checkpoint's averaged weights (ema.decay of the configuration)",
     FLAG(average)},
    {0},
};

struct evaluation {
    struct subject subject;
    struct dataset dataset;
    struct reader *reader;
    zero_engine *engine;
    struct gpt *gpt;
    int32_t *tokens, *targets;
    bool held_out;         /* by the run */
    struct corpus *corpus; /* of the data that are measured */
    struct order *order;
    char run[SUBJECT_RUN_BYTES];
    struct recalled recalled;
    uint64_t samples;
    double total, weight; /* sums over targets that count: of losses, and of ones */
};

/* Rotary positions allow any length up to the model's. */
static zero_status choose_context(struct subject *s, uint64_t asked, struct zero_error *error) {
    uint64_t most = s->model.context, usual = s->context ? s->context : CONTEXT;
    uint64_t context = asked ? asked : most < usual ? most : usual;
    if (!gpt_any_context(&s->model)) context = asked ? asked : most;
    if (context > most || (!gpt_any_context(&s->model) && context != most))
        return error_set(error, ZERO_E_ARGUMENT,
                         "--context %" PRIu64 ": the model has %s %" PRIu64 ": give that or %s", context,
                         gpt_any_context(&s->model) ? "at most" : "exactly", most,
                         gpt_any_context(&s->model) ? "less" : "nothing");
    s->config.model.context = context;
    s->model.context = (uint32_t)context;
    return ZERO_OK;
}

/* The files with which the run trained. */
static zero_status recall_data(struct evaluation *e, struct zero_error *error) {
    struct recalled *r = &e->recalled;
    int first = 0, end;
    subject_run(&e->subject, e->run);
    if (*e->run) recall_read(e->run, r);
    while (first < r->argc && r->argv && (!first || strcmp(r->argv[first], "--data") != 0)) first++;
    for (end = first + 1; end < r->argc && strncmp(r->argv[end], "--", 2) != 0;) end++;
    if (end > first + 1 && first < r->argc)
        return config_set_paths(&e->subject.config, "data.path", (const char *const *)r->argv + first + 1,
                                (uint64_t)(end - first - 1), error);
    return error_set(error, ZERO_E_ARGUMENT, "there is nothing to read: give --data PATH");
}

/* The files of --data; else what the run held out of its own. */
static zero_status find_data(struct evaluation *e, const struct arguments *a, struct zero_error *error) {
    struct config *config = &e->subject.config;
    const struct config_paths *own = &config->data.eval.paths;
    e->held_out = !a->data.count;
    if (a->data.count) return config_set_paths(config, "data.path", a->data.items, a->data.count, error);
    if (own->count)
        return config_set_paths(config, "data.path", (const char *const *)own->items, own->count, error);
    if (config->data.eval.fraction > 0) return recall_data(e, error);
    return error_set(error, ZERO_E_ARGUMENT, "there is nothing to read%s: give --data PATH",
                     e->subject.context ? ", because the run held out no data (data.eval)" : "");
}

static zero_status open_data(struct evaluation *e, const struct arguments *a, struct zero_error *error) {
    struct config *config = &e->subject.config;
    zero_status status = find_data(e, a, error);
    config->data.bytes |= config->model.vocab == 256;
    bool part = e->held_out && !config->data.eval.paths.count; /* of the run's data */
    if (!status) status = dataset_open(config, part ? DATASET_TRAIN : DATASET_EVAL, error, &e->dataset);
    if (status) return status;
    e->corpus = part ? e->dataset.held_out : e->dataset.train;
    e->order = part ? &e->dataset.held_out_order : &e->dataset.train_order;
    TRY(reader_open(e->corpus, e->subject.model.vocab, error, &e->reader));
    size_t tokens = (size_t)config->micro_batch * e->subject.model.context;
    e->tokens = malloc(tokens * sizeof *e->tokens);
    e->targets = malloc(tokens * sizeof *e->targets);
    uint64_t all = e->order->samples;
    e->samples = a->samples && a->samples < all ? a->samples : all;
    return e->tokens && e->targets ? ZERO_OK
                                   : error_set(error, ZERO_E_MEMORY, "no memory for %zu tokens", tokens);
}

static zero_status sum_losses(struct evaluation *e, struct zero_error *error) {
    uint64_t batch = e->subject.config.micro_batch;
    zero_status status = ZERO_OK;
    for (uint64_t at = 0; at < e->samples && !status; at += batch) {
        uint32_t count = (uint32_t)(e->samples - at < batch ? e->samples - at : batch);
        double loss = 0;
        TRY(order_read(e->order, e->reader, at, count, e->tokens, e->targets, error));
        double weight = (double)order_counted(e->targets, (uint64_t)count * e->subject.model.context);
        gpt_set_divisor(e->gpt, weight ? weight : 1);
        status = gpt_evaluate(e->gpt, e->tokens, e->targets, count, &loss);
        if (status) subject_failed(status, error);
        e->total += loss * weight, e->weight += weight;
    }
    if (!status && !e->weight)
        status =
            error_set(error, ZERO_E_ARGUMENT,
                      "data: the loss masks leave no target in the samples: there is no loss to measure");
    return status;
}

static void print(const struct evaluation *e) {
    double loss = e->total / e->weight;
    uint64_t context = e->subject.model.context;
    format_line(stdout, "model       %s of %s parameters, %s%s", gpt_title(&e->subject.model),
                format_grouped(gpt_parameters(&e->subject.model)).chars, e->subject.path,
                e->subject.average ? ", averaged" : "");
    char settings[300];
    subject_settings(&e->subject, settings, sizeof settings);
    if (*settings) format_line(stdout, "settings    %s", settings);
    printf("data        %s samples of %s tokens%s\n", format_grouped(e->samples).chars,
           format_grouped(context).chars, e->held_out ? ", held out by the run" : "");
    if (e->corpus->mask)
        printf("targets     %s count, by the loss masks\n", format_grouped((uint64_t)e->weight).chars);
    printf("loss        %.6f\nperplexity  %.6g\n", loss, exp(loss));
}

static zero_status evaluate(struct evaluation *e, const char *path, const struct arguments *a,
                            struct zero_error *error) {
    zero_status status = subject_open(path, a->batch ? a->batch : BATCH, 1, &e->subject, error);
    if (!status) status = choose_context(&e->subject, a->context, error);
    if (!status) status = open_data(e, a, error);
    e->subject.average = a->average;
    e->subject.model.recompute = 1; /* without a backward: the blocks share the memory of one */
    if (!status) status = subject_load(&e->subject, &e->engine, &e->gpt, error);
    if (!status) status = sum_losses(e, error);
    if (!status) print(e);
    return status;
}

static void close_all(struct evaluation *e) {
    gpt_destroy(e->gpt);
    zero_engine_destroy(e->engine);
    reader_close(e->reader);
    dataset_close(&e->dataset);
    subject_close(&e->subject);
    recall_free(&e->recalled);
    free(e->tokens);
    free(e->targets);
}

static int run(int argc, char **argv) {
    struct zero_error error = ERROR_NONE;
    struct arguments arguments = {0};
    struct evaluation evaluation = {0};
    const char *path;
    if (options_parse(options, argc, argv, &arguments, &path, &error) != ZERO_OK)
        return command_usage_error("eval", "%s", error.message);
    if (!path) return command_usage_error("eval", "DIR is missing; name a checkpoint or a model's directory");
    zero_status status = evaluate(&evaluation, path, &arguments, &error);
    if (status != ZERO_OK) fprintf(stderr, "zero eval: %s\n", error.message);
    close_all(&evaluation);
    if (status == ZERO_E_ARGUMENT && !arguments.data.count) return EXIT_USAGE;
    return status == ZERO_OK ? EXIT_OK : EXIT_FAILED;
}

const struct command command_eval = {
    .name = "eval",
    .arguments = "DIR [--data PATH...] [OPTIONS]",
    .summary = "prints loss and perplexity of a model on data",
    .description = "DIR is a checkpoint, RUN or RUN/checkpoints, of which the latest is meant, or a Hugging "
                   "Face directory.\n"
                   "Every sample of --context tokens is read once, in the order of the files; what is left "
                   "at the end, shorter than a\n"
                   "sample, is not. The loss is the mean over all tokens (with loss masks, those that "
                   "count), in nats; the perplexity is e to that power.\n"
                   "A run's settings are its own: type of compute (fp32 where this processor cannot compute "
                   "in it; of a\n"
                   "directory always fp32), tokens of a sample, ends of documents; a line says so.",
    .options = options,
    .run = run,
    .alone = true,
};
