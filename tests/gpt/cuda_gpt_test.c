/* The GPT on a GPU against the same on the host: loss, logits and the gradient of every tensor, of GPT-2 and of Llama; a
 * second micro-step adds; recomputation and what is frozen change no bit. In fp32 within 1e-4; in bf16 and fp16 within
 * rounding. Runs on the stand-ins of tests/cuda, or on a GPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/cuda/counts.h"
#include "tests/gpt/checks.h"
#include "tests/gpt/cuda_device.h"
#include "tests/sanitized.h"

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
    CHECK_INT(gpt_next_logits(f->gpt, f->tokens, length, 0, logits), ZERO_OK);
    CHECK_INT(gpt_next_logits(expected->gpt, f->tokens, length, 0, reference), ZERO_OK);
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
    CHECK_INT(gpt_evaluate(f.gpt, f.tokens, f.targets, 0, &again), ZERO_OK);
    CHECK_DOUBLE(again, loss, 0);
    CHECK_INT(gpt_evaluate(f.gpt, f.tokens, f.targets, 1, &again), ZERO_OK);
    CHECK_INT(gpt_evaluate(host.gpt, f.tokens, f.targets, 1, &expected), ZERO_OK);
    CHECK_DOUBLE(again, expected, most / 4 * expected);
    compare_logits(&f, &host, most);
    fixture_close(&f), fixture_close(&host);
}

/* Every other target counts. */
static void masked(struct gpt_config config, uint32_t batch, double divisor) {
    struct fixture f, host;
    double loss = 0, expected = 0;
    fixture_open_on(&device, ZERO_F32, &f, config, batch, 1, 4);
    fixture_open(ZERO_F32, &host, config, batch, 1, 4);
    for (uint32_t i = 0; i < batch * config.context; i += 2) f.targets[i] = GPT_NO_TARGET;
    gpt_set_divisor(f.gpt, divisor), gpt_set_divisor(host.gpt, divisor);
    CHECK_INT(gpt_train(f.gpt, f.tokens, f.targets, &loss), ZERO_OK);
    CHECK_INT(gpt_train(host.gpt, f.tokens, f.targets, &expected), ZERO_OK);
    CHECK_DOUBLE(loss, expected, 2.5e-5 * expected);
    compare_gradients(&f, &host, 1, 1e-4);
    fixture_close(&f), fixture_close(&host);
}

/* Documents of several lengths, one of them of one row; also a second micro-step, an evaluation, and logits, which know no targets. */
static void documents(struct gpt_config config, zero_dtype dtype, double most) {
    struct fixture f, host;
    double loss = 0, expected = 0;
    config.documents = true;
    fixture_open_on(&device, dtype, &f, config, 2, 1, 4);
    fixture_open(ZERO_F32, &host, config, 2, 1, 4);
    for (uint32_t i = 0; i < 2 * config.context; i++)
        if (i % 13 == 4 || i % 17 == 4 || i % 13 == 5) f.targets[i] = GPT_NEXT_DOCUMENT;
    for (int micro = 1; micro <= 2; micro++) {
        CHECK_INT(gpt_train(f.gpt, f.tokens, f.targets, &loss), ZERO_OK);
        CHECK_INT(gpt_train(host.gpt, f.tokens, f.targets, &expected), ZERO_OK);
        CHECK_DOUBLE(loss, expected, most / 4 * expected);
        compare_gradients(&f, &host, 1, most);
    }
    CHECK_INT(gpt_evaluate(f.gpt, f.tokens, f.targets, 1, &loss), ZERO_OK);
    CHECK_INT(gpt_evaluate(host.gpt, f.tokens, f.targets, 1, &expected), ZERO_OK);
    CHECK_DOUBLE(loss, expected, most / 4 * expected);
    compare_logits(&f, &host, most);
    fixture_close(&f), fixture_close(&host);
}

static void all_types(struct gpt_config config, uint32_t batch) {
    against_host(config, batch, ZERO_F32, 1e-4);
    against_host(config, batch, ZERO_BF16, 0.08);
    against_host(config, batch, ZERO_F16, 0.02);
}

