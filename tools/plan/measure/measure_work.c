/* Measures the cores and the memory of a rank while all ranks work. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "tools/plan/edit.h"
#include "tools/plan/measure/measure.h"

/* ---- threads that begin together ---- */

struct measure_team {
    pthread_barrier_t barrier;
    measure_fn work;
    void *user;
};

struct member {
    pthread_t thread;
    struct measure_team *team;
    uint32_t rank;
};

static void *run_member(void *argument) {
    struct member *m = argument;
    m->team->work(m->team, m->rank, m->team->user);
    return NULL;
}

void measure_together(struct measure_team *team) { pthread_barrier_wait(&team->barrier); }

zero_status measure_run(uint32_t ranks, measure_fn work, void *user, struct zero_error *error) {
    struct measure_team team = {.work = work, .user = user};
    struct member *member = calloc(ranks, sizeof *member);
    uint32_t started = 0;
    if (!member) return error_set(error, ZERO_E_MEMORY, "no memory for %u ranks", ranks);
    pthread_barrier_init(&team.barrier, NULL, ranks);
    for (; started < ranks; started++) {
        member[started] = (struct member){.team = &team, .rank = started};
        if (pthread_create(&member[started].thread, NULL, run_member, &member[started])) break;
    }
    if (started < ranks) { /* the started threads would wait for the others forever */
        fprintf(stderr, "zero plan: rank %u of %u cannot be started\n", started, ranks);
        exit(1);
    }
    for (uint32_t r = 0; r < ranks; r++) pthread_join(member[r].thread, NULL);
    pthread_barrier_destroy(&team.barrier);
    free(member);
    return ZERO_OK;
}

static double since(uint64_t began) { return (double)(clock_now_ns() - began) * 1e-9; }

/* Other work on the machine only makes a measurement slower, so the least value counts. */
static double least(const double *values, uint32_t count) {
    double least = values[0];
    for (uint32_t i = 1; i < count; i++) least = values[i] < least ? values[i] : least;
    return least;
}

/* ---- memory ---- */

enum { MEMORY_ELEMENTS = 8 << 20, MEMORY_ELEMENTS_MIN = 1 << 16, MEMORY_ROUNDS = 9, ARRAYS = 4 };
enum { BRIEF_BYTES = 256 << 20 }; /* of all threads */

struct memory_task {
    double *seconds; /* index: rank */
    size_t elements; /* of an array */
    bool failed;
};

/* The memory streams of AdamW in fp32: reads one array, reads and writes three. Sanitizers do not watch the loop, which is timed. */
__attribute__((no_sanitize("address", "undefined"))) static void
update(float *restrict p, float *restrict m, float *restrict v, const float *restrict g, size_t elements) {
    for (size_t i = 0; i < elements; i++) {
        m[i] = 0.9f * m[i] + g[i];
        v[i] = 0.99f * v[i] + g[i] * g[i];
        p[i] -= 1e-3f * m[i] + 1e-6f * v[i];
    }
}

static void memory_rank(struct measure_team *team, uint32_t rank, void *user) {
    struct memory_task *t = user;
    float *array[ARRAYS];
    double seconds[MEMORY_ROUNDS];
    bool failed = false;
    for (int k = 0; k < ARRAYS; k++) {
        array[k] = malloc(t->elements * sizeof(float) + 4096);
        failed |= !array[k];
        if (array[k]) memset(array[k], 0, t->elements * sizeof(float) + 4096);
    }
    if (failed) t->failed = true;
    measure_together(team);
    for (int i = 0; i < MEMORY_ROUNDS && !t->failed; i++) {
        uint64_t began = clock_now_ns();
        /* the offsets put the arrays into different sets of the cache */
        update(array[0], array[1] + 64, array[2] + 128, array[3] + 192, t->elements);
        seconds[i] = since(began);
    }
    if (!t->failed) t->seconds[rank] = least(seconds, MEMORY_ROUNDS);
    for (int k = 0; k < ARRAYS; k++) free(array[k]);
}

zero_status measure_memory(const struct measure_options *o, double *out_per_s, struct zero_error *error) {
    uint32_t workers = o->ranks * o->threads;
    struct memory_task task = {.seconds = calloc(workers, sizeof(double)), .elements = MEMORY_ELEMENTS};
    size_t share = BRIEF_BYTES / (ARRAYS * sizeof(float)) / workers;
    if (o->brief && share < task.elements)
        task.elements = share > MEMORY_ELEMENTS_MIN ? share : MEMORY_ELEMENTS_MIN;
    if (!task.seconds) return error_set(error, ZERO_E_MEMORY, "no memory to measure with");
    zero_status status = measure_run(workers, memory_rank, &task, error);
    if (!status && task.failed)
        status = error_set(error, ZERO_E_MEMORY, "no memory to measure with: 128 MiB per thread");
    double sum = 0;
    for (uint32_t i = 0; i < workers && !status; i++)
        sum += 7. * sizeof(float) * (double)task.elements / task.seconds[i];
    free(task.seconds);
    *out_per_s = sum / o->ranks;
    return status;
}

