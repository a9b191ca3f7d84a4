/* The plan that one process makes for N ranks that do not exist, against the real use of N ranks: bytes of every kind
 * on every tier as zero_engine_commit reports them, and bytes on the wire and on the drive as zero_counters count them
 * over the second step: the first one reads no state that it wrote. Stage (an argument) x tiers x types x ranks x
 * accumulation, and each variant of the table on four ranks: meshes, codes on the wire, recomputation, frozen
 * parameters, scaling, a shadow. The model is a GPT that the command trains. If the processor does not multiply a type,
 * the model is declared and not trained. A second argument, fp32 or narrow, keeps the cells of these types. */
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/ranks.h"
#include "tests/seeds.h"
#include "tools/gpt/gpt.h"
#include "tools/plan/price.h"

enum { MICROS_MAX = 2 };

static const struct gpt_config model = {.layers = 3,
                                        .width = 48,
                                        .heads = 4,
                                        .context = 16,
                                        .vocab = 97,
                                        .inner = 192,
                                        .tied = true,
                                        .layer_norm_epsilon = 1e-5,
                                        .initializer_range = 0.02};

static const struct shapes shapes = {
    .name = "tiny", .layers = 3, .width = 48, .heads = 4, .context = 16, .vocab = 97, .tied = true};

/* At fp16's default scale some of the few steps would overflow, and skip. */
static const char *const types[] = {"", ", \"bf16\": {\"enabled\": true}",
                                    ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": 6}"};

#define NO_GRADIENTS ", \"offload_gradients\": {\"device\": \"none\"}"

#define VERTICAL ", \"micro_order\": \"vertical\""

#define LEAVING ", \"activation_checkpointing\": {\"nvme_checkpointing\": true}"

#define UPDATES ", \"update_in_backward\": true"
#define NO_CLIPPING ", \"gradient_clipping\": 0"

#define MUON                                                                                                 \
    ", \"optimizer\": {\"type\": \"Muon\"}, \"param_groups\": [{\"match\": [\"*.bias\", \"*ln_*\", "         \
    "\"w?e.*\"], "                                                                                           \
    "\"optimizer\": \"AdamW\"}]"

#define LAMB                                                                                                 \
    ", \"optimizer\": {\"type\": \"Lamb\"}, \"param_groups\": [{\"match\": [\"*.bias\"], \"optimizer\": "    \
    "\"AdamW\"}]"

#define AVERAGES ", \"ema\": {\"decay\": 0.9}"

