/* When parameters are gathered: the exact order of events for each depth and each limit, written out by hand from the
 * rules in stages/policy.h; then, for models and limits from seeds, that no more is gathered at once than the limit or
 * one use alone needs. gather_test [FIRST SEED] [SEEDS] */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/seeds.h"
#include "tests/stages/toy.h"

#define NONE UINT64_MAX

/* Units a, b, c, d of 10, 20, 30, 40 elements; one micro-step. g: gather, f: forward, b: backward, y: copy to the
 * second shard, l: release. */
static const struct {
    const struct stage *stage;
    uint32_t depth, backward_depth;
    uint64_t live_max, ahead_max;
    int persistent; /* this unit is; -1: none */
    const char *events;
} lists[] = {
    /* Depth 0: a unit is gathered when it is used; d stays gathered at the turn, because its backward is the next
     * use. */
    {&stage_zero3, 0, 0, NONE, NONE, -1, "ga fa la gb fb lb gc fc lc gd fd bd ld gc bc lc gb bb lb ga ba la"},
    /* Depth 1: with each use, the next use's unit is gathered. At d's forward the next use is d's backward: no gather
     * is needed. */
    {&stage_zero3, 1, 1, NONE, NONE, -1, "ga gb fa la gc fb lb gd fc lc fd gc bd ld gb bc lc ga bb lb ba la"},
    {&stage_zero3, 2, 2, NONE, NONE, -1, "ga gb gc fa la gd fb lb fc lc gc fd gb bd ld ga bc lc bb lb ba la"},
    /* Different depths in forward and backward. At d's forward the cursor is still in the forward. */
    {&stage_zero3, 0, 2, NONE, NONE, -1, "ga fa la gb fb lb gc fc lc gd fd gc gb bd ld ga bc lc bb lb ba la"},
    {&stage_zero3, 2, 0, NONE, NONE, -1, "ga gb gc fa la gd fb lb fc lc gc fd bd ld bc lc gb bb lb ga ba la"},
    /* 60 live: a + b + c fit; b + c + d and c + d do not fit, so d waits until c is released, in both directions. */
    {&stage_zero3, 2, 2, 60, NONE, -1, "ga gb gc fa la fb lb fc lc gd fd bd ld gc gb ga bc lc bb lb ba la"},
    /* 59 live: c does not fit beside a and b. */
    {&stage_zero3, 2, 2, 59, NONE, -1, "ga gb fa la gc fb lb fc lc gd fd bd ld gc gb bc lc ga bb lb ba la"},
    /* No unit may be gathered ahead: the same as depth 0, however large the units are. */
    {&stage_zero3, 2, 2, 0, NONE, -1, "ga fa la gb fb lb gc fc lc gd fd bd ld gc bc lc gb bb lb ga ba la"},
    {&stage_zero3, 2, 2, NONE, 0, -1, "ga fa la gb fb lb gc fc lc gd fd bd ld gc bc lc gb bb lb ga ba la"},
    /* 30 ahead: b; or c; or, in c's backward, b + a. d's backward needs no gather, so at d's forward c may be gathered
     * ahead. */
    {&stage_zero3, 2, 2, NONE, 30, -1, "ga gb fa la gc fb lb fc lc gd gc fd bd ld gb ga bc lc bb lb ba la"},
    /* b is persistent: it is neither gathered nor released, and does not count as a gather ahead. */
    {&stage_zero3, 1, 1, NONE, NONE, 1, "ga gc fa la fb gd fc lc fd gc bd ld ga bc lc bb ba la"},
    /* b's 20 elements do not count as live either: a + c fit in 40. */
    {&stage_zero3, 2, 2, 40, NONE, 1, "ga gc fa la fb fc lc gd fd bd ld gc ga bc lc bb ba la"},
    /* Kept: all units; then c and d, the last ones of the forward that fit together. */
    {&stage_zero3_keep, 0, 0, NONE, NONE, -1, "ga fa gb fb gc fc gd fd bd ld bc lc bb lb ba la"},
    {&stage_zero3_keep, 0, 0, 70, NONE, -1, "ga fa la gb fb lb gc fc gd fd bd ld bc lc gb bb lb ga ba la"},
    /* Gathering b in d's backward would make c + d + b live. */
    {&stage_zero3_keep, 2, 2, 70, NONE, -1, "ga gb gc fa la fb lb gd fc fd bd ld gb ga bc lc bb lb ba la"},
    {&stage_zero3_keep, 0, 0, 0, NONE, -1,
     "ga fa la gb fb lb gc fc lc gd fd bd ld gc bc lc gb bb lb ga ba la"},
    {&stage_hpz, 0, 0, NONE, NONE, -1,
     "ga fa ya la gb fb yb lb gc fc yc lc gd fd bd ld gc bc lc gb bb lb ga ba la"},
};

