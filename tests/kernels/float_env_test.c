/* A host program's rounding mode and flushing of denormals change no result and are as before after every
 * call. */
#include "engine/base/numbers/float_env.h"

#include <fenv.h>

#include "kernels/norm.h"
#include "kernels/quantize.h"
#include "kernels/span.h"
#include "tests/check.h"
#include "tests/float_control.h"
#include "tests/kernels/optimizer_run.h"

enum { COUNT = 300001, SMALL = 4096 };

struct results {
    struct shard shard;
    double block, span;
    float wide[SMALL];
    uint16_t half[SMALL];
    float added[SMALL], decoded[SMALL];
    uint8_t code[2 * SMALL], fp8[2 * SMALL];
};

static struct results plain, strange;

static void run(struct results *r, const struct optimizer *optimizer, uint32_t threads) {
    struct optimizer_params params = params_of(optimizer, 1);
    struct optimizer_scalars scalars = {0};
    optimizer_prepare(optimizer, &params, 2, &scalars);
    shard_update(&r->shard, optimizer, kernel_isa(), &scalars, DTYPE_F16, DTYPE_F16, 0, COUNT, threads);
    r->block = norm_block(r->shard.master, DTYPE_F32, SMALL);
    r->span = norm_more(0, r->shard.master, DTYPE_F32, COUNT);
    cast(r->half, DTYPE_F16, r->shard.master, DTYPE_F32, SMALL);
    cast(r->wide, DTYPE_F32, r->half, DTYPE_F16, SMALL);
    memcpy(r->added, r->shard.master, sizeof r->added);
    span_scale(r->added, 1.0f / 3, SMALL);
    span_add(r->added, r->shard.state[0], SMALL);
    quantize(r->code, r->shard.master, DTYPE_F32, SMALL, CODE_INT8);
    dequantize(r->decoded, DTYPE_F32, r->code, SMALL, CODE_INT8);
    dequantize_part(r->decoded, r->code, SMALL, CODE_INT8, 0, SMALL, true);
    quantize(r->fp8, r->shard.master, DTYPE_F32, SMALL, CODE_FP8_E4M3);
    dequantize_part(r->decoded, r->fp8, SMALL, CODE_FP8_E4M3, 0, SMALL, true);
}

/* Denormals everywhere: weights, states and fp16 gradients. */
static void fill(struct shard *s) {
    shard_fill(s, 17, DTYPE_F16, 0);
    for (uint64_t i = 0; i < COUNT; i++) {
        if (i % 2) s->master[i] *= 0x1p-127f, s->state[0][i] *= 0x1p-125f, s->state[1][i] *= 0x1p-125f;
        if (i % 4 == 1) ((uint16_t *)s->gradient)[i] &= 0x83ff;
    }
}

static void compare(const char *what) {
    int same = CHECK_BYTES(strange.shard.master, plain.shard.master, COUNT * 4) &
               CHECK_BYTES(strange.shard.state[0], plain.shard.state[0], COUNT * 4) &
               CHECK_BYTES(strange.shard.state[1], plain.shard.state[1], COUNT * 4) &
               CHECK_BYTES(strange.shard.out, plain.shard.out, COUNT * 2) &
               CHECK_BYTES(&strange.block, &plain.block, sizeof plain.block) &
               CHECK_BYTES(&strange.span, &plain.span, sizeof plain.span) &
               CHECK_BYTES(strange.half, plain.half, sizeof plain.half) &
               CHECK_BYTES(strange.wide, plain.wide, sizeof plain.wide) &
               CHECK_BYTES(strange.added, plain.added, sizeof plain.added) &
               CHECK_BYTES(strange.code, plain.code, quantize_bytes(SMALL, CODE_INT8)) &
               CHECK_BYTES(strange.fp8, plain.fp8, quantize_bytes(SMALL, CODE_FP8_E4M3)) &
               CHECK_BYTES(strange.decoded, plain.decoded, sizeof plain.decoded);
    if (!same) fprintf(stderr, "  %s\n", what);
}

int main(void) {
    plain.shard = shard_new(COUNT, 0), strange.shard = shard_new(COUNT, 0);
    for (const struct optimizer *const *each = optimizers; *each; each++) {
        for (uint32_t threads = 1; threads <= 2; threads++) {
            fill(&plain.shard), fill(&strange.shard);
            run(&plain, *each, threads);
            uint64_t before = float_control(), host = before | FLOAT_CONTROL_FLUSHES;
            float_control_set(host);
            run(&strange, *each, threads);
            CHECK_INT(float_control(), host);
            float_control_set(before);
            compare((*each)->name);
            fill(&strange.shard);
            fesetround(FE_UPWARD);
            run(&strange, *each, threads);
            CHECK_INT(fegetround(), FE_UPWARD);
            fesetround(FE_TONEAREST);
            compare((*each)->name);
        }
    }
    shard_free(&plain.shard), shard_free(&strange.shard);
    return check_end();
}
