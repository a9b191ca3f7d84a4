/* Llama and its relatives as wholes (checks.h). Sizes are odd on purpose: no multiple of a vector, several strips of attention, several
 * tiles; heads that are wider or narrower than the model's width over their number. */
#include "tests/check.h"
#include "tests/gpt/checks.h"
#include "tests/gpt/fake_engine.h"

static const struct gpt_config odd = {.architecture = GPT_LLAMA,
                                      .layers = 2,
                                      .width = 24,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .context = 7,
                                      .vocab = 11,
                                      .inner = 37,
                                      .tied = true,
                                      .rope = {.theta = 100},
                                      .layer_norm_epsilon = 1e-5,
                                      .initializer_range = 0.2};

static void refused(struct gpt_config config, const char *part) {
    CHECK_CONTAINS(gpt_config_problem(&config), part);
    struct gpt *gpt = NULL;
    zero_engine *engine = fake_engine_create(ZERO_F32, 1, 1);
    CHECK_INT(gpt_create(engine, &config, 1, &gpt), ZERO_E_ARGUMENT);
    CHECK(gpt == NULL);
    zero_engine_destroy(engine);
}

static void mistakes_are_refused(void) {
    struct gpt_config c = odd;
    c.kv_heads = 3;
    refused(c, "multiple of the number of key-value heads");
    c = odd, c.head_width = 5;
    refused(c, "must be even");
    c = odd, c.rope.theta = 0;
    refused(c, "theta must be above 0");
    c = odd, c.rope.kind = GPT_ROPE_LLAMA3, c.rope.factor = 8, c.rope.low = 4, c.rope.high = 1,
    c.rope.original_context = 8;
    refused(c, "0 < low < high");
    c = odd, c.rope.kind = GPT_ROPE_LINEAR;
    refused(c, "factor must be above 0");
}

static void sizes(void) {
    struct gpt_config c = {.architecture = GPT_LLAMA,
                           .layers = 16,
                           .width = 2048,
                           .heads = 32,
                           .kv_heads = 8,
                           .head_width = 64,
                           .context = 131072,
                           .vocab = 128256,
                           .inner = 8192,
                           .tied = true};
    CHECK_INT(gpt_parameters(&c), 1235814400); /* Llama 3.2 1B */
    struct gpt_param p;
    CHECK(gpt_param_at(&c, 3, &p));
    CHECK_STRING(p.name, "model.layers.0.self_attn.k_proj.weight");
    CHECK_INT(p.shape[0], 512);
    CHECK_INT(p.shape[1], 2048);
    CHECK(gpt_param_at(&c, 1 + 16 * 9, &p));
    CHECK_STRING(p.name, "model.norm.weight");
    CHECK(!gpt_param_at(&c, 2 + 16 * 9, &p)); /* the head is tied */
    CHECK_DOUBLE(gpt_flops_per_token(&c), 6 * 1235746816. + 16 * 12 * 65536.5 * 2048, 1);
}

/* A window within a strip, over strips, from the second block on; biases; norms of heads; positions of each kind. */
static void relatives(void) {
    struct gpt_config mistral = odd, strips = odd, qwen2 = odd, qwen3 = odd, late = odd, linear = odd,
                      yarn = odd;
    mistral.architecture = GPT_MISTRAL, mistral.window = 3;
    strips.architecture = GPT_MISTRAL, strips.layers = 1, strips.width = 6, strips.heads = 3,
    strips.kv_heads = 1;
    strips.inner = 10, strips.context = 205, strips.window = 70;
    qwen2.architecture = GPT_QWEN2, qwen2.head_width = 10, qwen2.kv_heads = 1;
    qwen3.architecture = GPT_QWEN3, qwen3.head_width = 10, qwen3.tied = false;
    late.architecture = GPT_QWEN3, late.window = 2, late.window_from = 1, late.kv_heads = 4;
    linear.rope.kind = GPT_ROPE_LINEAR, linear.rope.factor = 4;
    yarn.head_width = 12;
    yarn.rope = (struct gpt_rope){100, 8, 0.05, 0.6, 5, GPT_ROPE_YARN, 1.2, false};
    const struct gpt_config *all[] = {&mistral, &qwen2, &qwen3, &late, &linear, &yarn};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        check_gradients(*all[i], 2, 2);
        check_logits(*all[i], 1, 1);
    }
    yarn.rope.exact_range = true;
    check_gradients(yarn, 1, 1);
    check_gradients(strips, 1, 2);
    check_logits(strips, 1, 2);
    check_frozen(ZERO_F32, qwen2, 2, 14);
    check_frozen(ZERO_F32, late, 2, 13);
    check_narrow(ZERO_F16, late, 2, 1);
    check_narrow(ZERO_F16, qwen2, 2, 1);
    check_bits(ZERO_F32, late, 9, 2, 2);
}

