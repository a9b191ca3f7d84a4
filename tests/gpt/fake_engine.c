#include "tests/gpt/fake_engine.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/numbers/convert.h"

enum { UNITS_MAX = 24, USES_MAX = 256, PARAMS_MAX = 256 };

struct zero_handle {
    zero_dtype dtype;
};

struct param {
    struct zero_handle handle;
    const zero_engine *engine;
    char name[128];
    uint64_t count;
    float *value, *grad;
    uint16_t *narrow_value, *narrow_grad; /* bf16, fp16: what the slots show */
    void *device_value, *device_grad; /* on a device: copies, which the slots show; in the unit's memory */
    uint64_t unit, at;                /* of its unit; its place there, in bytes */
    bool written;                     /* in this step: later uses add */
    bool frozen;
};

struct use {
    zero_slot *slot;
    struct param *param;
};

struct zero_unit {
    zero_engine *engine;
    struct use use[32];
    /* Of its parameters, each on a cache line, as the engine lays them out. */
    void *device_value, *device_grad;
    uint64_t bytes;
    /* segment: index of the first unit that is recomputed before its backward. */
    uint32_t uses, index, segment;
};

struct zero_engine {
    struct zero_unit unit[UNITS_MAX];
    struct param param[PARAMS_MAX];
    uint32_t frozen_units, units, params, threads, forward, backward;
    zero_dtype dtype;
    float loss_scale;
    uint64_t reserved[ZERO_TIERS], recomputed, micros;
    const struct fake_device *device;
    uint32_t again; /* the unit that a recomputation goes on with; 0: none has begun */
    bool committed, training;
    zero_unit *open;
    zero_scratch *scratch;
    uint64_t moved[2]; /* places stored, places fetched */
    struct spare {
        uint64_t part_bytes, parts, *granted;
    } spare[8];
    uint32_t spares;
};

struct zero_scratch {
    zero_engine *engine;
    zero_scratch_needs needs;
    char *drive;
    struct {
        void *memory; /* NULL: no transfer */
        bool fetches, stored;
    } * place;
};

zero_engine *fake_engine_create(zero_dtype dtype, uint32_t threads, float loss_scale) {
    zero_engine *engine = calloc(1, sizeof *engine);
    engine->dtype = dtype;
    engine->threads = threads;
    engine->loss_scale = loss_scale;
    return engine;
}

void zero_engine_destroy(zero_engine *engine) {
    if (!engine) return;
    for (uint32_t i = 0; i < engine->params; i++) {
        free(engine->param[i].value), free(engine->param[i].grad);
        free(engine->param[i].narrow_value), free(engine->param[i].narrow_grad);
    }
    for (uint32_t i = 0; i < engine->units && engine->device; i++) {
        engine->device->release(engine->device->user, engine->unit[i].device_value);
        engine->device->release(engine->device->user, engine->unit[i].device_grad);
    }
    if (engine->scratch) free(engine->scratch->drive), free(engine->scratch->place);
    free(engine->scratch);
    free(engine);
}

void fake_engine_on(zero_engine *engine, const struct fake_device *device) { engine->device = device; }
int zero_engine_cuda(const zero_engine *engine, void **out_stream) {
    if (engine->device && out_stream) *out_stream = engine->device->stream;
    return engine->device ? 0 : -1;
}

static struct param *find(const zero_engine *engine, const char *name) {
    for (uint32_t i = 0; i < engine->params; i++)
        if (strcmp(engine->param[i].name, name) == 0) return (struct param *)&engine->param[i];
    return NULL;
}

const char *fake_engine_name(const zero_engine *engine, uint32_t index) {
    return index < engine->params ? engine->param[index].name : NULL;
}
uint64_t fake_engine_count(const zero_engine *engine, const char *name) { return find(engine, name)->count; }
float *fake_engine_param(zero_engine *engine, const char *name) {
    struct param *p = find(engine, name);
    return p ? p->value : NULL;
}
float *fake_engine_grad(zero_engine *engine, const char *name) { return find(engine, name)->grad; }
uint64_t fake_engine_reserved(const zero_engine *engine, zero_tier tier) { return engine->reserved[tier]; }
uint64_t fake_engine_recomputed(const zero_engine *engine) { return engine->recomputed; }
void fake_engine_freeze(zero_engine *engine, const char *name) { find(engine, name)->frozen = true; }
void fake_engine_freeze_units(zero_engine *engine, uint32_t count) { engine->frozen_units = count; }
void fake_engine_next_step(zero_engine *engine) {
    for (uint32_t i = 0; i < engine->params; i++) engine->param[i].written = false;
}

