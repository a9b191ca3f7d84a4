/* Each kernel of tools/gpt/cuda, with each number type, against the host's kernels or plain loops in fp32 on the same
 * rounded inputs; with widths that are a multiple of 16 bytes and with others. */
#include <math.h>
#include <stdlib.h>

#include "engine/base/numbers/convert.h"
#include "tests/check.h"
#include "tests/gpt/cuda_device.h"
#include "tools/gpt/cuda/state.h"
#include "tools/gpt/math/kernels.h"

enum { ROWS = 300, PAIRS_MAX = 64 }; /* two parts of sums */

static struct cuda_device cuda;
static struct cuda_gpt c;
static uint64_t random_state = 5;

/* ---- arrays: a host's fp32, and its rounded twin on the device ---- */

struct array {
    float *host;
    void *device;
    uint64_t count;
};
static struct array arrays[PAIRS_MAX];
static uint32_t arrays_made;

static float random_float(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(random_state >> 40) * 0x1p-23f - 1;
}

static float rounded(float x) {
    return c.type == ZERO_F32    ? x
           : c.type == ZERO_BF16 ? f32_from_bf16(bf16_from_f32(x))
                                 : f32_from_f16(f16_from_f32(x));
}

static void *device_copy(const void *host, uint64_t bytes) {
    struct fake_device d = cuda_device_of(&cuda);
    void *device = d.allocate(d.user, bytes);
    d.copy(d.user, device, host, bytes, true);
    return device;
}

static struct array keep(float *host, void *device, uint64_t count) {
    return arrays[arrays_made++] = (struct array){host, device, count};
}

/* If not 0: arrays are heads of this width side by side, and every other head is infinite. Its neighbours must not read
 * it, not even to multiply by zero. */
static uint32_t poisoned_width;

static bool is_poisoned(uint64_t i) { return poisoned_width && i / poisoned_width % 2; }

/* Numbers of the type, between -1 and 1 times `size`. */
static struct array numbers(uint64_t count, float size) {
    float *host = malloc(count * sizeof *host);
    uint16_t *narrow = malloc(count * sizeof *narrow);
    for (uint64_t i = 0; i < count; i++) {
        host[i] = is_poisoned(i) ? INFINITY : rounded(random_float() * size);
        narrow[i] = c.type == ZERO_BF16 ? bf16_from_f32(host[i]) : f16_from_f32(host[i]);
    }
    void *device = c.type == ZERO_F32 ? device_copy(host, count * 4) : device_copy(narrow, count * 2);
    free(narrow);
    return keep(host, device, count);
}

static struct array floats(uint64_t count) {
    float *host = malloc(count * sizeof *host);
    for (uint64_t i = 0; i < count; i++) host[i] = random_float();
    return keep(host, device_copy(host, count * 4), count);
}

static void forget_all(void) {
    struct fake_device d = cuda_device_of(&cuda);
    for (uint32_t i = 0; i < arrays_made; i++) free(arrays[i].host), d.release(d.user, arrays[i].device);
    arrays_made = 0;
}

/* Compares the device's numbers with `expected`: a difference is at most a few roundings of the largest number. */
static void compare(const char *what, void *device, bool is_float, const float *expected, uint64_t count) {
    struct fake_device d = cuda_device_of(&cuda);
    bool wide = is_float || c.type == ZERO_F32;
    void *host = malloc(count * 4);
    double most = 0, off = 0, step = wide ? 1e-5 : c.type == ZERO_BF16 ? 0x1p-7 : 0x1p-10;
    d.copy(d.user, host, device, count * (wide ? 4 : 2), true);
    for (uint64_t i = 0; i < count; i++) {
        if (is_poisoned(i)) continue;
        float x = wide                  ? ((float *)host)[i]
                  : c.type == ZERO_BF16 ? f32_from_bf16(((uint16_t *)host)[i])
                                        : f32_from_f16(((uint16_t *)host)[i]);
        most = fmax(most, fabs((double)expected[i]));
        double each = fabs((double)x - expected[i]);
        off = isnan(each) ? INFINITY : fmax(off, each);
    }
    free(host);
    if (off <= step * most) return;
    check_fail(__FILE__, __LINE__);
    fprintf(stderr, "%s, type %d: off by %.3g of %.3g\n", what, (int)c.type, off, most);
}

#define COMPARE(array) compare(#array, (array).device, false, (array).host, (array).count)
#define COMPARE_FLOATS(array) compare(#array, (array).device, true, (array).host, (array).count)

static uint32_t groups(uint64_t count, uint64_t whole) {
    return (uint32_t)(whole % c.widest ? count : count / c.widest);
}

/* ---- norms and sums ---- */

