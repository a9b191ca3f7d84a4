/* Weights and norms do not depend on the size of the pieces in which shards move: over every transport with scratch memory, with
 * coded messages, on a device whose memory the host cannot touch, and to and from a drive. What is planned is what is
 * taken, and staging does not grow with the largest unit.
 * pieces_test [A PART OF A ROW'S NAME] */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/tcp_ranks.h"
#include "tests/engine/toy_model.h"

/* One unit is much larger than the others, and nothing divides the sizes. */
static const struct plain_param model[] = {{"a", "a.w", 20011, 0, NULL},
                                           {"b", "b.w", 150031, 0, NULL},
                                           {"b", "b.v", 9, 0, NULL},
                                           {"c", "c.w", 70003, 0, NULL}};

#define DRIVE "{\"device\": \"nvme\", \"nvme_path\": \"%1$s\"}"
#define ALL_NVME                                                                                             \
    ", \"offload_optimizer\": " DRIVE ", \"offload_param\": " DRIVE                                          \
    ", \"offload_gradients\": {\"device\": \"nvme\"}"

enum { PARAMS = sizeof model / sizeof *model, STEPS = 2, PIECES = 3 };

static const uint64_t pieces[PIECES] = {65536, 200000, 1 << 30};

enum where { THREADS, PROCESSES, DISCRETE };

static const struct row {
    const char *name;
    enum where where;
    uint32_t ranks, micro_steps;
    const char *zero, *more; /* keys of zero_optimization, and others, each after a comma */
} rows[] = {
    {"tcp, stage 1", PROCESSES, 2, 1, ", \"stage\": 1", ""},
    {"tcp, stage 3, bf16", PROCESSES, 3, 2, ", \"stage\": 3", ", \"bf16\": {\"enabled\": true}"},
    {"tcp, all on the drive", PROCESSES, 2, 2, ", \"stage\": 3" ALL_NVME, ", \"bf16\": {\"enabled\": true}"},
    {"tcp, HSDP, all on the drive", PROCESSES, 4, 2, ", \"stage\": 3, \"mics_shard_size\": 2" ALL_NVME, ""},
    {"threads, HSDP, all on the drive", THREADS, 4, 1, ", \"stage\": 3, \"mics_shard_size\": 2" ALL_NVME, ""},
    {"threads, coded", THREADS, 2, 1,
     ", \"stage\": 3, \"zero_quantized_gradients\": true, \"zero_quantized_weights\": true", ""},
    {"threads, coded, all on the drive", THREADS, 2, 2,
     ", \"stage\": 3, \"zero_quantized_gradients\": true, \"zero_quantized_weights\": true" ALL_NVME, ""},
    {"discrete, fp16 messages", DISCRETE, 2, 1, ", \"stage\": 2", ", \"communication_data_type\": \"fp16\""},
    {"discrete, stage 0, mode last, fp16 messages", DISCRETE, 2, 1, ", \"stage\": 0",
     ", \"communication_data_type\": \"fp16\""},
    {"discrete, state on the cpu, fp16 messages", DISCRETE, 2, 1,
     ", \"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"}",
     ", \"communication_data_type\": \"fp16\""},
    {"discrete, state on the cpu and on the device", DISCRETE, 2, 1,
     ", \"stage\": 2, \"sub_group_size\": 4096, \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.6}",
     ", \"communication_data_type\": \"fp16\""},
    {"discrete, all on the drive, fp16 messages", DISCRETE, 2, 1,
     ", \"stage\": 3, \"sub_group_size\": 16384" ALL_NVME, ", \"communication_data_type\": \"fp16\""},
    {"threads, native, state on the drive", THREADS, 2, 1,
     ", \"stage\": 1, \"sub_group_size\": 4096, \"offload_optimizer\": " DRIVE, ""},
    {"tcp, HSDP of three, all on the drive", PROCESSES, 6, 1,
     ", \"stage\": 3, \"mics_shard_size\": 2, \"sub_group_size\": 65536" ALL_NVME, ""},
    {"discrete, all on the drive", DISCRETE, 2, 2, ", \"stage\": 3" ALL_NVME,
     ", \"bf16\": {\"enabled\": true}"},
};

static bool is_native(const struct row *row) { return strstr(row->name, "native") != NULL; }

/* Its reductions are not cut, so their staging does not shrink with the pieces. */
static bool is_whole(const struct row *row) { return is_native(row) || strstr(row->name, "stage 0"); }

struct run {
    const char *json;
    char hash[33];
    double norm;
    uint64_t staging_bytes;
};

