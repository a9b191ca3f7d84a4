/* Time and room by hand, for machines that are fast in all but one part: the step time, the overlaps, the
 * configurations that do not fit, and the advice. */
#include "tools/plan/price.h"

#include <json-c/json.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tools/plan/print/print.h"
#include "tools/plan/print/table.h"

enum { ROWS = 30 }; /* 6 of stages 0, 1 and 2, and 12 of stage 3 */

static const struct shapes model = {"test", "", GPT_GPT2, 4, 256, 4, 4, 128, 1000, 1024, true, 0, 0, 0, 0};

/* Everything takes no time to speak of, and there is room for everything. */
static struct scenario ideal(const char *config) {
    struct machine m = {.device = {.name = "test",
                                   .memory_bytes = 1e12,
                                   .memory_per_s = 1e18,
                                   .flops = {1e18, 1e18, NAN},
                                   .memory_achieved = 1,
                                   .flops_achieved = {1, 1, 1},
                                   .price_per_hour = NAN},
                        .host = {.memory_bytes = 1e12,
                                 .memory_per_s = 1e18,
                                 .devices = 8,
                                 .device_per_s = 1e18,
                                 .update_per_s = 1e18},
                        .inside = {.per_s = 1e18, .reduce_per_s = 1e18},
                        .drive = {.name = "test",
                                  .bytes = 1e12,
                                  .read_per_s = 1e18,
                                  .write_per_s = 1e18,
                                  .mixed_per_s = 1e18},
                        .node_ranks = 8};
    return (struct scenario){.machine = m,
                             .shapes = model,
                             .config = config,
                             .ranks = 4,
                             .nodes = 1,
                             .threads = 1,
                             .recompute = 1};
}

static const char fp32[] = "{\"train_micro_batch_size_per_gpu\": 2}";

static struct price price(const struct scenario *s, uint32_t stage, zero_tier state) {
    struct price p = {0};
    struct zero_error error;
    error_clear(&error);
    struct cell cell = {.stage = stage, .optimizer = state};
    if (!CHECK_INT(price_cell(s, &cell, &p, &error), ZERO_OK)) fprintf(stderr, "%s\n", error.message);
    return p;
}

static double flops(const struct scenario *s, bool recompute) {
    double all = 0, blocks = 0;
    for (uint32_t u = 0; u < shapes_units(&s->shapes); u++) {
        double forward = shapes_forward_flops(&s->shapes, u) * 2 * 128,
               attention = forward - shapes_weight_flops(&s->shapes, u) * 2 * 128;
        all += 3 * forward + 0.5 * attention; /* the backward computes the scores again */
        if (u > 0 &&
            u + 2 < shapes_units(&s->shapes)) /* all but the last block, without their last product */
            blocks += forward - shapes_output_flops(&s->shapes) * 2 * 128;
    }
    return all + recompute * blocks;
}

static void compute_alone(void) {
    struct scenario s = ideal(fp32);
    s.machine.device.flops[DTYPE_F32] = 1e12;
    for (uint32_t stage = 0; stage <= 3; stage++) {
        struct price p = price(&s, stage, ZERO_DEVICE);
        CHECK(fabs(p.step.seconds / (flops(&s, false) / 1e12) - 1) < 1e-3);
        CHECK(p.flops_share < 1 &&
              p.flops_share > 0.98); /* the scores that are computed again do not count */
        CHECK_DOUBLE(p.tokens_per_s, 4 * 2 * 128 / p.step.seconds, 1e-9);
        CHECK_INT(p.bound, RESOURCE_COMPUTE);
    }
    struct cell again = {.stage = 3, .recompute = 1};
    struct price p;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(price_cell(&s, &again, &p, &error), ZERO_OK);
    CHECK(fabs(p.step.seconds / (flops(&s, true) / 1e12) - 1) < 1e-3);
    CHECK(p.activation_bytes < price(&s, 3, ZERO_DEVICE).activation_bytes);
}

/* Llama 3 8B: two norms, two residual sums, the rotation, the gate. */
static void passes_are_counted_by_hand(void) {
    const struct shapes *llama = shapes_find("llama-3-8b");
    struct elementwise fused = elementwise_of(llama, 1, KERNELS_FUSED),
                       eager = elementwise_of(llama, 1, KERNELS_EAGER);
    CHECK_DOUBLE(fused.forward, 2 * 4 * 4096 + 2 * 6 * 4096 + 4 * (4096 + 1024) + 6 * 14336, 1e-12);
    CHECK_DOUBLE(eager.forward, 2 * 36 * 4096 + 2 * 6 * 4096 + 20 * (4096 + 1024) + 10 * 14336, 1e-12);
    CHECK_DOUBLE(elementwise_of(llama, 33, KERNELS_FUSED).forward, 4 * 4096 + 4 * 128256, 1e-12);
    CHECK_DOUBLE(elementwise_of(&model, 1, KERNELS_FUSED).backward,
                 2 * 8 * 256 + 6 * 1024 + 2 * (5 * 256 + 1024), 1e-12);
    CHECK_DOUBLE(elementwise_of(llama, 1, KERNELS_OWN).backward,
                 2 * 10 * 4096 + 3 * 4 * 4096 + 4 * (4096 + 1024) + 10 * 14336, 1e-12);
    CHECK_DOUBLE(elementwise_of(llama, 1, KERNELS_OWN).again[GPT_NORMS], 2 * 4 * 4096, 1e-12);
    CHECK_DOUBLE(elementwise_of(llama, 1, KERNELS_OWN).again[GPT_ACTIVATIONS], 6 * 14336, 1e-12);
    for (int kind = 0; kind < GPT_OUTPUT_KINDS; kind++)
        CHECK_DOUBLE(elementwise_of(llama, 1, KERNELS_FUSED).again[kind], 0, 0);
}

