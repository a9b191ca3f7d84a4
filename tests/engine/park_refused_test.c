/* What refuses to park or to unpark: calls out of order, tiers, budgets, memory, a drive that fails or damages. All ranks answer the
 * same, nothing has changed, and the training then ends with the bits of one that was never parked. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/tcp_ranks.h"
#include "tests/engine/toy_model.h"
#include "tests/engine/toy_trainer.h"
#include "tests/offload/faults.h"

#define KEYS                                                                                                 \
    "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}, \"train_micro_batch_size_per_gpu\": " \
    "1, \"comm\": {\"timeout_s\": 20}, "
#define NONE "\"offload_optimizer\": {\"device\": \"none\", \"nvme_path\": \"/tmp\"}"

/* About 300,000 bytes rest on each of two ranks: 18 pieces or more of a park to a drive. */
#define PIECES ", \"piece_bytes\": 65536"
static const struct plain_param model[] = {
    {"a", "a.w", 40000, 0, NULL}, {"b", "b.w", 9000, 0, NULL}, {"b", "b.b", 17, ZERO_NO_DECAY, NULL}};
enum { PARAMS = sizeof model / sizeof *model };

static zero_status expect(zero_status status, zero_status expected, const char *part) {
    if (CHECK_INT(status, expected) && part) CHECK_CONTAINS(zero_last_error(), part);
    return status;
}

static void steps(struct plain *p, int count) {
    for (int i = 0; i < count; i++) CHECK_INT(plain_step(p, 1, NULL), ZERO_OK);
}

/* ---- the order of calls ---- */

#define PARKED "the engine is parked"
#define REFUSED(call)                                                                                        \
    expect(call, ZERO_E_ORDER, PARKED ", and its memory is given back: call zero_engine_unpark")

static void every_call(struct plain *p) {
    zero_engine *e = p->engine;
    zero_unit *unit = p->unit[1];
    zero_handle *param = zero_engine_param(e, "a.w");
    zero_slot slot;
    zero_param declared = {.struct_size = sizeof declared, .name = "x", .dims = 1, .shape = {1}};
    zero_group group = {.struct_size = sizeof group};
    float value[1] = {0};
    double sum = 0;
    char hash[33];
    int index;
    REFUSED(zero_engine_park(e, ZERO_CPU));
    REFUSED(zero_micro_begin(e, ZERO_EVAL));
    REFUSED(zero_micro_resume(e));
    REFUSED(zero_micro_cancel(e));
    REFUSED(zero_forward_begin(unit));
    REFUSED(zero_forward_end(unit));
    REFUSED(zero_backward_begin(unit));
    REFUSED(zero_backward_end(unit));
    REFUSED(zero_unit_next_micro(unit));
    REFUSED(zero_param_give_grad(param, value));
    REFUSED(zero_unit_give_grads(unit, (const void *const[]){value, value}));
    REFUSED(zero_engine_step(e, NULL));
    REFUSED(zero_engine_flush(e));
    REFUSED(zero_engine_set_lr(e, 0, 1));
    REFUSED(zero_engine_set_schedule(e, NULL, NULL));
    REFUSED(zero_engine_get(e, "a.w", ZERO_PARAM, value, 0, 1));
    REFUSED(zero_engine_put(e, "a.w", ZERO_PARAM, value, 0, 1));
    REFUSED(zero_param_get(param, ZERO_PARAM, value, 0, 1));
    REFUSED(zero_param_put(param, ZERO_PARAM, value, 0, 1));
    REFUSED(zero_param_get_owned(param, ZERO_PARAM, value, 0, 1));
    REFUSED(zero_param_put_owned(param, ZERO_PARAM, value, 0, 1));
    REFUSED(zero_engine_written(e));
    REFUSED(zero_param_addresses(param, &slot));
    REFUSED(zero_engine_hash(e, hash));
    REFUSED(zero_engine_sum(e, &sum, 1));
    REFUSED(zero_engine_fill(e, toy_fill, NULL));
    REFUSED(zero_engine_recover(e, toy_fill, NULL, NULL));
    REFUSED(zero_engine_save(e, "/tmp/none"));
    REFUSED(zero_engine_save_wait(e));
    REFUSED(zero_engine_load(e, "/tmp/none"));
    REFUSED(zero_engine_load_weights(e, "/tmp/none"));
    REFUSED(zero_engine_prune(e, "/tmp/none", 1));
    REFUSED(zero_engine_set_note(e, "key", "text"));
    REFUSED(zero_engine_discard_shadow(e));
    REFUSED(zero_engine_write_trace(e, "/tmp/none"));
    REFUSED(zero_engine_commit(e, NULL));
    REFUSED(zero_engine_add_unit(e, "c", &unit));
    REFUSED(zero_unit_add_param(p->unit[0], &declared));
    REFUSED(zero_engine_add_group(e, &group, &index));
}