static void parts_finish(float *sums, uint32_t parts, struct array to, uint32_t add) {
    struct finish_sums_argument a = {.vector = {{to.device, sums, add}},
                                     .parts = parts,
                                     .columns = (uint32_t)to.count,
                                     .stride = (uint32_t)to.count};
    cuda_launch(&c, KERNEL_finish_sums, (struct grid){(a.columns + WARP - 1) / WARP, 1, 1},
                (struct grid){WARP, FINISH_LANES, 1}, &a);
}

static void sums_finish(float *parts, struct array to, uint32_t add) {
    parts_finish(parts, (ROWS + SUM_ROWS - 1) / SUM_ROWS, to, add);
}

/* A norm and its backward, on both processors. */
struct norm_case {
    const struct norm_kernels *kernels;
    uint32_t rows, columns;
    struct array x, y, gain, bias, mean, rstd, dy, skip, dx, dgain, dbias;
    struct norm_forward_argument forward;
    struct norm_backward_argument backward;
};

static struct norm_case norm_case(enum norm_kind kind, uint32_t columns, uint32_t rows) {
    uint64_t count = (uint64_t)rows * columns;
    struct norm_case n = {.kernels = &kernels_at(0)->norm[kind],
                          .rows = rows,
                          .columns = columns,
                          .x = numbers(count, 2),
                          .y = numbers(count, 1),
                          .gain = numbers(columns, 1),
                          .bias = numbers(columns, 1),
                          .mean = floats(rows),
                          .rstd = floats(rows),
                          .dy = floats(count),
                          .skip = numbers(count, 1),
                          .dx = numbers(count, 1),
                          .dgain = numbers(columns, 1),
                          .dbias = numbers(columns, 1)};
    if (!n.kernels->centred) n.bias.device = n.bias.host = n.mean.device = n.mean.host = n.dbias.host = NULL;
    n.forward = (struct norm_forward_argument){.y = n.y.device,
                                               .x = n.x.device,
                                               .gain = n.gain.device,
                                               .bias = n.bias.device,
                                               .mean = n.mean.device,
                                               .rstd = n.rstd.device,
                                               .rows = rows,
                                               .columns = columns,
                                               .epsilon = 1e-5f};
    n.backward = (struct norm_backward_argument){.dx = n.dx.device,
                                                 .skip = n.skip.device,
                                                 .dy = n.dy.device,
                                                 .x = n.x.device,
                                                 .gain = n.gain.device,
                                                 .mean = n.mean.device,
                                                 .rstd = n.rstd.device,
                                                 .rows = rows,
                                                 .columns = columns};
    cuda_launch_rows(&c, KERNEL_norm_forward, rows, &n.forward);
    n.kernels->forward(n.y.host, n.mean.host, n.rstd.host, n.x.host, n.gain.host, n.bias.host, rows, columns,
                       1e-5f);
    return n;
}

static void norm_host_backward(struct norm_case *n) {
    n->kernels->backward(n->dx.host, n->dgain.host, n->dbias.host, n->skip.host, n->dy.host, n->x.host,
                         n->mean.host, n->rstd.host, n->gain.host, n->rows, n->columns);
}

/* After a launch without the skipped gradient. */
static void norm_without_skip(struct norm_case *n) {
    for (uint64_t i = 0; i < n->dx.count; i++) n->dx.host[i] -= n->skip.host[i];
    COMPARE(n->dx);
    forget_all();
}

static void norms(enum norm_kind kind, uint32_t columns) {
    struct norm_case n = norm_case(kind, columns, ROWS);
    struct array parts = floats(4 * columns);
    float *bias_parts = (float *)parts.device + 2 * columns;
    bool centred = n.kernels->centred;
    struct grid blocks = {(columns + SUM_COLUMNS - 1) / SUM_COLUMNS, (ROWS + SUM_ROWS - 1) / SUM_ROWS, 1};
    struct grid threads = {WARP, SUM_LANES, 1};
    struct norm_sums_argument sums = {parts.device,  centred ? bias_parts : NULL,
                                      n.dy.device,   n.x.device,
                                      n.mean.device, n.rstd.device,
                                      ROWS,          columns};
    cuda_launch_rows(&c, KERNEL_norm_backward, ROWS, &n.backward);
    cuda_launch(&c, KERNEL_norm_sums, blocks, threads, &sums);
    sums_finish(parts.device, n.dgain, 1);
    norm_host_backward(&n);
    COMPARE(n.y), COMPARE(n.dx), COMPARE(n.dgain), COMPARE_FLOATS(n.rstd);
    if (centred) {
        sums_finish(bias_parts, n.dbias, 1);
        COMPARE(n.dbias), COMPARE_FLOATS(n.mean);
    }
    n.backward.skip = NULL;
    cuda_launch_rows(&c, KERNEL_norm_backward, ROWS, &n.backward);
    norm_without_skip(&n);
}

