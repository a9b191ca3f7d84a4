/* Programs that cut their model themselves (zero_runtime.model_size): tensor parallel, in a pipeline, and both, over data ranks. Losses
 * and weights are those of the uncut model; norm, skip and failure are one for all ranks; checkpoints are loaded on other numbers of
 * data ranks, and cut otherwise. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/cut_model.h"

enum { STEPS = 3 };

static const struct cut uncut = {.tensor = 1, .stages = 1, .data = 2},
                        tensor = {.tensor = 2, .stages = 1, .data = 2},
                        pipeline = {.tensor = 1, .stages = 2, .data = 2},
                        both = {.tensor = 2, .stages = 2, .data = 2};

/* A configuration: clipping is active, unless `clip` is 0. */
static const char *config(const char *stage_keys, double clip, const char *keys) {
    static _Thread_local char json[1200];
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_clipping\": %g, \"optimizer\": {\"type\": "
             "\"AdamW\", \"params\": {\"lr\": 1e-2, \"eps\": 1e-4}}, \"comm\": {\"timeout_s\": 5}, "
             "\"zero_optimization\": {\"stage3_param_persistence_threshold\": 0, %s}%s}",
             CUT_BATCH * CUT_MICROS, clip, stage_keys, keys);
    return json;
}

static const char *directory(void) { return getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp"; }

static const char *on_drive(const char *name) {
    static _Thread_local char keys[600];
    snprintf(keys, sizeof keys,
             "\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/%s\"}, "
             "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s/%s\"}",
             directory(), name, directory(), name);
    return keys;
}

static const char *on_nvme(void) { return on_drive("swap"); }

static zero_step_info step(struct cut_model *m) {
    zero_step_info info = {.struct_size = sizeof info};
    if (!CHECK_INT(cut_step(m, &info), ZERO_OK)) fprintf(stderr, "rank %u: %s\n", m->rank, zero_last_error());
    return info;
}

static bool ok(zero_status status) {
    if (CHECK_INT(status, ZERO_OK)) return true;
    fprintf(stderr, "%s\n", zero_last_error());
    return false;
}

static bool start(struct cut_model *m) {
    if (!CHECK(m->engine)) return fprintf(stderr, "%s\n", zero_last_error()), false;
    return ok(cut_declare(m)) && ok(zero_engine_commit(m->engine, NULL)) &&
           ok(zero_engine_fill(m->engine, cut_fill, NULL));
}

/* ---- the bits ---- */

struct result {
    double norm[STEPS], loss[STEPS]; /* loss: over all data ranks */
    char hash[33];
    struct cut_weights weights;
    pthread_mutex_t mutex;
};

static void train(struct cut_model *m, void *user) {
    struct result *out = user;
    char hash[33];
    if (!start(m)) return;
    for (int i = 0; i < STEPS; i++) {
        zero_step_info info = step(m);
        double loss = m->tp == 0 ? m->loss : 0;
        ok(zero_engine_sum(m->engine, &loss, 1));
        pthread_mutex_lock(&out->mutex);
        if (!out->norm[i]) out->norm[i] = info.grad_norm, out->loss[i] = loss;
        CHECK(memcmp(&out->norm[i], &info.grad_norm, sizeof(double)) == 0); /* on all ranks, and stages */
        CHECK_DOUBLE(loss, out->loss[i], 0);
        pthread_mutex_unlock(&out->mutex);
    }
    ok(zero_engine_hash(m->engine, hash));
    pthread_mutex_lock(&out->mutex);
    if (!*out->hash) strcpy(out->hash, hash);
    CHECK_STRING(hash, out->hash);
    pthread_mutex_unlock(&out->mutex);
    cut_read(m, &out->weights);
}

static struct result *result(void) {
    struct result *r = calloc(1, sizeof *r);
    if (!CHECK(r)) abort();
    pthread_mutex_init(&r->mutex, NULL);
    return r;
}

static void compare(const struct result *a, const struct result *b) {
    const float *x = (const float *)&a->weights, *y = (const float *)&b->weights;
    for (int i = 0; i < STEPS; i++) {
        CHECK_DOUBLE(a->norm[i], b->norm[i], 1e-5);
        CHECK_DOUBLE(a->loss[i], b->loss[i], 1e-5);
    }
    for (size_t i = 0; i < sizeof a->weights / sizeof(float); i++)
        if (!CHECK_DOUBLE(x[i], y[i], 1e-5)) return;
}

/* Every stage and tier gives the same norm, hash and weights; they are the uncut model's within rounding. */
static void test_bits(void) {
    const char *const places[] = {"\"stage\": 0",
                                  "\"stage\": 1",
                                  "\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"}",
                                  "\"stage\": 3",
                                  "\"stage\": 3, \"zero_hpz_partition_size\": 1",
                                  on_nvme()};
    const struct cut own_names = {.tensor = 2, .stages = 1, .data = 2, .own_names = true, .strided = true},
                     strided = {.tensor = 2, .stages = 2, .data = 2, .strided = true};
    const struct cut *const cuts[] = {&tensor, &pipeline, &both, &strided, &own_names};
    struct result *expected = result();
    cut_run(&uncut, config("\"stage\": 0", 0.5, ""), train, expected);
    CHECK(expected->norm[0] > 0.6); /* clipping is active */
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        struct result *r = result();
        for (size_t i = 0; i < sizeof places / sizeof *places; i++)
            cut_run(cuts[c], config(places[i], 0.5, ""), train, r);
        compare(r, expected);
        free(r);
    }
    free(expected);
}

