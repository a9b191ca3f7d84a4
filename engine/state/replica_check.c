/* Debugging (debug.compare_every): what several ranks store must be the same bits on all of them. */
#include "engine/state/state.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/model/lent.h"
#include "engine/ranks/model_ranks.h"
#include "engine/run/run.h"
#include "engine/state/background_save.h"
#include "kernels/checksum.h"

/* In the order in which a difference spreads: the first kind that differs is the nearest to the cause. */
enum object_kind { REDUCED_GRADIENT, FIRST_STATE, SECOND_STATE, MASTERS, WEIGHTS, AVERAGE, OBJECT_KINDS };

struct item {
    const struct model_param *param;
    enum object_kind kind;
};

static struct placement placement_of(const struct state *state, const struct item *item) {
    const struct region *r = &state->blueprint->regions[item->param->region];
    return item->kind == REDUCED_GRADIENT ? r->grad_step : item->kind == WEIGHTS ? r->rest : r->state;
}

/* The reduced gradient stays in its buffer until the next backward, if it has a buffer of its own. */
static struct buffer_ref gradient_ref(const struct state *state, uint32_t region) {
    bool whole = placement_is(state->blueprint->regions[region].grad_step, REPLICATE, REPLICATE);
    return (struct buffer_ref){whole ? BUFFER_GRAD_FULL : BUFFER_GRAD_SHARD, (uint16_t)region};
}

static bool is_there(const struct state *state, const struct item *item) {
    if (item->kind == WEIGHTS)
        return !state->blueprint->plan.layout.region[item->param->region]
                    .params; /* those are verified as read */
    if (state->blueprint->regions[item->param->region].frozen) return false;
    struct precision precision = blueprint_precision_of(state->blueprint, item->param->region);
    switch (item->kind) {
    case REDUCED_GRADIENT:
        if (state->blueprint->regions[item->param->region].grad_brief) return false;
        return plan_fixed(&state->blueprint->plan, gradient_ref(state, item->param->region)) != NO_BUFFER;
    case MASTERS:
        return precision_keeps_masters(&precision);
    case AVERAGE:
        return state_averages(state, item->param->region);
    default:
        return (uint32_t)(item->kind - FIRST_STATE) < state->training->state_count;
    }
}

static bool replicated(const struct state *state, const struct item *item) {
    return is_there(state, item) && placement_parts(placement_of(state, item),
                                                    state->blueprint->policy.mesh) < state->ranks->data_size;
}

/* ---- hashing ---- */

static void hash_bytes_of(uint64_t *hash, const void *data, uint64_t bytes) {
    uint64_t sum = checksum(data, bytes);
    *hash = hash_bytes(*hash, &sum, sizeof sum);
}

/* Hashes memory of a device piece by piece. */
static zero_status hash_memory(struct state *state, uint64_t *hash, const void *data, enum dtype dtype,
                               uint64_t first, uint64_t count) {
    const uint8_t *at = (const uint8_t *)data + first * dtype_bytes(dtype);
    uint64_t left = count * dtype_bytes(dtype);
    zero_status status = ZERO_OK;
    struct zero_error error = ERROR_NONE;
    if (!device_has(state->run, at)) return hash_bytes_of(hash, at, left), ZERO_OK;
    for (uint64_t bytes; left && !status; at += bytes, left -= bytes) {
        bytes = min64(left, PIECE_BYTES);
        status = device_copy(state->run, state->host.bounce, at, bytes, &error);
        if (status) return ranks_fail(state->ranks, &error);
        hash_bytes_of(hash, state->host.bounce, bytes);
    }
    return status;
}

