/* How a program that cuts its layers itself trains with ZeRO. As in Megatron-LM (Shoeybi et al. 2019, section 3), each block
 *
 *   h + W2' relu(W1 h + b1) + b2
 *
 * is cut among --tensor model ranks by its hidden units: each has some rows of W1, b1 and W2, and b2 is on all of them. The program
 * adds the parts of a product over model ranks by itself, once in forward and once in backward. The engine shards each part over the
 * data ranks. declare() and train() hold all code for it. Ranks are threads.
 *
 *   tensor_parallel --ranks 4 --tensor 2 --stage 3     2 model ranks, each on 2 data ranks
 *   tensor_parallel --ranks 2 --tensor 1               the same training, not cut */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zero/zero.h>

enum {
    WIDTH = 32,
    HIDDEN = 64,
    BATCH = 8,
    BLOCKS = 3,
    VALUES = BATCH * WIDTH,
    RANKS_MAX = 64,
    MODELS_MAX = 8
};
enum { W1, B1, W2, B2, BLOCK_PARAMS };

static struct { unsigned ranks, tensor, stage, steps; } flags = {4, 2, 3, 20};

/* The model ranks of one data rank: where they add up. Two buffers, because a rank may come again before the others have read. */
struct team {
    pthread_barrier_t barrier;
    float part[2][MODELS_MAX][VALUES];
};

struct rank {
    pthread_t thread;
    zero_local *local;
    struct team *teams;
    unsigned index;
};

struct model {
    struct team *team;
    unsigned model_rank, data_rank, rows, sums; /* rows: hidden units on this rank */
    zero_unit *unit[BLOCKS];
    zero_slot slot[BLOCKS][BLOCK_PARAMS];
    float h[BLOCKS + 1][VALUES], r[BLOCKS][BATCH * HIDDEN], target[VALUES];
    uint64_t random;
};

static void must(zero_status status) {
    if (status == ZERO_OK) return;
    fprintf(stderr, "tensor_parallel: %s\n", zero_last_error());
    exit(1);
}

/* ---- arithmetic ---- */

static float uniform(uint64_t *state) { /* splitmix64, in [-1, 1) */
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (float)((double)((int64_t)(x ^ (x >> 31)) >> 11) * 0x1p-52);
}

/* The sum over model ranks, in their order: all have the same bits, so that what follows is the same on all of them. */
static void add_over_team(struct model *m, float *values) {
    float(*part)[VALUES] = m->team->part[m->sums++ % 2];
    memcpy(part[m->model_rank], values, sizeof *part);
    pthread_barrier_wait(&m->team->barrier);
    for (unsigned i = 0; i < VALUES; i++) {
        values[i] = 0;
        for (unsigned r = 0; r < flags.tensor; r++) values[i] += part[r][i];
    }
}

static void block_forward(struct model *m, unsigned b) {
    const float *w1 = m->slot[b][W1].param, *b1 = m->slot[b][B1].param, *w2 = m->slot[b][W2].param,
                *b2 = m->slot[b][B2].param;
    float *h = m->h[b], *out = m->h[b + 1], *r = m->r[b];
    memset(out, 0, VALUES * sizeof *out);
    for (unsigned i = 0; i < BATCH; i++)
        for (unsigned k = 0; k < m->rows; k++) {
            float sum = b1[k];
            for (unsigned c = 0; c < WIDTH; c++) sum += w1[k * WIDTH + c] * h[i * WIDTH + c];
            r[i * HIDDEN + k] = sum > 0 ? sum : 0;
            for (unsigned c = 0; c < WIDTH; c++) out[i * WIDTH + c] += w2[k * WIDTH + c] * r[i * HIDDEN + k];
        }
    add_over_team(m, out);
    for (unsigned i = 0; i < VALUES; i++) out[i] += h[i] + b2[i % WIDTH];
}

/* Where the gradient of a parameter begins at zero, or at what is there, as the slot says. */
static float *gradient(zero_slot *slot, unsigned count) {
    if (!slot->add) memset(slot->grad, 0, count * sizeof(float));
    return slot->grad;
}