static void check_memory(zero_engine *engine, const zero_plan *plan) {
    uint64_t measured[ZERO_TIERS] = {0};
    zero_memory_row row = {.struct_size = sizeof row};
    for (uint32_t i = 0; zero_engine_memory(engine, i, &row) == ZERO_OK; i++)
        measured[row.tier] += row.measured;
    for (int t = 0; t < ZERO_TIERS; t++) CHECK_INT(measured[t], plan->bytes[t]);
}

/* Where the host updates for the device, weights pass through two chunks. */
static void check_update_staging(zero_engine *engine) {
    const struct plan *plan = &engine_blueprint(engine)->plan;
    uint64_t chunk =
        plan->layout.chunk_elements * dtype_bytes(engine_blueprint(engine)->terms.precision.compute);
    CHECK(plan->row_bytes[MEMORY_UPDATE_STAGING] <= UPDATE_STAGINGS * (chunk + ALIGN_BYTES));
}

static void train(zero_engine *engine, uint32_t rank, struct run *out, uint32_t micro_steps) {
    struct plain p;
    struct run run = *out;
    zero_plan plan = {.struct_size = sizeof plan};
    zero_step_info info = {.struct_size = sizeof info};
    if (!CHECK(engine)) {
        fprintf(stderr, "%s\n", zero_last_error());
        return;
    }
    CHECK_INT(plain_open(&p, engine, model, PARAMS, &plan), ZERO_OK);
    check_memory(engine, &plan);
    check_update_staging(engine);
    for (int i = 0; i < STEPS; i++)
        if (!CHECK_INT(plain_step(&p, micro_steps, &info), ZERO_OK))
            fprintf(stderr, "%s\n", zero_last_error());
    CHECK_INT(zero_engine_hash(engine, run.hash), ZERO_OK);
    run.norm = info.grad_norm;
    run.staging_bytes = plan.staging_bytes;
    if (!rank) *out = run;
}

static uint32_t micro_steps_now;

static void in_thread(zero_engine *engine, uint32_t rank, void *user) {
    train(engine, rank, user, micro_steps_now);
}

static void in_process(const zero_runtime *runtime, void *user) {
    struct run *run = user;
    zero_engine *engine = zero_engine_init_with(run->json, runtime);
    train(engine, runtime->rank, run, micro_steps_now);
    zero_engine_destroy(engine);
}

static struct run run_row(const struct row *row, uint64_t piece_bytes) {
    /* shared with the processes */
    struct run *run = mmap(NULL, sizeof *run, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0),
               result;
    char json[2000], zero[800];
    snprintf(zero, sizeof zero, row->zero, getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    snprintf(
        json, sizeof json,
        "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %u, "
        "\"gradient_accumulation_mode\": \"%s\", \"gradient_clipping\": 1.0, \"threads\": 1, "
        "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, \"zero_optimization\": "
        "{\"stage3_param_persistence_threshold\": 10, \"piece_bytes\": %llu%s}, \"comm\": {\"timeout_s\": "
        "60%s}%s}",
        row->micro_steps, strstr(row->name, "mode last") ? "last" : "every", (unsigned long long)piece_bytes,
        zero, is_native(row) ? ", \"reduction\": \"native\"" : "", row->more);
    *run = (struct run){.json = json};
    micro_steps_now = row->micro_steps;
    if (row->where == THREADS) ranks_run(row->ranks, json, in_thread, run);
    if (row->where == DISCRETE) ranks_run_discrete(row->ranks, json, in_thread, run);
    if (row->where == PROCESSES) tcp_processes(row->ranks, 200, in_process, run);
    result = *run;
    munmap(run, sizeof *run);
    return result;
}

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (argc > 1 && !strstr(rows[i].name, argv[1])) continue;
        struct run run[PIECES];
        for (int k = 0; k < PIECES; k++) run[k] = run_row(&rows[i], pieces[k]);
        int same = 1;
        for (int k = 0; k + 1 < PIECES; k++) {
            same &= CHECK_STRING(run[k].hash, run[PIECES - 1].hash);
            same &= CHECK_BYTES(&run[k].norm, &run[PIECES - 1].norm, sizeof run[k].norm);
        }
        same &= CHECK(run[0].hash[0] && run[0].norm > 1);
        same &= CHECK(is_whole(&rows[i]) || run[0].staging_bytes < run[PIECES - 1].staging_bytes);
        printf("%s%-34s staging %8llu %8llu %8llu, norm %.17g, weights %s\n", same ? "" : "FAILED ",
               rows[i].name, (unsigned long long)run[0].staging_bytes,
               (unsigned long long)run[1].staging_bytes, (unsigned long long)run[2].staging_bytes,
               run[0].norm, run[0].hash);
    }
    return check_end();
}
