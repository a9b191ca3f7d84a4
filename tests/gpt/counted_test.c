/* Targets that do not count: losses and gradients of two halves of the targets, over one divisor, add up to those of all; without a
 * target both are zero; a divisor that is the number of those that count gives their mean. */
#include <stdbool.h>
#include <stdio.h>

#include "tests/check.h"
#include "tests/gpt/checks.h"

/* Keeps every target whose index is (keep) or is not a multiple of 3. */
static uint64_t keep(struct fixture *f, const int32_t *targets, bool multiples) {
    uint64_t rows = (uint64_t)f->batch * f->config.context, kept = 0;
    for (uint64_t i = 0; i < rows; i++) {
        bool counts = (i % 3 == 0) == multiples;
        f->targets[i] = counts ? targets[i] : GPT_NO_TARGET;
        kept += counts;
    }
    return kept;
}

static void check_sums(struct fixture *parts, struct fixture *all) {
    for (uint32_t i = 0; fake_engine_name(all->engine, i); i++) {
        const char *name = fake_engine_name(all->engine, i);
        double off = check_distance(fake_engine_grad(parts->engine, name), fake_engine_grad(all->engine, name),
                                    1, fake_engine_count(all->engine, name));
        if (!CHECK(off < 2e-6)) fprintf(stderr, "gradient of %s is off by %.3g\n", name, off);
    }
}

static void halves(struct gpt_config config) {
    struct fixture parts, all;
    double whole, some, rest, mean;
    fixture_open(ZERO_F32, &parts, config, 2, 1, 4);
    fixture_open(ZERO_F32, &all, config, 2, 1, 4);
    double rows = 2.0 * config.context;
    CHECK_INT(gpt_train(all.gpt, all.tokens, all.targets, &whole), ZERO_OK);
    uint64_t kept = keep(&parts, all.targets, true);
    CHECK(kept && kept < rows);
    CHECK_INT(gpt_train(parts.gpt, parts.tokens, parts.targets, &some), ZERO_OK);
    keep(&parts, all.targets, false);
    CHECK_INT(gpt_train(parts.gpt, parts.tokens, parts.targets, &rest), ZERO_OK); /* gradients add up */
    CHECK_DOUBLE(some + rest, whole, 1e-9);
    check_sums(&parts, &all);
    keep(&parts, all.targets, true);
    gpt_set_divisor(parts.gpt, (double)kept);
    CHECK_INT(gpt_evaluate(parts.gpt, parts.tokens, parts.targets, 0, &mean), ZERO_OK);
    CHECK_DOUBLE(mean, some * rows / (double)kept, 1e-9);
    fixture_close(&parts), fixture_close(&all);
}

static void nothing(struct gpt_config config) {
    struct fixture f;
    double loss = 1;
    fixture_open(ZERO_F32, &f, config, 2, 1, 4);
    for (uint32_t i = 0; i < 2 * config.context; i++) f.targets[i] = GPT_NO_TARGET;
    CHECK_INT(gpt_train(f.gpt, f.tokens, f.targets, &loss), ZERO_OK);
    CHECK_DOUBLE(loss, 0, 0);
    for (uint32_t i = 0; fake_engine_name(f.engine, i); i++) {
        const char *name = fake_engine_name(f.engine, i);
        const float *grad = fake_engine_grad(f.engine, name);
        for (uint64_t k = 0; k < fake_engine_count(f.engine, name); k++)
            if (!CHECK_DOUBLE(grad[k], 0, 0)) break;
    }
    f.targets[0] = GPT_NEXT_DOCUMENT - 1;
    CHECK_INT(gpt_train(f.gpt, f.tokens, f.targets, &loss), ZERO_E_ARGUMENT);
    f.targets[0] = 0, f.tokens[0] = GPT_NO_TARGET;
    CHECK_INT(gpt_train(f.gpt, f.tokens, f.targets, &loss), ZERO_E_ARGUMENT);
    fixture_close(&f);
}

int main(void) {
    struct gpt_config config = {.layers = 2,
                                .width = 24,
                                .heads = 3,
                                .context = 7,
                                .vocab = 11,
                                .inner = 40,
                                .tied = true,
                                .layer_norm_epsilon = 1e-5,
                                .initializer_range = 0.2};
    for (uint32_t block = 0; block < 8; block += 4) {
        config.vocab_block = block;
        halves(config);
        nothing(config);
    }
    return check_end();
}
