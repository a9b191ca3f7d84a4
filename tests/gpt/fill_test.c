/* Initial weights: the same for any range, different for any seed, name and index, and normal. */
#include <math.h>
#include <stdlib.h>

#include "tests/check.h"
#include "tools/gpt/gpt.h"

enum { COUNT = 100001 };

static struct gpt_init init = {.seed = 5, .config = {.layers = 8, .width = 24, .initializer_range = 0.02}};
static float whole[COUNT], part[COUNT];

static void ranges_agree(void) {
    gpt_fill(&init, "h.3.mlp.c_fc.weight", 0, COUNT, whole);
    for (uint64_t first = 0, count = 1; first < COUNT; first += count, count = count * 3 % 1009) {
        if (first + count > COUNT) count = COUNT - first;
        gpt_fill(&init, "h.3.mlp.c_fc.weight", first, count, part);
        if (!CHECK_BYTES(part, whole + first, count * sizeof(float))) break;
    }
}

/* From an odd element on, whose pair begins before it. */
static void threads_agree(void) {
    struct gpt_init three = init;
    three.threads = 3;
    gpt_fill(&init, "h.3.mlp.c_fc.weight", 0, COUNT, whole);
    gpt_fill(&three, "h.3.mlp.c_fc.weight", 1, COUNT - 1, part);
    CHECK_BYTES(part, whole + 1, (COUNT - 1) * sizeof(float));
}

static void check_moments(const char *name, double deviation) {
    double m1 = 0, m2 = 0, m4 = 0, lag = 0;
    gpt_fill(&init, name, 0, COUNT, whole);
    for (int i = 0; i < COUNT; i++) {
        double x = whole[i] / deviation;
        m1 += x / COUNT, m2 += x * x / COUNT, m4 += x * x * x * x / COUNT;
        if (i) lag += x * whole[i - 1] / deviation / COUNT;
    }
    CHECK_DOUBLE(m1, 0, 0.02);
    CHECK_DOUBLE(m2, 1, 0.02);
    CHECK_DOUBLE(m4, 3, 0.05);
    CHECK_DOUBLE(lag, 0, 0.02);
}

static void check_different(const char *a, uint64_t seed_a, const char *b, uint64_t seed_b) {
    struct gpt_init first = init, second = init;
    first.seed = seed_a, second.seed = seed_b;
    gpt_fill(&first, a, 0, 1000, whole);
    gpt_fill(&second, b, 0, 1000, part);
    double dot = 0;
    for (int i = 0; i < 1000; i++) dot += whole[i] * part[i] / (0.02 * 0.02) / 1000;
    CHECK_DOUBLE(dot, 0, 0.2);
}

static void check_constant(const char *name, float expected) {
    gpt_fill(&init, name, 3, 50, whole);
    for (int i = 0; i < 50; i++) CHECK_DOUBLE(whole[i], expected, 0);
}

int main(void) {
    ranges_agree();
    threads_agree();
    check_moments("wte.weight", 0.02);
    check_moments("h.0.attn.c_attn.weight", 0.02);
    check_moments("h.0.attn.c_proj.weight", 0.02 / 4); /* by sqrt(2 * 8 layers) */
    check_moments("h.7.mlp.c_proj.weight", 0.02 / 4);
    check_different("wte.weight", 5, "wte.weight", 6);
    check_different("wte.weight", 5, "wpe.weight", 5);
    check_constant("h.0.ln_1.weight", 1);
    check_constant("ln_f.weight", 1);
    check_constant("ln_f.bias", 0);
    check_constant("h.0.attn.c_attn.bias", 0);
    check_moments("model.layers.3.mlp.down_proj.weight", 0.02);
    check_constant("model.layers.0.input_layernorm.weight", 1);
    check_constant("model.layers.7.post_attention_layernorm.weight", 1);
    check_constant("model.norm.weight", 1);
    return check_end();
}
