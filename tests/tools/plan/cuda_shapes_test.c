/* The GPU activations that `zero plan` computes are those that the GPT reserves and allocates, on each tier, in every
 * type, with and without recomputation, kept outputs, checkpoints in host memory or on the drive, and several micro-batches. Runs on the stand-ins of tests/cuda, or
 * on a GPU. */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/cuda/counts.h"
#include "tests/gpt/cuda_device.h"
#include "tools/gpt/gpt.h"
#include "tools/plan/shapes.h"

static struct cuda_device cuda;
static struct fake_device device;

static const struct shapes all[] = {
    {"demo", "", GPT_GPT2, 5, 96, 6, 0, 64, 256, 0, true, 0, 0, 0, 0},
    {"odd", "", GPT_GPT2, 3, 35, 5, 0, 19, 1001, 71, false, 0, 0, 0, 0},
    {"llama", "", GPT_LLAMA, 6, 64, 4, 2, 48, 512, 176, false, 20, 0, 0, 0},
    {"deep", "", GPT_LLAMA, 9, 24, 2, 2, 16, 64, 40, true, 0, 0, 0, 0},
};

static const struct {
    enum dtype dtype;
    zero_dtype type;
} types[] = {{DTYPE_F32, ZERO_F32}, {DTYPE_BF16, ZERO_BF16}, {DTYPE_F16, ZERO_F16}};

static uint64_t free_bytes(void) {
    size_t available, total;
    CHECK_INT(cuda.driver.cuMemGetInfo(&available, &total), CUDA_SUCCESS);
    return available;
}

static void check(const struct shapes *s, int t, uint32_t batch, struct shapes_recompute recompute) {
    struct gpt_config config = {.architecture = s->architecture,
                                .kv_heads = (uint32_t)s->kv_heads,
                                .head_width = (uint32_t)s->head_width,
                                .rope = {.theta = 10000},
                                .inner = (uint32_t)s->inner,
                                .layers = (uint32_t)s->layers,
                                .width = (uint32_t)s->width,
                                .heads = (uint32_t)s->heads,
                                .context = (uint32_t)s->context,
                                .vocab = (uint32_t)s->vocab,
                                .tied = s->tied,
                                .layer_norm_epsilon = 1e-5,
                                .recompute = recompute.blocks,
                                .checkpoints = recompute.tier,
                                .outputs = recompute.outputs};
    zero_engine *engine = fake_engine_create(types[t].type, 1, 1);
    struct fake_cuda_counts counts;
    struct gpt *gpt = NULL;
    fake_engine_on(engine, &device);
    fake_engine_use_micros(engine, recompute.micros);
    if (shapes_problem(s, false, recompute)) return zero_engine_destroy(engine);
    struct gpt_spare spare[GPT_OUTPUT_KINDS];
    uint64_t before = free_bytes(), host,
             bytes = shapes_activation_bytes(s, false, types[t].dtype, batch, 1, recompute, &host);
    uint32_t spares = recompute.outputs == GPT_OUTPUTS_FITTING
                          ? shapes_spares(s, types[t].dtype, batch, recompute, (uint32_t)s->layers, spare)
                          : 0;
    CHECK_INT(gpt_create(engine, &config, batch, &gpt), ZERO_OK);
    uint64_t taken = before - free_bytes(); /* the fake engine takes memory at its commit */
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    before = free_bytes();
    CHECK_INT(gpt_keep_outputs(gpt), ZERO_OK);
    taken += before - free_bytes();
    for (uint32_t i = 0; i < spares; i++) bytes += spare[i].parts * spare[i].part_bytes;
    bool same = CHECK_INT(fake_engine_reserved(engine, ZERO_DEVICE), bytes - host) &
                CHECK_INT(fake_engine_reserved(engine, ZERO_CPU), host);
    const zero_scratch_needs *needs = fake_engine_scratch(engine);
    same &= CHECK_INT(shapes_checkpoint_bytes(s, types[t].dtype, batch, recompute),
                      needs ? needs->place_bytes : 0);
    if (counts_read(&counts)) same &= CHECK_INT(taken, bytes - host); /* a real driver has pages */
    if (!same)
        fprintf(stderr, "in %s, type %d, batch %u, %u blocks again, %d, %u micro-batches\n", s->name, t,
                batch, recompute.blocks, recompute.tier, recompute.micros);
    gpt_destroy(gpt);
    zero_engine_destroy(engine);
}

int main(void) {
    cuda_device_open(&cuda);
    device = cuda_device_of(&cuda);
    device.spare_bytes = UINT64_MAX;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int t = 0; t < 3; t++)
            for (uint32_t blocks = 0; blocks <= all[i].layers; blocks++)
                for (int tier = 0; tier < ZERO_TIERS; tier++)
                    check(&all[i], t, 1 + (blocks + (uint32_t)t) % 3,
                          (struct shapes_recompute){.blocks = blocks,
                                                    .tier = (zero_tier)tier,
                                                    .micros = 1 + (blocks + 2 * (uint32_t)t) % 4,
                                                    .gpu = true,
                                                    .outputs =
                                                        (enum gpt_outputs)((blocks + (uint32_t)tier) % 3)});
    cuda_device_close(&cuda);
    return check_end();
}
