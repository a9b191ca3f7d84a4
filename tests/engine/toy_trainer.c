#include "tests/engine/toy_trainer.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/device/discrete.h"
#include "tests/engine/toy_number.h"
#include "tests/seeds.h"

/* After a failure an engine keeps the handles of memory that a peer may still read (zero_engine_destroy). */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:memory_open\nleak:host_open\n"; }

#define NVME "{\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}"
const struct toy_tiers toy_tiers[TOY_TIERS] = {
    {"device", "\"offload_optimizer\": {\"device\": \"none\"}", 0},
    {"cpu", "\"offload_optimizer\": {\"device\": \"cpu\"}", 0},
    {"nvme", "\"offload_optimizer\": " NVME, 0},
    {"all on nvme", "\"offload_param\": " NVME ", \"offload_optimizer\": " NVME, 3},
};

struct toy_setup toy_setup_default(void) {
    return (struct toy_setup){.ranks = 2,
                              .micro_steps = 1,
                              .depth = 1,
                              .steps = seeds_divisor() > 1 ? 5 : 10,
                              .threshold = 10,
                              .mode = "auto",
                              .offload = "none",
                              .clip = 0.05,
                              .timeout_s = 20,
                              .scale_power = 16,
                              .scale_window = 1000,
                              .nan_step = -1,
                              .skip_unit = -1};
}

static const char *precision_keys(const struct toy_setup *s, char out[256]) {
    static const char *const blocks[] = {[ZERO_F32] = "", [ZERO_BF16] = ", \"bf16\": {\"enabled\": true}"};
    int length = s->compute != ZERO_F16
                     ? snprintf(out, 256, "%s", blocks[s->compute])
                     : snprintf(out, 256,
                                ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": %u, "
                                "\"loss_scale_window\": %u}",
                                s->scale_power, s->scale_window);
    if (s->communication)
        snprintf(out + length, (size_t)(256 - length), ", \"communication_data_type\": \"%s\"",
                 s->communication);
    return out;
}

#define VECTORS                                                                                              \
    "{\"match\": [\"*.b\", \"*.g\", \"out.c\"], \"lr\": 0.02, \"weight_decay\": 0.1, \"optimizer\": "
#define ADAMW_GROUP VECTORS "\"AdamW\", \"betas\": [0.9, 0.95]}"
#define LAMB_GROUP VECTORS "\"Lamb\"}"

int toy_config(const struct toy_setup *s, char *out, size_t capacity) {
    char keys[256];
    if (s->config) return snprintf(out, capacity, "%s", s->config);
    const char *optimizer = s->optimizer
                                ? s->optimizer
                                : "{\"type\": \"AdamW\", \"params\": {\"lr\": 0.02, \"betas\": [0.9, 0.95], "
                                  "\"weight_decay\": 0.1}}";
    if (s->lamb) optimizer = "{\"type\": \"Lamb\", \"params\": {\"lr\": 0.02, \"weight_decay\": 0.1}}";
    if (s->muon) optimizer = "{\"type\": \"Muon\", \"params\": {\"lr\": 0.05, \"weight_decay\": 0.1}}";
    char groups[512] = "";
    bool two = s->muon || s->lamb == 2;
    if (two || s->groups)
        snprintf(groups, sizeof groups, ", \"param_groups\": [%s%s%s]",
                 s->groups ? s->groups + 2 : "", /* without the first comma */
                 two && s->groups ? ", " : "",
                 !two                 ? ""
                 : s->muon && s->lamb ? LAMB_GROUP
                                      : ADAMW_GROUP);
    char offload[64], updates[100] = "";
    if (s->updates)
        snprintf(updates, sizeof updates, ", \"update_in_backward\": true, \"update_in_forward\": %g",
                 s->waits);
    snprintf(offload, sizeof offload, "\"offload_optimizer\": {\"device\": \"%s\"}", s->offload);
    return snprintf(out, capacity,
                    "{\"train_micro_batch_size_per_gpu\": 3, \"gradient_accumulation_steps\": %u, "
                    "\"gradient_clipping\": %g, \"gradient_accumulation_mode\": \"%s\", \"optimizer\": %s, "
                    "\"zero_optimization\": {\"stage\": %u, \"stage3_param_persistence_threshold\": %u, "
                    "%s%s%s}, "
                    "\"comm\": {\"prefetch_depth\": %u, \"timeout_s\": %g%s}, \"threads\": 1%s%s%s%s}",
                    s->micro_steps, s->clip, s->mode, optimizer, s->stage, s->threshold,
                    s->tiers ? s->tiers : offload, s->vertical ? ", \"micro_order\": \"vertical\"" : "",
                    updates, s->depth, s->timeout_s, s->comm ? s->comm : "", precision_keys(s, keys), groups,
                    s->shadow ? ", \"nvme\": {\"shadow\": true}" : "", s->extra ? s->extra : "");
}

