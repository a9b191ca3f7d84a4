/* Recomputation: the exact operations, in order, of passes that run forwards again inside the backward. The lists are
 * derived from the definition of the stages, not from the policy's code. Waits are left out: they follow from the
 * buffers (stage_test.c). */
#include "tests/check.h"
#include "tests/stages/toy.h"

static const struct {
    const struct stage *stage;
    uint32_t units, segment, depth;
    const char *operations;
} lists[] = {
    /* Nothing is gathered: only a forward is added. */
    {&stage_zero2, 3, 1, 0,
     "forward a · forward b · forward c · backward c · reduce c · release-gradient c · again b · backward b "
     "· reduce b · "
     "release-gradient b · again a · backward a · reduce a · release-gradient a"},
    /* Every unit alone: one gather serves both, as without recomputation. */
    {&stage_zero3, 3, 1, 0,
     "gather a · forward a · release a · gather b · forward b · release b · gather c · forward c · backward "
     "c · reduce c · "
     "release-gradient c · release c · gather b · again b · backward b · reduce b · release-gradient b · "
     "release b · "
     "gather a · again a · backward a · reduce a · release-gradient a · release a"},
    /* With one gather ahead, of the next backward's unit. */
    {&stage_zero3, 3, 1, 1,
     "gather a · gather b · forward a · release a · gather c · forward b · release b · forward c · gather b "
     "· backward c · "
     "reduce c · release-gradient c · release c · again b · gather a · backward b · reduce b · "
     "release-gradient b · "
     "release b · again a · backward a · reduce a · release-gradient a · release a"},
    /* Segments of two units: the last unit of a segment stays, the first one is gathered once more. */
    {&stage_zero3, 3, 2, 0,
     "gather a · forward a · release a · gather b · forward b · release b · gather c · forward c · backward "
     "c · reduce c · "
     "release-gradient c · release c · gather a · again a · release a · gather b · again b · backward b · "
     "reduce b · "
     "release-gradient b · release b · gather a · backward a · reduce a · release-gradient a · release a"},
    /* Depth 1: b is gathered with c's backward; a stays for its own backward, because b's backward would look ahead to
     * it. */
    {&stage_zero3, 3, 2, 1,
     "gather a · gather b · forward a · release a · gather c · forward b · release b · forward c · "
     "gather b · backward c · reduce c · release-gradient c · release c · gather a · again a · again b · "
     "backward b · reduce b · release-gradient b · release b · backward a · reduce a · "
     "release-gradient a · release a"},
    {&stage_zero3, 4, 3, 1,
     "gather a · gather b · forward a · release a · gather c · forward b · release b · gather d · "
     "forward c · release c · forward d · gather c · backward d · reduce d · release-gradient d · "
     "release d · gather a · gather b · again a · release a · again b · again c · backward c · reduce c · "
     "release-gradient c · release c · gather a · backward b · reduce b · release-gradient b · "
     "release b · backward a · reduce a · release-gradient a · release a"},
    /* Units that stay gathered between forward and backward are not gathered again. */
    {&stage_zero3_keep, 3, 2, 0,
     "gather a · forward a · gather b · forward b · gather c · forward c · backward c · reduce c · "
     "release-gradient c · "
     "release c · again a · again b · backward b · reduce b · release-gradient b · release b · backward a · "
     "reduce a · "
     "release-gradient a · release a"},
};

/* Removes the parts of the text in brackets. */
static void strip(char *text) {
    char *to = text;
    int depth = 0;
    for (const char *c = text; *c; c++) {
        if (c[0] == ' ' && c[1] == '(') depth++;
        if (!depth) *to++ = *c;
        if (*c == ')') depth--;
    }
    *to = 0;
}

int main(void) {
    static struct toy t;
    static char text[1 << 16];
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        toy_plain(&t, lists[i].stage, lists[i].units, 1, ACCUMULATE_EVERY, lists[i].depth);
        toy_segments(&t, lists[i].segment);
        toy_fill(&t);
        t.out.count = 0;
        toy_pass_again(&t, "");
        toy_render(&t, text, sizeof text);
        strip(text);
        if (!CHECK_STRING(text, lists[i].operations)) fprintf(stderr, "in list %zu\n", i);
    }
    return check_end();
}
