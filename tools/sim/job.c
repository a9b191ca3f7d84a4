#include "tools/sim/job.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/config.h"
#include "tools/plan/choice.h"
#include "tools/plan/edit.h"
#include "tools/plan/host_work.h"

/* ---- an engine's plan as a setup ---- */

zero_status sim_model_of(const struct blueprint *b, const uint64_t *unit_flops, struct sim_model *out,
                         struct zero_error *error) {
    const struct model *from = b->o.model;
    struct sim_model m = {.units = from->units, .params = from->params};
    m.unit = calloc(m.units, sizeof *m.unit);
    m.param = calloc(m.params, sizeof *m.param);
    if (!m.unit || !m.param) {
        sim_model_free(&m);
        return error_set(error, ZERO_E_MEMORY, "no memory for a copy of the model");
    }
    for (uint32_t u = 0; u < m.units; u++) {
        strcpy(m.unit[u].name, from->unit[u]->name);
        m.unit[u].flops = unit_flops ? unit_flops[u] : 0;
    }
    for (uint32_t i = 0; i < m.params; i++) {
        const struct model_param *p = &from->param[i];
        bool tied = p->owner != i;
        m.param[i] = (struct sim_param){.tied_to = tied ? from->param[p->owner].name : NULL,
                                        .unit = p->unit,
                                        .flags = p->flags,
                                        .count = p->count,
                                        .columns = p->dims == 2 ? p->shape[1] : 0,
                                        .other = p->other,
                                        .code = p->code};
        strcpy(m.param[i].name, p->name);
    }
    *out = m;
    return ZERO_OK;
}

/* True if the transport's calls need scratch, as its reductions show; that of a discrete device comes on top. */
static bool stages_reductions(const struct blueprint *b) {
    struct executor_shape shape = blueprint_executor_options(b).shape;
    struct terms terms = b->terms;
    terms.discrete = shape.host_updates = false;
    shape.terms = &terms;
    return executor_staging_bytes(&shape) > 0;
}

struct sim_setup sim_setup_of(const struct blueprint *b) {
    const struct config *c = b->o.config;
    struct sim_setup setup = {.terms = b->terms,
                              .persistence_threshold = c->persistence_threshold,
                              .optimizer = b->o.optimizer,
                              .params = {*b->o.params, *b->o.params},
                              .clip = c->gradient_clipping,
                              .staging = stages_reductions(b),
                              .skip_unit = -1,
                              .chaos_events = UINT64_MAX,
                              .timeout_ns = (uint64_t)(c->comm.timeout_s * 1e9)};
    setup.params[1].weight_decay = 0;
    setup.other = b->o.other;
    if (b->o.other) setup.other_params[0] = setup.other_params[1] = b->o.other->defaults;
    return setup;
}

/* ---- the request ---- */

static zero_status find_model(const struct job_choice *c, struct config *config, struct job *job,
                              struct zero_error *error) {
    if (c->units && c->model)
        return error_set(error, ZERO_E_ARGUMENT, "--units and --model are two models: give one of them");
    job->units = (uint32_t)c->units;
    job->params = c->params ? c->params : c->units * 200000000;
    job->tokens = job->micro_batch * (c->seq ? c->seq : 2048);
    if (c->units) return ZERO_OK;
    if (!c->model && !config->model.given)
        return error_set(
            error, ZERO_E_CONFIG,
            "no model: give --units N --params N, --model NAME, or a configuration with a model block");
    return choice_model(c->model, c->seq, config, &job->shapes, error);
}

/* Every rank has the configuration's micro-batch, or 1, so the work grows with the ranks. */
static zero_status take_config(const struct job_choice *c, struct config *config, struct job *job,
                               struct zero_error *error) {
    TRY(config_read(c->config, config, error));
    job->micro_batch = c->micro_batch ? c->micro_batch : config->micro_batch ? config->micro_batch : 1;
    char *given = choice_text(c->config);
    if (given) job->config = edit_batch(given, job->micro_batch, 0);
    free(given);
    return job->config ? ZERO_OK : error_set(error, ZERO_E_MEMORY, "no memory for the configuration");
}