/* A step is shorter by what is not computed again, and takes the memory of outputs. */
static void kept_outputs_take_memory(void) {
    struct scenario s = ideal("{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true}}");
    double bytes = 0, rows = 2 * 128;
    s.machine.device.memory_per_s = 1e9;
    s.machine.device.is_host = false;
    struct price again = price(&s, 0, ZERO_DEVICE);
    s.outputs = GPT_OUTPUTS_KEPT;
    struct price kept = price(&s, 0, ZERO_DEVICE);
    for (uint32_t u = 0; u < shapes_units(&s.shapes); u++)
        for (int kind = 0; kind < GPT_ATTENTION; kind++)
            bytes += elementwise_of(&s.shapes, u, KERNELS_OWN).again[kind] * rows;
    CHECK(bytes > 0);
    CHECK_DOUBLE(again.step.busy_s[RESOURCE_COMPUTE] - kept.step.busy_s[RESOURCE_COMPUTE], bytes / 1e9, 1e-6);
    CHECK_DOUBLE((double)(kept.activation_bytes - again.activation_bytes),
                 2 * rows *
                     ((double)s.shapes.layers * (2 * 256 + 1024) - 1024), /* in the place of the scratch */
                 1e-12);
}

/* As far as there is room: to the byte of memory.device, and of what the device has for a rank. */
static void outputs_that_fit(void) {
    struct shapes llama = {"test", "", GPT_LLAMA, 4, 256, 4, 4, 128, 1000, 704, true, 0, 0, 0, 0};
    const struct shapes *const shapes[] = {&model, &llama};
    const double rows = 2 * 128, norms = 2 * rows * 2 * 256, activations = 2 * rows * 704;
    for (int i = 0; i < 2; i++)
        for (int short_by = 0; short_by < 2; short_by++)
            for (int budget = 0; budget < 2; budget++) {
                char text[256];
                bool gelu = shapes[i]->architecture == GPT_GPT2; /* in 16 bits, its activation is not kept */
                double parts = gelu ? 2 * norms : 4 * activations + 2 * norms;
                struct scenario s =
                    ideal("{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true}}");
                s.shapes = *shapes[i];
                s.machine.device.memory_per_s = 1e9;
                struct price again = price(&s, 0, ZERO_DEVICE);
                double bytes = (double)again.tier_bytes[ZERO_DEVICE] + parts - short_by;
                snprintf(text, sizeof text,
                         "{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true}, \"memory\": "
                         "{\"device\": %.0f}}",
                         bytes);
                if (budget) s.config = text;
                if (!budget) s.machine.device.memory_bytes = (bytes + 0.5) / 0.95;
                s.outputs = GPT_OUTPUTS_FITTING;
                struct price fitting = price(&s, 0, ZERO_DEVICE);
                CHECK_INT(fitting.kept[GPT_NORMS], 2 - short_by);
                CHECK_INT(fitting.kept[GPT_ACTIVATIONS], gelu ? 0 : 4);
                CHECK_DOUBLE((double)fitting.spare_bytes, parts - short_by * norms, 0);
                CHECK_INT(fitting.tier_bytes[ZERO_DEVICE],
                          again.tier_bytes[ZERO_DEVICE] + fitting.spare_bytes);
                CHECK_INT(fitting.activation_bytes, again.activation_bytes + fitting.spare_bytes);
                CHECK(fitting.fits);
                double moved = (2 - short_by) * 2 * norms + (gelu ? 0 : 4 * 3 * activations);
                CHECK_DOUBLE(again.step.busy_s[RESOURCE_COMPUTE] - fitting.step.busy_s[RESOURCE_COMPUTE],
                             moved / 1e9, 1e-6);
            }
}

/* As in a run, state that fills memory.device takes its room first: outputs have what is left by all of it. */
static void the_fill_comes_first(void) {
    static const char bf16[] = "{\"train_micro_batch_size_per_gpu\": 16, \"bf16\": {\"enabled\": true}";
    const double norms = 2 * (16 * 128) * 2 * 256;
    char text[200];
    struct scenario s = ideal(text);
    s.machine.device.is_host = false;
    snprintf(text, sizeof text, "%s}", bf16);
    struct price again = price(&s, 2, ZERO_CPU);
    s.outputs = GPT_OUTPUTS_FITTING;
    for (uint32_t more = 1; more < 50; more += 48) {
        double bytes = (double)again.tier_bytes[ZERO_DEVICE] + more * norms;
        snprintf(text, sizeof text, "%s, \"memory\": {\"device\": %.0f}}", bf16, bytes);
        struct price p = price(&s, 2, ZERO_CPU);
        CHECK_INT(p.kept[GPT_NORMS], more == 1 ? 0 : 4);
        CHECK(p.tier_bytes[ZERO_DEVICE] <= bytes);
        CHECK(p.tier_bytes[ZERO_CPU] < again.tier_bytes[ZERO_CPU]);
    }
}

/* With segments of one block all blocks share one place for outputs of norms, which has its room before the fill. */
static void one_place_comes_before_the_fill(void) {
    static const char bf16[] = "{\"train_micro_batch_size_per_gpu\": 16, \"bf16\": {\"enabled\": true}";
    const struct cell cell = {.stage = 2, .optimizer = ZERO_CPU, .recompute = 1};
    const double norms = 2 * (16 * 128) * 2 * 256;
    char text[200];
    struct scenario s = ideal(text);
    struct price again, p;
    struct zero_error error;
    error_clear(&error);
    s.machine.device.is_host = false;
    snprintf(text, sizeof text, "%s}", bf16);
    CHECK_INT(price_cell(&s, &cell, &again, &error), ZERO_OK);
    s.outputs = GPT_OUTPUTS_FITTING;
    double bytes = (double)again.tier_bytes[ZERO_DEVICE] + 1.5 * norms;
    snprintf(text, sizeof text, "%s, \"memory\": {\"device\": %.0f}}", bf16, bytes);
    CHECK_INT(price_cell(&s, &cell, &p, &error), ZERO_OK);
    CHECK_INT(p.kept[GPT_NORMS], 4);
    CHECK_DOUBLE((double)p.spare_bytes, norms, 0);
    CHECK(p.tier_bytes[ZERO_DEVICE] <= bytes);
    CHECK(p.tier_bytes[ZERO_CPU] < again.tier_bytes[ZERO_CPU]); /* the other half */
}