/* A pipeline adds nothing in another order: without clipping, whose norm does, it has the uncut model's bits. */
static void test_pipeline_is_exact(void) {
    struct result *expected = result(), *r = result();
    cut_run(&uncut, config("\"stage\": 1", 0, ""), train, expected);
    cut_run(&pipeline, config("\"stage\": 3", 0, ""), train, r);
    CHECK_STRING(r->hash, expected->hash);
    free(expected), free(r);
}

/* Groups among 4 data ranks: each experiment has one hash, as on ranks of a whole model. */
static void test_groups(void) {
    const struct cut four = {.tensor = 2, .stages = 1, .data = 4};
    struct result *shared = result(), *plain = result();
    cut_run(&four, config("\"stage\": 3, \"mics_shard_size\": 2", 0.5, ""), train, shared);
    cut_run(&four, config("\"stage\": 1, \"mics_shard_size\": 2", 0.5, ""), train, shared);
    cut_run(&four, config("\"stage\": 3, \"zero_hpz_partition_size\": 2", 0.5, ""), train, plain);
    cut_run(&four, config("\"stage\": 0", 0.5, ""), train, plain);
    free(shared), free(plain);
}

/* ---- what belongs to a data rank ---- */

static void check_seat(struct cut_model *m, void *user) {
    zero_engine *e = m->engine;
    if (!CHECK(e)) return;
    CHECK_INT(zero_engine_rank(e), m->rank);
    CHECK_INT(zero_engine_size(e), 8);
    CHECK_INT(zero_engine_data_rank(e), m->data_rank);
    CHECK_INT(zero_engine_data_size(e), 2);
    CHECK_INT(zero_engine_train_batch(e), 2 * CUT_BATCH * CUT_MICROS);
}

static void test_seats(void) {
    const struct cut strided = {.tensor = 2, .stages = 2, .data = 2, .strided = true};
    cut_run(&both, config("\"stage\": 0", 0, ""), check_seat, NULL);
    cut_run(&strided, config("\"stage\": 0", 0, ""), check_seat, NULL);
}

/* Patterns that only another stage's parameters match are no mistake. */
static void train_groups(struct cut_model *m, void *user) {
    if (!start(m)) return;
    zero_step_info info = step(m);
    CHECK_INT(info.groups, 3);
    CHECK_DOUBLE(info.group_lr[1], 0.25, 0);
}

static void check_unmatched(struct cut_model *m, void *user) {
    if (!CHECK(m->engine)) return;
    ok(cut_declare(m));
    CHECK_INT(zero_engine_commit(m->engine, NULL), ZERO_E_CONFIG);
    CHECK_CONTAINS(zero_last_error(), "no parameter's name matches \"h9.w1\"");
}

