#include "engine/model/lent.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- elements ---- */

/* The number of pieces that begin at or before `at`. */
static uint32_t begun(const struct model_region *r, uint64_t at) {
    uint32_t low = 0, high = r->pieces;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (r->piece[middle].first <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void *lent_at(const struct model_region *r, enum lent_array array, uint64_t bytes, uint64_t at,
              uint64_t *out_count) {
    uint32_t next = begun(r, at);
    const struct lent_piece *piece = next ? &r->piece[next - 1] : NULL;
    bool inside = piece && at - piece->first < piece->count;
    uint64_t end = inside             ? piece->first + piece->count
                   : next < r->pieces ? r->piece[next].first
                                      : UINT64_MAX;
    *out_count = end - at;
    return inside && piece->array[array] ? (uint8_t *)piece->array[array] + (at - piece->first) * bytes
                                         : NULL;
}

void lent_give(struct model_region *r, uint64_t at, const void *gradient) {
    r->piece[begun(r, at) - 1].array[LENT_GRADS] = (void *)gradient;
}

void lent_read(const struct model_region *r, enum lent_array array, uint64_t bytes, uint64_t first,
               uint64_t count, void *out) {
    for (uint64_t at = first, n; at < first + count; at += n) {
        const void *piece = lent_at(r, array, bytes, at, &n);
        uint8_t *to = (uint8_t *)out + (at - first) * bytes;
        if (n > first + count - at) n = first + count - at;
        if (!piece) memset(to, 0, n * bytes);
        if (piece && piece != to) memcpy(to, piece, n * bytes);
    }
}

void lent_write(const struct model_region *r, enum lent_array array, uint64_t bytes, uint64_t first,
                uint64_t count, const void *in) {
    for (uint64_t at = first, n; at < first + count; at += n) {
        void *piece = lent_at(r, array, bytes, at, &n);
        if (n > first + count - at) n = first + count - at;
        if (piece) memcpy(piece, (const uint8_t *)in + (at - first) * bytes, n * bytes);
    }
}

void lent_clear(const struct model_region *r, enum lent_array array, uint64_t bytes) {
    for (uint32_t i = 0; i < r->pieces; i++) memset(r->piece[i].array[array], 0, r->piece[i].count * bytes);
}

/* ---- which regions ---- */

/* The host reads the parameter at one address. */
static bool needs_address(const struct model_param *p) {
    return p->slot || p->param_pointer || p->grad_pointer || !p->spans;
}

/* Whether the parameter lets its region be lent. */
static bool allows(const struct model *m, uint32_t i) {
    const struct model_param *p = &m->param[i], *owner = &m->param[p->owner];
    return owner->spans && (!needs_address(p) || owner->span_count == 1);
}

static bool gives(const struct model *m, const struct model_region *r) {
    bool all = !m->unit[r->unit]->held;
    for (uint32_t i = 0; i < r->params; i++) {
        const struct model_param *p = &m->param[r->param[i]];
        all &= p->flags & ZERO_GIVES_GRAD && !p->last_tied && !p->spans;
    }
    return all;
}

/* Whether a tied parameter's gradient is in the owner's memory, however the spans cut it. */
static bool shares_gradient(const struct model *m, const struct model_param *p) {
    const struct model_region *r = &m->region[p->region];
    uint64_t at = p->offset, bytes = dtype_bytes(region_keeps_fp32(r) ? DTYPE_F32 : m->dtype);
    for (uint32_t i = 0; i < p->span_count; at += p->spans[i++].count)
        for (uint64_t k = 0, n; k < p->spans[i].count; k += n)
            if (lent_at(r, LENT_GRADS, bytes, at + k, &n) != (uint8_t *)p->spans[i].grad + k * bytes)
                return false;
    return true;
}

/* ---- spans in the same memory ---- */

struct extent {    /* of a span */
    uint32_t unit; /* of the parameter, or 0: the order is by unit, or by address alone */
    uintptr_t begin, end;
    const struct model_param *param;
};

static int compare_extents(const void *a, const void *b) {
    const struct extent *x = a, *y = b;
    if (x->unit != y->unit) return x->unit < y->unit ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static uint64_t list_extents(const struct model *m, enum lent_array array, bool by_unit, struct extent *out) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < m->params; i++) {
        const struct model_param *p = &m->param[i];
        uint64_t bytes = dtype_bytes(p->flags & ZERO_KEEP_FP32 ? DTYPE_F32 : m->dtype);
        for (uint32_t k = 0; k < p->span_count; k++) {
            const zero_span *span = &p->spans[k];
            uintptr_t begin = (uintptr_t)(array == LENT_PARAMS ? span->param : span->grad);
            if (begin && span->count)
                out[count++] = (struct extent){by_unit ? p->unit : 0, begin, begin + span->count * bytes, p};
        }
    }
    qsort(out, count, sizeof *out, compare_extents);
    return count;
}

/* Two spans overlap. Those of tied parameters may, and those of frozen ones, which stay alike. Gradients of several units may share one
 * array: the engine then copies them after each backward. All other spans must be apart. */
static zero_status meet(struct model *m, enum lent_array array, const struct model_param *p,
                        const struct model_param *q, struct zero_error *error) {
    bool tied = p != q && p->owner == q->owner, alike = p->flags & q->flags & ZERO_FROZEN;
    if (tied || alike) return ZERO_OK;
    if (array == LENT_GRADS && p->unit != q->unit) {
        m->region[p->region].lends_grads = m->region[q->region].lends_grads = false;
        return ZERO_OK;
    }
    if (p == q) return error_set(error, ZERO_E_ARGUMENT, "spans of parameter \"%s\" overlap", p->name);
    bool first = p < q;
    return error_set(error, ZERO_E_ARGUMENT,
                     "parameters \"%s\" and \"%s\" have spans in the same memory: give each its own, or "
                     "declare one as tied to the other",
                     first ? p->name : q->name, first ? q->name : p->name);
}

/* If an extent overlaps any that begins before it, it overlaps the one of these that ends last. */
static zero_status check_sorted(struct model *m, enum lent_array array, const struct extent *extent,
                                uint64_t count, struct zero_error *error) {
    const struct extent *last = extent;
    zero_status status = ZERO_OK;
    for (uint64_t i = 1; i < count && !status; i++) {
        bool same = extent[i].unit == last->unit;
        if (same && extent[i].begin < last->end) status = meet(m, array, last->param, extent[i].param, error);
        if (!same || extent[i].end > last->end) last = &extent[i];
    }
    return status;
}

/* Each unit by itself first: there, an array that several units share does not hide two gradients of one unit. */
static zero_status check_overlaps(struct model *m, struct zero_error *error) {
    static const struct {
        enum lent_array array;
        bool by_unit;
    } sweeps[] = {{LENT_PARAMS, true}, {LENT_GRADS, true}, {LENT_PARAMS, false}, {LENT_GRADS, false}};
    uint64_t spans = 0;
    for (uint32_t i = 0; i < m->params; i++) spans += m->param[i].span_count;
    struct extent *extent = malloc((spans ? spans : 1) * sizeof *extent);
    zero_status status = ZERO_OK;
    if (!extent) return error_set(error, ZERO_E_MEMORY, "no memory for the list of %" PRIu64 " spans", spans);
    for (size_t i = 0; i < sizeof sweeps / sizeof *sweeps && !status; i++) {
        uint64_t count = list_extents(m, sweeps[i].array, sweeps[i].by_unit, extent);
        status = check_sorted(m, sweeps[i].array, extent, count, error);
    }
    free(extent);
    return status;
}

static zero_status list_region(struct model *m, struct model_region *r, struct zero_error *error) {
    uint32_t pieces = 0;
    for (uint32_t i = 0; i < r->params; i++) pieces += r->gives ? 1 : m->param[r->param[i]].span_count;
    r->piece = calloc(pieces, sizeof *r->piece);
    if (!r->piece) return error_set(error, ZERO_E_MEMORY, "no memory for the list of %u spans", pieces);
    for (uint32_t i = 0; i < r->params; i++) {
        const struct model_param *p = &m->param[r->param[i]];
        uint64_t at = p->offset;
        if (r->gives) r->piece[r->pieces++] = (struct lent_piece){.first = at, .count = p->count};
        for (uint32_t k = 0; k < p->span_count; at += p->spans[k++].count)
            if (p->spans[k].count)
                r->piece[r->pieces++] =
                    (struct lent_piece){at, p->spans[k].count, {p->spans[k].param, p->spans[k].grad}};
    }
    return ZERO_OK;
}

zero_status lent_list(struct model *m, struct zero_error *error) {
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < m->regions; i++) m->region[i].lends = true;
    for (uint32_t i = 0; i < m->params; i++) m->region[m->param[i].region].lends &= allows(m, i);
    for (uint32_t i = 0; i < m->regions && !status; i++) {
        m->region[i].gives = gives(m, &m->region[i]);
        if (m->region[i].lends || m->region[i].gives) status = list_region(m, &m->region[i], error);
    }
    for (uint32_t i = 0; i < m->regions; i++) m->region[i].lends_grads = m->region[i].lends;
    for (uint32_t i = 0; i < m->params && !status; i++) {
        const struct model_param *p = &m->param[i];
        if (p->owner != i && !(p->spans && p->flags & ZERO_ADDS_GRAD && shares_gradient(m, p)))
            m->region[p->region].lends_grads = false;
    }
    return status ? status : check_overlaps(m, error);
}