/* Of four blocks three run again, but for their last product; where they keep both their parts, nothing does. */
static void kept_parts_save_their_products(void) {
    struct scenario s = ideal("{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true}}");
    const double rows = 2 * 128, norms = 2 * rows * 2 * 256;
    struct price p[2];
    struct zero_error error;
    double saved = 0;
    s.machine.device.is_host = false;
    s.machine.device.flops[DTYPE_BF16] = 1e12;
    for (int i = 0; i < 2; i++) {
        error_clear(&error);
        s.outputs = i ? GPT_OUTPUTS_FITTING : GPT_OUTPUTS_AGAIN;
        CHECK_INT(price_cell(&s, &(struct cell){.recompute = 1}, &p[i], &error), ZERO_OK);
    }
    for (uint32_t u = 1; u < 4; u++)
        saved += (shapes_forward_flops(&s.shapes, u) - shapes_output_flops(&s.shapes)) * rows / 1e12;
    CHECK_DOUBLE(p[1].kept_s, saved, 1e-6 * saved);
    CHECK_DOUBLE(p[0].step.busy_s[RESOURCE_COMPUTE] - p[1].step.busy_s[RESOURCE_COMPUTE], saved,
                 1e-6 * saved);
    CHECK_INT(p[1].kept[GPT_ATTENTION], 3);
    CHECK_INT(p[1].kept[GPT_MLP], 3);
    /* the stream, qkv, attention's output, the MLP's input; the scores' sums and two norms' statistics in fp32 */
    double parts = 2 * rows * (256 + 768 + 256 + 1024) + 4 * rows * (4 + 2 * 2);
    CHECK_DOUBLE((double)p[1].spare_bytes, norms + 3 * parts, 0);
    CHECK_INT(p[1].tier_bytes[ZERO_DEVICE], p[0].tier_bytes[ZERO_DEVICE] + p[1].spare_bytes);
}

static struct price in_segments(struct scenario *s, uint32_t segment) {
    struct price p = {0};
    struct zero_error error;
    error_clear(&error);
    s->machine.device.is_host = false;
    CHECK_INT(price_cell(s, &(struct cell){.recompute = segment}, &p, &error), ZERO_OK);
    return p;
}

/* A repeated block moves two norms, one residual sum, rotations, and its weights but for the last product's; where it keeps both parts,
 * nothing. Its backward computes the activation again in any case, unless all activations are kept: then the repetition does. */
static void kept_parts_save_their_bytes(void) {
    const struct shapes llama = {"test", "", GPT_LLAMA, 4, 256, 4, 2, 128, 1000, 704, true, 0, 0, 0, 0};
    const double width = 256, rows = 2 * 128, norms = 2 * 4 * width * rows;
    for (int i = 0; i < 2; i++) {
        struct scenario s = ideal("{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true}}");
        double activation = i ? 6 * 704 * rows : 4 * 1024 * rows, rotations = i ? 4 * (256 + 128) * rows : 0,
               columns = i ? 3 * 256 + 3 * 704 : 12 * 256, last = i ? 704 : 1024,
               vectors = i ? 2 * width : 13 * width,
               weights = 2 * (columns * width + vectors) * (columns - last) / columns,
               repeated = 3 * (norms + 2 * width * rows + rotations + weights);
        s.shapes = i ? llama : model;
        s.machine.device.memory_per_s = 1e9;
        double whole = in_segments(&s, 0).step.busy_s[RESOURCE_COMPUTE];
        CHECK_DOUBLE(in_segments(&s, 1).step.busy_s[RESOURCE_COMPUTE], whole + repeated / 1e9, 1e-6);
        s.outputs = GPT_OUTPUTS_KEPT;
        CHECK_DOUBLE(in_segments(&s, 1).step.busy_s[RESOURCE_COMPUTE],
                     whole + (repeated - 4 * norms - activation) / 1e9, 1e-6);
        s.outputs = GPT_OUTPUTS_FITTING;
        struct price kept = in_segments(&s, 1);
        CHECK_DOUBLE(kept.step.busy_s[RESOURCE_COMPUTE], whole - norms / 1e9, 1e-6); /* of the last block */
        CHECK_DOUBLE(kept.kept_s, repeated / 1e9, 1e-6);
    }
}

/* Blocks below the lowest that trains do not run again. */
static void frozen_blocks_keep_no_parts(void) {
    struct scenario s =
        ideal("{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true}, "
              "\"param_groups\": [{\"match\": [\"w*\", \"h.0.*\", \"h.1.*\"], \"frozen\": true}]}");
    s.outputs = GPT_OUTPUTS_FITTING;
    struct price p = in_segments(&s, 1);
    CHECK_INT(p.kept[GPT_ATTENTION], 1);
    CHECK_INT(p.kept[GPT_MLP], 1);
}

