/* The GPT on a GPU against the same on the host: loss, logits and the gradient of every tensor, of GPT-2 and of Llama; a
 * second micro-step adds; recomputation and what is frozen change no bit. In fp32 within 1e-4; in bf16 and fp16, where
 * GELU is the products' own, within rounding. Runs on the stand-ins of tests/cuda, or on a GPU. */
#include <math.h>
#include <stdlib.h>

#include "tests/check.h"
#include "tests/gpt/checks.h"
#include "tests/gpt/cuda_device.h"

static struct fake_device device;

static void compare_gradients(struct fixture *f, struct fixture *expected, double scale, double most) {
    for (uint32_t i = 0; fake_engine_name(f->engine, i); i++) {
        const char *name = fake_engine_name(f->engine, i);
        double off =
            check_distance(fake_engine_grad(f->engine, name), fake_engine_grad(expected->engine, name), scale,
                           fake_engine_count(f->engine, name));
        if (off <= most) continue;
        check_fail(__FILE__, __LINE__);
        fprintf(stderr, "gradient of %s is off by %.3g\n", name, off);
    }
}

static void compare_logits(struct fixture *f, struct fixture *expected, double most) {
    uint32_t vocab = f->config.vocab, length = f->config.context / 2 + 1;
    float *logits = malloc(vocab * sizeof *logits), *reference = malloc(vocab * sizeof *reference);
    CHECK_INT(gpt_logits(f->gpt, f->tokens, length, logits), ZERO_OK);
    CHECK_INT(gpt_logits(expected->gpt, f->tokens, length, reference), ZERO_OK);
    CHECK(check_distance(logits, reference, 1, vocab) <= most);
    free(logits), free(reference);
}

/* The host computes in fp32. `most`: of a gradient's distance; a loss is nearer. */
static void against_host(struct gpt_config config, uint32_t batch, zero_dtype dtype, double most) {
    struct fixture f, host;
    double loss = 0, expected = 0, again = 0;
    fixture_open_on(&device, dtype, &f, config, batch, 1, 4);
    fixture_open(ZERO_F32, &host, config, batch, 1, 4);
    CHECK_INT(gpt_train(f.gpt, f.tokens, f.targets, &loss), ZERO_OK);
    CHECK_INT(gpt_train(host.gpt, f.tokens, f.targets, &expected), ZERO_OK);
    CHECK_DOUBLE(loss, expected, most / 4 * expected);
    compare_gradients(&f, &host, 1, most);
    CHECK_INT(gpt_train(f.gpt, f.tokens, f.targets, &again), ZERO_OK);
    CHECK_DOUBLE(again, loss, 0);
    compare_gradients(&f, &host, 2, most);
    CHECK_INT(gpt_evaluate(f.gpt, f.tokens, f.targets, &again), ZERO_OK);
    CHECK_DOUBLE(again, loss, 0);
    CHECK_INT(gpt_evaluate_some(f.gpt, f.tokens, f.targets, 1, &again), ZERO_OK);
    CHECK_INT(gpt_evaluate_some(host.gpt, f.tokens, f.targets, 1, &expected), ZERO_OK);
    CHECK_DOUBLE(again, expected, most / 4 * expected);
    compare_logits(&f, &host, most);
    fixture_close(&f), fixture_close(&host);
}

static void all_types(struct gpt_config config, uint32_t batch) {
    against_host(config, batch, ZERO_F32, 1e-4);
    against_host(config, batch, ZERO_BF16, 0.08);
    against_host(config, batch, ZERO_F16, 0.02);
}

static void same_gradients(struct fixture *f, struct fixture *expected, bool frozen) {
    for (uint32_t i = 0; fake_engine_name(f->engine, i); i++) {
        const char *name = fake_engine_name(f->engine, i);
        uint64_t count = fake_engine_count(f->engine, name);
        const float *grad = fake_engine_grad(f->engine, name);
        if (frozen && i % 2)
            for (uint64_t e = 0; e < count && CHECK_DOUBLE(grad[e], 0, 0);) e++;
        else
            CHECK_BYTES(grad, fake_engine_grad(expected->engine, name), count * sizeof *grad);
    }
}

