/* The step time of a plan and of the simulator. The plan prices one rank's operations (timeline.c); the simulator runs
 * all ranks on virtual transport, devices and drives; both use speeds.h and work.h. Seconds agree within 1 %, bytes of
 * the drive and memory are equal. One difference remains: the simulator's device takes time for codes, clears and
 * copies, the plan does not. A step that is repeated agrees as well. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/seeds.h"
#include "tools/plan/price.h"
#include "tools/sim/job.h"

enum { WITHIN_PERCENT = 1 };

#define BF16 "\"bf16\": {\"enabled\": true}"
#define UPDATES                                                                                              \
    ", \"nvme\": {\"shadow\": true}, \"gradient_clipping\": 1, \"zero_optimization\": "                      \
    "{\"update_in_backward\": true}"

static const struct {
    const char *model, *device, *drive, *config;
    uint32_t ranks, nodes;
    struct cell cell;
    bool starved; /* little to compute, and slow memory: passes over gradients decide */
} rows[] = {
    {"gpt2-xl", "h100-80g", NULL, "", 8, 1, {0, ZERO_DEVICE, ZERO_DEVICE, 0, false, 0, 0}, false},
    {"gpt2-xl", "h100-80g", NULL, "", 8, 1, {1, ZERO_DEVICE, ZERO_DEVICE, 0, false, 0, 0}, false},
    {"gpt2-xl",
     "h100-80g",
     NULL,
     ", \"gradient_accumulation_steps\": 3",
     8,
     1,
     {2, ZERO_DEVICE, ZERO_DEVICE, 0, false, 0, 0},
     false},
    {"gpt2-xl", "h100-80g", NULL, "", 16, 2, {0, ZERO_DEVICE, ZERO_DEVICE, 0, false, 0, 0}, false},
    {"gpt2-xl", "h100-80g", NULL, "", 16, 2, {1, ZERO_DEVICE, ZERO_DEVICE, 0, false, 0, 0}, false},
    {"gpt2-xl", "h100-80g", NULL, "", 16, 2, {3, ZERO_DEVICE, ZERO_DEVICE, 0, false, 0, 0}, false},
    {"llama-3-8b", "h100-80g", NULL, "", 16, 2, {3, ZERO_DEVICE, ZERO_DEVICE, 0, false, 0, 0}, false},
    {"llama-3-8b", "h100-80g", NULL, "", 16, 2, {3, ZERO_DEVICE, ZERO_DEVICE, 1, false, 0, 0}, false},
    {"llama-3-8b",
     "a100-80g",
     NULL,
     ", \"comm\": {\"prefetch_depth\": 3}",
     16,
     2,
     {3, ZERO_DEVICE, ZERO_DEVICE, 4, false, 0, 0},
     false},
    {"llama-3-8b", "h100-80g", NULL, "", 8, 1, {3, ZERO_CPU, ZERO_DEVICE, 1, false, 0, 0}, false},
    {"llama-3-8b", "h100-80g", "7GB/s,5GB/s", "", 8, 1, {2, ZERO_NVME, ZERO_DEVICE, 1, false, 0, 0}, false},
    {"llama-3-8b", "h100-80g", "7GB/s", "", 8, 1, {3, ZERO_NVME, ZERO_DEVICE, 1, false, 0, 0}, false},
    {"llama-3-8b", "h100-80g", NULL, "", 8, 1, {3, ZERO_CPU, ZERO_CPU, 1, false, 0, 0}, false},
    {"llama-3-8b", "h100-80g", "14GB/s,7GB/s", "", 8, 1, {3, ZERO_NVME, ZERO_NVME, 1, false, 0, 0}, false},
    {"llama-3-8b",
     "h100-80g",
     NULL,
     ", \"gradient_accumulation_steps\": 3",
     8,
     1,
     {3, ZERO_CPU, ZERO_DEVICE, 1, false, 0, 0},
     false},
    {"gpt2-xl", "h100-80g", NULL, "", 1, 1, {2, ZERO_CPU, ZERO_DEVICE, 0, false, 0, 0}, false},
    {"gpt2-xl", "h100-80g", NULL, "", 8, 1, {0, ZERO_CPU, ZERO_DEVICE, 0, false, 0, 0}, false},
    {"llama-3-8b",
     "h100-80g",
     NULL,
     ", \"zero_optimization\": {\"mics_shard_size\": 8}",
     16,
     2,
     {3, ZERO_CPU, ZERO_CPU, 1, false, 0, 0},
     false},
    {"llama-3-8b",
     "h100-80g",
     NULL,
     ", \"zero_optimization\": {\"mics_shard_size\": 8}",
     16,
     2,
     {3, ZERO_DEVICE, ZERO_DEVICE, 1, false, 0, 0},
     false},
    {"llama-3-8b",
     "h100-80g",
     NULL,
     ", \"zero_optimization\": {\"mics_shard_size\": 8}",
     16,
     2,
     {3, ZERO_DEVICE, ZERO_DEVICE, 1, false, 0, 0},
     true}, /* the norm has a pass of its own, whose last one nothing hides */
    {"llama-3-8b",
     "h100-80g",
     NULL,
     ", \"zero_optimization\": {\"zero_hpz_partition_size\": 8}",
     16,
     2,
     {3, ZERO_DEVICE, ZERO_DEVICE, 1, false, 0, 0},
     false},
    {"llama-3-8b",
     "h100-80g",
     NULL,
     ", \"param_groups\": [{\"match\": \"model.layers.?.*\", \"frozen\": true}, {\"match\": "
     "\"model.embed*\", \"frozen\": true}]",
     8,
     1,
     {3, ZERO_DEVICE, ZERO_DEVICE, 2, false, 0, 0},
     false},
    {"llama-3-8b",
     "h100-80g",
     "14GB/s,7GB/s",
     UPDATES,
     8,
     1,
     {3, ZERO_NVME, ZERO_NVME, 1, false, 0, 0},
     false},
    {"llama-3-8b",
     "h100-80g",
     "400GB/s,200GB/s",
     UPDATES,
     8,
     1,
     {1, ZERO_NVME, ZERO_DEVICE, 1, false, 0, 0},
     false},
};

