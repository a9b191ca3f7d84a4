/* The simulator's invariants catch stages that are broken on purpose, without data. Each message names rank, operation
 * and unit; at every seed, with a random order of events and with an even one. */
#include "tests/check.h"
#include "tests/executor/toy_sim.h"

enum { BROKEN_RANK = 2, BROKEN_REGION = 3 /* of "c" */ };

/* Finds the operation of a list that the broken stage changes. */
static struct operation *find(struct operation_list *list, enum operation_kind kind, enum object object) {
    for (uint32_t i = 0; i < list->count; i++) {
        struct operation *op = &list->item[i];
        if (op->kind == kind && op->object == object && op->region == BROKEN_REGION) return op;
    }
    return NULL;
}

static void drop(struct operation_list *list, struct operation *op) {
    uint32_t at = (uint32_t)(op - list->item);
    memmove(op, op + 1, (list->count - at - 1) * sizeof *op);
    list->count--;
}

/* The unit is released before the computation, and compute does not list it as read. */
static void release_early(void *user, uint32_t rank, struct operation_list *list) {
    struct operation *compute = find(list, OP_COMPUTE, OBJECT_PARAM);
    if (rank != BROKEN_RANK || !compute) return;
    struct operation release = {
        .kind = OP_RELEASE, .object = OBJECT_PARAM, .stream = STREAM_COMPUTE, .items = 1};
    release.region = BROKEN_REGION;
    release.write[release.writes++] = compute->read[0];
    struct operation moved = *compute;
    moved.reads = 0;
    *compute = release;
    list->item[list->count++] = moved;
}

static void release_everywhere(void *user, uint32_t rank, struct operation_list *list) {
    release_early(user, BROKEN_RANK, list);
}

/* The same, but compute lists the unit as read. */
static void release_known(void *user, uint32_t rank, struct operation_list *list) {
    uint32_t before = list->count;
    release_early(user, rank, list);
    struct operation *last = &list->item[list->count - 1];
    if (list->count > before)
        last->read[last->reads++] = (struct buffer_ref){BUFFER_PARAM_FULL, BROKEN_REGION};
}

static void skip_reduction(void *user, uint32_t rank, struct operation_list *list) {
    struct operation *reduce = find(list, OP_REDUCE, OBJECT_GRAD);
    if (rank == BROKEN_RANK && reduce) drop(list, reduce);
}

/* Skips the step's last reduction: the next operation on its communicator belongs to the next step. */
static void skip_last_reduction(void *user, uint32_t rank, struct operation_list *list) {
    for (uint32_t i = 0; i < list->count; i++)
        if (rank == BROKEN_RANK && list->item[i].kind == OP_REDUCE && list->item[i].region == 0) {
            drop(list, &list->item[i]);
            return;
        }
}

/* Skips the reduction on all ranks, so no rank diverges. */
static void skip_everywhere(void *user, uint32_t rank, struct operation_list *list) {
    struct operation *reduce = find(list, OP_REDUCE, OBJECT_GRAD);
    if (reduce) drop(list, reduce);
}

static void skip_gather(void *user, uint32_t rank, struct operation_list *list) {
    struct operation *gather = find(list, OP_GATHER, OBJECT_PARAM);
    if (rank == BROKEN_RANK && gather) drop(list, gather);
}

static void skip_update(void *user, uint32_t rank, struct operation_list *list) {
    struct operation *update = find(list, OP_UPDATE, OBJECT_STATE);
    if (rank == BROKEN_RANK && update) drop(list, update);
}

static void gather_other(void *user, uint32_t rank, struct operation_list *list) {
    struct operation *gather = find(list, OP_GATHER, OBJECT_PARAM);
    if (rank == BROKEN_RANK && gather) gather->region = BROKEN_REGION + 1;
}

