#include "tests/engine/cut_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"

/* ---- what the ranks of a model send each other ---- */

/* A meeting of some ranks: each brings an array, and gets all of them. Two buffers, because a rank may come again before the others
 * have read. */
struct meeting {
    uint32_t ranks, arrived, turn;
    float brought[2][CUT_MODELS_MAX][CUT_VALUES];
};

/* From one stage to the next, by micro-batch. */
struct mailbox {
    bool there[CUT_MICROS];
    float values[CUT_MICROS][CUT_VALUES];
};

struct cut_world {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool dead; /* a rank has failed: nobody waits any more */
    struct meeting tensor[CUT_RANKS_MAX][CUT_MODELS_MAX], ends[CUT_RANKS_MAX][CUT_MODELS_MAX];
    struct mailbox forward[CUT_RANKS_MAX][CUT_MODELS_MAX], backward[CUT_RANKS_MAX][CUT_MODELS_MAX];
};

/* The sum of all arrays, in the order of ranks: the same bits on all. */
static void meet(struct cut_world *w, struct meeting *m, uint32_t index, float *values, uint32_t count) {
    if (m->ranks < 2) return;
    pthread_mutex_lock(&w->mutex);
    uint32_t turn = m->turn;
    memcpy(m->brought[turn % 2][index], values, count * sizeof *values);
    if (++m->arrived == m->ranks) m->arrived = 0, m->turn++, pthread_cond_broadcast(&w->changed);
    while (m->turn == turn && !w->dead) pthread_cond_wait(&w->changed, &w->mutex);
    for (uint32_t i = 0; i < count; i++) {
        values[i] = 0;
        for (uint32_t r = 0; r < m->ranks; r++) values[i] += m->brought[turn % 2][r][i];
    }
    pthread_mutex_unlock(&w->mutex);
}