zero_status job_open(const struct job_choice *c, struct job *out, struct zero_error *error) {
    struct config config = {0};
    *out = (struct job){0};
    struct hardware_choice machine = {
        .device = c->gpu, .inside = c->link, .between = c->net, .drive = c->nvme};
    zero_status status = c->gpu || c->hardware ? hardware_machine(c->hardware, &machine, &out->machine, error)
                                               : ZERO_E_ARGUMENT;
    if (status == ZERO_E_ARGUMENT && !c->gpu) { /* the file has no device of its own, or several */
        error_clear(error);
        machine.device = "h100-80g";
        status = hardware_machine(c->hardware, &machine, &out->machine, error);
    }
    if (!status) status = take_config(c, &config, out, error);
    if (!status) status = find_model(c, &config, out, error);
    const char *problem = status || out->units ? NULL
                                               : shapes_problem(&out->shapes, out->machine.device.is_host,
                                                                (struct shapes_recompute){0});
    if (problem) status = error_set(error, ZERO_E_UNSUPPORTED, "%s", problem);
    if (!status) out->recompute = choice_recompute(&config, out->units ? out->units : out->shapes.layers);
    config_free(&config);
    if (status) job_close(out);
    return status;
}

void job_close(struct job *job) {
    free(job->config);
    job->config = NULL;
}

/* ---- placing a job on ranks ---- */

/* The recomputed segments: of the model, as the configuration says, or of all equal units. */
static struct pass_segments segments_of(const struct job *job) {
    if (job->units) return (struct pass_segments){.end = job->units, .blocks = job->recompute};
    return shapes_segments(&job->shapes, job->recompute);
}

static zero_status declare_uniform(const struct job *job, zero_engine *engine, struct zero_error *error) {
    static zero_slot slot; /* no code reads it */
    struct sim_model m;
    zero_status status = sim_model_uniform(job->units, job->params, job->tokens, &m, error);
    if (status) return status;
    struct pass_segments segments = segments_of(job);
    zero_unit **units = calloc(m.units, sizeof *units);
    if (!units) status = ZERO_E_MEMORY;
    for (uint32_t u = 0; u < m.units && !status; u++) {
        status = zero_engine_add_unit(engine, m.unit[u].name, &units[u]);
        for (uint32_t i = 2 * u; i < 2 * u + 2 && !status; i++) {
            zero_param param = {.struct_size = sizeof param,
                                .name = m.param[i].name,
                                .dims = 1,
                                .shape = {m.param[i].count},
                                .slot = &slot};
            status = zero_unit_add_param(units[u], &param);
        }
    }
    for (uint32_t u = 0, first; u < m.units && !status && job->recompute > 1; u++)
        if (pass_segment(&segments, u, &first)) status = zero_engine_add_segment(units[first], units[u]);
    free(units);
    sim_model_free(&m);
    return status ? error_set(error, status, "%s", zero_last_error()) : ZERO_OK;
}

/* Writes the model's width into the configuration, because thresholds depend on it. */
static char *config_text(const struct job *job, uint32_t ranks, struct zero_error *error) {
    struct config config = {0};
    char *text = NULL;
    if (job->units) return strdup(job->config);
    zero_status status = config_read(job->config, &config, error);
    if (!status) status = config_resolve(&config, ranks, error);
    struct cell cell = {.stage = (uint32_t)config.stage,
                        .optimizer = (zero_tier)config.optimizer_tier,
                        .params = (zero_tier)config.param_tier};
    if (!status) text = edit_cell(job->config, &cell, &job->shapes);
    config_free(&config);
    return text;
}

static zero_status declare(const struct job *job, zero_engine *engine, struct zero_error *error) {
    if (job->units) return declare_uniform(job, engine, error);
    static zero_slot unused; /* no parameter is ever gathered */
    zero_status status = shapes_declare(&job->shapes, (struct shapes_recompute){.blocks = job->recompute},
                                        engine, &unused, NULL);
    return status ? error_set(error, status, "%s", zero_last_error()) : ZERO_OK;
}

static zero_status plan_engine(const struct job *job, uint32_t ranks, zero_engine **out,
                               struct zero_error *error) {
    char *text = config_text(job, ranks, error);
    if (!text)
        return error->code ? error->code : error_set(error, ZERO_E_MEMORY, "no memory for the configuration");
    uint32_t node_ranks = ranks < job->machine.node_ranks ? ranks : job->machine.node_ranks;
    zero_runtime runtime = {.struct_size = sizeof runtime,
                            .threads = 1,
                            .plan_ranks = ranks,
                            .plan_node_ranks = node_ranks,
                            .plan_processes = !job->machine.device.is_host,
                            .cuda = !job->machine.device.is_host};
    zero_engine *engine = zero_engine_init_with(text, &runtime);
    free(text);
    if (!engine) return error_set(error, ZERO_E_CONFIG, "%s", zero_last_error());
    *out = engine;
    zero_status status = declare(job, engine, error);
    if (!status && zero_engine_plan(engine, NULL))
        status = error_set(error, ZERO_E_CONFIG, "%s", zero_last_error());
    return status;
}

