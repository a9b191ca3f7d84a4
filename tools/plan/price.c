#include "tools/plan/price.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* ---- memory ---- */

/* The bytes of a tier that one rank may use. On a GPU the context, the libraries and fragmentation take a part of
 * it. */
static double room(const struct scenario *s, int tier) {
    const struct machine *m = &s->machine;
    double node_ranks = (double)s->ranks / s->nodes;
    if (tier == ZERO_DEVICE)
        return m->device.is_host ? m->device.memory_bytes : 0.95 * m->device.memory_bytes;
    if (tier == ZERO_NVME) return m->drive.name[0] ? m->drive.bytes / node_ranks : 0;
    return m->device.is_host ? m->device.memory_bytes : m->host.memory_bytes / node_ranks;
}

/* On a host, the tiers device and cpu share one memory. */
static void check_room(const struct scenario *s, const struct config *config, struct price *p) {
    double host = s->machine.device.is_host ? (double)p->tier_bytes[ZERO_CPU] : 0;
    p->fits = true;
    for (int t = 0; t < ZERO_TIERS; t++) {
        double need = (double)p->tier_bytes[t] + (t == ZERO_DEVICE ? host : 0);
        double budget = (double)config->budget_bytes[t] - (double)p->tier_bytes[t];
        p->left_bytes[t] = fmin(room(s, t) - need, budget);
        p->short_bytes[t] = p->left_bytes[t] < 0 ? (uint64_t)ceil(-p->left_bytes[t]) : 0;
        p->fits &= !p->short_bytes[t];
    }
}

/* Spare memory for outputs, as a trainer declares it, and the parts that the plan grants. */
struct spares {
    uint32_t count;
    struct gpt_spare spare[GPT_OUTPUT_KINDS];
    uint64_t granted[GPT_OUTPUT_KINDS];
};

/* Without what is granted: keep_outputs adds it. */
static void take_bytes(const struct scenario *s, const struct blueprint *b, const zero_plan *plan,
                       const struct spares *spares, struct price *p) {
    p->parameters = plan->params;
    p->param_bytes = plan->param_bytes;
    p->grad_bytes = plan->grad_bytes;
    p->state_bytes = plan->state_bytes + plan->master_bytes;
    p->gathered_bytes = plan->gathered_bytes;
    p->staging_bytes = plan->staging_bytes;
    for (int t = 0; t < ZERO_TIERS; t++) p->tier_bytes[t] = plan->bytes[t];
    for (uint32_t i = 0; i < spares->count; i++)
        p->tier_bytes[ZERO_DEVICE] -= spares->granted[i] * spares->spare[i].part_bytes;
    check_room(s, b->o.config, p);
}

static struct shapes_recompute recompute_of(const struct scenario *s, const zero_engine *engine,
                                            const struct price *p) {
    uint32_t blocks = p->cell.recompute;
    return (struct shapes_recompute){.blocks = blocks,
                                     .tier = blocks ? s->checkpoints : ZERO_DEVICE,
                                     .micros = (uint32_t)zero_engine_use_micros(engine),
                                     .gpu = !s->machine.device.is_host,
                                     .outputs = s->outputs};
}

static zero_status reserve_spares(const struct scenario *s, zero_engine *engine,
                                  struct shapes_recompute recompute, uint32_t trained, struct spares *out) {
    enum dtype dtype = (enum dtype)zero_engine_dtype(engine);
    bool fitting = recompute.gpu && recompute.outputs == GPT_OUTPUTS_FITTING;
    if (fitting)
        out->count =
            shapes_spares(&s->shapes, dtype, zero_engine_micro_batch(engine), recompute, trained, out->spare);
    for (uint32_t i = 0; i < out->count; i++)
        TRY(zero_engine_reserve_spare(engine, out->spare[i].part_bytes, out->spare[i].parts, "outputs",
                                      &out->granted[i]));
    return ZERO_OK;
}