/* The backward and all its sums in one kernel. */
static void norm_back(enum norm_kind kind, uint32_t columns, uint32_t rows) {
    if (!CHECK(cuda_norm_back(&c, columns) != GPT_KERNELS)) return;
    struct norm_case n = norm_case(kind, columns, rows);
    uint32_t most = cuda_norm_parts_most(rows, columns, c.widest), each = (rows + most - 1) / most,
             parts = (rows + each - 1) / each;
    struct array of_dx = numbers(columns, 1), sums = floats(3ull * parts * columns);
    n.backward.gain_sums = sums.device;
    n.backward.bias_sums = n.backward.gain_sums + (uint64_t)parts * columns;
    n.backward.dx_sums = n.backward.bias_sums + (uint64_t)parts * columns;
    cuda_launch_norm_back(&c, &n.backward);
    parts_finish(n.backward.gain_sums, parts, n.dgain, 1);
    parts_finish(n.backward.bias_sums, parts, n.dbias, 1);
    parts_finish(n.backward.dx_sums, parts, of_dx, 0);
    norm_host_backward(&n);
    memset(of_dx.host, 0, columns * sizeof *of_dx.host);
    kernels_at(0)->column_sums(of_dx.host, n.dx.host, rows, columns, columns);
    COMPARE(n.dx), COMPARE(n.dgain), COMPARE(of_dx);
    if (n.kernels->centred) COMPARE(n.dbias);
    n.backward.skip = NULL, n.backward.gain_sums = n.backward.bias_sums = n.backward.dx_sums = NULL;
    cuda_launch_norm_back(&c, &n.backward);
    norm_without_skip(&n);
}

static void biases(uint32_t columns) {
    struct array x = numbers((uint64_t)ROWS * columns, 1), sums = numbers(columns, 1),
                 parts = floats(2 * columns);
    struct grid blocks = {(columns + SUM_COLUMNS - 1) / SUM_COLUMNS, (ROWS + SUM_ROWS - 1) / SUM_ROWS, 1};
    struct bias_sums_argument a = {parts.device, x.device, ROWS, columns};
    memset(sums.host, 0, columns * sizeof *sums.host);
    kernels_at(0)->column_sums(sums.host, x.host, ROWS, columns, columns);
    cuda_launch(&c, KERNEL_bias_sums, blocks, (struct grid){WARP, SUM_LANES, 1}, &a);
    sums_finish(parts.device, sums, 0);
    COMPARE(sums);
    forget_all();
}

static void rounded_sums(uint64_t count, bool add) {
    struct array sums = floats(count), to = numbers(count, 1);
    struct round_sums_argument a = {to.device, sums.device, count, add};
    cuda_launch_flat(&c, KERNEL_round_sums, groups(count, count), &a);
    for (uint64_t i = 0; i < count; i++) to.host[i] = rounded(sums.host[i] + (add ? to.host[i] : 0));
    COMPARE(to);
    forget_all();
}

/* ---- element by element ---- */

static void gelu(uint32_t columns) {
    uint64_t count = (uint64_t)ROWS * columns;
    struct array x = numbers(count, 4), y = numbers(count, 1), dy = numbers(count, 1), dx = numbers(count, 1);
    float *none = calloc(columns, sizeof *none);
    struct gelu_forward_argument forward = {y.device, x.device, count};
    struct gelu_backward_argument backward = {dx.device, dy.device, x.device, count};
    cuda_launch_flat(&c, KERNEL_gelu_forward, groups(count, count), &forward);
    cuda_launch_flat(&c, KERNEL_gelu_backward, groups(count, count), &backward);
    kernels_at(0)->mlp[GELU].forward(y.host, x.host, none, ROWS, columns);
    memcpy(dx.host, x.host, count * sizeof *dx.host);
    kernels_at(0)->mlp[GELU].backward(dx.host, dy.host, none, ROWS, columns);
    COMPARE(y), COMPARE(dx);
    free(none);
    forget_all();
}

static void swiglu(uint32_t columns) {
    uint64_t count = (uint64_t)ROWS * columns;
    struct array x = numbers(2 * count, 4), y = numbers(count, 1), dy = numbers(count, 1);
    struct swiglu_forward_argument forward = {y.device, x.device, count, columns};
    struct swiglu_backward_argument backward = {x.device, dy.device, x.device, count, columns}; /* in place */
    cuda_launch_flat(&c, KERNEL_swiglu_forward, groups(count, columns), &forward);
    cuda_launch_flat(&c, KERNEL_swiglu_backward, groups(count, columns), &backward);
    kernels_at(0)->mlp[SWIGLU].forward(y.host, x.host, NULL, ROWS, columns);
    COMPARE(y);
    kernels_at(0)->mlp[SWIGLU].backward(x.host, dy.host, NULL, ROWS, columns);
    COMPARE(x);
    forget_all();
}

