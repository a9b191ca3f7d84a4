/* How a program trains its own model with ZeRO: the multi-layer perceptron of PyTorch's FSDP2 tutorial, 8 blocks of
 * Linear 4096 -> 4096, ReLU, Linear 4096 -> 4096, then Linear 4096 -> 1. It learns by binary cross-entropy whether the
 * sum of a random vector is positive. declare() and train() hold all code for the engine; the rest is the model. The
 * stage, 0 to 3, is a value in the configuration: nothing else changes with it.
 *
 *   mlp --ranks 2 --width 256 --steps 100            ranks are threads
 *   mpirun -np 2 mlp --width 256 --steps 100         ranks are processes */
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zero/zero.h>

enum { W1, B1, W2, B2, BLOCK_PARAMS, BLOCKS_MAX = 64, RANKS_MAX = 64 };

static struct {
    uint64_t ranks, width, blocks, batch, steps, stage;
} flags = {.ranks = 1, .width = 4096, .blocks = 8, .batch = 16, .steps = 20, .stage = 3};

/* A unit of the engine: two linear layers. The engine writes into the slots the addresses of the weights and of their
 * gradients. */
struct block {
    zero_unit *unit;
    zero_slot slots[BLOCK_PARAMS]; /* the head has only W1 and B1 */
    float *in, *hidden;            /* batch x width; kept from forward to backward */
};

struct mlp {
    struct block blocks[BLOCKS_MAX + 1]; /* the last one is the head */
    float *out, *grad, *grad_hidden;     /* batch x width */
    float *memory, *labels;
    uint64_t random;
};

struct rank {
    pthread_t thread;
    zero_local *local;
    uint32_t index;
};

static void must(zero_status status) {
    if (status == ZERO_OK) return;
    fprintf(stderr, "mlp: %s\n", zero_last_error());
    exit(1);
}

/* ---- arithmetic ---- */

static double uniform(uint64_t *state) { /* splitmix64, in [-1, 1) */
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (double)((int64_t)(x ^ (x >> 31)) >> 11) * 0x1p-52;
}

/* y = x weight' + bias; weight is outs x ins, as in PyTorch. */
static void linear_forward(const float *x, const zero_slot *slots, uint64_t ins, uint64_t outs, float *y) {
    const float *weight = slots[0].param, *bias = slots[1].param;
#pragma omp parallel for
    for (uint64_t o = 0; o < outs; o++)
        for (uint64_t i = 0; i < flags.batch; i++) {
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (uint64_t k = 0; k < ins; k++) sum += x[i * ins + k] * weight[o * ins + k];
            y[i * outs + o] = sum + bias[o];
        }
}

/* dweight = dy' x and dbias = the sum of dy, or added to what is there, as the slots say. */
static void linear_grads(const float *x, const float *dy, const zero_slot *slots, uint64_t ins,
                         uint64_t outs) {
    float *weight = slots[0].grad, *bias = slots[1].grad;
#pragma omp parallel for
    for (uint64_t o = 0; o < outs; o++) {
        if (!slots[0].add) memset(weight + o * ins, 0, ins * sizeof *weight);
        if (!slots[1].add) bias[o] = 0;
        for (uint64_t i = 0; i < flags.batch; i++) {
            for (uint64_t k = 0; k < ins; k++) weight[o * ins + k] += dy[i * outs + o] * x[i * ins + k];
            bias[o] += dy[i * outs + o];
        }
    }
}

/* Reads dy; writes dx = dy weight, in columns that stay in a core's cache, and the gradients of weight and bias. */
static void linear_backward(const float *x, const float *dy, const zero_slot *slots, uint64_t ins,
                            uint64_t outs, float *dx) {
    enum { COLUMNS = 256 };
    const float *weight = slots[0].param;
    linear_grads(x, dy, slots, ins, outs);
#pragma omp parallel for
    for (uint64_t first = 0; first < ins; first += COLUMNS) {
        uint64_t end = first + COLUMNS < ins ? first + COLUMNS : ins;
        for (uint64_t i = 0; i < flags.batch; i++)
            memset(dx + i * ins + first, 0, (end - first) * sizeof *dx);
        for (uint64_t o = 0; o < outs; o++)
            for (uint64_t i = 0; i < flags.batch; i++)
                for (uint64_t k = first; k < end; k++)
                    dx[i * ins + k] += dy[i * outs + o] * weight[o * ins + k];
    }
}

static void relu_forward(float *x) {
    for (uint64_t i = 0; i < flags.batch * flags.width; i++) x[i] = x[i] > 0 ? x[i] : 0;
}

static void relu_backward(const float *y, float *dy) {
    for (uint64_t i = 0; i < flags.batch * flags.width; i++) dy[i] = y[i] > 0 ? dy[i] : 0;
}

