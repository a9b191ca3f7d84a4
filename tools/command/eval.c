/* `zero eval`: the loss and the perplexity of a model on data, on one rank. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/command/command.h"
#include "tools/command/feed.h"
#include "tools/command/format.h"
#include "tools/command/subject.h"

enum { CONTEXT = 1024, BATCH = 4 }; /* if nothing else is asked for */

struct arguments {
    struct option_list data;
    uint64_t context, batch, samples;
    bool average;
};

static const struct option options[] = {
    {"--data", "PATH...",
     "token files (.bin) and directories of them; text, where the model's tokens are bytes", OPTION_LIST,
     offsetof(struct arguments, data)},
    {"--context", "N",
     "tokens of a sample (the model's context, at most 1024; of a GPT-2 always the model's)", OPTION_COUNT,
     offsetof(struct arguments, context)},
    {"--samples", "N", "at most N samples, from the beginning (all)", OPTION_COUNT,
     offsetof(struct arguments, samples)},
    {"--batch", "N", "samples at a time: more memory, fewer passes (4)", OPTION_COUNT,
     offsetof(struct arguments, batch)},
    {"--ema", NULL, "takes the checkpoint's averaged weights (ema.decay of the configuration)", OPTION_FLAG,
     offsetof(struct arguments, average)},
    {0},
};

struct evaluation {
    struct subject subject;
    struct dataset dataset;
    struct reader *reader;
    zero_engine *engine;
    struct gpt *gpt;
    int32_t *tokens, *targets;
    uint64_t samples;
    double total, weight; /* sums over targets that count: of losses, and of ones */
};

/* Rotary positions allow any length up to the model's. */
static zero_status choose_context(struct subject *s, uint64_t asked, struct zero_error *error) {
    uint64_t most = s->model.context, context = asked ? asked : most < CONTEXT ? most : CONTEXT;
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

static zero_status open_data(struct evaluation *e, const struct arguments *a, struct zero_error *error) {
    struct config *config = &e->subject.config;
    zero_status status = config_set_paths(config, "data.path", a->data.items, a->data.count, error);
    config->data.bytes |= config->model.vocab == 256;
    if (!status) status = dataset_open(config, DATASET_EVAL, error, &e->dataset);
    if (!status) status = reader_open(e->dataset.train, e->subject.model.vocab, error, &e->reader);
    if (status) return status;
    size_t tokens = (size_t)config->micro_batch * e->subject.model.context;
    e->tokens = malloc(tokens * sizeof *e->tokens);
    e->targets = malloc(tokens * sizeof *e->targets);
    uint64_t all = e->dataset.train_order.samples;
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
        status = order_read(&e->dataset.train_order, e->reader, at, count, e->tokens, e->targets, error);
        if (status) return status;
        double weight = (double)order_counted(e->targets, (uint64_t)count * e->subject.model.context);
        gpt_set_divisor(e->gpt, weight ? weight : 1);
        status = gpt_evaluate_some(e->gpt, e->tokens, e->targets, count, &loss);
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
    printf("model       %s of %s parameters, %s%s\n", gpt_title(&e->subject.model),
           format_grouped(gpt_parameters(&e->subject.model)).chars, e->subject.path,
           e->subject.average ? ", averaged" : "");
    printf("data        %s samples of %s tokens\n", format_grouped(e->samples).chars,
           format_grouped(context).chars);
    if (e->dataset.train->mask)
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
    free(e->tokens);
    free(e->targets);
}

static int run(int argc, char **argv) {
    struct zero_error error;
    struct arguments arguments = {0};
    struct evaluation evaluation = {0};
    const char *path;
    error_clear(&error);
    if (options_parse(options, argc, argv, &arguments, &path, &error) != ZERO_OK)
        return command_usage_error("eval", "%s", error.message);
    if (!path) return command_usage_error("eval", "DIR is missing; name a checkpoint or a model's directory");
    if (!arguments.data.count)
        return command_usage_error("eval", "there is nothing to read: give --data PATH");
    zero_status status = evaluate(&evaluation, path, &arguments, &error);
    if (status != ZERO_OK) fprintf(stderr, "zero eval: %s\n", error.message);
    close_all(&evaluation);
    return status == ZERO_OK ? EXIT_OK : EXIT_FAILED;
}

const struct command command_eval = {
    .name = "eval",
    .arguments = "DIR --data PATH... [OPTIONS]",
    .summary = "prints loss and perplexity of a model on data",
    .description = "DIR is a checkpoint, RUN or RUN/checkpoints, of which the latest is meant, or a Hugging "
                   "Face directory.\n"
                   "Every sample of --context tokens is read once, in the order of the files; what is left "
                   "at the end, shorter than a\n"
                   "sample, is not. The loss is the mean over all tokens (with loss masks, those that "
                   "count), in nats; the perplexity is e to "
                   "that power. Computed in fp32.",
    .options = options,
    .run = run,
    .alone = true,
};