/* Reserves the activations, as a trainer does before the engine fills budgets with state. */
static zero_status reserve_activations(const struct scenario *s, zero_engine *engine, uint32_t trained,
                                       struct spares *spares, struct price *p) {
    struct shapes_recompute recompute = recompute_of(s, engine, p);
    p->activation_bytes = shapes_activation_bytes(
        &s->shapes, s->machine.device.is_host, (enum dtype)zero_engine_dtype(engine),
        zero_engine_micro_batch(engine), s->threads, recompute, &p->activation_host_bytes);
    zero_status status = zero_engine_reserve(engine, ZERO_DEVICE,
                                             p->activation_bytes - p->activation_host_bytes, "activations");
    if (!status) status = zero_engine_reserve(engine, ZERO_CPU, p->activation_host_bytes, "activations");
    return status ? status : reserve_spares(s, engine, recompute, trained, spares);
}

/* The outputs and parts of blocks that the engine grants, as far as the device has room for them: the engine knows only its
 * budget. */
static void keep_outputs(const struct scenario *s, const struct blueprint *b, const struct spares *spares,
                         struct shapes_recompute *recompute, struct price *p) {
    uint32_t count = p->fits && !s->bytes_alone ? spares->count : 0;
    double room = p->left_bytes[SHORT_DEVICE];
    for (uint32_t i = 0; i < count; i++) {
        const struct gpt_spare *spare = &spares->spare[i];
        double most = floor(room / (double)spare->part_bytes);
        uint64_t granted = spares->granted[i], parts = most < (double)granted ? (uint64_t)most : granted;
        recompute->kept[spare->kind] = (uint32_t)parts;
        room -= (double)parts * (double)spare->part_bytes;
        p->spare_bytes += parts * spare->part_bytes;
    }
    struct pass_segments blocks = shapes_segments(&s->shapes, 0);
    for (uint32_t u = blocks.first; u < blocks.end && count; u++)
        for (int kind = 0; kind < GPT_OUTPUT_KINDS; kind++)
            p->kept[kind] += shapes_keeps(&s->shapes, *recompute, u, (enum gpt_output)kind);
    p->activation_bytes += p->spare_bytes;
    p->tier_bytes[ZERO_DEVICE] += p->spare_bytes;
    check_room(s, b->o.config, p);
}

/* ---- time ---- */

static void conclude(const struct scenario *s, const struct blueprint *b, struct price *p) {
    const struct machine *m = &s->machine;
    double node_ranks = (double)s->ranks / s->nodes, written = (double)p->step.drive_write_bytes * node_ranks;
    enum dtype dtype = b->terms.precision.compute;
    p->bound = RESOURCE_COMPUTE;
    for (int r = 0; r < RESOURCES; r++)
        if (p->step.busy_s[r] > p->step.busy_s[p->bound]) p->bound = (enum resource)r;
    p->tokens = (double)b->o.config->train_batch * (double)s->shapes.context;
    p->tokens_per_s = p->tokens / p->step.seconds;
    p->flops_share = shapes_step_flops(&s->shapes, p->tokens / s->ranks) / p->step.seconds /
                     (m->device.flops[dtype] / m->device.flops_achieved[dtype]);
    p->drive_days = written > 0 ? m->drive.endurance_tbw * 1e12 / written * p->step.seconds / 86400 : NAN;
    p->cost_per_giga = m->device.price_per_hour * s->ranks * 1e9 / p->tokens_per_s / 3600;
}

static zero_status price_step(const struct scenario *s, struct blueprint *b,
                              struct shapes_recompute recompute, struct price *p, struct zero_error *error) {
    struct pass pass;
    struct work_options work = {.shapes = &s->shapes,
                                .machine = &s->machine,
                                .blueprint = b,
                                .batch = b->o.config->micro_batch,
                                .recompute = recompute,
                                .style = s->style};
    TRY(work_pass(&work, &pass, error));
    struct timeline_options o = {.machine = &s->machine,
                                 .blueprint = b,
                                 .nodes = s->nodes,
                                 .pass = &pass,
                                 .checkpoint_bytes =
                                     shapes_checkpoint_bytes(&s->shapes, b->terms.precision.compute,
                                                             b->o.config->micro_batch, recompute),
                                 .stream_bytes = b->o.config->micro_batch * s->shapes.context *
                                                 s->shapes.width * dtype_bytes(b->terms.precision.compute)};
    zero_status status = timeline_step(&o, &p->step, error);
    p->kept_s = (double)pass.kept_ns * 1e-9 * (double)b->o.config->accumulation_steps;
    pass_free(&pass);
    if (!status) conclude(s, b, p);
    return status;
}