uint32_t zero_engine_threads(const zero_engine *engine) { return engine->threads; }
uint32_t zero_engine_rank(const zero_engine *engine) { return 0; }
uint32_t zero_engine_size(const zero_engine *engine) { return 1; }
zero_dtype zero_engine_dtype(const zero_engine *engine) { return engine->dtype; }
zero_handle *zero_unit_param(const zero_unit *unit, uint32_t index) {
    return &unit->use[index].param->handle;
}
zero_dtype zero_param_dtype(const zero_handle *param) { return param->dtype; }
const char *zero_param_name(const zero_handle *param) { return ((const struct param *)param)->name; }
float zero_engine_loss_scale(const zero_engine *engine) { return engine->loss_scale; }
const char *zero_last_error(void) { return ""; }

zero_status zero_engine_reserve(zero_engine *engine, zero_tier tier, uint64_t bytes, const char *name) {
    engine->reserved[tier] += bytes;
    return engine->committed ? ZERO_E_ORDER : ZERO_OK;
}

zero_status zero_engine_reserve_spare(zero_engine *engine, uint64_t part_bytes, uint64_t parts,
                                      const char *name, uint64_t *out_granted) {
    *out_granted = 0;
    if (engine->committed || engine->spares == 8) return ZERO_E_ORDER;
    engine->spare[engine->spares++] = (struct spare){part_bytes, parts, out_granted};
    return ZERO_OK;
}

static void grant(zero_engine *engine) {
    uint64_t room = engine->device ? engine->device->spare_bytes : 0;
    for (uint32_t i = 0; i < engine->spares; i++) {
        const struct spare *s = &engine->spare[i];
        uint64_t fit = room / s->part_bytes;
        *s->granted = fit < s->parts ? fit : s->parts;
        room -= *s->granted * s->part_bytes;
        engine->reserved[ZERO_DEVICE] += *s->granted * s->part_bytes;
    }
}

uint64_t zero_engine_micro_batch(const zero_engine *engine) { return 1; }
uint64_t zero_engine_accumulation_steps(const zero_engine *engine) { return zero_engine_use_micros(engine); }

/* ---- scratch: nothing moves before the wait, so what is changed or read too early shows ---- */

zero_status zero_engine_add_scratch(zero_engine *engine, const zero_scratch_needs *needs,
                                    zero_scratch **out) {
    if (engine->committed || engine->scratch || needs->place_bytes % 4096) return ZERO_E_ORDER;
    zero_scratch *s = calloc(1, sizeof *s);
    s->engine = engine, s->needs = *needs;
    s->drive = malloc(needs->places * needs->place_bytes);
    s->place = calloc(needs->places, sizeof *s->place);
    engine->reserved[ZERO_NVME] += needs->places * needs->place_bytes;
    *out = engine->scratch = s;
    return ZERO_OK;
}

static zero_status transfer(zero_scratch *s, uint64_t place, void *memory, bool fetches) {
    zero_status status = zero_scratch_wait(s, place);
    if (status || !s->engine->committed || (uintptr_t)memory % 4096) return ZERO_E_ORDER;
    if (fetches && !s->place[place].stored) return ZERO_E_ORDER;
    s->place[place].memory = memory, s->place[place].fetches = fetches, s->place[place].stored = true;
    s->engine->moved[fetches]++;
    if (fetches) memset(memory, 0xff, s->needs.place_bytes); /* NaN */
    return ZERO_OK;
}

zero_status zero_scratch_store(zero_scratch *s, uint64_t place, const void *memory) {
    return transfer(s, place, (void *)(uintptr_t)memory, false);
}
zero_status zero_scratch_fetch(zero_scratch *s, uint64_t place, void *memory) {
    return transfer(s, place, memory, true);
}

zero_status zero_scratch_wait(zero_scratch *s, uint64_t place) {
    if (place >= s->needs.places) return ZERO_E_ARGUMENT;
    void *memory = s->place[place].memory;
    char *drive = s->drive + place * s->needs.place_bytes;
    s->place[place].memory = NULL;
    if (memory && s->place[place].fetches) memcpy(memory, drive, s->needs.place_bytes);
    if (memory && !s->place[place].fetches) memcpy(drive, memory, s->needs.place_bytes);
    return ZERO_OK;
}

const zero_scratch_needs *fake_engine_scratch(const zero_engine *engine) {
    return engine->scratch ? &engine->scratch->needs : NULL;
}
uint64_t fake_engine_stores(const zero_engine *engine) { return engine->moved[0]; }
uint64_t fake_engine_fetches(const zero_engine *engine) { return engine->moved[1]; }