static void test_param_groups(void) {
    cut_run(&pipeline,
            config("\"stage\": 2", 0,
                   ", \"param_groups\": [{\"match\": [\"h3.w1\"], \"lr\": 0.25}, {\"match\": [\"h0.*\"]}]"),
            train_groups, NULL);
    cut_run(&pipeline, config("\"stage\": 2", 0, ", \"param_groups\": [{\"match\": [\"h9.w1\"]}]"),
            check_unmatched, NULL);
}

/* ---- plans ---- */

static void check_plan(struct cut_model *m, void *user) {
    zero_plan measured = {.struct_size = sizeof measured}, planned = measured;
    if (!CHECK(m->engine)) return;
    ok(cut_declare(m));
    ok(zero_engine_commit(m->engine, &measured));
    uint32_t models = m->cut->tensor * m->cut->stages;
    zero_runtime runtime = {.struct_size = sizeof runtime,
                            .plan_ranks = models * m->cut->data,
                            .model_rank = m->model,
                            .model_size = models};
    struct cut_model plan = *m;
    plan.engine = zero_engine_init_with(user, &runtime);
    if (!CHECK(plan.engine)) return;
    CHECK_INT(zero_engine_data_size(plan.engine), m->cut->data);
    ok(cut_declare(&plan));
    ok(zero_engine_plan(plan.engine, &planned));
    for (int t = 0; t < ZERO_TIERS; t++) CHECK_INT(planned.bytes[t], measured.bytes[t]);
    CHECK_INT(planned.params, measured.params);
    zero_engine_destroy(plan.engine);
}

static void test_plan(void) {
    char json[1200];
    strcpy(json, config("\"stage\": 3", 0, ""));
    cut_run(&tensor, json, check_plan, json);
    cut_run(&both, json, check_plan, json);
}

/* ---- overflow ---- */

static void train_overflow(struct cut_model *m, void *user) {
    if (!start(m)) return;
    for (uint32_t i = 1; i <= 3; i++) {
        zero_step_info info = step(m);
        CHECK_INT(info.skipped, i == m->cut->nan_step);
        CHECK_INT(info.step, i < m->cut->nan_step ? i : i - 1);
        if (info.skipped) CHECK_STRING(info.overflow_unit ? info.overflow_unit : "none", "h3");
    }
}

static void test_overflow(void) {
    struct cut c = both;
    c.nan_step = 2;
    for (c.nan_model = 2; c.nan_model < 4; c.nan_model++)
        for (int replicated = 0; replicated < 2; replicated++) {
            c.nan_replicated = replicated;
            cut_run(&c, config("\"stage\": 2", 0.5, ""), train_overflow, NULL);
        }
}

/* ---- failures ---- */

/* `user`: a barrier of all ranks. A failure ends calls of every rank, so no rank may still be in its step. */
static void train_until_one_leaves(struct cut_model *m, void *user) {
    bool started = start(m);
    if (started) step(m);
    if (started && m->data_rank == 0) CHECK_INT(zero_engine_step(m->engine, NULL), ZERO_E_ORDER);
    pthread_barrier_wait(user);
    if (!started || m->rank == 3) return; /* destroys its engine */
    CHECK_INT(zero_engine_sum(m->engine, (double[1]){0}, 1), ZERO_E_PEER);
    CHECK_CONTAINS(zero_last_error(), "rank 3");
    CHECK_INT(zero_micro_begin(m->engine, ZERO_TRAIN), ZERO_E_PEER); /* sticky */
}

/* A rank declares another model than its data ranks do; and each mistake of cutting has a sentence on all ranks. */
struct mistake {
    uint32_t rank; /* that makes it */
    zero_param param;
    const char *says;
    zero_status code;
};