static int lends(const struct toy_setup *s) { return s->memory == TOY_SPANS || s->memory == TOY_SPANS_ADD; }
static int gives(const struct toy_setup *s) { return s->memory == TOY_GIVEN || s->memory == TOY_UNIT_GIVEN; }
static int adds(const struct toy_setup *s) { return s->memory == TOY_ADDS || s->memory == TOY_SPANS_ADD; }

enum { MICROS_MAX = 4 };

struct rank {
    zero_engine *engine;
    const struct toy_setup *setup;
    struct toy_result *out;
    zero_unit *unit[TOY_UNITS];
    zero_slot slot[TOY_PARAMS];
    zero_handle *handle[TOY_PARAMS];
    struct toy_pass pass;                /* of the micro-batch in use */
    struct toy_pass waiting[MICROS_MAX]; /* of all micro-batches of a use, if there are several */
    uint32_t micros;                     /* of a use */
    bool spoils;                         /* the first micro-step's gradient is NaN */
    double loss;                         /* of the pass */
    uint32_t lent[2];          /* 1 + the units whose gradients the engine may still read, the last first */
    float *second[TOY_PARAMS]; /* the other address of the gradient */
    float own[TOY_PARAMS][TOY_VOCAB * TOY_WIDTH], own_grad[TOY_PARAMS][TOY_VOCAB * TOY_WIDTH];
    float wide[TOY_PARAMS][TOY_VOCAB * TOY_WIDTH], wide_grad[TOY_PARAMS][TOY_VOCAB * TOY_WIDTH];
    float near[TOY_PARAMS][TOY_VOCAB * TOY_WIDTH],
        near_grad[TOY_PARAMS][TOY_VOCAB * TOY_WIDTH]; /* of a device's */
};

/* ---- on a device ---- */

static uint64_t param_bytes(const struct rank *r, uint32_t i) {
    return (uint64_t)toy_params[i].rows * toy_params[i].columns *
           (zero_param_dtype(r->handle[i]) == ZERO_F32 ? 4 : 2);
}

/* Queued on the host's stream, as kernels are; `wait`: also done. */
static void queue_copy(struct rank *r, void *target, const void *source, uint64_t bytes, int wait) {
    struct device *device = engine_running(r->engine)->device;
    struct zero_error error;
    uint64_t ticket;
    bool done = false;
    error_clear(&error);
    fair_lock_take(&engine_running(r->engine)->ranks->lock);
    device->ops->copy(device, DEVICE_COMPUTE, target, source, bytes, &ticket, &error);
    fair_lock_give(&engine_running(r->engine)->ranks->lock);
    while (wait && !done && !error.code) {
        fair_lock_take(&engine_running(r->engine)->ranks->lock);
        device->ops->test(device, ticket, &done, &error);
        fair_lock_give(&engine_running(r->engine)->ranks->lock);
        if (!done) sched_yield();
    }
    CHECK_STRING(error.message, "");
}

/* Waits until all queued work is done: the host's own arrays then have their values, and may be written. */
static void catch_up(struct rank *r) { queue_copy(r, NULL, NULL, 0, 1); }

static struct toy_arrays brought(struct rank *r, const struct toy_arrays *there) {
    struct toy_arrays a = *there;
    catch_up(r);
    for (uint32_t i = 0; i < TOY_PARAMS && !lends(r->setup); i++) {
        if (there->param[i])
            queue_copy(r, r->near[i], there->param[i], param_bytes(r, i), 1), a.param[i] = r->near[i];
        if (!there->grad[i] || there->grad[i] == r->own_grad[i]) continue;
        a.grad[i] = r->near_grad[i];
        if (a.add[i]) queue_copy(r, a.grad[i], there->grad[i], param_bytes(r, i), 1);
    }
    return a;
}