static void reads(struct plain *p) {
    zero_engine *e = p->engine;
    zero_handle *param = zero_engine_param(e, "a.w");
    zero_counters counters = {.struct_size = sizeof counters};
    zero_memory_row row = {.struct_size = sizeof row};
    zero_memory_owner owner = {.struct_size = sizeof owner};
    uint64_t first, count;
    CHECK_INT(zero_engine_size(e), 2);
    CHECK_INT(zero_engine_steps(e), 1);
    CHECK_DOUBLE(zero_engine_loss_scale(e), 1, 0);
    CHECK_STRING(zero_engine_note(e, "key"), "before");
    CHECK_STRING(zero_engine_setting(e, "zero_optimization.stage"), "3");
    CHECK_INT(zero_engine_counters(e, &counters), ZERO_OK);
    CHECK_INT(zero_engine_memory(e, 0, &row), ZERO_OK);
    CHECK_INT(zero_engine_memory_owner(e, 0, &owner), ZERO_OK);
    CHECK_INT(zero_param_count(param), 40000);
    CHECK_INT(zero_param_owned(param, ZERO_PARAM, &first, &count), ZERO_OK);
    CHECK_INT(count, 20000);
}

static void order(zero_engine *e, uint32_t rank, void *user) {
    struct plain p;
    expect(zero_engine_park(e, ZERO_CPU), ZERO_E_ORDER, "call zero_engine_commit first");
    expect(zero_engine_unpark(e), ZERO_E_ORDER, "the engine is not parked");
    CHECK_INT(plain_open(&p, e, model, PARAMS, NULL), ZERO_OK);
    CHECK_INT(zero_engine_set_note(e, "key", "before"), ZERO_OK);
    expect(zero_engine_park(e, ZERO_DEVICE), ZERO_E_ARGUMENT, "give ZERO_CPU or ZERO_NVME");
    expect(zero_engine_park(e, (zero_tier)7), ZERO_E_ARGUMENT, "tier 7");
    CHECK_INT(zero_micro_begin(e, ZERO_TRAIN), ZERO_OK);
    CHECK_INT(zero_forward_begin(p.unit[0]), ZERO_OK);
    expect(zero_engine_park(e, ZERO_CPU), ZERO_E_ORDER, "unit \"a\" is still in use");
    CHECK_INT(zero_forward_end(p.unit[0]), ZERO_OK);
    expect(zero_engine_park(e, ZERO_CPU), ZERO_E_ORDER, "between its forward and its backward");
    CHECK_INT(zero_micro_cancel(e), ZERO_OK);
    CHECK_INT(plain_pass(&p, ZERO_TRAIN, 0), ZERO_OK);
    expect(zero_engine_park(e, ZERO_CPU), ZERO_E_ORDER, "call it between steps, not between micro-steps");
    CHECK_INT(zero_engine_step(e, NULL), ZERO_OK);
    expect(zero_engine_park(e, rank ? ZERO_NVME : ZERO_CPU), ZERO_E_ARGUMENT,
           "rank 1 has another tier than rank 0");
    CHECK_INT(zero_engine_park(e, ZERO_CPU), ZERO_OK);
    every_call(&p);
    reads(&p);
    expect(zero_engine_unpark(NULL), ZERO_E_ARGUMENT, "the engine is NULL");
    CHECK_INT(zero_engine_unpark(e), ZERO_OK);
    expect(zero_engine_unpark(e), ZERO_E_ORDER, "not parked");
    steps(&p, 1);
    CHECK_INT(zero_engine_park(e, ZERO_NVME), ZERO_OK); /* and is destroyed so */
}

/* Also before there are weights. */
static void no_drive(zero_engine *e, uint32_t rank, void *user) {
    struct plain p;
    CHECK_INT(plain_declare(&p, e, model, PARAMS), ZERO_OK);
    CHECK_INT(zero_engine_commit(e, NULL), ZERO_OK);
    CHECK_INT(zero_engine_park(e, ZERO_CPU), ZERO_OK);
    CHECK_INT(zero_engine_unpark(e), ZERO_OK);
    CHECK_INT(zero_engine_fill(e, toy_fill, NULL), ZERO_OK);
    expect(zero_engine_park(e, ZERO_NVME), ZERO_E_ARGUMENT,
           "set zero_optimization.offload_optimizer.nvme_path, or give ZERO_CPU");
    CHECK_INT(zero_engine_park(e, ZERO_CPU), ZERO_OK);
}

