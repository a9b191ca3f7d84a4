/* Which kernel attention's forward is: flash_forward, or warpgroup_forward where that can be used (gpt.h). No GPU has run the latter
 * yet. So before it is used, and on each rank, both compute a small problem, and must agree. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/convert.h"
#include "tools/gpt/cuda/choices.h"

#define LINE "attention "
static const char by_warpgroups[] = LINE "warpgroups\n", by_mma[] = LINE "mma\n";

/* ---- a problem ---- */

struct problem {
    CUdeviceptr memory; /* qkv, two outputs, two of lse */
    struct attention_argument argument[2];
    uint64_t qkv_bytes, mixed_bytes, lse_bytes, bytes;
};

static uint64_t lines(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

static zero_status take_problem(const struct cuda_gpt *c, struct attention_argument shape,
                                struct problem *out, struct zero_error *error) {
    uint64_t rows = (uint64_t)shape.batch * shape.length, width = shape.width,
             heads = shape.heads + 2 * (uint64_t)shape.kv_heads;
    *out = (struct problem){.qkv_bytes = lines(rows * heads * width * 2),
                            .mixed_bytes = lines(rows * shape.heads * width * 2),
                            .lse_bytes = lines(rows * shape.heads * sizeof(float))};
    out->bytes = out->qkv_bytes + 2 * (out->mixed_bytes + out->lse_bytes);
    CUresult result = c->driver.cuMemAlloc(&out->memory, out->bytes);
    for (int i = 0; i < 2 && !result; i++) {
        char *mixed =
            (char *)(uintptr_t)out->memory + out->qkv_bytes + i * (out->mixed_bytes + out->lse_bytes);
        out->argument[i] = shape;
        out->argument[i].qkv = (void *)(uintptr_t)out->memory;
        out->argument[i].mixed = mixed;
        out->argument[i].lse = (float *)(void *)(mixed + out->mixed_bytes);
        out->argument[i].scale = 1 / sqrtf((float)shape.width);
    }
    return cuda_check(&c->driver, result, error,
                      "the GPT on the GPU: %llu bytes to compare attention's kernels",
                      (unsigned long long)out->bytes);
}

static void run(struct cuda_gpt *c, struct attention_argument *a, bool warpgroups) {
    bool before = c->warpgroups;
    c->warpgroups = warpgroups;
    cuda_attention_forward(c, a->width <= 64 ? 64 : HEAD_WIDTH_MAX, a);
    c->warpgroups = before;
}

static bool fits(const struct gpt *gpt) {
    return cuda_attention_fits(gpt->cuda, gpt_cuda_head(&gpt->config, gpt->cuda->type));
}

/* ---- they agree ---- */

/* Two blocks of queries, of which one is not full; three tiles of keys. Queries are large enough that few keys have most of a
 * query's weight. Values are below 1, so that the two differ by at most four roundings to bf16: of the weights and of the output of
 * each. */
enum { LENGTH = 150, HEADS = 2 };
static const float query_most = 4, mixed_tolerance = 0x1p-7f, lse_tolerance = 0x1p-10f;

static void draw(uint16_t *to, uint32_t width) {
    uint64_t state = 1;
    for (uint32_t i = 0; i < LENGTH * (HEADS + 2) * width; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        float x = (float)(state >> 40) * 0x1p-23f - 1;
        to[i] = bf16_from_f32(i % ((HEADS + 2) * width) < HEADS * width ? x * query_most : x);
    }
}

static bool agree(const struct problem *p, const char *memory, uint32_t width) {
    uint64_t each = p->mixed_bytes + p->lse_bytes;
    const uint16_t *mixed = (const void *)(memory + p->qkv_bytes),
                   *other = (const void *)(memory + p->qkv_bytes + each);
    const float *lse = (const void *)(memory + p->qkv_bytes + p->mixed_bytes),
                *other_lse = (const void *)(memory + p->qkv_bytes + each + p->mixed_bytes);
    bool same = true; /* a comparison with NaN is false */
    for (uint32_t i = 0; i < LENGTH * HEADS * width; i++)
        same &= fabsf(f32_from_bf16(mixed[i]) - f32_from_bf16(other[i])) <= mixed_tolerance;
    for (uint32_t i = 0; i < LENGTH * HEADS; i++) same &= fabsf(lse[i] - other_lse[i]) <= lse_tolerance;
    return same;
}

/* The host's copy of the memory has what both kernels made of the inputs in it. */
static zero_status compute_both(struct cuda_gpt *c, struct problem *p, char *host, struct zero_error *error) {
    uint64_t behind = p->qkv_bytes;
    cuda_copy(c, (void *)(uintptr_t)p->memory, host, behind);
    for (int i = 0; i < 2; i++) run(c, &p->argument[i], i);
    cuda_copy(c, host + behind, (char *)(uintptr_t)p->memory + behind, p->bytes - behind);
    CUresult result = c->driver.cuStreamSynchronize(c->stream);
    if (c->error.code) return error_pass(error, &c->error), c->error.code;
    return cuda_check(&c->driver, result, error,
                      "the GPT on the GPU: comparing attention's kernels (set device.attention to \"mma\")");
}

static zero_status check(struct gpt *gpt, struct zero_error *error) {
    struct cuda_gpt *c = gpt->cuda;
    uint32_t width = gpt->config.head_width;
    struct attention_argument shape = {
        .batch = 1, .length = LENGTH, .heads = HEADS, .kv_heads = 1, .width = width};
    struct problem p;
    zero_status status = cuda_warpgroup_kernels_open(c);
    if (status) return error_pass(error, &c->error), status;
    status = take_problem(c, shape, &p, error);
    char *host = status ? NULL : calloc(1, p.bytes);
    if (!status && !host) status = ZERO_E_MEMORY;
    if (!status) draw((void *)host, width);
    if (!status) status = compute_both(c, &p, host, error);
    if (!status && !agree(&p, host, width))
        status = error_set(
            error, ZERO_E_UNSUPPORTED,
            "attention's kernels disagree: warpgroup_forward on a test of %d rows in heads of %u is further "
            "than 2^-7 from flash_forward: set device.attention to \"mma\", and report it",
            LENGTH, width);
    if (p.memory) c->driver.cuMemFree(p.memory);
    free(host);
    return status;
}

/* ---- the faster one ---- */

struct timed_kernel {
    struct cuda_gpt *c;
    struct attention_argument *argument;
    bool warpgroups;
};

static CUresult enqueue(void *user, int count) {
    struct timed_kernel *k = user;
    for (int i = 0; i < count; i++) run(k->c, k->argument, k->warpgroups);
    return k->c->error.code ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

/* On the shape of a micro-batch, in the memory of the first block's activations, which no pass has used yet. The inputs are one
 * number: both kernels have the same work with any. */
static zero_status time_both(struct gpt *gpt, const struct timing *t, float out_ms[2],
                             struct zero_error *error) {
    struct cuda_gpt *c = gpt->cuda;
    const struct gpt_config *config = &gpt->config;
    struct attention_argument a = {.qkv = c->memory.saved->qkv,
                                   .mixed = c->memory.saved->mixed,
                                   .lse = c->memory.saved->lse,
                                   .batch = gpt->batch,
                                   .length = config->context,
                                   .heads = config->heads,
                                   .kv_heads = config->kv_heads,
                                   .width = config->head_width,
                                   .scale = 1 / sqrtf((float)config->head_width)};
    uint64_t numbers = (uint64_t)a.batch * a.length * extent_of(config, QKV);
    float ms[2][TIMING_ROUNDS];
    CUresult result =
        c->driver.cuMemsetD8Async((CUdeviceptr)(uintptr_t)a.qkv, 0x3c, numbers * c->number_bytes, c->stream);
    for (int round = 0; round < TIMING_ROUNDS && !result; round++)
        for (int i = 0; i < 2 && !result; i++) {
            struct timed_kernel k = {c, &a, i};
            result = timing_take(t, enqueue, &k, &ms[i][round]);
        }
    zero_status status = cuda_check(&c->driver, result, error, "the GPT on the GPU: timing attention");
    for (int i = 0; i < 2 && !status; i++) out_ms[i] = timing_median(ms[i]);
    return status;
}

/* ---- the choice ---- */

zero_status attention_choose(struct gpt *gpt, const struct timing *t, char *text, struct zero_error *error) {
    struct cuda_gpt *c = gpt->cuda;
    c->warpgroups = false;
    strcpy(text, by_mma);
    if (!fits(gpt)) return ZERO_OK;
    zero_status status = check(gpt, error);
    if (!status) status = time_both(gpt, t, c->attention_ms, error);
    if (status || c->attention_ms[1] >= c->attention_ms[0] * timing_faster) return status;
    c->warpgroups = true;
    strcpy(text, by_warpgroups);
    return ZERO_OK;
}

zero_status attention_use(struct gpt *gpt, const char **text, struct zero_error *error) {
    struct cuda_gpt *c = gpt->cuda;
    bool warpgroups = strncmp(*text, by_warpgroups, sizeof by_warpgroups - 1) == 0;
    c->warpgroups = false;
    if (!warpgroups && strncmp(*text, by_mma, sizeof by_mma - 1) != 0) return ZERO_OK;
    *text = strchr(*text, '\n') + 1;
    if (!warpgroups) return ZERO_OK;
    if (!fits(gpt))
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "rank 0's attention uses products of warpgroups, which this rank's GPU does not "
                         "have: give all ranks GPUs of one kind, or set device.attention to \"mma\"");
    zero_status status = check(gpt, error);
    c->warpgroups = !status;
    return status;
}
