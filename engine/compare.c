#include "engine/compare.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checksum.h"
#include "engine/base/hash.h"
#include "engine/held.h"
#include "engine/saver.h"

/* In the order in which one makes the next differ: the first that differs is the nearest to the cause. */
enum object_kind { REDUCED_GRADIENT, FIRST_STATE, SECOND_STATE, MASTERS, WEIGHTS, OBJECT_KINDS };

struct item {
    const struct model_param *param;
    enum object_kind kind;
};

static struct placement placement_of(const zero_engine *e, const struct item *item) {
    const struct region *r = &e->regions[item->param->region];
    return item->kind == REDUCED_GRADIENT ? r->grad_step : item->kind == WEIGHTS ? r->rest : r->state;
}

/* Gradients stay where they were reduced until the next backward, if that is a place of their own. */
static struct buffer_ref gradient_ref(const zero_engine *e, uint32_t region) {
    bool whole = placement_is(e->regions[region].grad_step, REPLICATE, REPLICATE);
    return (struct buffer_ref){whole ? BUFFER_GRAD_FULL : BUFFER_GRAD_SHARD, (uint16_t)region};
}

static bool is_there(const zero_engine *e, const struct item *item) {
    if (item->kind == WEIGHTS)
        return !e->plan.swap.region[item->param->region].params; /* those are verified as read */
    if (e->regions[item->param->region].frozen) return false;
    switch (item->kind) {
    case REDUCED_GRADIENT:
        return plan_fixed(&e->plan, gradient_ref(e, item->param->region)) != NO_BUFFER;
    case MASTERS:
        return precision_keeps_masters(&e->precision);
    default:
        return (uint32_t)(item->kind - FIRST_STATE) < e->state_count;
    }
}

static bool replicated(const zero_engine *e, const struct item *item) {
    return is_there(e, item) && placement_parts(placement_of(e, item), e->policy.mesh) < e->size;
}

/* ---- hashing ---- */

static void hash_bytes_of(uint64_t *hash, const void *data, uint64_t bytes) {
    uint64_t sum = checksum(data, bytes);
    *hash = hash_bytes(*hash, &sum, sizeof sum);
}

/* A device's piece by piece. */
static zero_status hash_memory(zero_engine *e, uint64_t *hash, const void *data, enum dtype dtype,
                               uint64_t first, uint64_t count) {
    const uint8_t *at = (const uint8_t *)data + first * dtype_bytes(dtype);
    uint64_t left = count * dtype_bytes(dtype);
    zero_status status = ZERO_OK;
    if (!reach_is_device(e, at)) return hash_bytes_of(hash, at, left), ZERO_OK;
    for (uint64_t bytes; left && !status; at += bytes, left -= bytes) {
        bytes = min64(left, PIECE_BYTES);
        status = reach_copy(e, e->bounce[0], at, bytes);
        hash_bytes_of(hash, e->bounce[0], bytes);
    }
    return status;
}

/* Wherever it lives. */
static zero_status hash_held(zero_engine *e, const struct item *item, uint64_t begin, uint64_t end,
                             uint64_t *hash) {
    static const zero_kind kinds[] = {
        [FIRST_STATE] = ZERO_STATE0, [SECOND_STATE] = ZERO_STATE1, [MASTERS] = ZERO_PARAM};
    zero_status status = ZERO_OK;
    for (uint64_t count; begin < end && !status; begin += count) {
        count = min64(end - begin, PIECE_BYTES / sizeof(float));
        status =
            held_read(e, item->param->region, kinds[item->kind], begin, count, (float *)(void *)e->piece);
        hash_bytes_of(hash, e->piece, count * sizeof(float));
    }
    return status;
}

static zero_status hash_item(zero_engine *e, const struct item *item, uint64_t *hash) {
    const struct model_param *p = item->param;
    struct part part = own_part(e, p->region, placement_of(e, item));
    uint64_t begin = max64(p->offset, part.first), end = min64(p->offset + p->count, part.first + part.count);
    if (begin >= end) return ZERO_OK;
    if (item->kind == WEIGHTS)
        return hash_memory(e, hash, param_part(e, p->region, &part), e->precision.compute, begin - part.first,
                           end - begin);
    if (item->kind == REDUCED_GRADIENT)
        return hash_memory(e, hash, executor_address(e->executor, gradient_ref(e, p->region)),
                           e->precision.reduced, begin - part.first, end - begin);
    return hash_held(e, item, begin, end, hash);
}

/* ---- comparing ---- */

/* Held whole by all ranks, or cut on the shard axis and held by the ranks of a column. */
enum { WHOLE, COLUMN };

static uint32_t word_of(const zero_engine *e, const struct item *item) {
    return placement_of(e, item).axis[AXIS_SHARD] == SHARD ? COLUMN : WHOLE;
}