/* The first micro-step of a step rounds each sum once: the input gradient of several layers, and the head's gradients
 * over groups of rows. With groups, gradients are the same but for the order of sums in fp32. On a GPU another algorithm
 * may multiply another number of rows, so logits round differently. */
static void sums_once(struct gpt_config config, zero_dtype dtype) {
    struct fixture whole, groups;
    struct fake_cuda_counts before, after;
    double loss, same;
    bool exact = counts_read(&before);
    fixture_open_on(&device, dtype, &whole, config, 2, 1, 4);
    config.logits_bytes = 9 * 128; /* nine rows */
    fixture_open_on(&device, dtype, &groups, config, 2, 1, 4);
    CHECK_INT(gpt_train(whole.gpt, whole.tokens, whole.targets, &loss), ZERO_OK);
    CHECK_INT(gpt_train(groups.gpt, groups.tokens, groups.targets, &same), ZERO_OK);
    counts_read(&after);
    CHECK_INT(after.roundings - before.roundings, 0);
    CHECK_DOUBLE(same, loss, exact ? 0 : 0.01 * loss);
    compare_gradients(&groups, &whole, 1, exact ? 1e-5 : 0.04);
    CHECK_INT(gpt_train(groups.gpt, groups.tokens, groups.targets, &same), ZERO_OK);
    compare_gradients(&groups, &whole, 2, exact ? 0.01 : 0.04);
    fixture_close(&whole), fixture_close(&groups);
}

/* Of a first training pass, which replays no graph. */
static struct fake_cuda_counts counts_of_training(struct gpt_config config) {
    struct fake_cuda_counts before, after;
    struct fixture f;
    double loss;
    fixture_open_on(&device, ZERO_BF16, &f, config, 1, 1, 1);
    counts_read(&before);
    CHECK_INT(gpt_train(f.gpt, f.tokens, f.targets, &loss), ZERO_OK);
    counts_read(&after);
    fixture_close(&f);
    after.kernels -= before.kernels, after.products -= before.products;
    return after;
}

static unsigned long long kernels_of_training(struct gpt_config config, const char *capability) {
    setenv("FAKE_CUDA_CAPABILITY", capability, 1);
    unsigned long long kernels = counts_of_training(config).kernels;
    against_host(config, 1, ZERO_BF16, 0.08);
    unsetenv("FAKE_CUDA_CAPABILITY");
    return kernels;
}

/* Weights that adjoin are multiplied together: forward, back to their input, and back to themselves. */
static void products_of_block(struct gpt_config config, unsigned long long products) {
    struct gpt_config deeper = config;
    struct fake_cuda_counts ignored;
    deeper.layers++;
    unsigned long long less = counts_of_training(config).products, more = counts_of_training(deeper).products;
    if (counts_read(&ignored)) CHECK_INT(more - less, products);
}

/* Products have GELU's slope at their end from sm_90 on; before, each block has a kernel more. */
static void slope_by_capability(struct gpt_config config) {
    struct fake_cuda_counts counts;
    unsigned long long earlier = kernels_of_training(config, "8"), later = kernels_of_training(config, "9");
    if (counts_read(&counts)) CHECK_INT(earlier - later, config.layers);
}

/* Which parameters do not train: none, every other (weights that one product reads alike), or all below the last two blocks,
 * so that the backward ends there; or one of the weights that one product would read. */
enum frozen { NONE, ODD, LOWER, APART };

static bool is_one_of(const char *name, const char *const *parts) {
    while (*parts && !strstr(name, *parts)) parts++;
    return *parts;
}

