/* The papers' tables: bytes per parameter within a hundredth of the source's where the accounting is the same, and
 * off by what is known where it is not. */
#include "tools/plan/literature.h"

#include <math.h>

#include "tests/check.h"
#include "tools/plan/shapes.h"

/* Known differences, in bytes per parameter: the reduced shard beside a whole gradient at stage 1; ZeRO-Infinity's fp32
 * gradients (4) and the halves of the masters that the parameters hold (2); gradients that left the device (2). */
static double known(const struct literature_row *row) {
    if (row->cell.stage == 1) return 2. / row->ranks;
    if (row->of == LITERATURE_DEVICE) return -2. / row->ranks;
    return row->of == LITERATURE_ALL ? -6 : 0;
}

int main(void) {
    const struct literature_row *row;
    uint32_t rows = 0;
    for (; (row = literature_at(rows)); rows++) {
        struct zero_error error;
        error_clear(&error);
        double bytes, parameters;
        if (!CHECK_INT(literature_bytes(row, &bytes, &parameters, &error), ZERO_OK)) continue;
        double source = row->bytes / row->parameters, ours = bytes / parameters - known(row);
        if (!CHECK(fabs(ours / source - 1) < 0.01))
            fprintf(stderr, "%s on %u ranks, stage %u: %.4f bytes per parameter, the source has %.4f\n",
                    row->model, row->ranks, row->cell.stage, ours, source);
        CHECK(fabs(parameters / row->parameters - 1) < 0.02);
        CHECK_DOUBLE(parameters, (double)shapes_parameters(shapes_find(row->model)), 0);
    }
    CHECK_INT(rows, 14);
    return check_end();
}
