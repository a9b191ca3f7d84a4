/* The summary before a run's first step. */
#include <inttypes.h>
#include <stdio.h>

#include "engine/base/numbers/dtype.h"
#include "offload/tier.h"
#include "tools/text/format.h"
#include "tools/text/output.h"
#include "tools/train/trainer.h"

static const char *plural(uint64_t count) { return count == 1 ? "" : "s"; }

static void report_model(const struct gpt_config *model) {
    line_print("model     %s, %s parameters: %u layers, %u wide, %u heads, context %u, vocabulary %u%s",
               gpt_title(model), format_count((double)gpt_parameters(model)).chars, model->layers,
               model->width, model->heads, model->context, model->vocab, model->tied ? ", tied head" : "");
}

static void report_slow(const struct gpt_config *model, const zero_engine *engine) {
    bool on_gpu = zero_engine_cuda(engine, NULL) >= 0;
    const char *slow = on_gpu ? gpt_cuda_slow(model, zero_engine_dtype(engine)) : NULL;
    if (slow) line_print("slow      %s", slow);
}

/* The last blocks' activations are still in memory when their backward begins, so these blocks are not recomputed. */
static void report_recomputation(const struct gpt_config *model, bool in_use) {
    uint32_t segment = model->recompute, recomputed = segment ? (model->layers - 1) / segment * segment : 0;
    if (in_use && segment == 1) recomputed = model->layers; /* where others' use their memory */
    if (recomputed)
        line_print("recompute %u of %u blocks are recomputed in the backward, %u at a time", recomputed,
                   model->layers, segment);
    else if (segment)
        line_print("recompute no block is recomputed: a segment of %u has all %u blocks", segment,
                   model->layers);
}

/* Those that are computed again move more bytes. */
static void report_outputs(const struct gpt_config *model, const struct gpt *gpt, const zero_engine *engine) {
    if (zero_engine_cuda(engine, NULL) < 0) return;
    line_print("outputs   kept for the backward: of norms in %u of %u blocks, of activations in %u",
               gpt_kept(gpt, GPT_NORMS), model->layers, gpt_kept(gpt, GPT_ACTIVATIONS));
    uint32_t attention = gpt_kept(gpt, GPT_ATTENTION), mlp = gpt_kept(gpt, GPT_MLP);
    if (attention || mlp)
        line_print(
            "          attention in %u recomputed blocks, MLPs in %u: their parts are not computed again",
            attention, mlp);
}

/* A run that continues says where instead. */
static void report_weights(const struct job *job) {
    const struct pretrained *p = &job->pretrained;
    if (p->weights)
        line_print("begins    with the weights of %s: %s", p->directory, p->weights->title);
    else
        line_print("begins    with random weights, of seed %" PRIu64 "%s%s%s", job->config.seed,
                   p->directory ? ": " : "", p->directory ? p->directory : "",
                   p->directory ? " has none that are used" : "");
}

static void report_training(const struct job *job, const zero_engine *engine, uint64_t steps) {
    const struct config *config = &job->config;
    uint32_t ranks = zero_engine_size(engine), threads = zero_engine_threads(engine);
    line_print("ranks     %u%s, %u CPU thread%s each", ranks, job->local ? " as threads of one process" : "",
               threads, plural(threads));
    line_print("training  ZeRO stage %" PRIu64 ", %s, %s, %s step%s", config->stage,
               dtype_name((enum dtype)config->compute_dtype), config->optimizer.name,
               format_grouped(steps).chars, plural(steps));
    line_print("batch     %" PRIu64 " samples = %u rank%s x %" PRIu64 " x %" PRIu64
               " micro-step%s, gradients reduced %s",
               config->train_batch, ranks, plural(ranks), config->micro_batch, config->accumulation_steps,
               plural(config->accumulation_steps), accumulations[config->accumulation_mode].when);
}

static void report_data(const struct dataset *data) {
    char measured[64] = "";
    if (dataset_measured(data) < data->held_out_order.samples)
        snprintf(measured, sizeof measured, ", %" PRIu64 " of them measured", dataset_measured(data));
    line_print("data      %s tokens in %s file%s, %s samples, %s%s%s%s%s",
               format_count((double)data->train->tokens).chars, format_grouped(data->train->file_count).chars,
               plural(data->train->file_count), format_grouped(data->train_order.samples).chars,
               data->train_order.shuffled ? "shuffled" : "sequential", data->held_out ? "; held out: " : "",
               data->held_out ? format_grouped(data->held_out_order.samples).chars : "",
               data->held_out ? " samples" : "", measured);
}

static void report_memory(const zero_engine *engine) {
    zero_memory_row row = {.struct_size = sizeof row};
    uint64_t planned = 0, measured = 0;
    line_print("memory    %-7s%-28s%12s%12s", "tier", "per rank", "planned", "measured");
    for (uint32_t i = 0; zero_engine_memory(engine, i, &row) == ZERO_OK; i++) {
        line_print("          %-7s%-28s%12s%12s", tier_table[row.tier]->name, row.name,
                   format_bytes(row.planned).chars, format_bytes(row.measured).chars);
        planned += row.planned, measured += row.measured;
    }
    line_print("          %-7s%-28s%12s%12s", "", "all", format_bytes(planned).chars,
               format_bytes(measured).chars);
}

static void report_owners(const zero_engine *engine) {
    enum { SHOWN = 3 };
    zero_memory_owner owner = {.struct_size = sizeof owner};
    for (uint32_t i = 0; i < SHOWN && zero_engine_memory_owner(engine, i, &owner) == ZERO_OK; i++)
        line_print("%-10s%-7s%-28s%12s  %s%s", i ? "" : "largest", tier_table[owner.tier]->name, owner.what,
                   format_bytes(owner.bytes).chars, owner.unit ? "unit " : "", owner.unit ? owner.unit : "");
}

void report_start(const struct job *job, bool anew, const zero_engine *engine, const struct gpt *gpt,
                  const struct expected *expected, const char *run, uint64_t steps) {
    report_model(&job->model);
    report_slow(&job->model, engine);
    if (anew) report_weights(job);
    report_recomputation(&job->model, zero_engine_use_micros(engine) > 1);
    report_outputs(&job->model, gpt, engine);
    report_training(job, engine, steps);
    if (*expected->source) line_print("peak      %s: MFU is the share of it", expected->source);
    report_data(&job->dataset);
    line_print("run       %s", run);
    report_memory(engine);
    report_owners(engine);
}