static void rotary(uint32_t half, bool back) {
    enum { HEADS = 3, LENGTH = 50 };
    uint32_t stride = HEADS * 2 * half + 8;
    struct array x = numbers((uint64_t)ROWS * stride, 1), cosine = floats((uint64_t)LENGTH * half),
                 sine = floats((uint64_t)LENGTH * half);
    struct rotary_argument a = {x.device, cosine.device, sine.device, NULL,         stride,
                                HEADS,    half,          LENGTH,      back ? -1 : 1};
    cuda_launch_blocks(&c, KERNEL_rotary, ROWS, &a);
    for (uint32_t row = 0; row < ROWS; row++)
        kernels_at(0)->rotate(x.host + (uint64_t)row * stride, cosine.host + (uint64_t)(row % LENGTH) * half,
                              sine.host + (uint64_t)(row % LENGTH) * half, HEADS, half, back);
    COMPARE(x);
    forget_all();
}

/* Values do not change. */
static void head_norms(uint32_t width) {
    enum { HEADS = 3, KV_HEADS = 2, ALL = HEADS + KV_HEADS, PARTS = (ROWS + SUM_ROWS - 1) / SUM_ROWS };
    const struct norm_kernels *k = &kernels_at(0)->norm[RMS_NORM];
    uint32_t stride = (ALL + KV_HEADS) * width;
    struct array x = numbers((uint64_t)ROWS * stride, 1), raw = numbers((uint64_t)ROWS * ALL * width, 1),
                 rstd = floats((uint64_t)ROWS * ALL), dx = numbers((uint64_t)ROWS * stride, 1),
                 gain[2] = {numbers(width, 1), numbers(width, 1)},
                 dgain[2] = {numbers(width, 1), numbers(width, 1)},
                 sums = floats((uint64_t)PARTS * ALL * width);
    struct head_norm_forward_argument a = {x.device,       raw.device, rstd.device, gain[0].device,
                                           gain[1].device, ROWS,       stride,      HEADS,
                                           KV_HEADS,       width,      1e-5f,       NULL};
    cuda_launch_rows(&c, KERNEL_head_norm_forward, (uint64_t)ROWS * ALL, &a);
    a.x = dx.device, a.sums = sums.device;
    cuda_launch(&c, KERNEL_head_norm_backward, (struct grid){PARTS, ALL, 1},
                (struct grid){WARP, SUM_LANES, 1}, &a);
    parts_finish(sums.device, PARTS * HEADS, dgain[0], false);
    parts_finish((float *)sums.device + (uint64_t)PARTS * HEADS * width, PARTS * KV_HEADS, dgain[1], false);
    for (int kind = 0; kind < 2; kind++) memset(dgain[kind].host, 0, width * sizeof(float));
    for (uint32_t i = 0; i < ROWS * ALL; i++) {
        uint64_t at = (uint64_t)(i / ALL) * stride + i % ALL * width, from = (uint64_t)i * width;
        int kind = i % ALL >= HEADS;
        memcpy(raw.host + from, x.host + at, width * sizeof(float));
        k->forward(x.host + at, NULL, rstd.host + i, raw.host + from, gain[kind].host, NULL, 1, width, 1e-5f);
        k->backward(dx.host + at, dgain[kind].host, NULL, NULL, dx.host + at, raw.host + from, NULL,
                    rstd.host + i, gain[kind].host, 1, width);
    }
    COMPARE(x), COMPARE(raw), COMPARE(dx), COMPARE_FLOATS(rstd);
    COMPARE(dgain[0]), COMPARE(dgain[1]);
    forget_all();
}

/* ---- embedding ---- */

