/* Each stage's exact operations with the waits that data needs: two plain units a and b, one step of one or two
 * micro-steps, then an evaluation pass; no device, prefetch depth 0. They equal a derivation apart from the policy's
 * code: the order of operations from what a stage is, the waits from what each operation reads and writes. An
 * operation that waits for nothing has no brackets. A point counts the operations of its stream, releases included. */
#include "tests/check.h"
#include "tests/stages/toy.h"

struct list {
    const struct stage *stage;
    uint32_t micro_steps;
    enum accumulation accumulation;
    const char *operations;
};

static const struct list lists[] = {
    {&stage_zero0, 1, ACCUMULATE_LAST,
     "forward a · forward b · backward b · reduce b (compute 3) · gather-gradient b (reduce 1) · "
     "backward a · reduce a (compute 4) · gather-gradient a (reduce 2) · "
     "step (gather 2, reduce 2) · update a (compute 4, gather 2) · update b (compute 3, gather 1) · forward "
     "a (update 1) · "
     "forward b (update 2)"},
    {&stage_zero0, 2, ACCUMULATE_LAST,
     "forward a · forward b · backward b · backward a · forward a · forward b · "
     "backward b (compute 3) · reduce b (compute 7) · gather-gradient b (reduce 1) · "
     "backward a (compute 4) · reduce a (compute 8) · gather-gradient a (reduce 2) · "
     "step (gather 2, reduce 2) · update a (compute 8, gather 2) · update b (compute 7, gather 1) · "
     "forward a (update 1) · forward b (update 2)"},
    {&stage_zero0, 2, ACCUMULATE_EVERY,
     "forward a · forward b · backward b · reduce b (compute 3) · backward a · "
     "reduce a (compute 4) · forward a · forward b · backward b (compute 3, reduce 1) · "
     "reduce b (compute 7, reduce 1) · gather-gradient b (compute 7, reduce 3) · "
     "backward a (compute 4, reduce 2) · reduce a (compute 8, reduce 2) · "
     "gather-gradient a (compute 8, reduce 4) · step (gather 2, reduce 4) · "
     "update a (compute 8, gather 2) · update b (compute 7, gather 1) · forward a (update 1) · "
     "forward b (update 2)"},
    {&stage_zero1, 1, ACCUMULATE_LAST,
     "forward a · forward b · backward b · reduce b (compute 3) · "
     "release-gradient b (compute 3, reduce 1) · backward a · reduce a (compute 4) · "
     "release-gradient a (compute 4, reduce 3) · step (reduce 4) · "
     "update a (compute 4, reduce 3) · gather a (update 1) · update b (compute 3, reduce 1) · "
     "gather b (update 2) · forward a (gather 1) · forward b (gather 2)"},
    {&stage_zero1, 2, ACCUMULATE_LAST,
     "forward a · forward b · backward b · backward a · forward a · forward b · "
     "backward b (compute 3) · reduce b (compute 7) · backward a (compute 4) · "
     "reduce a (compute 8) · step (reduce 2) · update a (compute 8, reduce 2) · "
     "gather a (update 1) · update b (compute 7, reduce 1) · gather b (update 2) · "
     "forward a (gather 1) · forward b (gather 2)"},
    {&stage_zero1, 2, ACCUMULATE_EVERY,
     "forward a · forward b · backward b · reduce b (compute 3) · "
     "release-gradient b (compute 3, reduce 1) · backward a · reduce a (compute 4) · "
     "release-gradient a (compute 4, reduce 3) · forward a · forward b · backward b (reduce 2) · "
     "reduce b (compute 7, reduce 1) · release-gradient b (compute 7, reduce 5) · "
     "backward a (reduce 4) · reduce a (compute 8, reduce 3) · "
     "release-gradient a (compute 8, reduce 7) · step (reduce 8) · "
     "update a (compute 8, reduce 7) · gather a (update 1) · update b (compute 7, reduce 5) · "
     "gather b (update 2) · forward a (gather 1) · forward b (gather 2)"},
    {&stage_zero2, 1, ACCUMULATE_EVERY,
     "forward a · forward b · backward b · reduce b (compute 3) · "
     "release-gradient b (compute 3, reduce 1) · backward a · reduce a (compute 4) · "
     "release-gradient a (compute 4, reduce 3) · step (reduce 4) · "
     "update a (compute 4, reduce 3) · gather a (update 1) · update b (compute 3, reduce 1) · "
     "gather b (update 2) · forward a (gather 1) · forward b (gather 2)"},
    {&stage_zero2, 2, ACCUMULATE_LAST,
     "forward a · forward b · backward b · backward a · forward a · forward b · "
     "backward b (compute 3) · reduce b (compute 7) · backward a (compute 4) · "
     "reduce a (compute 8) · step (reduce 2) · update a (compute 8, reduce 2) · "
     "gather a (update 1) · update b (compute 7, reduce 1) · gather b (update 2) · "
     "forward a (gather 1) · forward b (gather 2)"},
    {&stage_zero2, 2, ACCUMULATE_EVERY,
     "forward a · forward b · backward b · reduce b (compute 3) · "
     "release-gradient b (compute 3, reduce 1) · backward a · reduce a (compute 4) · "
     "release-gradient a (compute 4, reduce 3) · forward a · forward b · backward b (reduce 2) · "
     "reduce b (compute 7, reduce 1) · release-gradient b (compute 7, reduce 5) · "
     "backward a (reduce 4) · reduce a (compute 8, reduce 3) · "
     "release-gradient a (compute 8, reduce 7) · step (reduce 8) · "
     "update a (compute 8, reduce 7) · gather a (update 1) · update b (compute 7, reduce 5) · "
     "gather b (update 2) · forward a (gather 1) · forward b (gather 2)"},
    {&stage_zero3, 1, ACCUMULATE_EVERY,
     "gather a · forward a (gather 1) · release a (compute 1, gather 1) · gather b · "
     "forward b (gather 2) · backward b (gather 2) · reduce b (compute 4) · "
     "release-gradient b (compute 4, reduce 1) · release b (compute 4, gather 2) · "
     "gather a (compute 2) · backward a (gather 3) · reduce a (compute 6) · "
     "release-gradient a (compute 6, reduce 3) · release a (compute 6, gather 3) · "
     "step (gather 3, reduce 4) · update a (gather 3, reduce 3) · update b (gather 2, reduce 1) · "
     "gather a (compute 7, update 1) · forward a (gather 4) · release a (compute 8, gather 4) · "
     "gather b (compute 5, update 2) · forward b (gather 5) · release b (compute 10, gather 5)"},
    {&stage_zero3, 2, ACCUMULATE_LAST,
     "gather a · forward a (gather 1) · release a (compute 1, gather 1) · gather b · "
     "forward b (gather 2) · backward b (gather 2) · release b (compute 4, gather 2) · "
     "gather a (compute 2) · backward a (gather 3) · release a (compute 6, gather 3) · "
     "gather a (compute 7) · forward a (gather 4) · release a (compute 8, gather 4) · "
     "gather b (compute 5) · forward b (gather 5) · backward b (compute 4, gather 5) · "
     "reduce b (compute 11) · release b (compute 11, gather 5) · gather a (compute 9) · "
     "backward a (compute 6, gather 6) · reduce a (compute 13) · "
     "release a (compute 13, gather 6) · step (gather 6, reduce 2) · update a (gather 6, reduce 2) · "
     "update b (gather 5, reduce 1) · gather a (compute 14, update 1) · forward a (gather 7) · "
     "release a (compute 15, gather 7) · gather b (compute 12, update 2) · forward b (gather 8) · "
     "release b (compute 17, gather 8)"},
    {&stage_zero3, 2, ACCUMULATE_EVERY,
     "gather a · forward a (gather 1) · release a (compute 1, gather 1) · gather b · "
     "forward b (gather 2) · backward b (gather 2) · reduce b (compute 4) · "
     "release-gradient b (compute 4, reduce 1) · release b (compute 4, gather 2) · "
     "gather a (compute 2) · backward a (gather 3) · reduce a (compute 6) · "
     "release-gradient a (compute 6, reduce 3) · release a (compute 6, gather 3) · "
     "gather a (compute 7) · forward a (gather 4) · release a (compute 8, gather 4) · "
     "gather b (compute 5) · forward b (gather 5) · backward b (gather 5, reduce 2) · "
     "reduce b (compute 11, reduce 1) · release-gradient b (compute 11, reduce 5) · "
     "release b (compute 11, gather 5) · gather a (compute 9) · backward a (gather 6, reduce 4) · "
     "reduce a (compute 13, reduce 3) · release-gradient a (compute 13, reduce 7) · "
     "release a (compute 13, gather 6) · step (gather 6, reduce 8) · update a (gather 6, reduce 7) · "
     "update b (gather 5, reduce 5) · gather a (compute 14, update 1) · forward a (gather 7) · "
     "release a (compute 15, gather 7) · gather b (compute 12, update 2) · forward b (gather 8) · "
     "release b (compute 17, gather 8)"},
};

