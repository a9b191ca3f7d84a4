#include "tools/plan/table.h"

#include <math.h>
#include <stdio.h>

#include "stages/stage.h"
#include "tools/plan/figure.h"

static const struct {
    zero_tier optimizer, params;
} tiers[] = {{ZERO_DEVICE, ZERO_DEVICE}, {ZERO_CPU, ZERO_DEVICE}, {ZERO_NVME, ZERO_DEVICE},
             {ZERO_CPU, ZERO_CPU},       {ZERO_NVME, ZERO_CPU},   {ZERO_NVME, ZERO_NVME}};

enum { TIER_PAIRS = sizeof tiers / sizeof *tiers };

static bool possible(const struct scenario *s, const struct cell *cell) {
    bool drives = cell->optimizer == ZERO_NVME || cell->params == ZERO_NVME;
    if (drives && !s->machine.drive.name[0]) return false;
    return cell->params == ZERO_DEVICE || stages[cell->stage]->param_rest.axis[AXIS_SHARD] == SHARD;
}

/* ---- which row to take ---- */

enum { STEADY = 2 /* percent: less is no difference */ };

static double missing(const struct price *p) {
    double bytes = 0;
    for (int t = 0; t < SHORTAGES; t++) bytes += (double)p->short_bytes[t];
    return bytes;
}

/* Rows come from the plainest to the most moved about: one that is later must be better by more than nothing. */
static bool better(const struct price *p, const struct price *than) {
    if (p->fits != than->fits) return p->fits;
    if (!p->fits) return missing(p) < missing(than);
    return p->tokens_per_s > than->tokens_per_s * (1 + STEADY / 100.);
}

static const char *tier_word(const struct price *p) {
    static const char *const words[ZERO_TIERS][ZERO_TIERS] = {
        {"without offload", "", ""},
        {"with its state in host memory", "with state and parameters in host memory", ""},
        {"with its state on the drive", "with its state on the drive and parameters in host memory",
         "with state and parameters on the drive"}};
    return words[p->cell.optimizer][p->cell.params];
}

static uint32_t count_fitting(const struct table *t) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->rows; i++) count += t->row[i].fits;
    return count;
}

static const char *tier_name(int tier) {
    static const char *const names[SHORTAGES] = {"the device", "host memory", "the drive"};
    return names[tier];
}

static void advise_less(const struct table *t, char *out, size_t size) {
    const struct price *p = &t->row[t->best];
    int worst = 0;
    for (int k = 0; k < SHORTAGES; k++)
        if (p->short_bytes[k] > p->short_bytes[worst]) worst = k;
    uint64_t shortage = p->short_bytes[worst];
    const char *first = worst != SHORT_DEVICE ? "more nodes"
                        : p->gathered_bytes > shortage
                            ? "a smaller comm.prefetch_depth, more and smaller units"
                        : p->activation_bytes > shortage ? "a smaller micro-batch, shorter sequences"
                                                         : "more ranks";
    snprintf(
        out, size,
        "Nothing fits: nearest is stage %u %s%s, short of %s on %s; take %s, or a device with more memory.",
        p->cell.stage, tier_word(p), p->cell.recompute ? " and recomputation" : "",
        figure_bytes((double)shortage).chars, tier_name(worst), first);
}

static void advise(const struct scenario *s, struct table *t) {
    const struct price *p = &t->row[t->best];
    if (!p->fits) {
        advise_less(t, t->advice, sizeof t->advice);
        return;
    }
    double exposed = 1 - p->step.busy_s[RESOURCE_COMPUTE] / p->step.seconds;
    int length = snprintf(
        t->advice, sizeof t->advice,
        "Take stage %u %s%s: of %u rows that fit none is faster by more than %d %%; %s per step, %s is "
        "busy longest (%.0f %%), compute waits %.0f %% of the step.",
        p->cell.stage, tier_word(p), p->cell.recompute ? " and recomputation" : "", count_fitting(t), STEADY,
        figure_seconds(p->step.seconds).chars, resource_name(p->bound),
        100 * p->step.busy_s[p->bound] / p->step.seconds, 100 * fmax(0, exposed));
    double device = (double)p->tier_bytes[ZERO_DEVICE], all = s->machine.device.memory_bytes;
    if (device < all / 2 && length > 0)
        snprintf(t->advice + length, sizeof t->advice - (size_t)length,
                 " It leaves %s of the device free: a larger micro-batch computes more per byte moved.",
                 figure_bytes(all - device).chars);
}

/* ---- all of them ---- */

zero_status table_make(const struct scenario *s, struct table *out, struct zero_error *error) {
    out->rows = out->best = 0;
    for (uint32_t stage = STAGE_ZERO0; stage <= STAGE_ZERO3; stage++)
        for (int k = 0; k < TIER_PAIRS; k++)
            for (uint32_t again = 0; again < 2; again++) {
                struct cell cell = {stage, tiers[k].optimizer, tiers[k].params, again * s->recompute};
                if (!possible(s, &cell)) continue;
                struct price *row = &out->row[out->rows];
                zero_status status = price_cell(s, &cell, row, error);
                if (status) return status;
                if (better(row, &out->row[out->best])) out->best = out->rows;
                out->rows++;
            }
    advise(s, out);
    return ZERO_OK;
}

bool table_shown(const struct table *t, uint32_t row) {
    uint32_t other = row ^ 1; /* recomputation changes first */
    return better(&t->row[row], &t->row[other]) || (row < other && !better(&t->row[other], &t->row[row]));
}
