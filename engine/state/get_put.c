#include "engine/state/get_put.h"

#include <inttypes.h>
#include <string.h>

#include "engine/run/run.h"
#include "kernels/cast.h"

struct range range_own(const struct state *state, const struct model_param *p, zero_kind kind) {
    struct stored_range part = stored_range(state->blueprint, state->ranks->data_rank, p->region, kind);
    uint64_t begin = max64(p->offset, part.first), end = min64(p->offset + p->count, part.first + part.count);
    return begin < end ? (struct range){p, kind, begin, end - begin} : (struct range){p, kind, p->offset, 0};
}

/* ---- fill ---- */

zero_status fill_check_values(const struct state *state, const char *what, bool frozen_alone) {
    for (uint32_t i = 0; i < state->model->params; i++) {
        const struct model_param *p = &state->model->param[i];
        if (p->owner == i && !p->values && !p->spans && (!frozen_alone || p->flags & ZERO_FROZEN))
            return refuse(ZERO_E_ARGUMENT,
                          "%s: fill is NULL, and parameter \"%s\" has neither values nor spans to take its "
                          "weights from: give a function, or declare values or spans for every parameter",
                          what, p->name);
    }
    return ZERO_OK;
}

/* Elements of the host's own memory, widened to fp32. */
static zero_status take_from_spans(struct state *state, const struct model_param *p, uint64_t first,
                                   uint64_t count, float *out) {
    enum dtype compute = blueprint_precision_of(state->blueprint, p->region).compute;
    struct zero_error error = ERROR_NONE;
    for (const zero_span *span = p->spans; count; first -= span->count, span++) {
        if (first >= span->count) continue;
        uint64_t n = min64(span->count - first, count);
        const uint8_t *from = (const uint8_t *)span->param + first * dtype_bytes(compute);
        if (state->run->discrete) {
            if (device_fetch(state->run, state->host.bounce, from, n * dtype_bytes(compute), &error))
                return ranks_fail(state->ranks, &error);
            from = state->host.bounce;
        }
        cast(out, DTYPE_F32, from, compute, n);
        out += n, count -= n, first += n;
    }
    return ZERO_OK;
}

struct filling {
    zero_fill_fn fill;
    void *user;
    const char *param;
    uint64_t first, count;
    float *out;
};

static void call_fill(void *call) {
    const struct filling *f = call;
    f->fill(f->user, f->param, f->first, f->count, f->out);
}

static zero_status fill_param(struct state *state, const struct model_param *p, zero_fill_fn fill,
                              void *user) {
    struct range own = range_own(state, p, ZERO_PARAM);
    float *piece = (float *)(void *)state->piece;
    for (uint64_t at = own.first, end = at + own.count; at < end;) {
        uint64_t count = min64(end - at, PIECE_BYTES / sizeof(float));
        struct filling filling = {.fill = fill,
                                  .user = p->handle->user ? p->handle->user : user,
                                  .param = p->tensor,
                                  .first = p->tensor_first + at - p->offset,
                                  .count = count,
                                  .out = piece};
        if (fill)
            host_call(&state->ranks->fault, "zero_engine_fill", call_fill, &filling);
        else if (p->values)
            memcpy(piece, p->values + (at - p->offset), count * sizeof *piece);
        else
            TRY(take_from_spans(state, p, at - p->offset, count, piece));
        TRY(state_write(state, p->region, ZERO_PARAM, at, count, piece));
        TRY(state_begin_average(state, p->region, at, count));
        at += count;
    }
    return ZERO_OK;
}

static zero_status fill_regions(struct state *state, bool frozen_alone, zero_fill_fn fill, void *user) {
    const struct model *model = state->model;
    zero_status status = ZERO_OK;
    stored_sweep(&state->host, NULL, 0, 0);
    for (uint32_t i = 0; i < model->regions; i++)
        for (uint32_t k = 0; k < model->region[i].params && !status; k++)
            if (!frozen_alone || state->blueprint->regions[i].frozen)
                status = fill_param(state, &model->param[model->region[i].param[k]], fill, user);
    return state_end_sweep(state, status);
}

