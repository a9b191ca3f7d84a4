/* Filling, reading and writing state by element range: between steps, in bounded memory. */
#include <inttypes.h>
#include <string.h>

#include "engine/held.h"
#include "engine/shadow.h"
#include "engine/settings.h"

/* ---- fill ---- */

static zero_status fill_param(zero_engine *e, const struct model_param *p, zero_fill_fn fill, void *user) {
    struct part part = held_part(e, p->region, ZERO_PARAM);
    uint64_t begin = max64(p->offset, part.first), end = min64(p->offset + p->count, part.first + part.count);
    float *piece = (float *)(void *)e->piece;
    for (uint64_t at = begin; at < end;) {
        uint64_t count = min64(end - at, PIECE_BYTES / sizeof(float));
        fill(user, p->name, at - p->offset, count, piece);
        zero_status status = held_write(e, p->region, ZERO_PARAM, at, count, piece);
        if (status) return status;
        at += count;
    }
    return ZERO_OK;
}

zero_status access_fill_frozen(zero_engine *e, zero_fill_fn fill, void *user) {
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < e->model.regions; i++)
        for (uint32_t k = 0; k < e->model.region[i].params && e->regions[i].frozen && !status; k++)
            status = fill_param(e, &e->model.param[e->model.region[i].param[k]], fill, user);
    return status;
}

/* Local: a drive may fail here, and the others learn it when they meet this rank next. */
static zero_status fill_all(zero_engine *e, zero_fill_fn fill, void *user) {
    zero_status status = held_clear_state(e); /* masters on the drive are in the same records: first */
    for (uint32_t i = 0; i < e->model.regions; i++)
        for (uint32_t k = 0; k < e->model.region[i].params && !status; k++)
            status = fill_param(e, &e->model.param[e->model.region[i].param[k]], fill, user);
    return status;
}

zero_status engine_written(zero_engine *e) {
    e->version++;
    turn_take(&e->lock);
    zero_status status = executor_written(e->executor);
    turn_give(&e->lock);
    if (status) return engine_fail(e, executor_error(e->executor));
    return engine_settle(e);
}

zero_status access_filled(zero_engine *e) {
    e->filled = true;
    return engine_written(e);
}

zero_status zero_engine_fill(zero_engine *e, zero_fill_fn fill, void *user) {
    zero_status status = engine_check_between(e, "zero_engine_fill");
    if (status) return status;
    if (e->micro)
        return refuse(ZERO_E_ORDER, "zero_engine_fill: call it between steps, not between micro-steps");
    if (!fill) return refuse(ZERO_E_ARGUMENT, "zero_engine_fill: fill is NULL");
    status = engine_settle(e);
    if (status) return status;
    status = shadow_forget(e);
    if (!status) status = fill_all(e, fill, user);
    if (status) return status;
    e->steps = e->skipped = 0;
    e->loss_scale = engine_loss_scale(e);
    settings_restart(e);
    return access_filled(e);
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
    float mean = (float)engine_mean(e);
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
    if (begin >= end) begin = end = range.first; /* of another rank */
    status = held_write(e, range.param->region, kind, begin, end - begin, in + (begin - range.first));
    return kind == ZERO_PARAM && !status ? engine_written(e) : status;
}
