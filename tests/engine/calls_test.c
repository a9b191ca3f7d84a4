/* Random programs of public calls: whatever a program calls, right or wrong, engines of all stages and tiers return the same statuses,
 * weights, gradients, norms and hashes. Every seed is a model and a list of calls. A list that fails is cut to the calls that it
 * takes, and printed. tools/soak runs many seeds. calls_test [FIRST SEED] [SEEDS] */
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/engine/calls.h"
#include "tests/seeds.h"

/* One seed, played in two ways. */
struct pair {
    struct calls_model model;
    uint32_t way[2]; /* the first is the reference */
    struct calls_list list;
    struct calls_result result[2][CALLS_RANKS_MAX];
};

static struct pair pair;

enum { SHRINK_S = 60 };

/* What a program can get for a call: a refusal is one, a failure is none. */
static bool allowed(enum calls_kind kind, zero_status status) {
    bool reads =
        kind == CALL_load || kind == CALL_load_weights || kind == CALL_load_ema || kind == CALL_prune;
    return status == ZERO_OK || status == ZERO_E_ARGUMENT || status == ZERO_E_ORDER ||
           ((status == ZERO_E_IO || status == ZERO_E_ABSENT) && reads);
}

static bool equal(const struct calls_seen *got, const struct calls_seen *expected) {
    bool text = got->status || strcmp(got->text, expected->text) == 0;
    return got->status == expected->status && got->digest == expected->digest && text;
}

/* The first call in which a rank differs from rank 0 of the reference, or fails; -1: none. */
static int32_t difference(const struct pair *p, uint32_t side, uint32_t *out_rank) {
    for (uint32_t i = 0; i < p->list.count; i++)
        for (uint32_t r = 0; r < p->model.ranks; r++) {
            const struct calls_seen *got = &p->result[side][r].seen[i];
            *out_rank = r;
            if (!allowed(p->list.call[i].kind, got->status) || !equal(got, &p->result[0][0].seen[i]))
                return (int32_t)i;
        }
    return -1;
}

static void play(struct pair *p, uint32_t side) {
    calls_play(&p->model, p->way[side], &p->list, p->result[side]);
}

static bool opened(const struct pair *p, uint32_t side) {
    if (CHECK_STRING(p->result[side][0].why, "")) return true;
    fprintf(stderr, "in %s\n", calls_way_name(p->way[side]));
    return false;
}

static bool fails(struct pair *p) {
    uint32_t rank;
    play(p, 0), play(p, 1);
    return difference(p, 1, &rank) >= 0;
}

/* Leaves out what the failure does not need: halves first, single calls last. Each try takes as long as the failure, which may be a
 * wait until a deadline. */
static void shrink(struct pair *p) {
    time_t end = time(NULL) + SHRINK_S;
    for (uint32_t size = p->list.count / 2; size > 0; size /= 2)
        for (uint32_t at = 0; at + size <= p->list.count && time(NULL) < end;) {
            struct calls_list whole = p->list;
            p->list.count -= size;
            memmove(&p->list.call[at], &whole.call[at + size],
                    (whole.count - at - size) * sizeof whole.call[0]);
            if (fails(p)) continue;
            p->list = whole;
            at += size;
        }
    (void)fails(p); /* again, for the results */
}

static void print_seen(const struct calls_seen *seen) {
    fprintf(stderr, "%s, %016" PRIx64 "%s%s\n", zero_status_name(seen->status), seen->digest,
            *seen->text ? ": " : "", seen->text);
}

static void print(const struct pair *p) {
    static char json[4096];
    uint32_t rank;
    int32_t bad = difference(p, 1, &rank);
    calls_model_print(&p->model, stderr);
    for (uint32_t side = 0; side < 2; side++) {
        calls_way_config(&p->model, p->way[side], json, sizeof json);
        fprintf(stderr, "  %s: %s\n", calls_way_name(p->way[side]), json);
    }
    for (int32_t i = 0; i <= bad; i++) {
        fprintf(stderr, "  %3d ", i);
        calls_call_print(&p->list.call[i], stderr);
        const struct calls_seen *seen = &p->result[0][0].seen[i];
        fprintf(stderr, "%s%s\n", seen->status ? "; refused: " : "", seen->status ? seen->text : "");
    }
    if (bad < 0) return;
    fprintf(stderr, "  %s: ", calls_way_name(p->way[0])), print_seen(&p->result[0][0].seen[bad]);
    fprintf(stderr, "  %s, rank %u: ", calls_way_name(p->way[1]), rank),
        print_seen(&p->result[1][rank].seen[bad]);
}

static bool right(struct pair *p) {
    uint32_t rank;
    for (uint32_t way = 0, ways = 0; way < CALLS_WAYS; way++) {
        if (!(p->model.ways >> way & 1)) continue;
        uint32_t side = ways++ > 0;
        p->way[side] = way;
        if (!side) p->way[1] = way, calls_draw(&p->model, way, &p->list);
        play(p, side);
        if (!opened(p, side)) return false;
        if (CHECK_INT(difference(p, side, &rank), -1)) continue;
        shrink(p);
        print(p);
        return false;
    }
    return true;
}

/* A crash is a failure of a seed, too. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void say_seed(void) {
    fprintf(stderr, "seed %" PRIu64 " crashes in %s; its calls:\n", pair.model.seed,
            calls_way_name(pair.way[1]));
    calls_model_print(&pair.model, stderr);
    for (uint32_t i = 0; i < pair.list.count; i++)
        calls_call_print(&pair.list.call[i], stderr), fputc('\n', stderr);
}

static void crash(int number) {
    say_seed();
    signal(number, SIG_DFL);
    raise(number);
}

static void watch(void) {
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(say_seed);
    else
        signal(SIGSEGV, crash), signal(SIGBUS, crash), signal(SIGABRT, crash), signal(SIGFPE, crash);
}

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1,
             count = argc > 2 ? strtoull(argv[2], NULL, 10) : seeds_count(50);
    char directory[] = "calls_XXXXXX";
    const char *base = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    if (!CHECK(chdir(base) == 0 && mkdtemp(directory) && chdir(directory) == 0)) return check_end();
    watch();
    for (uint64_t seed = first; seed < first + count; seed++) {
        check_seed(seed);
        calls_model_draw(seed, &pair.model);
        right(&pair);
    }
    calls_clean();
    CHECK(chdir("..") == 0 && rmdir(directory) == 0);
    return check_end();
}