static void put(struct cut_world *w, struct mailbox *box, uint32_t micro, const float *values) {
    pthread_mutex_lock(&w->mutex);
    while (box->there[micro] && !w->dead) pthread_cond_wait(&w->changed, &w->mutex);
    memcpy(box->values[micro], values, sizeof box->values[micro]);
    box->there[micro] = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

static void take(struct cut_world *w, struct mailbox *box, uint32_t micro, float *values) {
    pthread_mutex_lock(&w->mutex);
    while (!box->there[micro] && !w->dead) pthread_cond_wait(&w->changed, &w->mutex);
    memcpy(values, box->values[micro], sizeof box->values[micro]);
    box->there[micro] = false;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

static zero_status give_up(struct cut_model *m, zero_status status) {
    pthread_mutex_lock(&m->world->mutex);
    m->world->dead = true;
    pthread_cond_broadcast(&m->world->changed);
    pthread_mutex_unlock(&m->world->mutex);
    return status;
}

/* ---- declaring ---- */

static const struct {
    const char *name;
    bool cut;
    uint32_t rows, columns;
} params[CUT_PARAMS] = {[CUT_G] = {"g", false, CUT_WIDTH, 1},
                        [CUT_W1] = {"w1", true, CUT_HIDDEN, CUT_WIDTH},
                        [CUT_B1] = {"b1", true, CUT_HIDDEN, 1},
                        [CUT_W2] = {"w2", true, CUT_HIDDEN, CUT_WIDTH},
                        [CUT_B2] = {"b2", false, CUT_WIDTH, 1}};

static uint32_t rows_here(const struct cut_model *m, uint32_t param) {
    return params[param].cut ? params[param].rows / m->cut->tensor : params[param].rows;
}

static uint32_t row_here(const struct cut_model *m, uint32_t param) {
    return params[param].cut ? rows_here(m, param) * m->tp : 0;
}

void cut_name(const struct cut_model *m, uint32_t block, uint32_t param, char out[32]) {
    snprintf(out, 32, "h%u.%s", block, params[param].name);
    if (params[param].cut && m->cut->own_names)
        snprintf(out, 32, "h%u.%s.%u", block, params[param].name, m->tp);
}

static zero_status declare_param(struct cut_model *m, uint32_t block, uint32_t i) {
    char name[32];
    cut_name(m, block, i, name);
    bool no_decay = i == CUT_W1 && m->model && m->model == m->cut->no_decay_model;
    bool cut = params[i].cut, rows = cut && !m->cut->own_names && m->cut->tensor > 1;
    zero_param param = {.struct_size = sizeof param,
                        .name = name,
                        .dims = params[i].columns > 1 ? 2 : 1,
                        .shape = {rows_here(m, i), params[i].columns},
                        .flags = (cut ? 0 : ZERO_MODEL_REPLICATED) | (no_decay ? ZERO_NO_DECAY : 0),
                        .tensor = rows ? name : NULL,
                        .tensor_row = rows ? row_here(m, i) : 0,
                        .tensor_rows = rows ? params[i].rows : 0,
                        .slot = &m->slot[block][i]};
    return zero_unit_add_param(m->block[block], &param);
}

static bool has_scale(const struct cut_model *m) { return m->stage == 0 || m->stage == m->cut->stages - 1; }

zero_status cut_declare(struct cut_model *m) {
    zero_status status = zero_engine_free_order(m->engine);
    if (!status && has_scale(m)) {
        zero_param s = {.struct_size = sizeof s,
                        .name = "s",
                        .dims = 1,
                        .shape = {CUT_WIDTH},
                        .flags = ZERO_MODEL_REPLICATED,
                        .slot = &m->s_slot};
        status = zero_engine_add_unit(m->engine, "scale", &m->scale);
        if (!status) status = zero_unit_add_param(m->scale, &s);
    }
    for (uint32_t b = m->first_block; b < m->first_block + m->blocks && !status; b++) {
        char name[16];
        snprintf(name, sizeof name, "h%u", b);
        status = zero_engine_add_unit(m->engine, name, &m->block[b]);
        for (uint32_t i = 0; i < CUT_PARAMS && !status; i++) status = declare_param(m, b, i);
    }
    return status;
}

static float random_of(uint64_t x) { /* splitmix64, in [-1, 1) */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (float)((double)((int64_t)(x ^ (x >> 31)) >> 11) * 0x1p-52);
}

/* A part with a name of its own, "h0.w1.1", begins with the weights that it has in the whole. */
void cut_fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    uint64_t name = 14695981039346656037u;
    const char *part = strchr(param, '.') ? strchr(strchr(param, '.') + 1, '.') : NULL;
    for (const char *c = param; *c && c != part; c++) name = (name ^ (unsigned char)*c) * 1099511628211u;
    if (part) first += (uint64_t)(part[1] - '0') * CUT_HIDDEN / 2 * (strstr(param, ".w") ? CUT_WIDTH : 1);
    bool gain = strcmp(param, "s") == 0 || strstr(param, ".g");
    for (uint64_t i = 0; i < count; i++)
        out[i] = (gain ? 1 : 0) + random_of(name + (first + i) * 0xd1342543de82ef95u) / 2;
}

/* ---- computing ---- */

static void read_batch(const struct cut_model *m, uint32_t micro, bool targets, float *out) {
    uint64_t seed = ((m->step * 97ull + m->data_rank) * 97 + micro) * 2 + targets;
    for (uint32_t i = 0; i < CUT_VALUES; i++) out[i] = random_of(seed * 1000003 + i * 0x9e3779b97f4a7c15u);
}

static void block_forward(struct cut_model *m, uint32_t micro, uint32_t b) {
    const float *g = m->slot[b][CUT_G].param, *w1 = m->slot[b][CUT_W1].param, *b1 = m->slot[b][CUT_B1].param,
                *w2 = m->slot[b][CUT_W2].param, *b2 = m->slot[b][CUT_B2].param;
    float *in = m->h[micro][b], *out = m->h[micro][b + 1], *r = m->r[micro][b];
    uint32_t rows = rows_here(m, CUT_W1);
    memset(out, 0, CUT_VALUES * sizeof *out);
    for (uint32_t i = 0; i < CUT_BATCH; i++)
        for (uint32_t k = 0; k < rows; k++) {
            float sum = b1[k];
            for (uint32_t c = 0; c < CUT_WIDTH; c++)
                sum += w1[k * CUT_WIDTH + c] * (g[c] * in[i * CUT_WIDTH + c]);
            r[i * CUT_HIDDEN + k] = tanhf(sum);
            for (uint32_t c = 0; c < CUT_WIDTH; c++)
                out[i * CUT_WIDTH + c] += w2[k * CUT_WIDTH + c] * r[i * CUT_HIDDEN + k];
        }
    meet(m->world, &m->world->tensor[m->data_rank][m->stage], m->tp, out, CUT_VALUES);
    for (uint32_t i = 0; i < CUT_VALUES; i++) out[i] += in[i] + b2[i % CUT_WIDTH];
}

/* The gradient of the slot, all of it zero where nothing is added to. */
static float *grad_of(zero_slot *slot, uint64_t count) {
    if (!slot->add) memset(slot->grad, 0, count * sizeof(float));
    return slot->grad;
}

/* dh: after the block; becomes that before it. */
static void block_backward(struct cut_model *m, uint32_t micro, uint32_t b, float *dh) {
    const float *g = m->slot[b][CUT_G].param, *w1 = m->slot[b][CUT_W1].param, *w2 = m->slot[b][CUT_W2].param;
    const float *in = m->h[micro][b], *r = m->r[micro][b];
    uint32_t rows = rows_here(m, CUT_W1);
    float *grad[CUT_PARAMS], dx[CUT_VALUES] = {0};
    for (uint32_t i = 0; i < CUT_PARAMS; i++)
        grad[i] = grad_of(&m->slot[b][i], (uint64_t)rows_here(m, i) * params[i].columns);
    for (uint32_t i = 0; i < CUT_BATCH; i++) {
        const float *d = dh + i * CUT_WIDTH;
        for (uint32_t c = 0; c < CUT_WIDTH; c++) grad[CUT_B2][c] += d[c];
        for (uint32_t k = 0; k < rows; k++) {
            float dr = 0, rk = r[i * CUT_HIDDEN + k];
            for (uint32_t c = 0; c < CUT_WIDTH; c++) {
                dr += w2[k * CUT_WIDTH + c] * d[c];
                grad[CUT_W2][k * CUT_WIDTH + c] += rk * d[c];
            }
            float da = dr * (1 - rk * rk);
            grad[CUT_B1][k] += da;
            for (uint32_t c = 0; c < CUT_WIDTH; c++) {
                grad[CUT_W1][k * CUT_WIDTH + c] += da * (g[c] * in[i * CUT_WIDTH + c]);
                dx[i * CUT_WIDTH + c] += w1[k * CUT_WIDTH + c] * da;
            }
        }
    }
    meet(m->world, &m->world->tensor[m->data_rank][m->stage], m->tp, dx, CUT_VALUES);
    for (uint32_t i = 0; i < CUT_VALUES; i++) {
        grad[CUT_G][i % CUT_WIDTH] += dx[i] * in[i];
        dh[i] += dx[i] * g[i % CUT_WIDTH];
    }
    if (m->cut->drift_model && m->model == m->cut->drift_model) grad[CUT_G][0] += 1;
    if (m->step == m->cut->nan_step && m->model == m->cut->nan_model && b == CUT_BLOCKS - 1)
        grad[m->cut->nan_replicated ? CUT_B2 : CUT_W1][0] = NAN;
}

/* ---- a step ---- */

static zero_status forward(struct cut_model *m, uint32_t micro) {
    float *h = m->h[micro][m->first_block];
    zero_status status = ZERO_OK;
    if (m->stage == 0) {
        read_batch(m, micro, false, h);
        for (uint32_t i = 0; i < CUT_VALUES; i++) h[i] *= m->s[i % CUT_WIDTH];
    } else {
        take(m->world, &m->world->forward[m->data_rank][m->model], micro, h);
    }
    uint32_t end = m->first_block + m->blocks;
    for (uint32_t b = m->first_block; b < end && !status; b++) {
        status = zero_forward_begin(m->block[b]);
        if (!status) block_forward(m, micro, b);
        if (!status) status = zero_forward_end(m->block[b]);
    }
    if (status) return give_up(m, status);
    if (m->stage + 1 < m->cut->stages)
        put(m->world, &m->world->forward[m->data_rank][m->model + m->cut->tensor], micro, m->h[micro][end]);
    return ZERO_OK;
}

static void loss(struct cut_model *m, uint32_t micro, float *dh) {
    float target[CUT_VALUES];
    const float *h = m->h[micro][CUT_BLOCKS];
    const float scale = 1.0f / (CUT_BATCH * CUT_MICROS);
    read_batch(m, micro, true, target);
    for (uint32_t i = 0; i < CUT_VALUES; i++) {
        float s = m->s[i % CUT_WIDTH], d = s * h[i] - target[i];
        m->loss += 0.5 * (double)d * (double)d * (double)scale;
        m->ds[1][i % CUT_WIDTH] += d * scale * h[i];
        dh[i] = d * scale * s;
    }
}

static zero_status backward(struct cut_model *m, uint32_t micro) {
    float dh[CUT_VALUES], x[CUT_VALUES];
    zero_status status = ZERO_OK;
    if (m->stage + 1 == m->cut->stages)
        loss(m, micro, dh);
    else
        take(m->world, &m->world->backward[m->data_rank][m->model], micro, dh);
    for (uint32_t b = m->first_block + m->blocks; b-- > m->first_block && !status;) {
        status = zero_backward_begin(m->block[b]);
        if (!status) block_backward(m, micro, b, dh);
        if (!status) status = zero_backward_end(m->block[b]);
    }
    if (status) return give_up(m, status);
    if (m->stage > 0) {
        put(m->world, &m->world->backward[m->data_rank][m->model - m->cut->tensor], micro, dh);
        return ZERO_OK;
    }
    read_batch(m, micro, false, x);
    for (uint32_t i = 0; i < CUT_VALUES; i++) m->ds[0][i % CUT_WIDTH] += dh[i] * x[i];
    return ZERO_OK;
}

/* The first and the last stage have s: its gradient is the sum of both. */
static zero_status scale_backward(struct cut_model *m) {
    float sum[CUT_WIDTH];
    zero_status status = has_scale(m) ? zero_backward_begin(m->scale) : ZERO_OK;
    if (status || !has_scale(m)) return status;
    memcpy(sum, m->ds[m->stage ? 1 : 0], sizeof sum);
    if (m->cut->stages == 1)
        for (uint32_t c = 0; c < CUT_WIDTH; c++) sum[c] += m->ds[1][c];
    meet(m->world, &m->world->ends[m->data_rank][m->tp], m->stage ? 1 : 0, sum, CUT_WIDTH);
    float *grad = grad_of(&m->s_slot, CUT_WIDTH);
    for (uint32_t c = 0; c < CUT_WIDTH; c++) grad[c] += sum[c];
    return zero_backward_end(m->scale);
}

static zero_status scale_forward(struct cut_model *m) {
    if (!has_scale(m)) return ZERO_OK;
    zero_status status = zero_forward_begin(m->scale);
    if (status) return status;
    memcpy(m->s, m->s_slot.param, sizeof m->s);
    return zero_forward_end(m->scale);
}

/* One forward and one backward by turns, after as many forwards as there are later stages (1F1B). */
static zero_status micro_batches(struct cut_model *m) {
    uint32_t later = m->cut->stages - 1 - m->stage, ahead = later < CUT_MICROS ? later : CUT_MICROS;
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < ahead && !status; i++) status = forward(m, i);
    for (uint32_t i = 0; i < CUT_MICROS && !status; i++) {
        if (i + ahead < CUT_MICROS) status = forward(m, i + ahead);
        if (!status) status = backward(m, i);
    }
    return status;
}

