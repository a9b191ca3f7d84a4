/* Debugging aids: a bit that is flipped on one rank is reported with its parameter, unit and rank; the unit whose
 * gradient caused a skipped step is reported; comparing changes no bit. */
#include <math.h>
#include <stdlib.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_model.h"

enum { RANKS = 3, MESH_RANKS = 4, STEPS = 4 }; /* comparisons after the second and the fourth */

static const struct plain_param model[] = {
    {"a", "a.w", 5000, 0, NULL},          {"b", "b.w", 4000, 0, NULL},         {"b", "b.b", 30, 0, NULL},
    {"c", "c.f", 900, ZERO_FROZEN, NULL}, {"c", "c.s", 20, ZERO_FROZEN, NULL}, {"d", "d.w", 3000, 0, NULL}};
enum { PARAMS = sizeof model / sizeof *model };

enum flipped { NOTHING, WEIGHTS, STATE0, STATE1, MASTERS, GRADIENT, SHARD_WEIGHTS };

static const struct plant {
    uint32_t stage;
    const char *more;
    enum flipped flipped;
    const char *param;
    uint32_t rank;
    const char *found;
} plants[] = {
    {0, "", WEIGHTS, "b.b", 1,
     "the bits of the weights of parameter \"b.b\" in unit \"b\" differ on rank 1 from those on rank 0"},
    {0, "", WEIGHTS, "c.f", 0,
     "the bits of the weights of parameter \"c.f\" in unit \"c\" differ on rank 0 from those on rank 1"},
    {0, "", STATE0, "d.w", 2, "the bits of the exp_avg of parameter \"d.w\" in unit \"d\" differ on rank 2"},
    {0, "", STATE1, "a.w", 1,
     "the bits of the exp_avg_sq of parameter \"a.w\" in unit \"a\" differ on rank 1"},
    {0, "", GRADIENT, "d.w", 1,
     "the bits of the reduced gradient of parameter \"d.w\" in unit \"d\" differ on rank 1"},
    {0, ", \"bf16\": {\"enabled\": true}", MASTERS, "b.w", 2,
     "the bits of the master weights of parameter \"b.w\" in unit \"b\" differ on rank 2"},
    {1, "", WEIGHTS, "c.f", 2, "the bits of the weights of parameter \"c.f\" in unit \"c\" differ on rank 2"},
    {2, ", \"bf16\": {\"enabled\": true}", WEIGHTS, "c.f", 1, "the bits of the weights of parameter \"c.f\""},
    /* persistent and frozen: trained parameters are gathered anew in each step */
    {3, "", WEIGHTS, "c.s", 0,
     "the bits of the weights of parameter \"c.s\" in unit \"c\" differ on rank 0 from those on rank 1"},
};

/* Four ranks as 2 x 2: ranks 0 and 2 hold the same shards, and so do 1 and 3. With two copies no rank can tell which
 * one is wrong, so the lower rank counts as right. If all ranks have a parameter, the majority counts as right. */
static const struct plant replicas[] = {
    {0, "", WEIGHTS, "b.b", 3,
     "the bits of the weights of parameter \"b.b\" in unit \"b\" differ on rank 3 from those on rank 0, "
     "which most "
     "ranks"},
    {1, "", STATE0, "a.w", 2,
     "the bits of the exp_avg of parameter \"a.w\" in unit \"a\" differ on rank 2 from those on rank 0: "
     "look"},
    {2, ", \"bf16\": {\"enabled\": true}", MASTERS, "d.w", 1,
     "the bits of the master weights of parameter \"d.w\" in unit \"d\" differ on rank 3 from those on rank "
     "1: look"},
    {3, "", STATE1, "d.w", 3,
     "the bits of the exp_avg_sq of parameter \"d.w\" in unit \"d\" differ on rank 3 from those on rank 1: "
     "look"},
    {3, "", SHARD_WEIGHTS, "a.w", 3,
     "the bits of the weights of parameter \"a.w\" in unit \"a\" differ on rank 3 from those on rank 1: "
     "look"},
    {3, "", WEIGHTS, "c.s", 2,
     "the bits of the weights of parameter \"c.s\" in unit \"c\" differ on rank 2 from those on rank 0, "
     "which most "
     "ranks"},
};