static const struct {
    const char *name;
    void (*listed)(void *user, uint32_t rank, struct operation_list *list);
    const char *says[3];  /* rank, operation, unit */
    const char *finds[3]; /* where ranks may emit differently */
} broken[] = {
    {"releases a unit too early",
     release_early,
     {"rank 2 emitted RELEASE of \"c\"", "emitted COMPUTE of \"c\"", ""},
     {"rank 2", "forward of \"c\" computes", "parameters of \"c\" were released"}},
    {"releases a unit too early on all ranks",
     release_everywhere,
     {"rank ", "forward of \"c\" computes", "parameters of \"c\" were released"},
     {"rank ", "forward of \"c\" computes", "parameters of \"c\" were released"}},
    {"releases a unit that it reads",
     release_known,
     {"rank 2 emitted RELEASE of \"c\"", "emitted COMPUTE of \"c\"", ""},
     {"rank 2", "COMPUTE of \"c\"", "buffer that is not in memory"}},
    {"skips a reduction on one rank",
     skip_reduction,
     {"rank 2 emitted", "emitted REDUCE of \"c\"", ""},
     {"rank 2 ", "reduce-scatter", " c ("}},
    {"skips the last reduction on one rank",
     skip_last_reduction,
     {"rank 2 emitted", "emitted REDUCE of \"in\"", ""},
     {"nothing can go on", "REDUCE of \"in\" is never done", "waits for reductions"}},
    {"skips a reduction on all ranks",
     skip_everywhere,
     {"rank ", "UPDATE of \"c\"", "the reduced gradient of \"c\", which nothing was ever written to"},
     {"rank ", "UPDATE of \"c\"", "the reduced gradient of \"c\", which nothing was ever written to"}},
    {"skips a gather on one rank",
     skip_gather,
     {"rank 2 emitted", "emitted GATHER of \"c\"", ""},
     {"rank 2", "COMPUTE of \"c\"", "buffer that is not in memory"}},
    {"skips an update on one rank",
     skip_update,
     {"rank 2 emitted UPDATE", "emitted UPDATE of \"c\"", ""},
     {"rank 2", "elements of \"c\" were updated", ""}},
    {"gathers another unit",
     gather_other,
     {"rank 2 emitted GATHER of \"fix\"", "emitted GATHER of \"c\"", ""},
     {"rank 2 ", "all-gather", " c ("}},
};

enum { BROKEN = sizeof broken / sizeof *broken };

static struct toy_sim toy(uint64_t seed, uint64_t chaos_ns) {
    struct toy_sim t = {.toy = toy_setup_default(), .stage = &stage_zero3, .mesh = {4, 1}, .seed = seed};
    t.chaos_ns = chaos_ns;
    t.toy.steps = 3, t.toy.threshold = 0, t.toy.mode = "every", t.toy.depth = t.backward_depth = 1;
    return t;
}

static zero_status run(const struct toy_sim *t, const struct sim_sabotage *sabotage,
                       struct zero_error *error) {
    struct sim_model model;
    struct sim_setup setup = toy_sim_setup(t, &model);
    struct sim_result result = {0};
    error_clear(error);
    setup.sabotage = sabotage;
    zero_status status = sim_run(&setup, &result, error);
    if (!status && result.status) *error = result.error, status = result.status;
    return status;
}

static bool holds(const char *message, const char *const parts[3]) {
    return strstr(message, parts[0]) && strstr(message, parts[1]) && strstr(message, parts[2]);
}

/* Unless ranks may emit different operations, a rank that differs is found when another rank reaches the same place, if
 * no other error was found before. */
static bool expect(const struct toy_sim *t, uint32_t i, bool unequal) {
    struct sim_sabotage sabotage = {.listed = broken[i].listed, .unequal = unequal};
    struct zero_error error;
    CHECK(run(t, &sabotage, &error) != ZERO_OK);
    if (!CHECK(holds(error.message, broken[i].finds) || (!unequal && holds(error.message, broken[i].says))))
        fprintf(stderr, "a stage that %s: %s\n", broken[i].name, error.message);
    return holds(error.message, broken[i].says);
}

int main(void) {
    struct zero_error error;
    uint32_t said[BROKEN] = {0};
    for (uint64_t seed = 1; seed <= 20; seed++) {
        check_seed(seed);
        struct toy_sim t = toy(seed, seed % 2 ? 50 : 0);
        run(&t, NULL, &error);
        CHECK_STRING(error.message, "");
        for (uint32_t i = 0; i < BROKEN; i++) {
            said[i] += expect(&t, i, false);
            expect(&t, i, true);
        }
    }
    for (uint32_t i = 0; i < BROKEN; i++)
        if (!CHECK(said[i] > 5)) fprintf(stderr, "a stage that %s\n", broken[i].name);
    return check_end();
}