/* ---- compute ---- */

enum { COMPUTE_ROUNDS = 7, COMPUTE_ROUNDS_BRIEF = 3, COMPUTE_LAYERS = 3 };

/* A brief measurement is of one layer, so that many ranks take little memory. */
static uint32_t layers_of(const struct measure_options *o) { return o->brief ? 1 : COMPUTE_LAYERS; }

struct compute_task {
    const struct measure_options *o;
    zero_dtype dtype;
    double *seconds; /* index: rank */
    struct zero_error *error;
    pthread_mutex_t mutex;
    bool failed;
    atomic_bool refused; /* by any rank */
};

static void compute_failed(struct compute_task *t, const char *why) {
    pthread_mutex_lock(&t->mutex);
    t->failed = true;
    error_set(t->error, ZERO_E_INTERNAL, "computing could not be measured: %s", why);
    pthread_mutex_unlock(&t->mutex);
}

static zero_engine *open_engine(const struct compute_task *t, zero_local *alone) {
    char *json = edit_default(t->o->batch, (enum dtype)t->dtype);
    zero_runtime runtime = {.struct_size = sizeof runtime, .threads = t->o->threads, .local = alone};
    zero_engine *engine = json ? zero_engine_init_with(json, &runtime) : NULL;
    free(json);
    return engine;
}

static void time_steps(struct measure_team *team, struct compute_task *t, uint32_t rank, zero_engine *engine,
                       struct gpt *gpt, const int32_t *tokens) {
    double seconds[COMPUTE_ROUNDS], loss;
    uint32_t rounds = t->o->brief ? COMPUTE_ROUNDS_BRIEF : COMPUTE_ROUNDS;
    zero_status status = gpt_train(gpt, tokens, tokens + 1, &loss); /* warm-up */
    if (!status) status = zero_engine_step(engine, NULL);
    measure_together(team);
    for (uint32_t i = 0; i < rounds && !status; i++) {
        zero_counters before = {.struct_size = sizeof before}, after = before;
        zero_engine_counters(engine, &before);
        status = gpt_train(gpt, tokens, tokens + 1, &loss);
        zero_engine_counters(engine, &after);
        seconds[i] = after.compute_s - before.compute_s;
        if (!status) status = zero_engine_step(engine, NULL);
    }
    if (status)
        compute_failed(t, zero_last_error());
    else
        t->seconds[rank] = least(seconds, rounds);
}

/* Each rank is a world of its own, so that only the computation is timed. */
static void compute_rank(struct measure_team *team, uint32_t rank, void *user) {
    struct compute_task *t = user;
    struct gpt_config model = t->o->model;
    model.layers = layers_of(t->o);
    uint64_t count = (uint64_t)t->o->batch * model.context + 1;
    int32_t *tokens = malloc(count * sizeof *tokens);
    zero_local *alone = zero_local_create(1); /* independent of mpirun's environment */
    zero_engine *engine = tokens && alone ? open_engine(t, alone) : NULL;
    struct gpt *gpt = NULL;
    struct gpt_init init = {.seed = 1, .config = model};
    for (uint64_t i = 0; i < count && tokens; i++)
        tokens[i] = (int32_t)((i * 2654435761u >> 7) % model.vocab);
    bool refused = engine && gpt_engine_problem(engine);
    zero_status status = engine && !refused ? gpt_create(engine, &model, t->o->batch, &gpt) : ZERO_E_MEMORY;
    if (!status) status = zero_engine_commit(engine, NULL);
    if (!status) status = zero_engine_fill(engine, gpt_fill, &init);
    if (refused)
        atomic_store(&t->refused, true);
    else if (status)
        compute_failed(t, zero_last_error());
    if (status)
        measure_together(team);
    else
        time_steps(team, t, rank, engine, gpt, tokens);
    gpt_destroy(gpt);
    zero_engine_destroy(engine);
    if (alone) zero_local_destroy(alone);
    free(tokens);
}

zero_status measure_compute(const struct measure_options *o, zero_dtype dtype, double *out_flops,
                            struct zero_error *error) {
    struct compute_task task = {
        .o = o, .dtype = dtype, .seconds = calloc(o->ranks, sizeof(double)), .error = error};
    if (!task.seconds) return error_set(error, ZERO_E_MEMORY, "no memory to measure with");
    pthread_mutex_init(&task.mutex, NULL);
    zero_status status = measure_run(o->ranks, compute_rank, &task, error);
    struct gpt_config model = o->model;
    model.layers = layers_of(o);
    double flops = gpt_flops_per_token(&model) * o->batch * model.context, slowest = 0;
    for (uint32_t r = 0; r < o->ranks; r++)
        if (task.seconds[r] > slowest) slowest = task.seconds[r]; /* the other ranks wait for the slowest */
    *out_flops = atomic_load(&task.refused) || !(slowest > 0) ? 0 : flops / slowest;
    if (!status && task.failed) status = error->code;
    pthread_mutex_destroy(&task.mutex);
    free(task.seconds);
    return status;
}