static void flip(zero_engine *e, const struct plant *plant) {
    const struct model_param *p = model_find(engine_blueprint(e)->o.model, plant->param);
    uint16_t region = (uint16_t)p->region;
    uint8_t *at[] = {[WEIGHTS] = executor_address(engine_running(e)->executor,
                                                  (struct buffer_ref){BUFFER_PARAM_FULL, region}),
                     [STATE0] = executor_state(engine_running(e)->executor, region, 0, 0),
                     [STATE1] = executor_state(engine_running(e)->executor, region, 1, 0),
                     [MASTERS] = executor_master(engine_running(e)->executor, region, 0),
                     [GRADIENT] = executor_address(engine_running(e)->executor,
                                                   (struct buffer_ref){BUFFER_GRAD_FULL, region}),
                     [SHARD_WEIGHTS] = executor_address(engine_running(e)->executor,
                                                        (struct buffer_ref){BUFFER_PARAM_SHARD, region})};
    bool whole =
        plant->flipped == WEIGHTS ||
        !engine_blueprint(e)->policy.stage->state.axis[AXIS_SHARD]; /* else a shard's first element */
    uint32_t width =
        plant->flipped == WEIGHTS && engine_blueprint(e)->terms.precision.compute != DTYPE_F32 ? 2 : 4;
    if (CHECK(at[plant->flipped] != NULL))
        at[plant->flipped][whole ? (p->offset + p->count - 1) * width : 0] ^= 0x80;
}

struct run {
    const struct plant *plant;
    char hash[33];
    zero_status status[MESH_RANKS];
    char error[MESH_RANKS][600];
};

static void train(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    char hash[33] = "";
    static _Thread_local float gradient[1];
    if (!CHECK(engine != NULL)) return;
    zero_status status = plain_open(&p, engine, model, PARAMS, NULL);
    for (int step = 0; step < STEPS && !status; step++) {
        int before =
            run->plant->flipped == WEIGHTS ? 2 : 3; /* what is updated may round a flipped bit away */
        bool here = run->plant->flipped && step == before && rank == run->plant->rank;
        if (here && run->plant->flipped != GRADIENT) flip(engine, run->plant);
        status = plain_pass(&p, ZERO_TRAIN, 0);
        if (!status)
            status = zero_engine_get(engine, "a.w", ZERO_GRAD, gradient, 0, 1); /* all are reduced now */
        if (here && run->plant->flipped == GRADIENT) flip(engine, run->plant);
        if (!status) status = zero_engine_step(engine, NULL);
        if (!status && run->plant->flipped) CHECK(step < STEPS - 1);
    }
    if (status) snprintf(run->error[rank], sizeof run->error[rank], "%s", zero_last_error());
    if (!status) status = zero_engine_hash(engine, hash);
    if (rank == 0) memcpy(run->hash, hash, sizeof hash);
    run->status[rank] = status;
}

/* `zero`: more keys of zero_optimization. */
static struct run run_on(uint32_t ranks, const char *zero, const struct plant *plant, const char *every) {
    struct run run = {.plant = plant};
    char json[4096];
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"zero_optimization\": {\"stage\": %u, "
             "\"stage3_param_persistence_threshold\": 100%s}%s%s}",
             plant->stage, zero, plant->more, every);
    ranks_run(ranks, json, train, &run);
    return run;
}

static struct run run_in(const char *zero, const struct plant *plant, const char *every) {
    return run_on(RANKS, zero, plant, every);
}

static struct run run_with(const struct plant *plant, const char *every) { return run_in("", plant, every); }

