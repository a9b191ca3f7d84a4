#include "tools/plan/throughput.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "tools/plan/price.h"

#define FOUNDRY "llm-foundry"
#define LLMQ "llmq"
#define TITAN_A100 "torchtitan, A100"
#define TITAN_H100 "torchtitan, H100"

/* The work that a backward recomputes, as parts of its block's forward. torchtitan's "op" keeps the output of every second product
 * and of attention. Of a Llama's products it recomputes those with the weights of keys, of the output and of the MLP's up
 * projection: 0.365 of their arithmetic at 8B, 0.363 at 70B. */
static const struct throughput_style none = {"nothing again; eager", {KERNELS_EAGER, {0, 0, 0}}},
                                     every = {"every block; eager", {KERNELS_EAGER, {1, 1, 1}}},
                                     second = {"every 2nd block; eager", {KERNELS_EAGER, {.5, .5, .5}}},
                                     op = {"selective op; eager", {KERNELS_EAGER, {.365, 0, 1}}},
                                     compiled = {"selective op; compiled", {KERNELS_FUSED, {.365, 0, 1}}},
                                     fused = {"nothing again; fused", {KERNELS_FUSED, {0, 0, 0}}},
                                     passes = {"norms, SwiGLU; fused", {KERNELS_FUSED, {0, 0, 1}}};

/* clang-format off */
static const struct throughput_row rows[] = {
    {"mpt-7b",       "h100-80g",   8, 6,  1, &none,     10643, FOUNDRY,    THROUGHPUT_FIT, 0},
    {"mpt-70b",      "h100-80g",  64, 8,  4, &every,     1039, FOUNDRY,    THROUGHPUT_FIT, 0},
    {"mpt-70b",      "h100-80g",  32, 2, 16, &every,      882, FOUNDRY,    THROUGHPUT_FIT, 0},
    {"mpt-7b",       "a100-80g",   8, 6,  2, &none,      4641, FOUNDRY,    THROUGHPUT_FIT, 0},
    {"mpt-70b",      "a100-80g",  64, 8,  4, &every,      410, FOUNDRY,    THROUGHPUT_FIT, 0},
    {"mpt-70b",      "a100-80g",  32, 2, 16, &every,      373, FOUNDRY,    THROUGHPUT_FIT, 0},
    {"qwen2.5-0.5b", "rtx4090",    1, 8, 64, &fused,    40000, LLMQ,       THROUGHPUT_FIT, 1024},
    {"qwen2.5-1.5b", "rtx4090",    1, 4, 128, &fused,   14000, LLMQ,       THROUGHPUT_FIT, 1024},
    {"qwen2.5-3b",   "rtx4090",    1, 4, 128, &passes,   6200, LLMQ,       THROUGHPUT_MORE, 1024},
    {"qwen2.5-0.5b", "l40s",       1, 16, 32, &fused,   42000, LLMQ,       THROUGHPUT_FIT, 1024},
    {"qwen2.5-1.5b", "l40s",       1, 8, 64, &fused,    17000, LLMQ,       THROUGHPUT_FIT, 1024},
    {"qwen2.5-3b",   "l40s",       1, 4, 128, &fused,    8900, LLMQ,       THROUGHPUT_MORE, 1024},
    {"qwen2.5-7b",   "h100-80g",   1, 4, 128, &fused,   14000, LLMQ,       THROUGHPUT_MORE, 1024},
    {"llama-3-8b",   "a100-80g",  64, 1,  1, &second,    2904, TITAN_A100, THROUGHPUT_CHECK, 0},
    {"llama-3-8b",   "a100-80g",  64, 1,  1, &op,        2973, TITAN_A100, THROUGHPUT_CHECK, 0},
    {"llama-3-70b",  "a100-80g",  64, 1,  1, &every,      331, TITAN_A100, THROUGHPUT_CHECK, 0},
    {"llama-3.1-8b", "h100-96g",   8, 2,  1, &op,        5762, TITAN_H100, THROUGHPUT_CHECK, 0},
    {"llama-3.1-8b", "h100-96g",   8, 2,  1, &compiled,  6667, TITAN_H100, THROUGHPUT_CHECK, 0},
    {"llama-3.1-8b", "h100-96g", 128, 2,  1, &op,        5605, TITAN_H100, THROUGHPUT_CHECK, 0},
    {"llama-3.1-8b", "h100-96g", 128, 2,  1, &compiled,  6514, TITAN_H100, THROUGHPUT_CHECK, 0},
    {"llama-2-13b",  "a100-80g",  64, 2,  1, &none,      2162, TITAN_A100, THROUGHPUT_MORE, 0},
    {"llama-2-13b",  "a100-80g",  64, 2,  1, &second,    1914, TITAN_A100, THROUGHPUT_MORE, 0},
    {"llama-2-13b",  "a100-80g",  64, 2,  1, &op,        1904, TITAN_A100, THROUGHPUT_MORE, 0},
    {"llama-2-70b",  "a100-80g",  64, 1,  1, &op,         355, TITAN_A100, THROUGHPUT_MORE, 0},
    {"llama-2-70b",  "a100-80g",  64, 2,  1, &every,      353, TITAN_A100, THROUGHPUT_MORE, 0},
    {"mpt-7b",       "h100-80g",   8, 64, 2, &every,    10203, FOUNDRY,    THROUGHPUT_MORE, 1024},
    {"mpt-7b",       "h100-80g",   8, 16, 2, &every,     8611, FOUNDRY,    THROUGHPUT_MORE, 4096},
    {"mpt-7b",       "h100-80g",   8, 8,  2, &every,     6935, FOUNDRY,    THROUGHPUT_MORE, 8192},
    {"mpt-7b",       "h100-80g",   8, 2,  2, &every,     3318, FOUNDRY,    THROUGHPUT_MORE, 32768},
    {"mpt-7b",       "a100-80g",   8, 64, 2, &every,     4357, FOUNDRY,    THROUGHPUT_MORE, 1024},
    {"mpt-7b",       "a100-80g",   8, 16, 2, &every,     3684, FOUNDRY,    THROUGHPUT_MORE, 4096},
    {"mpt-7b",       "a100-80g",   8, 8,  2, &every,     3206, FOUNDRY,    THROUGHPUT_MORE, 8192},
    {"mpt-7b",       "a100-80g",   8, 2,  2, &every,     1672, FOUNDRY,    THROUGHPUT_MORE, 32768},
};
/* clang-format on */

