/* Which kernels attention's two passes use: the flash kernels, or those of warpgroups where these can be used (enum gpt_attention).
 * Before the latter are used, and on each rank, both compute a small problem, and must agree. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/convert.h"
#include "tools/gpt/cuda/attention_choice.h"
#include "tools/gpt/cuda/timing.h"

enum { WAYS = 2 }; /* without and with warpgroups */
static const char *const pass_names[ATTENTION_PASSES] = {"forward", "backward"};

static void run(struct cuda_gpt *c, enum attention_pass pass, struct attention_argument *a, bool warpgroups) {
    bool before = c->warpgroups[pass];
    uint32_t tile = a->width <= 64 ? 64 : HEAD_WIDTH_MAX;
    c->warpgroups[pass] = warpgroups;
    (pass == ATTENTION_FORWARD ? cuda_attention_forward : cuda_attention_backward)(c, tile, a);
    c->warpgroups[pass] = before;
}

static bool fits(const struct gpt *gpt) {
    return cuda_attention_fits(gpt->cuda, gpt_cuda_head(&gpt->config, gpt->cuda->type));
}

/* ---- a problem ---- */

/* Two blocks of queries and of keys, of which one is not full; three tiles of the other kind. */
enum { LENGTH = 150, HEADS = 2, KV_HEADS = 1 };

