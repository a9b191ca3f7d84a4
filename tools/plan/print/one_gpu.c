#include "tools/plan/print/one_gpu.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* clang-format off */
static const struct one_gpu_row rows[] = {
    {"gpt-2.6b", "h200", "16-cores", 1024, 4, 1, true, true, 4634, 2.73, 42.4,
     "RESULTS.md, 26 November 2026", "this engine, measured"},
    {"gpt-6.7b", "h200", "16-cores", 1024, 4, 1, true, true, 1681, 4.55, 106.5,
     "RESULTS.md, 26 November 2026", "this engine, measured"},
    {"qwen3-8b", "rtx4090", "desktop-128g", 1024, 64, 1, false, false, 2570, 17.8, 123.5,
     "SlideFormer's README; Megatron-LM-FL 97", "its host is not described"},
    {"qwen2.5-7b", "rtx4090", "desktop-128g", 1024, 4, 128, true, false, 1900, 0, 0,
     "llmq's README at 00ea1be, bf16", "its moments are bf16; its host is not described"},
    {"qwen3-14b", "gh200", "grace", 4096, 4, 1, false, false, 6400, 0, 0,
     "SuperOffload: up to 600 TFLOP/s", "its most, as tokens/s: 6 operations per parameter and token, and those of attention"},
};

static const struct shapes own[] = {
    {"gpt-2.6b", "RESULTS.md", GPT_GPT2, 32, 2560, 40, 40, 1024, 50257, 4 * 2560, true, 64, 0, 0, 0},
    {"gpt-6.7b", "RESULTS.md", GPT_GPT2, 32, 4096, 32, 32, 1024, 50257, 4 * 4096, true, 128, 0, 0, 0},
};
/* clang-format on */

const struct one_gpu_row *one_gpu_at(uint32_t index) {
    return index < sizeof rows / sizeof *rows ? &rows[index] : NULL;
}

static struct shapes shapes_named(const char *name) {
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(own[i].name, name) == 0) return own[i];
    return *shapes_find(name);
}

enum { CONFIG_BYTES = 512 };

/* device_bytes: the budget of the GPU; 0: none. */
static void write_config(char out[CONFIG_BYTES], const struct one_gpu_row *r, double device_bytes) {
    char budget[64] = "";
    if (device_bytes > 0) snprintf(budget, sizeof budget, "\"memory\": {\"device\": %.0f}, ", device_bytes);
    snprintf(out, CONFIG_BYTES,
             "{%s\"train_micro_batch_size_per_gpu\": %" PRIu64 ", \"gradient_accumulation_steps\": %" PRIu64
             ", \"gradient_clipping\": %d, \"bf16\": {\"enabled\": true}, \"activation_checkpointing\": "
             "{\"interval\": 1, \"cpu_checkpointing\": %s}, \"zero_optimization\": {\"stage\": 3, "
             "\"micro_order\": \"vertical\", \"update_in_backward\": %s, \"offload_optimizer\": "
             "{\"masters\": \"%s\"}}}",
             budget, r->micro_batch, r->micro_steps, r->clips, r->near ? "false" : "true",
             r->clips ? "false" : "true", r->near ? "fp32" : "auto");
}

static struct scenario scenario_of(const char *config, const struct shapes *shapes) {
    return (struct scenario){.shapes = *shapes,
                             .config = config,
                             .ranks = 1,
                             .nodes = 1,
                             .threads = 1,
                             .recompute = 1,
                             .checkpoints = ZERO_CPU,
                             .outputs = GPT_OUTPUTS_FITTING};
}

/* Of the GPU's memory, the first units' state has what this budget leaves (offload/README.md). */
#define DEVICE_SHARE 0.95

/* `budget`: bytes of the GPU that state may fill, as far as there are so many; 0: all state is elsewhere. */
static zero_status price_run(const struct one_gpu_row *row, zero_tier tier, double budget, struct price *out,
                             struct zero_error *error) {
    const struct cell cell = {.stage = 3, .optimizer = tier, .params = tier, .recompute = 1};
    const struct hardware_choice choice = {.device = row->device, .host = row->host};
    char config[CONFIG_BYTES];
    struct shapes shapes = shapes_named(row->model);
    shapes.context = row->sequence;
    struct scenario s = scenario_of(config, &shapes);
    s.times_always = true;
    s.checkpoints = row->near ? ZERO_DEVICE : ZERO_CPU;
    /* What is compared with a measurement, or with a row of its own, computes each block again. */
    if (row->near || !row->source) s.outputs = GPT_OUTPUTS_KEPT;
    zero_status status = hardware_machine(NULL, &choice, &s.machine, error);
    write_config(config, row, fmin(budget, DEVICE_SHARE * s.machine.device.memory_bytes));
    return status ? status : price_cell(&s, &cell, out, error);
}