static void flipped_bits_are_named(void) {
    for (size_t i = 0; i < sizeof plants / sizeof *plants; i++) {
        struct run run = run_with(&plants[i], ", \"debug\": {\"compare_every\": 2}");
        for (int r = 0; r < RANKS; r++) {
            CHECK_INT(run.status[r], ZERO_E_DIVERGED);
            CHECK_CONTAINS(run.error[r], plants[i].found);
            CHECK_CONTAINS(run.error[r], "after step 4");
            CHECK_CONTAINS(run.error[r], "which most ranks have");
        }
    }
}

static void flipped_bits_of_replicas_are_named(void) {
    static const char *const mesh = ", \"mics_shard_size\": 2", *const every =
                                                                    ", \"debug\": {\"compare_every\": 2}";
    for (size_t i = 0; i < sizeof replicas / sizeof *replicas; i++) {
        struct run run = run_on(MESH_RANKS, mesh, &replicas[i], every);
        for (int r = 0; r < MESH_RANKS; r++) {
            CHECK_INT(run.status[r], ZERO_E_DIVERGED);
            CHECK_CONTAINS(run.error[r], replicas[i].found);
        }
    }
    for (uint32_t stage = 0; stage <= 3; stage++) {
        struct plant none = {.stage = stage, .more = ""};
        struct run without = run_on(MESH_RANKS, mesh, &none, ""),
                   with = run_on(MESH_RANKS, mesh, &none, every);
        CHECK_STRING(with.error[0], "");
        CHECK_STRING(with.hash, without.hash);
    }
}

static void comparing_changes_nothing(void) {
    static const char *const more[] = {"", ", \"bf16\": {\"enabled\": true}",
                                       ", \"comm\": {\"prefetch_depth\": 2}"};
    for (uint32_t stage = 0; stage <= 3; stage++)
        for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
            struct plant none = {.stage = stage, .more = more[i]};
            struct run without = run_with(&none, ""),
                       with = run_with(&none, ", \"debug\": {\"compare_every\": 1}");
            CHECK_STRING(with.error[0], "");
            CHECK_STRING(with.hash, without.hash);
        }
    /* Each rank has its own whole copy on a drive. */
    char zero[2048];
    const char *directory = getenv("TEST_TMPDIR");
    snprintf(
        zero, sizeof zero,
        ", \"mics_shard_size\": 1, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s/swap\"}, "
        "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/swap\"}, "
        "\"offload_gradients\": {\"device\": \"nvme\"}",
        directory, directory);
    struct plant copies = {.stage = 3, .more = ""};
    struct run without = run_in(zero, &copies, ""),
               with = run_in(zero, &copies, ", \"debug\": {\"compare_every\": 1}");
    CHECK_STRING(with.error[0], "");
    CHECK_STRING(with.hash, without.hash);
}

/* ---- a step that is skipped ---- */

static void keep_line(void *user, zero_log_level level, const char *line) {
    if (strstr(line, "skipped on all ranks")) snprintf(user, 256, "%s", line);
}

static zero_status step_with_nan(struct plain *p, zero_step_info *info) {
    zero_status status = zero_micro_begin(p->engine, ZERO_TRAIN);
    for (uint32_t u = 0; u < p->units && !status; u++) status = plain_forward(p, u);
    for (uint32_t u = p->units; u-- > 0 && !status;) {
        status = zero_backward_begin(p->unit[u]);
        for (uint32_t i = 0; i < p->params && !status; i++) {
            float *grad = p->slot[i].grad;
            for (uint64_t k = 0; grad && p->unit_of[i] == u && k < p->param[i].count; k++)
                grad[k] = i == 1 && k == 7 ? (float)INFINITY : i == 0 && k == 4990 ? (float)NAN : 1;
        }
        if (!status) status = zero_backward_end(p->unit[u]);
    }
    return status ? status : zero_engine_step(p->engine, info);
}

/* b's backward came before a's, and b is in another shard: the message has b's name, and the shard's owner finds the
 * element. */