zero_status fill_frozen(struct state *state, zero_fill_fn fill, void *user) {
    return fill_regions(state, true, fill, user);
}

zero_status fill_all(struct state *state, zero_fill_fn fill, void *user) {
    struct zero_error error = ERROR_NONE;
    zero_status status =
        stored_clear(&state->host, &error); /* states first: masters on the drive are in the same records */
    return status ? ranks_fail(state->ranks, &error) : fill_regions(state, false, fill, user);
}

/* ---- broadcast ---- */

zero_status state_broadcast(struct state *state, uint32_t root, void *data, uint64_t bytes) {
    uint64_t piece;
    for (uint8_t *at = data; bytes; at += piece, bytes -= piece) {
        piece = min64(bytes, PIECE_BYTES);
        memcpy(state->piece, at, piece);
        struct comm_call call = comm_broadcast(state->piece, DTYPE_U8, piece, root, "bytes of the host's");
        if (state->ranks->size > 1) TRY(ranks_call(state->ranks, &call));
        memcpy(at, state->piece, piece);
    }
    return ZERO_OK;
}

/* ---- get and put ---- */

zero_status range_check(const struct state *state, const char *what, const struct model_param *p,
                        zero_kind kind, const float *memory, uint64_t first, uint64_t count,
                        struct range *out) {
    if (first > p->count || count > p->count - first)
        return refuse(ZERO_E_ARGUMENT,
                      "%s: elements %" PRIu64 " to %" PRIu64 " of \"%s\" do not exist: it has %" PRIu64, what,
                      first, first + count, p->name, p->count);
    if (count && !memory)
        return refuse(ZERO_E_ARGUMENT, "%s: the memory for %" PRIu64 " elements of \"%s\" is NULL", what,
                      count, p->name);
    bool frozen = state->blueprint->regions[p->region].frozen;
    bool optimizer_state = kind == ZERO_STATE0 || kind == ZERO_STATE1;
    if (kind == ZERO_EMA && !state_averages(state, p->region))
        return refuse(ZERO_E_ARGUMENT, "%s: \"%s\" has no averaged weights: %s", what, p->name,
                      frozen ? "it is frozen, so take its weights" : "set ema.decay in the configuration");
    if ((unsigned)kind > ZERO_EMA || (kind != ZERO_PARAM && frozen) ||
        (optimizer_state && (uint32_t)(kind - ZERO_STATE0) >= state->training->state_count))
        return refuse(ZERO_E_ARGUMENT, "%s: \"%s\" has no %s here", what, p->name,
                      kind == ZERO_GRAD ? "gradient (it is frozen)" : "such optimizer state");
    *out = (struct range){p, kind, p->offset + first, count};
    return ZERO_OK;
}

zero_status range_get(struct state *state, const struct range *range, float *out) {
    struct stored_range part =
        stored_range(state->blueprint, state->ranks->data_rank, range->param->region, range->kind);
    for (uint64_t at = range->first, end = at + range->count; at < end;) {
        uint32_t owner = (uint32_t)(at / part.count);
        uint64_t piece = min64(min64(end, (owner + 1) * part.count) - at, PIECE_BYTES / sizeof(float));
        zero_status status = ZERO_OK;
        if (owner == part.index)
            status = state_read(state, range->param->region, range->kind, at, piece,
                                (float *)(void *)state->piece);
        struct comm_call call = comm_broadcast(state->piece, DTYPE_F32, piece, owner, range->param->name);
        if (!status && part.parts > 1) status = ranks_call_on(state->ranks, state->ranks->data_world, &call);
        if (status) return status;
        memcpy(out, state->piece, piece * sizeof(float));
        at += piece;
        out += piece;
    }
    return ZERO_OK;
}

zero_status range_put(struct state *state, const struct range *range, const float *in) {
    struct stored_range part =
        stored_range(state->blueprint, state->ranks->data_rank, range->param->region, range->kind);
    uint64_t begin = max64(range->first, part.first),
             end = min64(range->first + range->count, part.first + part.count);
    if (begin >= end) begin = end = range->first; /* another rank stores it */
    return state_write(state, range->param->region, range->kind, begin, end - begin,
                       in + (begin - range->first));
}
