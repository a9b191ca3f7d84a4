/* Free order within a bound: the exact order of events, written out by hand from the rules in stages/room.c and stages/eviction.c; then, for programs, models
 * and bounds from seeds: what is gathered and the gradients that are not reduced never take more than the room, what is in use is
 * there, all waits for memory are there, and every stage reduces at the same moments. room_test [FIRST SEED] [SEEDS] */
#include <inttypes.h>
#include <stdlib.h>

#include "tests/check.h"
#include "tests/seeds.h"
#include "tests/stages/toy.h"

/* A unit's letter: forward of 'a' ... 'd'; 'A' ... 'D': backward. A use with '(' lasts until its ')': "b(a)" is a forward of a inside
 * one of b. */
struct program {
    struct toy *toy;
    uint32_t open[64], depth;
};

static uint32_t position_of(const struct toy *t, char letter) {
    bool backward = letter < 'a';
    uint32_t unit = 0;
    while (t->name[t->use[unit].region[0]][0] != (backward ? letter - 'A' + 'a' : letter)) unit++;
    return backward ? 2 * t->policy.uses - 1 - unit : unit;
}

static void begin(struct program *p, uint32_t position) {
    p->open[p->depth++] = position;
    policy_begin(&p->toy->policy, &(struct event){.position = position}, &p->toy->out);
}

static void end(struct program *p) {
    policy_end(&p->toy->policy, &(struct event){0}, &p->toy->out);
    if (!--p->depth) return;
    policy_go_on(&p->toy->policy, &(struct event){.position = p->open[p->depth - 1]}, &p->toy->out);
}

static void run(struct toy *t, const char *uses) {
    struct program p = {.toy = t};
    for (const char *c = uses; *c; c++) {
        if (*c == '(') continue;
        if (*c != ')') begin(&p, position_of(t, *c));
        if (*c == ')' || c[1] != '(') end(&p);
    }
}

static void render(const struct toy *t, char *out) {
    static const char letters[OP_KINDS] = {[OP_COMPUTE] = 'f', [OP_GATHER] = 'g', [OP_RELEASE] = 'l',
                                           [OP_COPY] = 'y',    [OP_REDUCE] = 'r', [OP_CLEAR] = 'z'};
    for (uint32_t i = 0; i < t->out.count; i++) {
        const struct operation *op = &t->list[i];
        char letter = letters[op->kind];
        if (!letter || (op->kind == OP_RELEASE && op->object == OBJECT_GRAD)) continue;
        if (op->kind == OP_COMPUTE && policy_backward(&t->policy, op->use)) letter = 'b';
        out += sprintf(out, "%s%c%s%s", i ? " " : "", letter, t->name[op->region], op->joins ? "!" : "");
    }
}

/* Units a, b, c, d of 10, 20, 30, 40 bytes. g: gather, f: forward, b: backward, r: reduce, y: copy to the second shard, l: release;
 * !: it waits for the memory of what was released. */