/* Hashes the item wherever it is. */
static zero_status hash_stored(struct state *state, const struct item *item, uint64_t begin, uint64_t end,
                               uint64_t *hash) {
    static const zero_kind kinds[] = {[REDUCED_GRADIENT] = ZERO_GRAD,
                                      [FIRST_STATE] = ZERO_STATE0,
                                      [SECOND_STATE] = ZERO_STATE1,
                                      [MASTERS] = ZERO_PARAM,
                                      [AVERAGE] = ZERO_EMA};
    zero_status status = ZERO_OK;
    for (uint64_t count; begin < end && !status; begin += count) {
        count = min64(end - begin, PIECE_BYTES / sizeof(float));
        status = state_read(state, item->param->region, kinds[item->kind], begin, count,
                            (float *)(void *)state->piece);
        hash_bytes_of(hash, state->piece, count * sizeof(float));
    }
    return status;
}

/* Hashes a parameter in the host program's memory, where each rank has all of it, in the pieces of its spans.
 * Gradients have the type of the weights there. */
static void hash_lent(struct state *state, uint32_t region, enum lent_array array, uint64_t begin,
                      uint64_t end, uint64_t *hash) {
    uint64_t bytes = dtype_bytes(blueprint_precision_of(state->blueprint, region).compute);
    for (uint64_t count; begin < end; begin += count) {
        count = min64(end - begin, PIECE_BYTES / bytes);
        lent_read(&state->model->region[region], array, bytes, begin, count, state->piece);
        hash_bytes_of(hash, state->piece, count * bytes);
    }
}

static zero_status hash_item(struct state *state, const struct item *item, uint64_t *hash) {
    const struct model_param *p = item->param;
    struct stored_range part =
        range_of_rank(state->blueprint, state->ranks->data_rank, p->region, placement_of(state, item));
    uint64_t begin = max64(p->offset, part.first), end = min64(p->offset + p->count, part.first + part.count);
    struct precision precision = blueprint_precision_of(state->blueprint, p->region);
    if (begin >= end) return ZERO_OK;
    if (item->kind == WEIGHTS && state->blueprint->regions[p->region].lent)
        return hash_lent(state, p->region, LENT_PARAMS, begin, end, hash), ZERO_OK;
    bool grad_lent = state->blueprint->regions[p->region].grad_lent;
    if (item->kind == REDUCED_GRADIENT && grad_lent &&
        gradient_ref(state, p->region).kind == BUFFER_GRAD_FULL)
        return hash_lent(state, p->region, LENT_GRADS, begin, end, hash), ZERO_OK;
    if (item->kind == WEIGHTS)
        return hash_memory(state, hash, stored_params(&state->host, p->region, &part), precision.compute,
                           begin - part.first, end - begin);
    if (item->kind == REDUCED_GRADIENT && !state->blueprint->plan.layout.region[p->region].grads)
        return hash_memory(state, hash,
                           executor_address(state->run->executor, gradient_ref(state, p->region)),
                           precision.reduced, begin - part.first, end - begin);
    return hash_stored(state, item, begin, end, hash);
}

/* ---- comparing ---- */

/* Held whole by all ranks, or cut on the shard axis and held by the ranks of a column. */
enum { WHOLE, COLUMN };

static uint32_t word_of(const struct state *state, const struct item *item) {
    return placement_of(state, item).axis[AXIS_SHARD] == SHARD ? COLUMN : WHOLE;
}

/* The first of the ranks that store the same part. */
static uint32_t first_of(const struct state *state, uint32_t word, uint32_t rank) {
    uint32_t column = data_rank_of(state->ranks, rank) % state->blueprint->policy.mesh[AXIS_SHARD];
    return model_ranks_at(state->ranks, model_rank_of(state->ranks, rank), word == WHOLE ? 0 : column);
}

/* The number of ranks that should store the same bits as `rank`, and do. */
static uint32_t agreeing(const struct state *state, const struct rank_report *all, uint32_t word,
                         uint32_t rank) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < state->ranks->size; r++)
        count += first_of(state, word, r) == first_of(state, word, rank) &&
                 all[r].word[word] == all[rank].word[word];
    return count;
}

/* Some ranks differ: *out_right is the first rank that agrees with most (of two ranks the first), *out_rank the first that does
 * not. */
