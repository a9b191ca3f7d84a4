/* zero_engine_plan: one process plans for ranks that do not exist; the plan equals the plan of each real rank. Also
 * tests what is refused. */
#include <sys/resource.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/sanitized.h"

static const struct plain_param params[] = {
    {"a", "a.w", 1000, 0, NULL}, {"b", "b.w", 3001, 0, NULL}, {"c", "c.w", 777, ZERO_FROZEN, NULL}};
static const char json[] = "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3, "
                           "\"stage3_param_persistence_threshold\": 0}}";

static zero_engine *open_planner(uint32_t ranks, uint32_t node_ranks, int processes) {
    zero_runtime runtime = {.struct_size = sizeof runtime,
                            .plan_ranks = ranks,
                            .plan_node_ranks = node_ranks,
                            .plan_processes = processes};
    return zero_engine_init_with(json, &runtime);
}

static zero_plan plan_by(zero_engine *engine, uint32_t ranks) {
    zero_plan out = {.struct_size = sizeof out};
    struct plain p;
    if (CHECK(engine) && CHECK_INT(plain_declare(&p, engine, params, 3), ZERO_OK)) {
        CHECK_INT(zero_engine_size(engine), ranks);
        CHECK_INT(zero_engine_plan(engine, &out), ZERO_OK);
    }
    zero_engine_destroy(engine);
    return out;
}

static zero_plan plan(uint32_t ranks, int processes) {
    return plan_by(open_planner(ranks, 0, processes), ranks);
}

static void commit(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    zero_plan planned = *(const zero_plan *)user, actual = {.struct_size = sizeof actual};
    if (CHECK(engine) && CHECK_INT(plain_open(&p, engine, params, 3, &actual), ZERO_OK))
        CHECK_BYTES(&planned, &actual, sizeof actual);
}

static void planned_is_committed(void) {
    for (uint32_t ranks = 1; ranks <= 5; ranks++) {
        zero_plan planned = plan(ranks, 0);
        ranks_run(ranks, json, commit, &planned);
    }
}

/* On a GPU, whose memory is not the host's. */
static void planned_for_a_gpu_is_committed(void) {
    static const char *const tiers[] = {"none", "cpu", "nvme"};
    char text[512];
    for (int i = 0; i < 3 * 4 * 2 * 2; i++) {
        uint32_t stage = (uint32_t)i / 3 % 4, ranks = 1 + (uint32_t)i / 12 % 2,
                 micro_steps = 1 + (uint32_t)i / 24;
        snprintf(text, sizeof text,
                 "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %u, \"bf16\": "
                 "{\"enabled\": "
                 "%s}, \"zero_optimization\": {\"stage\": %u, \"offload_optimizer\": {\"device\": \"%s\", "
                 "\"nvme_path\": \"/tmp\"}}}",
                 micro_steps, i % 5 ? "true" : "false", stage, tiers[i % 3]);
        zero_runtime runtime = {.struct_size = sizeof runtime, .plan_ranks = ranks, .cuda = 1};
        zero_plan planned = plan_by(zero_engine_init_with(text, &runtime), ranks);
        CHECK(planned.bytes[ZERO_DEVICE] > 0 && planned.bytes[ZERO_CPU] > 0); /* messages are the host's */
        ranks_run_discrete(ranks, text, commit, &planned);
    }
}

/* An ordered reduction of processes receives a whole region (engine/comm/mpi/comm_mpi.c): two of the largest. */
static void processes_need_staging(void) {
    zero_plan threads = plan(2, 0), processes = plan(2, 1), alone = plan(1, 1);
    CHECK_INT(processes.staging_bytes - threads.staging_bytes, 2 * 4 * 3008);
    CHECK_INT(alone.staging_bytes, plan(1, 0).staging_bytes);
}

/* MPI adds fp32 alone; threads add in the order of ranks, whatever they are asked for. */
static void native_sums(void) {
    static const struct {
        const char *type;
        int processes, refused;
    } cases[] = {
        {"", 1, 0}, {", \"bf16\": {\"enabled\": true}", 0, 0}, {", \"bf16\": {\"enabled\": true}", 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200];
        zero_runtime runtime = {
            .struct_size = sizeof runtime, .plan_ranks = 2, .plan_processes = cases[i].processes};
        snprintf(text, sizeof text,
                 "{\"train_micro_batch_size_per_gpu\": 1, \"comm\": {\"reduction\": \"native\"}%s}",
                 cases[i].type);
        zero_engine *engine = zero_engine_init_with(text, &runtime);
        CHECK_INT(engine == NULL, cases[i].refused);
        if (!engine)
            CHECK_CONTAINS(zero_last_error(), "comm.reduction: MPI's native reductions support only fp32");
        zero_engine_destroy(engine);
    }
}