/* ---- budgets ---- */

static void budgets(zero_engine *e, uint32_t rank, void *user) {
    struct plain p;
    CHECK_INT(plain_open(&p, e, model, PARAMS, NULL), ZERO_OK);
    expect(zero_engine_park(e, ZERO_CPU), ZERO_E_BUDGET, "memory.cpu: a parked engine needs ");
    CHECK_CONTAINS(zero_last_error(), "raise it, or park to ZERO_NVME");
    expect(zero_engine_park(e, ZERO_NVME), ZERO_E_BUDGET, "memory.nvme: a parked engine needs ");
    steps(&p, 1);
}

/* ---- memory of one rank ---- */

static _Thread_local enum device_memory refused_kind;
static _Thread_local bool refuses;

static void *scarce(struct device *device, uint64_t bytes, enum device_memory kind) {
    bool no = refuses && kind == refused_kind && bytes > 100000;
    return no ? NULL : device_table[DEVICE_HOST]->allocate(device, bytes, kind);
}

static struct device_ops scarce_ops;

static void memory(zero_engine *e, uint32_t rank, void *user) {
    struct plain p;
    char hash[2][33];
    const char *sentence = rank ? "tier cpu: the system refused" : "rank 1: tier cpu: the system refused";
    engine_running(e)->device->ops = &scarce_ops;
    CHECK_INT(plain_open(&p, e, model, PARAMS, NULL), ZERO_OK);
    steps(&p, 2);
    refuses = rank == 1, refused_kind = DEVICE_PINNED;
    expect(zero_engine_park(e, ZERO_CPU), ZERO_E_MEMORY, sentence);
    refuses = false;
    CHECK_INT(zero_engine_hash(e, hash[0]), ZERO_OK);
    for (int i = 0; i < 2; i++) { /* also after a park */
        CHECK_INT(zero_engine_park(e, i ? ZERO_NVME : ZERO_CPU), ZERO_OK);
        refuses = rank == 1, refused_kind = DEVICE_MEMORY;
        sentence = rank ? "tier device: the system refused" : "rank 1: tier device: the system refused";
        expect(zero_engine_unpark(e), ZERO_E_MEMORY, sentence);
        REFUSED(zero_engine_flush(e));
        expect(zero_engine_unpark(e), ZERO_E_MEMORY, sentence);
        refuses = false;
        CHECK_INT(zero_engine_unpark(e), ZERO_OK);
    }
    CHECK_INT(zero_engine_hash(e, hash[1]), ZERO_OK);
    CHECK_STRING(hash[1], hash[0]);
    refuses = rank == 1, refused_kind = DEVICE_PINNED;
    sentence = rank ? "tier cpu: the system refused" : "rank 1: tier cpu: the system refused";
    expect(zero_engine_park(e, ZERO_CPU), ZERO_E_MEMORY, sentence);
    refuses = false;
    steps(&p, 1);
}

/* ---- a drive that fails, and one that damages ---- */

struct trial {
    enum fault fault;
    bool parking; /* fires while parking; else while unparking */
    zero_status expected;
    const char *part;
} trials[] = {
    {FAULT_EIO, true, ZERO_E_IO, "Input/output error"},
    {FAULT_ENOSPC, true, ZERO_E_IO, "No space left"},
    {FAULT_EIO, false, ZERO_E_IO, "Input/output error"},
    {FAULT_FLIPPED, false, ZERO_E_IO, "of the parked state came back damaged from /tmp at offset"},
    /* no failure: they only change the order, or need another try */
    {FAULT_DELAYED, true, ZERO_OK, NULL},
    {FAULT_REORDERED, false, ZERO_OK, NULL},
    {FAULT_EINTR, true, ZERO_OK, NULL},
    {FAULT_SHORT, false, ZERO_OK, NULL},
};
enum { TRIALS = sizeof trials / sizeof *trials };

struct drive {
    struct faults faults;
    char hash[2][33];
};

static void set(struct drive *d, const struct trial *t, bool on) {
    bool always = t->expected != ZERO_OK;
    atomic_store(&d->faults.probability[t->fault], !on ? 0 : always ? 1 : 0.5);
}