/* dh: the gradient after the block; becomes that before it. */
static void block_backward(struct model *m, unsigned b, float *dh) {
    const float *w1 = m->slot[b][W1].param, *w2 = m->slot[b][W2].param, *h = m->h[b], *r = m->r[b];
    float *dw1 = gradient(&m->slot[b][W1], m->rows * WIDTH), *db1 = gradient(&m->slot[b][B1], m->rows),
          *dw2 = gradient(&m->slot[b][W2], m->rows * WIDTH), *db2 = gradient(&m->slot[b][B2], WIDTH);
    float dx[VALUES] = {0};
    for (unsigned i = 0; i < BATCH; i++)
        for (unsigned k = 0; k < m->rows; k++) {
            float dr = 0, active = r[i * HIDDEN + k];
            for (unsigned c = 0; c < WIDTH; c++) {
                dr += w2[k * WIDTH + c] * dh[i * WIDTH + c];
                dw2[k * WIDTH + c] += active * dh[i * WIDTH + c];
            }
            if (active <= 0) continue;
            db1[k] += dr;
            for (unsigned c = 0; c < WIDTH; c++) {
                dw1[k * WIDTH + c] += dr * h[i * WIDTH + c];
                dx[i * WIDTH + c] += w1[k * WIDTH + c] * dr;
            }
        }
    for (unsigned i = 0; i < VALUES; i++) db2[i % WIDTH] += dh[i]; /* the same on all model ranks */
    add_over_team(m, dx);
    for (unsigned i = 0; i < VALUES; i++) dh[i] += dx[i];
}

/* The target is the input in reverse. All model ranks of a data rank read the same samples. */
static void read_batch(struct model *m) {
    for (unsigned i = 0; i < VALUES; i++) m->h[0][i] = uniform(&m->random);
    for (unsigned i = 0; i < VALUES; i++) m->target[i] = m->h[0][i / WIDTH * WIDTH + WIDTH - 1 - i % WIDTH];
}

static double squared_error(struct model *m, float *dh) {
    double loss = 0;
    for (unsigned i = 0; i < VALUES; i++) {
        float d = m->h[BLOCKS][i] - m->target[i];
        loss += 0.5 * (double)d * (double)d / BATCH;
        dh[i] = d / BATCH;
    }
    return loss;
}

/* By the tensor's name, and the element in the whole tensor: the same weights, however they are cut. */
static void fill(void *user, const char *tensor, uint64_t first, uint64_t count, float *out) {
    uint64_t name = 14695981039346656037u; /* FNV-1a */
    for (const char *c = tensor; *c; c++) name = (name ^ (unsigned char)*c) * 1099511628211u;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t state = name + (first + i) * 0xd1342543de82ef95u;
        out[i] = strstr(tensor, ".w") ? uniform(&state) / 8 : 0;
    }
}

/* ---- the engine ---- */

/* Rows of a tensor, of which the other model ranks have the others. */
static void declare_rows(struct model *m, unsigned b, const char *kind, uint64_t columns, zero_slot *slot) {
    char name[32];
    snprintf(name, sizeof name, "block.%u.%s", b, kind);
    zero_param param = {.struct_size = sizeof param,
                        .name = name,
                        .dims = columns > 1 ? 2 : 1,
                        .shape = {m->rows, columns},
                        .tensor = name,
                        .tensor_row = m->model_rank * m->rows,
                        .tensor_rows = HIDDEN,
                        .slot = slot};
    must(zero_unit_add_param(m->unit[b], &param));
}

static void declare(zero_engine *engine, struct model *m) {
    for (unsigned b = 0; b < BLOCKS; b++) {
        char name[32];
        snprintf(name, sizeof name, "block.%u", b);
        must(zero_engine_add_unit(engine, name, &m->unit[b]));
        declare_rows(m, b, "w1", WIDTH, &m->slot[b][W1]);
        declare_rows(m, b, "b1", 1, &m->slot[b][B1]);
        declare_rows(m, b, "w2", WIDTH, &m->slot[b][W2]);
        snprintf(name, sizeof name, "block.%u.b2", b);
        zero_param whole = {.struct_size = sizeof whole,
                            .name = name,
                            .dims = 1,
                            .shape = {WIDTH},
                            .flags = ZERO_MODEL_REPLICATED,
                            .slot = &m->slot[b][B2]};
        must(zero_unit_add_param(m->unit[b], &whole));
    }
    must(zero_engine_commit(engine, NULL));
    must(zero_engine_fill(engine, fill, NULL));
}

