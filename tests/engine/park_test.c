/* An engine that is parked between steps trains to the bits of one that is not: at every stage, number of ranks, tier and type, with
 * parks to the host's memory and to a drive in turn. While it is parked, its device has given its memory back, and what is planned is
 * what is taken. park_test host|sim|cuda; park_test cuda nccl */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"
#include "tests/sanitized.h"
#include "tests/seeds.h"

/* In each of them the configuration has a directory on a drive. */
#define DRIVE "\"nvme_path\": \"/tmp\""
#define NONE "\"offload_optimizer\": {\"device\": \"none\", " DRIVE "}"
#define CPU "\"offload_optimizer\": {\"device\": \"cpu\", " DRIVE "}"
#define NVME "\"offload_optimizer\": {\"device\": \"nvme\", " DRIVE "}, \"sub_group_size\": 1024"
#define SHARED "\"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5, " DRIVE "}"
#define TIERED                                                                                               \
    "\"offload_optimizer\": {\"device\": \"nvme\", \"ratio\": 0.5, " DRIVE "}, \"sub_group_size\": 1024"
#define PARAM_CPU ", \"offload_param\": {\"device\": \"cpu\"}"
#define PARAM_NVME ", \"offload_param\": {\"device\": \"nvme\", " DRIVE "}"

static const char *device;

/* ---- what is taken ---- */

struct memory {
    /* parked: the planned bytes of rows that only a parked engine has. */
    uint64_t planned[ZERO_TIERS], measured[ZERO_TIERS], parked;
};

static struct memory memory_of(const zero_engine *engine) {
    struct memory m = {0};
    zero_memory_row row = {.struct_size = sizeof row};
    for (uint32_t i = 0; zero_engine_memory(engine, i, &row) == ZERO_OK; i++) {
        m.planned[row.tier] += row.planned;
        m.measured[row.tier] += row.measured;
        if (strstr(row.name, "parked state")) m.parked += row.planned;
    }
    return m;
}

/* A GPU's memory is given back whole; the host's but for the messages. */
static void check_parked(zero_engine *engine, zero_tier tier, const struct memory *before) {
    struct memory m = memory_of(engine);
    const struct running *run = engine_running(engine);
    const struct plan *plan = &engine_blueprint(engine)->plan;
    struct plan_range *range = calloc(plan->buffers, sizeof *range);
    uint64_t rest = 0, kept = run->discrete ? 0 : (plan->row_bytes[MEMORY_MESSAGES] + 4095) / 4096 * 4096;
    uint32_t ranges = plan_rest(plan, TIER_DEVICE, range);
    for (uint32_t i = 0; i < ranges; i++) rest += range[i].bytes;
    free(range);
    rest = (rest + 4095) / 4096 * 4096;
    for (int t = 0; t < ZERO_TIERS; t++) CHECK_INT(m.measured[t], m.planned[t]);
    CHECK_INT(m.planned[ZERO_DEVICE], kept);
    CHECK_INT(run->device->allocated[DEVICE_MEMORY], kept);
    CHECK_INT(run->tier[TIER_DEVICE]->allocated, kept);
    CHECK_INT(m.planned[tier], before->planned[tier] + rest);
    CHECK_INT(m.planned[ZERO_CPU] + m.planned[ZERO_NVME],
              before->planned[ZERO_CPU] + before->planned[ZERO_NVME] + m.parked);
    CHECK(tier == ZERO_CPU ? m.parked == rest : m.parked >= rest);
}

static void check_whole(zero_engine *engine, const struct memory *before) {
    struct memory m = memory_of(engine);
    CHECK_BYTES(&m, before, sizeof m);
}

/* ---- exact ---- */

static atomic_uint parks;

static zero_status park_once(zero_engine *engine, zero_tier tier) {
    struct memory before = memory_of(engine);
    zero_status status = zero_engine_park(engine, tier);
    if (status) return status;
    check_parked(engine, tier, &before);
    status = zero_engine_unpark(engine);
    check_whole(engine, &before);
    atomic_fetch_add(&parks, 1);
    return status;
}