static void embedding(uint32_t width, bool add) {
    enum { VOCAB = 7, LENGTH = 60, BATCH = ROWS / LENGTH, POSITIONS = LENGTH + 3, USED = 5 };
    int32_t tokens[ROWS], group_token[USED];
    uint32_t order[ROWS], first[USED + 1] = {0}, groups = USED, at = 0;
    struct array y = numbers((uint64_t)ROWS * width, 1), table = numbers(VOCAB * width, 1);
    struct array positions = numbers(POSITIONS * width, 1), dy = numbers((uint64_t)ROWS * width, 1);
    for (uint32_t row = 0; row < ROWS; row++) tokens[row] = (int32_t)(row * row % 11 % USED);
    for (int32_t token = 0; token < USED; token++) {
        group_token[token] = token;
        for (uint32_t row = 0; row < ROWS; row++)
            if (tokens[row] == token) order[at++] = row;
        first[token + 1] = at;
    }
    void *device[] = {device_copy(tokens, sizeof tokens), device_copy(order, sizeof order),
                      device_copy(first, sizeof first), device_copy(group_token, sizeof group_token),
                      device_copy(&groups, sizeof groups)};
    struct embedding_forward_argument forward = {
        y.device, table.device, positions.device, device[0], width, LENGTH, ROWS, 0, VOCAB, false, NULL};
    cuda_launch_rows(&c, KERNEL_embedding_forward, ROWS, &forward);
    for (uint64_t i = 0; i < y.count; i++)
        y.host[i] = table.host[(uint64_t)tokens[i / width] * width + i % width] +
                    positions.host[i / width % LENGTH * width + i % width];
    COMPARE(y);
    struct embedding_backward_argument backward = {table.device, dy.device, device[1], device[2], device[3],
                                                   device[4],    width,     add,       0,         VOCAB};
    struct position_backward_argument by_position = {positions.device, dy.device, width, LENGTH, BATCH,
                                                     POSITIONS,        add};
    cuda_launch_blocks(&c, KERNEL_embedding_backward, ROWS, &backward);
    cuda_launch_blocks(&c, KERNEL_position_backward, POSITIONS, &by_position);
    if (!add)
        memset(table.host, 0, (uint64_t)USED * width * 4), memset(positions.host, 0, positions.count * 4);
    for (uint64_t i = 0; i < dy.count; i++) {
        table.host[(uint64_t)tokens[i / width] * width + i % width] += dy.host[i];
        positions.host[i / width % LENGTH * width + i % width] += dy.host[i];
    }
    COMPARE(table), COMPARE(positions);
    /* The last three tokens of the table, and the positions of documents of 7 rows; then they are added. */
    uint32_t position[ROWS];
    for (uint32_t row = 0; row < ROWS; row++) position[row] = row % 7;
    void *at_device = device_copy(position, sizeof position);
    forward.table = number_at(&c, table.device, 2 * width), forward.first = 2, forward.count = 3;
    forward.position = at_device;
    cuda_launch_rows(&c, KERNEL_embedding_forward, ROWS, &forward);
    for (uint64_t i = 0; i < y.count; i++)
        y.host[i] =
            (tokens[i / width] >= 2 ? table.host[(uint64_t)tokens[i / width] * width + i % width] : 0) +
            positions.host[i / width % 7 * width + i % width];
    COMPARE(y);
    forward.table = table.device, forward.first = 0, forward.count = 2, forward.add = true,
    forward.positions = NULL;
    cuda_launch_rows(&c, KERNEL_embedding_forward, ROWS, &forward);
    for (uint64_t i = 0; i < y.count; i++)
        if (tokens[i / width] < 2) y.host[i] += table.host[(uint64_t)tokens[i / width] * width + i % width];
    COMPARE(y);
    backward.from = 2, backward.count = 2, backward.table = table.device; /* of tokens 2 and 3 */
    backward.add = false;
    cuda_launch_blocks(&c, KERNEL_embedding_backward, ROWS, &backward);
    memset(table.host, 0, 2 * width * sizeof(float));
    for (uint64_t i = 0; i < dy.count; i++)
        if (tokens[i / width] == 2 || tokens[i / width] == 3)
            table.host[(uint64_t)(tokens[i / width] - 2) * width + i % width] += dy.host[i];
    COMPARE(table);
    struct fake_device d = cuda_device_of(&cuda);
    for (int i = 0; i < 5; i++) d.release(d.user, device[i]);
    d.release(d.user, at_device);
    forget_all();
}

/* ---- loss ---- */

static void cross_entropy(uint32_t vocab, uint32_t stride, float scale) {
    enum { SOME = 20 };
    int32_t targets[SOME];
    struct array logits = numbers((uint64_t)SOME * stride, 20), loss = floats(SOME);
    for (uint32_t row = 0; row < SOME; row++) targets[row] = (int32_t)((row * 7919) % vocab);
    void *device = device_copy(targets, sizeof targets);
    struct cross_entropy_argument a = {logits.device, loss.device, device, SOME, vocab, stride, scale, 0};
    cuda_launch_cross_entropy(&c, &a);
    for (uint32_t row = 0; row < SOME; row++) {
        float *x = logits.host + (uint64_t)row * stride, *copy = malloc(stride * sizeof *copy);
        memcpy(copy, x, stride * sizeof *copy);
        loss.host[row] = (float)kernels_at(0)->cross_entropy(copy, vocab, (uint32_t)targets[row], scale);
        for (uint32_t i = vocab; i < stride; i++) copy[i] = 0;
        if (scale != 0) memcpy(x, copy, stride * sizeof *copy);
        free(copy);
    }
    COMPARE(logits), COMPARE_FLOATS(loss);
    struct fake_device d = cuda_device_of(&cuda);
    d.release(d.user, device);
    forget_all();
}