/* The first rank of those that hold the same part. */
static uint32_t first_of(const zero_engine *e, uint32_t word, uint32_t rank) {
    return word == WHOLE ? 0 : rank % e->policy.mesh[AXIS_SHARD];
}

/* How many hold what `rank` holds, of those that should. */
static uint32_t agreeing(const zero_engine *e, const struct said *all, uint32_t word, uint32_t rank) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < e->size; r++)
        count += first_of(e, word, r) == first_of(e, word, rank) && all[r].word[word] == all[rank].word[word];
    return count;
}

/* Of ranks of which some differ: the first that has what most have, or of two the first; and the first that has not. */
static void judge(const zero_engine *e, const struct said *all, uint32_t word, uint32_t first,
                  uint32_t *out_rank, uint32_t *out_right) {
    uint32_t right = first, most = 0, rank = first;
    for (uint32_t r = first; r < e->size; r++) {
        uint32_t count = first_of(e, word, r) == first ? agreeing(e, all, word, r) : 0;
        if (count > most) most = count, right = r;
    }
    while (first_of(e, word, rank) != first || all[rank].word[word] == all[right].word[word]) rank++;
    *out_rank = rank, *out_right = right;
}

static bool find_other(const zero_engine *e, const struct said *all, uint32_t word, uint32_t *out_rank,
                       uint32_t *out_right) {
    for (uint32_t r = 0; r < e->size; r++) {
        uint32_t first = first_of(e, word, r);
        if (all[r].word[word] == all[first].word[word]) continue;
        judge(e, all, word, first, out_rank, out_right);
        return true;
    }
    return false;
}

/* `most`: more than one rank has what `right` has; else nobody can tell which of two is wrong. */
static zero_status diverged(zero_engine *e, const struct item *item, uint32_t rank, uint32_t right,
                            bool most) {
    const char *names[OBJECT_KINDS] = {[REDUCED_GRADIENT] = "reduced gradient",
                                       [FIRST_STATE] = e->optimizer->state_names[0],
                                       [SECOND_STATE] = e->optimizer->state_names[1],
                                       [MASTERS] = "master weights",
                                       [WEIGHTS] = "weights"};
    error_set(&e->error, ZERO_E_DIVERGED,
              "debug.compare_every: after step %" PRIu64
              " the %s of parameter \"%s\" in unit \"%s\" are other bits on "
              "rank %" PRIu32 " than on rank %" PRIu32
              "%s: look at that rank's memory and machine, and go on from a "
              "checkpoint",
              e->steps, names[item->kind], item->param->name, e->model.unit[item->param->unit]->name, rank,
              right, most ? ", which most ranks have" : "");
    e->error.rank = (int32_t)rank;
    return engine_check(e); /* all ranks come to this by themselves: nobody need be told */
}

static zero_status say(zero_engine *e, const uint64_t word[2], const struct said **out_all) {
    struct zero_error none;
    error_clear(&none);
    return engine_agree_said(e, &none, word, "what is replicated", out_all);
}

/* One thing after another, all ranks together, until the one that differs. */
static zero_status find_item(zero_engine *e) {
    const struct said *all;
    uint32_t rank, right;
    for (uint32_t i = 0; i < e->model.params; i++)
        for (int kind = 0; kind < OBJECT_KINDS; kind++) {
            struct item item = {&e->model.param[i], (enum object_kind)kind};
            uint64_t word[2] = {HASH_START, HASH_START};
            if (item.param->owner != i || !replicated(e, &item)) continue;
            zero_status status = hash_item(e, &item, &word[word_of(e, &item)]);
            if (!status) status = say(e, word, &all);
            if (status) return status;
            if (find_other(e, all, word_of(e, &item), &rank, &right))
                return diverged(e, &item, rank, right, agreeing(e, all, word_of(e, &item), right) > 1);
        }
    return ZERO_OK;
}

zero_status compare_ranks(zero_engine *e) {
    uint64_t word[2] = {HASH_START, HASH_START};
    const struct said *all;
    uint32_t rank, right;
    zero_status status = saver_finish(e); /* it reads through the same slot */
    if (!status) status = engine_settle(e);
    for (uint32_t i = 0; i < e->model.params && !status; i++)
        for (int kind = 0; kind < OBJECT_KINDS && !status; kind++) {
            struct item item = {&e->model.param[i], (enum object_kind)kind};
            if (item.param->owner == i && replicated(e, &item))
                status = hash_item(e, &item, &word[word_of(e, &item)]);
        }
    if (!status) status = say(e, word, &all);
    if (status) return status;
    bool differ = find_other(e, all, WHOLE, &rank, &right) || find_other(e, all, COLUMN, &rank, &right);
    return differ ? find_item(e) : ZERO_OK;
}
