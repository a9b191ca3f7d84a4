/* Bounds of documents: two documents packed into one sample give the bits of two samples; what a document's tokens are changes nothing
 * for another one; without targets, bounds do not count. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tests/check.h"
#include "tests/gpt/checks.h"

enum { END = 10, LENGTH = 6, DOCUMENTS = 2, ROWS = DOCUMENTS * LENGTH };

/* Documents of LENGTH tokens; a token END inside one ends nothing. */
static void fill(struct fixture *f) {
    for (int32_t i = 0; i < ROWS; i++) {
        bool last = i % LENGTH == LENGTH - 1;
        f->tokens[i] = last || i == 2 ? END : (i * i + 3) % END;
        f->targets[i] = last ? GPT_NEXT_DOCUMENT : (i * 7 + 1) % END;
    }
}

static void compare(const struct fixture *packed, const struct fixture *apart) {
    for (uint32_t i = 0; fake_engine_name(apart->engine, i); i++) {
        const char *name = fake_engine_name(apart->engine, i);
        const float *one = fake_engine_grad(packed->engine, name),
                    *other = fake_engine_grad(apart->engine, name);
        uint64_t count = fake_engine_count(apart->engine, name); /* of positions, the sample has more rows */
        if (!CHECK_BYTES(one, other, count * sizeof *one)) fprintf(stderr, "gradient of %s\n", name);
        for (uint64_t k = count; k < fake_engine_count(packed->engine, name); k++) CHECK_DOUBLE(one[k], 0, 0);
    }
}

static void packed_or_apart(struct gpt_config config) {
    struct fixture packed, apart;
    double loss, expected;
    config.context = LENGTH;
    fixture_open(ZERO_F32, &apart, config, DOCUMENTS, 1, 4);
    config.context = ROWS, config.documents = true;
    fixture_open(ZERO_F32, &packed, config, 1, 1, 4);
    fill(&packed), fill(&apart);
    for (uint32_t i = 0; fake_engine_name(apart.engine, i);
         i++) { /* the tables of positions differ in rows */
        const char *name = fake_engine_name(apart.engine, i);
        memcpy(fake_engine_param(packed.engine, name), fake_engine_param(apart.engine, name),
               fake_engine_count(apart.engine, name) * sizeof(float));
    }
    CHECK_INT(gpt_train(apart.gpt, apart.tokens, apart.targets, &expected), ZERO_OK);
    CHECK_INT(gpt_train(packed.gpt, packed.tokens, packed.targets, &loss), ZERO_OK);
    CHECK_DOUBLE(loss, expected, 0);
    compare(&packed, &apart);
    CHECK_INT(gpt_evaluate(packed.gpt, packed.tokens, packed.targets, 0, &loss), ZERO_OK);
    CHECK_DOUBLE(loss, expected, 0);
    fixture_close(&packed), fixture_close(&apart);
}

/* A document of two tokens, one of one, and the rest, whose loss alone counts. */
static double loss_of_rest(struct fixture *f, int32_t first, int32_t fifth) {
    static const int32_t head[] = {0, END, END};
    double loss = 0;
    fill(f);
    memcpy(f->tokens, head, sizeof head);
    f->tokens[0] = first, f->tokens[5] = fifth;
    f->targets[0] = GPT_NO_TARGET;
    for (int i = 1; i < 6; i++)
        if (i < 3 || i == 5) f->targets[i] = f->tokens[i] == END ? GPT_NEXT_DOCUMENT : 1;
    CHECK_INT(gpt_train(f->gpt, f->tokens, f->targets, &loss), ZERO_OK);
    return loss;
}

static void apart_from_others(struct gpt_config config) {
    struct fixture f;
    config.context = ROWS, config.documents = true;
    fixture_open(ZERO_F32, &f, config, 1, 1, 1);
    double loss = loss_of_rest(&f, 1, 4);
    CHECK_DOUBLE(loss_of_rest(&f, 2, 4), loss, 0);
    CHECK(loss_of_rest(&f, 1, 5) != loss);
    CHECK(loss_of_rest(&f, 1, END) != loss);
    fixture_close(&f);
}

int main(void) {
    struct gpt_config gpt2 = {.layers = 2,
                              .width = 24,
                              .heads = 3,
                              .vocab = 11,
                              .inner = 40,
                              .tied = true,
                              .layer_norm_epsilon = 1e-5,
                              .initializer_range = 0.2};
    struct gpt_config llama = {.architecture = GPT_LLAMA,
                               .layers = 2,
                               .width = 24,
                               .heads = 4,
                               .kv_heads = 2,
                               .vocab = 11,
                               .inner = 37,
                               .rope = {.theta = 100},
                               .layer_norm_epsilon = 1e-5,
                               .initializer_range = 0.2};
    packed_or_apart(gpt2), packed_or_apart(llama);
    llama.window = 4;
    packed_or_apart(llama);
    gpt2.recompute = 1;
    packed_or_apart(gpt2);
    apart_from_others(gpt2), apart_from_others(llama);
    return check_end();
}
