/* The work of a host in a pass, as text: f0 is unit 0's forward, b0 its backward, r0@3 its repeated forward for the
 * backward at position 3. f0> has made what leaves for the drive, <b1 needs what comes back. */
#include "tools/plan/pass.h"

#include <stdio.h>
#include <string.h>

#include "tests/check.h"

enum { UNITS = 6 };

static const char *spell(struct pass_segments segments, uint32_t frozen, uint64_t *out_ns) {
    static char text[512];
    struct pass_work work[UNITS];
    struct pass pass;
    struct zero_error error;
    error_clear(&error);
    for (uint32_t u = 0; u < UNITS; u++)
        work[u] = (struct pass_work){100, 200, 10, u >= frozen, u == 1 || u == 2 ? 4 : 0};
    CHECK_INT(pass_make(work, UNITS, &segments, &pass, &error), ZERO_OK);
    *text = 0, *out_ns = 0;
    for (uint32_t i = 0; i < pass.uses; i++) {
        const struct pass_use *u = &pass.use[i];
        bool backward = u->position >= UNITS;
        size_t length = strlen(text);
        if (u->recomputes)
            snprintf(text + length, sizeof text - length, " %sr%u@%u", u->fetches ? "<" : "", u->unit,
                     u->position);
        else
            snprintf(text + length, sizeof text - length, " %s%c%u%s", u->fetches ? "<" : "",
                     backward ? 'b' : 'f', u->unit, u->stores ? ">" : "");
        CHECK_INT(u->recomputes || u->position == (backward ? 2 * UNITS - 1 - u->unit : u->unit), 1);
        *out_ns += u->compute_ns;
    }
    pass_free(&pass);
    return text + 1;
}

int main(void) {
    uint64_t ns;
    CHECK_STRING(spell((struct pass_segments){0}, 0, &ns), "f0 f1 f2 f3 f4 f5 b5 b4 b3 b2 b1 b0");
    CHECK_INT(ns, 6 * 300);
    /* Blocks 1 to 4; the last one's activations are still there. */
    CHECK_STRING(spell((struct pass_segments){1, 5, 1, false, 0, 0, false}, 0, &ns),
                 "f0 f1 f2 f3 f4 f5 b5 b4 r3@8 b3 r2@9 b2 r1@10 b1 b0");
    CHECK_INT(ns, 6 * 300 + 3 * 10 - 2 * 4);
    /* Each in its own use, the last one, too. */
    CHECK_STRING(spell((struct pass_segments){1, 5, 1, true, 0, 0, false}, 0, &ns),
                 "f0 f1 f2 f3 f4 f5 b5 b4 b3 b2 b1 b0");
    CHECK_INT(ns, 6 * 300 + 4 * 10);
    CHECK_STRING(spell((struct pass_segments){1, 5, 2, false, 0, 0, false}, 0, &ns),
                 "f0 f1 f2 f3 f4 f5 b5 b4 b3 r1@9 r2@9 b2 b1 b0");
    CHECK_INT(ns, 6 * 300 + 100 + 10 - 2 * 4);
    CHECK_STRING(spell((struct pass_segments){1, 5, 3, false, 0, 0, false}, 0, &ns),
                 "f0 f1 f2 f3 f4 f5 b5 b4 r1@8 r2@8 r3@8 b3 b2 b1 b0");
    CHECK_STRING(spell((struct pass_segments){1, 5, 9, false, 0, 0, false}, 0, &ns),
                 "f0 f1 f2 f3 f4 f5 b5 b4 b3 b2 b1 b0");
    /* Below the lowest unit that trains nothing goes backward, nor is computed again. */
    CHECK_STRING(spell((struct pass_segments){1, 5, 1, false, 0, 0, false}, 3, &ns),
                 "f0 f1 f2 f3 f4 f5 b5 b4 r3@8 b3");
    CHECK_STRING(spell((struct pass_segments){0}, UNITS, &ns), "f0 f1 f2 f3 f4 f5 b5");
    /* The inputs of all segments but the last leave; in use, the head's stays in place of the last block's. */
    CHECK_STRING(spell((struct pass_segments){1, 5, 1, false, 1, 0, false}, 0, &ns),
                 "f0> f1> f2> f3 f4 f5 b5 b4 <r3@8 b3 <r2@9 b2 <r1@10 b1 b0");
    CHECK_STRING(spell((struct pass_segments){1, 5, 1, true, 1, 0, false}, 0, &ns),
                 "f0> f1> f2> f3> f4 f5 b5 <b4 <b3 <b2 <b1 b0");
    CHECK_STRING(spell((struct pass_segments){1, 5, 2, false, 1, 0, false}, 0, &ns),
                 "f0> f1 f2 f3 f4 f5 b5 b4 b3 <r1@9 r2@9 b2 b1 b0");
    CHECK_STRING(spell((struct pass_segments){1, 5, 9, false, 1, 0, false}, 0, &ns),
                 "f0 f1 f2 f3 f4 f5 b5 b4 b3 b2 b1 b0");
    /* On a GPU more segments stay. */
    CHECK_STRING(spell((struct pass_segments){1, 5, 1, false, 3, 0, false}, 0, &ns),
                 "f0> f1 f2 f3 f4 f5 b5 b4 r3@8 b3 r2@9 b2 <r1@10 b1 b0");
    CHECK_STRING(spell((struct pass_segments){1, 5, 1, false, 6, 0, false}, 0, &ns),
                 "f0 f1 f2 f3 f4 f5 b5 b4 r3@8 b3 r2@9 b2 r1@10 b1 b0");
    /* A segment is needed whole if its last block trains. */
    CHECK_STRING(spell((struct pass_segments){1, 5, 2, false, 1, 0, false}, 2, &ns),
                 "f0> f1 f2 f3 f4 f5 b5 b4 b3 <r1@9 r2@9 b2");
    CHECK_STRING(spell((struct pass_segments){1, 5, 1, true, 1, 0, false}, 3, &ns),
                 "f0 f1 f2> f3> f4 f5 b5 <b4 <b3");
    return check_end();
}
