/* Simulations drawn from seeds keep every invariant; with data their weights equal the serial oracle's. A bug planted
 * in a stage is reported with its seed and a short schedule.
 * case_test [FIRST SEED] [SEEDS] */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/seeds.h"
#include "tools/sim/case.h"

enum { PLANTED = 60 };

static bool first_of(struct operation_list *list, enum operation_kind kind, uint32_t *out) {
    for (*out = 0; *out < list->count; ++*out)
        if (list->item[*out].kind == kind) return true;
    return false;
}

static void drop(struct operation_list *list, uint32_t at) {
    list->count--;
    memmove(&list->item[at], &list->item[at + 1], (list->count - at) * sizeof *list->item);
}

static void skip_reduction(void *user, uint32_t rank, struct operation_list *list) {
    uint32_t at;
    if (rank == 1 && first_of(list, OP_REDUCE, &at)) drop(list, at);
}

/* The gradient is not what was reduced. */
static void forget_sums(void *user, uint32_t rank, struct operation_list *list) {
    for (uint32_t i = 0; i < list->count; i++)
        if (list->item[i].kind == OP_REDUCE) list->item[i].add = false;
}

/* Returns what is told of the first seed that fails; the caller frees it. */
static char *told(void (*listed)(void *, uint32_t, struct operation_list *), uint64_t first, uint64_t count) {
    struct sim_sabotage sabotage = {.listed = listed};
    char *text = NULL;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    uint64_t failed = case_check(first, count, &sabotage, file, NULL);
    fclose(file);
    CHECK(failed > 0);
    CHECK(failed < count); /* not what every seed has */
    return text;
}

static void planted_bugs_are_told(void) {
    char *text = told(skip_reduction, 1, PLANTED);
    CHECK_CONTAINS(text, "seed ");
    CHECK_CONTAINS(text, "REDUCE of \"u0\", where rank ");
    CHECK_CONTAINS(text, "2 x 1 ranks, 1 units, 1 steps of 1 micro-steps");
    uint64_t seed = strtoull(text + strlen("seed "), NULL, 10);
    char again[64], *other = NULL;
    snprintf(again, sizeof again, "again: zero sim --check 1 --seed %" PRIu64 "\n", seed);
    CHECK_CONTAINS(text, again);
    /* The seed alone tells the same. */
    struct sim_sabotage sabotage = {.listed = skip_reduction};
    size_t length;
    FILE *file = open_memstream(&other, &length);
    CHECK_INT(case_check(seed, 1, &sabotage, file, NULL), 1);
    fclose(file);
    CHECK(strncmp(text, other, strlen(other)) == 0);
    free(text), free(other);
    text = told(forget_sums, 1, PLANTED); /* only numbers can tell */
    CHECK_CONTAINS(text, "where serial training has");
    free(text);
}

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1,
             count = argc > 2 ? strtoull(argv[2], NULL, 10) : seeds_count(200);
    struct sim_tally tally = {0};
    CHECK_INT(case_check(first, count, NULL, stderr, &tally), 0);
    CHECK_INT(tally.runs, count);
    for (uint32_t f = 0; f < SIM_FAULT_KINDS && count >= 200; f++) CHECK(tally.fault[f] > 0);
    struct sim_tally last = {0}; /* seeds go on from 0 after the largest */
    CHECK_INT(case_check(UINT64_MAX - 1, 3, NULL, stderr, &last), 0);
    CHECK_INT(last.runs, 3);
    planted_bugs_are_told();
    return check_end();
}