/* A step longer by what another style adds to its bytes, and by what is computed again. */
static void passes_take_their_bytes(void) {
    static const struct work_style fused = {KERNELS_FUSED, {0, 0, 0}}, eager = {KERNELS_EAGER, {0, 0, 0}},
                                   again = {KERNELS_FUSED, {1, 1, 1}};
    static const char bf16[] = "{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true}}";
    struct scenario s = ideal(bf16);
    s.machine.device.memory_per_s = 1e9;
    double bytes = 0, products = 0;
    for (uint32_t u = 0; u < shapes_units(&s.shapes); u++) {
        struct elementwise f = elementwise_of(&s.shapes, u, KERNELS_FUSED),
                           e = elementwise_of(&s.shapes, u, KERNELS_EAGER);
        bytes += (e.forward + e.backward - f.forward - f.backward) * 2 * 128;
    }
    s.style = &fused;
    double plain = price(&s, 0, ZERO_DEVICE).step.busy_s[RESOURCE_COMPUTE];
    s.style = &eager;
    CHECK_DOUBLE(price(&s, 0, ZERO_DEVICE).step.busy_s[RESOURCE_COMPUTE] - plain, bytes / 1e9, 1e-6);
    s = ideal(bf16);
    s.machine.device.flops[DTYPE_BF16] = 1e12;
    s.machine.device.attention_flops = 1e12;
    s.style = &fused;
    plain = price(&s, 0, ZERO_DEVICE).step.busy_s[RESOURCE_COMPUTE];
    for (uint32_t block = 1; block <= s.shapes.layers; block++)
        products += shapes_forward_flops(&s.shapes, block) * 2 * 128;
    s.style = &again;
    CHECK_DOUBLE(price(&s, 0, ZERO_DEVICE).step.busy_s[RESOURCE_COMPUTE] - plain, products / 1e12, 1e-3);
}

/* Attention in bf16: heads of 80 take the time of 96; heads of 20 that of fp32. */
static void heads_take_their_tiles(void) {
    static const char bf16[] = "{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true}}";
    static const struct {
        uint64_t width;
        double rate;
    } heads[] = {{64, 1e12}, {80, 1e12 / 1.2}, {20, 1e11}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        struct scenario s = ideal(bf16);
        double attention = 0;
        s.shapes.head_width = heads[i].width;
        s.machine.device.flops[DTYPE_F32] = 1e11, s.machine.device.attention_flops = 1e12;
        for (uint32_t u = 0; u < shapes_units(&s.shapes); u++)
            attention += shapes_forward_flops(&s.shapes, u) - shapes_weight_flops(&s.shapes, u);
        double seconds = 3.5 * 2 * 128 * attention / heads[i].rate;
        CHECK_DOUBLE(price(&s, 0, ZERO_DEVICE).step.busy_s[RESOURCE_COMPUTE], seconds, 1e-3 * seconds);
    }
}

/* A call per region, each its latency: none overlaps another on one link, and all hide under no computing. */
static void latencies_add_up(void) {
    struct scenario s = ideal(fp32);
    s.machine.inside.latency_s = 1;
    struct price p = price(&s, 3, ZERO_DEVICE);
    double calls = (double)(p.step.gather_calls + p.step.reduce_calls) + 1; /* and the agreement */
    CHECK_DOUBLE(p.step.seconds, 2 * calls, 1e-3);                          /* log2 of four ranks */
    CHECK_INT(p.bound, RESOURCE_LINK);
}

static void updates_are_not_hidden_in_memory(void) {
    struct scenario s = ideal(fp32);
    s.machine.host.update_per_s = 1e9;
    struct price p = price(&s, 2, ZERO_CPU);
    /* 28 bytes of an element: two states of 4 and its parameter, read and written, and its gradient. */
    CHECK(fabs(p.step.seconds / ((double)p.state_bytes / 8 * 28 / 1e9) - 1) < 1e-3);
    CHECK_INT(p.bound, RESOURCE_UPDATE);
    CHECK(price(&s, 2, ZERO_DEVICE).step.seconds < 1e-3);
}

/* Out go reduced gradients and then the parameters that the update changes, in come these. */
static void gradients_leave_by_the_bus(void) {
    struct scenario s = ideal(fp32);
    s.machine.host.device_per_s = 1e9;
    struct price p = price(&s, 2, ZERO_CPU), device = price(&s, 2, ZERO_DEVICE);
    double shard = (double)p.state_bytes / 2;
    CHECK(fabs(p.step.busy_s[RESOURCE_BUS] / (2 * shard / 1e9) - 1) < 1e-3);
    CHECK(p.step.seconds > 0.99 * p.step.busy_s[RESOURCE_BUS]);
    CHECK_INT(p.bound, RESOURCE_BUS);
    CHECK_INT(device.step.busy_s[RESOURCE_BUS], 0);
    s.machine.device.flops[DTYPE_F32] = flops(&s, false) / p.step.seconds; /* they leave while it computes */
    CHECK(price(&s, 2, ZERO_CPU).step.seconds < 1.6 * p.step.seconds);
    s.config = "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 3}";
    struct price adds = price(&s, 2, ZERO_CPU); /* they come again, twice, to be added to */
    CHECK(fabs(adds.step.busy_s[RESOURCE_BUS] / (4 * shard / 1e9) - 1) < 1e-3);
}

/* Muon's directions are on the device: they come from the host that updates, and go back. Their products are fp32 in each run. For Lamb's
 * norms the host reads weights once more, which are on the device if they are the masters. */
static void directions_cross_the_bus(void) {
    enum { BLOCKS = 4, RANKS = 4, WIDTH = 256 };
    static const char form[] =
        "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"%s\"}%s%s}",
                      groups[] = ", \"param_groups\": [{\"match\": [\"*.bias\", \"*ln_*\", \"w?e.*\"], "
                                 "\"optimizer\": \"AdamW\"}]";
    char config[400];
    struct scenario s = ideal(fp32);
    s.machine.host.device_per_s = 1e9;
    double before = price(&s, 2, ZERO_CPU).step.busy_s[RESOURCE_BUS],
           shard = BLOCKS * 12. * WIDTH * WIDTH / RANKS;
    s.config = config;
    snprintf(config, sizeof config, form, "Lamb", groups, "");
    CHECK(fabs((price(&s, 2, ZERO_CPU).step.busy_s[RESOURCE_BUS] - before) / (4 * shard / 1e9) - 1) < 1e-2);
    CHECK_INT(price(&s, 2, ZERO_DEVICE).step.busy_s[RESOURCE_BUS], 0);
    snprintf(config, sizeof config, form, "Muon", groups, "");
    CHECK(fabs((price(&s, 2, ZERO_CPU).step.busy_s[RESOURCE_BUS] - before) / (4 * shard / 1e9) - 1) < 1e-2);
    CHECK_INT(price(&s, 2, ZERO_DEVICE).step.busy_s[RESOURCE_BUS], 0);
    snprintf(config, sizeof config, form, "Muon", groups, ", \"bf16\": {\"enabled\": true}");
    s.machine.device.flops[DTYPE_F32] = 1e12;
    /* in cubes of the width: query, key and value; their product; up; down */
    double flops = 5 * BLOCKS * 2. * WIDTH * WIDTH * WIDTH * (7 + 3 + 9 + 9) / RANKS;
    CHECK(fabs(price(&s, 2, ZERO_DEVICE).step.busy_s[RESOURCE_UPDATE] / (flops / 1e12) - 1) < 0.1);
}