/* Keys of zero_optimization, of comm, and others; each after a comma. */
static const struct variant {
    const char *name, *zero, *comm, *extra, *state; /* state: keys of offload_optimizer */
    uint32_t recompute, vocab_block;
    zero_tier checkpoints;
    bool stage3, drive; /* there alone */
    bool off_device;    /* not with all state on the device */
    bool sharded;       /* not at stage 0 */
    bool vertical;      /* with micro-steps, and a head of its own */
} variants[] = {
    {.name = "blocks of the vocabulary", .vocab_block = 40},
    {.name = "HSDP", .zero = ", \"mics_shard_size\": 2"},
    {.name = "hpZ", .zero = ", \"zero_hpz_partition_size\": 2", .stage3 = true},
    {.name = "kept", .comm = "\"reshard_after_forward\": false", .stage3 = true},
    {.name = "coded weights", .zero = ", \"zero_quantized_weights\": true", .stage3 = true},
    {.name = "weights in fp8, beside int4 and exact ones",
     .zero = ", \"zero_quantized_weights\": \"fp8_e4m3\"",
     .extra =
         ", \"param_groups\": [{\"match\": \"*mlp*\", \"zero_quantized_weights\": \"int4\"}, {\"match\": "
         "\"w?e.*\", \"zero_quantized_weights\": false}]",
     .stage3 = true},
    {.name = "4 bits of gradients", .zero = ", \"zero_quantized_gradients\": true"},
    {.name = "8 bits of gradients, HSDP",
     .zero = ", \"zero_quantized_gradients\": true, \"mics_shard_size\": 2",
     .comm = "\"quantized_gradient_bits\": 8"},
    {.name = "ZeRO++",
     .zero = ", \"zero_quantized_gradients\": true, \"zero_quantized_weights\": true, "
             "\"zero_hpz_partition_size\": 2",
     .stage3 = true},
    {.name = "every block again", .recompute = 1},
    {.name = "two blocks again, on the host", .recompute = 2, .checkpoints = ZERO_CPU},
    {.name = "two blocks again, far ahead",
     .recompute = 2,
     .comm = "\"prefetch_depth\": 3, \"backward_prefetch_depth\": 0",
     .stage3 = true},
    {.name = "bounded", .zero = ", \"stage3_max_live_parameters\": 60000", .stage3 = true},
    {.name = "frozen from below",
     .recompute = 1,
     .extra = ", \"param_groups\": [{\"match\": \"w?e.*\", \"frozen\": true}, {\"match\": \"h.0.*\", "
              "\"frozen\": true}]"},
    {.name = "checkpoints on the drive", .recompute = 1, .extra = LEAVING, .checkpoints = ZERO_NVME},
    {.name = "two blocks again, from the drive, frozen from below",
     .recompute = 2,
     .extra = LEAVING ", \"param_groups\": [{\"match\": \"w?e.*\", \"frozen\": true}, {\"match\": \"h.0.*\", "
                      "\"frozen\": true}]",
     .checkpoints = ZERO_NVME},
    {.name = "vertical, checkpoints on the drive",
     .zero = VERTICAL,
     .recompute = 1,
     .extra = LEAVING,
     .checkpoints = ZERO_NVME,
     .vertical = true},
    {.name = "vertical, checkpoints on the drive, frozen from below",
     .zero = VERTICAL,
     .recompute = 1,
     .extra = LEAVING
     ", \"gradient_accumulation_mode\": \"every\", \"param_groups\": [{\"match\": \"w?e.*\", \"frozen\": "
     "true}, {\"match\": \"h.0.*\", \"frozen\": true}]",
     .checkpoints = ZERO_NVME,
     .drive = true,
     .vertical = true},
    {.name = "predivided", .extra = ", \"gradient_predivide_factor\": 3"},
    {.name = "shadow", .extra = ", \"nvme\": {\"shadow\": true}", .drive = true},
    {.name = "gradients in memory", .zero = NO_GRADIENTS, .drive = true, .sharded = true},
    {.name = "gradients on the drive, in every micro-step",
     .extra = ", \"gradient_accumulation_mode\": \"every\"",
     .drive = true,
     .sharded = true},
    {.name = "tiered", .state = "\"device\": \"tiered\", \"ratio\": 0.6", .off_device = true},
    {.name = "tiered, gradients in memory",
     .zero = NO_GRADIENTS,
     .state = "\"device\": \"tiered\", \"ratio\": 0.6",
     .drive = true,
     .sharded = true},
    {.name = "pieces", .zero = ", \"piece_bytes\": 65536", .drive = true},
    {.name = "vertical", .zero = VERTICAL, .vertical = true},
    {.name = "vertical, every block again",
     .zero = VERTICAL,
     .recompute = 1,
     .checkpoints = ZERO_CPU,
     .extra = ", \"gradient_accumulation_mode\": \"every\"",
     .vertical = true},
    {.name = "vertical, gradients on the drive",
     .zero = VERTICAL,
     .recompute = 2,
     .extra = ", \"gradient_accumulation_mode\": \"every\"",
     .drive = true,
     .sharded = true,
     .vertical = true},
    {.name = "updated in the backward", .zero = UPDATES, .extra = NO_CLIPPING},
    {.name = "updated in the backward, shadow",
     .zero = UPDATES,
     .extra = NO_CLIPPING ", \"nvme\": {\"shadow\": true}",
     .drive = true},
    {.name = "updated in the backward, whole matrices",
     .zero = UPDATES,
     .extra = NO_CLIPPING MUON,
     .drive = true},
    {.name = "updated in the backward, vertical",
     .zero = VERTICAL UPDATES,
     .extra = NO_CLIPPING ", \"gradient_accumulation_mode\": \"every\"",
     .drive = true,
     .sharded = true,
     .vertical = true},
    {.name = "whole matrices", .extra = MUON},
    {.name = "whole matrices, HSDP", .zero = ", \"mics_shard_size\": 2", .extra = MUON, .drive = true},
    {.name = "whole matrices, tiered",
     .state = "\"device\": \"tiered\", \"ratio\": 0.6",
     .extra = MUON,
     .drive = true},
    {.name = "whole matrices, averages", .extra = MUON ", \"ema\": {\"decay\": 0.9}", .drive = true},
    {.name = "whole matrices, shadow", .extra = MUON ", \"nvme\": {\"shadow\": true}", .drive = true},
    {.name = "whole matrices, averages, shadow",
     .extra = MUON AVERAGES ", \"nvme\": {\"shadow\": true}",
     .drive = true},
    {.name = "updated in the backward, whole tensors",
     .zero = UPDATES,
     .extra = NO_CLIPPING LAMB,
     .drive = true},
    {.name = "updated in the backward, whole tensors, shadow",
     .zero = UPDATES,
     .extra = NO_CLIPPING LAMB ", \"nvme\": {\"shadow\": true}",
     .drive = true},
    {.name = "whole tensors", .extra = LAMB},
    {.name = "whole tensors, HSDP", .zero = ", \"mics_shard_size\": 2", .extra = LAMB, .drive = true},
    {.name = "whole tensors, averages, tiered",
     .state = "\"device\": \"tiered\", \"ratio\": 0.6",
     .extra = LAMB AVERAGES,
     .drive = true},
    {.name = "whole tensors, shadow", .extra = LAMB ", \"nvme\": {\"shadow\": true}", .drive = true},
    {.name = "gradients on the drive, HSDP",
     .zero = ", \"mics_shard_size\": 2",
     .drive = true,
     .sharded = true},
};