static bool is_frozen(const struct fixture *f, enum frozen which, uint32_t i) {
    const char *name = fake_engine_name(f->engine, i);
    uint32_t block = f->config.layers;
    sscanf(name, f->config.architecture == GPT_GPT2 ? "h.%u." : "model.layers.%u.", &block);
    static const char *const embedding[] = {"wte", "wpe", "embed_tokens", NULL},
                             *const apart[] = {"k_proj", "up_proj", NULL},
                             *const together[] = {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", NULL};
    if (which == ODD) return is_one_of(name, together) ? block % 2 : i % 2;
    if (which == APART) return is_one_of(name, apart);
    return which == LOWER && (is_one_of(name, embedding) || block + 2 < f->config.layers);
}

static void same_gradients(struct fixture *f, struct fixture *expected, enum frozen which) {
    for (uint32_t i = 0; fake_engine_name(f->engine, i); i++) {
        const char *name = fake_engine_name(f->engine, i);
        uint64_t count = fake_engine_count(f->engine, name);
        const float *grad = fake_engine_grad(f->engine, name);
        if (is_frozen(f, which, i))
            for (uint64_t e = 0; e < count && CHECK_DOUBLE(grad[e], 0, 0);) e++;
        else if (which == APART) /* its products are others, so sums round differently */
            CHECK(check_distance(grad, fake_engine_grad(expected->engine, name), 1, count) <= 0.02);
        else
            CHECK_BYTES(grad, fake_engine_grad(expected->engine, name), count * sizeof *grad);
    }
}

/* Three steps, so that graphs are recorded and replayed; evaluations in between, which keep nothing. */
static void same_training(struct gpt_config config, uint32_t batch, struct fixture *expected, double loss,
                          enum frozen which) {
    struct fixture f;
    double got, evaluated;
    fixture_open_on(&device, ZERO_BF16, &f, config, batch, 1, 1);
    for (uint32_t i = 0; fake_engine_name(f.engine, i); i++)
        if (is_frozen(&f, which, i)) fake_engine_freeze(f.engine, fake_engine_name(f.engine, i));
    for (int step = 0; step < 3; step++) {
        fake_engine_next_step(f.engine);
        CHECK_INT(gpt_train(f.gpt, f.tokens, f.targets, &got), ZERO_OK);
        CHECK_DOUBLE(got, loss, 0);
        same_gradients(&f, expected, which);
        CHECK_INT(gpt_evaluate(f.gpt, f.tokens, f.targets, 0, &evaluated), ZERO_OK);
        CHECK_DOUBLE(evaluated, loss, 0);
    }
    fixture_close(&f);
}

/* With segments of blocks computed again, from checkpoints there or on the host, and with every other parameter frozen. */
static void same_bits(struct gpt_config config, uint32_t batch) {
    struct fixture whole;
    double loss;
    fixture_open_on(&device, ZERO_BF16, &whole, config, batch, 1, 1);
    CHECK_INT(gpt_train(whole.gpt, whole.tokens, whole.targets, &loss), ZERO_OK);
    same_training(config, batch, &whole, loss, ODD);
    same_training(config, batch, &whole, loss, APART);
    for (config.recompute = 1; config.recompute <= config.layers; config.recompute++)
        for (int on_cpu = 0; on_cpu < 2; on_cpu++) {
            config.checkpoints = on_cpu ? ZERO_CPU : ZERO_DEVICE;
            same_training(config, batch, &whole, loss, NONE);
        }
    config.recompute = 1;
    same_training(config, batch, &whole, loss, LOWER);
    fixture_close(&whole);
}

/* Where a row fills its groups of 16 bytes, a norm's backward makes the gradients of its own vectors and those of the stream's two
 * biases: no kernel reads x or dx again for them. */
static void sums_with_the_norm(struct gpt_config config) {
    struct gpt_config apart = config;
    struct fake_cuda_counts ignored;
    apart.width = config.width - 4;
    if (counts_read(&ignored))
        CHECK_INT(counts_of_training(apart).kernels - counts_of_training(config).kernels,
                  4 * config.layers + 1);
}

/* What norms and the activation give, kept instead of computed again: the same bits, and three kernels less for each block. */
static void kept_outputs(struct gpt_config config, const char *capability) {
    struct fixture again;
    struct fake_cuda_counts ignored;
    double loss;
    setenv("FAKE_CUDA_CAPABILITY", capability, 1);
    fixture_open_on(&device, ZERO_BF16, &again, config, 1, 1, 1);
    CHECK_INT(gpt_train(again.gpt, again.tokens, again.targets, &loss), ZERO_OK);
    unsigned long long kernels = counts_of_training(config).kernels;
    config.outputs = GPT_OUTPUTS_KEPT;
    if (counts_read(&ignored)) CHECK_INT(kernels - counts_of_training(config).kernels, 3 * config.layers);
    for (config.recompute = 0; config.recompute < config.layers; config.recompute++)
        same_training(config, 1, &again, loss, config.recompute ? NONE : ODD);
    fixture_close(&again);
    unsetenv("FAKE_CUDA_CAPABILITY");
}

/* The room is one byte short of another part, or exactly that; gpt_kept are `blocks` of each kind. */
static void room_for(struct gpt_config config, uint64_t bytes, const uint32_t blocks[GPT_OUTPUT_KINDS]) {
    struct fixture f;
    device.spare_bytes = bytes;
    fixture_open_on(&device, ZERO_BF16, &f, config, 1, 1, 1);
    for (int kind = 0; kind < GPT_OUTPUT_KINDS; kind++)
        CHECK_INT(gpt_kept(f.gpt, (enum gpt_output)kind), blocks[kind]);
    fixture_close(&f);
}

/* Outputs are kept as far as there is room for whole places, the first kind first: always the bits of
 * outputs that are computed again. A block has two kernels less with its norms', one less with its activation's. */
static void fitting_outputs(struct gpt_config config, const char *capability) {
    static const unsigned long long saved[GPT_OUTPUT_KINDS] = {[GPT_NORMS] = 2, [GPT_ACTIVATIONS] = 1};
    struct gpt_spare spare[GPT_OUTPUT_KINDS];
    struct fixture again;
    struct fake_cuda_counts ignored;
    double loss;
    setenv("FAKE_CUDA_CAPABILITY", capability, 1);
    fixture_open_on(&device, ZERO_BF16, &again, config, 1, 1, 1);
    CHECK_INT(gpt_train(again.gpt, again.tokens, again.targets, &loss), ZERO_OK);
    unsigned long long kernels = counts_of_training(config).kernels, less = 0;
    config.outputs = GPT_OUTPUTS_FITTING;
    uint32_t kinds = gpt_cuda_spares(&config, 1, ZERO_BF16, config.layers, spare),
             blocks[GPT_OUTPUT_KINDS] = {0};
    uint64_t room = 0;
    for (uint32_t i = 0; i < kinds; i++)
        for (uint32_t place = 0; place < spare[i].parts; place++) {
            room_for(config, room + spare[i].part_bytes - 1, blocks);
            room += spare[i].part_bytes, blocks[spare[i].kind]++, less += saved[spare[i].kind];
            room_for(config, room, blocks);
            if (counts_read(&ignored)) CHECK_INT(kernels - counts_of_training(config).kernels, less);
            same_training(config, 1, &again, loss, place % 2 ? ODD : NONE);
        }
    fixture_close(&again);
    device.spare_bytes = 0;
    unsetenv("FAKE_CUDA_CAPABILITY");
}

/* Recordings of a forward and of its repetition are not the same: what is kept is of the tokens of this step, which take
 * turns. */
static void kept_of_these_tokens(struct gpt_config config, struct fixture *whole) {
    struct fixture f;
    double loss, expected;
    fixture_open_on(&device, ZERO_BF16, &f, config, 1, 1, 1);
    for (int step = 0; step < 5; step++) {
        const int32_t *tokens = step % 2 ? f.targets : f.tokens, *targets = step % 2 ? f.tokens : f.targets;
        fake_engine_next_step(f.engine), fake_engine_next_step(whole->engine);
        CHECK_INT(gpt_train(f.gpt, tokens, targets, &loss), ZERO_OK);
        CHECK_INT(gpt_train(whole->gpt, tokens, targets, &expected), ZERO_OK);
        CHECK_DOUBLE(loss, expected, 0);
        same_gradients(&f, whole, NONE);
        CHECK_INT(gpt_evaluate(f.gpt, targets, tokens, 0, &loss), ZERO_OK);
    }
    fixture_close(&f);
}

/* Blocks of all segments use the places of one. With a segment of one block, the activation is there when the backward begins. Of the
 * blocks that run again, the last keep first their attention and then their MLP, as far as there is room: the same bits, and
 * fewer `products` for each. */
static void fitting_in_segments(struct gpt_config config, uint32_t segment, const uint32_t products[2]) {
    struct gpt_spare spare[GPT_OUTPUT_KINDS];
    struct fixture whole;
    struct fake_cuda_counts ignored;
    uint32_t again = (config.layers - 1) / segment * segment, blocks[GPT_OUTPUT_KINDS] = {0};
    uint64_t room = 0;
    double loss;
    fixture_open_on(&device, ZERO_BF16, &whole, config, 1, 1, 1);
    CHECK_INT(gpt_train(whole.gpt, whole.tokens, whole.targets, &loss), ZERO_OK);
    config.outputs = GPT_OUTPUTS_FITTING, config.recompute = segment;
    struct fake_cuda_counts before = counts_of_training(config);
    uint32_t kinds = gpt_cuda_spares(&config, 1, ZERO_BF16, config.layers, spare), first = kinds - 2;
    CHECK_INT(kinds, segment == 1 ? 3 : 4);
    for (uint32_t i = 0; i < kinds; i++)
        for (uint32_t part = 0; part < spare[i].parts; part++) {
            bool splits = i >= first;
            room += spare[i].part_bytes;
            if (splits)
                blocks[spare[i].kind]++, before.products -= products[i - first];
            else
                blocks[spare[i].kind] += config.layers / segment + (part < config.layers % segment);
            if (i == first) blocks[GPT_NORMS]--, blocks[GPT_ACTIVATIONS] -= segment > 1;
            if (i < first || (i > first && part + 1 < again)) continue;
            room_for(config, room, blocks);
            if (counts_read(&ignored)) CHECK_INT(counts_of_training(config).products, before.products);
            if (i > first || !part) same_training(config, 1, &whole, loss, segment == 1 ? ODD : NONE);
            if (i == first && part + 1 == again)
                kept_of_these_tokens(config, &whole); /* ends with `whole` as before */
        }
    CHECK_INT(blocks[GPT_ATTENTION], again);
    CHECK_INT(blocks[GPT_MLP], again);
    CHECK_INT(blocks[GPT_NORMS], config.layers - again);
    if (counts_read(&ignored)) CHECK(counts_of_training(config).kernels < before.kernels);
    kept_of_these_tokens(config, &whole);
    fixture_close(&whole);
    device.spare_bytes = 0;
}

/* Segments whose blocks are all below the lowest that trains do not run again: they keep no parts. */
static void frozen_keep_no_parts(struct gpt_config config, uint32_t segment, uint32_t frozen_blocks,
                                 uint32_t parts) {
    struct gpt *gpt = NULL;
    zero_engine *engine = fake_engine_create(ZERO_BF16, 1, 1);
    device.spare_bytes = UINT64_MAX;
    fake_engine_on(engine, &device);
    fake_engine_freeze_units(engine, 1 + frozen_blocks);
    config.outputs = GPT_OUTPUTS_FITTING, config.recompute = segment, config.layers = 5;
    CHECK_INT(gpt_create(engine, &config, 1, &gpt), ZERO_OK);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    CHECK_INT(gpt_keep_outputs(gpt), ZERO_OK);
    CHECK_INT(gpt_kept(gpt, GPT_ATTENTION), parts);
    CHECK_INT(gpt_kept(gpt, GPT_MLP), parts);
    gpt_destroy(gpt);
    zero_engine_destroy(engine);
    device.spare_bytes = 0;
}

/* Another program has taken the memory since commit: nothing is kept, and the training goes on. */
static void outputs_without_memory(struct gpt_config config, const struct cuda_driver *driver) {
    struct fake_cuda_counts ignored;
    struct gpt *gpt = NULL;
    size_t available, total;
    double loss;
    int32_t tokens[64] = {0};
    if (!counts_read(&ignored)) return; /* a GPU that others use, too, is not filled */
    zero_engine *engine = fake_engine_create(ZERO_BF16, 1, 1);
    device.spare_bytes = UINT64_MAX;
    fake_engine_on(engine, &device);
    config.outputs = GPT_OUTPUTS_FITTING;
    CHECK_INT(gpt_create(engine, &config, 1, &gpt), ZERO_OK);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    CUdeviceptr taken;
    CHECK_INT(driver->cuMemGetInfo(&available, &total), CUDA_SUCCESS);
    CHECK_INT(driver->cuMemAlloc(&taken, available - 1000), CUDA_SUCCESS);
    CHECK(gpt_keep_outputs(gpt) != ZERO_OK);
    CHECK_CONTAINS(gpt_last_error(), "bytes for outputs that are kept");
    CHECK_INT(driver->cuMemFree(taken), CUDA_SUCCESS);
    for (int kind = 0; kind < GPT_OUTPUT_KINDS; kind++) CHECK_INT(gpt_kept(gpt, (enum gpt_output)kind), 0);
    CHECK_INT(gpt_train(gpt, tokens, tokens, &loss), ZERO_OK);
    gpt_destroy(gpt);
    zero_engine_destroy(engine);
    device.spare_bytes = 0;
}

/* What moves to the drive and back: of segments of one block all but the last six, down to the lowest that trains, once per pass. */
static void moves(struct gpt_config config, uint32_t frozen_units, uint64_t places, uint64_t moved) {
    static const int32_t tokens[64];
    struct gpt *gpt = NULL;
    double loss;
    zero_engine *engine = fake_engine_create(ZERO_BF16, 1, 1);
    fake_engine_on(engine, &device);
    fake_engine_freeze_units(engine, frozen_units);
    CHECK_INT(gpt_create(engine, &config, 1, &gpt), ZERO_OK);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    const zero_scratch_needs *needs = fake_engine_scratch(engine);
    CHECK_INT(needs ? needs->places : 0, places);
    CHECK_INT(needs ? needs->step_stores : 0, moved);
    CHECK_INT(needs ? needs->place_bytes : 4096, 4096); /* 9 rows of 24 numbers of 2 bytes, in a whole page */
    for (uint64_t step = 1; step <= 2; step++) {
        fake_engine_next_step(engine);
        CHECK_INT(gpt_train(gpt, tokens, tokens, &loss), ZERO_OK);
        CHECK_INT(gpt_evaluate(gpt, tokens, tokens, 0, &loss), ZERO_OK);
        CHECK_INT(fake_engine_stores(engine), step * moved);
        CHECK_INT(fake_engine_fetches(engine), step * moved);
    }
    gpt_destroy(gpt);
    zero_engine_destroy(engine);
}

/* None, one, or nine of the segments leave; also with the lower blocks frozen, and with segments of two blocks. */
static void drive(struct gpt_config config) {
    static const uint32_t layers[] = {6, 7, 15};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        struct fixture whole;
        double loss;
        config.layers = layers[i], config.recompute = 0, config.checkpoints = ZERO_DEVICE;
        uint32_t leave = layers[i] > 6 ? layers[i] - 6 : 0;
        fixture_open_on(&device, ZERO_BF16, &whole, config, 1, 1, 1);
        CHECK_INT(gpt_train(whole.gpt, whole.tokens, whole.targets, &loss), ZERO_OK);
        config.recompute = 1, config.checkpoints = ZERO_NVME;
        same_training(config, 1, &whole, loss, NONE);
        moves(config, 0, leave, leave);
        moves(config, 4, leave, leave > 3 ? leave - 3 : 0); /* the embedding and three blocks */
        if (leave > 3) same_training(config, 1, &whole, loss, LOWER);
        config.recompute = 2;
        if (leave > 3) same_training(config, 1, &whole, loss, NONE);
        fixture_close(&whole);
    }
}