/* The same with all micro-steps in each use. */
static const struct list vertical[] = {
    /* Units outer: one gather for all micro-steps, and the sum of each follows its backward. The second backward writes elsewhere than
     * the first, which is being reduced; the third where the first was. */
    {&stage_zero3, 3, ACCUMULATE_EVERY,
     "gather a · forward a (gather 1) · forward a (gather 1) · forward a (gather 1) · release a (compute 3, "
     "gather 1) · "
     "gather b · forward b (gather 2) · forward b (gather 2) · forward b (gather 2) · "
     "backward b (gather 2) · reduce b (compute 8) · release-gradient b (compute 8, reduce 1) · "
     "backward b (gather 2) · reduce b (compute 9, reduce 1) · release-gradient b (compute 9, reduce 3) · "
     "backward b (gather 2, reduce 2) · reduce b (compute 10, reduce 3) · release-gradient b (compute 10, "
     "reduce 5) · "
     "release b (compute 10, gather 2) · gather a (compute 4) · "
     "backward a (gather 3) · reduce a (compute 12) · release-gradient a (compute 12, reduce 7) · "
     "backward a (gather 3) · reduce a (compute 13, reduce 7) · release-gradient a (compute 13, reduce 9) · "
     "backward a (gather 3, reduce 8) · reduce a (compute 14, reduce 9) · release-gradient a (compute 14, "
     "reduce 11) · "
     "release a (compute 14, gather 3) · step (gather 3, reduce 12) · update a (gather 3, reduce 11) · "
     "update b (gather 2, reduce 5) · gather a (compute 15, update 1) · forward a (gather 4) · "
     "release a (compute 16, gather 4) · gather b (compute 11, update 2) · forward b (gather 5) · "
     "release b (compute 18, gather 5)"},
    /* The sum of micro-steps stays in one buffer, and is reduced once. */
    {&stage_zero2, 2, ACCUMULATE_LAST,
     "forward a · forward a · forward b · forward b · backward b · backward b (compute 5) · reduce b "
     "(compute 6) · "
     "release-gradient b (compute 6, reduce 1) · backward a · backward a (compute 7) · reduce a (compute 8) "
     "· "
     "release-gradient a (compute 8, reduce 3) · step (reduce 4) · update a (compute 8, reduce 3) · gather a "
     "(update 1) · "
     "update b (compute 6, reduce 1) · gather b (update 2) · forward a (gather 1) · forward b (gather 2)"},
};