static void failing_drive(zero_engine *e, uint32_t rank, void *user) {
    struct drive *d = user;
    struct plain p;
    if (rank == 1) engine_running(e)->hook = faults_hook(&d->faults);
    CHECK_INT(plain_open(&p, e, model, PARAMS, NULL), ZERO_OK);
    for (int i = 0; i < TRIALS; i++) {
        const struct trial *t = &trials[i];
        steps(&p, 1);
        if (rank == 1) set(d, t, t->parking);
        if (t->parking) expect(zero_engine_park(e, ZERO_NVME), t->expected, t->part);
        if (rank == 1) set(d, t, false);
        if (!t->parking || t->expected) CHECK_INT(zero_engine_park(e, ZERO_NVME), ZERO_OK);
        if (rank == 1) set(d, t, !t->parking);
        if (!t->parking) expect(zero_engine_unpark(e), t->expected, t->part);
        if (rank == 1) set(d, t, false);
        if (t->parking || t->expected) CHECK_INT(zero_engine_unpark(e), ZERO_OK);
        if (rank == 1) CHECK(atomic_load(&d->faults.fired[t->fault]) > 0);
    }
    if (rank == 1) return (void)CHECK_INT(zero_engine_hash(e, d->hash[1]), ZERO_OK);
    CHECK_INT(zero_engine_hash(e, d->hash[0]), ZERO_OK);
}

/* A write that the drive lost: found when it comes back, each time. The engine can only be destroyed. */
static void lost_write(zero_engine *e, uint32_t rank, void *user) {
    struct drive *d = user;
    struct plain p;
    if (rank == 1) engine_running(e)->hook = faults_hook(&d->faults);
    CHECK_INT(plain_open(&p, e, model, PARAMS, NULL), ZERO_OK);
    if (rank == 1) atomic_store(&d->faults.probability[FAULT_STALE], 0.5);
    CHECK_INT(zero_engine_park(e, ZERO_NVME), ZERO_OK);
    if (rank == 1) atomic_store(&d->faults.probability[FAULT_STALE], 0);
    for (int i = 0; i < 2; i++)
        expect(zero_engine_unpark(e), ZERO_E_IO, "of the parked state came back damaged");
}

static void never_parked(zero_engine *e, uint32_t rank, void *user) {
    struct plain p;
    CHECK_INT(plain_open(&p, e, model, PARAMS, NULL), ZERO_OK);
    steps(&p, TRIALS);
    char hash[33];
    CHECK_INT(zero_engine_hash(e, hash), ZERO_OK);
    if (rank == 0) memcpy(user, hash, sizeof hash);
}

/* Over TCP, ranks are processes. */
static void in_process(const zero_runtime *runtime, void *user) {
    static const char json[] = "{" KEYS "\"zero_optimization\": {\"stage\": 3, " NONE PIECES "}}";
    zero_engine *engine = zero_engine_init_with(json, runtime);
    struct plain p;
    char hash[33];
    if (!CHECK(engine)) return;
    CHECK_INT(plain_open(&p, engine, model, PARAMS, NULL), ZERO_OK);
    for (int i = 0; i < TRIALS; i++) {
        steps(&p, 1);
        expect(zero_engine_park(engine, runtime->rank && i == 2 ? ZERO_NVME : ZERO_CPU),
               i == 2 ? ZERO_E_ARGUMENT : ZERO_OK, NULL);
        if (i != 2) CHECK_INT(zero_engine_unpark(engine), ZERO_OK);
    }
    CHECK_INT(zero_engine_hash(engine, hash), ZERO_OK);
    CHECK_STRING(hash, user);
    zero_engine_destroy(engine);
}

static void drives(const char *json) {
    static struct drive d = {.faults = {.seed = 5}}, lost = {.faults = {.seed = 6}};
    char expected[33] = "";
    ranks_run(2, json, never_parked, expected);
    ranks_run(2, json, failing_drive, &d);
    CHECK_STRING(d.hash[0], expected);
    CHECK_STRING(d.hash[1], expected);
    ranks_run(2, json, lost_write, &lost);
    tcp_processes(2, 200, in_process, expected);
}

int main(void) {
    scarce_ops = *device_table[DEVICE_HOST];
    scarce_ops.allocate = scarce;
    static const char json[] = "{" KEYS "\"zero_optimization\": {\"stage\": 3, " NONE PIECES "}}";
    ranks_run(2, json, order, NULL);
    ranks_run_discrete(2, json, order, NULL);
    ranks_run(2, "{" KEYS "\"zero_optimization\": {\"stage\": 2}}", no_drive, NULL);
    ranks_run(
        2,
        "{" KEYS
        "\"memory\": {\"cpu\": 150000, \"nvme\": 100000}, \"zero_optimization\": {\"stage\": 3, " NONE PIECES
        "}}",
        budgets, NULL);
    ranks_run(2, json, memory, NULL);
    drives(json);
    return check_end();
}
