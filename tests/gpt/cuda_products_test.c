/* A GPU's products and attention: the same bits after other shapes, attention by warpgroups where they can be used and agree, and no
 * product that reaches behind an array. Runs on the stand-ins of tests/cuda alone. */
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/gpt/checks.h"
#include "tests/gpt/cuda_device.h"
#include "tools/gpt/cuda/cublaslt.h"

enum { BATCH = 2 };

static struct cuda_device cuda;
static struct fake_device device;

static const struct gpt_config gpt2 = {.layers = 1,
                                       .width = 16,
                                       .heads = 2,
                                       .context = 34,
                                       .vocab = 11,
                                       .inner = 24,
                                       .tied = true,
                                       .layer_norm_epsilon = 1e-5,
                                       .initializer_range = 0.2,
                                       .no_graphs = true};
/* Without GELU, whose slope's end depends on the GPU. */
static const struct gpt_config llama = {.architecture = GPT_LLAMA,
                                        .layers = 1,
                                        .width = 16,
                                        .heads = 2,
                                        .kv_heads = 1,
                                        .context = 9,
                                        .vocab = 11,
                                        .inner = 37,
                                        .rope = {.theta = 100},
                                        .layer_norm_epsilon = 1e-5,
                                        .initializer_range = 0.2};

/* All gradients of a first micro-step, one after another. */
struct bits {
    float gradient[8192];
    uint64_t count;
};

static void train(struct fixture *f, struct bits *out) {
    double loss;
    out->count = 0;
    fake_engine_next_step(f->engine);
    CHECK_INT(gpt_train(f->gpt, f->tokens, f->targets, &loss), ZERO_OK);
    for (uint32_t i = 0; fake_engine_name(f->engine, i); i++) {
        const char *name = fake_engine_name(f->engine, i);
        uint64_t count = fake_engine_count(f->engine, name);
        if (!CHECK(out->count + count <= sizeof out->gradient / sizeof *out->gradient)) return;
        memcpy(out->gradient + out->count, fake_engine_grad(f->engine, name), count * sizeof(float));
        out->count += count;
    }
}

static bool same(const struct bits *a, const struct bits *b) {
    return a->count == b->count && !memcmp(a->gradient, b->gradient, a->count * sizeof *a->gradient);
}

/* With a kernel that does nothing, or "". */
static void use(struct gpt_config config, const char *kernel, struct bits *out) {
    struct fixture f;
    fixture_open_on(&device, ZERO_BF16, &f, config, BATCH, 1, 1);
    setenv("FAKE_CUDA_IDLE", kernel, 1);
    train(&f, out);
    unsetenv("FAKE_CUDA_IDLE");
    fixture_close(&f);
}

static struct bits one, other;

/* More shapes than the library's plans have places come between. */
static void after_other_shapes(void) {
    struct fixture f;
    float logits[16];
    double loss;
    fixture_open_on(&device, ZERO_F32, &f, gpt2, BATCH, 1, 1);
    train(&f, &one);
    for (uint32_t length = 1; length <= gpt2.context; length++)
        CHECK_INT(gpt_next_logits(f.gpt, f.tokens, length, 0, logits), ZERO_OK);
    CHECK_INT(gpt_evaluate(f.gpt, f.tokens, f.targets, 1, &loss), ZERO_OK);
    train(&f, &other);
    CHECK(same(&one, &other));
    fixture_close(&f);
}

/* ---- attention ---- */

#define MMA "flash_forward_64_bf16"
#define WARPGROUPS "warpgroup_forward_64_bf16"
#define WARPGROUPS_BACK "warpgroup_backward_64_bf16"
#define WARPGROUPS_FINISH "warpgroup_finish_64_bf16"

/* With a kernel that does nothing. */
static zero_status opens(enum gpt_attention attention, const char *kernel) {
    struct gpt_config config = llama;
    struct gpt *gpt = NULL;
    zero_engine *engine = fake_engine_create(ZERO_BF16, BATCH, 1);
    fake_engine_on(engine, &device);
    config.attention = attention;
    setenv("FAKE_CUDA_IDLE", kernel, 1);
    zero_status status = gpt_create(engine, &config, BATCH, &gpt);
    unsetenv("FAKE_CUDA_IDLE");
    gpt_destroy(gpt);
    zero_engine_destroy(engine);
    return status;
}