/* After the fill to a drive, then to the host's memory, then both. */
static zero_status park_between(zero_engine *engine, uint32_t steps, void *user) {
    zero_status status = ZERO_OK;
    if (steps % 2 == 0) status = park_once(engine, ZERO_NVME);
    if (steps && !status) status = park_once(engine, ZERO_CPU);
    return status;
}

static void run(const char *name, struct toy_setup s) {
    static struct toy_result expected, got;
    static uint64_t number;
    uint32_t before = atomic_load(&parks);
    if (!seeds_take(number++)) return;
    if (!strcmp(device, "cuda") && !s.device_comm && number % 2)
        return; /* sim is discrete, too, and takes all */
    s.steps = 3;
    toy_train(&s, &expected);
    s.between = park_between, s.seed = number;
    s.device = strcmp(device, "host") ? device : NULL;
    if (s.device_comm) s.comm = s.device_comm;
    toy_train(&s, &got);
    int same = CHECK_STRING(expected.error, "") && CHECK_STRING(got.error, "") &&
               CHECK_BYTES(got.weights, expected.weights, sizeof got.weights) &&
               CHECK_STRING(got.hash, expected.hash) && CHECK_INT(got.skipped, expected.skipped) &&
               CHECK_INT(atomic_load(&parks) - before, 5 * s.ranks);
    for (uint32_t i = 0; i < s.steps && same; i++)
        same =
            CHECK_DOUBLE(got.norm[i], expected.norm[i], 0) & CHECK_DOUBLE(got.loss[i], expected.loss[i], 0);
    if (!same) fprintf(stderr, "in %s: stage %u, %u ranks\n", name, s.stage, s.ranks);
}

static struct toy_setup setup(uint32_t stage, uint32_t ranks) {
    struct toy_setup s = toy_setup_default();
    s.stage = stage, s.ranks = ranks, s.tiers = NONE;
    return s;
}

static void plain(void) {
    for (uint32_t stage = 0; stage < 4; stage++)
        for (uint32_t ranks = 1; ranks <= 4; ranks *= 2) {
            struct toy_setup s = setup(stage, ranks);
            s.evaluate = ranks == 2;
            run("plain", s);
        }
}

static void types(void) {
    static const char *const tiers[] = {CPU, NONE, NVME, NVME PARAM_NVME};
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct toy_setup s = setup(stage, 2);
        s.compute = ZERO_BF16;
        run("bf16", s);
        s.tiers = tiers[stage];
        run("bf16, offloaded", s);
        s = setup(stage, 2);
        s.compute = ZERO_F16, s.scale_power = 6, s.nan_step = 1;
        run("fp16, a step skipped", s);
        s.tiers = NVME;
        run("fp16, a step skipped, chunks fetched ahead", s);
        s.nan_step = -1, s.kept = 1 << 0 | 1 << 4 | 1 << 5, s.tiers = tiers[stage], s.micro_steps = 2;
        run("in.w, a.g and b.w stay fp32", s);
    }
}

static void tiers(void) {
    static const char *const all[] = {CPU,
                                      NVME,
                                      SHARED,
                                      TIERED,
                                      CPU PARAM_CPU,
                                      NVME PARAM_CPU,
                                      NVME PARAM_NVME,
                                      SHARED PARAM_CPU,
                                      TIERED PARAM_NVME};
    for (uint32_t stage = 0; stage < 4; stage++)
        for (int t = 0; t < (stage == 3 ? 9 : 4); t++) {
            struct toy_setup s = setup(stage, 2);
            s.tiers = all[t], s.compute = t == 3 && stage ? ZERO_BF16 : ZERO_F32;
            run(all[t], s);
        }
}