/* Units a, b, c form a segment and run again (r) before c's backward; d does not. They have 10, 20, 30, 40 elements or,
 * if `falling`, 40, 30, 20, 10. */
static const struct {
    const struct stage *stage;
    uint32_t depth, backward_depth;
    uint64_t live_max, ahead_max;
    bool falling;
    const char *events;
} again[] = {
    /* c is gathered ahead of its backward; b stays for its own backward, a is gathered once more. */
    {&stage_zero3, 1, 1, NONE, NONE, false,
     "ga gb fa la gc fb lb gd fc lc fd gc bd ld ga gb ra la rb rc bc lc ga bb lb ba la"},
    /* Only the backward looks ahead: the segment's units are not gathered early, but a and b stay. */
    {&stage_zero3, 0, 2, NONE, NONE, false,
     "ga fa la gb fb lb gc fc lc gd fd gc gb bd ld ga ra rb rc bc lc bb lb ba la"},
    {&stage_zero3, 2, 0, NONE, NONE, false,
     "ga gb gc fa la gd fb lb fc lc gc fd bd ld ga gb ra la rb lb rc bc lc gb bb lb ga ba la"},
    /* 60 live: c + d do not fit; a + b and b + c do, so b is gathered before a's end, and c before b's end. */
    {&stage_zero3, 1, 1, 60, NONE, false,
     "ga gb fa la gc fb lb fc lc gd fd bd ld ga gb ra la gc rb rc bc lc ga bb lb ba la"},
    /* b + c do not fit: c waits for b's end, and b does not stay. */
    {&stage_zero3, 1, 1, 49, NONE, false,
     "ga gb fa la fb lb gc fc lc gd fd bd ld ga gb ra la rb lb gc rc bc lc gb ga bb lb ba la"},
    /* c + d fit, but c would still be live when a runs again, and a + c do not fit. */
    {&stage_zero3, 1, 1, 50, NONE, true,
     "ga fa la gb gc fb lb gd fc lc fd bd ld ga ra la gb gc rb rc bc lc bb lb ga ba la"},
    /* 30 ahead: c at d's forward, and nothing more; a + c beside b are too many: a does not stay. */
    {&stage_zero3, 2, 2, NONE, 30, false,
     "ga gb fa la gc fb lb fc lc gd gc fd bd ld ga ra la gb rb rc ga bc lc bb lb ba la"},
    /* No unit may be gathered ahead. */
    {&stage_zero3, 2, 2, 0, NONE, false,
     "ga fa la gb fb lb gc fc lc gd fd bd ld ga ra la gb rb lb gc rc bc lc gb bb lb ga ba la"},
    /* Kept: all units; c and d, which leave room for a and for b; only d, because c beside a does not fit. */
    {&stage_zero3_keep, 0, 0, NONE, NONE, false, "ga fa gb fb gc fc gd fd bd ld ra rb rc bc lc bb lb ba la"},
    {&stage_zero3_keep, 0, 0, 70, NONE, false,
     "ga fa la gb fb lb gc fc gd fd bd ld ga ra la gb rb lb rc bc lc gb bb lb ga ba la"},
    {&stage_zero3_keep, 0, 0, 90, NONE, false,
     "ga fa la gb fb gc fc gd fd bd ld ga ra la rb rc bc lc bb lb ga ba la"},
    {&stage_zero3_keep, 0, 0, 50, NONE, true,
     "ga fa la gb fb lb gc fc lc gd fd bd ld ga ra la gb rb lb gc rc bc lc gb bb lb ga ba la"},
    /* Second shards exist from the first release on. */
    {&stage_hpz, 1, 1, 60, NONE, false,
     "ga gb fa ya la gc fb yb lb fc yc lc gd fd bd ld ga gb ra la gc rb rc bc lc ga bb lb ba la"},
};

static void set(struct toy *t, uint32_t depth, uint32_t backward_depth, uint64_t live_max,
                uint64_t ahead_max) {
    t->policy.depth = depth, t->policy.backward_depth = backward_depth;
    t->policy.live_max = live_max, t->policy.ahead_max = ahead_max;
    policy_open(&t->policy);
}

static void render(const struct toy *t, char *out) {
    static const char letters[OP_KINDS] = {
        [OP_COMPUTE] = 'f', [OP_GATHER] = 'g', [OP_RELEASE] = 'l', [OP_COPY] = 'y'};
    for (uint32_t i = 0; i < t->out.count; i++) {
        const struct operation *op = &t->list[i];
        char letter = letters[op->kind];
        if (op->object != OBJECT_PARAM || !letter) continue;
        if (op->kind == OP_COMPUTE && policy_backward(&t->policy, op->use)) letter = 'b';
        if (op->kind == OP_COMPUTE && op->use >= 2 * t->policy.uses) letter = 'r';
        out += sprintf(out, "%s%c%s", i ? " " : "", letter, t->name[op->region]);
    }
}

