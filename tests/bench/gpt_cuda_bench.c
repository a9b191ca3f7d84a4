/* Tokens per second of whole training steps (forward, backward, clipping, AdamW) through the engine, and the share of the
 * GPU's peak, counting 6 N + 6 layers context width operations a token, N all parameters. One JSON object on stdout.
 * gpt_cuda_peers.py is the same in PyTorch.
 *
 *   gpt_cuda_bench [--device cuda|cpu] [--type bf16|fp16|fp32] [--stage 0..3] [--batch 8] [--steps 20] [--peak 0]
 *                  [--layers 12] [--width 768] [--heads 12] [--context 1024] [--vocab 50257] [--recompute 0]
 *                  [--graphs 1] [--accumulate 1] [--offload none|cpu|nvme] [--params none|cpu|nvme] [--swap /tmp]
 *                  [--budget 0] [--warm-up 5] [--products first|timed]
 *                  [--attention auto|mma|timed] [--keep-outputs auto|true|false] [--json FILE]
 * --json: appends the object to a file as well. --peak: TFLOP/s, dense, of the type; 0: unknown. --recompute: of every so many blocks one
 * stream is kept. --graphs 0: without CUDA graphs. --accumulate: micro-steps of a step, the reduction in the last. --offload,
 * --params: where the optimizer's state and the parameters (stage 3) live; --swap: a directory of the drive. --budget: GiB of the device
 * for everything planned, activations included; 0: all. --products timed: each shape of a product uses the fastest of cuBLASLt's
 * proposals, chosen before the first step. --attention: as device.attention. --keep-outputs: as device.keep_outputs; the object has the
 * blocks whose norms' and activations' outputs are kept. A machine whose memory does not hold the run is a line "skipped: REASON" and exit status 0. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/zero.h"
#include "tools/gpt/gpt.h"

enum { STEPS_MAX = 10000 };

struct bench {
    const char *device, *type, *json, *offload, *params, *swap, *products, *attention, *outputs;
    double stage, batch, steps, peak, layers, width, heads, context, vocab, recompute, graphs, accumulate,
        budget, warm_up;
};

struct option {
    const char *name;
    const char **text;
    double *number;
};

static void read_options(struct bench *b, int argc, char **argv) {
    const struct option options[] = {
        {"--device", &b->device, NULL},       {"--type", &b->type, NULL},
        {"--json", &b->json, NULL},           {"--stage", NULL, &b->stage},
        {"--batch", NULL, &b->batch},         {"--steps", NULL, &b->steps},
        {"--peak", NULL, &b->peak},           {"--layers", NULL, &b->layers},
        {"--width", NULL, &b->width},         {"--heads", NULL, &b->heads},
        {"--context", NULL, &b->context},     {"--vocab", NULL, &b->vocab},
        {"--recompute", NULL, &b->recompute}, {"--graphs", NULL, &b->graphs},
        {"--offload", &b->offload, NULL},     {"--params", &b->params, NULL},
        {"--swap", &b->swap, NULL},           {"--accumulate", NULL, &b->accumulate},
        {"--budget", NULL, &b->budget},       {"--warm-up", NULL, &b->warm_up},
        {"--products", &b->products, NULL},   {"--attention", &b->attention, NULL},
        {"--keep-outputs", &b->outputs, NULL}};
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

static const char *const products_names[] = {"first", "timed", NULL};
static const char *const outputs_names[] = {
    [GPT_OUTPUTS_AGAIN] = "false", [GPT_OUTPUTS_KEPT] = "true", [GPT_OUTPUTS_FITTING] = "auto", NULL};
static const char *const attention_names[] = {
    [GPT_ATTENTION_AUTO] = "auto", [GPT_ATTENTION_MMA] = "mma", [GPT_ATTENTION_TIMED] = "timed", NULL};

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
}

static zero_engine *open_engine(const struct bench *b) {
    char json[2048], tiers[512], budget[64] = "";
    write_tiers(b, tiers, sizeof tiers);
    if (b->budget > 0) snprintf(budget, sizeof budget, "\"memory\": {\"device\": \"%.0fGiB\"}, ", b->budget);
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": %.0f, \"gradient_accumulation_steps\": %.0f, "
             "\"gradient_accumulation_mode\": \"%s\", %s\"gradient_clipping\": 1.0, \"device\": {\"type\": "
             "\"%s\"}, "
             "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4, \"weight_decay\": 0.1}}, "
             "\"bf16\": {\"enabled\": %s}, \"fp16\": {\"enabled\": %s}, \"zero_optimization\": {\"stage\": "
             "%.0f%s}}",
             b->batch, b->accumulate, b->accumulate > 1 ? "last" : "auto", budget, b->device,
             strcmp(b->type, "bf16") == 0 ? "true" : "false", strcmp(b->type, "fp16") == 0 ? "true" : "false",
             b->stage, tiers);
    zero_engine *engine = zero_engine_init(json);
    if (!engine) must(ZERO_E_ARGUMENT, "opening the engine");
    return engine;
}

/* The choice is made before the engine takes its memory. On the CPU there is nothing to choose. */
static struct gpt *open_model(const struct bench *b, zero_engine *engine, const struct gpt_config *config,
                              zero_plan *plan) {
    static char choice[GPT_PRODUCTS_BYTES];
    struct gpt *gpt = NULL;
    struct gpt_init init = {.seed = 1, .config = *config, .threads = zero_engine_threads(engine)};
    bool timed = gpt_products_timed(config) && strcmp(b->device, "cuda") == 0;
    must(gpt_create(engine, config, (uint32_t)b->batch, &gpt), "the model");
    if (timed) must(gpt_products_time(gpt, choice), "timing products and attention");
    must(zero_engine_commit(engine, plan), "commit");
    must(gpt_keep_outputs(gpt), "outputs that are kept");
    if (timed) must(gpt_products_use(gpt, choice), "the products");
    must(zero_engine_fill(engine, gpt_fill, &init), "initial weights");
    return gpt;
}

