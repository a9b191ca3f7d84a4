#include "engine/ranks/peers.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/ranks/local_ranks.h"
#include "engine/ranks/model_ranks.h"

/* ---- the exchange ---- */

static zero_status no_memory(struct ranks *ranks, struct zero_error *error) {
    error_set(error, ZERO_E_MEMORY, "no memory for what the model ranks declared");
    comm_fail(ranks->comm, error); /* the others wait */
    return error->code;
}

static zero_status run(struct ranks *ranks, const struct comm_call *call, struct zero_error *error) {
    return comm_run(ranks->world, call) ? error_pass(error, comm_error(ranks->comm)) : ZERO_OK;
}

/* Sends the bytes from the first rank of a model rank to all ranks. */
static zero_status tell(struct ranks *ranks, uint32_t model, uint64_t bytes, struct declared *declared,
                        struct zero_error *error) {
    struct comm_call call = comm_broadcast(declared, DTYPE_U8, bytes, model_ranks_at(ranks, model, 0),
                                           "what a model rank declared");
    zero_status status = run(ranks, &call, error);
    if (status || declared_whole(declared, bytes)) return status;
    return error_set(error, ZERO_E_DIVERGED, "model rank %" PRIu32 " sent a model that is none", model);
}

/* The first data rank of each model rank sends its declarations. The others have declared the same, which the commit checks
 * later. If a call fails, the buffers outlive this rank, because peers may still read them. */
static zero_status exchange(struct peers *peers, struct ranks *ranks, struct zero_error *error) {
    uint64_t *bytes = outliving_message(ranks->outliving, (ranks->size + 1) * sizeof *bytes);
    struct declared *own = peers->rank[ranks->model_rank];
    if (!bytes) return no_memory(ranks, error);
    bytes[0] = own->bytes;
    struct comm_call call = comm_rows(bytes, sizeof *bytes, "what the model ranks declared");
    zero_status status = run(ranks, &call, error);
    for (uint32_t m = 0; m < ranks->model_size && !status; m++) {
        uint64_t size = bytes[1 + model_ranks_at(ranks, m, 0)];
        bool mine = m == ranks->model_rank && ranks->data_rank == 0;
        struct declared *told = mine ? own : malloc(size);
        if (!told) status = no_memory(ranks, error);
        if (!status) status = tell(ranks, m, size, told, error);
        if (told != own) free(peers->rank[m]), peers->rank[m] = told;
        if (m == ranks->model_rank) own = told;
        if (status) outliving_take(ranks->outliving, told), peers->rank[m] = NULL;
    }
    return status;
}

/* ---- one model of all pieces ---- */

static int by_element(const void *a, const void *b) {
    const struct peer_piece *x = a, *y = b;
    int names = strcmp(x->tensor, y->tensor);
    if (names) return names;
    if (x->param->first != y->param->first) return x->param->first < y->param->first ? -1 : 1;
    if (x->param->count != y->param->count) return x->param->count < y->param->count ? -1 : 1;
    return x->model < y->model ? -1 : x->model > y->model;
}

static zero_status list_pieces(struct peers *peers, struct ranks *ranks, struct zero_error *error) {
    uint64_t all = 0;
    for (uint32_t m = 0; m < peers->ranks; m++) all += peers->rank[m]->params;
    peers->piece = calloc(all + 1, sizeof *peers->piece);
    if (!peers->piece) return no_memory(ranks, error);
    for (uint32_t m = 0; m < peers->ranks; m++)
        for (uint32_t i = 0; i < peers->rank[m]->params; i++) {
            const struct declared_param *p = &peers->rank[m]->param[i];
            peers->piece[peers->pieces++] = (struct peer_piece){declared_name(peers->rank[m], p), p, m, 0};
        }
    qsort(peers->piece, peers->pieces, sizeof *peers->piece, by_element);
    return ZERO_OK;
}

static zero_status check_alike(const struct peers *peers, struct zero_error *error) {
    for (uint32_t m = 1; m < peers->ranks; m++)
        if (peers->rank[m]->alike != peers->rank[0]->alike)
            return error_set(error, ZERO_E_DIVERGED,
                             "model rank %" PRIu32 " has another optimizer or other parameter groups than "
                             "model rank 0; give all model ranks the same",
                             m);
    return ZERO_OK;
}

/* Two pieces of one tensor. */
static zero_status check_same_tensor(const struct peer_piece *a, const struct peer_piece *b,
                                     struct zero_error *error) {
    const uint32_t common = ZERO_FROZEN | ZERO_NO_DECAY | ZERO_KEEP_FP32;
    const struct declared_param *p = a->param, *q = b->param;
    bool same = p->tensor_count == q->tensor_count && p->dims == q->dims && p->group == q->group &&
                memcmp(p->shape, q->shape, p->dims * sizeof *p->shape) == 0 &&
                ((p->flags ^ q->flags) & common) == 0;
    if (same) return ZERO_OK;
    return error_set(
        error, ZERO_E_DIVERGED,
        "parameter \"%s\" has another shape, or other flags or another group, on model rank %" PRIu32
        " than on model rank %" PRIu32 ": give both the same, with tensor_row and tensor_rows where they are "
        "parts of a tensor, or each a name of its own",
        a->tensor, b->model, a->model);
}

static bool replicated(const struct peer_piece *a) { return a->param->flags & ZERO_MODEL_REPLICATED; }

/* Pieces of one tensor have elements in common. */
static zero_status overlap(const struct peer_piece *a, const struct peer_piece *b, struct zero_error *error) {
    return error_set(error, ZERO_E_DIVERGED,
                     "parameter \"%s\" is on model ranks %" PRIu32 " and %" PRIu32
                     ": give both ZERO_MODEL_REPLICATED if they are the same, tensor_row and tensor_rows if "
                     "they are different rows of a tensor, else each a name of its own",
                     a->tensor, a->model, b->model);
}