struct task {
    const struct price *planned;
    const struct variant *variant;
    const char *what;
    uint64_t micro_steps;
};

/* As much as is planned. */
static uint64_t scratch_bytes(const zero_engine *engine) {
    zero_memory_row row = {.struct_size = sizeof row};
    uint64_t bytes = 0;
    for (uint32_t i = 0; !zero_engine_memory(engine, i, &row); i++) {
        if (row.tier != ZERO_NVME || strcmp(row.name, "activation checkpoints") != 0) continue;
        bytes += row.planned;
        CHECK_INT(row.measured, row.planned);
    }
    return bytes;
}

static void compare_bytes(const struct price *p, const zero_plan *plan, uint64_t scratch) {
    CHECK_INT(p->parameters, plan->params);
    CHECK_INT(p->param_bytes, plan->param_bytes);
    CHECK_INT(p->grad_bytes, plan->grad_bytes);
    CHECK_INT(p->state_bytes, plan->state_bytes + plan->master_bytes);
    CHECK_INT(p->gathered_bytes, plan->gathered_bytes);
    CHECK_INT(p->staging_bytes, plan->staging_bytes);
    uint64_t both = p->tier_bytes[ZERO_DEVICE] + p->tier_bytes[ZERO_CPU] - p->activation_bytes;
    CHECK_INT(both, plan->bytes[ZERO_DEVICE] + plan->bytes[ZERO_CPU] - (plan->reserved_bytes - scratch));
    CHECK_INT(p->tier_bytes[ZERO_NVME], plan->bytes[ZERO_NVME]);
}

/* The planner does not know how many threads this machine gives a rank. */
static void compare_reserved(const zero_engine *engine, const struct task *t, const zero_plan *plan) {
    struct shapes_recompute recompute = {.blocks = t->variant->recompute,
                                         .tier = t->variant->checkpoints,
                                         .micros = (uint32_t)zero_engine_use_micros(engine)};
    static const enum dtype types_of[] = {
        [ZERO_F32] = DTYPE_F32, [ZERO_BF16] = DTYPE_BF16, [ZERO_F16] = DTYPE_F16};
    enum dtype dtype = types_of[zero_engine_dtype(engine)];
    struct shapes units = shapes;
    units.vocab_block = t->variant->vocab_block;
    uint64_t host, all = shapes_activation_bytes(&units, true, dtype, 2,
                                                 (uint32_t)zero_engine_threads(engine), recompute, &host);
    CHECK_INT(all + scratch_bytes(engine), plan->reserved_bytes);
    CHECK_INT(scratch_bytes(engine) > 0, t->variant->checkpoints == ZERO_NVME);
    CHECK_INT(host > 0, t->variant->checkpoints == ZERO_CPU);
    CHECK_INT(t->planned->tier_bytes[ZERO_CPU], plan->bytes[ZERO_CPU]);
}

