/* `zero sample`: generates text from a model, on one rank, without optimizer state. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "tools/command/command.h"
#include "tools/command/subject.h"
#include "tools/train/job.h"
#include "tools/train/interrupt.h"

struct arguments {
    uint64_t tokens, seed;
    const char *prompt, *ids, *tokenizer;
    double temperature, top_p;
    uint64_t top_k;
    bool no_cache, ignore_end, average;
};

static const struct option options[] = {
    {"--tokens", "N", "generates N tokens (256)", COUNT(tokens)},
    {"--prompt", "TEXT", "the text that the sample continues; only where tokens are bytes", TEXT(prompt)},
    {"--prompt-ids", "N,N,...",
     "the same as numbers of tokens, which tools/tokenize --ids prints (zero-tokenize where zero is "
     "installed)",
     TEXT(ids)},
    {"--tokenizer", "PATH",
     "a tokenizer.json, or its directory, to print tokens as text (that of the model's directory)",
     TEXT(tokenizer)},
    {"--temperature", "T", "divides the logits; 0: always the most probable token (0.8)", REAL(temperature)},
    {"--top-k", "K", "draws from the K most probable tokens (all)", COUNT(top_k)},
    {"--top-p", "P", "draws from the fewest tokens that have this probability together (1)", REAL(top_p)},
    {"--ignore-end", NULL, "goes on after the model's end of text", FLAG(ignore_end)},
    {"--no-cache", NULL, "computes keys and values of all tokens again for each token", FLAG(no_cache)},
    {"--ema", NULL, "takes the checkpoint's averaged weights (ema.decay of the configuration)",
     FLAG(average)},
    {"--seed", "N", "of the draws (1)", COUNT(seed)},
    {0},
};

/* ---- the prompt ---- */

/* Numbers with commas or spaces between them. */
static zero_status read_ids(const char *text, uint32_t vocab, int32_t **out, uint64_t *out_count,
                            struct zero_error *error) {
    int32_t *ids = malloc((strlen(text) + 1) * sizeof *ids);
    if (!ids) return error_set(error, ZERO_E_MEMORY, "no memory for the prompt");
    *out = ids;
    for (const char *at = text; *at;) {
        char *end = (char *)at + 1;
        if (isdigit((unsigned char)*at)) {
            unsigned long id = strtoul(at, &end, 10);
            if (id >= vocab)
                return error_set(
                    error, ZERO_E_ARGUMENT,
                    "--prompt-ids: %lu is not below vocab_size %u: are these another tokenizer's numbers?",
                    id, vocab);
            ids[(*out_count)++] = (int32_t)id;
        } else if (*at != ',' && !isspace((unsigned char)*at)) {
            return error_set(error, ZERO_E_ARGUMENT,
                             "--prompt-ids: \"%.*s\" is no number: write them as 1,2,3", utf8_fit(at, 20),
                             at);
        }
        at = end;
    }
    return *out_count ? ZERO_OK
                      : error_set(error, ZERO_E_ARGUMENT, "--prompt-ids has no number: write them as 1,2,3");
}

static zero_status read_prompt(const struct arguments *a, const char *tokenizer, struct job *job,
                               int32_t **ids, struct zero_error *error) {
    job->is_text = job->model.vocab <= 256 && !job->sampling.decoder && !a->ids;
    if (a->prompt && !job->is_text)
        return error_set(error, ZERO_E_ARGUMENT,
                         "--prompt is text, and to cut it into the model's tokens needs a tokenizer: give "
                         "--prompt-ids with what tools/tokenize %s --ids TEXT prints for it, or --chat TEXT "
                         "for a message by the chat template",
                         *tokenizer ? tokenizer : "MODEL-DIRECTORY");
    if (a->prompt && a->ids)
        return error_set(error, ZERO_E_ARGUMENT, "--prompt and --prompt-ids are two prompts: drop one");
    if (!a->ids) return ZERO_OK;
    zero_status status = read_ids(a->ids, job->model.vocab, ids, &job->sampling.prompt_count, error);
    job->sampling.prompt = *ids;
    return status;
}

