/* Several micro-batches in each use of a unit, on a GPU: losses and gradients have the bits of passes of their own, whatever is kept and
 * computed again, with inputs that wait on the device or in pinned memory, when all work is replayed from graphs. A micro-batch that
 * replayed the graph of another one would compute that one again. Its memory is that of two micro-batches, and what waits. Runs on the
 * stand-ins of tests/cuda, or on a GPU. */
#include <stdio.h>
#include <string.h>

#include "tests/check.h"
#include "tests/cuda/counts.h"
#include "tests/gpt/checks.h"
#include "tests/gpt/cuda_device.h"

enum { LAYERS = 3, WIDTH = 24, CONTEXT = 6, BATCH = 1, ROWS = BATCH * CONTEXT, MICROS_MAX = 5, STEPS = 3 };

static struct fake_device device;

static const struct gpt_config gpt2 = {.layers = LAYERS,
                                       .width = WIDTH,
                                       .heads = 3,
                                       .context = CONTEXT,
                                       .vocab = 11,
                                       .inner = 40,
                                       .layer_norm_epsilon = 1e-5,
                                       .initializer_range = 0.2};

static struct gpt_config llama_of(struct gpt_config c) {
    c.architecture = GPT_LLAMA;
    c.kv_heads = 1, c.head_width = 8, c.rope.theta = 100;
    return c;
}

static void freeze_lower(struct fixture *f) {
    for (uint32_t i = 0; fake_engine_name(f->engine, i); i++) {
        const char *name = fake_engine_name(f->engine, i);
        if (strstr(name, "wte") || strstr(name, "wpe") || strstr(name, "h.0."))
            fake_engine_freeze(f->engine, name);
    }
}

static int same_gradients(const struct fixture *a, const struct fixture *b) {
    int same = 1;
    const char *name;
    for (uint32_t i = 0; same && (name = fake_engine_name(a->engine, i)); i++)
        same = CHECK_BYTES(fake_engine_grad(a->engine, name), fake_engine_grad(b->engine, name),
                           fake_engine_count(a->engine, name) * sizeof(float));
    return same;
}

/* The graphs that a pass launched. */
static unsigned long long train(struct fixture *f, double loss[]) {
    struct fake_cuda_counts before, after;
    counts_read(&before);
    fake_engine_next_step(f->engine);
    CHECK_INT(gpt_train(f->gpt, f->tokens, f->targets, loss), ZERO_OK);
    counts_read(&after);
    return after.graphs - before.graphs;
}

/* Units of a pass that are enqueued for each micro-batch: forward without the head's, backward, and what is computed again. */
static uint32_t phases_of(const struct gpt_config *c, uint32_t frozen_blocks) {
    uint32_t blocks = c->layers - frozen_blocks,
             last = c->recompute > 1 ? (c->layers - 1) % c->recompute + 1 : 0;
    uint32_t again = c->recompute == 1 ? blocks : c->recompute ? c->layers - last : 0;
    return 1 + c->layers + 1 + blocks + again + (frozen_blocks ? 0 : 1);
}

static int same_bits(zero_dtype dtype, struct gpt_config config, uint32_t micros, bool frozen) {
    struct fixture uses, passes;
    double loss[MICROS_MAX] = {0}, expected[MICROS_MAX], evaluated = 0;
    unsigned long long graphs = 0;
    struct fake_cuda_counts ignored;
    int same = 1;
    config.micros = micros;
    fixture_open_on(&device, dtype, &uses, config, BATCH, 1, 4);
    config.micros = 0, config.recompute = 0, config.checkpoints = ZERO_DEVICE;
    fixture_open_on(&device, dtype, &passes, config, BATCH, 1, 4);
    for (uint32_t i = 2; config.documents && i < micros * ROWS; i += 5) uses.targets[i] = GPT_NEXT_DOCUMENT;
    if (frozen) freeze_lower(&uses), freeze_lower(&passes);
    for (uint32_t m = 0; m < micros; m++)
        CHECK_INT(gpt_train(passes.gpt, uses.tokens + m * ROWS, uses.targets + m * ROWS, &expected[m]),
                  ZERO_OK);
    for (int step = 0; step < STEPS && same; step++) {
        graphs = train(&uses, loss);
        for (uint32_t m = 0; m < micros; m++) same &= CHECK_DOUBLE(loss[m], expected[m], 0);
        same &= same_gradients(&uses, &passes);
        if (step != 1) continue;
        CHECK_INT(gpt_evaluate(uses.gpt, uses.tokens + ROWS, uses.targets + ROWS, 0, &evaluated), ZERO_OK);
        same &= CHECK_DOUBLE(evaluated, expected[1], 0);
    }
    if (same && counts_read(&ignored)) /* all that recurs is replayed */
        same = CHECK_INT(graphs, micros * phases_of(&uses.config, frozen));
    if (!same)
        fprintf(stderr, "in %s, type %d, %u micro-batches, segments of %u, tier %d\n",
                gpt_title(&uses.config), dtype, micros, uses.config.recompute, uses.config.checkpoints);
    fixture_close(&uses), fixture_close(&passes);
    return same;
}