/* Nobody waits: end notes what is queued. */
static void sent(struct rank *r, uint32_t unit, const struct toy_arrays *there) {
    for (uint32_t i = 0; i < TOY_PARAMS; i++)
        if (!strcmp(toy_params[i].unit, toy_units[unit]) && there->grad[i] &&
            there->grad[i] != r->own_grad[i])
            queue_copy(r, there->grad[i], r->near_grad[i], param_bytes(r, i), 0);
}

static void spoil_gradient(struct rank *r) {
    if (!engine_running(r->engine)->discrete) {
        toy_store(zero_param_dtype(r->handle[1]), r->slot[1].grad, 0, NAN);
        return;
    }
    catch_up(r);
    toy_store(zero_param_dtype(r->handle[1]), r->near_grad[1], 0, NAN);
    queue_copy(r, r->slot[1].grad, r->near_grad[1], param_bytes(r, 1), 0);
}

/* ---- the model ---- */

/* The first unit of the segment that ends with `unit`; 0: none does. Units 1 ... TOY_BLOCKS are blocks. */
static uint32_t segment_of(const struct toy_setup *s, uint32_t unit) {
    if (!s->recompute || unit < 1 || unit > TOY_BLOCKS) return 0;
    if (unit % s->recompute && unit != TOY_BLOCKS) return 0;
    return (unit - 1) / s->recompute * s->recompute + 1;
}

const char *toy_tied_to(const struct toy_setup *s, uint32_t param) {
    return (s->vertical && !s->ties) || s->untied ? NULL : toy_params[param].tied_to;
}

zero_dtype toy_dtype(const struct toy_setup *s, uint32_t param, zero_dtype run) {
    uint32_t owner = toy_tied_to(s, param) ? 0 : param;
    return s->kept >> owner & 1 ? ZERO_F32 : run;
}

/* A tied parameter's flags are its owner's. */
static uint32_t flags_of(const struct toy_setup *s, uint32_t param) {
    if (toy_tied_to(s, param)) return 0;
    return toy_params[param].flags | (adds(s) ? ZERO_ADDS_GRAD : 0) |
           (s->memory == TOY_UNIT_GIVEN ? ZERO_GIVES_GRAD : 0) |
           (s->kept >> param & 1 && !s->kept_by_pattern ? ZERO_KEEP_FP32 : 0);
}

static zero_status declare(struct rank *r) {
    zero_status status = ZERO_OK;
    for (uint32_t u = 0; u < TOY_UNITS && !status; u++) {
        status = zero_engine_add_unit(r->engine, toy_units[u], &r->unit[u]);
        for (uint32_t i = 0; i < TOY_PARAMS && !status; i++) {
            const struct toy_param *p = &toy_params[i];
            if (strcmp(p->unit, toy_units[u])) continue;
            zero_param param = {.struct_size = sizeof param,
                                .name = p->name,
                                .dims = 2,
                                .flags = flags_of(r->setup, i),
                                .shape = {p->rows, p->columns},
                                .tied_to = toy_tied_to(r->setup, i),
                                .slot = &r->slot[i]};
            uint64_t count = (uint64_t)p->rows * p->columns;
            zero_dtype type = toy_dtype(r->setup, i, zero_engine_dtype(r->engine));
            uint64_t half = count / 2 * (type == ZERO_F32 ? 4 : 2); /* bytes */
            zero_span spans[2] = {
                {r->own[i], r->own_grad[i], count / 2},
                {(char *)r->own[i] + half, (char *)r->own_grad[i] + half, count - count / 2}};
            if (lends(r->setup)) param.spans = spans, param.span_count = 2, param.slot = NULL;
            if (r->setup->declare) status = r->setup->declare(r->engine, i, &param);
            if (!status) status = zero_unit_add_param(r->unit[u], &param);
            if (!status) r->handle[i] = zero_engine_param(r->engine, p->name);
            if (!status) CHECK_INT(zero_param_dtype(r->handle[i]), type);
        }
    }
    if (!status && r->setup->free_order)
        status = r->setup->bound ? zero_engine_free_order_within(r->engine, r->setup->bound)
                                 : zero_engine_free_order(r->engine);
    for (uint32_t u = 0; u < TOY_UNITS && !status; u++)
        if (r->setup->hold >> u & 1) status = zero_unit_hold(r->unit[u]);
    for (uint32_t u = 0; u < TOY_UNITS && !status; u++)
        if (r->setup->recompute > 1 && segment_of(r->setup, u))
            status = zero_engine_add_segment(r->unit[segment_of(r->setup, u)], r->unit[u]);
    return status;
}

