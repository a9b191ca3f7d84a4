/* The policy's operations equal those of an independent executable model (lists.txt), for every stage, mesh,
 * accumulation, depth, with tied, persistent and frozen parameters, skipped uses and evaluation passes. */
#include "tests/check.h"
#include "tests/stages/toy.h"

/* Two steps; the second scenario skips uses in step 1 and evaluates after step 0 and after step 1's first
 * micro-step. */
static void drive(struct toy *t, int scenario) {
    toy_fill(t);
    for (uint32_t step = 0; step < 2; step++) {
        for (uint32_t micro = 0; micro < t->policy.micro_steps; micro++) {
            const char *skip = "";
            if (scenario && step == 1 && micro == 0) skip = "a";
            if (scenario && step == 1 && micro == t->policy.micro_steps - 1) skip = "cp";
            toy_pass(t, false, skip);
            if (scenario && step == 1 && micro == 0) toy_pass(t, true, "a");
        }
        toy_step(t, false);
        if (scenario && step == 0) toy_pass(t, true, "");
    }
    toy_flush(t);
}

int main(int argc, char **argv) {
    static struct toy toy;
    static char line[65536], got[65536];
    FILE *file = fopen(argc > 1 ? argv[1] : "tests/stages/lists.txt", "r");
    int lists = 0;
    while (CHECK(file) && fgets(line, sizeof line, file)) {
        char name[32], mode[8];
        unsigned mesh[2], n, depth, scenario;
        if (line[0] == '#') continue;
        char *expected = strstr(line, " | ");
        if (!CHECK(expected && sscanf(line, "%31s %u %u %u %7s %u %u", name, &mesh[0], &mesh[1], &n, mode,
                                      &depth, &scenario) == 7) ||
            !CHECK(toy_stage(name)))
            break;
        line[strcspn(line, "\n")] = 0;
        toy_tied(&toy, toy_stage(name), (const uint32_t[]){mesh[0], mesh[1]}, n,
                 strcmp(mode, "last") ? ACCUMULATE_EVERY : ACCUMULATE_LAST, depth);
        drive(&toy, (int)scenario);
        toy_letters(&toy, got, sizeof got);
        if (!CHECK_STRING(got, expected + 3)) fprintf(stderr, "in %.*s\n", (int)(expected - line), line);
        lists++;
    }
    CHECK_INT(lists, 196);
    if (file) fclose(file);
    return check_end();
}
