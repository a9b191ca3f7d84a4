/* `zero sample`: generates text from a checkpoint's model, on one rank, without optimizer state. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checkpoint.h"
#include "tools/command/command.h"
#include "tools/command/generate.h"
#include "tools/command/interrupt.h"
#include "tools/weights/weights.h"

struct arguments {
    uint64_t tokens, seed;
    const char *prompt;
};

static const struct option options[] = {
    {"--tokens", "N", "generates N tokens (256)", OPTION_COUNT, offsetof(struct arguments, tokens)},
    {"--prompt", "TEXT", "the text that the sample continues; only where tokens are bytes", OPTION_TEXT,
     offsetof(struct arguments, prompt)},
    {"--seed", "N", "of the draws (1)", OPTION_COUNT, offsetof(struct arguments, seed)},
    {0},
};

/* Writes the checkpoint's model block as a configuration, with an optimizer that has no state. */
static char *configuration(const struct manifest *m, uint64_t seed) {
    char *text = NULL;
    size_t length;
    FILE *f = open_memstream(&text, &length);
    if (!f) return NULL;
    fprintf(f,
            "{\"train_micro_batch_size_per_gpu\": 1, \"seed\": %" PRIu64
            ", \"optimizer\": {\"type\": \"SGD\"}, ",
            seed);
    fputs("\"model\": {", f);
    weights_print_model(f, m, true, " ", NULL);
    fputs("}}", f);
    fclose(f);
    return text;
}

static zero_status engine_failed(zero_status status, struct zero_error *error) {
    return error_set(error, status ? status : ZERO_E_INTERNAL, "%s", zero_last_error());
}

static zero_status sample(const char *json, const char *path, struct job *job, struct zero_error *error) {
    struct gpt *gpt = NULL;
    zero_engine *engine = zero_engine_init(json);
    if (!engine) return engine_failed(ZERO_OK, error);
    zero_status status = gpt_create(engine, &job->model, 1, &gpt);
    if (!status) status = zero_engine_commit(engine, NULL);
    if (!status) status = zero_engine_load_weights(engine, path);
    if (status) engine_failed(status, error);
    if (!status) {
        interrupt_enter(INTERRUPT_RUNNING, "sampling");
        status = generate(engine, gpt, job, error);
    }
    gpt_destroy(gpt);
    zero_engine_destroy(engine);
    return status;
}

/* Allocates activations only for the tokens that will exist, if the model's parameters do not depend on the context. */
static void fit_context(struct job *job) {
    uint64_t tokens = job->sample + (job->prompt ? strlen(job->prompt) : 0) + 1;
    if (gpt_any_context(&job->model) && tokens < job->model.context) job->model.context = (uint32_t)tokens;
}

static zero_status open_model(const char *json, const char *path, struct job *job, struct zero_error *error) {
    zero_status status = config_read(json, &job->config, error);
    if (!status) status = config_resolve(&job->config, 1, error);
    if (status) return status;
    job->model = weights_model(&job->config.model);
    fit_context(job);
    job->is_text = job->model.vocab <= 256;
    const char *problem = gpt_config_problem(&job->model);
    if (problem) return error_set(error, ZERO_E_CONFIG, "%s: the model: %s", path, problem);
    if (job->prompt && !job->is_text)
        return error_set(
            error, ZERO_E_ARGUMENT,
            "--prompt is text, but the model's tokens are not bytes, and there is no tokenizer here: leave "
            "--prompt out");
    return ZERO_OK;
}

static zero_status run_sample(const char *path, const struct arguments *a, struct zero_error *error) {
    struct job job = {.sample = a->tokens ? a->tokens : 256, .prompt = a->prompt};
    struct checkpoint checkpoint;
    char *json = NULL;
    zero_status status = checkpoint_open(storage_posix(), path, &checkpoint, error);
    if (!status && !manifest_config(&checkpoint.manifest, "model.vocab_size"))
        status =
            error_set(error, ZERO_E_ARGUMENT,
                      "%s is not a GPT's checkpoint: its configuration has no model block", checkpoint.path);
    if (!status && !(json = configuration(&checkpoint.manifest, a->seed ? a->seed : 1)))
        status = error_set(error, ZERO_E_MEMORY, "no memory for the model's configuration");
    if (!status) status = open_model(json, checkpoint.path, &job, error);
    if (!status) status = sample(json, checkpoint.path, &job, error);
    checkpoint_close(&checkpoint);
    config_free(&job.config);
    free(json);
    return status;
}

static int run(int argc, char **argv) {
    struct zero_error error;
    struct arguments arguments = {0};
    const char *path;
    error_clear(&error);
    if (options_parse(options, argc, argv, &arguments, &path, &error) != ZERO_OK)
        return command_usage_error("sample", "%s", error.message);
    if (!path) return command_usage_error("sample", "DIR is missing; name a checkpoint");
    if (interrupt_open("sample", true, &error) != ZERO_OK) {
        fprintf(stderr, "zero sample: %s\n", error.message);
        return EXIT_FAILED;
    }
    zero_status status = run_sample(path, &arguments, &error);
    if (status == ZERO_E_INTERRUPTED) return interrupt_exit_status();
    if (status != ZERO_OK) fprintf(stderr, "zero sample: %s\n", error.message);
    return status == ZERO_OK ? EXIT_OK : EXIT_FAILED;
}

const struct command command_sample = {
    .name = "sample",
    .arguments = "DIR [OPTIONS]",
    .summary = "generates text from a checkpoint",
    .description =
        "DIR is one checkpoint (RUN/checkpoints/step_00000100), or RUN/checkpoints, of which the latest is "
        "meant.\nWhere tokens are not bytes, their numbers are printed.",
    .options = options,
    .run = run,
};
