#include "tools/plan/table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

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
    return cell->params == ZERO_DEVICE || stage_shards_params(stage_find(cell->stage, RESHARD_ALL));
}

/* ---- the best row ---- */

enum { STEADY = 2 /* percent: a smaller difference does not count */, ROW_NAME_BYTES = 120 };

static double missing(const struct price *p) {
    double bytes = 0;
    for (int t = 0; t < SHORTAGES; t++) bytes += (double)p->short_bytes[t];
    return bytes;
}

/* Rows go from the simplest to the one that moves most data, so a later row must be faster by more than STEADY
 * percent. */
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

/* Percent of the step in which the device does not compute. */
static double waiting(const struct price *p) {
    return 100 * fmax(0, 1 - p->step.busy_s[RESOURCE_COMPUTE] / p->step.seconds);
}

static const char *tier_name(int tier) {
    static const char *const names[SHORTAGES] = {"the device", "host memory", "the drive"};
    return names[tier];
}

/* Names a row: "stage 3 with its state in host memory and recomputation". */
static void name_row(const struct price *p, char *out, size_t size) {
    snprintf(out, size, "stage %u %s%s", p->cell.stage, tier_word(p),
             p->cell.recompute ? " and recomputation" : "");
}

static void advise_less(const struct table *t, char *out, size_t size) {
    const struct price *p = &t->row[t->best];
    char name[ROW_NAME_BYTES];
    int worst = 0;
    for (int k = 0; k < SHORTAGES; k++)
        if (p->short_bytes[k] > p->short_bytes[worst]) worst = k;
    uint64_t shortage = p->short_bytes[worst];
    const char *first = worst != SHORT_DEVICE            ? "more nodes"
                        : p->gathered_bytes > shortage   ? "more and smaller units"
                        : p->activation_bytes > shortage ? "a smaller micro-batch, shorter sequences"
                                                         : "more ranks";
    name_row(p, name, sizeof name);
    snprintf(out, size,
             "Nothing fits: nearest is %s, short of %s on %s; take %s, or a device with more memory.", name,
             figure_bytes((double)shortage).chars, tier_name(worst), first);
}

/* No row fits, but a row of `other` fits, where units are gathered only when they are used. */
static void advise_no_prefetch(const struct table *other, char *out, size_t size) {
    const struct price *p = &other->row[other->best];
    char name[ROW_NAME_BYTES];
    name_row(p, name, sizeof name);
    snprintf(out, size,
             "Nothing fits as it is; with \"comm\": {\"prefetch_depth\": 0}, which gathers no unit ahead of "
             "its use, "
             "%s does: %s per step, compute waits %.0f %% of it.",
             name, figure_seconds(p->step.seconds).chars, waiting(p));
}

static void advise(const struct scenario *s, struct table *t) {
    const struct price *p = &t->row[t->best];
    if (!p->fits) {
        advise_less(t, t->advice, sizeof t->advice);
        return;
    }
    char name[ROW_NAME_BYTES];
    name_row(p, name, sizeof name);
    int length =
        snprintf(t->advice, sizeof t->advice,
                 "Take %s: of %u rows that fit none is faster by more than %d %%; %s per step, %s is "
                 "busy longest (%.0f %%), compute waits %.0f %% of the step.",
                 name, count_fitting(t), STEADY, figure_seconds(p->step.seconds).chars,
                 resource_name(p->bound), 100 * p->step.busy_s[p->bound] / p->step.seconds, waiting(p));
    double device = (double)p->tier_bytes[ZERO_DEVICE], all = s->machine.device.memory_bytes;
    if (device < all / 2 && length > 0)
        snprintf(t->advice + length, sizeof t->advice - (size_t)length,
                 " It leaves %s of the device free: a larger micro-batch computes more per byte moved.",
                 figure_bytes(all - device).chars);
}

/* ---- all rows ---- */

/* The cell of a number, in the order of the rows; false past the last. */
static bool cell_at(const struct scenario *s, uint32_t number, struct cell *out) {
    uint32_t recompute = number % 2, pair = number / 2 % TIER_PAIRS, stage = number / 2 / TIER_PAIRS;
    if (!stages[stage]) return false;
    *out = (struct cell){stages[stage]->number, tiers[pair].optimizer, tiers[pair].params,
                         recompute * s->recompute};
    return true;
}

static bool has_row(const struct scenario *s, uint32_t number, const struct cell *cell) {
    return stages[number / 2 / TIER_PAIRS]->reshard == RESHARD_ALL && possible(s, cell);
}

static zero_status price_all(const struct scenario *s, struct table *out, struct zero_error *error) {
    struct cell cell;
    out->rows = out->best = 0;
    for (uint32_t i = 0; cell_at(s, i, &cell); i++) {
        if (!has_row(s, i, &cell) || out->rows == TABLE_ROWS) continue;
        struct price *row = &out->row[out->rows];
        zero_status status = price_cell(s, &cell, row, error);
        if (status) return status;
        if (better(row, &out->row[out->best])) out->best = out->rows;
        out->rows++;
    }
    return ZERO_OK;
}

zero_status table_fit(const struct scenario *scenario, uint32_t *first, struct price *out,
                      struct zero_error *error) {
    struct scenario s = *scenario;
    struct cell cell;
    struct price row;
    bool any = false;
    s.bytes_alone = true;
    for (uint32_t i = *first; cell_at(&s, i, &cell) && !(any && out->fits); i++) {
        if (!has_row(&s, i, &cell)) continue;
        zero_status status = price_cell(&s, &cell, &row, error);
        if (status) return status;
        if (!any || better(&row, out)) *out = row;
        if (row.fits) *first = i;
        any = true;
    }
    return ZERO_OK;
}

/* Replaces the advice if a row fits without prefetching. */
static zero_status try_no_prefetch(const struct scenario *s, struct table *t, struct zero_error *error) {
    struct scenario changed = *s;
    struct table other;
    char *config = edit_no_prefetch(s->config);
    if (!config) return ZERO_E_MEMORY;
    changed.config = config;
    zero_status status = price_all(&changed, &other, error);
    if (!status && other.row[other.best].fits) advise_no_prefetch(&other, t->advice, sizeof t->advice);
    free(config);
    return status;
}

zero_status table_make(const struct scenario *s, struct table *out, struct zero_error *error) {
    zero_status status = price_all(s, out, error);
    if (status) return status;
    advise(s, out);
    const struct price *nearest = &out->row[out->best];
    bool gathers = nearest->short_bytes[SHORT_DEVICE] && nearest->gathered_bytes;
    return !nearest->fits && gathers ? try_no_prefetch(s, out, error) : ZERO_OK;
}

bool table_shown(const struct table *t, uint32_t row) {
    uint32_t other = row ^ 1; /* neighbouring rows differ in recomputation */
    return better(&t->row[row], &t->row[other]) || (row < other && !better(&t->row[other], &t->row[row]));
}