const struct throughput_row *throughput_at(uint32_t index) {
    return index < sizeof rows / sizeof *rows ? &rows[index] : NULL;
}

zero_status throughput_plan(const struct throughput_row *row, double *out, struct zero_error *error) {
    static const struct cell cell = {.stage = 3};
    char *general = edit_default(1, DTYPE_BF16),
         *config = general ? edit_batch(general, row->micro_batch, row->micro_steps) : NULL;
    struct scenario s = {.shapes = *shapes_find(row->model),
                         .config = config,
                         .ranks = row->ranks,
                         .threads = 1,
                         .style = &row->style->work,
                         .times_always = true};
    struct hardware_choice choice = {.device = row->device};
    struct price price;
    free(general);
    zero_status status = config ? hardware_machine(NULL, &choice, &s.machine, error)
                                : error_set(error, ZERO_E_MEMORY, "no memory for a configuration");
    s.nodes = row->ranks < 8 ? 1 : row->ranks / 8;
    if (row->sequence) s.shapes.context = row->sequence;
    if (!status) status = price_cell(&s, &cell, &price, error);
    free(config);
    if (!status) *out = price.tokens_per_s / row->ranks;
    return status;
}

static void print_sums(FILE *out, const uint32_t near[THROUGHPUT_USES],
                       const uint32_t count[THROUGHPUT_USES]) {
    fprintf(out,
            "\nTokens per second of a GPU. %u of %u rows are within 15 %%: %u of %u `fit`, by whose mean the "
            "rates of products in\nconfigs/hardware.json were chosen; %u of %u `check` and %u of %u `more`, "
            "by which nothing was. Sources: mosaicml/llm-foundry at "
            "061f2c7,\nscripts/train/benchmarking/README.md; pytorch/torchtitan at 0413364, "
            "docs/performance.md (A100), and at 31a17bf,\nbenchmarks/llama3_h100_202412_torchtitan.md "
            "(H100);\nIST-DASLab/llmq at 00ea1be, README.md, rows in bf16, half a million tokens a step. "
            "Where a source does not name torch.compile, kernels are eager;\nnetworks are those of "
            "configs/hardware.json.\n",
            near[0] + near[1] + near[2], count[0] + count[1] + count[2], near[THROUGHPUT_FIT],
            count[THROUGHPUT_FIT], near[THROUGHPUT_CHECK], count[THROUGHPUT_CHECK], near[THROUGHPUT_MORE],
            count[THROUGHPUT_MORE]);
}

zero_status throughput_print(FILE *out, struct zero_error *error) {
    static const char *const uses[THROUGHPUT_USES] = {"fit", "check", "more"};
    const struct throughput_row *row;
    uint32_t near[THROUGHPUT_USES] = {0}, count[THROUGHPUT_USES] = {0};
    fprintf(out, "\n%-13s%-9s%6s%7s%7s  %-24s%10s%10s%8s  %s\n", "model", "GPU", "ranks", "batch", "tokens",
            "recomputation; kernels", "source's", "ours", "ratio", "source");
    for (uint32_t i = 0; (row = throughput_at(i)); i++) {
        double ours;
        TRY(throughput_plan(row, &ours, error));
        fprintf(out, "%-13s%-9s%6u%4u*%-2u%7" PRIu64 "  %-24s%10.0f%10.0f%8.3f  %s, %s\n", row->model,
                row->device, row->ranks, row->micro_batch, row->micro_steps,
                row->sequence ? row->sequence : shapes_find(row->model)->context, row->style->name,
                row->per_s, ours, ours / row->per_s, row->source, uses[row->use]);
        near[row->use] += fabs(ours / row->per_s - 1) < 0.15;
        count[row->use]++;
    }
    print_sums(out, near, count);
    return ZERO_OK;
}
