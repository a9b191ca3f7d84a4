/* The choice among cuBLASLt's algorithms for the products of a GPT: by time for each shape, the same text gives the same
 * bits, and a text that is not for this GPU, library or model is refused. Runs on the stand-ins of tests/cuda alone, whose
 * proposals differ in bits and whose clock FAKE_CUBLASLT_TIMES sets. The stand-in refuses a product that reaches behind an array. */
#include <stdio.h>
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
                                       .context = 6,
                                       .vocab = 11,
                                       .inner = 24,
                                       .tied = true,
                                       .layer_norm_epsilon = 1e-5,
                                       .initializer_range = 0.2,
                                       .no_graphs = true,
                                       .times_products = true};
static const struct gpt_config llama = {.architecture = GPT_LLAMA,
                                        .layers = 1,
                                        .width = 24,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .context = 9,
                                        .vocab = 11,
                                        .inner = 37,
                                        .rope = {.theta = 100},
                                        .layer_norm_epsilon = 1e-5,
                                        .initializer_range = 0.2,
                                        .times_products = true};

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

static size_t free_bytes(void) {
    size_t available = 0, total;
    cuda.driver.cuMemGetInfo(&available, &total);
    return available;
}

/* The choice by these times, which takes no memory for longer, and the bits with it. */
static void choose(struct gpt_config config, zero_dtype dtype, const char *times,
                   char text[GPT_PRODUCTS_BYTES], struct bits *out) {
    struct fixture f;
    fixture_open_on(&device, dtype, &f, config, BATCH, 1, 1);
    size_t before = free_bytes();
    setenv("FAKE_CUBLASLT_TIMES", times, 1);
    CHECK_INT(gpt_products_time(f.gpt, text), ZERO_OK);
    CHECK_INT(free_bytes(), before);
    if (out) train(&f, out);
    unsetenv("FAKE_CUBLASLT_TIMES");
    fixture_close(&f);
}

/* The bits with a choice; NULL: without. */
static void use(struct gpt_config config, zero_dtype dtype, const char *text, struct bits *out) {
    struct fixture f;
    fixture_open_on(&device, dtype, &f, config, BATCH, 1, 1);
    if (text) CHECK_INT(gpt_products_use(f.gpt, text), ZERO_OK);
    train(&f, out);
    fixture_close(&f);
}

static struct bits first, one, other;
static char text[GPT_PRODUCTS_BYTES], other_text[GPT_PRODUCTS_BYTES];

static void same_bits_by_the_same_choice(struct gpt_config config, zero_dtype dtype) {
    use(config, dtype, NULL, &first);
    choose(config, dtype, "5,3,4", text, &one);
    if (dtype == ZERO_F32) CHECK(!same(&one, &first)); /* 16 bits may round both alike */
    use(config, dtype, text, &other);
    CHECK(same(&one, &other));
    choose(config, dtype, "5,4,3", other_text, &other);
    CHECK(strcmp(text, other_text) != 0);
    if (dtype == ZERO_F32) CHECK(!same(&one, &other));
}

/* What is not clearly faster is not taken: the bits stay those without a choice. */
static void the_first_of_equals(void) {
    use(gpt2, ZERO_F32, NULL, &first);
    choose(gpt2, ZERO_F32, "100,99,99", text, &one);
    CHECK(same(&one, &first));
    choose(gpt2, ZERO_F32, "100,97,96,99", other_text, &one);
    choose(gpt2, ZERO_F32, "9,8,3,4", text, NULL);
    CHECK_STRING(other_text, text); /* the fastest of several, not the first that is faster */
}

static void what_cannot_run(void) {
    choose(gpt2, ZERO_F32, "9,7,3", text, NULL);
    choose(gpt2, ZERO_F32, "0,7,3", other_text, NULL);
    CHECK_STRING(other_text, text);
    choose(gpt2, ZERO_F32, "7,0,3", other_text, NULL);
    CHECK_STRING(other_text, text);
    choose(gpt2, ZERO_F32, "0", text, NULL);
    uint32_t lines = 0, without = 0;
    for (const char *at = text; *at; at++) lines += *at == '\n', without += strncmp(at, " -\n", 3) == 0;
    CHECK(lines > 10);
    CHECK_INT(without, lines - 1);
}

static const char *next_line(const char *at) { return strchr(at, '\n') + 1; }