static zero_status train_step(zero_engine *engine, struct gpt *gpt, uint64_t micro_steps) {
    int32_t tokens[MICROS_MAX * 2 * 16 + 1];
    for (int i = 0; i <= MICROS_MAX * 2 * 16; i++) tokens[i] = (i * 31 + 7) % 97;
    zero_status status = ZERO_OK;
    double loss[MICROS_MAX];
    for (uint64_t micro = 0; micro < micro_steps && !status; micro += zero_engine_use_micros(engine))
        status = gpt_train(gpt, tokens, tokens + 1, loss);
    return status ? status : zero_engine_step(engine, NULL);
}

static void compare_traffic(zero_engine *engine, struct gpt *gpt, const struct task *t) {
    zero_counters before = {.struct_size = sizeof before}, after = before;
    zero_status status = train_step(engine, gpt, t->micro_steps);
    if (!status) status = zero_engine_flush(engine); /* what a step put off belongs to it */
    zero_engine_counters(engine, &before);
    if (!status) status = train_step(engine, gpt, t->micro_steps);
    if (!status) status = zero_engine_flush(engine);
    zero_engine_counters(engine, &after);
    if (!CHECK_INT(status, ZERO_OK)) return;
    const struct step_price *p = &t->planned->step;
    CHECK_INT(p->wire_bytes, after.wire_bytes - before.wire_bytes);
    CHECK_INT(p->gather_calls, after.gather_calls - before.gather_calls);
    CHECK_INT(p->reduce_calls, after.reduce_calls - before.reduce_calls);
    uint64_t read = after.drive_read_bytes - before.drive_read_bytes;
    CHECK_INT(p->drive_read_bytes, read);
    CHECK_INT(p->drive_write_bytes, after.drive_write_bytes - before.drive_write_bytes);
}

static void measure(zero_engine *engine, uint32_t rank, void *user) {
    const struct task *t = user;
    struct gpt *gpt = NULL;
    zero_plan plan = {.struct_size = sizeof plan};
    if (!CHECK(engine)) {
        fprintf(stderr, "%s\n", zero_last_error());
        return;
    }
    zero_slot unused;
    struct shapes units = shapes;
    units.vocab_block = t->variant->vocab_block, units.tied = !t->variant->vertical;
    bool trains = !gpt_engine_problem(engine);
    struct gpt_config config = model;
    config.recompute = t->variant->recompute, config.checkpoints = t->variant->checkpoints;
    config.vocab_block = t->variant->vocab_block, config.tied = units.tied;
    zero_status status = trains ? gpt_create(engine, &config, 2, &gpt)
                                : shapes_declare(&units,
                                                 (struct shapes_recompute){.blocks = config.recompute,
                                                                           .tier = config.checkpoints},
                                                 engine, &unused, NULL);
    if (!status) status = zero_engine_commit(engine, &plan);
    if (!CHECK_INT(status, ZERO_OK)) {
        fprintf(stderr, "%s\n", zero_last_error());
        gpt_destroy(gpt);
        return;
    }
    int failures = check_failures;
    compare_bytes(t->planned, &plan, scratch_bytes(engine));
    if (trains) compare_reserved(engine, t, &plan);
    struct gpt_init init = {.seed = 1, .config = model};
    if (trains && CHECK_INT(zero_engine_fill(engine, gpt_fill, &init), ZERO_OK))
        compare_traffic(engine, gpt, t);
    if (check_failures != failures && rank == 0)
        fprintf(stderr, "in %s: %s\n", t->variant->name ? t->variant->name : "plain", t->what);
    gpt_destroy(gpt);
}

/* The planner's path of a drive becomes one that is there. */
static void with_path(const char *text, const char *directory, char *out, size_t capacity) {
    const char *from;
    *out = 0;
    while ((from = strstr(text, "\"/nvme\""))) {
        snprintf(out + strlen(out), capacity - strlen(out), "%.*s\"%s\"", (int)(from - text), text,
                 directory);
        text = from + strlen("\"/nvme\"");
    }
    snprintf(out + strlen(out), capacity - strlen(out), "%s", text);
}

