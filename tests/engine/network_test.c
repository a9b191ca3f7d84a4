/* network_test FIRST COUNT: trainings over TCP in networks that delay, lose, reorder, slow down and cut. A network that heals within
 * 0.8 x comm.timeout_s leads to the weights of a good one; of another, every rank learns in time which rank it lost. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "tests/check.h"
#include "tests/engine/network.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"

enum { STEPS = 5, MOST_S = 200, AT_ONCE = 3, TIMEOUT_S = 6 };

static const struct plain_param params[] = {{"a", "a.w", 3000, 0, NULL},
                                            {"b", "b.w", 5000, 0, NULL},
                                            {"c", "c.w", 700, 0, NULL},
                                            {"c", "c.b", 9, 0, NULL}};
enum { PARAMS = sizeof params / sizeof *params };

struct outcome {
    zero_status status;
    int32_t named; /* the rank that a failure names */
    char hash[33], message[300];
    uint64_t ended_ns;
    bool warned; /* that the job has no secret */
};

struct trial {
    struct network network;
    uint32_t stage;
    struct outcome *outcome; /* of each rank; shared */
    const char *what;
    bool ends_well, secret;
};

static void describe(const struct trial *t, char json[256]) {
    snprintf(json, 256,
             "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": %u}, \"comm\": "
             "{\"timeout_s\": %d}}",
             t->stage, TIMEOUT_S);
}

static zero_status train(zero_engine *engine, uint32_t steps, atomic_uint *done, char hash[33]) {
    struct plain p;
    zero_status status = plain_open(&p, engine, params, PARAMS, NULL);
    for (uint32_t step = 0; step < steps && !status; step++) {
        status = plain_step(&p, 1, NULL);
        if (done) atomic_store(done, step + 1);
    }
    return status ? status : zero_engine_hash(engine, hash);
}

static void hear_log(void *user, zero_log_level level, const char *line) {
    struct outcome *o = user;
    o->warned |= strstr(line, "this job has no secret") != NULL;
}

static void be_rank(const zero_runtime *given, void *user) {
    struct trial *t = user;
    struct outcome *o = &t->outcome[given->rank];
    zero_runtime own = *given, *runtime = &own;
    own.log = hear_log, own.log_user = o;
    own.secret = t->secret ? "a secret of this job" : NULL;
    char json[256];
    describe(t, json);
    zero_engine *engine = NULL;
    o->status = zero_engine_open(json, runtime, &engine);
    if (!o->status) o->status = train(engine, STEPS, runtime->rank ? NULL : t->network.steps, o->hash);
    o->ended_ns = clock_now_ns();
    zero_failure failure = {.struct_size = sizeof failure};
    if (o->status) zero_last_failure(&failure), o->named = failure.rank;
    if (o->status) snprintf(o->message, sizeof o->message, "%.290s", zero_last_error());
    zero_engine_destroy(engine);
}

/* ---- what must come of it ---- */

static void train_here(zero_engine *engine, uint32_t rank, void *user) {
    char hash[33];
    if (CHECK_INT(train(engine, STEPS, NULL, hash), ZERO_OK) && rank == 0) strcpy(user, hash);
}

static void expect_weights(const struct trial *t) {
    char json[256], hash[33] = "";
    describe(t, json);
    ranks_run(t->network.ranks, json, train_here, hash);
    for (uint32_t r = 0; r < t->network.ranks; r++) {
        if (!CHECK_INT(t->outcome[r].status, ZERO_OK))
            fprintf(stderr, "rank %u: %s\n", r, t->outcome[r].message);
        CHECK_STRING(t->outcome[r].hash, hash);
    }
}

/* A rank behind a cut hears nothing: after timeout_s, and before Linux 6.15 up to 1.6 times that, it says so. */
static void expect_loss(const struct trial *t) {
    uint64_t cut_ns = atomic_load(t->network.cut_ns);
    CHECK(cut_ns != 0);
    for (uint32_t r = 0; r < t->network.ranks; r++) {
        const struct outcome *o = &t->outcome[r];
        CHECK_INT(o->status, ZERO_E_PEER);
        bool unheard = t->network.one_way && r >= t->network.cut_rank; /* the others may tell it so */
        bool itself = (uint32_t)o->named == r;
        if (itself && unheard) CHECK_CONTAINS(o->message, "what it sends does not reach the other ranks");
        if (!CHECK(o->named >= 0 && (uint32_t)o->named < t->network.ranks && (unheard || !itself)))
            fprintf(stderr, "rank %u names %d: %s\n", r, (int)o->named, o->message);
        double after_s = (double)(o->ended_ns - cut_ns) * 1e-9;
        if (!CHECK(after_s < 12 * TIMEOUT_S))
            fprintf(stderr, "rank %u after %.1f s: %s\n", r, after_s, o->message);
    }
}