/* Offloading frees the shards of states and of gradients in a GPU's memory; a gradient that is reduced in place takes
 * no other memory. Of 12 bytes of state the host has 10: the parameters are halves of the masters. */
static void gradients_rest_with_the_host(void) {
    struct scenario s = ideal("{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true}}");
    for (uint32_t stage = 1; stage <= 3; stage++) {
        struct price device = price(&s, stage, ZERO_DEVICE), cpu = price(&s, stage, ZERO_CPU);
        uint64_t freed = device.tier_bytes[ZERO_DEVICE] - cpu.tier_bytes[ZERO_DEVICE];
        uint64_t shards = device.state_bytes + device.grad_bytes;
        CHECK_INT(device.grad_bytes, cpu.grad_bytes);
        CHECK(fabs((double)freed / (double)shards - 1) < 1e-2); /* rows begin on pages */
        CHECK(cpu.tier_bytes[ZERO_CPU] - device.tier_bytes[ZERO_CPU] > cpu.state_bytes + cpu.grad_bytes);
    }
}

/* Prefetching hides gathers under computing: with one gather ahead the longer of the two is left, and without both. */
static void gathers_hide_where_they_are_early(void) {
    struct scenario s = ideal(fp32);
    s.machine.device.flops[DTYPE_F32] = 1e12;
    s.machine.inside.per_s = 1e9;
    struct price ahead = price(&s, 3, ZERO_DEVICE);
    s.config = "{\"train_micro_batch_size_per_gpu\": 2, \"comm\": {\"prefetch_depth\": 0}}";
    struct price none = price(&s, 3, ZERO_DEVICE);
    CHECK_DOUBLE(none.step.busy_s[RESOURCE_LINK], ahead.step.busy_s[RESOURCE_LINK], 1e-9);
    double both = none.step.busy_s[RESOURCE_COMPUTE] + none.step.busy_s[RESOURCE_LINK];
    CHECK(none.step.seconds > 0.95 * both && none.step.seconds < 1.01 * both);
    CHECK(ahead.step.seconds < 0.95 * none.step.seconds);
    CHECK(ahead.step.seconds > fmax(ahead.step.busy_s[RESOURCE_COMPUTE], ahead.step.busy_s[RESOURCE_LINK]));
    CHECK(none.gathered_bytes < ahead.gathered_bytes);
}

/* A drive's work goes on under the next forward; a node's ranks share it. */
static void a_drive_is_shared_and_hidden(void) {
    struct scenario s = ideal(fp32);
    s.machine.drive.read_per_s = s.machine.drive.write_per_s = 2e9, s.machine.drive.mixed_per_s = 2e9;
    struct price p = price(&s, 2, ZERO_NVME);
    double bytes = 4 * (double)(p.step.drive_read_bytes + p.step.drive_write_bytes);
    CHECK(p.step.drive_write_bytes > 0);
    CHECK(fabs(p.step.seconds / (bytes / 2e9) - 1) < 0.1);
    CHECK_INT(p.bound, RESOURCE_DRIVE);
    s.machine.device.flops[DTYPE_F32] = flops(&s, false) / p.step.seconds; /* as long as the drive takes */
    struct price hidden = price(&s, 2, ZERO_NVME);
    CHECK(hidden.step.seconds < 1.8 * p.step.seconds);
    s.machine.drive.endurance_tbw = 1;
    double days = price(&s, 2, ZERO_NVME).drive_days;
    CHECK_DOUBLE(days, 1e12 / (4 * (double)p.step.drive_write_bytes) * hidden.step.seconds / 86400, 1e-6);
}

/* On shared cores nothing is hidden: all work takes time from the other work. */
static void shared_cores_share(void) {
    struct scenario s = ideal(fp32);
    s.machine.device.is_host = s.machine.device.shares_cores = true;
    s.machine.inside.per_s = s.machine.inside.reduce_per_s = 1e9;
    for (double rate = 1e11; rate <= 1e12; rate *= 10) { /* computing is longer, then the link is */
        s.machine.device.flops[DTYPE_F32] = rate;
        struct price p = price(&s, 3, ZERO_DEVICE);
        double both = p.step.busy_s[RESOURCE_COMPUTE] + p.step.busy_s[RESOURCE_LINK];
        if (!CHECK(p.step.seconds > 0.95 * both && p.step.seconds < 1.05 * both))
            fprintf(stderr, "%g s of %g and %g\n", p.step.seconds, p.step.busy_s[RESOURCE_COMPUTE],
                    p.step.busy_s[RESOURCE_LINK]);
    }
}

/* Chunks become ready while the host computes. */
static void updates_take_the_core_from_the_next_forward(void) {
    struct scenario s = ideal(fp32);
    s.machine.device.is_host = s.machine.device.shares_cores = true;
    s.machine.device.flops[DTYPE_F32] = 1e11;
    s.machine.device.memory_per_s = 2e9;
    s.machine.drive.read_per_s = s.machine.drive.write_per_s = s.machine.drive.mixed_per_s = 5e9;
    struct price p = price(&s, 2, ZERO_NVME);
    double both = p.step.busy_s[RESOURCE_COMPUTE] + p.step.busy_s[RESOURCE_UPDATE];
    if (!CHECK(p.step.seconds > 0.99 * both && p.step.seconds < 1.01 * both))
        fprintf(stderr, "%g s of %g and %g\n", p.step.seconds, p.step.busy_s[RESOURCE_COMPUTE],
                p.step.busy_s[RESOURCE_UPDATE]);
}