static void the_unit_of_a_skip_is_named(const char *keys, const char *where) {
    char lines[2][256] = {"", ""}, json[256], expected[256];
    zero_local *local = zero_local_create(1);
    zero_runtime runtime = {
        .struct_size = sizeof runtime, .local = local, .log = keep_line, .log_user = lines[0]};
    snprintf(json, sizeof json, "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1%s}", keys);
    zero_engine *engine = zero_engine_init_with(json, &runtime);
    struct plain p;
    zero_step_info info = {.struct_size = sizeof info};
    CHECK_INT(plain_open(&p, engine, model, PARAMS, NULL), ZERO_OK);
    CHECK_INT(step_with_nan(&p, &info), ZERO_OK);
    CHECK_INT(info.skipped, 1);
    CHECK_STRING(info.overflow_unit, "b");
    snprintf(expected, sizeof expected,
             "step 1 skipped on all ranks: gradients of unit \"b\" are inf or NaN, the first in parameter "
             "\"b.w\" %s",
             where);
    CHECK_STRING(lines[0], expected);
    CHECK_INT(plain_step(&p, 1, &info), ZERO_OK);
    CHECK(info.overflow_unit == NULL);
    zero_engine_destroy(engine);
    zero_local_destroy(local);
}

static void skip_on_ranks(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    zero_step_info info = {.struct_size = sizeof info};
    CHECK_INT(plain_open(&p, engine, model, PARAMS, NULL), ZERO_OK);
    CHECK_INT(step_with_nan(&p, &info), ZERO_OK);
    CHECK_STRING(info.overflow_unit, "b"); /* on all ranks, whichever rank owns the shard */
}

/* Two skipped steps in a row end the training on all ranks. Only the shard's owner knows the element. */
static void too_many_skips_in_a_row(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    zero_step_info info = {.struct_size = sizeof info};
    char directory[512];
    snprintf(directory, sizeof directory, "%s/saved", getenv("TEST_TMPDIR"));
    CHECK_INT(plain_open(&p, engine, model, PARAMS, NULL), ZERO_OK);
    CHECK_INT(step_with_nan(&p, &info), ZERO_OK);
    CHECK_INT(plain_step(&p, 1, &info), ZERO_OK); /* the row ends */
    CHECK_INT(zero_engine_save(engine, directory), ZERO_OK);
    CHECK_INT(step_with_nan(&p, &info), ZERO_OK);
    CHECK_INT(zero_engine_load(engine, directory), ZERO_OK); /* and here */
    CHECK_INT(step_with_nan(&p, &info), ZERO_OK);
    zero_status status = step_with_nan(&p, &info);
    if (!status)
        status = plain_step(&p, 1, &info); /* a rank that does not know hears of it when it next waits */
    CHECK(status != ZERO_OK);
    CHECK_CONTAINS(
        zero_last_error(),
        "2 steps in a row were skipped (max_skipped_steps): in the last one, on rank 0, gradients of "
        "unit \"b\" are inf or NaN, the first in parameter \"b.w\" at element 7");
}

static void a_limit_of_none(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    zero_step_info info = {.struct_size = sizeof info};
    CHECK_INT(plain_open(&p, engine, model, PARAMS, NULL), ZERO_OK);
    for (uint64_t i = 1; i <= 12; i++) CHECK_INT(step_with_nan(&p, &info), ZERO_OK);
    CHECK_INT((int)info.skipped_total, 12);
}

int main(void) {
    flipped_bits_are_named();
    flipped_bits_of_replicas_are_named();
    comparing_changes_nothing();
    the_unit_of_a_skip_is_named("", "at element 7");
    the_unit_of_a_skip_is_named(
        ", \"zero_optimization\": {\"stage\": 1, \"zero_quantized_gradients\": true}",
        "among the 256 elements from 0 on, which zero_quantized_gradients codes together");
    ranks_run(
        RANKS,
        "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"zero_optimization\": {\"stage\": 3}}",
        skip_on_ranks, NULL);
    ranks_run(RANKS,
              "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"max_skipped_steps\": 2, "
              "\"zero_optimization\": {\"stage\": 3}}",
              too_many_skips_in_a_row, NULL);
    ranks_run(RANKS, "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"max_skipped_steps\": 0}",
              a_limit_of_none, NULL);
    return check_end();
}