static uint64_t copies_of_evaluation(struct gpt_config config, bool on_cpu) {
    struct fixture f;
    struct fake_cuda_counts before, after;
    double loss;
    config.recompute = 1, config.checkpoints = on_cpu ? ZERO_CPU : ZERO_DEVICE;
    fixture_open_on(&device, ZERO_BF16, &f, config, 1, 1, 1);
    counts_read(&before);
    CHECK_INT(gpt_evaluate(f.gpt, f.tokens, f.targets, 0, &loss), ZERO_OK);
    counts_read(&after);
    fixture_close(&f);
    return after.copies - before.copies;
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
        same_gradients(&f, &still, NONE);
    }
    fixture_close(&f), fixture_close(&still);
}

static void what_is_slow(struct gpt_config config) {
    CHECK_CONTAINS(gpt_cuda_slow(&config, ZERO_F32), "attention in fp32");
    CHECK_CONTAINS(gpt_cuda_slow(&config, ZERO_BF16), "the width of a head");
    config.head_width = 8;
    CHECK_CONTAINS(gpt_cuda_slow(&config, ZERO_BF16), "of its MLP"); /* 37 */
    config.inner = 40, config.vocab = 50257;
    CHECK(!gpt_cuda_slow(&config, ZERO_BF16));
    config.width = 28;
    CHECK_CONTAINS(gpt_cuda_slow(&config, ZERO_F16), "the width of the model");
}