zero_status zero_engine_add_unit(zero_engine *engine, const char *name, zero_unit **out) {
    if (engine->committed || engine->units == UNITS_MAX) return ZERO_E_ORDER;
    zero_unit *unit = &engine->unit[engine->units];
    unit->engine = engine;
    unit->index = unit->segment = engine->units++;
    *out = unit;
    return ZERO_OK;
}

enum { LINE_BYTES = 64 };

static uint64_t param_bytes(const zero_engine *engine, const struct param *p) {
    return p->count * (engine->dtype == ZERO_F32 ? 4 : 2);
}

/* Behind the unit's parameters so far. */
static void place(zero_unit *unit, struct param *p) {
    uint64_t bytes = param_bytes(unit->engine, p);
    p->unit = unit->index, p->at = unit->bytes;
    unit->bytes += (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

static void allocate(zero_engine *engine, int grads) {
    for (uint32_t i = 0; i < engine->units; i++) {
        zero_unit *unit = &engine->unit[i];
        void **at = grads ? &unit->device_grad : &unit->device_value, *before = *at;
        *at = engine->device->allocate(engine->device->user, unit->bytes + LINE_BYTES);
        if (before) engine->device->release(engine->device->user, before);
    }
    for (uint32_t i = 0; i < engine->params; i++) {
        struct param *p = &engine->param[i];
        const zero_unit *unit = &engine->unit[p->unit];
        *(grads ? &p->device_grad : &p->device_value) =
            (char *)(grads ? unit->device_grad : unit->device_value) + p->at;
    }
}

void fake_engine_move(zero_engine *engine, int grads) { allocate(engine, grads); }

int zero_param_adjoins(const zero_handle *param, const zero_handle *before) {
    const struct param *p = (const struct param *)param, *q = (const struct param *)before;
    return p->unit == q->unit && p->frozen == q->frozen && p->at == q->at + param_bytes(p->engine, q);
}

zero_status zero_unit_add_param(zero_unit *unit, const zero_param *param) {
    zero_engine *engine = unit->engine;
    uint64_t count = 1;
    for (uint32_t i = 0; i < param->dims; i++) count *= param->shape[i];
    struct param *p = param->tied_to ? find(engine, param->tied_to) : &engine->param[engine->params];
    if (engine->committed || !p || find(engine, param->name)) return ZERO_E_ARGUMENT;
    if (!param->tied_to) {
        engine->params++;
        p->engine = engine;
        snprintf(p->name, sizeof p->name, "%s", param->name);
        p->count = count;
        p->handle.dtype = engine->dtype;
        p->frozen = unit->index < engine->frozen_units;
        uint64_t skew = 17 * engine->params % 64 * 64; /* no two arrays at equal offsets in a page */
        p->value = (float *)calloc(1, count * 4 + skew), p->grad = (float *)calloc(1, count * 4 + skew);
        p->narrow_value = (uint16_t *)calloc(count, 2), p->narrow_grad = (uint16_t *)calloc(count, 2);
    }
    if (!param->tied_to) place(unit, p);
    if (p->count != count) return ZERO_E_ARGUMENT;
    unit->use[unit->uses++] = (struct use){param->slot, p};
    return ZERO_OK;
}

zero_status zero_engine_commit(zero_engine *engine, zero_plan *out) {
    engine->committed = true;
    grant(engine);
    if (engine->device) allocate(engine, 0), allocate(engine, 1);
    return ZERO_OK;
}

zero_status zero_engine_fill(zero_engine *engine, zero_fill_fn fill, void *user) {
    for (uint32_t i = 0; i < engine->params; i++)
        fill(user, engine->param[i].name, 0, engine->param[i].count, engine->param[i].value);
    return ZERO_OK;
}

zero_status zero_micro_begin(zero_engine *engine, zero_mode mode) {
    if (!engine->committed || engine->open) return ZERO_E_ORDER;
    engine->training = mode == ZERO_TRAIN;
    engine->forward = 0;
    engine->backward = engine->units;
    return ZERO_OK;
}

/* To the device: what the slot shows from now on. */
static void *shown(const zero_engine *engine, const struct param *p, void *host, void *device) {
    uint64_t bytes = p->count * (engine->dtype == ZERO_F32 ? 4 : 2);
    if (!engine->device) return host;
    engine->device->copy(engine->device->user, device, host, bytes,
                         false); /* the host runs ahead in a forward */
    return device;
}

static void show(zero_unit *unit, bool grads) {
    for (uint32_t i = 0; i < unit->uses; i++) {
        struct use *u = &unit->use[i];
        bool narrow = unit->engine->dtype != ZERO_F32, bf16 = unit->engine->dtype == ZERO_BF16;
        for (uint64_t e = 0; e < u->param->count && narrow; e++)
            u->param->narrow_value[e] =
                bf16 ? bf16_from_f32(u->param->value[e]) : f16_from_f32(u->param->value[e]);
        u->slot->param =
            shown(unit->engine, u->param, narrow ? (void *)u->param->narrow_value : u->param->value,
                  u->param->device_value);
        if (!grads || u->param->frozen) continue;
        for (uint64_t e = 0; e < u->param->count && !u->param->written; e++)
            u->param->narrow_grad[e] = 0x7fff; /* NaN in either type */
        for (uint64_t e = 0; e < u->param->count && !u->param->written; e++) u->param->grad[e] = NAN;
        u->slot->grad = shown(unit->engine, u->param, narrow ? (void *)u->param->narrow_grad : u->param->grad,
                              u->param->device_grad);
        u->slot->add = u->param->written;
        u->param->written = true;
    }
    unit->engine->open = unit;
}

/* A gradient as the host sees it: from the device, and widened. */
static void take_back(const zero_engine *engine, struct param *p) {
    bool narrow = engine->dtype != ZERO_F32, bf16 = engine->dtype == ZERO_BF16;
    if (engine->device)
        engine->device->copy(engine->device->user, narrow ? (void *)p->narrow_grad : p->grad, p->device_grad,
                             p->count * (narrow ? 2 : 4), true);
    for (uint64_t e = 0; e < p->count && narrow; e++)
        p->grad[e] = bf16 ? f32_from_bf16(p->narrow_grad[e]) : f32_from_f16(p->narrow_grad[e]);
}

static zero_status hide(zero_unit *unit) {
    if (unit->engine->open != unit) return ZERO_E_ORDER;
    for (uint32_t i = 0; i < unit->uses; i++)
        if (unit->use[i].slot->grad) take_back(unit->engine, unit->use[i].param);
    for (uint32_t i = 0; i < unit->uses; i++) unit->use[i].slot->param = unit->use[i].slot->grad = NULL;
    unit->engine->open = NULL;
    return ZERO_OK;
}

zero_status zero_engine_add_segment(zero_unit *first, zero_unit *last) {
    last->segment = first->index;
    return last->engine->committed || first->index >= last->index ? ZERO_E_ORDER : ZERO_OK;
}

/* Inside the backward: the units of the segment whose backward is next, in order. */
static zero_status recompute(zero_unit *unit) {
    zero_engine *engine = unit->engine;
    uint32_t last = engine->backward - 1, begin = engine->again ? engine->again : engine->unit[last].segment;
    if (engine->open || unit->index != begin) return ZERO_E_ORDER;
    engine->again = unit->index == last ? 0 : unit->index + 1;
    engine->recomputed++;
    show(unit, false);
    return ZERO_OK;
}

zero_status zero_forward_begin(zero_unit *unit) {
    if (unit->engine->training && unit->engine->backward < unit->engine->units) return recompute(unit);
    if (unit->engine->open || unit->index != unit->engine->forward) return ZERO_E_ORDER;
    unit->engine->forward++;
    show(unit, false);
    return ZERO_OK;
}

zero_status zero_backward_begin(zero_unit *unit) {
    zero_engine *engine = unit->engine;
    if (engine->open || !engine->training || engine->forward != engine->units) return ZERO_E_ORDER;
    if (unit->index + 1 != engine->backward || engine->again) return ZERO_E_ORDER;
    engine->backward--;
    show(unit, true);
    return ZERO_OK;
}

int zero_unit_trains(const zero_unit *unit) {
    for (uint32_t i = 0; i < unit->uses; i++)
        if (!unit->use[i].param->frozen) return 1;
    return 0;
}

uint64_t zero_engine_use_micros(const zero_engine *engine) { return engine->micros ? engine->micros : 1; }
void fake_engine_use_micros(zero_engine *engine, uint64_t micros) { engine->micros = micros; }

zero_status zero_unit_next_micro(zero_unit *unit) {
    bool grads = unit->uses && unit->use[0].slot->grad;
    for (uint32_t i = 0; i < unit->uses; i++) grads |= unit->use[i].slot->grad != NULL;
    zero_status status = hide(unit);
    if (!status) show(unit, grads);
    return status;
}

zero_status zero_forward_end(zero_unit *unit) { return hide(unit); }
zero_status zero_backward_end(zero_unit *unit) { return hide(unit); }