static void judge(const struct state *state, const struct rank_report *all, uint32_t word, uint32_t first,
                  uint32_t *out_rank, uint32_t *out_right) {
    uint32_t right = first, most = 0, rank = first;
    for (uint32_t r = first; r < state->ranks->size; r++) {
        uint32_t count = first_of(state, word, r) == first ? agreeing(state, all, word, r) : 0;
        if (count > most) most = count, right = r;
    }
    while (first_of(state, word, rank) != first || all[rank].word[word] == all[right].word[word]) rank++;
    *out_rank = rank, *out_right = right;
}

static bool find_other(const struct state *state, const struct rank_report *all, uint32_t word,
                       uint32_t *out_rank, uint32_t *out_right) {
    for (uint32_t r = 0; r < state->ranks->size; r++) {
        uint32_t first = first_of(state, word, r);
        if (all[r].word[word] == all[first].word[word]) continue;
        judge(state, all, word, first, out_rank, out_right);
        return true;
    }
    return false;
}

/* `most`: more than one rank agrees with `right`. Else there are two ranks, and either may be wrong. */
static void describe(const struct state *state, const struct item *item, uint32_t rank, uint32_t right,
                     bool most, struct zero_error *error) {
    const char *names[OBJECT_KINDS] = {[REDUCED_GRADIENT] = "reduced gradient",
                                       [FIRST_STATE] = training_state_name(state->training, 0),
                                       [SECOND_STATE] = training_state_name(state->training, 1),
                                       [MASTERS] = "master weights",
                                       [WEIGHTS] = "weights",
                                       [AVERAGE] = "averaged weights"};
    error_set(error, ZERO_E_DIVERGED,
              "debug.compare_every: after step %" PRIu64
              " the bits of the %s of parameter \"%s\" in unit \"%s\" differ on rank %" PRIu32
              " from those on rank %" PRIu32 "%s: look at that rank's memory and machine, and go on from a "
              "checkpoint",
              state->training->steps, names[item->kind], item->param->name,
              state->model->unit[item->param->unit]->name, rank, right,
              most ? ", which most ranks have" : "");
    error->rank = (int32_t)rank;
}

static zero_status say(struct state *state, const uint64_t word[2], const struct rank_report **out_all) {
    struct zero_error none = ERROR_NONE;
    return ranks_agree(state->ranks, &none, word, "what is replicated", out_all);
}

static bool is_replicated(const struct state *state, uint32_t index, enum object_kind kind,
                          struct item *out) {
    if (index >= state->model->params || state->model->param[index].owner != index) return false;
    *out = (struct item){&state->model->param[index], kind};
    return replicated(state, out);
}

/* Model ranks have different parameters: each rank goes on as long as any rank has one left. */
static uint32_t most_params(const struct state *state) {
    uint32_t peers = peers_params(state->peers);
    return peers > state->model->params ? peers : state->model->params;
}

/* The ranks with this model rank know which parameter it is, and tell the others. */
static zero_status diverged(struct state *state, const struct item *item, const struct rank_report *all,
                            uint32_t word, uint32_t rank, uint32_t right) {
    struct zero_error error = ERROR_NONE;
    bool most = agreeing(state, all, word, right) > 1;
    if (model_rank_of(state->ranks, rank) == state->ranks->model_rank)
        describe(state, item, rank, right, most, &error);
    if (state->ranks->model_size > 1) {
        struct zero_error mine = error;
        zero_status status = ranks_agree(state->ranks, &mine, (uint64_t[2]){0}, "what differs", &all);
        error_clear(&error);
        error_set(&error, status, "%s", zero_last_error());
        error.rank = (int32_t)rank;
    }
    return ranks_fail_alike(state->ranks, &error);
}