/* The slot in use has the addresses that were known since commit. */
static void check_addresses(struct rank *r, uint32_t i) {
    zero_slot always;
    float *grad = r->slot[i].grad;
    if (!CHECK_INT(zero_param_addresses(r->handle[i], &always), ZERO_OK)) return;
    CHECK(!r->slot[i].grad || !adds(r->setup) || r->slot[i].add);
    CHECK(r->slot[i].param == always.param);
    if (grad && grad != always.grad && r->micros > 1 && !r->second[i]) r->second[i] = grad;
    CHECK(!grad || grad == always.grad || grad == r->second[i]);
}

static struct toy_arrays arrays(struct rank *r) {
    struct toy_arrays a;
    for (uint32_t i = 0; i < TOY_PARAMS; i++) {
        if (r->slot[i].param) check_addresses(r, i);
        bool lent = lends(r->setup), own = lent || gives(r->setup);
        a.param[i] = lent ? r->own[i] : r->slot[i].param;
        a.grad[i] = own || !r->slot[i].grad ? r->own_grad[i] : r->slot[i].grad; /* NULL: no code reads it */
        a.add[i] = own ? adds(r->setup) : r->slot[i].add;
    }
    return a;
}

/* The toy computes in fp32: narrow weights are widened for it ... */
static struct toy_arrays widened(struct rank *r, const struct toy_arrays *narrow) {
    struct toy_arrays a = {0};
    for (uint32_t i = 0; i < TOY_PARAMS; i++) {
        a.param[i] = r->wide[i], a.grad[i] = r->wide_grad[i];
        for (uint32_t k = 0; k < toy_params[i].rows * toy_params[i].columns && narrow->param[i]; k++)
            r->wide[i][k] = toy_load(zero_param_dtype(r->handle[i]), narrow->param[i], k);
    }
    return a;
}

/* ... and its gradients, scaled and rounded, are written or added in the narrow type. */
static void narrow_gradients(struct rank *r, uint32_t unit, const struct toy_arrays *narrow) {
    float scale = zero_engine_loss_scale(r->engine);
    for (uint32_t i = 0; i < TOY_PARAMS; i++) {
        zero_dtype dtype = zero_param_dtype(r->handle[i]);
        if (strcmp(toy_params[i].unit, toy_units[unit]) || toy_params[i].flags & ZERO_FROZEN) continue;
        for (uint32_t k = 0; k < toy_params[i].rows * toy_params[i].columns; k++) {
            float g = toy_round(dtype, r->wide_grad[i][k] * scale);
            toy_store(dtype, narrow->grad[i], k,
                      narrow->add[i] ? toy_load(dtype, narrow->grad[i], k) + g : g);
        }
    }
}

/* What a use does with each micro-batch, from `micro` on. */
typedef zero_status (*compute_fn)(struct rank *r, uint32_t unit, uint32_t micro);

static zero_status each_micro(struct rank *r, uint32_t unit, uint32_t micro, uint32_t count,
                              compute_fn compute) {
    zero_status status = ZERO_OK;
    for (uint32_t m = 0; m < count && !status; m++) {
        if (m) status = zero_unit_next_micro(r->unit[unit]);
        if (status) break;
        if (count > 1) r->pass = r->waiting[m];
        status = compute(r, unit, micro + m);
        if (count > 1) r->waiting[m] = r->pass;
    }
    return status;
}

static int held(const struct toy_setup *s, uint32_t unit) { return unit < TOY_UNITS && s->hold >> unit & 1; }

static double forward(struct rank *r, uint32_t unit) {
    if (held(r->setup, unit - 1)) forward(r, unit - 1); /* in the use of the unit behind it */
    struct toy_arrays a = arrays(r);
    if (engine_running(r->engine)->discrete) a = brought(r, &a);
    if (zero_engine_dtype(r->engine) != ZERO_F32) a = widened(r, &a);
    return toy_forward(&r->pass, unit, &a);
}

static void backward(struct rank *r, uint32_t unit) {
    if (held(r->setup, unit + 1)) backward(r, unit + 1); /* in the use of the unit before it */
    struct toy_arrays there = arrays(r), a = engine_running(r->engine)->discrete ? brought(r, &there) : there,
                      wide = a;
    bool narrow = zero_engine_dtype(r->engine) != ZERO_F32;
    if (narrow) wide = widened(r, &a);
    toy_backward(&r->pass, unit, &wide);
    if (narrow) narrow_gradients(r, unit, &a);
    if (engine_running(r->engine)->discrete) sent(r, unit, &there);
}