/* ---- a cell ---- */

static zero_status refused(struct zero_error *error) {
    return error_set(error, ZERO_E_CONFIG, "%s", zero_last_error());
}

static zero_status check_type(const struct scenario *s, const struct blueprint *b, struct zero_error *error) {
    if (s->machine.device.flops[b->terms.precision.compute] > 0) return ZERO_OK;
    return error_set(error, ZERO_E_UNSUPPORTED,
                     "%s does not multiply %s: choose another type (bf16, fp16) or device",
                     s->machine.device.name, dtype_name(b->terms.precision.compute));
}

/* The GPT that would train refuses the same. */
static zero_status check_rows(const struct scenario *s, const zero_engine *engine, struct zero_error *error) {
    uint64_t batch = zero_engine_micro_batch(engine);
    if (batch <= INT32_MAX / s->shapes.context) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT,
                     "a micro-batch of %" PRIu64 " samples of %" PRIu64
                     " tokens is more than 2147483647 tokens: plan a smaller --micro-batch or --seq",
                     batch, s->shapes.context);
}

static zero_status price_engine(const struct scenario *s, zero_engine *engine, struct price *p,
                                struct zero_error *error) {
    zero_plan plan = {.struct_size = sizeof plan};
    zero_slot unused; /* nothing is gathered */
    struct spares spares = {0};
    uint32_t trained;
    struct shapes_recompute recompute = recompute_of(s, engine, p);
    const char *problem = shapes_problem(&s->shapes, s->machine.device.is_host, recompute);
    if (problem) return error_set(error, ZERO_E_UNSUPPORTED, "%s", problem);
    TRY(check_rows(s, engine, error));
    zero_status status = shapes_declare(&s->shapes, recompute, engine, &unused, &trained);
    if (!status) status = reserve_activations(s, engine, trained, &spares, p);
    if (!status && s->traced)
        status = zero_engine_trace(engine, 1, 1); /* unless the configuration says otherwise */
    if (!status) status = zero_engine_plan(engine, &plan);
    if (status) return refused(error);
    struct blueprint *b = engine_blueprint(engine);
    p->compute = b->terms.precision.compute;
    p->micro_batch = b->o.config->micro_batch;
    TRY(check_type(s, b, error));
    take_bytes(s, b, &plan, &spares, p);
    keep_outputs(s, b, &spares, &recompute, p);
    return (p->fits || s->times_always) && !s->bytes_alone ? price_step(s, b, recompute, p, error) : ZERO_OK;
}

zero_status price_cell(const struct scenario *s, const struct cell *cell, struct price *out,
                       struct zero_error *error) {
    struct price p = {.cell = *cell};
    char *config = edit_cell(s->config, cell, &s->shapes);
    if (!config) return error_set(error, ZERO_E_MEMORY, "no memory for a configuration");
    zero_runtime runtime = {.struct_size = sizeof runtime,
                            .threads = 1,
                            .plan_ranks = s->ranks,
                            .plan_node_ranks = s->ranks / s->nodes,
                            .plan_processes = s->processes || !s->machine.device.is_host,
                            .cuda = !s->machine.device.is_host};
    zero_engine *engine = zero_engine_init_with(config, &runtime);
    free(config);
    if (!engine) return refused(error);
    zero_status status = price_engine(s, engine, &p, error);
    zero_engine_destroy(engine);
    if (!status) *out = p;
    return status;
}