/* A model so wide that products of few rows are cut by columns: with some panels, and with some groups of rows. */
static void cut(void) {
    struct gpt_config panels = odd, groups = odd;
    panels.width = groups.width = 1024, panels.layers = groups.layers = 1;
    panels.heads = 3, panels.kv_heads = 1, panels.head_width = 8, panels.inner = 40, panels.context = 9;
    check_gradients(panels, 2, 2);
    check_logits(panels, 1, 2);
    groups.heads = groups.kv_heads = 8, groups.head_width = 128, groups.inner = 72, groups.context = 128;
    check_bits(ZERO_F32, groups, 2, 1, 2);
    groups.context = 150;
    check_copies(groups, 4, 2); /* 600 rows are not cut */
}

int main(void) {
    struct gpt_config own = odd, scaled = odd, strips = odd, wide = odd;
    own.tied = false, own.kv_heads = 1, own.head_width = 10;
    /* Every branch of the scaling: pairs that turn often, seldom, and in between. */
    scaled.head_width = 12, scaled.kv_heads = 4, scaled.rope.factor = 8, scaled.rope.low = 0.05;
    scaled.rope.high = 0.6, scaled.rope.original_context = 5, scaled.rope.kind = GPT_ROPE_LLAMA3;
    strips.layers = 1, strips.width = 6, strips.heads = 3, strips.kv_heads = 1, strips.inner = 10;
    strips.context = 141, strips.tied = false;
    wide.width = 192, wide.heads = 6, wide.context = 200, wide.vocab = 256, wide.inner = 512;
    wide.initializer_range = 0.02;
    check_gradients(odd, 2, 1);
    check_gradients(own, 2, 2);
    check_gradients(own, 1, 5); /* more threads than tiles */
    check_gradients(scaled, 2, 2);
    check_gradients(strips, 3, 2); /* three strips, four tiles */
    check_frozen(ZERO_F32, odd, 2, 11);
    check_frozen(ZERO_F32, strips, 9, 11);
    check_logits(odd, 2, 2);
    check_logits(own, 2, 1);
    check_logits(scaled, 1, 1);
    check_logits(strips, 1, 2);
    check_bits(ZERO_F32, wide, 9, 2, 5);
    zero_engine *engine = fake_engine_create(ZERO_BF16, 1, 1);
    if (!gpt_engine_problem(engine)) { /* a processor that has bf16 */
        check_narrow(ZERO_BF16, odd, 2, 1);
        check_frozen(ZERO_BF16, odd, 2, 11);
        check_narrow(ZERO_BF16, own, 1, 5);
        check_narrow(ZERO_BF16, strips, 9, 2);
        check_bits(ZERO_BF16, wide, 9, 2, 5);
    }
    zero_engine_destroy(engine);
    check_narrow(ZERO_F16, odd, 2, 1);
    check_frozen(ZERO_F16, odd, 2, 11);
    check_narrow(ZERO_F16, strips, 9, 2);
    check_bits(ZERO_F16, wide, 9, 2, 5);
    relatives();
    cut();
    mistakes_are_refused();
    sizes();
    return check_end();
}