/* A vocabulary in two blocks; every third row has no target. */
static void loss_in_blocks(uint32_t stride) {
    enum { SOME = 20, VOCAB = 301, FIRST = 160 };
    int32_t targets[SOME];
    struct array block[2] = {numbers((uint64_t)SOME * stride, 20), numbers((uint64_t)SOME * stride, 20)},
                 loss = floats(SOME), state[3] = {floats(SOME), floats(SOME), floats(SOME)};
    for (uint32_t row = 0; row < SOME; row++)
        targets[row] = row % 3 ? (int32_t)((row * 7919) % VOCAB) : -1 - (int32_t)(row % 2);
    void *device = device_copy(targets, sizeof targets);
    struct loss_part_argument a = {.most = state[0].device,
                                   .total = state[1].device,
                                   .wanted = state[2].device,
                                   .loss = loss.device,
                                   .target = device,
                                   .rows = SOME,
                                   .stride = stride,
                                   .scale = 0.25f};
    for (int step = 0; step < 4; step++) { /* forward, and then back */
        int b = step < 2 ? step : 3 - step;
        a.logits = block[b].device, a.first = b ? FIRST : 0, a.columns = b ? VOCAB - FIRST : FIRST;
        a.begins = b == 0, a.ends = b == 1;
        cuda_launch(&c, step < 2 ? KERNEL_loss_part : KERNEL_loss_slope, (struct grid){SOME, 1, 1},
                    (struct grid){LOSS_THREADS, 1, 1}, &a);
    }
    for (uint32_t row = 0; row < SOME; row++) {
        float whole[VOCAB],
            *x[2] = {block[0].host + (uint64_t)row * stride, block[1].host + (uint64_t)row * stride};
        memcpy(whole, x[0], FIRST * sizeof *whole),
            memcpy(whole + FIRST, x[1], (VOCAB - FIRST) * sizeof *whole);
        loss.host[row] = 0;
        if (targets[row] < 0)
            memset(whole, 0, sizeof whole);
        else
            loss.host[row] = (float)kernels_at(0)->cross_entropy(whole, VOCAB, (uint32_t)targets[row], 0.25f);
        for (int b = 0; b < 2; b++) memset(x[b], 0, stride * sizeof(float));
        memcpy(x[0], whole, FIRST * sizeof *whole),
            memcpy(x[1], whole + FIRST, (VOCAB - FIRST) * sizeof *whole);
    }
    COMPARE(block[0]), COMPARE(block[1]), COMPARE_FLOATS(loss);
    struct fake_device d = cuda_device_of(&cuda);
    d.release(d.user, device);
    forget_all();
}

/* ---- attention ---- */

struct attention {
    uint32_t batch, length, heads, kv_heads, width, ld;
    struct array qkv, mixed, lse, gradient, qkv_gradient;
};

static float *part(const struct attention *s, float *qkv, uint32_t row, uint32_t first_head, uint32_t head) {
    return qkv + (uint64_t)row * s->ld + (uint64_t)(first_head + head) * s->width;
}

static float dot(const float *a, const float *b, uint32_t width) {
    float sum = 0;
    for (uint32_t i = 0; i < width; i++) sum += a[i] * b[i];
    return sum;
}

/* If not 0: the last keys that a query sees; the rows of each document but the last. */
static uint32_t window, document;

static uint32_t first_seen(uint32_t query) {
    uint32_t first = window && query >= window ? query - window + 1 : 0,
             begin = document ? query / document * document : 0;
    return first > begin ? first : begin;
}

static void query_on_host(const struct attention *s, uint32_t sequence, uint32_t query, uint32_t head) {
    uint32_t row = sequence * s->length + query, kv = head / (s->heads / s->kv_heads), width = s->width;
    float scale = 1 / sqrtf((float)width), total = 0, dots = 0, p[s->length];
    float *q = part(s, s->qkv.host, row, 0, head), *dq = part(s, s->qkv_gradient.host, row, 0, head);
    float *o = s->mixed.host + ((uint64_t)row * s->heads + head) * width;
    float *d = s->gradient.host + ((uint64_t)row * s->heads + head) * width;
    memset(o, 0, width * sizeof *o);
    for (uint32_t i = first_seen(query); i <= query; i++)
        total += p[i] = expf(scale * dot(q, part(s, s->qkv.host, row - query + i, s->heads, kv), width));
    s->lse.host[((uint64_t)sequence * s->heads + head) * s->length + query] = logf(total);
    for (uint32_t i = first_seen(query); i <= query; i++)
        for (uint32_t k = 0; k < width; k++)
            o[k] += p[i] / total * part(s, s->qkv.host, row - query + i, s->heads + s->kv_heads, kv)[k];
    dots = dot(o, d, width);
    for (uint32_t i = first_seen(query); i <= query; i++) {
        uint32_t other = row - query + i, values = s->heads + s->kv_heads;
        float slope = p[i] / total * (dot(d, part(s, s->qkv.host, other, values, kv), width) - dots) * scale;
        for (uint32_t k = 0; k < width; k++) {
            dq[k] += slope * part(s, s->qkv.host, other, s->heads, kv)[k];
            part(s, s->qkv_gradient.host, other, s->heads, kv)[k] += slope * q[k];
            part(s, s->qkv_gradient.host, other, values, kv)[k] += p[i] / total * d[k];
        }
    }
}