static const struct {
    const struct stage *stage;
    uint32_t bound;
    const char *uses, *events;
} lists[] = {
    /* 40 bytes: a and b, then c, then d. d is still there for its backward. */
    {&stage_zero3, 1, "abcdDCBA",
     "ga fa gb fb la lb gc! fc lc gd! fd bd rd ld gc! bc! rc lc gb! bb! rb ga ba ra la lb"},
    /* 70 bytes: a, b and c; d needs 40. c's gradient has room beside d's, which is being reduced. */
    {&stage_zero3, 2, "abcdDCBA",
     "ga fa gb fb gc fc la lb gd! fd bd rd bc rc ld gb! bb! rb ga ba ra la lb lc"},
    /* All units have room. */
    {&stage_zero3, 4, "abcdDCBA", "ga fa gb fb gc fc gd fd bd rd bc rc bb rb ba ra la lb lc ld"},
    /* A use inside another one, which then goes on: what is in use does not leave. */
    {&stage_zero3, 3, "a(d)cC(a(b))A", "ga fa gd fd fa gc fc bc fa ld gb! fb fa bc rc ba ra la lb lc"},
    /* b's first backward is not the last one: there were two forwards. */
    {&stage_zero3, 2, "abbBABA", "ga fa gb fb fb bb ba ra bb rb ba ra la lb"},
    /* a's second backward was not awaited: its gradient is reduced by itself. */
    {&stage_zero3, 2, "abBABA", "ga fa gb fb bb rb ba ra bb rb ba ra la lb"},
    /* b's gradient makes room for c's before its last backward. Forwards in the backward await none of their own. */
    {&stage_zero3, 1, "abbcBcCaAB",
     "ga fa gb fb fb la lb gc! fc lc gb! bb lb gc! fc rb bc! rc ga fa ba ra lc gb! bb! rb la lb"},
    /* The second shard is for a backward that follows. */
    {&stage_hpz, 1, "abcdDCBA",
     "ga fa gb fb ya la yb lb gc! fc yc lc gd! fd bd rd ld gc! bc! rc lc gb! bb! rb ga ba ra la lb"},
};

static void open(struct toy *t, const struct stage *stage, uint32_t bound) {
    toy_plain(t, stage, 4, 1, ACCUMULATE_EVERY, 2);
    t->policy.free_order = true;
    t->policy.bound = bound;
    for (uint32_t u = 0; u < 4; u++) t->region[u].bytes = 10 * (u + 1);
    policy_open(&t->policy);
}

static void written_out(void) {
    static struct toy t;
    static char got[8192];
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        open(&t, lists[i].stage, lists[i].bound);
        policy_pass(&t.policy, &(struct event){.last = true}, &t.out);
        run(&t, lists[i].uses);
        policy_pass(&t.policy, &(struct event){.last = true}, &t.out);
        render(&t, got);
        if (!CHECK_STRING(got, lists[i].events)) fprintf(stderr, "in list %zu\n", i);
    }
}

/* ---- from seeds ---- */

static uint64_t state;

static uint32_t pick(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % n);
}

/* What has surely retired when an operation starts: a point for each stream. */
struct reach {
    uint64_t point[STREAMS];
};

static struct reach reach[TOY_OPERATIONS_MAX], before[STREAMS][TOY_OPERATIONS_MAX];

static void join(struct reach *r, const struct reach *other) {
    for (int s = 0; s < STREAMS; s++)
        if (r->point[s] < other->point[s]) r->point[s] = other->point[s];
}

/* What an operation waits for has waited, too; and operations of one stream start in order. */
static void find_reach(const struct toy *t) {
    struct reach last[STREAMS] = {0};
    for (uint32_t i = 0; i < t->out.count; i++) {
        const struct operation *op = &t->list[i];
        memcpy(reach[i].point, op->after, sizeof reach[i].point);
        for (int s = 0; s < STREAMS; s++)
            if (op->after[s]) join(&reach[i], &before[s][op->after[s]]);
        join(&reach[i], &last[op->stream]);
        last[op->stream] = before[op->stream][op->end] = reach[i];
    }
}

/* The bytes of an object that may be taken when operation `at` starts: what was acquired, but not what has surely been released. */
static uint64_t taken(const struct toy *t, uint32_t at, enum buffer_kind kind) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i <= at; i++) {
        const struct operation *op = &t->list[i];
        for (uint8_t k = 0; k < op->writes; k++) {
            uint64_t size = t->region[op->write[k].region].bytes;
            if (op->write[k].kind != kind) continue;
            if (op->acquires & 1u << k) bytes += size;
            if (op->kind == OP_RELEASE && op->end <= reach[at].point[op->stream]) bytes -= size;
        }
    }
    return bytes;
}