static void processes_and_gpus_take_staging(void) {
    struct scenario s = ideal(fp32);
    struct price gpus = price(&s, 2, ZERO_DEVICE);
    s.machine.device.is_host = true;
    struct price threads = price(&s, 2, ZERO_DEVICE);
    s.processes = true;
    struct price processes = price(&s, 2, ZERO_DEVICE);
    /* Two of them, of the largest region, a block's matrices above the persistence threshold of 1e5: what all ranks
     * send to one is as much as a rank's own. */
    uint64_t largest = 3 * 256 * 256 + 2 * 4 * 256 * 256;
    CHECK_INT(processes.staging_bytes - threads.staging_bytes, 2 * 4 * largest);
    CHECK(gpus.staging_bytes >= processes.staging_bytes);
}

/* Two nodes: what leaves a node is by hand, in the model's shares of the ranks. A gather is a ring of all shares but one over as many
 * ways out as a node has ranks. A sum by levels sends one share in fp32, straight those of the other node; NCCL's own is a ring. Codes go
 * by levels where the codes of a node's ranks are twice the bytes of their sum in fp32. */
static void what_leaves_a_node_takes_its_ways_out(void) {
#define CODES(bits)                                                                                          \
    "\"quantized_gradient_bits\": " #bits "}, \"zero_optimization\": {\"zero_quantized_gradients\": true"
    static const struct {
        const char *comm;
        uint32_t of_node;
        double shares;
    } rows[] = {{"", 2, 3 / 2. + 1},
                {"\"node_ranks\": 4", 2, 3 / 2. + 2},
                {"\"reduction\": \"native\"", 2, 3 / 2. + 3 / 2.},
                {CODES(8), 8, 15 / 8. + 1},
                {CODES(8), 4, 7 / 4. + 4 * 65 / 256.},
                {CODES(4), 4, 7 / 4. + 4 * 33 / 256.}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char config[256];
        snprintf(config, sizeof config, "{\"train_micro_batch_size_per_gpu\": 2, \"comm\": {%s}}",
                 rows[i].comm);
        struct scenario s = ideal(config);
        s.nodes = 2, s.machine.node_ranks = rows[i].of_node, s.ranks = 2 * rows[i].of_node;
        s.machine.between = (struct hardware_link){.name = "net", .per_s = 1e9, .reduce_per_s = 1e9};
        struct price p = price(&s, 2, ZERO_DEVICE);
        CHECK_DOUBLE(p.step.busy_s[RESOURCE_LINK] / ((double)p.parameters / s.ranks * 4 / 1e9),
                     rows[i].shares, 0.005);
    }
}

static void what_does_not_fit_says_by_how_much(void) {
    struct scenario s = ideal(fp32);
    struct price p = price(&s, 1, ZERO_CPU);
    s.machine.device.memory_bytes = ((double)p.tier_bytes[ZERO_DEVICE] - 1000) / 0.95;
    s.machine.host.memory_bytes = ((double)p.tier_bytes[ZERO_CPU] - 77) * 4;
    struct price less = price(&s, 1, ZERO_CPU);
    CHECK(p.fits && !less.fits);
    CHECK(less.short_bytes[SHORT_DEVICE] >= 1000 && less.short_bytes[SHORT_DEVICE] <= 1001);
    CHECK_INT(less.short_bytes[SHORT_CPU], 77);
    CHECK_INT(less.short_bytes[SHORT_NVME], 0);
    s = ideal(
        "{\"train_micro_batch_size_per_gpu\": 2, \"memory\": {\"cpu\": 100}}"); /* budgets are as hard */
    less = price(&s, 1, ZERO_CPU);
    CHECK_INT(less.short_bytes[SHORT_CPU], less.tier_bytes[ZERO_CPU] - 100);
}

static void refusals_say_why(void) {
    struct price p;
    struct zero_error error;
    error_clear(&error);
    struct cell cell = {.stage = 1};
    struct scenario s = ideal("{\"train_micro_batch_size_per_gpu\": 1, \"fp16\": {\"enabled\": true}}");
    CHECK_INT(price_cell(&s, &cell, &p, &error), ZERO_E_UNSUPPORTED);
    CHECK_STRING(error.message, "test does not multiply fp16: choose another type (bf16, fp16) or device");
    error_clear(&error);
    s = ideal("{\"train_batch_size\": 5}");
    CHECK_INT(price_cell(&s, &cell, &p, &error), ZERO_E_CONFIG);
    CHECK_CONTAINS(error.message, "train_batch_size: 5 is not a multiple of");
}

/* ---- the table ---- */

static struct table table(const struct scenario *s) {
    static struct table t;
    struct zero_error error;
    error_clear(&error);
    table_free(&t);
    CHECK_INT(table_make(s, &t, &error), ZERO_OK);
    return t;
}

static void the_plainest_of_equals_is_taken(void) {
    struct scenario s = ideal(fp32);
    s.machine.device.flops[DTYPE_F32] = 1e12;
    struct table t = table(&s);
    CHECK_INT(t.rows, ROWS);
    CHECK_INT(t.best, 0);
    CHECK_CONTAINS(t.advice, "Take stage 0 without offload: of 30 rows that fit none is faster");
    CHECK_CONTAINS(t.advice, "compute is busy longest (100 %)");
    s.machine.drive.name[0] = 0;
    t = table(&s);
    CHECK_INT(t.rows, 2 * (4 * 2 + 1));
    for (uint32_t i = 0; i < t.rows; i++) CHECK(t.row[i].cell.optimizer != ZERO_NVME);
    int shown = 0;
    for (uint32_t i = 0; i < t.rows; i++) shown += table_shown(&t, i) && !t.row[i].cell.recompute;
    CHECK_INT(shown, t.rows / 2);
}