static void declare_mistake(struct cut_model *m, void *user) {
    const struct mistake *x = user;
    zero_unit *unit;
    zero_slot slot;
    if (!CHECK(m->engine)) return;
    zero_param param = {.struct_size = sizeof param, .name = "own", .dims = 1, .shape = {8}, .slot = &slot};
    char name[16];
    snprintf(name, sizeof name, "own.%u", m->model);
    param.name = name;
    ok(zero_engine_add_unit(m->engine, "unit", &unit));
    ok(zero_unit_add_param(unit, &param));
    param = x->param;
    param.struct_size = sizeof param, param.slot = &slot;
    if (m->rank == x->rank || x->rank == UINT32_MAX) ok(zero_unit_add_param(unit, &param));
    if (m->rank != x->rank && x->rank != UINT32_MAX && m->model == 0) {
        param =
            (zero_param){.struct_size = sizeof param, .name = "t", .dims = 1, .shape = {4}, .slot = &slot};
        ok(zero_unit_add_param(unit, &param));
    }
    CHECK_INT(zero_engine_commit(m->engine, NULL), x->code);
    CHECK_CONTAINS(zero_last_error(), x->says);
}

static void test_mistakes(void) {
    const struct mistake mistakes[] = {
        {UINT32_MAX,
         {.name = "t", .dims = 1, .shape = {4}},
         "parameter \"t\" is on model ranks 0 and 1: give both ZERO_MODEL_REPLICATED",
         ZERO_E_DIVERGED},
        {UINT32_MAX,
         {.name = "t", .dims = 1, .shape = {4}, .tensor = "t", .tensor_row = 2, .tensor_rows = 8},
         "no model rank has the elements from 0 on of tensor \"t\"",
         ZERO_E_DIVERGED},
        {UINT32_MAX,
         {.name = "t",
          .dims = 1,
          .shape = {4},
          .tensor = "t",
          .tensor_rows = 8,
          .flags = ZERO_MODEL_REPLICATED},
         "no model rank has the elements from 4 on of tensor \"t\", which has 8",
         ZERO_E_DIVERGED},
        {3,
         {.name = "t", .dims = 2, .shape = {4, 1}, .flags = ZERO_MODEL_REPLICATED},
         "rank 3 has another model than rank 1; give all ranks of a model rank the same",
         ZERO_E_DIVERGED},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
        cut_run(&tensor, config("\"stage\": 1", 0, ""), declare_mistake, (void *)(uintptr_t)&mistakes[i]);
}

static void declare_shapes(struct cut_model *m, void *user) {
    zero_unit *unit;
    zero_slot slot;
    if (!CHECK(m->engine)) return;
    ok(zero_engine_add_unit(m->engine, "unit", &unit));
    zero_param param = {.struct_size = sizeof param,
                        .name = "t",
                        .dims = 1,
                        .shape = {4 + m->model},
                        .flags = ZERO_MODEL_REPLICATED,
                        .slot = &slot};
    ok(zero_unit_add_param(unit, &param));
    CHECK_INT(zero_engine_commit(m->engine, NULL), ZERO_E_DIVERGED);
    CHECK_CONTAINS(zero_last_error(),
                   "\"t\" has another shape, or other flags or another group, on model rank 1");
}

/* A unit with the parameter is refused at once. */
static void check_refused(zero_unit *unit, zero_param param, const char *says) {
    zero_slot slot;
    param.struct_size = sizeof param, param.name = "p", param.slot = &slot;
    CHECK_INT(zero_unit_add_param(unit, &param), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), says);
}