struct problem {
    CUdeviceptr memory; /* qkv, the output's gradient; for each way, what its passes write; at `bytes` scratch */
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

static zero_status compute(struct cuda_gpt *c, struct problem *p, const bool passes[ATTENTION_PASSES],
                           char *host, struct zero_error *error) {
    struct attention_argument backward = p->argument[1];
    backward.mixed = p->argument[0].mixed, backward.lse = p->argument[0].lse;
    cuda_copy(c, (void *)(uintptr_t)p->memory, host, p->inputs);
    run(c, ATTENTION_FORWARD, &p->argument[0], false);
    if (passes[ATTENTION_FORWARD]) run(c, ATTENTION_FORWARD, &p->argument[1], true);
    if (passes[ATTENTION_BACKWARD]) run(c, ATTENTION_BACKWARD, &p->argument[0], false);
    if (passes[ATTENTION_BACKWARD]) run(c, ATTENTION_BACKWARD, &backward, true);
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

static bool (*const agree[ATTENTION_PASSES])(const struct problem *, const char *) = {forwards_agree,
                                                                                      backwards_agree};

/* Of the passes in question. */
static zero_status check(struct gpt *gpt, const bool passes[ATTENTION_PASSES], struct zero_error *error) {
    struct cuda_gpt *c = gpt->cuda;
    struct problem p;
    zero_status status = cuda_warpgroup_kernels_open(c);
    if (status) return error_pass(error, &c->error), status;
    status = take_problem(c, gpt->config.head_width, &p, error);
    char *host = status ? NULL : calloc(1, p.bytes);
    if (!status && !host) status = ZERO_E_MEMORY;
    if (!status) draw(&p, host);
    if (!status) status = compute(c, &p, passes, host, error);
    for (int pass = 0; pass < ATTENTION_PASSES && !status; pass++)
        if (passes[pass] && !agree[pass](&p, host))
            status = error_set(
                error, ZERO_E_UNSUPPORTED,
                "attention's kernels disagree: the %s by warpgroups on a test of %d rows in heads of %u is "
                "further than 2^-7 from that by mma.sync: set device.attention to \"mma\", and report it",
                pass_names[pass], LENGTH, gpt->config.head_width);
    if (p.memory) c->driver.cuMemFree(p.memory);
    free(host);
    return status;
}

/* ---- the faster ones ---- */

struct timed_kernels {
    struct cuda_gpt *c;
    struct attention_argument *argument;
    enum attention_pass pass;
    bool warpgroups;
};

static CUresult enqueue(void *user, int count) {
    struct timed_kernels *k = user;
    for (int i = 0; i < count; i++) run(k->c, k->pass, k->argument, k->warpgroups);
    return k->c->error.code ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

/* Both ways take turns. */
static CUresult time_pass(const struct timing *t, enum attention_pass pass, struct attention_argument *a,
                          float out_ms[WAYS]) {
    float ms[WAYS][TIMING_ROUNDS];
    CUresult result = CUDA_SUCCESS;
    for (int round = 0; round < TIMING_ROUNDS && !result; round++)
        for (int way = 0; way < WAYS && !result; way++) {
            struct timed_kernels k = {t->c, a, pass, way};
            result = timing_take(t, enqueue, &k, &ms[way][round]);
        }
    for (int way = 0; way < WAYS && !result; way++) out_ms[way] = timing_median(ms[way]);
    return result;
}

/* On the shape of a micro-batch, in the memory of the first block's activations and of scratch, which no pass has used yet. The inputs
 * are one number: both ways have the same work with any. The backward takes what the forward has left. */
static zero_status time_passes(struct gpt *gpt, const struct timing *t, struct zero_error *error) {
    struct cuda_gpt *c = gpt->cuda;
    const struct gpt_config *config = &gpt->config;
    struct attention_argument a = {.qkv = c->memory.saved->qkv,
                                   .mixed = c->memory.saved->mixed,
                                   .lse = c->memory.saved->lse,
                                   .dots = c->memory.dots,
                                   .mixed_gradient = c->memory.mixed_gradient,
                                   .qkv_gradient = c->memory.qkv_gradient,
                                   .batch = gpt->batch,
                                   .length = config->context,
                                   .heads = config->heads,
                                   .kv_heads = config->kv_heads,
                                   .width = config->head_width,
                                   .scale = 1 / sqrtf((float)config->head_width),
                                   .scratch = c->memory.normed_gradient};
    uint64_t row_bytes = (uint64_t)a.batch * a.length * c->number_bytes;
    CUresult result = c->driver.cuMemsetD8Async((CUdeviceptr)(uintptr_t)a.qkv, 0x3c,
                                                row_bytes * extent_of(config, QKV), c->stream);
    if (!result)
        result = c->driver.cuMemsetD8Async((CUdeviceptr)(uintptr_t)a.mixed_gradient, 0x3c,
                                           row_bytes * a.heads * a.width, c->stream);
    for (int pass = 0; pass < ATTENTION_PASSES && !result; pass++)
        result = time_pass(t, (enum attention_pass)pass, &a, c->attention_ms[pass]);
    return cuda_check(&c->driver, result, error, "the GPT on the GPU: timing attention");
}

/* ---- the choice: a line with a word for each pass ---- */

#define LINE "attention "
static const char *const words[WAYS] = {"mma", "warpgroups"};

/* Reads a word that ends with `end`, and moves *text behind it. */
static bool take_word(const char **text, char end, bool *out_warpgroups) {
    for (int way = 0; way < WAYS; way++) {
        size_t length = strlen(words[way]);
        if (strncmp(*text, words[way], length) != 0 || (*text)[length] != end) continue;
        *out_warpgroups = way, *text += length + 1;
        return true;
    }
    return false;
}

/* False: the text begins with something else. */
static bool take_line(const char **text, bool out_warpgroups[ATTENTION_PASSES]) {
    const char *at = *text + sizeof LINE - 1;
    if (strncmp(*text, LINE, sizeof LINE - 1) != 0 || !take_word(&at, ' ', &out_warpgroups[0]) ||
        !take_word(&at, '\n', &out_warpgroups[1]))
        return false;
    *text = at;
    return true;
}

static const bool both[ATTENTION_PASSES] = {true, true};

zero_status attention_open(struct gpt *gpt, struct zero_error *error) {
    if (gpt->config.attention != GPT_ATTENTION_AUTO || !fits(gpt)) return ZERO_OK;
    zero_status status = check(gpt, both, error);
    if (!status) memcpy(gpt->cuda->warpgroups, both, sizeof both);
    return status;
}

void attention_forget(struct gpt *gpt) {
    if (gpt->config.attention == GPT_ATTENTION_TIMED)
        memset(gpt->cuda->warpgroups, 0, sizeof gpt->cuda->warpgroups);
}

zero_status attention_choose(struct gpt *gpt, const struct timing *t, char *text, struct zero_error *error) {
    struct cuda_gpt *c = gpt->cuda;
    bool can = fits(gpt);
    attention_forget(gpt);
    zero_status status = can ? check(gpt, both, error) : ZERO_OK;
    if (can && !status) status = time_passes(gpt, t, error);
    for (int pass = 0; pass < ATTENTION_PASSES && can && !status; pass++)
        c->warpgroups[pass] = c->attention_ms[pass][1] < c->attention_ms[pass][0] * timing_faster;
    sprintf(text, LINE "%s %s\n", words[c->warpgroups[0]], words[c->warpgroups[1]]);
    return status;
}

zero_status attention_use(struct gpt *gpt, const char **text, struct zero_error *error) {
    struct cuda_gpt *c = gpt->cuda;
    bool chosen[ATTENTION_PASSES];
    attention_forget(gpt);
    if (gpt->config.attention != GPT_ATTENTION_TIMED || !take_line(text, chosen) ||
        (!chosen[ATTENTION_FORWARD] && !chosen[ATTENTION_BACKWARD]))
        return ZERO_OK;
    if (!fits(gpt))
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "rank 0's attention uses products of warpgroups, which this rank's GPU does not "
                         "have: give all ranks GPUs of one kind, or set device.attention to \"mma\"");
    zero_status status = check(gpt, chosen, error);
    if (!status) memcpy(c->warpgroups, chosen, sizeof chosen);
    return status;
}
