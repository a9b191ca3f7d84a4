/* Filling, reading and writing state by element range: between steps, in bounded memory. */
#include <inttypes.h>
#include <string.h>

#include "engine/held.h"

/* ---- fill ---- */

static void fill_region(zero_engine *e, uint32_t region, zero_fill_fn fill, void *user) {
    struct part part = own_part(e, region, e->regions[region].state);
    float *at = param_part(e, region, &part);
    const struct model_region *r = &e->model.region[region];
    for (uint32_t i = 0; i < r->params; i++) {
        const struct model_param *p = &e->model.param[r->param[i]];
        uint64_t begin = max64(p->offset, part.first),
                 end = min64(p->offset + p->count, part.first + part.count);
        if (begin < end) fill(user, p->name, begin - p->offset, end - begin, at + (begin - part.first));
    }
    for (uint32_t k = 0; k < e->state_count && !e->regions[region].frozen; k++)
        memset(executor_state(e->executor, region, k), 0, part.count * sizeof(float));
}

zero_status engine_written(zero_engine *e) {
    e->version++;
    pthread_mutex_lock(&e->lock);
    zero_status status = executor_written(e->executor);
    pthread_mutex_unlock(&e->lock);
    if (status) return engine_fail(e, executor_error(e->executor));
    return engine_settle(e);
}

zero_status zero_engine_fill(zero_engine *e, zero_fill_fn fill, void *user) {
    zero_status status = engine_check_between(e, "zero_engine_fill");
    if (status) return status;
    if (e->micro)
        return refuse(ZERO_E_ORDER, "zero_engine_fill: call it between steps, not between micro-steps");
    if (!fill) return refuse(ZERO_E_ARGUMENT, "zero_engine_fill: fill is NULL");
    status = engine_settle(e);
    if (status) return status;
    for (uint32_t i = 0; i < e->model.regions; i++) fill_region(e, i, fill, user);
    e->steps = 0;
    e->filled = true;
    return engine_written(e);
}

/* ---- get and put ---- */

struct range { /* a checked request */
    const struct model_param *param;
    zero_kind kind;
    uint64_t first, count; /* elements of the region */
};

static zero_status check_range(zero_engine *e, const char *what, const char *name, zero_kind kind,
                               const float *memory, uint64_t first, uint64_t count, struct range *out) {
    zero_status status = engine_check_between(e, what);
    if (status) return status;
    const struct model_param *p = name ? model_find(&e->model, name) : NULL;
    if (!p) return refuse(ZERO_E_ARGUMENT, "%s: there is no parameter \"%s\"", what, name ? name : "NULL");
    if (first > p->count || count > p->count - first)
        return refuse(ZERO_E_ARGUMENT,
                      "%s: elements %" PRIu64 " to %" PRIu64 " of \"%s\", which has %" PRIu64, what, first,
                      first + count, name, p->count);
    if (count && !memory)
        return refuse(ZERO_E_ARGUMENT, "%s: the memory for %" PRIu64 " elements of \"%s\" is NULL", what,
                      count, name);
    const struct region *r = &e->regions[p->region];
    bool state = kind == ZERO_STATE0 || kind == ZERO_STATE1;
    if ((unsigned)kind > ZERO_STATE1 || (kind != ZERO_PARAM && r->frozen) ||
        (state && (uint32_t)(kind - ZERO_STATE0) >= e->state_count))
        return refuse(ZERO_E_ARGUMENT, "%s: \"%s\" has no %s here", what, name,
                      kind == ZERO_GRAD ? "gradient (it is frozen)" : "such optimizer state");
    if (kind == ZERO_GRAD && e->micro != e->policy.micro_steps)
        return refuse(ZERO_E_ORDER,
                      "%s: the gradient of \"%s\" is complete only between the last backward of a step "
                      "and zero_engine_step",
                      what, name);
    *out = (struct range){p, kind, p->offset + first, count};
    return ZERO_OK;
}

/* Pieces travel from the rank that holds them to all others, one after another. */
static zero_status get_pieces(zero_engine *e, const struct range *range, float *out) {
    struct part part = held_part(e, range->param->region, range->kind);
    for (uint64_t at = range->first, end = at + range->count; at < end;) {
        uint32_t owner = (uint32_t)(at / part.count);
        uint64_t piece = min64(min64(end, (owner + 1) * part.count) - at, PIECE_BYTES / sizeof(float));
        zero_status status = ZERO_OK;
        if (owner == part.index)
            status = held_read(e, range->param->region, range->kind, at, piece, (float *)(void *)e->piece);
        struct comm_call call = {.kind = COMM_BROADCAST,
                                 .dtype = DTYPE_F32,
                                 .target_dtype = DTYPE_F32,
                                 .count = piece,
                                 .root = owner,
                                 .what = range->param->name,
                                 .target = e->piece};
        if (!status && part.parts > 1) status = engine_call(e, &call);
        if (status) return status;
        memcpy(out, e->piece, piece * sizeof(float));
        at += piece;
        out += piece;
    }
    return ZERO_OK;
}

zero_status zero_engine_get(zero_engine *e, const char *param, zero_kind kind, float *out, uint64_t first,
                            uint64_t count) {
    struct range range = {0};
    zero_status status = check_range(e, "zero_engine_get", param, kind, out, first, count, &range);
    if (status) return status;
    if (kind != ZERO_GRAD && e->micro)
        return refuse(ZERO_E_ORDER, "zero_engine_get: call it between steps, not between micro-steps");
    status = engine_settle(e);
    if (!status && kind == ZERO_GRAD) status = ENGINE_EVENT(e, executor_complete(e->executor));
    if (!status) status = engine_drive_idle(e);
    if (status) return status;
    status = get_pieces(e, &range, out);
    if (kind != ZERO_GRAD || status) return status;
    float mean = (float)(1.0 / ((double)e->size * e->policy.micro_steps));
    for (uint64_t i = 0; i < count; i++) out[i] *= mean;
    return ZERO_OK;
}

zero_status zero_engine_put(zero_engine *e, const char *param, zero_kind kind, const float *in,
                            uint64_t first, uint64_t count) {
    struct range range = {0};
    zero_status status = check_range(e, "zero_engine_put", param, kind, in, first, count, &range);
    if (status) return status;
    if (kind == ZERO_GRAD)
        return refuse(ZERO_E_ARGUMENT, "zero_engine_put: gradients are written in backward");
    if (e->micro)
        return refuse(ZERO_E_ORDER, "zero_engine_put: call it between steps, not between micro-steps");
    status = engine_settle(e);
    if (status) return status;
    struct part part = held_part(e, range.param->region, kind);
    uint64_t begin = max64(range.first, part.first),
             end = min64(range.first + count, part.first + part.count);
    if (begin < end)
        status = held_write(e, range.param->region, kind, begin, end - begin, in + (begin - range.first));
    return kind == ZERO_PARAM && !status ? engine_written(e) : status;
}