static void check_room(const struct toy *t) {
    find_reach(t);
    for (uint32_t i = 0; i < t->out.count; i++) {
        if (!t->list[i].acquires) continue;
        bool gathers = t->list[i].kind == OP_GATHER;
        uint64_t room = t->policy.room[gathers ? OBJECT_PARAM : OBJECT_GRAD],
                 bytes = taken(t, i, gathers ? BUFFER_PARAM_FULL : BUFFER_GRAD_FULL);
        if (!CHECK(bytes <= room))
            fprintf(stderr, "%s, bound %u, operation %u takes %" PRIu64 " of %" PRIu64 "\n",
                    t->policy.stage->name, t->policy.bound, i, bytes, room);
    }
}

static void check_in_use(const struct toy *t, uint32_t position) {
    const struct use *use = policy_use(&t->policy, position);
    for (uint8_t i = 0; i < use->count; i++) {
        const struct region *r = &t->region[use->region[i]];
        CHECK(r->full || placement_is(r->rest, REPLICATE, REPLICATE));
        CHECK(r->partial || r->frozen || !policy_backward(&t->policy, position));
    }
}

/* Uses in any order, up to `bound` units at once. The choices do not depend on the stage. */
static void random_pass(struct toy *t, bool evaluating, bool last) {
    struct program p = {.toy = t};
    uint32_t uses = 1 + pick(24), turn = pick(20), from = t->out.count;
    policy_pass(&t->policy, &(struct event){.evaluating = evaluating, .last = last}, &t->out);
    for (uint32_t i = 0; i < uses; i++) {
        uint32_t unit = pick(t->policy.uses), backward = !evaluating && i >= turn && pick(4) > 0,
                 ends = pick(4);
        if (p.depth < t->policy.bound) begin(&p, backward ? 2 * t->policy.uses - 1 - unit : unit);
        for (uint32_t k = 0; k < p.depth; k++) check_in_use(t, p.open[k]);
        for (; ends > 0 && p.depth; ends--) end(&p);
    }
    while (p.depth) end(&p);
    toy_waits(t, from);
}

/* The reductions of parts of gradients, each with the number of uses before it: equal at every stage. */
static void reductions(const struct toy *t, char *out) {
    uint32_t uses = 0;
    for (uint32_t i = 0; i < t->out.count; i++) {
        uses += t->list[i].kind == OP_COMPUTE;
        if (t->list[i].kind == OP_REDUCE && t->list[i].reads)
            out += sprintf(out, " %u%s%s", uses, t->name[t->list[i].region], t->list[i].add ? "+" : "");
    }
    *out = 0;
}

static void from_seed(uint64_t seed) {
    static const struct stage *const rows[] = {&stage_zero0, &stage_zero1,      &stage_zero2,
                                               &stage_zero3, &stage_zero3_keep, &stage_hpz};
    static struct toy t;
    static char got[65536], first[65536];
    for (int s = 0; s < 6; s++) {
        state = seed * 0x9e3779b97f4a7c15u;
        uint32_t micro_steps = 1 + pick(2);
        toy_tied(&t, rows[s], (const uint32_t[]){2, 2}, micro_steps,
                 pick(2) ? ACCUMULATE_EVERY : ACCUMULATE_LAST, pick(2));
        t.policy.free_order = true;
        t.policy.bound = 1 + pick(t.policy.uses);
        t.policy.roomy = pick(4) == 0 && s % 2; /* on such a device: the same reductions */
        for (uint32_t i = 0; i < t.policy.regions; i++) t.region[i].bytes = 1 + pick(50);
        policy_open(&t.policy);
        for (uint32_t micro = 1; micro <= micro_steps; micro++) {
            random_pass(&t, false, micro == micro_steps);
            if (pick(2)) random_pass(&t, true, micro == micro_steps);
        }
        toy_step(&t, false);
        toy_flush(&t);
        if (!t.policy.roomy) check_room(&t);
        reductions(&t, got);
        if (!s) strcpy(first, got);
        CHECK_STRING(got, first);
    }
}

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1,
             count = argc > 2 ? strtoull(argv[2], NULL, 10) : seeds_count(2000);
    written_out();
    for (uint64_t seed = first; seed < first + count; seed++) {
        check_seed(seed);
        from_seed(seed);
    }
    return check_end();
}