/* Seconds of the step; the loss is read, so the GPU has finished all but the update. */
static double step(zero_engine *engine, struct gpt *gpt, int micro_steps, const int32_t *tokens,
                   double *out_loss) {
    uint64_t start = clock_now_ns();
    for (int i = 0; i < micro_steps; i++) must(gpt_train(gpt, tokens, tokens + 1, out_loss), "a micro-step");
    must(zero_engine_step(engine, NULL), "a step");
    return (double)(clock_now_ns() - start) * 1e-9;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void report(FILE *to, const struct bench *b, const struct gpt_config *config, const zero_plan *plan,
                   const struct gpt *gpt, double seconds, double loss) {
    struct gpt_attention_times attention = {0};
    gpt_attention_times(gpt, &attention);
    double parameters = (double)gpt_parameters(config),
           tokens = b->accumulate * b->batch * b->context / seconds;
    double flops = (6 * parameters + 6 * b->layers * b->context * b->width) * tokens;
    char of_peak[32] = "null";
    if (b->peak > 0) snprintf(of_peak, sizeof of_peak, "%.4f", flops * 1e-12 / b->peak);
    fprintf(
        to,
        "{\"bench\": \"gpt\", \"device\": \"%s\", \"type\": \"%s\", \"stage\": %.0f, \"graphs\": %.0f, "
        "\"products\": \"%s\", \"attention\": \"%s\", \"attention_ms\": [%.4f, %.4f], \"attention_back_ms\": "
        "[%.4f, %.4f], "
        "\"kept_norm_blocks\": %u, \"kept_activation_blocks\": %u, \"accumulate\": %.0f, "
        "\"offload\": \"%s\", \"params\": \"%s\", "
        "\"device_bytes\": %llu, "
        "\"cpu_bytes\": %llu, "
        "\"nvme_bytes\": %llu, \"layers\": %.0f, \"width\": %.0f, \"parameters\": %.0f, "
        "\"batch\": %.0f, \"context\": %.0f, \"step_ms\": %.3f, \"tokens_per_s\": %.1f, \"tflops\": %.2f, "
        "\"of_peak\": %s, \"loss\": %.9g}\n",
        b->device, b->type, b->stage, b->graphs, b->products, b->attention, (double)attention.forward_ms[0],
        (double)attention.forward_ms[1], (double)attention.backward_ms[0], (double)attention.backward_ms[1],
        gpt_kept(gpt, GPT_NORMS), gpt_kept(gpt, GPT_ACTIVATIONS), b->accumulate, b->offload, b->params,
        (unsigned long long)plan->bytes[ZERO_DEVICE], (unsigned long long)plan->bytes[ZERO_CPU],
        (unsigned long long)plan->bytes[ZERO_NVME], b->layers, b->width, parameters, b->batch, b->context,
        seconds * 1e3, tokens, flops * 1e-12, of_peak, loss);
}

int main(int argc, char **argv) {
    static double seconds[STEPS_MAX];
    struct bench b = {.device = "cuda",
                      .type = "bf16",
                      .offload = "none",
                      .params = "none",
                      .swap = "/tmp",
                      .products = "first",
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
                      .warm_up = 5};
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
        .no_graphs = b.graphs == 0,
        .outputs = (enum gpt_outputs)place_of("--keep-outputs", b.outputs, outputs_names),
        .times_products = place_of("--products", b.products, products_names),
        .attention = (enum gpt_attention)place_of("--attention", b.attention, attention_names)};
    if (gpt_config_problem(&config)) {
        fprintf(stderr, "gpt_cuda_bench: %s\n", gpt_config_problem(&config));
        return 2;
    }
    zero_engine *engine = open_engine(&b);
    struct gpt *gpt = open_model(&b, engine, &config, &plan);
    size_t count = (size_t)(b.batch * b.context);
    int32_t *tokens = malloc((count + 1) * sizeof *tokens);
    double loss = 0;
    for (size_t i = 0; i <= count; i++) tokens[i] = (int32_t)(i * 2654435761u % config.vocab);
    for (int i = 0; i < (int)b.warm_up; i++) step(engine, gpt, (int)b.accumulate, tokens, &loss);
    for (int i = 0; i < (int)b.steps; i++) seconds[i] = step(engine, gpt, (int)b.accumulate, tokens, &loss);
    qsort(seconds, (size_t)b.steps, sizeof *seconds, compare);
    report(stdout, &b, &config, &plan, gpt, seconds[(int)b.steps / 2], loss);
    FILE *json = b.json ? fopen(b.json, "a") : NULL;
    if (json) report(json, &b, &config, &plan, gpt, seconds[(int)b.steps / 2], loss), fclose(json);
    if (b.json && !json) perror(b.json);
    gpt_destroy(gpt);
    zero_engine_destroy(engine);
    free(tokens);
    return 0;
}