static void written_out(void) {
    static struct toy t;
    static char got[4096];
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        toy_plain(&t, lists[i].stage, 4, 1, ACCUMULATE_EVERY, 0);
        for (uint32_t u = 0; u < 4; u++) {
            t.region[u].elements = 10 * (u + 1);
            t.region[u].persistent = (int)u == lists[i].persistent;
        }
        set(&t, lists[i].depth, lists[i].backward_depth, lists[i].live_max, lists[i].ahead_max);
        toy_pass(&t, false, "");
        render(&t, got);
        if (!CHECK_STRING(got, lists[i].events)) fprintf(stderr, "in list %zu\n", i);
    }
}

static void written_out_again(void) {
    static struct toy t;
    static char got[4096];
    for (size_t i = 0; i < sizeof again / sizeof *again; i++) {
        toy_plain(&t, again[i].stage, 4, 1, ACCUMULATE_EVERY, 0);
        for (uint32_t u = 0; u < 4; u++) t.region[u].elements = 10 * (again[i].falling ? 4 - u : u + 1);
        set(&t, again[i].depth, again[i].backward_depth, again[i].live_max, again[i].ahead_max);
        toy_segments(&t, 3);
        toy_pass_again(&t, "");
        render(&t, got);
        if (!CHECK_STRING(got, again[i].events)) fprintf(stderr, "in list %zu of what is run again\n", i);
    }
}

/* ---- the bound ---- */

static uint64_t state;

static uint32_t pick(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % n);
}

static uint64_t use_elements(const struct toy *t, uint32_t position) {
    const struct use *use = policy_use(&t->policy, position);
    uint64_t elements = 0;
    for (uint8_t i = 0; i < use->count; i++)
        if (!t->region[use->region[i]].persistent) elements += t->region[use->region[i]].elements;
    return elements;
}

/* Checks the gathered elements at each computation. */
static void bounded(const struct toy *t) {
    uint64_t live = 0;
    for (uint32_t i = 0; i < t->out.count; i++) {
        const struct operation *op = &t->list[i];
        uint64_t elements = t->region[op->region].persistent ? 0 : t->region[op->region].elements;
        if (op->object == OBJECT_PARAM && op->kind == OP_GATHER) live += elements;
        if (op->object == OBJECT_PARAM && op->kind == OP_RELEASE) live -= elements;
        if (op->kind != OP_COMPUTE) continue;
        uint64_t most = use_elements(t, op->use);
        if (!CHECK(live <= most || live <= t->policy.live_max))
            fprintf(stderr, "%" PRIu64 " live at position %u, limit %" PRIu64 "\n", live, op->use,
                    t->policy.live_max);
        if (!CHECK(t->policy.stage == &stage_zero3_keep || live - most <= t->policy.ahead_max))
            fprintf(stderr, "%" PRIu64 " ahead at position %u\n", live - most, op->use);
    }
    CHECK_INT(live, 0);
}

/* With tied, persistent and frozen regions and skipped uses. Regions that a use shares with the next use do not count
 * as ahead. */
static void from_seeds(uint64_t first, uint64_t count) {
    static const struct stage *const rows[] = {&stage_zero3, &stage_zero3_keep, &stage_hpz};
    static const char *const skips[] = {"", "", "a", "cp", "b", "ah"};
    static struct toy t;
    for (uint64_t seed = first; seed < first + count; seed++) {
        check_seed(seed);
        state = seed * 0x9e3779b97f4a7c15u;
        toy_tied(&t, rows[pick(3)], (const uint32_t[]){2, 2}, 1 + pick(2), ACCUMULATE_EVERY, 0);
        for (uint32_t i = 0; i < t.policy.regions; i++) t.region[i].elements = 1 + pick(50);
        set(&t, pick(4), pick(4), pick(2) ? pick(200) : NONE, pick(2) ? pick(100) : NONE);
        uint32_t segment = pick(5);
        if (segment) toy_segments(&t, segment);
        for (uint32_t micro = 0; micro < t.policy.micro_steps; micro++)
            segment ? toy_pass_again(&t, skips[pick(6)]) : toy_pass(&t, false, skips[pick(6)]);
        toy_step(&t, false);
        toy_pass(&t, true, skips[pick(6)]);
        toy_flush(&t);
        bounded(&t);
    }
}

int main(int argc, char **argv) {
    written_out();
    written_out_again();
    from_seeds(argc > 1 ? strtoull(argv[1], NULL, 10) : 1,
               argc > 2 ? strtoull(argv[2], NULL, 10) : seeds_count(20000));
    return check_end();
}