/* Each shape has the algorithm that is its fastest. */
static void for_each_shape(void) {
    static char mixed[GPT_PRODUCTS_BYTES];
    uint32_t of_one = 0, of_other = 0, lines = 0;
    choose(gpt2, ZERO_F32, "5,3,4", text, NULL);
    choose(gpt2, ZERO_F32, "5,9,3", other_text, NULL);
    choose(gpt2, ZERO_F32, "5,3,4;5,9,3", mixed, NULL);
    const char *a = next_line(text), *b = next_line(other_text);
    for (const char *at = next_line(mixed); *at;
         at = next_line(at), a = next_line(a), b = next_line(b), lines++) {
        size_t length = strcspn(at, "\n");
        of_one += strncmp(at, a, length) == 0;
        of_other += strncmp(at, b, length) == 0;
    }
    CHECK(!*a && !*b);
    CHECK(of_one > 0 && of_other > 0);
    CHECK_INT(of_one + of_other, lines);
}

/* More shapes than the library's plans have places come between: the choice is not lost with a plan. */
static void after_other_shapes(void) {
    struct gpt_config longer = gpt2;
    struct fixture f;
    float logits[16];
    double loss;
    longer.context = 34;
    fixture_open_on(&device, ZERO_F32, &f, longer, BATCH, 1, 1);
    choose(longer, ZERO_F32, "5,3,4", text, NULL);
    CHECK_INT(gpt_products_use(f.gpt, text), ZERO_OK);
    train(&f, &one);
    for (uint32_t length = 1; length <= longer.context; length++)
        CHECK_INT(gpt_logits(f.gpt, f.tokens, length, logits), ZERO_OK);
    CHECK_INT(gpt_evaluate_some(f.gpt, f.tokens, f.targets, 1, &loss), ZERO_OK);
    train(&f, &other);
    CHECK(same(&one, &other));
    fixture_close(&f);
}

/* A refused text leaves the first proposals. */
static void refused(struct gpt_config config, const char *wrong, zero_status status, const char *part) {
    struct fixture f;
    struct bits *plain = &other;
    fixture_open_on(&device, ZERO_F32, &f, config, BATCH, 1, 1);
    CHECK_INT(gpt_products_use(f.gpt, wrong), status);
    CHECK_CONTAINS(gpt_last_error(), part);
    train(&f, &one);
    fixture_close(&f);
    use(config, ZERO_F32, NULL, plain);
    CHECK(same(&one, plain));
}

static void what_is_refused(void) {
    struct gpt_config wider = gpt2;
    wider.inner = 32;
    choose(gpt2, ZERO_F32, "5,3,4", text, NULL);
    refused(wider, text, ZERO_E_ARGUMENT, "for other shapes");
    refused(gpt2, "", ZERO_E_ARGUMENT, "no first line");
    setenv("FAKE_CUBLASLT_VERSION", "130100", 1);
    refused(gpt2, text, ZERO_E_UNSUPPORTED, "and this rank has cuBLASLt 130100: give all ranks");
    unsetenv("FAKE_CUBLASLT_VERSION");
    setenv("FAKE_CUDA_CAPABILITY", "8", 1);
    refused(gpt2, text, ZERO_E_UNSUPPORTED, "cannot multiply 12 x 48 x 16 in that way");
    unsetenv("FAKE_CUDA_CAPABILITY");
    strcat(strcpy(other_text, text), "\n");
    refused(gpt2, other_text, ZERO_E_ARGUMENT, "for more shapes");
    strcpy(other_text, text);
    other_text[strlen(text) - 3] = 'x'; /* in the last algorithm: the others were taken before */
    refused(gpt2, other_text, ZERO_E_ARGUMENT, "for other shapes");
    other_text[strlen(text) - 40] = 0;
    refused(gpt2, other_text, ZERO_E_ARGUMENT, "for other shapes");
}

static struct gpt_products_question question_of(struct gpt_config config, zero_dtype dtype, uint32_t batch) {
    struct gpt_products_question question;
    struct fixture f;
    fixture_open_on(&device, dtype, &f, config, batch, 1, 1);
    CHECK_INT(gpt_products_question(f.gpt, &question), ZERO_OK);
    fixture_close(&f);
    return question;
}

