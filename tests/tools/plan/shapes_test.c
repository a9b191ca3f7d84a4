/* Shapes: parameters as published, arithmetic and memory as tools/gpt has them. */
#include "tools/plan/shapes.h"

#include <math.h>
#include <stdlib.h>

#include "tests/check.h"
#include "tests/gpt/fake_engine.h"
#include "tools/gpt/gpt.h"

/* As transformers counts the models of these names; the others are in literature_test. */
static void parameters_are_as_published(void) {
    static const struct {
        const char *name;
        int64_t parameters;
    } rows[] = {{"gpt2", 124439808},     {"gpt2-medium", 354823168}, {"GPT2-Large", 774030080},
                {"gpt2-xl", 1557611200}, {"llama-3-8b", 8030261248}, {"llama-3-70b", 70553706496},
                {"70b", 68976648192}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_INT(shapes_parameters(shapes_find(rows[i].name)), rows[i].parameters);
    CHECK(!shapes_find("gpt3"));
}

static struct gpt_config as_gpt(const struct shapes *s) {
    return (struct gpt_config){.layers = (uint32_t)s->layers,
                               .width = (uint32_t)s->width,
                               .heads = (uint32_t)s->heads,
                               .context = (uint32_t)s->context,
                               .vocab = (uint32_t)s->vocab,
                               .tied = s->tied,
                               .layer_norm_epsilon = 1e-5,
                               .initializer_range = 0.02};
}

static const struct shapes small[] = {
    {"demo", "", FAMILY_GPT2, 6, 384, 6, 0, 256, 256, 0, true},
    {"wide", "", FAMILY_GPT2, 2, 512, 8, 0, 128, 5000, 0, false},
    {"deep", "", FAMILY_GPT2, 12, 128, 4, 0, 512, 256, 0, true},
};

static void arithmetic_is_the_gpt_s(void) {
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        struct gpt_config config = as_gpt(&small[i]);
        double forward = 0;
        for (uint32_t u = 0; u < shapes_units(&small[i]); u++) forward += shapes_forward_flops(&small[i], u);
        CHECK_DOUBLE(3 * forward, gpt_flops_per_token(&config), 1e-12);
        CHECK_INT(shapes_parameters(&small[i]), gpt_parameters(&config));
    }
}

static void memory_is_the_gpt_s(void) {
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        for (uint32_t threads = 1; threads <= 2; threads++)
            for (uint32_t batch = 4; batch <= 16; batch *= 2) {
                struct gpt_config config = as_gpt(&small[i]);
                zero_engine *engine = fake_engine_create(ZERO_F32, threads, 1);
                struct gpt *gpt = NULL;
                if (!CHECK_INT(gpt_create(engine, &config, batch, &gpt), ZERO_OK)) return;
                double actual = (double)fake_engine_reserved(engine);
                double ours =
                    (double)shapes_activation_bytes(&small[i], true, DTYPE_F32, batch, threads, false);
                if (!CHECK(fabs(ours / actual - 1) < 0.02))
                    fprintf(stderr, "%s, batch %u, %u threads: %.0f, actually %.0f\n", small[i].name, batch,
                            threads, ours, actual);
                gpt_destroy(gpt);
                zero_engine_destroy(engine);
            }
}

/* Korthikanti et al. 2022, equation 1 without scores and masks: 32 bytes per token, layer and width; the recomputed one
 * keeps 2. */
static void devices_are_as_korthikanti_has_them(void) {
    struct shapes s = {"x", "", FAMILY_GPT2, 10, 1024, 16, 0, 1000, 0, 0, true};
    uint64_t plain = shapes_activation_bytes(&s, false, DTYPE_BF16, 3, 1, false);
    s.layers = 11;
    CHECK_INT(shapes_activation_bytes(&s, false, DTYPE_BF16, 3, 1, false) - plain, 32ull * 3000 * 1024);
    uint64_t recomputed = shapes_activation_bytes(&s, false, DTYPE_BF16, 3, 1, true);
    s.layers = 12;
    CHECK_INT(shapes_activation_bytes(&s, false, DTYPE_BF16, 3, 1, true) - recomputed, 2ull * 3000 * 1024);
}

int main(void) {
    parameters_are_as_published();
    arithmetic_is_the_gpt_s();
    memory_is_the_gpt_s();
    devices_are_as_korthikanti_has_them();
    return check_end();
}