/* The mean binary cross-entropy of the logits. Overwrites the logits with their gradient. */
static double cross_entropy(float *logits, const float *labels) {
    double loss = 0;
    for (uint64_t i = 0; i < flags.batch; i++) {
        double z = logits[i];
        loss += fmax(z, 0) - z * labels[i] + log1p(exp(-fabs(z)));
        logits[i] = (float)((1 / (1 + exp(-z)) - labels[i]) / (double)flags.batch);
    }
    return loss / (double)flags.batch;
}

static void read_batch(struct mlp *mlp) {
    for (uint64_t i = 0; i < flags.batch; i++) {
        double sum = 0;
        float *x = mlp->blocks[0].in + i * flags.width;
        for (uint64_t k = 0; k < flags.width; k++) sum += x[k] = (float)uniform(&mlp->random);
        mlp->labels[i] = sum > 0;
    }
}

/* He's initialisation. An element's value depends only on its name and index, so any rank can make any range. */
static void fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    uint64_t name = 14695981039346656037u; /* FNV-1a */
    for (const char *c = param; *c; c++) name = (name ^ (unsigned char)*c) * 1099511628211u;
    double bound = strstr(param, "bias") ? 0 : sqrt((strstr(param, ".0.") ? 6.0 : 3.0) / (double)flags.width);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t state = name + (first + i) * 0xd1342543de82ef95u;
        out[i] = (float)(bound * uniform(&state));
    }
}

/* ---- the model ---- */

static void create_mlp(struct mlp *mlp, uint32_t rank) {
    uint64_t each = flags.batch * flags.width, arrays = 2 * flags.blocks + 4;
    float *at = mlp->memory = calloc(arrays * each + flags.batch, sizeof *at);
    if (!at) must(ZERO_E_MEMORY);
    for (uint64_t b = 0; b < flags.blocks; b++) {
        mlp->blocks[b].in = at, at += each;
        mlp->blocks[b].hidden = at, at += each;
    }
    mlp->blocks[flags.blocks].in = at, at += each;
    mlp->out = at, at += each;
    mlp->grad = at, at += each;
    mlp->grad_hidden = at, at += each;
    mlp->labels = at;
    mlp->random = 1000 + rank;
}

static void block_forward(struct block *block, float *out) {
    linear_forward(block->in, &block->slots[W1], flags.width, flags.width, block->hidden);
    relu_forward(block->hidden);
    linear_forward(block->hidden, &block->slots[W2], flags.width, flags.width, out);
}

static void block_backward(struct block *block, struct mlp *mlp) {
    linear_backward(block->hidden, mlp->grad, &block->slots[W2], flags.width, flags.width, mlp->grad_hidden);
    relu_backward(block->hidden, mlp->grad_hidden);
    linear_backward(block->in, mlp->grad_hidden, &block->slots[W1], flags.width, flags.width, mlp->grad);
}

/* ---- the engine ---- */

static void declare_linear(struct block *block, const char *prefix, uint64_t outs, zero_slot *slots) {
    char name[64];
    snprintf(name, sizeof name, "%s.weight", prefix);
    must(zero_unit_add_param(block->unit, &(zero_param){.struct_size = sizeof(zero_param),
                                                        .name = name,
                                                        .dims = 2,
                                                        .shape = {outs, flags.width},
                                                        .slot = &slots[0]}));
    snprintf(name, sizeof name, "%s.bias", prefix);
    must(zero_unit_add_param(
        block->unit,
        &(zero_param){
            .struct_size = sizeof(zero_param), .name = name, .dims = 1, .shape = {outs}, .slot = &slots[1]}));
}

static void declare(zero_engine *engine, struct mlp *mlp) {
    for (uint64_t b = 0; b <= flags.blocks; b++) {
        char name[32], first[40], second[40];
        snprintf(name, sizeof name, b < flags.blocks ? "block.%u" : "head", (unsigned)b);
        snprintf(first, sizeof first, "%s.0", name), snprintf(second, sizeof second, "%s.2", name);
        must(zero_engine_add_unit(engine, name, &mlp->blocks[b].unit));
        declare_linear(&mlp->blocks[b], b < flags.blocks ? first : name, b < flags.blocks ? flags.width : 1,
                       &mlp->blocks[b].slots[W1]);
        if (b < flags.blocks) declare_linear(&mlp->blocks[b], second, flags.width, &mlp->blocks[b].slots[W2]);
    }
    must(zero_engine_commit(engine, NULL));
    must(zero_engine_fill(engine, fill, NULL));
}

