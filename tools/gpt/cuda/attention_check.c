/* Attention uses the flash kernels, or those of warpgroups where these can be used (enum gpt_attention). Before a rank uses the latter,
 * both compute a small problem, and must agree. */
#include <math.h>
#include <stdlib.h>

#include "engine/base/numbers/convert.h"
#include "tools/gpt/cuda/state.h"

enum { WAYS = 2 }; /* without and with warpgroups */

/* ---- a problem ---- */

/* Two blocks of queries and of keys, of which one is not full; three tiles of the other kind. */
enum { LENGTH = 150, HEADS = 2, KV_HEADS = 1 };

struct problem {
    /* qkv, the output's gradient; for each way, what its passes write; at `bytes` scratch */
    CUdeviceptr memory;
    uint64_t qkv_bytes, mixed_bytes, row_bytes, inputs, bytes;
    struct attention_argument argument[WAYS];
};

static uint64_t lines(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

/* Both ways' backwards begin with the outputs of the forward without warpgroups. */
static zero_status take_problem(const struct cuda_gpt *c, uint32_t width, struct problem *out,
                                struct zero_error *error) {
    struct problem p = {.qkv_bytes = lines(LENGTH * (HEADS + 2 * KV_HEADS) * width * 2),
                        .mixed_bytes = lines(LENGTH * HEADS * width * 2),
                        .row_bytes = lines(LENGTH * HEADS * sizeof(float))};
    uint64_t way_bytes = p.mixed_bytes + 2 * p.row_bytes + p.qkv_bytes;
    p.inputs = p.qkv_bytes + p.mixed_bytes, p.bytes = p.inputs + WAYS * way_bytes;
    uint64_t scratch = cuda_attention_floats(width <= 64 ? 64 : HEAD_WIDTH_MAX, HEADS, LENGTH);
    CUresult result = c->driver.cuMemAlloc(&p.memory, p.bytes + scratch * sizeof(float));
    for (int way = 0; way < WAYS && !result; way++) {
        char *inputs = (char *)(uintptr_t)p.memory, *mixed = inputs + p.inputs + way * way_bytes,
             *rows = mixed + p.mixed_bytes;
        p.argument[way] = (struct attention_argument){.qkv = inputs,
                                                      .mixed = mixed,
                                                      .lse = (float *)(void *)rows,
                                                      .dots = (float *)(void *)(rows + p.row_bytes),
                                                      .mixed_gradient = inputs + p.qkv_bytes,
                                                      .qkv_gradient = rows + 2 * p.row_bytes,
                                                      .batch = 1,
                                                      .length = LENGTH,
                                                      .heads = HEADS,
                                                      .kv_heads = KV_HEADS,
                                                      .width = width,
                                                      .scale = 1 / sqrtf((float)width),
                                                      .scratch = inputs + p.bytes};
    }
    *out = p;
    return cuda_check(&c->driver, result, error,
                      "the GPT on the GPU: %llu bytes to compare attention's kernels",
                      (unsigned long long)p.bytes);
}

/* Queries are large enough that few keys have most of a query's weight. All else is below 1. */
static void draw(const struct problem *p, char *host) {
    static const float query_most = 4;
    uint32_t width = p->argument[0].width, row = (HEADS + 2 * KV_HEADS) * width;
    uint16_t *qkv = (void *)host, *gradient = (void *)(host + p->qkv_bytes);
    uint64_t state = 1;
    for (uint32_t i = 0; i < LENGTH * (row + HEADS * width); i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        float x = (float)(state >> 40) * 0x1p-23f - 1;
        if (i < LENGTH * row)
            qkv[i] = bf16_from_f32(i % row < HEADS * width ? x * query_most : x);
        else
            gradient[i - LENGTH * row] = bf16_from_f32(x);
    }
}

/* Both passes, without and with warpgroups. */
static zero_status compute(struct cuda_gpt *c, struct problem *p, char *host, struct zero_error *error) {
    uint32_t tile = p->argument[0].width <= 64 ? 64 : HEAD_WIDTH_MAX;
    struct attention_argument backward[WAYS] = {p->argument[0], p->argument[1]};
    backward[1].mixed = p->argument[0].mixed, backward[1].lse = p->argument[0].lse;
    cuda_copy(c, (void *)(uintptr_t)p->memory, host, p->inputs);
    for (int way = 0; way < WAYS; way++) {
        c->warpgroups = way;
        cuda_attention_forward(c, tile, &p->argument[way]);
        cuda_attention_backward(c, tile, &backward[way]);
    }
    c->warpgroups = false;
    cuda_copy(c, host + p->inputs, (char *)(uintptr_t)p->memory + p->inputs, p->bytes - p->inputs);
    CUresult result = c->driver.cuStreamSynchronize(c->stream);
    if (c->error.code) return error_pass(error, &c->error), c->error.code;
    return cuda_check(&c->driver, result, error,
                      "the GPT on the GPU: comparing attention's kernels (set device.attention to \"mma\")");
}

/* ---- they agree: a comparison with NaN is false ---- */

/* The host's copy of an array in the device's memory. */
static const void *copy_of(const struct problem *p, const char *host, const void *device) {
    return host + ((uintptr_t)device - (uintptr_t)p->memory);
}

/* Values are below 1, so the outputs differ by at most four roundings to bf16: of the weights and of the output of each way. */
static bool forwards_agree(const struct problem *p, const char *host) {
    static const float mixed_tolerance = 0x1p-7f, lse_tolerance = 0x1p-10f;
    const uint16_t *mixed[WAYS];
    const float *lse[WAYS];
    bool same = true;
    for (int way = 0; way < WAYS; way++) {
        mixed[way] = copy_of(p, host, p->argument[way].mixed);
        lse[way] = copy_of(p, host, p->argument[way].lse);
    }
    for (uint32_t i = 0; i < LENGTH * HEADS * p->argument[0].width; i++)
        same &= fabsf(f32_from_bf16(mixed[0][i]) - f32_from_bf16(mixed[1][i])) <= mixed_tolerance;
    for (uint32_t i = 0; i < LENGTH * HEADS; i++) same &= fabsf(lse[0][i] - lse[1][i]) <= lse_tolerance;
    return same;
}

/* The columns first ... end - 1 of both gradients of qkv, by the largest of them: a gradient is rounded, and so are the factors of the
 * sum that it is. */
static bool gradients_agree(const uint16_t *a, const uint16_t *b, uint32_t row, uint32_t first,
                            uint32_t end) {
    static const float tolerance = 0x1p-7f;
    float most = 0, off = 0;
    bool numbers = true;
    for (uint32_t i = 0; i < LENGTH * row; i++) {
        if (i % row < first || i % row >= end) continue;
        float x = f32_from_bf16(a[i]), y = f32_from_bf16(b[i]);
        numbers &= isfinite(x) && isfinite(y);
        most = fmaxf(most, fabsf(x)), off = fmaxf(off, fabsf(x - y));
    }
    return numbers && most > 0 && off <= tolerance * most;
}

static bool backwards_agree(const struct problem *p, const char *host) {
    const uint16_t *a = copy_of(p, host, p->argument[0].qkv_gradient),
                   *b = copy_of(p, host, p->argument[1].qkv_gradient);
    uint32_t width = p->argument[0].width, keys = HEADS * width, values = keys + KV_HEADS * width,
             row = values + KV_HEADS * width;
    return gradients_agree(a, b, row, 0, keys) && gradients_agree(a, b, row, keys, values) &&
           gradients_agree(a, b, row, values, row);
}

static zero_status check(struct gpt *gpt, struct zero_error *error) {
    static const char *const names[] = {"forward", "backward"};
    struct cuda_gpt *c = gpt->cuda;
    struct problem p;
    zero_status status = cuda_warpgroup_kernels_open(c);
    if (status) return error_pass(error, &c->error), status;
    status = take_problem(c, gpt->config.head_width, &p, error);
    char *host = status ? NULL : calloc(1, p.bytes);
    if (!status && !host) status = ZERO_E_MEMORY;
    if (!status) draw(&p, host);
    if (!status) status = compute(c, &p, host, error);
    for (int pass = 0; pass < 2 && !status; pass++)
        if (!(pass ? backwards_agree : forwards_agree)(&p, host))
            status = error_set(
                error, ZERO_E_UNSUPPORTED,
                "attention's kernels disagree: the %s by warpgroups on a test of %d rows in heads of %u is "
                "further than 2^-7 from that by mma.sync: set device.attention to \"mma\", and report it",
                names[pass], LENGTH, gpt->config.head_width);
    if (p.memory) c->driver.cuMemFree(p.memory);
    free(host);
    return status;
}

zero_status cuda_attention_open(struct gpt *gpt, struct zero_error *error) {
    struct cuda_gpt *c = gpt->cuda;
    bool fits = cuda_attention_fits(c, gpt_cuda_head(&gpt->config, c->type));
    if (gpt->config.attention != GPT_ATTENTION_AUTO || !fits) return ZERO_OK;
    zero_status status = check(gpt, error);
    c->warpgroups = !status;
    return status;
}
