/* Tokens per second of whole training steps (forward, backward, clipping, AdamW) through the engine, and the share of the
 * GPU's peak, counting 6 N + 6 layers context width operations a token, N all parameters. One JSON object on stdout.
 * gpt_cuda_peers.py is the same in PyTorch.
 *
 *   gpt_cuda_bench [--device cuda|cpu] [--type bf16|fp16|fp32] [--stage 0..3] [--batch 8] [--steps 20] [--peak 0]
 *                  [--layers 12] [--width 768] [--heads 12] [--context 1024] [--vocab 50257] [--recompute 0]
 *                  [--graphs 1] [--accumulate 1] [--offload none|cpu|nvme] [--params none|cpu|nvme] [--swap /tmp]
 *                  [--budget 0] [--warm-up 5] [--attention auto|mma]
 *                  [--keep-outputs auto|true|false] [--model NAME] [--checkpoints none|cpu|nvme] [--clip 1]
 *                  [--mode auto|every|last] [--zero MEMBERS] [--json FILE]
 * --json: appends the object to a file as well. --peak: TFLOP/s, dense, of the type; 0: unknown. --recompute: of every so many blocks one
 * stream is kept. --graphs 0: without CUDA graphs. --accumulate: micro-steps of a step, the reduction in the last. --offload,
 * --params: where the optimizer's state and the parameters (stage 3) live; --swap: a directory of the drive. --budget: GiB of the device
 * for everything planned, activations included; 0: all. --attention: as device.attention. --keep-outputs: as device.keep_outputs;
 * the object has the blocks whose norms' and activations' outputs are kept. --model: the shapes of a model of `zero plan --models`, in place
 * of layers, width, heads and vocabulary. --checkpoints: where inputs of recomputed blocks are; none: on the device. --clip: the bound on the
 * norm; 0: none. --mode: as gradient_accumulation_mode; by default `last` where there are several micro-steps. --zero: more members of
 * zero_optimization, with commas between them. A machine whose memory does not hold the run is a line "skipped: REASON" and exit status 0. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/zero.h"
#include "tools/gpt/gpt.h"
#include "tools/plan/shapes.h"

enum { STEPS_MAX = 10000 };

struct bench {
    const char *device, *type, *json, *offload, *params, *swap, *attention, *outputs, *model, *checkpoints,
        *mode, *zero;
    double stage, batch, steps, peak, layers, width, heads, context, vocab, recompute, graphs, accumulate,
        budget, warm_up, clip;
};

struct option {
    const char *name;
    const char **text;
    double *number;
};

static void read_options(struct bench *b, int argc, char **argv) {
    const struct option options[] = {{"--device", &b->device, NULL},
                                     {"--type", &b->type, NULL},
                                     {"--json", &b->json, NULL},
                                     {"--stage", NULL, &b->stage},
                                     {"--batch", NULL, &b->batch},
                                     {"--steps", NULL, &b->steps},
                                     {"--peak", NULL, &b->peak},
                                     {"--layers", NULL, &b->layers},
                                     {"--width", NULL, &b->width},
                                     {"--heads", NULL, &b->heads},
                                     {"--context", NULL, &b->context},
                                     {"--vocab", NULL, &b->vocab},
                                     {"--recompute", NULL, &b->recompute},
                                     {"--graphs", NULL, &b->graphs},
                                     {"--offload", &b->offload, NULL},
                                     {"--params", &b->params, NULL},
                                     {"--swap", &b->swap, NULL},
                                     {"--accumulate", NULL, &b->accumulate},
                                     {"--budget", NULL, &b->budget},
                                     {"--warm-up", NULL, &b->warm_up},
                                     {"--attention", &b->attention, NULL},
                                     {"--keep-outputs", &b->outputs, NULL},
                                     {"--model", &b->model, NULL},
                                     {"--checkpoints", &b->checkpoints, NULL},
                                     {"--clip", NULL, &b->clip},
                                     {"--mode", &b->mode, NULL},
                                     {"--zero", &b->zero, NULL}};
    for (int i = 1; i < argc; i += 2) {
        size_t o = 0, count = sizeof options / sizeof *options;
        while (o < count && strcmp(options[o].name, argv[i]) != 0) o++;
        if (o == count || i + 1 == argc) {
            fprintf(stderr, "gpt_cuda_bench: %s: no such option, or no value: see the head of the source\n",
                    argv[i]);
            exit(2);
        }
        if (options[o].text) *options[o].text = argv[i + 1];
        if (options[o].number) *options[o].number = strtod(argv[i + 1], NULL);
    }
}

/* The place of the value in a list of names that ends with NULL. */
static int place_of(const char *option, const char *value, const char *const names[]) {
    for (int i = 0; names[i]; i++)
        if (strcmp(value, names[i]) == 0) return i;
    fprintf(stderr, "gpt_cuda_bench: %s %s: no such value: see the head of the source\n", option, value);
    exit(2);
}

static const char *const outputs_names[] = {
    [GPT_OUTPUTS_AGAIN] = "false", [GPT_OUTPUTS_KEPT] = "true", [GPT_OUTPUTS_FITTING] = "auto", NULL};