/* State that the host would update at once takes the room of blocks' parts; with room for both nothing is said. */
static void the_advice_names_the_ratio(void) {
    static const char bf16[] = "{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true}";
    static const struct space one = {.fixed = {.stage = 2, .optimizer = ZERO_CPU, .recompute = 1},
                                     .micros = 1};
    const double rows = 2 * 128,
                 parts = 2 * rows * 2 * 256 + 3 * rows * (2 * (256 + 768 + 256 + 1024) + 4 * 8);
    char text[200];
    struct scenario s = ideal(text);
    s.space = &one;
    s.machine.device.is_host = false, s.machine.device.flops[DTYPE_BF16] = 1e12;
    snprintf(text, sizeof text, "%s}", bf16);
    double bytes = (double)table(&s).row[0].tier_bytes[ZERO_DEVICE] + parts;
    s.outputs = GPT_OUTPUTS_FITTING;
    for (int both = 0; both < 2; both++) {
        snprintf(text, sizeof text, "%s, \"memory\": {\"device\": %.0f}}", bf16, bytes + 1e9 * both);
        struct table t = table(&s);
        CHECK_INT(t.rows, 1);
        CHECK_INT(t.row[0].kept[GPT_MLP], both ? 3 : 0);
        CHECK_INT(strstr(t.advice, "With offload_optimizer.ratio 1.0 blocks keep more") != NULL, !both);
    }
}

static void the_first_that_fits_is_taken(void) {
    struct scenario s = ideal(fp32);
    struct price least = price(&s, 3, ZERO_CPU);
    s.machine.device.memory_bytes = ((double)least.tier_bytes[ZERO_DEVICE] + 100) / 0.95;
    s.machine.drive.name[0] = 0;
    struct table t = table(&s);
    CHECK_CONTAINS(t.advice, "Take stage ");
    CHECK(t.row[t.best].fits && t.row[t.best].tier_bytes[ZERO_DEVICE] <= least.tier_bytes[ZERO_DEVICE]);
    s.machine.device.memory_bytes = 1e6;
    t = table(&s);
    CHECK(!t.row[t.best].fits);
    CHECK_CONTAINS(t.advice, "Nothing fits: nearest is stage 3");
    CHECK_CONTAINS(t.advice, "on the device; take ");
    for (uint32_t i = 0; i < t.rows; i++)
        CHECK(t.row[i].short_bytes[SHORT_DEVICE] >= t.row[t.best].short_bytes[SHORT_DEVICE]);
}

/* The least that there is with gathers ahead of use is too much; without them it is not. */
static void gathering_later_is_advised_where_it_fits(void) {
    static const char later[] = "{\"train_micro_batch_size_per_gpu\": 2, \"comm\": {\"prefetch_depth\": 0}}";
    struct scenario s = ideal(later);
    s.machine.device.memory_bytes = 1;
    struct table t = table(&s);
    uint64_t least = t.row[t.best].tier_bytes[ZERO_DEVICE];
    CHECK_CONTAINS(t.advice, "Nothing fits: nearest is stage 3");
    s.config = fp32;
    s.machine.device.memory_bytes = ((double)least + 100) / 0.95;
    t = table(&s);
    CHECK(!t.row[t.best].fits && t.row[t.best].tier_bytes[ZERO_DEVICE] > least);
    CHECK_CONTAINS(t.advice, "Nothing fits as it is; with \"comm\": {\"prefetch_depth\": 0}");
    CHECK_CONTAINS(t.advice, "stage 3 with state and parameters in host memory and recomputation does: ");
}

static void json_is_json(void) {
    struct scenario s = ideal(fp32);
    snprintf(s.machine.device.name, sizeof s.machine.device.name, "a \"b\" \\");
    struct table t = table(&s);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    print_json(&s, &t, out);
    fclose(out);
    json_object *root = json_tokener_parse(text), *rows, *value;
    if (CHECK(root && json_object_object_get_ex(root, "rows", &rows))) {
        CHECK_INT(json_object_array_length(rows), ROWS);
        json_object_object_get_ex(json_object_array_get_idx(rows, 7), "wire_bytes", &value);
        CHECK_INT(json_object_get_int64(value), t.row[7].step.wire_bytes);
        json_object_object_get_ex(root, "device", &value);
        CHECK_STRING(json_object_get_string(value), "a \"b\" \\");
    }
    json_object_put(root);
    free(text);
}

/* Four blocks' inputs of four micro-batches go to the drive and come back, 1 MB a second, and all else takes no time. Other memory is
 * as before, whatever the number of blocks. */
static void checkpoints_on_the_drive(void) {
    static const char config[] =
        "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4, \"zero_optimization\": "
        "{\"micro_order\": "
        "\"vertical\"}, \"activation_checkpointing\": {\"nvme_checkpointing\": true}}";
    struct scenario s = ideal(config);
    struct price p[2] = {{.parameters = 0}};
    struct zero_error error;
    const struct cell cell = {.stage = 3, .recompute = 1};
    s.machine.device.is_host = true;
    s.machine.drive.read_per_s = s.machine.drive.write_per_s = s.machine.drive.mixed_per_s = 1e6;
    s.checkpoints = ZERO_NVME, s.shapes.tied = false, s.ranks = 1;
    for (int deep = 0; deep < 2; deep++, s.shapes.layers *= 10) {
        uint64_t bytes = s.shapes.layers * 4 * 2 * 128 * 256 * 4;
        error_clear(&error);
        if (!CHECK_INT(price_cell(&s, &cell, &p[deep], &error), ZERO_OK))
            fprintf(stderr, "%s\n", error.message);
        CHECK_INT(p[deep].tier_bytes[ZERO_NVME], bytes);
        CHECK_INT(p[deep].step.drive_read_bytes, bytes);
        CHECK_INT(p[deep].step.drive_write_bytes, bytes);
        CHECK_INT(p[deep].bound, RESOURCE_DRIVE);
        CHECK_DOUBLE(p[deep].step.busy_s[RESOURCE_DRIVE], 2e-6 * (double)bytes, 1e-6);
        CHECK_DOUBLE(p[deep].step.seconds, 2e-6 * (double)bytes, 1e-3);
    }
    CHECK(p[1].activation_bytes - p[0].activation_bytes < 36 * 4 * 256); /* lists of addresses */
}