/* A backward has begun: memory that was given before the last unit's is the host's again. */
static void take_back(struct rank *r, uint32_t unit) {
    if (!r->lent[1] || !zero_unit_reads_given(r->unit[unit])) return;
    if (engine_running(r->engine)->discrete) catch_up(r);
    for (uint32_t i = 0; i < TOY_PARAMS; i++)
        if (!strcmp(toy_params[i].unit, toy_units[r->lent[1] - 1]))
            memset(r->own_grad[i], 0xff, sizeof r->own_grad[i]);
}

/* Gradients that were computed elsewhere reach the engine. */
static zero_status give(struct rank *r, uint32_t unit) {
    zero_status status = ZERO_OK;
    const void *grads[TOY_PARAMS];
    uint32_t count = 0;
    for (uint32_t i = 0; i < TOY_PARAMS && !status && gives(r->setup); i++) {
        if (strcmp(toy_params[i].unit, toy_units[unit])) continue;
        bool frozen = toy_params[i].flags & ZERO_FROZEN;
        grads[count++] = frozen ? NULL : r->own_grad[i];
        if (r->setup->memory == TOY_GIVEN && !frozen)
            status = zero_param_give_grad(r->handle[i], r->own_grad[i]);
    }
    if (r->setup->memory != TOY_UNIT_GIVEN) return status;
    if (zero_unit_reads_given(r->unit[unit])) r->lent[1] = r->lent[0], r->lent[0] = 1 + unit;
    return zero_unit_give_grads(r->unit[unit], grads);
}

static int skipped(const struct toy_setup *s, uint32_t micro, uint32_t unit) {
    return micro == s->skip_micro && (int)unit == s->skip_unit;
}

static void skip(struct rank *r, uint32_t unit) {
    memcpy(r->pass.h[unit], r->pass.h[unit - 1], sizeof r->pass.h[unit]);
}

/* After the forward: drops all activations of blocks except the segments' inputs and the last block's output. */
static void drop_activations(struct toy_pass *p, const struct toy_setup *s) {
    memset(p->z, 0xff, sizeof p->z);
    for (uint32_t unit = 1; unit < TOY_BLOCKS; unit++)
        if (!segment_of(s, unit)) memset(p->h[unit], 0xff, sizeof p->h[unit]);
}

static zero_status forward_again(struct rank *r, uint32_t unit, uint32_t micro) {
    forward(r, unit);
    return ZERO_OK;
}

static zero_status recompute(struct rank *r, uint32_t micro, uint32_t last) {
    zero_status status = ZERO_OK;
    uint32_t u = segment_of(r->setup, last);
    for (; u && u <= last && !status; u++) {
        if (skipped(r->setup, micro, u)) {
            skip(r, u);
            continue;
        }
        status = zero_forward_begin(r->unit[u]);
        if (!status) status = each_micro(r, u, micro, r->micros, forward_again);
        if (!status) status = zero_forward_end(r->unit[u]);
    }
    return status;
}

static zero_status one_pass(struct rank *r, uint32_t micro, zero_mode mode, double *loss);

/* In free order: the first units once more, in reverse. What they compute is what they computed before. */
static zero_status look_back(struct rank *r) {
    zero_status status = ZERO_OK;
    struct toy_pass kept = r->pass;
    for (uint32_t u = TOY_UNITS / 2; u-- > 0 && !status;) {
        if (held(r->setup, u)) continue;
        status = zero_forward_begin(r->unit[u]);
        if (!status) forward(r, u);
        if (!status) status = zero_forward_end(r->unit[u]);
    }
    r->pass = kept;
    return status;
}

/* An evaluation, which leaves the activations of the training pass alone. */
static zero_status evaluate_between(struct rank *r, uint32_t micro) {
    struct toy_pass kept = r->pass;
    double ignored;
    zero_status status = one_pass(r, micro, ZERO_EVAL, &ignored);
    r->pass = kept;
    return status ? status : zero_micro_resume(r->engine);
}

static zero_status backward_one(struct rank *r, uint32_t unit, uint32_t micro) {
    backward(r, unit);
    zero_status status = give(r, unit);
    if (!status && r->spoils && unit == 0 && micro == 0) spoil_gradient(r);
    return status;
}