/* With segments of blocks computed again, and with every other parameter frozen. */
static void same_bits(struct gpt_config config, uint32_t batch) {
    struct fixture whole;
    double loss, expected;
    fixture_open_on(&device, ZERO_BF16, &whole, config, batch, 1, 1);
    CHECK_INT(gpt_train(whole.gpt, whole.tokens, whole.targets, &expected), ZERO_OK);
    for (uint32_t kind = 0; kind <= config.layers; kind++) { /* kind 0: frozen */
        struct fixture f;
        config.recompute = kind;
        fixture_open_on(&device, ZERO_BF16, &f, config, batch, 1, 1);
        for (uint32_t i = 1; kind == 0 && fake_engine_name(f.engine, i); i += 2)
            fake_engine_freeze(f.engine, fake_engine_name(f.engine, i));
        CHECK_INT(gpt_train(f.gpt, f.tokens, f.targets, &loss), ZERO_OK);
        CHECK_DOUBLE(loss, expected, 0);
        same_gradients(&f, &whole, kind == 0);
        fixture_close(&f);
    }
    fixture_close(&whole);
}

/* Addresses of parameters and gradients that change, when graphs of the first are recorded. */
static void moved(struct gpt_config config) {
    struct fixture f, still;
    double loss, expected;
    fixture_open_on(&device, ZERO_F32, &f, config, 1, 1, 1);
    fixture_open_on(&device, ZERO_F32, &still, config, 1, 1, 1);
    CHECK_INT(gpt_train(still.gpt, still.tokens, still.targets, &expected), ZERO_OK);
    for (int step = 0; step < 7; step++) {
        if (step >= 3) fake_engine_move(f.engine, step % 2);
        fake_engine_next_step(f.engine);
        CHECK_INT(gpt_train(f.gpt, f.tokens, f.targets, &loss), ZERO_OK);
        CHECK_DOUBLE(loss, expected, 0);
        same_gradients(&f, &still, false);
    }
    fixture_close(&f), fixture_close(&still);
}

static void refused(struct gpt_config config, const char *part) {
    struct gpt *gpt = NULL;
    zero_engine *engine = fake_engine_create(ZERO_F32, 1, 1);
    fake_engine_on(engine, &device);
    CHECK_INT(gpt_create(engine, &config, 1, &gpt), ZERO_E_UNSUPPORTED);
    CHECK_CONTAINS(gpt_last_error(), part);
    zero_engine_destroy(engine);
}

static const struct gpt_config gpt2 = {.layers = 2,
                                       .width = 24,
                                       .heads = 3,
                                       .context = 19,
                                       .vocab = 11,
                                       .inner = 40,
                                       .tied = true,
                                       .layer_norm_epsilon = 1e-5,
                                       .initializer_range = 0.2};
static const struct gpt_config llama = {.architecture = GPT_LLAMA,
                                        .layers = 2,
                                        .width = 24,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .context = 19,
                                        .vocab = 11,
                                        .inner = 37,
                                        .rope = {.theta = 100},
                                        .layer_norm_epsilon = 1e-5,
                                        .initializer_range = 0.2};

int main(void) {
    struct cuda_device cuda;
    cuda_device_open(&cuda);
    device = cuda_device_of(&cuda);
    struct gpt_config odd = gpt2, own = llama, flash = gpt2, deep = gpt2, wide = gpt2, far = gpt2;
    odd.width = 21, odd.inner = 35, odd.tied = false; /* no multiple of anything */
    own.tied = true, own.kv_heads = 1, own.head_width = 10;
    flash.layers = 1, flash.width = 64, flash.heads = 1, flash.context = 70; /* on the tensor cores */
    deep.layers = 4, deep.context = 9; /* segments of two blocks share two places */
    wide.head_width = 129;
    far.recompute = 1, far.recompute_on_cpu = true;
    all_types(gpt2, 2);
    all_types(odd, 1);
    all_types(llama, 1);
    all_types(own, 1);
    against_host(flash, 1, ZERO_BF16, 0.08);
    against_host(flash, 1, ZERO_F16, 0.02);
    same_bits(deep, 1);
    same_bits(llama, 1);
    moved(gpt2);
    refused(wide, "at most 128 wide");
    refused(far, "cpu_checkpointing");
    cuda_device_close(&cuda);
    return check_end();
}