/* The gradients are others if a kernel of the way that is used does nothing. */
static void runs(struct gpt_config config, const char *kernel) {
    use(config, kernel, &other);
    CHECK(!same(&one, &other));
}

/* By warpgroups, which are checked first; by mma.sync where there are none. */
static void attention(void) {
    static struct bits without;
    struct gpt_config config = llama, mma = llama;
    mma.attention = GPT_ATTENTION_MMA;
    CHECK_INT(opens(GPT_ATTENTION_AUTO, WARPGROUPS), ZERO_E_UNSUPPORTED);
    CHECK_CONTAINS(gpt_last_error(), "attention's kernels disagree: the forward");
    CHECK_INT(opens(GPT_ATTENTION_AUTO, WARPGROUPS_BACK), ZERO_E_UNSUPPORTED);
    CHECK_CONTAINS(gpt_last_error(), "attention's kernels disagree: the backward");
    CHECK_INT(opens(GPT_ATTENTION_MMA, WARPGROUPS_BACK), ZERO_OK);
    use(config, "", &one);
    runs(config, WARPGROUPS);
    runs(config, WARPGROUPS_BACK);
    runs(config, WARPGROUPS_FINISH);
    setenv("FAKE_CUDA_CAPABILITY", "8", 1);
    use(config, "", &without);
    unsetenv("FAKE_CUDA_CAPABILITY");
    use(mma, "", &one);
    CHECK(same(&without, &one));
    runs(mma, MMA);
}

/* ---- memory ---- */

enum {
    SIDE = 16,
    BEHIND = 128
}; /* of square matrices in bf16; numbers from one place to the next that is as well aligned */

enum { A, B, ADD, C, OF_END, ARRAYS }; /* OF_END: the bias, or the input of GELU's slope */

/* Array `late` begins so late in its memory that the product would reach behind it; ARRAYS: none does. The stand-in refuses that, for it
 * is built without the address sanitizer. */
static void behind_an_array(struct cublaslt *library, enum product_end end, int late) {
    char *memory[ARRAYS], *array[ARRAYS];
    struct zero_error error;
    error_clear(&error);
    for (int i = 0; i < ARRAYS; i++) {
        uint64_t behind = i == OF_END && end == PRODUCT_BIAS ? SIDE * SIDE : BEHIND;
        memory[i] = device.allocate(device.user, SIDE * SIDE * sizeof(uint16_t));
        array[i] = memory[i] + (i == late ? behind * sizeof(uint16_t) : 0);
    }
    struct product p = {.type = ZERO_BF16,
                        .m = SIDE,
                        .n = SIDE,
                        .k = SIDE,
                        .a = {array[A], SIDE, false},
                        .b = {array[B], SIDE, false},
                        .add = end == PRODUCT_PLAIN ? array[ADD] : NULL,
                        .c = array[C],
                        .ldc = SIDE,
                        .end = end,
                        .bias = end == PRODUCT_BIAS ? array[OF_END] : NULL,
                        .aux = end == PRODUCT_GELU_BACKWARD ? array[OF_END] : NULL};
    cublaslt_multiply(library, &p, device.stream, &error);
    CHECK_STRING(error.message, late == ARRAYS ? "" : "cuBLASLt: a product: CUBLAS_STATUS_EXECUTION_FAILED");
    for (int i = 0; i < ARRAYS; i++) device.release(device.user, memory[i]);
}

static void behind_each_array(void) {
    static const enum product_end ends[] = {PRODUCT_PLAIN, PRODUCT_BIAS, PRODUCT_GELU_BACKWARD};
    struct cublaslt *library;
    struct zero_error error;
    error_clear(&error);
    void *workspace = device.allocate(device.user, CUBLASLT_WORKSPACE_BYTES);
    if (!CHECK(!cublaslt_open((CUdeviceptr)(uintptr_t)workspace, &library, &error))) return;
    for (int i = 0; i < 3; i++)
        for (int late = 0; late <= ARRAYS; late++)
            if (late != (ends[i] == PRODUCT_PLAIN ? OF_END : ADD)) behind_an_array(library, ends[i], late);
    cublaslt_close(library);
    device.release(device.user, workspace);
}

int main(void) {
    cuda_device_open(&cuda);
    device = cuda_device_of(&cuda);
    after_other_shapes();
    attention();
    behind_each_array();
    cuda_device_close(&cuda);
    return check_end();
}