static zero_status backwards(struct rank *r, uint32_t micro) {
    zero_status status = ZERO_OK;
    for (uint32_t u = TOY_UNITS; u-- > 0 && !status;) {
        int inside = r->setup->free_order; /* of the backward */
        if (!inside) status = recompute(r, micro, u);
        if (status || skipped(r->setup, micro, u) || held(r->setup, u)) continue;
        status = zero_backward_begin(r->unit[u]);
        if (!status) take_back(r, u);
        if (!status && inside) status = recompute(r, micro, u);
        if (!status) status = each_micro(r, u, micro, r->micros, backward_one);
        if (!status) status = zero_backward_end(r->unit[u]);
    }
    return status;
}

static zero_status forward_one(struct rank *r, uint32_t unit, uint32_t micro) {
    r->loss += forward(r, unit);
    return ZERO_OK;
}

/* An evaluation has one micro-batch. */
static zero_status one_pass(struct rank *r, uint32_t micro, zero_mode mode, double *loss) {
    zero_status status = zero_micro_begin(r->engine, mode);
    r->loss = 0;
    for (uint32_t u = 0; u < TOY_UNITS && !status; u++) {
        if (held(r->setup, u)) continue;
        if (skipped(r->setup, micro, u)) {
            skip(r, u);
            continue;
        }
        status = zero_forward_begin(r->unit[u]);
        if (!status) status = each_micro(r, u, micro, mode == ZERO_EVAL ? 1 : r->micros, forward_one);
        if (!status) status = zero_forward_end(r->unit[u]);
        if (!status && r->setup->free_order && u == TOY_UNITS / 2) status = look_back(r);
    }
    *loss = r->loss;
    if (mode == ZERO_EVAL) return status;
    double ranks = 1;
    if (!status) status = zero_engine_sum(r->engine, &ranks, 1); /* a loss is summed here, say */
    if (!status && r->setup->interrupt) status = evaluate_between(r, micro);
    if (r->setup->recompute) drop_activations(&r->pass, r->setup);
    for (uint32_t m = 0; r->setup->recompute && m < r->micros; m++)
        drop_activations(&r->waiting[m], r->setup);
    for (int i = 0; i <= r->setup->twice && !status; i++) status = backwards(r, micro);
    return status;
}

/* ---- passes that are cancelled ---- */

/* `uses` of a training pass, and no more; `inside`: the last one is not ended. */
static zero_status some_uses(struct rank *r, uint32_t uses, int inside) {
    zero_status status = zero_micro_begin(r->engine, ZERO_TRAIN);
    for (uint32_t i = 0; i < uses && !status; i++) {
        int is_forward = i < TOY_UNITS, ends = !inside || i + 1 < uses;
        uint32_t u = is_forward ? i : 2 * TOY_UNITS - 1 - i;
        if (held(r->setup, u)) continue;
        status = is_forward ? zero_forward_begin(r->unit[u]) : zero_backward_begin(r->unit[u]);
        uint32_t micros = ends ? r->micros : 1 + u % r->micros; /* of those of the use */
        if (!status) status = each_micro(r, u, 1, micros, is_forward ? forward_again : backward_one);
        if (!status && ends)
            status = is_forward ? zero_forward_end(r->unit[u]) : zero_backward_end(r->unit[u]);
        if (!status && i + 1 == TOY_UNITS && ends && r->setup->interrupt) status = evaluate_between(r, 1);
    }
    return status;
}

/* Begins the micro-step and cancels it. *out_step: the whole step is lost. */
static zero_status try_and_cancel(struct rank *r, uint32_t step, uint32_t micro, int *out_step) {
    uint64_t chance = (r->setup->cancels + 31 * step + 7 * micro) * 0x9e3779b97f4a7c15u;
    uint32_t uses = (uint32_t)(chance >> 33) % (2 * TOY_UNITS);
    *out_step = 0;
    /* the step's last backward updates */
    if (r->setup->updates && micro + r->micros >= r->setup->micro_steps && uses > TOY_UNITS) uses = TOY_UNITS;
    if (!(chance >> 61 & 1)) return ZERO_OK;
    zero_status status = some_uses(r, uses, chance >> 62 & 1);
    *out_step = uses > TOY_UNITS;
    return status ? status : zero_micro_cancel(r->engine);
}