/* The same with updates in the backward: each follows its reduction, so the last unit is updated first. */
static const struct list updates[] = {
    {&stage_zero3, 1, ACCUMULATE_EVERY,
     "gather a · forward a (gather 1) · release a (compute 1, gather 1) · gather b · "
     "forward b (gather 2) · backward b (gather 2) · reduce b (compute 4) · "
     "release-gradient b (compute 4, reduce 1) · release b (compute 4, gather 2) · "
     "update b (gather 2, reduce 1) · "
     "gather a (compute 2) · backward a (gather 3) · reduce a (compute 6) · "
     "release-gradient a (compute 6, reduce 3) · release a (compute 6, gather 3) · "
     "update a (gather 3, reduce 3) · step (gather 3, reduce 4) · "
     "gather a (compute 7, update 2) · forward a (gather 4) · release a (compute 8, gather 4) · "
     "gather b (compute 5, update 1) · forward b (gather 5) · release b (compute 10, gather 5)"},
};

/* A list with too few rows is not overrun, and is not taken as complete; a list with exactly enough rows is
 * complete. */
static void short_lists_say_so(void) {
    static struct toy toy;
    toy_plain(&toy, &stage_zero3, 2, 1, ACCUMULATE_LAST, 0);
    for (uint32_t capacity = 1; capacity <= 2; capacity++) {
        struct operation rows[] = {{.region = 77}, {.region = 77}, {.region = 77}};
        struct operation_list list = {rows, 0, capacity};
        toy_plain(&toy, &stage_zero3, 2, 1, ACCUMULATE_LAST, 0);
        policy_pass(&toy.policy, &(struct event){.last = true}, &list);
        policy_begin(&toy.policy, &(struct event){.position = 0}, &list); /* gather, compute */
        CHECK_INT(operation_list_overflowed(&list), capacity < 2);
        CHECK_INT(rows[capacity].region, 77);
    }
}

static void compare(const struct list *list, bool is_vertical, bool in_backward) {
    static struct toy toy;
    static char got[65536];
    toy_plain(&toy, list->stage, 2, list->micro_steps, list->accumulation, 0);
    toy.policy.vertical = is_vertical, toy.policy.update_in_backward = in_backward;
    policy_open(&toy.policy);
    for (uint32_t pass = 0; pass < policy_passes(&toy.policy); pass++) toy_pass(&toy, false, "");
    toy_step(&toy, false);
    toy_pass(&toy, true, "");
    toy_render(&toy, got, sizeof got);
    if (!CHECK_STRING(got, list->operations))
        fprintf(stderr, "in %s, %u micro-steps%s\n", list->stage->name, list->micro_steps,
                is_vertical   ? " in each use"
                : in_backward ? ", updates in the backward"
                              : "");
}