static void ways(zero_dtype dtype, struct gpt_config config) {
    static const struct {
        uint32_t recompute;
        zero_tier checkpoints;
    } way[] = {{0, ZERO_DEVICE}, {1, ZERO_DEVICE}, {1, ZERO_CPU},
               {1, ZERO_NVME},   {2, ZERO_DEVICE}, {2, ZERO_CPU}};
    for (size_t w = 0; w < sizeof way / sizeof *way; w++) {
        config.recompute = way[w].recompute, config.checkpoints = way[w].checkpoints;
        config.outputs = w % 2 ? GPT_OUTPUTS_KEPT : GPT_OUTPUTS_AGAIN;
        same_bits(dtype, config, 3, false);
    }
}

/* What a micro-batch more takes, with each block computed again: the inputs of the blocks and of the head, the stream's gradient, the
 * batch and the losses; no more on the device where the inputs wait in pinned memory. */
static void memory(void) {
    struct gpt_config c = llama_of(gpt2);
    uint64_t pinned[2], array = 512; /* 6 rows of 24 numbers of 2 bytes, in lines of 256 bytes */
    c.recompute = 1;
    for (int on_cpu = 0; on_cpu < 2; on_cpu++) {
        c.checkpoints = on_cpu ? ZERO_CPU : ZERO_DEVICE;
        c.micros = 3;
        uint64_t three = gpt_cuda_activation_bytes(&c, BATCH, ZERO_BF16, &pinned[0]) - pinned[0];
        c.micros = 4;
        uint64_t four = gpt_cuda_activation_bytes(&c, BATCH, ZERO_BF16, &pinned[1]) - pinned[1];
        uint64_t waits = (LAYERS + 2) * array, batch = 6 * 256;
        CHECK_INT(four - three, on_cpu ? 0 : waits);
        CHECK(pinned[1] - pinned[0] >= batch + (on_cpu ? waits : 0));
        CHECK(pinned[1] - pinned[0] <= batch + 256 + (on_cpu ? waits : 0));
    }
}

static void refused(struct gpt_config config) {
    config.micros = 2, config.recompute = 2, config.checkpoints = ZERO_NVME;
    CHECK_CONTAINS(gpt_cuda_problem(&config), "nvme_checkpointing");
    config.checkpoints = ZERO_CPU;
    CHECK(!gpt_cuda_problem(&config));
}

int main(void) {
    struct cuda_device d;
    cuda_device_open(&d);
    device = cuda_device_of(&d);
    ways(ZERO_F32, gpt2);
    struct gpt_config again = gpt2;
    again.recompute = 1, again.checkpoints = ZERO_CPU;
    same_bits(ZERO_BF16, llama_of(again), 3, false);
    same_bits(ZERO_F16, again, 2, false);
    same_bits(ZERO_F32, again, 4, true);
    again.documents = true;
    same_bits(ZERO_F32, again, 3, false);
    again.recompute = 0, again.checkpoints = ZERO_DEVICE;
    same_bits(ZERO_F32, again, 2, false);
    again = gpt2, again.layers = 7, again.recompute = 1, again.checkpoints = ZERO_NVME;
    same_bits(ZERO_BF16, again, 2, true);
    memory();
    refused(gpt2);
    cuda_device_close(&d);
    return check_end();
}