static zero_status one_step(struct rank *r, uint32_t step) {
    const struct toy_setup *s = r->setup;
    zero_status status = ZERO_OK;
    double sum = 0, ignored;
    int cancels = s->cancels != 0; /* until a whole step was lost: it begins anew */
    for (uint32_t m = 0; m < s->micro_steps && !status; m += r->micros) {
        int lost = 0;
        toy_batch(&r->pass, step, m, zero_engine_rank(r->engine));
        for (uint32_t i = 0; i < r->micros; i++)
            toy_batch(&r->waiting[i], step, m + i, zero_engine_rank(r->engine));
        if (cancels) status = try_and_cancel(r, step, m, &lost);
        if (lost) {
            m = 0 - r->micros, sum = 0, cancels = 0;
            continue;
        }
        uint32_t rank = zero_engine_rank(r->engine);
        double loss = 0;
        bool nan = (int)step == s->nan_step || (s->nan_every && (step + 1) % s->nan_every == 0);
        r->spoils = nan && rank == s->ranks - 1;
        status = one_pass(r, m, ZERO_TRAIN, &loss);
        sum += loss;
        if (!status && s->evaluate) status = one_pass(r, 1, ZERO_EVAL, &ignored);
    }
    zero_step_info info = {.struct_size = sizeof info};
    if (!status) status = zero_engine_sum(r->engine, &sum, 1);
    if (!status && s->before) status = s->before(r->engine, step, s->user);
    if (!status) status = zero_engine_step(r->engine, &info);
    r->out->loss[step] = sum / s->micro_steps / s->ranks;
    r->out->norm[step] = info.grad_norm;
    r->out->scale[step] = info.loss_scale;
    r->out->skipped = info.skipped_total;
    r->out->repeated = info.repeated_total;
    if (!status && s->evaluate) status = one_pass(r, 1, ZERO_EVAL, &ignored);
    return status;
}

static void add_memory(const zero_engine *engine, struct toy_result *out) {
    zero_memory_row row = {.struct_size = sizeof row};
    for (uint32_t i = 0; zero_engine_memory(engine, i, &row) == ZERO_OK; i++) {
        out->planned[row.tier] += row.planned;
        out->measured[row.tier] += row.measured;
    }
}

/* A GPU reads the host's own gradients where they are: in page-locked memory of a device that is not the engine's and
 * whose memory is counted. */
static struct rank *rank_create(zero_engine *engine, struct device **out_lender) {
    struct zero_error error;
    struct device_options options = {.index = engine_running(engine)->device->index, .probability = 1};
    *out_lender = NULL;
    if (!engine_running(engine)->discrete) return calloc(1, sizeof(struct rank));
    error_clear(&error);
    CHECK_INT(engine_running(engine)->device->ops->open(&options, out_lender, &error), ZERO_OK);
    return (*out_lender)->ops->allocate(*out_lender, sizeof(struct rank), DEVICE_PINNED);
}

static void rank_destroy(struct rank *r, struct device *lender) {
    if (!lender) {
        free(r);
        return;
    }
    lender->ops->release(lender, r, sizeof *r, DEVICE_PINNED);
    lender->ops->close(lender);
}

/* Transfers that run ahead of the next pass are counted when they end: a flush waits for them. */
static zero_status count(struct rank *r, zero_counters *out) {
    zero_status status = r->setup->flush ? zero_engine_flush(r->engine) : ZERO_OK;
    zero_engine_counters(r->engine, out);
    return status;
}

/* The host's own memory has the weights already. */
static zero_status fill(struct rank *r) {
    if (r->setup->memory != TOY_SPANS_ADD || r->setup->compute != ZERO_F32)
        return zero_engine_fill(r->engine, toy_fill, NULL);
    for (uint32_t i = 0; i < TOY_PARAMS; i++)
        if (!toy_tied_to(r->setup, i))
            toy_fill(NULL, toy_params[i].name, 0, (uint64_t)toy_params[i].rows * toy_params[i].columns,
                     r->own[i]);
    return zero_engine_fill(r->engine, NULL, NULL);
}

/* A gradient's second address may be another one afterwards. */
static zero_status between(struct rank *r, uint32_t steps) {
    if (!r->setup->between) return ZERO_OK;
    memset(r->second, 0, sizeof r->second);
    return r->setup->between(r->engine, steps, r->setup->user);
}