static double train(zero_engine *engine, struct model *m, double *out_norm) {
    zero_step_info info = {.struct_size = sizeof info};
    float dh[VALUES];
    read_batch(m);
    must(zero_micro_begin(engine, ZERO_TRAIN));
    for (unsigned b = 0; b < BLOCKS; b++) {
        must(zero_forward_begin(m->unit[b]));
        block_forward(m, b);
        must(zero_forward_end(m->unit[b]));
    }
    double loss = squared_error(m, dh);
    for (unsigned b = BLOCKS; b-- > 0;) {
        must(zero_backward_begin(m->unit[b]));
        block_backward(m, b, dh);
        must(zero_backward_end(m->unit[b]));
    }
    must(zero_engine_step(engine, &info));
    must(zero_engine_sum(engine, &loss, 1)); /* over all ranks; those of a team have the same loss */
    *out_norm = info.grad_norm;
    return loss / zero_engine_size(engine);
}

static void *run_rank(void *argument) {
    const struct rank *rank = argument;
    struct model *m = calloc(1, sizeof *m);
    char json[256], hash[33];
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_clipping\": 1.0, \"optimizer\": {\"type\": "
             "\"AdamW\", \"params\": {\"lr\": 1e-3}}, \"zero_optimization\": {\"stage\": %u}}",
             BATCH, flags.stage);
    zero_runtime runtime = {.struct_size = sizeof runtime,
                            .local = rank->local,
                            .local_rank = rank->index,
                            .model_rank = rank->index % flags.tensor, /* model ranks are adjacent */
                            .model_size = flags.tensor};
    zero_engine *engine = zero_engine_init_with(json, &runtime);
    if (!engine) must(ZERO_E_CONFIG);
    if (!m) must(ZERO_E_MEMORY);
    m->model_rank = runtime.model_rank, m->data_rank = zero_engine_data_rank(engine);
    m->rows = HIDDEN / flags.tensor;
    m->team = &rank->teams[m->data_rank];
    m->random = 1000 + m->data_rank;
    declare(engine, m);
    for (unsigned step = 1; step <= flags.steps; step++) {
        double norm, loss = train(engine, m, &norm);
        if (rank->index == 0) printf("step %u  loss %.4f  norm %.4f\n", step, loss, norm);
    }
    must(zero_engine_hash(engine, hash));
    if (rank->index == 0) printf("weights %s\n", hash);
    zero_engine_destroy(engine);
    free(m);
    return NULL;
}

/* ---- flags, threads ---- */

static int usage(void) {
    fputs("usage: tensor_parallel [--ranks N] [--tensor 1, 2, 4 or 8] [--stage 0..3] [--steps N]\n"
          "       --tensor divides --ranks\n",
          stderr);
    return 2;
}

static int parse_flags(int argc, char **argv) {
    static const struct {
        const char *name;
        unsigned *value, least, most;
    } table[] = {{"--ranks", &flags.ranks, 1, RANKS_MAX},
                 {"--tensor", &flags.tensor, 1, MODELS_MAX},
                 {"--stage", &flags.stage, 0, 3},
                 {"--steps", &flags.steps, 1, 1 << 30}};
    for (int i = 1; i < argc; i += 2) {
        size_t row = 0, rows = sizeof table / sizeof *table;
        while (row < rows && strcmp(table[row].name, argv[i]) != 0) row++;
        if (row == rows || i + 1 == argc) return usage();
        char *end;
        unsigned long value = strtoul(argv[i + 1], &end, 10);
        if (!*argv[i + 1] || *end || value < table[row].least || value > table[row].most) return usage();
        *table[row].value = (unsigned)value;
    }
    return HIDDEN % flags.tensor || flags.ranks % flags.tensor ? usage() : 0;
}

int main(int argc, char **argv) {
    int wrong = parse_flags(argc, argv);
    if (wrong) return wrong;
    struct rank ranks[RANKS_MAX] = {0};
    unsigned count = flags.ranks / flags.tensor;
    struct team *teams = calloc(count, sizeof *teams);
    zero_local *local = zero_local_create(flags.ranks);
    if (!teams || !local) must(ZERO_E_MEMORY);
    for (unsigned t = 0; t < count; t++) pthread_barrier_init(&teams[t].barrier, NULL, flags.tensor);
    for (unsigned i = 0; i < flags.ranks; i++) {
        ranks[i] = (struct rank){.local = local, .teams = teams, .index = i};
        if (pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]) != 0) return 1;
    }
    for (unsigned i = 0; i < flags.ranks; i++) pthread_join(ranks[i].thread, NULL);
    for (unsigned t = 0; t < count; t++) pthread_barrier_destroy(&teams[t].barrier);
    zero_local_destroy(local);
    free(teams);
    return 0;
}