static void ways(void) {
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct toy_setup s = setup(stage, 2);
        s.memory = stage == 3 ? TOY_UNIT_GIVEN : stage == 2 ? TOY_SPANS_ADD : TOY_SPANS;
        run("memory of the host program's", s);
        s.tiers = CPU, s.micro_steps = 2, s.mode = "last";
        run("the same over micro-steps", s);
        s = setup(stage, 2);
        s.interrupt = 1, s.cancels = 1 + stage, s.hold = 1 << 1;
        run("interrupted passes, a held unit", s);
        s = setup(stage, 2);
        s.free_order = 1, s.cancels = 5 + stage, s.recompute = 2;
        run("free order", s);
        s.bound = 2, s.compute = ZERO_BF16;
        run("free order within a bound", s);
        s = setup(stage, 2);
        s.vertical = 1, s.micro_steps = 3, s.mode = stage % 2 ? "every" : "last";
        s.tiers = stage == 2 ? NVME : NONE;
        run("micro-steps in each use", s);
        s.updates = 1, s.clip = 0, s.mode = "every";
        run("micro-steps in each use, updates in the backward", s);
        if (strcmp(device, "host")) continue; /* the device has no kernel for the next */
        s = setup(stage, 2);
        s.muon = 1, s.threshold = stage % 2 ? 0 : 1000;
        run("matrices", s);
        s.muon = 0, s.lamb = 2;
        run("tensors", s);
    }
    struct toy_setup s = setup(3, 4);
    s.tiers = NONE ", \"mics_shard_size\": 2";
    run("two copies", s);
    s.tiers = NONE ", \"zero_hpz_partition_size\": 2";
    run("a second shard", s);
    s.compute = ZERO_BF16, s.evaluate = 1;
    run("a second shard, evaluations", s);
    s.tiers = NONE ", \"zero_quantized_weights\": true, \"zero_quantized_gradients\": true";
    run("codes", s);
    s = setup(3, 2);
    s.comm = ", \"reshard_after_forward\": false";
    run("kept between forward and backward", s);
}

/* ---- the sizes of what rests ---- */

/* hpZ's second shards are made by each pass, and stay behind. */
static void check_second(zero_engine *engine, void *user) {
    const struct plan *plan = &engine_blueprint(engine)->plan;
    struct plan_range *range = calloc(plan->buffers, sizeof *range);
    uint64_t rest = 0,
             rows = plan->row_bytes[MEMORY_PARAMETERS] + plan->row_bytes[MEMORY_STATE0] +
                    plan->row_bytes[MEMORY_STATE1],
             second = 0;
    uint32_t ranges = plan_rest(plan, TIER_DEVICE, range);
    for (uint32_t i = 0; i < ranges; i++) {
        rest += range[i].bytes;
        if (i) CHECK(range[i - 1].offset + range[i - 1].bytes <= range[i].offset);
    }
    for (uint32_t i = 0; i < plan->policy->regions; i++) {
        uint32_t buffer = plan_fixed(plan, (struct buffer_ref){BUFFER_PARAM_SECOND, (uint16_t)i});
        if (buffer != NO_BUFFER) second += plan->buffer[buffer].bytes;
    }
    CHECK(second > 0);
    CHECK(rest <= rows - second && rest + ranges * 64 >= rows - second);
    free(range);
}

static void second_shards(void) {
    static struct toy_result result;
    struct toy_setup s = setup(3, 4);
    s.steps = 1, s.tiers = NONE ", \"zero_hpz_partition_size\": 2", s.after = check_second;
    toy_train(&s, &result);
    CHECK_STRING(result.error, "");
}

/* ---- the host's resident memory ---- */

enum { BIG = 4 << 20 };