static const char *const tier_names[] = {
    [ZERO_DEVICE] = "none", [ZERO_CPU] = "cpu", [ZERO_NVME] = "nvme", NULL};
static const char *const attention_names[] = {
    [GPT_ATTENTION_AUTO] = "auto", [GPT_ATTENTION_MMA] = "mma", NULL};

/* The machine's memory ends the run, not a budget that the run was given. */
static bool machine_is_small(zero_status status) {
    const char *reason = zero_last_error();
    return status == ZERO_E_MEMORY || strncmp(reason, "host memory:", 12) == 0 ||
           strncmp(reason, "device memory:", 14) == 0;
}

static void must(zero_status status, const char *what) {
    if (status == ZERO_OK) return;
    if (machine_is_small(status)) {
        printf("skipped: %s: %s%s\n", what, gpt_last_error(), zero_last_error());
        exit(0);
    }
    fprintf(stderr, "gpt_cuda_bench: %s: %s%s\n", what, gpt_last_error(), zero_last_error());
    exit(1);
}

/* Of zero_optimization, after the stage. */
static void write_tiers(const struct bench *b, char *out, size_t size) {
    int length = snprintf(out, size, ", \"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": \"%s\"}",
                          b->offload, b->swap);
    if (strcmp(b->params, "none") != 0)
        snprintf(out + length, size - (size_t)length,
                 ", \"offload_param\": {\"device\": \"%s\", \"nvme_path\": \"%s\"}", b->params, b->swap);
    length = (int)strlen(out);
    if (b->zero) snprintf(out + length, size - (size_t)length, ", %s", b->zero);
}

/* The sizes of a model that has a name. */
static void take_model(struct gpt_config *config, const char *name) {
    const struct shapes *s = shapes_find(name);
    if (!s) {
        fprintf(stderr, "gpt_cuda_bench: --model %s: no such model: zero plan --models lists them\n", name);
        exit(2);
    }
    config->architecture = s->architecture, config->tied = s->tied;
    config->layers = (uint32_t)s->layers, config->width = (uint32_t)s->width;
    config->heads = (uint32_t)s->heads, config->kv_heads = (uint32_t)s->kv_heads;
    config->head_width = (uint32_t)s->head_width, config->inner = (uint32_t)s->inner;
    config->vocab = (uint32_t)s->vocab;
    config->rope.theta = 10000;
}

static zero_engine *open_engine(const struct bench *b) {
    char json[2048], tiers[512], budget[64] = "";
    write_tiers(b, tiers, sizeof tiers);
    if (b->budget > 0) snprintf(budget, sizeof budget, "\"memory\": {\"device\": \"%.0fGiB\"}, ", b->budget);
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": %.0f, \"gradient_accumulation_steps\": %.0f, "
             "\"gradient_accumulation_mode\": \"%s\", %s\"gradient_clipping\": %g, \"device\": {\"type\": "
             "\"%s\"}, "
             "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4, \"weight_decay\": 0.1}}, "
             "\"bf16\": {\"enabled\": %s}, \"fp16\": {\"enabled\": %s}, \"zero_optimization\": {\"stage\": "
             "%.0f%s}}",
             b->batch, b->accumulate,
             b->mode             ? b->mode
             : b->accumulate > 1 ? "last"
                                 : "auto",
             budget, b->clip, b->device, strcmp(b->type, "bf16") == 0 ? "true" : "false",
             strcmp(b->type, "fp16") == 0 ? "true" : "false", b->stage, tiers);
    zero_engine *engine = zero_engine_init(json);
    if (!engine) must(ZERO_E_ARGUMENT, "opening the engine");
    return engine;
}

static struct gpt *open_model(const struct bench *b, zero_engine *engine, const struct gpt_config *config,
                              zero_plan *plan) {
    struct gpt *gpt = NULL;
    struct gpt_init init = {.seed = 1, .config = *config, .threads = zero_engine_threads(engine)};
    must(gpt_create(engine, config, (uint32_t)b->batch, &gpt), "the model");
    must(zero_engine_commit(engine, plan), "commit");
    must(gpt_keep_outputs(gpt), "outputs that are kept");
    must(zero_engine_fill(engine, gpt_fill, &init), "initial weights");
    return gpt;
}