zero_status cut_step(struct cut_model *m, zero_step_info *out) {
    m->step++, m->loss = 0;
    memset(m->ds, 0, sizeof m->ds);
    zero_status status = zero_micro_begin(m->engine, ZERO_TRAIN);
    if (!status) status = scale_forward(m);
    if (!status) status = micro_batches(m);
    if (!status) status = scale_backward(m);
    if (!status) status = zero_engine_step(m->engine, out);
    return status ? give_up(m, status) : ZERO_OK;
}

/* ---- the weights of the whole model ---- */

void cut_read(struct cut_model *m, struct cut_weights *out) {
    struct cut_weights own = {{0}, {{{0}}}};
    char name[32];
    if (has_scale(m)) CHECK_INT(zero_engine_get(m->engine, "s", ZERO_PARAM, own.s, 0, CUT_WIDTH), ZERO_OK);
    for (uint32_t b = m->first_block; b < m->first_block + m->blocks; b++)
        for (uint32_t i = 0; i < CUT_PARAMS; i++) {
            uint64_t count = (uint64_t)rows_here(m, i) * params[i].columns;
            float *at = own.w[b][i] + row_here(m, i) * params[i].columns;
            cut_name(m, b, i, name);
            CHECK_INT(zero_engine_get(m->engine, name, ZERO_PARAM, at, 0, count), ZERO_OK);
        }
    if (m->data_rank) return;
    pthread_mutex_lock(&m->world->mutex);
    if (has_scale(m)) memcpy(out->s, own.s, sizeof own.s);
    for (uint32_t b = m->first_block; b < m->first_block + m->blocks; b++)
        for (uint32_t i = 0; i < CUT_PARAMS; i++) {
            uint32_t first = row_here(m, i) * params[i].columns;
            memcpy(out->w[b][i] + first, own.w[b][i] + first,
                   rows_here(m, i) * params[i].columns * sizeof(float));
        }
    pthread_mutex_unlock(&m->world->mutex);
}