static zero_status check_end(const struct peer_piece *last, uint64_t end, struct zero_error *error) {
    if (end == last->param->tensor_count) return ZERO_OK;
    return error_set(error, ZERO_E_DIVERGED,
                     "no model rank has the elements from %" PRIu64 " on of tensor \"%s\", which has %" PRIu64
                     ": its parts on all model ranks together are the whole (zero_param.tensor_rows)",
                     end, last->tensor, last->param->tensor_count);
}

/* The pieces of one tensor, in order. They must follow one another, but for copies. */
static zero_status check_tensor(struct peer_piece *piece, uint32_t count, struct zero_error *error) {
    struct peer_piece *first = piece; /* of copies */
    uint64_t end = piece->param->count;
    zero_status status = piece->param->first ? check_end(piece, 0, error) : ZERO_OK;
    piece->copies = 1;
    for (uint32_t i = 1; i < count && !status; i++) {
        struct peer_piece *p = &piece[i];
        status = check_same_tensor(first, p, error);
        if (status) break;
        bool copy = p->param->first == first->param->first && p->param->count == first->param->count &&
                    p->model != first->model && replicated(p) && replicated(first);
        if (copy) {
            first->copies++;
            continue;
        }
        if (p->param->first < end) return overlap(first, p, error);
        if (p->param->first > end) return check_end(p, end, error);
        first = p, p->copies = 1;
        end += p->param->count;
    }
    return status ? status : check_end(first, end, error);
}

static zero_status check_tensors(struct peers *peers, struct zero_error *error) {
    for (uint32_t i = 0, end; i < peers->pieces; i = end) {
        for (end = i + 1;
             end < peers->pieces && strcmp(peers->piece[end].tensor, peers->piece[i].tensor) == 0;)
            end++;
        TRY(check_tensor(&peers->piece[i], end - i, error));
    }
    return ZERO_OK;
}

/* ---- what follows for this rank ---- */

static void mark_params(const struct peers *peers, const struct ranks *ranks, struct model *model) {
    uint32_t copies = 0;
    for (uint32_t i = 0; i < peers->pieces; i++) {
        const struct peer_piece *piece = &peers->piece[i];
        if (piece->copies) copies = piece->copies;
        if (piece->model != ranks->model_rank || piece->param->index >= model->params) continue;
        struct model_param *p = &model->param[piece->param->index];
        p->copies = replicated(piece) ? copies : 0;
        p->elsewhere = !piece->copies;
    }
}

static void mark_groups(const struct peers *peers, struct param_groups *groups) {
    for (uint32_t m = 0; m < peers->ranks; m++) {
        for (uint32_t g = 0; g < GROUP_MAX; g++) groups->matched[g] |= peers->rank[m]->matched[g];
        groups->elsewhere |= peers->rank[m]->grouped;
    }
}

/* A rank whose model is whole has all rows of its tensors. */
static bool alone(const struct ranks *ranks, const struct model *model) {
    for (uint32_t i = 0; i < model->params; i++)
        if (model->param[i].tensor_rows) return false;
    return ranks->model_size == 1;
}

zero_status peers_meet(struct peers *peers, struct ranks *ranks, struct model *model,
                       struct param_groups *groups, uint64_t alike, struct zero_error *error) {
    if (alone(ranks, model)) return ZERO_OK;
    peers->rank = calloc(ranks->model_size, sizeof *peers->rank);
    if (!peers->rank) return no_memory(ranks, error);
    peers->ranks = ranks->model_size;
    struct declared *own = peers->rank[ranks->model_rank] = declared_make(model, groups, alike);
    if (!own) return no_memory(ranks, error);
    TRY(ranks->model_size > 1 ? exchange(peers, ranks, error) : ZERO_OK);
    TRY(list_pieces(peers, ranks, error));
    TRY(check_alike(peers, error));
    TRY(check_tensors(peers, error));
    mark_params(peers, ranks, model);
    mark_groups(peers, groups);
    return ZERO_OK;
}

void peers_plan(const struct ranks *ranks, struct model *model, struct param_groups *groups) {
    if (ranks->model_size == 1) return;
    for (uint32_t i = 0; i < model->params; i++) {
        struct model_param *p = &model->param[i];
        p->elsewhere = p->owner == i && p->flags & ZERO_MODEL_REPLICATED && ranks->model_rank > 0;
    }
    for (uint32_t g = 0; g < GROUP_MAX; g++) groups->matched[g] = UINT64_MAX;
    groups->elsewhere = UINT64_MAX;
}

void peers_close(struct peers *peers) {
    for (uint32_t m = 0; m < peers->ranks; m++) free(peers->rank[m]);
    free(peers->rank);
    free(peers->piece);
    *peers = (struct peers){0};
}

/* ---- questions ---- */

const struct peer_piece *peers_find(const struct peers *peers, const char *tensor) {
    uint32_t low = 0, high = peers->pieces;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (strcmp(peers->piece[middle].tensor, tensor) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < peers->pieces && strcmp(peers->piece[low].tensor, tensor) == 0 ? &peers->piece[low] : NULL;
}

const char *peers_unit(const struct peers *peers, uint32_t model, uint32_t unit) {
    return unit < peers->rank[model]->units ? declared_unit(peers->rank[model], unit) : "";
}

uint32_t peers_params(const struct peers *peers) {
    uint32_t most = 0;
    for (uint32_t m = 0; m < peers->ranks; m++)
        for (uint32_t i = 0; i < peers->rank[m]->params; i++)
            if (peers->rank[m]->param[i].index >= most) most = peers->rank[m]->param[i].index + 1;
    return most;
}