static void what_it_depends_on(void) {
    struct gpt_config deeper = gpt2, wider = gpt2;
    struct gpt_products_question mine = question_of(gpt2, ZERO_F32, BATCH), theirs;
    deeper.layers++, wider.inner++;
    CHECK_CONTAINS(mine.place, "cuBLASLt 130000, driver ");
    CHECK_STRING(question_of(deeper, ZERO_F32, BATCH).shapes, mine.shapes);
    CHECK(strcmp(question_of(wider, ZERO_F32, BATCH).shapes, mine.shapes) != 0);
    CHECK(strcmp(question_of(gpt2, ZERO_BF16, BATCH).shapes, mine.shapes) != 0);
    CHECK(strcmp(question_of(gpt2, ZERO_F32, BATCH + 1).shapes, mine.shapes) != 0);
    setenv("FAKE_CUBLASLT_VERSION", "130100", 1);
    theirs = question_of(gpt2, ZERO_F32, BATCH);
    unsetenv("FAKE_CUBLASLT_VERSION");
    CHECK_STRING(theirs.shapes, mine.shapes);
    CHECK(strcmp(theirs.place, mine.place) != 0);
}

/* ---- attention ---- */

#define MMA "flash_forward_64_bf16"
#define WARPGROUPS "warpgroup_forward_64_bf16"
#define MMA_BACK "flash_key_backward_64_bf16"
#define WARPGROUPS_BACK "warpgroup_backward_64_bf16"
#define WARPGROUPS_FINISH "warpgroup_finish_64_bf16"

static bool ends(const char *at, const char *end) {
    return strlen(at) >= strlen(end) && strcmp(at + strlen(at) - strlen(end), end) == 0;
}

static struct gpt_config attends(void) {
    struct gpt_config config = llama; /* without GELU, whose slope's end depends on the GPU */
    config.width = 16, config.heads = 2, config.kv_heads = 1;
    config.times_products = false, config.attention = GPT_ATTENTION_TIMED;
    return config;
}

/* By these times of kernels. */
static void choose_attention(zero_dtype dtype, const char *kernels, const char *line) {
    setenv("FAKE_CUDA_TIMES", kernels, 1);
    choose(attends(), dtype, "5,3,4", text, NULL);
    unsetenv("FAKE_CUDA_TIMES");
    CHECK(ends(text, line));
}

/* The kernel of the choice runs: if it does nothing, the gradients are others. */
static void runs_in(struct gpt_config config, const char *kernel, const char *choice) {
    struct fixture f;
    fixture_open_on(&device, ZERO_BF16, &f, config, BATCH, 1, 1);
    if (choice) CHECK_INT(gpt_products_use(f.gpt, choice), ZERO_OK);
    setenv("FAKE_CUDA_TIMES", kernel, 1);
    train(&f, &other);
    unsetenv("FAKE_CUDA_TIMES");
    fixture_close(&f);
    CHECK(!same(&one, &other));
}

static void runs(const char *kernel, const char *choice) { runs_in(attends(), kernel, choice); }

static void refused_as(const char *choice, zero_status status, const char *part) {
    struct fixture f;
    fixture_open_on(&device, ZERO_BF16, &f, attends(), BATCH, 1, 1);
    CHECK_INT(gpt_products_use(f.gpt, choice), status);
    CHECK_CONTAINS(gpt_last_error(), part);
    fixture_close(&f);
}

static void refused_attention(const char *choice, const char *part) {
    refused_as(choice, ZERO_E_UNSUPPORTED, part);
}

static void no_faster_attention(void) {
    choose_attention(ZERO_F16, MMA "=100," WARPGROUPS "=9", "\nattention mma mma\n");
    choose_attention(ZERO_F32, MMA "=100," WARPGROUPS "=9", "\nattention mma mma\n");
    setenv("FAKE_CUDA_CAPABILITY", "8", 1);
    choose_attention(ZERO_BF16, MMA "=100," WARPGROUPS "=9", "\nattention mma mma\n");
    unsetenv("FAKE_CUDA_CAPABILITY");
}

static void backward_by_warpgroups(void) {
    choose_attention(ZERO_BF16,
                     MMA "=100," WARPGROUPS "=99," MMA_BACK "=100," WARPGROUPS_BACK "=80," WARPGROUPS_FINISH
                         "=10",
                     " -\nattention mma warpgroups\n");
    use(attends(), ZERO_BF16, text, &one);
    runs(MMA "=idle", text);
    runs(WARPGROUPS_FINISH "=idle", text);
    setenv("FAKE_CUDA_TIMES", WARPGROUPS_BACK "=idle", 1);
    refused_attention(text, "attention's kernels disagree: the backward");
    /* The forward by warpgroups is not used, so it may do anything. */
    setenv("FAKE_CUDA_TIMES", WARPGROUPS "=idle", 1);
    use(attends(), ZERO_BF16, text, &other);
    unsetenv("FAKE_CUDA_TIMES");
    CHECK(same(&one, &other));
}