/* Seconds of the step; the loss is read, so the GPU has finished all but the update. */
static double step(zero_engine *engine, struct gpt *gpt, int micro_steps, const int32_t *tokens,
                   double *out_loss) {
    uint64_t start = clock_now_ns();
    int uses = micro_steps / (int)zero_engine_use_micros(engine);
    for (int i = 0; i < uses; i++) must(gpt_train(gpt, tokens, tokens + 1, out_loss), "a micro-step");
    must(zero_engine_step(engine, NULL), "a step");
    return (double)(clock_now_ns() - start) * 1e-9;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void report(FILE *to, const struct bench *b, const struct gpt_config *config, const zero_plan *plan,
                   const struct gpt *gpt, double seconds, double loss) {
    double parameters = (double)gpt_parameters(config),
           tokens = b->accumulate * b->batch * b->context / seconds;
    double flops = (6 * parameters + 6 * b->layers * b->context * b->width) * tokens;
    char of_peak[32] = "null";
    if (b->peak > 0) snprintf(of_peak, sizeof of_peak, "%.4f", flops * 1e-12 / b->peak);
    fprintf(
        to,
        "{\"bench\": \"gpt\", \"device\": \"%s\", \"type\": \"%s\", \"stage\": %.0f, \"graphs\": %.0f, "
        "\"attention\": \"%s\", "
        "\"kept_norm_blocks\": %u, \"kept_activation_blocks\": %u, "
        "\"kept_attention_blocks\": %u, \"kept_mlp_blocks\": %u, \"accumulate\": %.0f, "
        "\"offload\": \"%s\", \"params\": \"%s\", "
        "\"device_bytes\": %llu, "
        "\"cpu_bytes\": %llu, "
        "\"nvme_bytes\": %llu, \"layers\": %.0f, \"width\": %.0f, \"parameters\": %.0f, "
        "\"batch\": %.0f, \"context\": %.0f, \"step_ms\": %.3f, \"tokens_per_s\": %.1f, \"tflops\": %.2f, "
        "\"of_peak\": %s, \"loss\": %.9g}\n",
        b->device, b->type, b->stage, b->graphs, b->attention, gpt_kept(gpt, GPT_NORMS),
        gpt_kept(gpt, GPT_ACTIVATIONS), gpt_kept(gpt, GPT_ATTENTION), gpt_kept(gpt, GPT_MLP), b->accumulate,
        b->offload, b->params, (unsigned long long)plan->bytes[ZERO_DEVICE],
        (unsigned long long)plan->bytes[ZERO_CPU], (unsigned long long)plan->bytes[ZERO_NVME], b->layers,
        b->width, parameters, b->batch, b->context, seconds * 1e3, tokens, flops * 1e-12, of_peak, loss);
}

int main(int argc, char **argv) {
    static double seconds[STEPS_MAX];
    struct bench b = {.device = "cuda",
                      .type = "bf16",
                      .offload = "none",
                      .params = "none",
                      .swap = "/tmp",
                      .attention = "auto",
                      .outputs = "auto",
                      .batch = 8,
                      .steps = 20,
                      .layers = 12,
                      .width = 768,
                      .heads = 12,
                      .context = 1024,
                      .vocab = 50257,
                      .graphs = 1,
                      .accumulate = 1,
                      .warm_up = 5,
                      .checkpoints = "none",
                      .clip = 1};
    zero_plan plan = {.struct_size = sizeof plan};
    read_options(&b, argc, argv);
    if (b.steps < 1 || b.steps > STEPS_MAX) b.steps = STEPS_MAX;
    struct gpt_config config = {
        .layers = (uint32_t)b.layers,
        .width = (uint32_t)b.width,
        .heads = (uint32_t)b.heads,
        .context = (uint32_t)b.context,
        .vocab = (uint32_t)b.vocab,
        .tied = true,
        .layer_norm_epsilon = 1e-5,
        .initializer_range = 0.02,
        .recompute = (uint32_t)b.recompute,
        .checkpoints = (zero_tier)place_of("--checkpoints", b.checkpoints, tier_names),
        .no_graphs = b.graphs == 0,
        .outputs = (enum gpt_outputs)place_of("--keep-outputs", b.outputs, outputs_names),
        .attention = (enum gpt_attention)place_of("--attention", b.attention, attention_names)};
    if (b.model) take_model(&config, b.model);
    b.layers = config.layers, b.width = config.width;
    if (gpt_config_problem(&config)) {
        fprintf(stderr, "gpt_cuda_bench: %s\n", gpt_config_problem(&config));
        return 2;
    }
    zero_engine *engine = open_engine(&b);
    struct gpt *gpt = open_model(&b, engine, &config, &plan);
    size_t micros = zero_engine_use_micros(engine), count = micros * (size_t)(b.batch * b.context);
    int32_t *tokens = malloc((count + 1) * sizeof *tokens);
    double *loss = calloc(micros, sizeof *loss);
    for (size_t i = 0; i <= count; i++) tokens[i] = (int32_t)(i * 2654435761u % config.vocab);
    for (int i = 0; i < (int)b.warm_up; i++) step(engine, gpt, (int)b.accumulate, tokens, loss);
    for (int i = 0; i < (int)b.steps; i++) seconds[i] = step(engine, gpt, (int)b.accumulate, tokens, loss);
    qsort(seconds, (size_t)b.steps, sizeof *seconds, compare);
    report(stdout, &b, &config, &plan, gpt, seconds[(int)b.steps / 2], *loss);
    FILE *json = b.json ? fopen(b.json, "a") : NULL;
    if (json) report(json, &b, &config, &plan, gpt, seconds[(int)b.steps / 2], *loss), fclose(json);
    if (b.json && !json) perror(b.json);
    gpt_destroy(gpt);
    zero_engine_destroy(engine);
    free(tokens);
    free(loss);
    return 0;
}