static void declare_rows(struct cut_model *m, void *user) {
    zero_unit *unit;
    zero_slot slot;
    if (!CHECK(m->engine)) return;
    ok(zero_engine_add_unit(m->engine, "unit", &unit));
    check_refused(unit, (zero_param){.dims = 1, .shape = {4}, .tensor_row = 4}, "and tensor is NULL");
    check_refused(unit,
                  (zero_param){.dims = 1, .shape = {4}, .tensor = "t", .tensor_row = 5, .tensor_rows = 8},
                  "has the rows 5 to 9 of tensor \"t\", and tensor_rows is 8");
    check_refused(unit, (zero_param){.dims = 1, .shape = {4}, .tensor = "t", .tensor_row = 4},
                  "tensor_rows is 0: give the rows of the whole tensor");
    check_refused(
        unit,
        (zero_param){.dims = 2, .shape = {4, 8}, .tensor = "t", .tensor_row = 4, .tensor_rows = UINT64_MAX},
        "tensor \"t\" of 18446744073709551615 rows has more than 2^56 elements");
    zero_param last = {.struct_size = sizeof last,
                       .name = "last",
                       .dims = 1,
                       .shape = {4},
                       .tensor = "t",
                       .tensor_row = 4,
                       .tensor_rows = 8,
                       .slot = &slot};
    ok(zero_unit_add_param(unit, &last));
    check_refused(unit, (zero_param){.dims = 1, .shape = {4}, .tensor = "t", .tensor_rows = 8},
                  "tensor_row is before the end of \"last\"");
    check_refused(unit, (zero_param){.dims = 1, .shape = {4}, .tensor = "t", .tensor_rows = 9},
                  "the same flags, group and tensor_rows");
    CHECK_INT(zero_engine_commit(m->engine, NULL), ZERO_E_DIVERGED);
    CHECK_CONTAINS(zero_last_error(), "no model rank has the elements from 0 on of tensor \"t\"");
}

/* ---- seats that cannot be ---- */

struct seats {
    zero_local *local;
    uint32_t model_rank[4], model_size[4];
    const char *says;
};
struct seat_thread {
    pthread_t thread;
    const struct seats *seats;
    uint32_t rank;
};

static void *take_seat(void *argument) {
    const struct seat_thread *t = argument;
    zero_runtime runtime = {.struct_size = sizeof runtime,
                            .local = t->seats->local,
                            .local_rank = t->rank,
                            .model_rank = t->seats->model_rank[t->rank],
                            .model_size = t->seats->model_size[t->rank]};
    zero_engine *engine = zero_engine_init_with("{\"train_micro_batch_size_per_gpu\": 1}", &runtime);
    CHECK(!engine);
    CHECK_CONTAINS(zero_last_error(), t->seats->says);
    zero_engine_destroy(engine);
    return NULL;
}

static void test_wrong_seats(void) {
    struct seats seats[] = {
        {NULL, {0, 1, 0, 1}, {2, 2, 2, 1}, "zero_runtime.model_size is 1 on rank 3 and 2 on rank 0"},
        {NULL, {0, 1, 2, 1}, {2, 2, 2, 2}, "zero_runtime.model_rank is 2 on rank 2, and model_size is 2"},
        {NULL, {0, 1, 2, 0}, {3, 3, 3, 3}, "zero_runtime.model_size 3 does not divide 4 ranks"},
        {NULL, {0, 1, 1, 1}, {2, 2, 2, 2}, "zero_runtime.model_rank is 1 on more than 2 ranks"}};
    for (size_t i = 0; i < sizeof seats / sizeof *seats; i++) {
        struct seat_thread threads[4];
        seats[i].local = zero_local_create(4);
        for (uint32_t r = 0; r < 4; r++) {
            threads[r] = (struct seat_thread){.seats = &seats[i], .rank = r};
            pthread_create(&threads[r].thread, NULL, take_seat, &threads[r]);
        }
        for (uint32_t r = 0; r < 4; r++) pthread_join(threads[r].thread, NULL);
        zero_local_destroy(seats[i].local);
    }
}

static void test_failures(void) {
    const struct cut alone = {.tensor = 1, .stages = 1, .data = 1};
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, 8);
    cut_run(&both, config("\"stage\": 3", 0, ""), train_until_one_leaves, &barrier);
    pthread_barrier_destroy(&barrier);
    test_mistakes();
    cut_run(&tensor, config("\"stage\": 1", 0, ""), declare_shapes, NULL);
    cut_run(&alone, config("\"stage\": 1", 0, ""), declare_rows, NULL);
    test_wrong_seats();
}

/* ---- cancelled passes ---- */

/* The stages of a pipeline are at different places of their passes. */
static void cancel(struct cut_model *m, void *user) {
    if (!start(m)) return;
    ok(zero_micro_begin(m->engine, ZERO_TRAIN));
    for (uint32_t b = m->first_block; b < m->first_block + 1 + m->stage; b++) {
        ok(zero_forward_begin(m->block[b]));
        ok(zero_forward_end(m->block[b]));
    }
    ok(zero_micro_cancel(m->engine));
    step(m);
}