static uint64_t resident_bytes(void) {
    unsigned long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    CHECK(file && fscanf(file, "%lu %lu", &all, &resident) == 2);
    if (file) fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The address of before is free, and is then another one: the pages there are taken by something else. */
static void falls(zero_engine *engine, uint32_t rank, void *user) {
    static const struct plain_param param = {"unit", "weight", BIG, 0, NULL};
    struct plain p;
    zero_slot before, after;
    char hash[2][33];
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), rest = 3 * sizeof(float) * (uint64_t)BIG;
    zero_counters counters = {.struct_size = sizeof counters};
    if (!CHECK_INT(plain_open(&p, engine, &param, 1, NULL), ZERO_OK)) return;
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    CHECK_INT(zero_engine_hash(engine, hash[0]), ZERO_OK);
    CHECK_INT(zero_param_addresses(zero_unit_param(p.unit[0], 0), &before), ZERO_OK);
    uint64_t planned = memory_of(engine).planned[ZERO_DEVICE], resident = resident_bytes();
    CHECK(planned > 4 * 4 * (uint64_t)BIG);
    CHECK_INT(zero_engine_park(engine, ZERO_NVME), ZERO_OK);
    struct memory parked = memory_of(engine);
    uint64_t taken = parked.planned[ZERO_DEVICE] + parked.planned[ZERO_CPU],
             fallen = resident - resident_bytes();
    if (!SANITIZED) CHECK(resident > resident_bytes() && fallen + (4 << 20) > planned - taken);
    void *hole = (void *)((uintptr_t)before.param / page * page);
    void *other = mmap(hole, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (!SANITIZED) CHECK(other == hole);
    CHECK_INT(zero_engine_unpark(engine), ZERO_OK);
    CHECK_INT(zero_param_addresses(zero_unit_param(p.unit[0], 0), &after), ZERO_OK);
    CHECK(other != hole || after.param != before.param);
    CHECK_INT(zero_engine_hash(engine, hash[1]), ZERO_OK);
    CHECK_STRING(hash[1], hash[0]);
    CHECK_INT(zero_engine_counters(engine, &counters), ZERO_OK);
    CHECK_INT(counters.drive_write_bytes, rest);
    CHECK_INT(counters.drive_read_bytes, rest);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    if (other != MAP_FAILED) munmap(other, page);
}

/* ---- checkpoints and shadows ---- */

/* A save may be in the background: it ends before the park. The second step's training is lost by the load. */
static zero_status reload(zero_engine *engine, uint32_t steps, void *user) {
    zero_status status = park_once(engine, steps % 2 ? ZERO_CPU : ZERO_NVME);
    if (!status && steps == 1) status = zero_engine_save(engine, user);
    if (!status && steps == 2) status = zero_engine_load(engine, user);
    return status ? status : park_once(engine, ZERO_CPU);
}

static void checkpoints(const char *more) {
    static struct toy_result expected, got;
    char dir[] = "/tmp/zero-park-XXXXXX", path[64], tiers[256], command[96];
    if (!CHECK(mkdtemp(dir))) return;
    snprintf(path, sizeof path, "%s/ckpt", dir);
    snprintf(tiers, sizeof tiers, "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
             dir);
    struct toy_setup s = setup(3, 2);
    s.compute = ZERO_BF16, s.steps = 1;
    toy_train(&s, &expected);
    s.steps = 2, s.between = reload, s.user = path, s.extra = more, s.tiers = tiers;
    s.device = strcmp(device, "host") ? device : NULL;
    toy_train(&s, &got);
    CHECK_STRING(got.error, "");
    CHECK_STRING(got.hash, expected.hash);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    CHECK_INT(system(command), 0);
}

/* Ranks on several GPUs. */
static void nccl(void) {
    setenv("FAKE_CUDA_DEVICES", "4", 1);
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct toy_setup s = setup(stage, stage == 3 ? 4 : 2);
        s.device_comm = ", \"transport\": \"nccl\"", s.compute = stage % 2 ? ZERO_BF16 : ZERO_F32;
        run("nccl", s);
    }
}

int main(int argc, char **argv) {
    device = argc > 1 ? argv[1] : "host";
    if (argc > 2) return nccl(), check_end();
    plain();
    types();
    tiers();
    ways();
    checkpoints("");
    checkpoints(", \"checkpoint\": {\"async\": true, \"async_bytes\": \"1MiB\"}");
    checkpoints(", \"nvme\": {\"shadow\": true}");
    second_shards();
    if (!strcmp(device, "host"))
        ranks_run(1,
                  "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}, "
                  "\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 0, " NONE "}}",
                  falls, NULL);
    return check_end();
}