static void many_ranks_are_no_more_work(void) {
    zero_plan few = plan(64, 0), many = plan(65536, 0);
    CHECK_INT(few.params, 4778);
    CHECK_INT(many.params, 4778);
    CHECK(many.param_bytes < few.param_bytes + 64 * 3);
    zero_engine *engine = open_planner(65537, 0, 0);
    CHECK(!engine);
    CHECK_CONTAINS(zero_last_error(), "65537");
    zero_engine_destroy(engine);
}

static zero_plan plan_deep(uint32_t units) {
    zero_plan out = {.struct_size = sizeof out};
    zero_engine *engine = open_planner(8, 0, 0);
    for (uint32_t i = 0; i < units; i++) {
        char name[16];
        zero_unit *unit;
        static zero_slot slot;
        zero_param param = {
            .struct_size = sizeof param, .name = name, .dims = 1, .shape = {1 << 20}, .slot = &slot};
        snprintf(name, sizeof name, "%u", i);
        CHECK_INT(zero_engine_add_unit(engine, name, &unit), ZERO_OK);
        CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
    }
    CHECK_INT(zero_engine_plan(engine, &out), ZERO_OK);
    zero_engine_destroy(engine);
    return out;
}

/* Lists of pairs of units would take a gigabyte, and comparing them takes 40 times as long. */
static void many_units_are_no_more_work_each(void) {
    struct rusage used;
    zero_plan few = plan_deep(1000), many = plan_deep(8000);
    CHECK(few.gathered_bytes > 0);
    CHECK_INT(many.gathered_bytes, few.gathered_bytes);
    CHECK_INT(getrusage(RUSAGE_SELF, &used), 0);
    if (!SANITIZED) CHECK(used.ru_maxrss < 200 << 10);
}

static void calls_that_make_no_sense_are_refused(void) {
    struct plain p;
    zero_unit *unit;
    zero_engine *engine = open_planner(2, 0, 0);
    CHECK_INT(plain_declare(&p, engine, params, 3), ZERO_OK);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_E_ORDER);
    CHECK_CONTAINS(zero_last_error(), "only plans: call zero_engine_plan");
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_E_ORDER);
    CHECK_INT(zero_engine_plan(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_plan(engine, NULL), ZERO_E_ORDER);
    CHECK_CONTAINS(zero_last_error(), "planned already");
    CHECK_INT(zero_engine_add_unit(engine, "d", &unit), ZERO_E_ORDER);
    CHECK_CONTAINS(zero_last_error(), "declare everything before zero_engine_plan");
    zero_engine_destroy(engine);
}

static void plan_without_plan_ranks(zero_engine *engine, uint32_t rank, void *user) {
    CHECK_INT(zero_engine_plan(engine, NULL), ZERO_E_ORDER);
    CHECK_CONTAINS(zero_last_error(), "opened without plan_ranks");
}

/* The trace's memory is reserved when the plan is made, after everything was declared. */
static void planned_with_a_trace(void) {
    static const char traced[] = "{\"train_micro_batch_size_per_gpu\": 1, \"trace\": {\"steps\": 2}}";
    zero_runtime runtime = {.struct_size = sizeof runtime, .plan_ranks = 2};
    zero_plan planned = plan_by(zero_engine_init_with(traced, &runtime), 2);
    CHECK(planned.reserved_bytes > 0);
    ranks_run(2, traced, commit, &planned);
}

int main(void) {
    planned_with_a_trace();
    planned_is_committed();
    planned_for_a_gpu_is_committed();
    processes_need_staging();
    native_sums();
    many_ranks_are_no_more_work();
    many_units_are_no_more_work_each();
    calls_that_make_no_sense_are_refused();
    ranks_run(1, json, plan_without_plan_ranks, NULL);
    return check_end();
}