static void run(struct scenario *s, const struct cell *cell, const struct variant *v, uint64_t micro_steps) {
    struct zero_error error;
    struct price price;
    static int runs;
    if (!seeds_take((uint64_t)runs++)) return; /* a short run: a part of them */
    error_clear(&error);
    s->checkpoints = v->checkpoints;
    s->shapes.vocab_block = v->vocab_block;
    s->shapes.tied = !v->vertical;
    if (!CHECK_INT(price_cell(s, cell, &price, &error), ZERO_OK)) {
        fprintf(stderr, "%s: %s\n", v->name, error.message);
        return;
    }
    CHECK(price.fits && price.step.seconds > 0);
    char *planned = edit_cell(s->config, cell, &s->shapes), json[2048], path[512];
    const char *directory = getenv("TEST_TMPDIR");
    snprintf(path, sizeof path, "%s/exact.%d", directory ? directory : "/tmp",
             runs); /* a shadow keeps its files */
    with_path(planned, path, json, sizeof json);
    ranks_run(s->ranks, json, measure, &(struct task){&price, v, json, micro_steps});
    free(planned);
}

/* `budget`: of host memory, which lets a part of the state on a drive stay in memory, beside the directions of matrices. */
static void configure(char out[1024], const struct variant *v, uint64_t micro_steps, int type, bool budget) {
    bool matrices = v->extra && strstr(v->extra, "Muon");
    char memory[64] = "";
    if (budget) snprintf(memory, sizeof memory, ", \"memory\": {\"cpu\": %d}", matrices ? 900000 : 600000);
    snprintf(out, 1024,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, "
             "\"zero_optimization\": {\"stage3_param_persistence_threshold\": %d, \"sub_group_size\": "
             "3000, \"offload_optimizer\": {%s}%s}, \"comm\": {%s}%s%s%s}",
             (int)micro_steps, (int)micro_steps * 50, v->state ? v->state : "", v->zero ? v->zero : "",
             v->comm ? v->comm : "", types[type], v->extra ? v->extra : "", memory);
}

static void run_tiers(struct scenario s, const struct variant *v, uint32_t stage, int type,
                      uint64_t micro_steps) {
    struct cell cell = {.stage = stage, .recompute = v->recompute};
    char config[1024];
    s.config = config;
    int first = v->drive ? ZERO_NVME : v->off_device ? ZERO_CPU : ZERO_DEVICE;
    for (int state = first; state < ZERO_TIERS; state++)
        for (int params = 0; params < (stage == 3 ? ZERO_TIERS : 1); params++) {
            bool resident = (!v->name || v->state) && state == ZERO_NVME && params == ZERO_DEVICE &&
                            (micro_steps == 2 || v->state);
            configure(config, v, micro_steps, type, resident);
            cell.optimizer = (zero_tier)state, cell.params = (zero_tier)params;
            run(&s, &cell, v, micro_steps);
        }
}

static void run_variants(struct scenario s, uint32_t stage, int first, int end) {
    s.ranks = 4;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        for (int type = first;
             type < end && type < 2 && (stage == 3 || !variants[i].stage3) && (stage || !variants[i].sharded);
             type++)
            run_tiers(s, &variants[i], stage, type,
                      variants[i].vertical ? MICROS_MAX : 1 + (i + (size_t)type) % 2);
}

int main(int argc, char **argv) {
    static struct hardware hardware;
    struct zero_error error;
    struct scenario s = {.shapes = shapes, .nodes = 1, .threads = 1};
    error_clear(&error);
    CHECK_INT(hardware_open(&hardware, &error), ZERO_OK);
    CHECK_INT(hardware_choose(&hardware, &(struct hardware_choice){.device = "cpu"}, &s.machine, &error),
              ZERO_OK);
    s.machine.device.flops[DTYPE_F16] = s.machine.device.flops[DTYPE_F32]; /* bytes do not depend on it */
    uint32_t stage = argc > 1 ? (uint32_t)atoi(argv[1]) : 3;
    int first = argc > 2 && !strcmp(argv[2], "narrow"), end = argc > 2 && !strcmp(argv[2], "fp32") ? 1 : 3;
    for (s.ranks = 1; s.ranks <= 4; s.ranks *= 2)
        for (int type = first; type < end; type++)
            for (uint64_t micro_steps = 1; micro_steps <= 2; micro_steps++)
                run_tiers(s, &(struct variant){0}, stage, type, micro_steps);
    run_variants(s, stage, first, end);
    return check_end();
}