static void attention_by_warpgroups(void) {
    no_faster_attention();
    backward_by_warpgroups();
    choose_attention(ZERO_BF16, MMA "=100," WARPGROUPS "=97," MMA_BACK "=100," WARPGROUPS_BACK "=99",
                     " -\nattention warpgroups mma\n");
    use(attends(), ZERO_BF16, text, &one);
    runs(WARPGROUPS "=idle", text);
    struct gpt_config both = attends(), neither = attends();
    both.times_products = neither.times_products = true, neither.attention = GPT_ATTENTION_MMA;
    struct gpt_products_question mine = question_of(both, ZERO_BF16, BATCH);
    CHECK(strcmp(question_of(attends(), ZERO_BF16, BATCH).shapes, mine.shapes) != 0);
    CHECK(strcmp(question_of(neither, ZERO_BF16, BATCH).shapes, mine.shapes) != 0);
    setenv("FAKE_CUDA_CAPABILITY", "8", 1);
    refused_attention(text, "products of warpgroups, which this rank's GPU does not have");
    unsetenv("FAKE_CUDA_CAPABILITY");
    setenv("FAKE_CUDA_TIMES", WARPGROUPS "=idle", 1);
    refused_attention(text, "attention's kernels disagree: the forward");
    unsetenv("FAKE_CUDA_TIMES");
    strcpy(text + strlen(text) - strlen(" mma\n"), "\n"); /* a pass is missing */
    refused_as(text, ZERO_E_ARGUMENT, "more shapes");
}

/* With these times of kernels. */
static zero_status opens(enum gpt_attention attention, const char *kernels) {
    struct gpt_config config = attends();
    struct gpt *gpt = NULL;
    zero_engine *engine = fake_engine_create(ZERO_BF16, BATCH, 1);
    fake_engine_on(engine, &device);
    config.attention = attention;
    setenv("FAKE_CUDA_TIMES", kernels, 1);
    zero_status status = gpt_create(engine, &config, BATCH, &gpt);
    unsetenv("FAKE_CUDA_TIMES");
    gpt_destroy(gpt);
    zero_engine_destroy(engine);
    return status;
}

/* Without a choice: by warpgroups, which are checked first; by mma.sync where there are none. */
static void attention_by_default(void) {
    static struct bits by_default;
    struct gpt_config config = attends();
    CHECK_INT(opens(GPT_ATTENTION_AUTO, WARPGROUPS_BACK "=idle"), ZERO_E_UNSUPPORTED);
    CHECK_CONTAINS(gpt_last_error(), "attention's kernels disagree: the backward");
    CHECK_INT(opens(GPT_ATTENTION_MMA, WARPGROUPS_BACK "=idle"), ZERO_OK);
    config.attention = GPT_ATTENTION_AUTO;
    use(config, ZERO_BF16, NULL, &one);
    runs_in(config, WARPGROUPS "=idle", NULL);
    runs_in(config, WARPGROUPS_BACK "=idle", NULL);
    setenv("FAKE_CUDA_CAPABILITY", "8", 1);
    use(config, ZERO_BF16, NULL, &by_default);
    unsetenv("FAKE_CUDA_CAPABILITY");
    config.attention = GPT_ATTENTION_MMA;
    use(config, ZERO_BF16, NULL, &one);
    CHECK(same(&by_default, &one));
    runs_in(config, MMA "=idle", NULL);
}

static void no_choice_on_the_host(void) {
    struct fixture f;
    char out[GPT_PRODUCTS_BYTES] = "x";
    fixture_open(ZERO_F32, &f, gpt2, 1, 1, 1);
    CHECK_INT(gpt_products_time(f.gpt, out), ZERO_OK);
    CHECK_STRING(out, "");
    CHECK_INT(gpt_products_use(f.gpt, out), ZERO_OK);
    fixture_close(&f);
}

/* ---- memory ---- */

enum { SIDE = 16, BEHIND = 128 }; /* of square matrices in bf16; numbers from one place to the next that is as well aligned */

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
                        .alpha = 1,
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
    same_bits_by_the_same_choice(gpt2, ZERO_F32);
    same_bits_by_the_same_choice(gpt2, ZERO_BF16);
    same_bits_by_the_same_choice(llama, ZERO_F32);
    the_first_of_equals();
    what_cannot_run();
    for_each_shape();
    after_other_shapes();
    what_is_refused();
    what_it_depends_on();
    attention_by_warpgroups();
    attention_by_default();
    no_choice_on_the_host();
    behind_each_array();
    cuda_device_close(&cuda);
    return check_end();
}