/* ---- trials ---- */

static uint32_t pick(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

static struct trial trial_of(uint64_t seed) {
    static const char *const kinds[] = {
        "delay", "loss", "rate", "reordering", "a short partition", "a partition", "one way", "all of it"};
    uint64_t state = seed * 0x9e3779b97f4a7c15u;
    uint32_t kind = (uint32_t)(seed % 8), many = pick(&state, 3);
    struct trial t = {.stage = pick(&state, 4),
                      .what = kinds[kind],
                      .ends_well = kind != 5 && kind != 6,
                      .secret = seed % 2};
    struct network *n = &t.network;
    *n = (struct network){.ranks = many ? 2 : 4, .seed = seed, .cut_for_s = 1e9};
    if (kind == 0) n->delay_s = 0.002 * (1 + pick(&state, 10));
    if (kind == 1) n->loss = 0.005 * (1 + pick(&state, 4));
    if (kind == 2) n->bytes_per_s = 1e6 * (1 + pick(&state, 10));
    if (kind == 3) n->delay_s = 0.001, n->jitter_s = 0.001 * (1 + pick(&state, 10));
    if (kind >= 4 && kind <= 6)
        n->cut_rank = 1 + pick(&state, n->ranks - 1), n->cut_step = 1 + pick(&state, 3);
    if (kind == 4) n->cut_for_s = 0.1 * TIMEOUT_S * (1 + pick(&state, 6)), n->one_way = pick(&state, 2);
    if (kind == 6) n->one_way = true;
    if (kind == 7) n->delay_s = 0.002, n->jitter_s = 0.002, n->loss = 0.005, n->bytes_per_s = 1e7;
    return t;
}

/* In a process of its own. */
static int run_trial(uint64_t seed) {
    struct trial t = trial_of(seed);
    int status[NETWORK_RANKS_MAX];
    t.outcome = network_share(sizeof *t.outcome * NETWORK_RANKS_MAX);
    t.network.steps = network_share(sizeof *t.network.steps);
    t.network.cut_ns = network_share(sizeof *t.network.cut_ns);
    uint64_t began_ns = clock_now_ns();
    if (!network_run(&t.network, MOST_S, be_rank, &t, status)) return 2;
    for (uint32_t r = 0; r < t.network.ranks; r++) {
        CHECK_INT(status[r], 0);
        CHECK_INT(t.outcome[r].warned, r == 0 && !t.secret); /* other hosts could be on this network */
    }
    (t.ends_well ? expect_weights : expect_loss)(&t);
    printf("seed %llu: %s, %u ranks, stage %u: %.1f s\n", (unsigned long long)seed, t.what, t.network.ranks,
           t.stage, (double)(clock_now_ns() - began_ns) * 1e-9);
    return check_end() ? 1 : 0;
}

static void nothing(const zero_runtime *runtime, void *user) {}

static bool permitted(void) {
    struct network network = {.ranks = 1};
    int status[NETWORK_RANKS_MAX];
    return network_run(&network, 10, nothing, NULL, status);
}

static void await_one(uint32_t *running) {
    int status;
    if (wait(&status) < 0) return;
    --*running;
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1,
             count = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint32_t running = 0;
    if (!permitted()) {
        printf("SKIPPED: this system allows no networks of a test's own: %s\n", strerror(errno));
        return 0;
    }
    for (uint64_t seed = first; seed < first + count; seed++) {
        if (running == AT_ONCE) await_one(&running);
        fflush(NULL);
        if (fork() == 0) {
            atomic_store(&check_failures, 0); /* of the trials before */
            check_seed(seed);
            exit(run_trial(seed));
        }
        running++;
    }
    while (running) await_one(&running);
    return check_end();
}