zero_status toy_train_rank(zero_engine *engine, const struct toy_setup *setup, struct toy_result *out) {
    struct device *lender;
    struct rank *r = rank_create(engine, &lender);
    r->engine = engine, r->setup = setup, r->out = out;
    out->plan.struct_size = sizeof out->plan;
    out->first.struct_size = out->last.struct_size = sizeof out->first;
    r->micros = (uint32_t)zero_engine_use_micros(engine);
    zero_status status = declare(r);
    out->threads = zero_engine_threads(engine);
    if (!status) status = zero_engine_reserve(engine, ZERO_NVME, setup->nvme_bytes, "the toy's");
    if (!status && setup->begin) setup->begin(engine);
    if (!status) status = zero_engine_commit(engine, &out->plan);
    if (!status) status = fill(r);
    if (!status) status = between(r, 0);
    for (uint32_t step = 0; step < setup->steps && !status; step++) {
        status = one_step(r, step);
        if (!status) status = between(r, step + 1);
        if (step == 0) status = status ? status : count(r, &out->first);
    }
    if (!status) status = count(r, &out->last);
    if (!status) status = zero_engine_hash(engine, out->hash);
    for (uint32_t i = 0; i < TOY_PARAMS && !status; i++)
        status = zero_engine_get(engine, toy_params[i].name, ZERO_PARAM, out->weights[i], 0,
                                 (uint64_t)toy_params[i].rows * toy_params[i].columns);
    if (status) snprintf(out->error, sizeof out->error, "%s", zero_last_error());
    out->status = status;
    if (!status && setup->after) setup->after(engine, setup->user);
    if (!status) add_memory(engine, out);
    rank_destroy(r, lender);
    return status;
}

struct thread {
    pthread_t thread;
    zero_local *local;
    uint32_t rank;
    const struct toy_setup *setup;
    struct toy_result result;
};

/* NULL: the engine opens one by itself. */
static struct device *open_device(const struct toy_setup *setup, uint32_t rank) {
    struct device_options options = {.seed = setup->seed * 64 + rank,
                                     .index = -1,
                                     .local_rank = rank,
                                     .probability = 0.5,
                                     .guard = &discrete_guard};
    struct device *device = NULL;
    struct zero_error error;
    if (!setup->device) return NULL;
    enum device_kind kind = strcmp(setup->device, "cuda") ? DEVICE_SIM : DEVICE_CUDA;
    error_clear(&error);
    CHECK_INT(device_table[kind]->open(&options, &device, &error), ZERO_OK);
    CHECK_STRING(error.message, "");
    return device;
}

static void *run_rank(void *argument) {
    struct thread *t = argument;
    char json[4096];
    toy_config(t->setup, json, sizeof json);
    zero_runtime runtime = {.struct_size = sizeof runtime,
                            .local = t->local,
                            .local_rank = t->rank,
                            .discard_shadow = t->setup->shadow,
                            .device = open_device(t->setup, t->rank)};
    zero_engine *engine = zero_engine_init_with(json, &runtime);
    if (engine) {
        toy_train_rank(engine, t->setup, &t->result);
    } else {
        t->result.status = ZERO_E_CONFIG;
        snprintf(t->result.error, sizeof t->result.error, "%s", zero_last_error());
    }
    zero_engine_destroy(engine);
    return NULL;
}

void toy_train(const struct toy_setup *setup, struct toy_result *out) {
    struct thread *threads = calloc(setup->ranks, sizeof *threads);
    zero_local *local = zero_local_create(setup->ranks);
    for (uint32_t r = 0; r < setup->ranks; r++) {
        threads[r].local = local, threads[r].rank = r, threads[r].setup = setup;
        pthread_create(&threads[r].thread, NULL, run_rank, &threads[r]);
    }
    for (uint32_t r = 0; r < setup->ranks; r++) pthread_join(threads[r].thread, NULL);
    zero_local_destroy(local);
    *out = threads[0].result;
    for (uint32_t r = 1; r < setup->ranks; r++) {
        struct toy_result *other = &threads[r].result;
        int same =
            memcmp(other->weights, out->weights, sizeof out->weights) == 0 && !strcmp(other->hash, out->hash);
        if (out->status || (!other->status && same)) continue;
        out->status = other->status ? other->status : ZERO_E_DIVERGED;
        snprintf(out->error, sizeof out->error, "rank %u: %.400s", r,
                 other->status ? other->error : "other weights");
    }
    free(threads);
}