/* Allocates activations only for the tokens that will exist, if the model's parameters do not depend on the context. */
static void fit_context(const struct job *job, struct subject *s) {
    uint64_t prompt = job->prompt ? strlen(job->prompt) : job->sampling.prompt_count, tokens;
    bool more = __builtin_add_overflow(job->sample, prompt + 1, &tokens) || tokens >= s->model.context;
    if (gpt_any_context(&s->model) && !more) s->model.context = (uint32_t)tokens;
}

/* ---- the sample ---- */

static zero_status sample(struct subject *s, struct job *job, struct zero_error *error) {
    struct gpt *gpt = NULL;
    zero_engine *engine = NULL;
    fit_context(job, s);
    job->model = s->model;
    char settings[300];
    zero_status status = subject_load(s, &engine, &gpt, error);
    subject_settings(s, settings, sizeof settings);
    if (!status && *settings)
        fprintf(stderr, "zero sample: settings %s%s%s\n", settings,
                job->sampling.decoder && *s->tokenizer ? "; tokens of " : "",
                job->sampling.decoder ? s->tokenizer : "");
    if (!status) {
        interrupt_enter(INTERRUPT_RUNNING, "sampling");
        status = generate(engine, gpt, job, error);
    }
    gpt_destroy(gpt);
    zero_engine_destroy(engine);
    return status;
}

static zero_status run_sample(const char *path, const struct arguments *a, struct zero_error *error) {
    struct job job = {.sample = a->tokens ? a->tokens : 256, .prompt = a->prompt};
    struct subject subject;
    struct decoder *decoder = NULL;
    int32_t *ids = NULL;
    zero_status status = subject_open(path, 1, a->seed ? a->seed : 1, &subject, error);
    if (!status) status = subject_decoder(&subject, a->tokenizer, &decoder, error);
    subject.average = a->average;
    job.model = subject.model;
    job.config.seed = subject.config.seed;
    job.sampling = (struct sampling){.choosing = {a->temperature, a->top_k, a->top_p},
                                     .decoder = decoder,
                                     .ends = subject.ends,
                                     .end_count = a->ignore_end ? 0 : subject.end_count,
                                     .begin = subject.begin,
                                     .has_begin = subject.has_begin,
                                     .no_cache = a->no_cache};
    if (!status) status = read_prompt(a, subject.tokenizer, &job, &ids, error);
    if (!status) status = sample(&subject, &job, error);
    decoder_close(decoder);
    subject_close(&subject);
    free(ids);
    return status;
}

static bool is_share(double p) { return p > 0 && p <= 1; }

static int run(int argc, char **argv) {
    struct zero_error error = ERROR_NONE;
    struct arguments arguments = {.temperature = CHOOSING_DEFAULT.temperature, .top_p = 1};
    const char *path;
    if (options_parse(options, argc, argv, &arguments, &path, &error) != ZERO_OK)
        return command_usage_error("sample", "%s", error.message);
    if (!path) return command_usage_error("sample", "DIR is missing; name a checkpoint");
    if (!is_share(arguments.top_p))
        return command_usage_error("sample", "--top-p is a probability: give more than 0, and at most 1");
    if (interrupt_open("sample", true, &error) != ZERO_OK) return command_failed("sample", error.message);
    zero_status status = run_sample(path, &arguments, &error);
    if (status == ZERO_E_INTERRUPTED) return interrupt_exit_status();
    if (status != ZERO_OK) fprintf(stderr, "zero sample: %s\n", error.message);
    return status == ZERO_OK ? EXIT_OK : EXIT_FAILED;
}

const struct command command_sample = {
    .name = "sample",
    .arguments = "DIR [OPTIONS]",
    .summary = "generates text from a model",
    .description = "DIR is a checkpoint (RUN/checkpoints/step_00000100), RUN or RUN/checkpoints, of which "
                   "the latest is meant, or a\n"
                   "Hugging Face directory. Tokens that are not bytes are printed as text by the "
                   "tokenizer.json of the directory from\n"
                   "which the model came, or of --tokenizer; without one, their numbers are printed. The "
                   "text ends at the model's end\n"
                   "of text (eos_token_id), or after --tokens.",
    .options = options,
    .run = run,
    .alone = true,
};