static double train(zero_engine *engine, struct mlp *mlp) {
    struct block *blocks = mlp->blocks, *head = &blocks[flags.blocks];
    must(zero_micro_begin(engine, ZERO_TRAIN));
    for (uint64_t b = 0; b < flags.blocks; b++) {
        must(zero_forward_begin(blocks[b].unit));
        block_forward(&blocks[b], blocks[b + 1].in);
        must(zero_forward_end(blocks[b].unit));
    }
    must(zero_forward_begin(head->unit));
    linear_forward(head->in, head->slots, flags.width, 1, mlp->out);
    must(zero_forward_end(head->unit));
    double loss = cross_entropy(mlp->out, mlp->labels);
    must(zero_backward_begin(head->unit));
    linear_backward(head->in, mlp->out, head->slots, flags.width, 1, mlp->grad);
    must(zero_backward_end(head->unit));
    for (uint64_t b = flags.blocks; b-- > 0;) {
        must(zero_backward_begin(blocks[b].unit));
        block_backward(&blocks[b], mlp);
        must(zero_backward_end(blocks[b].unit));
    }
    must(zero_engine_step(engine, NULL));
    must(zero_engine_sum(engine, &loss, 1));
    return loss / zero_engine_size(engine);
}

static void *run_rank(void *argument) {
    const struct rank *rank = argument;
    char json[256], hash[33];
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": %u, \"optimizer\": {\"type\": \"AdamW\", \"params\": "
             "{\"lr\": 1e-3}}, \"zero_optimization\": {\"stage\": %u}}",
             (unsigned)flags.batch, (unsigned)flags.stage);
    zero_runtime runtime = {.struct_size = sizeof runtime, .local = rank->local, .local_rank = rank->index};
    zero_engine *engine = zero_engine_init_with(json, &runtime);
    if (!engine) must(ZERO_E_CONFIG);
    struct mlp mlp = {0};
    uint32_t index = zero_engine_rank(engine);
    omp_set_num_threads((int)zero_engine_threads(engine));
    create_mlp(&mlp, index);
    declare(engine, &mlp);
    for (uint64_t step = 1; step <= flags.steps; step++) {
        read_batch(&mlp);
        double loss = train(engine, &mlp);
        if (index == 0) printf("step %u  loss %.4f\n", (unsigned)step, loss);
    }
    must(zero_engine_hash(engine, hash));
    if (index == 0) printf("weights %s\n", hash);
    zero_engine_destroy(engine);
    free(mlp.memory);
    return NULL;
}

/* ---- flags, threads ---- */

static int usage(void) {
    fputs("usage: mlp [--ranks N] [--width N] [--blocks N] [--batch N] [--steps N] [--stage 0..3]\n", stderr);
    return 2;
}

static int parse_flags(int argc, char **argv) {
    static const struct {
        const char *name;
        uint64_t *value, most;
    } table[] = {{"--ranks", &flags.ranks, RANKS_MAX},    {"--width", &flags.width, 1 << 20},
                 {"--blocks", &flags.blocks, BLOCKS_MAX}, {"--batch", &flags.batch, 1 << 20},
                 {"--steps", &flags.steps, 1 << 30},      {"--stage", &flags.stage, 3}};
    for (int i = 1; i < argc; i += 2) {
        size_t row = 0, rows = sizeof table / sizeof *table;
        while (row < rows && strcmp(table[row].name, argv[i]) != 0) row++;
        if (row == rows || i + 1 == argc) return usage();
        char *end;
        uint64_t value = strtoull(argv[i + 1], &end, 10);
        if (!*argv[i + 1] || *end || value > table[row].most || (!value && table[row].value != &flags.stage))
            return usage();
        *table[row].value = value;
    }
    return 0;
}

int main(int argc, char **argv) {
    int wrong = parse_flags(argc, argv);
    if (wrong) return wrong;
    if (flags.ranks > 1 && getenv("OMPI_COMM_WORLD_SIZE")) {
        fputs("mlp: --ranks makes threads, but mpirun has started the ranks already; drop one of the two\n",
              stderr);
        return 2;
    }
    struct rank ranks[RANKS_MAX] = {0};
    zero_local *local = flags.ranks > 1 ? zero_local_create((uint32_t)flags.ranks) : NULL;
    if (flags.ranks > 1 && !local) must(ZERO_E_MEMORY);
    for (uint32_t i = 0; local && i < flags.ranks; i++) {
        ranks[i].local = local, ranks[i].index = i;
        if (pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]) != 0) return 1;
    }
    for (uint32_t i = 0; local && i < flags.ranks; i++) pthread_join(ranks[i].thread, NULL);
    if (local)
        zero_local_destroy(local);
    else
        run_rank(&ranks[0]);
    return 0;
}