/* `repeats`: every step is above the bound on the norm. */
static void simulate(struct job *job, uint32_t ranks, bool repeats, struct sim_result *out) {
    struct job_ranks r;
    struct zero_error error;
    error_clear(&error);
    if (CHECK_INT(job_place(job, ranks, 0, &r, &error), ZERO_OK)) {
        r.setup.steps = 6;
        r.setup.seed = 3;
        r.setup.repeated = repeats ? UINT32_MAX : 0;
        CHECK_INT(sim_run(&r.setup, out, &error), ZERO_OK);
        CHECK_STRING(out->error.message, "");
        job_release(&r);
    }
    CHECK_STRING(error.message, "");
}

/* The time of one kind of step, planned and simulated. */
static int compare_seconds(struct job *job, uint32_t ranks, size_t row, double planned, bool repeats,
                           struct sim_result *out) {
    simulate(job, ranks, repeats, out);
    double simulated = (double)out->step_ns * 1e-9, off = 100 * fabs(planned / simulated - 1);
    printf("row %zu%s: planned %.6f s, simulated %.6f s: %.2f %%\n", row, repeats ? ", repeated" : "",
           planned, simulated, off);
    return CHECK(off < (rows[row].starved ? 0.05 : WITHIN_PERCENT));
}

static void compare(struct hardware *hardware, size_t i) {
    struct zero_error error;
    error_clear(&error);
    char config[600];
    snprintf(config, sizeof config, "{\"train_micro_batch_size_per_gpu\": 1, " BF16 "%s}", rows[i].config);
    struct scenario s = {.shapes = *shapes_find(rows[i].model),
                         .config = config,
                         .ranks = rows[i].ranks,
                         .nodes = rows[i].nodes,
                         .threads = 1};
    struct hardware_choice choice = {.device = rows[i].device, .drive = rows[i].drive};
    CHECK_INT(hardware_choose(hardware, &choice, &s.machine, &error), ZERO_OK);
    s.machine.device.memory_bytes *= 100; /* time is asked for, not room */
    if (rows[i].starved) s.shapes.context = 32, s.machine.device.memory_per_s /= 1000;
    struct price p = {0};
    if (!CHECK_INT(price_cell(&s, &rows[i].cell, &p, &error), ZERO_OK) || !CHECK(p.fits)) {
        fprintf(stderr, "%s\n", error.message);
        return;
    }
    struct job job = {.config = edit_cell(config, &rows[i].cell, &s.shapes),
                      .machine = s.machine,
                      .shapes = s.shapes,
                      .micro_batch = 1,
                      .recompute = rows[i].cell.recompute};
    struct sim_result r = {0};
    bool repeats = p.step.repeat_write_bytes > 0;
    int same = CHECK_INT(repeats, strstr(rows[i].config, "update_in_backward") != NULL);
    if (repeats) same &= compare_seconds(&job, s.ranks, i, p.step.repeated_seconds, true, &r);
    if (repeats) same &= CHECK(p.step.repeated_seconds > p.step.seconds);
    same &= compare_seconds(&job, s.ranks, i, p.step.seconds, false, &r);
    same &= CHECK_INT(r.planned_bytes[TIER_DEVICE],
                      p.tier_bytes[ZERO_DEVICE] - (p.activation_bytes - p.activation_host_bytes));
    same &= CHECK_INT(r.planned_bytes[TIER_CPU], p.tier_bytes[ZERO_CPU] - p.activation_host_bytes);
    same &= CHECK_INT(r.planned_bytes[TIER_NVME], p.tier_bytes[ZERO_NVME]);
    same &= CHECK_DOUBLE((double)r.compute_ns * 1e-9, p.step.busy_s[RESOURCE_COMPUTE], 1e-6);
    if (!same) fprintf(stderr, "in row %zu\n", i);
    free(job.config);
}

int main(void) {
    static struct hardware hardware;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(hardware_open(&hardware, &error), ZERO_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (seeds_divisor() == 1 || i % 3 == 0) compare(&hardware, i);
    return check_end();
}
