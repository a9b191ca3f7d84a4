/* The papers' tables: bytes per parameter within a hundredth of the source's where the accounting is the same, and
 * off by what is known where it is not. Published speeds: most within 15 percent, and rates that are the mean of those rows by which
 * they were chosen. */
#include "tools/plan/print/literature.h"

#include <math.h>
#include <string.h>

#include "tests/check.h"
#include "tools/plan/shapes.h"
#include "tools/plan/throughput.h"

/* Known differences, in bytes per parameter: the reduced shard beside a whole gradient at stage 1; ZeRO-Infinity's fp32
 * gradients (4) and the halves of the masters that the parameters hold (2); gradients that left the device (2). */
static double known(const struct literature_row *row) {
    if (row->cell.stage == 1) return 2. / row->ranks;
    if (row->of == LITERATURE_DEVICE) return -2. / row->ranks;
    return row->of == LITERATURE_ALL ? -6 : 0;
}

static void speeds_are_near(void) {
    const struct throughput_row *row;
    static const char *const devices[] = {"h100-80g", "a100-80g", "rtx4090", "l40s"};
    enum { DEVICES = sizeof devices / sizeof *devices };
    uint32_t held = 0, near = 0, fits[DEVICES] = {0};
    double fit[DEVICES] = {0};
    for (uint32_t i = 0; (row = throughput_at(i)); i++) {
        struct zero_error error;
        error_clear(&error);
        double ours;
        if (!CHECK_INT(throughput_plan(row, &ours, &error), ZERO_OK)) continue;
        double ratio = ours / row->per_s;
        if (!CHECK(fabs(ratio - 1) < (row->use == THROUGHPUT_MORE ? 0.4 : 0.2)))
            fprintf(stderr, "%s on %u %s: %.0f, the source has %.0f\n", row->model, row->ranks, row->device,
                    ours, row->per_s);
        for (int d = 0; d < DEVICES && row->use == THROUGHPUT_FIT; d++)
            if (strcmp(row->device, devices[d]) == 0) fit[d] += log(ratio), fits[d]++;
        held += row->use != THROUGHPUT_MORE;
        near += row->use != THROUGHPUT_MORE && fabs(ratio - 1) < 0.15;
    }
    CHECK_INT(held, 17);
    CHECK(near >= 15);
    for (int d = 0; d < DEVICES; d++)
        if (!CHECK(fits[d] >= 2 && fabs(fit[d] / fits[d]) < 0.01))
            fprintf(stderr, "%s: rates of products are off by %.3f\n", devices[d], fit[d] / fits[d]);
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
    speeds_are_near();
    return check_end();
}