zero_status one_gpu_plan(const struct one_gpu_row *row, struct price *out, struct zero_error *error) {
    return price_run(row, ZERO_CPU, 0, out, error);
}

static const char *gigabytes(double value, char out[16]) {
    snprintf(out, 16, value > 0 ? "%.1f" : "-", value);
    return out;
}

zero_status one_gpu_print(FILE *out, struct zero_error *error) {
    const struct one_gpu_row *row;
    fprintf(out, "\n%-11s%-9s%-13s%9s  %10s%10s%8s  %15s%15s  %s\n", "model", "GPU", "host", "tokens",
            "source's", "ours", "ratio", "GPU, GB; ours", "host, GB; ours", "source; why they differ");
    for (uint32_t i = 0; (row = one_gpu_at(i)); i++) {
        struct price p;
        char device[16], host[16];
        TRY(one_gpu_plan(row, &p, error));
        fprintf(out, "%-11s%-9s%-13s%9.0f  %10.0f%10.0f%8.3f  %8s%7.1f%8s%7.1f  %s; %s\n", row->model,
                row->device, row->host, p.tokens, row->per_s, p.tokens_per_s, p.tokens_per_s / row->per_s,
                gigabytes(row->device_gb, device), (double)(p.tier_bytes[ZERO_DEVICE] - p.spare_bytes) * 1e-9,
                gigabytes(row->host_gb, host), (double)p.tier_bytes[ZERO_CPU] * 1e-9, row->source, row->why);
    }
    fputs("\nOne GPU, parameters and state in host memory. Tokens of a step; tokens per second. SlideFormer: "
          "Yang and Wen 2026, arXiv 2603.16428;\nllmq: Schultheis and Alistarh 2026, arXiv 2512.15306; "
          "SuperOffload: Lian et al. 2025, arXiv 2509.21271. GPU: without the outputs that are kept because "
          "there is room.\n",
          out);
    return ZERO_OK;
}

/* ---- machines ---- */

enum { SIZES = 4, SEQUENCE = 4096 };
static const uint64_t host_gib[SIZES] = {64, 128, 256, 512};

/* With more modules a board has other bandwidth. */
static const struct {
    const char *device, *host[SIZES];
} cards[] = {{"rtx4090", {"desktop", "desktop-128g", "workstation", "workstation"}},
             {"l40s", {"desktop", "desktop-128g", "workstation", "workstation"}},
             {"h100-80g", {"16-cores", "16-cores", "16-cores", "16-cores"}},
             {"h200", {"16-cores", "16-cores", "16-cores", "16-cores"}}};

/* All pairs of tiers of stage 3, with recomputation. */
static const struct space tiers = {
    .state = true, .params = true, .fixed = {.stage = 3, .recompute = 1}, .micros = 1};

static void write_machine_config(char out[CONFIG_BYTES], const struct scenario *s, uint64_t micro_steps) {
    const struct one_gpu_row row = {.micro_batch = 1, .micro_steps = micro_steps, .clips = true};
    write_config(out, &row, DEVICE_SHARE * s->machine.device.memory_bytes);
}

/* The model in its largest one's row, with so many micro-batches of one sequence. */
static zero_status price_of(struct scenario *s, const struct cell *cell, uint64_t micro_steps,
                            struct price *out, struct zero_error *error) {
    char config[CONFIG_BYTES];
    write_machine_config(config, s, micro_steps);
    s->config = config;
    return price_cell(s, cell, out, error);
}

static zero_status machine_of(const struct one_gpu_machine *m, struct machine *out,
                              struct zero_error *error) {
    const struct hardware_choice choice = {
        .device = m->device, .host = m->host, .drive = m->drive ? "nvme-gen4" : "none"};
    zero_status status = hardware_machine(NULL, &choice, out, error);
    out->host.memory_bytes = 0.96 * (double)(m->host_gib << 30); /* the system keeps a part */
    return status;
}

zero_status one_gpu_most(const struct one_gpu_machine *machine, struct one_gpu_most *out,
                         struct zero_error *error) {
    const struct shapes any = {.context = SEQUENCE};
    char config[CONFIG_BYTES];
    struct scenario s = scenario_of(config, &any);
    s.space = &tiers;
    zero_status status = machine_of(machine, &s.machine, error);
    write_machine_config(config, &s, ONE_GPU_LONG);
    if (!status) status = largest_find(&s, LARGEST_LLAMA, &out->largest, error);
    s.shapes = out->largest.shapes;
    const struct cell *cell = &out->largest.fits.cell;
    if (!status) status = price_of(&s, cell, ONE_GPU_SHORT, &out->shorter, error);
    return status ? status : price_of(&s, cell, ONE_GPU_LONG, &out->longer, error);
}