/* The backward has the same bits again, in another order of blocks and threads. */
static void same_bits_again(uint32_t tile, struct attention_argument a, const struct array *gradient) {
    struct fake_device d = cuda_device_of(&cuda);
    uint64_t bytes = gradient->count * c.number_bytes;
    void *first = malloc(bytes), *second = malloc(bytes);
    d.copy(d.user, first, gradient->device, bytes, true);
    cuda_attention_backward(&c, tile, &a);
    d.copy(d.user, second, gradient->device, bytes, true);
    if (!CHECK(memcmp(first, second, bytes) == 0)) fprintf(stderr, "  heads of %u\n", a.width);
    free(first), free(second);
}

/* Of the output; infinite ones make gradients that are not finite either. */
static float gradient_size = 1;

static void no_query_is_finite(const struct attention *s) {
    struct fake_device d = cuda_device_of(&cuda);
    uint16_t *gradient = malloc(s->qkv_gradient.count * sizeof *gradient);
    uint64_t finite = 0;
    d.copy(d.user, gradient, s->qkv_gradient.device, s->qkv_gradient.count * sizeof *gradient, true);
    for (uint64_t i = 0; i < s->qkv_gradient.count; i++)
        finite += i % s->ld < s->heads * s->width && isfinite(f32_from_bf16(gradient[i]));
    CHECK_INT(finite, 0);
    free(gradient);
}

/* The bounds of the documents, by row. */
static void *bounds(uint32_t batch, uint32_t length, bool ends) {
    uint32_t *bound = malloc((uint64_t)batch * length * sizeof *bound);
    for (uint32_t row = 0; row < batch * length; row++) {
        uint32_t at = row % length / document * document,
                 end = at + document < length ? at + document : length;
        bound[row] = ends ? end : at;
    }
    void *device = device_copy(bound, (uint64_t)batch * length * sizeof *bound);
    keep((float *)bound, device, 0);
    return device;
}

/* tile: gpt_cuda_head; 0: the kernels for any width. */
static void attention(uint32_t tile, uint32_t length, uint32_t heads, uint32_t kv_heads, uint32_t width) {
    enum { BATCH = 2 };
    struct attention s = {
        .batch = BATCH, .length = length, .heads = heads, .kv_heads = kv_heads, .width = width};
    s.ld = (heads + 2 * kv_heads) * width;
    uint64_t rows = (uint64_t)BATCH * length;
    s.qkv = numbers(rows * s.ld, 1.5f), s.mixed = numbers(rows * heads * width, 1),
    s.lse = floats(rows * heads);
    s.gradient = numbers(rows * heads * width, gradient_size), s.qkv_gradient = numbers(rows * s.ld, 1);
    struct array dots = floats(rows * heads);
    struct array scratch =
        floats(cuda_attention_floats(tile == 64 ? 64 : HEAD_WIDTH_MAX, BATCH * heads, length));
    struct attention_argument a = {s.qkv.device,
                                   s.mixed.device,
                                   s.lse.device,
                                   dots.device,
                                   s.gradient.device,
                                   s.qkv_gradient.device,
                                   BATCH,
                                   length,
                                   heads,
                                   kv_heads,
                                   width,
                                   1 / sqrtf((float)width),
                                   .scratch = scratch.device,
                                   .window = window,
                                   .begins = document ? bounds(BATCH, length, false) : NULL,
                                   .ends = document ? bounds(BATCH, length, true) : NULL};
    cuda_attention_forward(&c, tile, &a);
    cuda_attention_backward(&c, tile, &a);
    if (c.warpgroups) same_bits_again(tile, a, &s.qkv_gradient);
    if (!isfinite(gradient_size)) {
        no_query_is_finite(&s);
        forget_all();
        return;
    }
    memset(s.qkv_gradient.host, 0, s.qkv_gradient.count * sizeof(float));
    for (uint32_t sequence = 0; sequence < BATCH; sequence++)
        for (uint32_t query = 0; query < length; query++)
            for (uint32_t head = 0; head < (poisoned_width ? 1 : heads); head++)
                query_on_host(&s, sequence, query, head);
    COMPARE(s.mixed), COMPARE(s.qkv_gradient);
    if (!poisoned_width) COMPARE_FLOATS(s.lse);
    forget_all();
}