/* The work of equal units: 2 operations per parameter and token, twice as many in a backward. */
static zero_status uniform_work(const struct job *job, const struct blueprint *b, struct pass_work *work) {
    double flops = 2 * (double)(job->params / job->units) * (double)job->tokens;
    uint64_t ns = (uint64_t)llround(flops / job->machine.device.flops[b->terms.precision.compute] * 1e9);
    for (uint32_t u = 0; u < job->units; u++) work[u] = (struct pass_work){ns, 2 * ns, ns, true, 0};
    return ZERO_OK;
}

static zero_status find_work(const struct job *job, const struct blueprint *b, struct pass_work **out,
                             struct zero_error *error) {
    struct work_options o = {
        .shapes = &job->shapes, .machine = &job->machine, .blueprint = b, .batch = job->micro_batch};
    *out = calloc(b->o.model->units, sizeof **out);
    if (!*out) return error_set(error, ZERO_E_MEMORY, "no memory for the work of units");
    if (job->units) return uniform_work(job, b, *out);
    for (uint32_t u = 0; u < b->o.model->units; u++) (*out)[u] = work_of_unit(&o, u);
    return ZERO_OK;
}

static zero_status check_place(const struct job *job, const struct blueprint *b, uint32_t ranks,
                               uint32_t shards, struct zero_error *error) {
    const struct machine *m = &job->machine;
    bool drive = b->o.config->optimizer_tier == TIER_NVME || b->o.config->param_tier == TIER_NVME;
    if (shards && ranks % shards)
        return error_set(error, ZERO_E_ARGUMENT, "--shard %" PRIu32 " does not divide %" PRIu32 " ranks",
                         shards, ranks);
    if (shards && b->policy.stage->reshard == RESHARD_GROUP)
        return error_set(error, ZERO_E_ARGUMENT,
                         "--shard %" PRIu32
                         " contradicts the configuration's zero_hpz_partition_size: remove one of them",
                         shards);
    if (!(m->device.flops[b->terms.precision.compute] > 0))
        return error_set(error, ZERO_E_UNSUPPORTED, "%s does not multiply %s: choose another type or device",
                         m->device.name, dtype_name(b->terms.precision.compute));
    if (drive && !m->drive.name[0])
        return error_set(error, ZERO_E_ARGUMENT, "%s has no drive to offload to: give --nvme SPEED",
                         m->device.name);
    if (ranks > m->node_ranks && !m->between.name[0])
        return error_set(error, ZERO_E_ARGUMENT,
                         "%" PRIu32 " ranks need a network, and %s has none: give --net SPEED", ranks,
                         m->device.name);
    return ZERO_OK;
}

zero_status job_place(const struct job *job, uint32_t ranks, uint32_t shards, struct job_ranks *out,
                      struct zero_error *error) {
    struct job_ranks r = {0};
    zero_status status = plan_engine(job, ranks, &r.engine, error);
    struct blueprint *b = NULL;
    if (!status) b = engine_blueprint(r.engine), status = check_place(job, b, ranks, shards, error);
    if (!status) r.setup = sim_setup_of(b);
    if (!status) status = sim_model_of(b, NULL, &r.model, error);
    if (!status) status = find_work(job, b, &r.work, error);
    if (status) {
        job_release(&r);
        return status;
    }
    uint32_t node_ranks = ranks < job->machine.node_ranks ? ranks : job->machine.node_ranks;
    if (shards) r.setup.terms.mesh[AXIS_SHARD] = shards, r.setup.terms.mesh[AXIS_REPLICATE] = ranks / shards;
    r.setup.speeds = machine_speeds(&job->machine, node_ranks, b->terms.precision.compute);
    r.setup.speeds.node_ranks = job->machine.node_ranks;
    r.setup.levels = !job->machine.device.is_host;
    r.setup.segments = segments_of(job);
    r.setup.segments.in_use = work_recomputes_in_use(b, job->recompute);
    r.setup.work = r.work;
    uint64_t sequence = job->units ? job->tokens / job->micro_batch : job->shapes.context;
    r.tokens = (double)b->o.config->train_batch * (double)sequence;
    r.parameters = b->o.model->param_elements;
    *out = r;
    out->setup.model = &out->model;
    return ZERO_OK;
}

void job_release(struct job_ranks *r) {
    sim_model_free(&r->model);
    free(r->work);
    zero_engine_destroy(r->engine);
    r->engine = NULL;
}