/* All ranks compare one item after another, up to the first that differs. */
static zero_status find_item(struct state *state) {
    const struct rank_report *all;
    uint32_t rank, right;
    for (uint32_t i = 0; i < most_params(state); i++)
        for (int kind = 0; kind < OBJECT_KINDS; kind++) {
            struct item item = {0};
            uint64_t word[2] = {HASH_START, HASH_START};
            bool own = is_replicated(state, i, (enum object_kind)kind, &item);
            if (!own && state->ranks->model_size == 1) continue;
            if (own) TRY(hash_item(state, &item, &word[word_of(state, &item)]));
            TRY(say(state, word, &all));
            for (uint32_t w = WHOLE; w <= COLUMN; w++)
                if (find_other(state, all, w, &rank, &right))
                    return diverged(state, &item, all, w, rank, right);
        }
    return ZERO_OK;
}

/* ---- copies on several model ranks ---- */

/* The first copy adds its hash once for each other copy, and each other copy subtracts its own. The sum is 0 if all are equal.
 * `piece` NULL: the copies of all parameters. */
static zero_status sum_copies(struct state *state, const struct peer_piece *piece, bool *out_equal) {
    const struct rank_report *all;
    uint64_t word[2] = {0}, total[2] = {0};
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < state->model->params && !status; i++) {
        const struct model_param *p = &state->model->param[i];
        bool meant =
            !piece || (strcmp(p->tensor, piece->tensor) == 0 && p->tensor_first == piece->param->first);
        uint64_t sum[2] = {0}, times = p->elsewhere ? -UINT64_C(1) : (uint64_t)p->copies - 1;
        if (p->owner != i || p->copies < 2 || !meant) continue;
        status = weights_hash_param(state, p, sum);
        for (int k = 0; k < 2; k++) word[k] += times * sum[k];
    }
    if (!status) status = say(state, word, &all);
    if (status) return status;
    for (uint32_t r = 0; r < state->ranks->size; r++)
        for (int k = 0; k < 2; k++) total[k] += all[r].word[k];
    *out_equal = !total[0] && !total[1];
    return ZERO_OK;
}

static zero_status check_copies(struct state *state) {
    const struct peers *peers = state->peers;
    bool equal = true;
    zero_status status = state->ranks->model_size > 1 ? sum_copies(state, NULL, &equal) : ZERO_OK;
    if (status || equal) return status;
    for (uint32_t i = 0; i < peers->pieces; i++) {
        if (peers->piece[i].copies < 2) continue;
        TRY(sum_copies(state, &peers->piece[i], &equal));
        if (equal) continue;
        struct zero_error error = ERROR_NONE;
        error_set(
            &error, ZERO_E_DIVERGED,
            "debug.compare_every: after step %" PRIu64
            " the weights of parameter \"%s\" differ on the %" PRIu32
            " model ranks that have it, the first of which is model rank %" PRIu32
            ": it is ZERO_MODEL_REPLICATED, so the host program gives it the same gradient on all of them",
            state->training->steps, peers->piece[i].tensor, peers->piece[i].copies, peers->piece[i].model);
        return ranks_fail_alike(state->ranks, &error);
    }
    return ZERO_OK;
}

zero_status replica_check(struct state *state) {
    uint64_t word[2] = {HASH_START, HASH_START};
    const struct rank_report *all;
    uint32_t rank, right;
    zero_status status =
        background_save_finish(state); /* a save in the background reads through the same slot */
    if (!status) status = run_settle(state->run);
    for (uint32_t i = 0; i < state->model->params && !status; i++)
        for (int kind = 0; kind < OBJECT_KINDS && !status; kind++) {
            struct item item = {&state->model->param[i], (enum object_kind)kind};
            if (item.param->owner == i && replicated(state, &item))
                status = hash_item(state, &item, &word[word_of(state, &item)]);
        }
    if (!status) status = say(state, word, &all);
    if (status) return status;
    bool others =
        find_other(state, all, WHOLE, &rank, &right) || find_other(state, all, COLUMN, &rank, &right);
    return others ? find_item(state) : check_copies(state);
}