/* A micro-step of one block, without a gradient; up to the begin of the backward, or to the end of the forward. */
enum until { FORWARD_ENDS, BACKWARD_BEGINS, PASS_ENDS };

static void micro_step(struct cut_model *m, enum until until) {
    zero_unit *block = m->block[m->first_block];
    const void *none[CUT_PARAMS] = {NULL};
    ok(zero_micro_begin(m->engine, ZERO_TRAIN));
    ok(zero_forward_begin(block));
    ok(zero_forward_end(block));
    if (until == FORWARD_ENDS) return;
    ok(zero_backward_begin(block));
    if (until == BACKWARD_BEGINS) return;
    ok(zero_unit_give_grads(block, none));
    ok(zero_backward_end(block));
}

/* Only the last stage has begun the backward of the second micro-step. If `evaluates`, the other stages evaluate before their
 * backward. All stages begin the step anew. */
static void cancel_a_step(struct cut_model *m, void *evaluates) {
    bool last = m->stage + 1 == m->cut->stages;
    if (!start(m)) return;
    micro_step(m, PASS_ENDS);
    micro_step(m, last ? BACKWARD_BEGINS : FORWARD_ENDS);
    if (!last && *(bool *)evaluates) ok(zero_micro_begin(m->engine, ZERO_EVAL));
    ok(zero_micro_cancel(m->engine));
    for (int i = 0; i < 2; i++) micro_step(m, PASS_ENDS);
    ok(zero_engine_step(m->engine, NULL));
}

/* ---- debug.compare_every ---- */

static void train_drifting(struct cut_model *m, void *user) {
    zero_step_info info = {.struct_size = sizeof info};
    if (!start(m)) return;
    CHECK_INT(cut_step(m, &info), ZERO_E_DIVERGED);
    CHECK_CONTAINS(zero_last_error(),
                   "the weights of parameter \"h0.g\" differ on the 2 model ranks that have it, "
                   "the first of which is model rank 0");
}

static void train_with_other_weights(struct cut_model *m, void *user) {
    zero_step_info info = {.struct_size = sizeof info};
    if (!start(m)) return;
    uint64_t first, count;
    char name[16];
    float values[CUT_WIDTH];
    snprintf(name, sizeof name, "h%u.b2", m->stage);
    zero_handle *last =
        zero_engine_param(m->engine, name); /* the stages between have one parameter less than the ends */
    ok(zero_param_owned(last, ZERO_STATE0, &first, &count));
    for (int i = 0; i < CUT_WIDTH; i++)
        values[i] = m->rank == 4; /* the second data rank of the first stage */
    ok(zero_param_put_owned(last, ZERO_STATE0, values, first, count));
    ok(zero_engine_written(m->engine));
    CHECK_INT(cut_step(m, &info), ZERO_E_DIVERGED);
    CHECK_CONTAINS(zero_last_error(), "of parameter \"h0.b2\" in unit \"h0\" differ on rank ");
}

static void test_compare(void) {
    const char *every = ", \"debug\": {\"compare_every\": 1}";
    const struct cut long_pipeline = {.tensor = 1, .stages = 4, .data = 2};
    struct cut drifts = tensor;
    struct result *r = result();
    drifts.drift_model = 1;
    cut_run(&both, config("\"stage\": 2", 0.5, every), train, r);
    cut_run(&drifts, config("\"stage\": 3", 0.5, every), train_drifting, NULL);
    cut_run(&long_pipeline, config("\"stage\": 0", 0.5, every), train_with_other_weights, NULL);
    free(r);
}

/* ---- checkpoints ---- */

struct saving {
    char dir[300];
    char hash[33]; /* "": the first rank sets it */
    const char *refused;
    bool async;
    pthread_mutex_t mutex;
};

static void check_hash(struct cut_model *m, struct saving *s) {
    char hash[33];
    ok(zero_engine_hash(m->engine, hash));
    pthread_mutex_lock(&s->mutex);
    if (!*s->hash) strcpy(s->hash, hash);
    CHECK_STRING(hash, s->hash);
    pthread_mutex_unlock(&s->mutex);
}