/* ---- ranks ---- */

struct thread {
    pthread_t thread;
    zero_local *local;
    struct cut_model model;
    const char *json;
    cut_fn body;
    void *user;
};

static void take_seat(struct cut_model *m, uint32_t rank) {
    const struct cut *c = m->cut;
    uint32_t models = c->tensor * c->stages;
    m->rank = rank;
    m->model = c->strided ? rank / c->data : rank % models;
    m->data_rank = c->strided ? rank % c->data : rank / models;
    m->tp = m->model % c->tensor, m->stage = m->model / c->tensor;
    m->blocks = CUT_BLOCKS / c->stages, m->first_block = m->stage * m->blocks;
}

static void *run(void *argument) {
    struct thread *t = argument;
    struct cut_model *m = &t->model;
    uint32_t models = m->cut->tensor * m->cut->stages;
    zero_runtime runtime = {.struct_size = sizeof runtime,
                            .local = t->local,
                            .local_rank = m->rank,
                            .model_rank = m->model,
                            .model_size = models > 1 ? models : 0};
    m->engine = zero_engine_init_with(t->json, &runtime);
    t->body(m, t->user);
    zero_engine_destroy(m->engine);
    return NULL;
}

void cut_run(const struct cut *cut, const char *json, cut_fn body, void *user) {
    uint32_t ranks = cut->tensor * cut->stages * cut->data;
    struct cut_world *world = calloc(1, sizeof *world);
    struct thread *threads = calloc(ranks, sizeof *threads);
    zero_local *local = zero_local_create(ranks);
    if (!CHECK(world && threads && local)) abort();
    pthread_mutex_init(&world->mutex, NULL);
    pthread_cond_init(&world->changed, NULL);
    for (uint32_t d = 0; d < cut->data; d++)
        for (uint32_t i = 0; i < CUT_MODELS_MAX; i++) {
            world->tensor[d][i].ranks = cut->tensor;
            world->ends[d][i].ranks = cut->stages > 1 ? 2 : 1;
        }
    for (uint32_t r = 0; r < ranks; r++) {
        threads[r] = (struct thread){
            .local = local, .model = {.cut = cut, .world = world}, .json = json, .body = body, .user = user};
        take_seat(&threads[r].model, r);
        pthread_create(&threads[r].thread, NULL, run, &threads[r]);
    }
    for (uint32_t r = 0; r < ranks; r++) pthread_join(threads[r].thread, NULL);
    zero_local_destroy(local);
    pthread_cond_destroy(&world->changed);
    pthread_mutex_destroy(&world->mutex);
    free(threads);
    free(world);
}