/* Blocks of queries and of keys that see nothing of some tiles, a part of others, and rows without any key of a tile. */
static void sights(uint32_t tile, uint32_t heads, uint32_t kv_heads, uint32_t width) {
    static const struct {
        uint32_t window, document;
    } sight[] = {{1, 0}, {40, 0}, {200, 0}, {0, 23}, {0, 130}, {9, 31}};
    for (size_t i = 0; i < sizeof sight / sizeof *sight; i++) {
        window = sight[i].window, document = sight[i].document;
        attention(tile, 150, heads, kv_heads, width);
    }
    window = document = 0;
}

static void beside_infinite_heads(uint32_t tile, uint32_t width) {
    poisoned_width = width;
    attention(tile, 40, 2, 2, width);
    poisoned_width = 0;
}

/* The scales of sums of integers follow the sizes of gradients. */
static void gradients_of_all_sizes(void) {
    static const float sizes[] = {0, 0x1p-100f, 0x1p100f, INFINITY};
    for (int i = 0; i < 4; i++) {
        gradient_size = sizes[i];
        attention(64, 140, 2, 1, 40);
        attention(128, 70, 1, 1, 128);
    }
    gradient_size = 1;
}

static void run(zero_dtype type) {
    memset(&c, 0, sizeof c);
    c.driver = cuda.driver, c.device = cuda.device, c.stream = cuda.stream, c.type = type;
    c.number_bytes = type == ZERO_F32 ? 4 : 2, c.widest = 16 / c.number_bytes;
    cuda_kernels_open(&c);
    if (!CHECK_STRING(c.error.message, "")) return;
    /* Whole groups of 16 bytes, in two blocks of sums; and not. */
    static const uint32_t columns[] = {136, 33};
    for (int i = 0; i < 2; i++) {
        norms(LAYER_NORM, columns[i]);
        norms(RMS_NORM, columns[i]);
        biases(columns[i]);
        rounded_sums(columns[i] * 77, i);
        gelu(columns[i]);
        swiglu(columns[i]);
        embedding(columns[i], i);
    }
    /* Both kernels; the last columns and rows do not fill their block. */
    CHECK_INT(cuda_norm_back(&c, 33), GPT_KERNELS);
    CHECK_INT(cuda_norm_back(&c, (2 * NORM_GROUPS + 1) * c.widest), GPT_KERNELS);
    norm_back(LAYER_NORM, 136, ROWS);
    norm_back(RMS_NORM, (NORM_GROUPS + 3) * c.widest, 5);
    norm_back(LAYER_NORM, (2 * NORM_GROUPS - 1) * c.widest, 131); /* two rows of a part, one of the last */
    head_norms(128), head_norms(10);
    rotary(5, false);
    rotary(16, true);
    cross_entropy(301, 304, 0.25f);
    cross_entropy(301, 301, 2);
    cross_entropy(301, 304, 0);
    loss_in_blocks(160), loss_in_blocks(165);
    attention(0, 1, 1, 1, 8);
    attention(0, 50, 4, 2, 10);
    attention(0, 70, 2, 2, 40);
    sights(0, 2, 1, 10);
    if (type != ZERO_F32) {
        attention(64, 1, 1, 1, 64);
        attention(64, 150, 2, 1, 64);  /* three tiles */
        beside_infinite_heads(64, 40); /* filled up */
        beside_infinite_heads(96, 80);
        beside_infinite_heads(128, 112);
        attention(96, 70, 2, 1, 80);
        attention(96, 33, 1, 1, 96);
        attention(128, 77, 2, 2, 128);
        attention(128, 270, 1, 1, 128); /* two blocks of queries */
        sights(64, 2, 1, 64), sights(96, 1, 1, 96), sights(128, 1, 1, 128);
    }
    if (cuda_attention_fits(&c, 64)) {
        CHECK_INT(cuda_warpgroup_kernels_open(&c), ZERO_OK);
        c.warpgroups = true;
        attention(64, 1, 1, 1, 64);
        attention(64, 150, 2, 1, 64); /* three tiles of keys and of queries, two blocks of them */
        beside_infinite_heads(64, 40);
        beside_infinite_heads(128, 112);
        attention(128, 130, 2, 1, 128);
        attention(96, 33, 1, 1, 96); /* has no such kernels: takes the others */
        gradients_of_all_sizes();
        attention(0, 9, 1, 1, 10);
    }
    CHECK_STRING(c.error.message, "");
    cuda_kernels_close(&c);
}

int main(void) {
    cuda_device_open(&cuda);
    run(ZERO_F32);
    run(ZERO_BF16);
    run(ZERO_F16);
    cuda_device_close(&cuda);
    return check_end();
}