static zero_status print_machine(const struct one_gpu_machine *m, FILE *out, struct zero_error *error) {
    static const char *const bounds[SHORTAGES] = {"GPU", "host", "drive"};
    struct one_gpu_most most;
    TRY(one_gpu_most(m, &most, error));
    fprintf(out, "| %s | %" PRIu64 " | %s | %.1f B | %.0f | %.0f | %.0f %% | %s; %s |\n", m->device,
            m->host_gib, m->drive ? "yes" : "", (double)shapes_parameters(&most.largest.shapes) * 1e-9,
            most.shorter.tokens_per_s, most.longer.tokens_per_s, 100 * most.longer.flops_share,
            bounds[most.largest.binds], resource_name(most.longer.bound));
    fflush(out);
    return ZERO_OK;
}

zero_status one_gpu_pair(const struct one_gpu_machine *m, const char *model, uint64_t sequences, bool clips,
                         struct one_gpu_pair *out, struct zero_error *error) {
    struct one_gpu_row row = {.model = model,
                              .device = m->device,
                              .host = m->host,
                              .sequence = SEQUENCE,
                              .micro_batch = sequences,
                              .micro_steps = 1,
                              .clips = clips};
    zero_status status = price_run(&row, ZERO_CPU, 0, &out->host, error);
    if (!status) status = price_run(&row, ZERO_CPU, ONE_GPU_BUDGET, &out->filled, error);
    row.near = row.clips = true;
    return status ? status : price_run(&row, ZERO_DEVICE, 0, &out->card, error);
}

static zero_status print_pair(const struct one_gpu_machine *m, const char *model, uint64_t sequences,
                              FILE *out, struct zero_error *error) {
    struct one_gpu_pair pair[2];
    for (int clips = 0; clips < 2; clips++)
        TRY(one_gpu_pair(m, model, sequences, clips, &pair[clips], error));
    const struct price *card = &pair[1].card, *clipped = &pair[1].host, *backward = &pair[0].host;
    fprintf(out, "| %s, %s | %s | %" PRIu64 " | %.0f | %.0f, %.2f | %.0f, %.2f | %.2f, %.2f | %.1f, %.1f |\n",
            m->device, m->host, model, sequences * SEQUENCE, card->tokens_per_s, clipped->tokens_per_s,
            clipped->tokens_per_s / card->tokens_per_s, backward->tokens_per_s,
            backward->tokens_per_s / card->tokens_per_s, pair[1].filled.tokens_per_s / card->tokens_per_s,
            pair[0].filled.tokens_per_s / card->tokens_per_s,
            (double)clipped->tier_bytes[ZERO_CPU] / (double)clipped->parameters,
            (double)backward->tier_bytes[ZERO_CPU] / (double)backward->parameters);
    return ZERO_OK;
}

static zero_status print_pairs(FILE *out, struct zero_error *error) {
    static const struct one_gpu_machine machines[] = {{"h200", "16-cores", 0, false},
                                                      {"rtx4090", "desktop-128g", 0, false}};
    static const char *const models[] = {"llama-3.2-3b", "mistral-7b", "llama-3-8b"};
    zero_status status = ZERO_OK;
    fputs(
        "\n| Machine | model | tokens a step | on the card, tokens/s | state in host memory, of the card's | "
        "unclipped, updates in the backward and the forward | both with 32 GiB of the card, if it has them | "
        "host bytes a parameter |\n|---|---|---|---|---|---|---|---|\n",
        out);
    for (int i = 0; i < 2; i++)
        for (int m = 0; m < 3; m++)
            for (uint64_t sequences = 1; sequences <= 16 && !status; sequences *= 4)
                status = print_pair(&machines[i], models[m], sequences, out, error);
    return status;
}

zero_status one_gpu_machines_print(FILE *out, struct zero_error *error) {
    zero_status status = print_pairs(out, error);
    fputs("\n| GPU | host, GiB | drive | largest model | tokens/s, 16 k a step | 65 k | MFU at 65 k | binds: "
          "size; time at 65 k |\n|---|---|---|---|---|---|---|---|\n",
          out);
    for (size_t c = 0; c < sizeof cards / sizeof *cards; c++)
        for (int h = 0; h < SIZES; h++)
            for (int drive = 0; drive < 2 && !status; drive++) {
                const struct one_gpu_machine m = {cards[c].device, cards[c].host[h], host_gib[h], drive};
                status = print_machine(&m, out, error);
            }
    return status;
}