/* A GPU keeps those of the last six segments. */
static void checkpoints_of_a_gpu(void) {
    struct scenario s = ideal("{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4, "
                              "\"activation_checkpointing\": {\"nvme_checkpointing\": true}}");
    struct price p[2] = {{.parameters = 0}};
    struct zero_error error;
    const struct cell cell = {.stage = 3, .recompute = 1};
    s.checkpoints = ZERO_NVME, s.ranks = 1;
    for (int deep = 0; deep < 2; deep++) {
        s.shapes.layers = deep ? 40 : 6;
        uint64_t bytes = (s.shapes.layers - 6) * 2 * 128 * 256 * 4;
        error_clear(&error);
        if (!CHECK_INT(price_cell(&s, &cell, &p[deep], &error), ZERO_OK))
            fprintf(stderr, "%s\n", error.message);
        CHECK_INT(p[deep].tier_bytes[ZERO_NVME], bytes);
        CHECK_INT(p[deep].step.drive_read_bytes, 4 * bytes);
        CHECK_INT(p[deep].step.drive_write_bytes, 4 * bytes);
    }
    CHECK_INT(p[1].activation_bytes, p[0].activation_bytes);
}

/* Inputs of blocks in host memory cross the bus: with one micro-batch those of all blocks but the last two, there and back. Where a use has
 * several, all streams do: to and from each block, and twice to its backward, with the gradient; and those of embedding and head. */
static void checkpoints_cross_the_bus(void) {
    enum { LAYERS = 40, STREAM = 2 * 128 * 256 * 4 };
    static const char format[] =
        "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4, \"zero_optimization\": "
        "{\"micro_order\": \"%s\"}, \"activation_checkpointing\": {\"cpu_checkpointing\": true}}";
    static const struct {
        const char *order;
        uint32_t streams;
    } rows[] = {{"horizontal", LAYERS - 2}, {"vertical", 3 * LAYERS + 2}};
    struct scenario s = ideal(NULL);
    const struct cell cell = {.stage = 3, .recompute = 1};
    s.machine.host.device_per_s = 1e9;
    s.checkpoints = ZERO_CPU, s.shapes.tied = false, s.shapes.layers = LAYERS, s.ranks = 1;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char config[300];
        struct price p = {.parameters = 0};
        struct zero_error error;
        error_clear(&error);
        snprintf(config, sizeof config, format, rows[i].order);
        s.config = config;
        if (!CHECK_INT(price_cell(&s, &cell, &p, &error), ZERO_OK)) fprintf(stderr, "%s\n", error.message);
        double seconds = 1e-9 * 4 * STREAM * rows[i].streams;
        CHECK_DOUBLE(p.step.busy_s[RESOURCE_BUS], seconds, 1e-6);
        CHECK_INT(p.bound, RESOURCE_BUS);
        CHECK(p.step.seconds > 0.99 * seconds && p.step.seconds < 2.1 * seconds);
    }
}

/* Parameters that the next forward fetches while the later ones are updated take their bytes of the host's memory from the update. */
static void copies_share_the_memory(void) {
    struct scenario s = ideal("{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true}}");
    const struct cell cell = {.stage = 3, .optimizer = ZERO_CPU, .params = ZERO_CPU};
    struct price p[2];
    s.shapes.layers = 40, s.ranks = 1;
    s.machine.host.update_per_s = 1e9, s.machine.host.device_per_s = 0.3e9;
    for (int shared = 0; shared < 2; shared++) {
        struct zero_error error;
        error_clear(&error);
        if (shared) s.machine.host.memory_per_s = 1e9;
        CHECK_INT(price_cell(&s, &cell, &p[shared], &error), ZERO_OK);
    }
    double fetched = 2e-9 * (double)p[0].parameters,
           longer = p[1].step.busy_s[RESOURCE_UPDATE] - p[0].step.busy_s[RESOURCE_UPDATE];
    /* 26 bytes of an element: its gradient, and read and written two states of 4, the half of a master and the parameter */
    CHECK_DOUBLE(p[0].step.busy_s[RESOURCE_UPDATE], 13 * fetched, 1e-3);
    if (!CHECK(longer > 0.9 * fetched && longer < 3 * fetched))
        fprintf(stderr, "longer by %g s, fetched in %g s\n", longer, fetched);
    CHECK(p[1].step.seconds - p[0].step.seconds > 0.9 * fetched);
}

int main(void) {
    compute_alone();
    passes_are_counted_by_hand();
    passes_take_their_bytes();
    kept_outputs_take_memory();
    outputs_that_fit();
    the_fill_comes_first();
    one_place_comes_before_the_fill();
    kept_parts_save_their_products();
    kept_parts_save_their_bytes();
    frozen_blocks_keep_no_parts();
    heads_take_their_tiles();
    latencies_add_up();
    updates_are_not_hidden_in_memory();
    gradients_leave_by_the_bus();
    directions_cross_the_bus();
    gradients_rest_with_the_host();
    gathers_hide_where_they_are_early();
    a_drive_is_shared_and_hidden();
    shared_cores_share();
    updates_take_the_core_from_the_next_forward();
    processes_and_gpus_take_staging();
    what_leaves_a_node_takes_its_ways_out();
    what_does_not_fit_says_by_how_much();
    refusals_say_why();
    the_plainest_of_equals_is_taken();
    the_advice_names_the_ratio();
    the_first_that_fits_is_taken();
    gathering_later_is_advised_where_it_fits();
    json_is_json();
    checkpoints_on_the_drive();
    checkpoints_of_a_gpu();
    checkpoints_cross_the_bus();
    copies_share_the_memory();
    return check_end();
}