static void refused(struct gpt_config config, uint32_t batch, const char *part) {
    struct gpt *gpt = NULL;
    zero_engine *engine = fake_engine_create(ZERO_F32, 1, 1);
    fake_engine_on(engine, &device);
    CHECK_INT(gpt_create(engine, &config, batch, &gpt), ZERO_E_UNSUPPORTED);
    CHECK_CONTAINS(gpt_last_error(), part);
    zero_engine_destroy(engine);
}

/* Heads of 12 and 6 are no multiple of 8, so attention is on plain units. */
static const struct gpt_config gpt2 = {.layers = 2,
                                       .width = 24,
                                       .heads = 2,
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

/* Qwen2 has biases, which adjoin if they fill cache lines, and Qwen3 norms of heads; Mistral has windows, on the tensor cores, too. */
static void families(void) {
    struct gpt_config qwen2 = llama, qwen3 = llama, mistral = llama, wide = llama, flash = gpt2;
    qwen2.architecture = GPT_QWEN2, qwen3.architecture = GPT_QWEN3, mistral.architecture = GPT_MISTRAL;
    against_host(qwen2, 1, ZERO_F32, 1e-4);
    wide = qwen2, wide.heads = 2, wide.kv_heads = 1, wide.head_width = 32, wide.inner = 40;
    against_host(wide, 2, ZERO_BF16, 0.08);
    products_of_block(wide, 12);
    against_host(qwen3, 1, ZERO_F32, 1e-4);
    against_host(qwen3, 1, ZERO_F16, 0.02);
    qwen3.layers = 1; /* frozen or not, kept or computed again */
    same_bits(qwen3, 1);
    documents(gpt2, ZERO_F32, 1e-4);
    flash.layers = 1, flash.width = 64, flash.heads = 1, flash.context = 70;
    documents(flash, ZERO_BF16, 0.08);
    mistral.window = 5, mistral.window_from = 1;
    against_host(mistral, 1, ZERO_F32, 1e-4);
    flash.architecture = GPT_MISTRAL, flash.rope.theta = 100, flash.tied = false, flash.window = 20;
    against_host(flash, 1, ZERO_BF16, 0.08);
    documents(flash, ZERO_F16, 0.02);
}

/* Three blocks of the vocabulary, of which the last one is smaller; with few rows of logits at a time, too. */
static void vocabulary(void) {
    struct gpt_config tied = gpt2, own = llama;
    tied.vocab_block = own.vocab_block = 4;
    against_host(tied, 2, ZERO_F32, 1e-4);
    against_host(own, 1, ZERO_F16, 0.02);
    own.layers = 1;
    same_bits(own, 1);
    tied.logits_bytes = 9 * 128; /* nine rows */
    against_host(tied, 2, ZERO_BF16, 0.08);
}

int main(void) {
    struct cuda_device cuda;
    if (SANITIZED) setenv("FAKE_CUDA_SEED", "2", 1); /* the plain build has the first one */
    cuda_device_open(&cuda);
    device = cuda_device_of(&cuda);
    struct gpt_config odd = gpt2, own = llama, flash = gpt2, deep = gpt2, wide = gpt2, untied = gpt2,
                      padded = llama, whole = llama, kept = gpt2, broad = gpt2, segments = llama;
    odd.width = 21, odd.heads = 3, odd.inner = 35, odd.tied = false; /* no multiple of anything */
    own.tied = true, own.kv_heads = 1, own.head_width = 10;
    flash.layers = 1, flash.width = 64, flash.heads = 1, flash.context = 70; /* on the tensor cores */
    deep.layers = 5, deep.context = 9; /* five segments, of which three leave the device; or three, and one */
    wide.head_width = 129;
    untied.tied = false;
    all_types(gpt2, 2);
    all_types(odd, 1);
    all_types(llama, 1);
    all_types(own, 1);
    families();
    vocabulary();
    against_host(flash, 1, ZERO_BF16, 0.08);
    against_host(flash, 1, ZERO_F16, 0.02);
    padded.layers = 1, padded.head_width = 80, padded.heads = 2, padded.kv_heads = 1;
    against_host(padded, 1, ZERO_BF16, 0.08);
    same_bits(deep, 1);
    same_bits(llama, 1);
    drive(deep);
    CHECK_INT(copies_of_evaluation(deep, true), copies_of_evaluation(deep, false));
    sums_once(gpt2, ZERO_BF16);
    sums_once(untied, ZERO_BF16);
    sums_once(llama, ZERO_F16);
    slope_by_capability(gpt2);
    sums_with_the_norm(gpt2);
    kept_outputs(llama, "9");
    kept_outputs(gpt2, "8");
    kept_outputs(gpt2, "9");
    fitting_outputs(llama, "9");
    broad.inner = 4 * broad.width; /* a part of activations is larger than one of norms */
    fitting_outputs(broad, "9");
    segments.layers = 3, segments.context = 5;
    for (uint32_t segment = 1; segment <= 2; segment++)
        fitting_in_segments(segments, segment, (uint32_t[]){2, 2});
    struct gpt_config layer_norm = gpt2, qwen3 = segments;
    layer_norm.layers = 3, layer_norm.context = 5, qwen3.architecture = GPT_QWEN3;
    fitting_in_segments(layer_norm, 1, (uint32_t[]){2, 1});
    fitting_in_segments(qwen3, 1, (uint32_t[]){2, 2});
    frozen_keep_no_parts(segments, 1, 0, 4);
    frozen_keep_no_parts(segments, 1, 3, 1);
    frozen_keep_no_parts(segments, 2, 3, 2); /* block 2 is frozen, and runs again for block 3 */
    frozen_keep_no_parts(segments, 1, 5, 0);
    outputs_without_memory(llama, &cuda.driver);
    kept.outputs = GPT_OUTPUTS_KEPT;
    against_host(kept, 2, ZERO_BF16, 0.08);
    whole.inner = own.inner = 40; /* weights fill cache lines, but for the keys' weight of `own` */
    products_of_block(gpt2, 12);
    products_of_block(whole, 12);
    products_of_block(llama, 15); /* gate and up apart */
    products_of_block(own, 15);   /* values apart */
    against_host(whole, 1, ZERO_BF16, 0.08);
    masked(gpt2, 2, 5);
    masked(llama, 1, 0.75);
    moved(gpt2);
    what_is_slow(llama);
    refused(wide, 1, "heads wider than 128 are computed on the CPU alone");
    struct gpt_config blocks = gpt2;
    blocks.vocab_block = 4, blocks.micros = 2;
    CHECK_CONTAINS(gpt_cuda_problem(&blocks), "vocabulary_block_rows with micro_order");
    refused(gpt2, 65536,
            "a GPU computes micro-batches of at most 65535 samples and 16776960 tokens, not of 65536");
    cuda_device_close(&cuda);
    return check_end();
}