/* A model rank that called it alone would wait for the others. */
static void get_while_saving(struct cut_model *m) {
    char name[32];
    float value;
    cut_name(m, m->first_block, CUT_B2, name);
    CHECK_INT(zero_engine_get(m->engine, name, ZERO_PARAM, &value, 0, 1), ZERO_E_ORDER);
    CHECK_CONTAINS(zero_last_error(), "all ranks call zero_engine_save_wait first");
}

static void save(struct cut_model *m, void *user) {
    struct saving *s = user;
    if (!start(m)) return;
    step(m);
    ok(zero_engine_save(m->engine, s->dir));
    if (s->async) get_while_saving(m);
    ok(zero_engine_save_wait(m->engine));
    check_hash(m, s);
}

static void load(struct cut_model *m, void *user) {
    struct saving *s = user;
    if (!CHECK(m->engine) || !ok(cut_declare(m)) || !ok(zero_engine_commit(m->engine, NULL))) return;
    zero_status status = zero_engine_load(m->engine, s->dir);
    if (s->refused) {
        CHECK_INT(status, ZERO_E_ARGUMENT);
        CHECK_CONTAINS(zero_last_error(), s->refused);
        return;
    }
    if (!ok(status)) return;
    check_hash(m, s);
    zero_step_info info = step(m);
    CHECK_INT(info.step, 2);
}

static void test_checkpoints(void) {
    const struct cut one = {.tensor = 2, .stages = 1, .data = 1},
                     four = {.tensor = 2, .stages = 1, .data = 4},
                     stages = {.tensor = 1, .stages = 2, .data = 1},
                     whole = {.tensor = 1, .stages = 1, .data = 3},
                     all = {.tensor = 2, .stages = 2, .data = 1},
                     strided = {.tensor = 2, .stages = 1, .data = 2, .strided = true};
    const struct cut *const loaders[] = {&one, &four, &stages, &whole, &all, &strided};
    for (int stage = 0; stage <= 4; stage++) {
        char keys[600];
        struct saving s = {.hash = ""};
        pthread_mutex_init(&s.mutex, NULL);
        snprintf(keys, sizeof keys, "\"stage\": %d", stage);
        if (stage == 4) snprintf(keys, sizeof keys, "%s", on_nvme());
        snprintf(s.dir, sizeof s.dir, "%s/saved_%d", directory(), stage);
        const char *async = stage == 2 ? ", \"checkpoint\": {\"async\": true}" : "";
        s.async = *async;
        cut_run(stage % 2 ? &both : &tensor, config(keys, 0.5, async), save, &s);
        for (size_t i = 0; i < sizeof loaders / sizeof *loaders; i++) {
            snprintf(keys, sizeof keys, "\"stage\": %d", (int)(stage + i) % 4);
            cut_run(loaders[i], config(keys, 0.5, ""), load, &s);
        }
    }
}

/* Pieces with names of their own are loaded on other numbers of data ranks. */
static void test_own_names(void) {
    const struct cut saver = {.tensor = 2, .stages = 1, .data = 2, .own_names = true},
                     loader = {.tensor = 2, .stages = 1, .data = 4, .own_names = true};
    struct saving s = {.hash = ""};
    pthread_mutex_init(&s.mutex, NULL);
    snprintf(s.dir, sizeof s.dir, "%s/saved_own", directory());
    cut_run(&saver, config("\"stage\": 3", 0.5, ""), save, &s);
    cut_run(&loader, config("\"stage\": 1", 0.5, ""), load, &s);
    s.refused = "has a parameter \"h0.w1.0\", which this model does not have";
    cut_run(&uncut, config("\"stage\": 1", 0.5, ""), load, &s);
}

/* ---- the shadow ---- */

static void train_shadowed(struct cut_model *m, void *user) {
    struct saving *s = user;
    if (!start(m)) return;
    step(m);
    ok(zero_engine_flush(m->engine));
    check_hash(m, s);
}