/* After updates in the backward: nothing is left of a step whose updates count; else each region is updated once more. Gradients are kept
 * for that, and what takes an update back reads none. */
static void outcomes(const struct stage *stage, enum outcome outcome) {
    static struct toy toy;
    struct operation_list *out = &toy.out;
    toy_plain(&toy, stage, 3, 1, ACCUMULATE_LAST, 0);
    toy.policy.update_in_backward = true, toy.policy.repeats = outcome == OUTCOME_REPEATED;
    policy_open(&toy.policy);
    toy_pass(&toy, false, "");
    CHECK(toy.region[0].updated);
    policy_agree(&toy.policy, &(struct event){0}, out);
    uint32_t first = out->count, updates = 0, refreshes = 0;
    policy_apply(&toy.policy, &(struct event){.outcome = outcome}, out);
    for (uint32_t i = first; i < out->count; i++) {
        const struct operation *op = &out->item[i];
        refreshes += op->kind == OP_GATHER;
        if (op->kind != OP_UPDATE) continue;
        CHECK_INT(op->outcome, outcome);
        CHECK_INT(op->reads, outcome == OUTCOME_REPEATED);
        CHECK_INT(op->region, toy.policy.refresh[updates++]);
    }
    CHECK_INT(updates, outcome == OUTCOME_UPDATED ? 0 : 3);
    CHECK_INT(refreshes, outcome != OUTCOME_UPDATED && toy.policy.eager && stage != &stage_zero0 ? 3 : 0);
    CHECK_INT(toy.region[0].grad_brief, !toy.policy.repeats && stage != &stage_zero0);
    CHECK(!toy.region[0].updated);
}

enum { WINDOW_UNITS = 6 };

/* The place of each region's update among all updates. Returns how many come before the agreement. */
static uint32_t updates_of(const struct toy *t, uint32_t place[WINDOW_UNITS]) {
    uint32_t updates = 0, early = 0;
    for (uint32_t i = 0; i < t->out.count; i++) {
        const struct operation *op = &t->list[i];
        if (op->kind == OP_AGREE) early = updates;
        if (op->kind != OP_UPDATE) continue;
        CHECK_INT(op->outcome, OUTCOME_UPDATED);
        CHECK_INT(op->region, t->policy.refresh[updates]);
        place[op->region] = updates++;
    }
    CHECK_INT(updates, WINDOW_UNITS);
    return early;
}

/* A share of the updates waits for the step, spread evenly over the backward, and comes in the order of the next forward. The first unit,
 * which that forward needs at once, never waits; only gradients of updates that wait outlive their use. */
static void updates_wait(const struct stage *stage) {
    static const double shares[] = {0, 0.25, 0.5, 1};
    static const char *const waiting[] = {"------", "---1--", "--1-1-", "-11111"};
    for (size_t s = 0; s < sizeof shares / sizeof *shares; s++) {
        static struct toy toy;
        uint32_t place[WINDOW_UNITS] = {0};
        char got[WINDOW_UNITS + 1] = "";
        toy_plain(&toy, stage, WINDOW_UNITS, 1, ACCUMULATE_LAST, 0);
        toy.policy.update_in_backward = true, toy.policy.waiting_share = shares[s];
        for (uint32_t i = 0; i < WINDOW_UNITS; i++) toy.region[i].elements = 100;
        policy_open(&toy.policy);
        toy_pass(&toy, false, "");
        toy_step(&toy, false);
        uint32_t early = updates_of(&toy, place);
        for (uint32_t i = 0; i < WINDOW_UNITS; i++) {
            bool waits = place[i] >= early;
            got[i] = waits ? '1' : '-';
            CHECK_INT(toy.region[i].waits, waits);
            CHECK_INT(toy.region[i].kth_trained, i);
            CHECK_INT(toy.region[i].grad_brief, !waits && stage != &stage_zero0);
            for (uint32_t k = 0; k < i; k++) {
                if (waits && place[k] >= early) CHECK(place[k] < place[i]);
                if (!waits && place[k] < early) CHECK(place[k] > place[i]);
            }
        }
        CHECK_STRING(got, waiting[s]);
    }
}

int main(void) {
    short_lists_say_so();
    updates_wait(&stage_zero0);
    updates_wait(&stage_zero1);
    updates_wait(&stage_zero3);
    for (enum outcome outcome = OUTCOME_UPDATED; outcome <= OUTCOME_SKIPPED; outcome++) {
        outcomes(&stage_zero0, outcome);
        outcomes(&stage_zero1, outcome);
        outcomes(&stage_zero3, outcome);
    }
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) compare(&lists[i], false, false);
    for (size_t i = 0; i < sizeof vertical / sizeof *vertical; i++) compare(&vertical[i], true, false);
    for (size_t i = 0; i < sizeof updates / sizeof *updates; i++) compare(&updates[i], false, true);
    return check_end();
}