static void recover(struct cut_model *m, void *user) {
    uint64_t step_found = 0;
    if (!CHECK(m->engine) || !ok(cut_declare(m)) || !ok(zero_engine_commit(m->engine, NULL))) return;
    CHECK_INT(zero_engine_shadow(m->engine, NULL), ZERO_SHADOW_USABLE);
    if (!ok(zero_engine_recover(m->engine, cut_fill, NULL, &step_found))) return;
    CHECK_INT(step_found, 1);
    check_hash(m, user);
}

/* Each rank finds why its own shadow is another's. */
static void find_other(struct cut_model *m, void *user) {
    if (!CHECK(m->engine) || !ok(cut_declare(m)) || !ok(zero_engine_commit(m->engine, NULL))) return;
    CHECK_INT(zero_engine_shadow(m->engine, NULL), ZERO_SHADOW_OTHER);
    CHECK_CONTAINS(zero_engine_shadow_text(m->engine),
                   "its types, mesh, chunks or parameter groups are others");
}

/* A pipeline whose last stage has changed alone must not take the step of its first stage for its own. */
static void find_changed_stage(struct cut_model *m, void *user) {
    if (!CHECK(m->engine) || !ok(cut_declare(m)) || !ok(zero_engine_commit(m->engine, NULL))) return;
    CHECK_INT(zero_engine_shadow(m->engine, NULL), ZERO_SHADOW_OTHER);
    CHECK_CONTAINS(zero_engine_shadow_text(m->engine),
                   m->model ? "its model has other units or parameters" : "it differs on another model rank");
    CHECK_INT(zero_engine_recover(m->engine, cut_fill, NULL, NULL), ZERO_E_IO);
}

static void test_changed_stage(void) {
    const char *shadow = ", \"nvme\": {\"shadow\": true}";
    struct cut changed = pipeline;
    struct saving s = {.hash = ""};
    changed.no_decay_model = 1;
    pthread_mutex_init(&s.mutex, NULL);
    cut_run(&pipeline, config(on_drive("stages"), 0.5, shadow), train_shadowed, &s);
    cut_run(&changed, config(on_drive("stages"), 0.5, shadow), find_changed_stage, NULL);
}

static void test_shadow(void) {
    const char *shadow = ", \"nvme\": {\"shadow\": true}";
    struct saving s = {.hash = ""};
    pthread_mutex_init(&s.mutex, NULL);
    cut_run(&both, config(on_nvme(), 0.5, shadow), train_shadowed, &s);
    cut_run(&both, config(on_nvme(), 0.5, shadow), recover, &s);
    cut_run(
        &both,
        config(on_nvme(), 0.5, ", \"nvme\": {\"shadow\": true}, \"param_groups\": [{\"match\": [\"h1.g\"]}]"),
        find_other, NULL);
}

/* The commit before the first update would wait for other model ranks, which may wait for this one's activations. */
static void refuse_updates(struct cut_model *m, void *user) {
    if (!CHECK(m->engine) || !ok(cut_declare(m))) return;
    CHECK_INT(zero_engine_commit(m->engine, NULL), ZERO_E_UNSUPPORTED);
    CHECK_CONTAINS(zero_last_error(),
                   "zero_runtime.model_size is 2: with nvme.shadow a backward that updates");
}

static void test_updates(void) {
    char keys[800];
    snprintf(keys, sizeof keys, "%s, \"update_in_backward\": true", on_nvme());
    cut_run(&pipeline, config(keys, 0.5, ", \"nvme\": {\"shadow\": true}"), refuse_updates, NULL);
}

int main(void) {
    test_seats();
    test_bits();
    test_pipeline_is_exact();
    test_groups();
    test_param_groups();
    test_plan();
    test_overflow();
    test_failures();
    cut_run(&pipeline, config("\"stage\": 3", 0, ""), cancel, NULL);
    for (int evaluates = 0; evaluates < 2; evaluates++)
        cut_run(&pipeline, config("\"stage\": 3", 0, ", \"gradient_accumulation_steps\": 2"), cancel_a_step,
                &(bool){evaluates});
    test_compare();
    test_checkpoints();
    test_own_names();
    test_shadow();
    test_changed_stage();
    test_updates();
    return check_end();
}
