#include "tools/plan/print/table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/plan/print/figure.h"

/* ---- the best row ---- */

enum { STEADY = 2 /* percent: a smaller difference does not count */ };

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

void table_name(const struct price *p, char out[TABLE_NAME_BYTES]) {
    static const char *const grads[ZERO_TIERS] = {"in device memory", "in host memory", "on the drive"};
    const struct cell *c = &p->cell;
    int length = snprintf(out, TABLE_NAME_BYTES, "stage %u %s%s%s", c->stage, tier_word(p),
                          c->tiered ? ", as far as the device has no room" : "",
                          c->recompute ? " and recomputation" : "");
    bool apart = c->grads && cell_shards_grads(c) && c->grads != 1u + c->optimizer;
    if (apart)
        length += snprintf(out + length, (size_t)(TABLE_NAME_BYTES - length), ", gradients %s",
                           grads[c->grads - 1]);
    if (c->micro_batch)
        snprintf(out + length, (size_t)(TABLE_NAME_BYTES - length), ", micro-batch %llu",
                 (unsigned long long)c->micro_batch);
}

static void advise_less(const struct scenario *s, const struct table *t, char *out, size_t size) {
    const struct price *p = &t->row[t->best];
    char name[TABLE_NAME_BYTES];
    int worst = 0;
    for (int k = 0; k < SHORTAGES; k++)
        if (p->short_bytes[k] > p->short_bytes[worst]) worst = k;
    uint64_t shortage = p->short_bytes[worst];
    const char *first = worst != SHORT_DEVICE            ? "more nodes"
                        : p->gathered_bytes > shortage   ? "more and smaller units"
                        : p->activation_bytes > shortage ? "a smaller micro-batch, shorter sequences"
                                                         : "more ranks";
    table_name(p, name);
    if (worst == SHORT_NVME && !s->machine.drive.name[0]) {
        snprintf(out, size,
                 "Nothing fits: nearest is %s, short of %s on the drive, and no drive is described.", name,
                 figure_bytes((double)shortage).chars);
        return;
    }
    snprintf(out, size,
             "Nothing fits: nearest is %s, short of %s on %s; take %s, or a device with more memory.", name,
             figure_bytes((double)shortage).chars, tier_name(worst), first);
}

/* No row fits, but a row of `other` fits, where units are gathered only when they are used. */
static void advise_no_prefetch(const struct table *other, char *out, size_t size) {
    const struct price *p = &other->row[other->best];
    char name[TABLE_NAME_BYTES];
    table_name(p, name);
    snprintf(out, size,
             "Nothing fits as it is; with \"comm\": {\"prefetch_depth\": 0}, which gathers no unit ahead of "
             "its use, %s does: %s per step, compute waits %.0f %% of it.",
             name, figure_seconds(p->step.seconds).chars, waiting(p));
}

static void advise(const struct scenario *s, struct table *t) {
    const struct price *p = &t->row[t->best];
    if (!p->fits) {
        advise_less(s, t, t->advice, sizeof t->advice);
        return;
    }
    char name[TABLE_NAME_BYTES];
    table_name(p, name);
    int length =
        snprintf(t->advice, sizeof t->advice,
                 "Take %s: of %u rows that fit none is faster by more than %d %%; %s per step, %s is "
                 "busy longest (%.0f %%), compute waits %.0f %% of the step.",
                 name, count_fitting(t), STEADY, figure_seconds(p->step.seconds).chars,
                 resource_name(p->bound), 100 * p->step.busy_s[p->bound] / p->step.seconds, waiting(p));
    double device = (double)(p->tier_bytes[ZERO_DEVICE] - p->spare_bytes),
           all = s->machine.device.memory_bytes;
    if (device < all / 2 && length > 0)
        snprintf(t->advice + length, sizeof t->advice - (size_t)length,
                 " It leaves %s of the device free: a larger micro-batch computes more per byte moved.",
                 figure_bytes(all - device).chars);
}

/* ---- all rows ---- */

/* The scenario's rows. */
static struct space space_in(const struct scenario *s) {
    struct space space = s->space ? *s->space : space_all;
    if (!space.open) space.fixed.recompute = s->recompute;
    return space;
}

static bool has_tiers(const struct scenario *s, const struct cell *cell) {
    return (cell->optimizer != ZERO_NVME && cell->params != ZERO_NVME) || s->machine.drive.name[0];
}

/* Every row of the last micro-batch fits, and the next row has another one. */
static bool all_fit(const struct table *t, uint64_t micro_batch) {
    uint32_t i = t->rows;
    if (!i || t->row[i - 1].cell.micro_batch == micro_batch) return false;
    for (uint64_t last = t->row[i - 1].cell.micro_batch; i-- > 0 && t->row[i].cell.micro_batch == last;)
        if (!t->row[i].fits) return false;
    return true;
}

static zero_status price_all(const struct scenario *s, struct table *out, struct zero_error *error) {
    const struct space space = space_in(s);
    struct zero_error refusal = ERROR_NONE;
    struct cell cell;
    bool exists;
    size_t most = 1;
    for (uint32_t i = 0; space_row(&space, i, &cell, &exists); i++) most += exists;
    *out = (struct table){.row = malloc(most * sizeof *out->row)};
    if (!out->row) return error_set(error, ZERO_E_MEMORY, "no memory for a table");
    for (uint32_t i = 0; space_row(&space, i, &cell, &exists); i++) {
        if (!exists || !has_tiers(s, &cell)) continue;
        if (all_fit(out, cell.micro_batch)) break;
        struct zero_error failed = ERROR_NONE;
        struct price *row = &out->row[out->rows];
        zero_status status = price_cell(s, &cell, row, &failed);
        if (status && !refusal.code) refusal = failed;
        if (status && space.open && status != ZERO_E_MEMORY) continue;
        if (status) return error_pass(error, &failed);
        if (better(row, &out->row[out->best])) out->best = out->rows;
        out->rows++;
    }
    if (out->rows) return ZERO_OK;
    return refusal.code
               ? error_pass(error, &refusal)
               : error_set(error, ZERO_E_CONFIG, "the values that are not \"auto\" leave no row to choose");
}

zero_status table_fit(const struct scenario *scenario, uint32_t *first, struct price *out,
                      struct zero_error *error) {
    struct scenario s = *scenario;
    const struct space space = space_in(scenario);
    struct cell cell;
    struct price row;
    bool any = false, exists;
    s.bytes_alone = true;
    for (uint32_t i = *first; space_row(&space, i, &cell, &exists) && !(any && out->fits); i++) {
        if (!exists || !has_tiers(&s, &cell)) continue;
        TRY(price_cell(&s, &cell, &row, error));
        if (!any || better(&row, out)) *out = row;
        if (row.fits) *first = i;
        any = true;
    }
    return ZERO_OK;
}

/* Replaces the advice if a row fits without prefetching. */
static zero_status try_no_prefetch(const struct scenario *s, struct table *t, struct zero_error *error) {
    struct scenario changed = *s;
    struct table other = {0};
    char *config = edit_no_prefetch(s->config);
    changed.config = config;
    zero_status status = config ? price_all(&changed, &other, error)
                                : error_set(error, ZERO_E_MEMORY, "no memory for a configuration");
    if (!status && other.row[other.best].fits) advise_no_prefetch(&other, t->advice, sizeof t->advice);
    free(config);
    table_free(&other);
    return status;
}

/* Adds to the advice if parts that blocks keep would save more than the state that takes their room. */
static zero_status try_ratio(const struct scenario *s, struct table *t, struct zero_error *error) {
    struct scenario changed = *s;
    const struct price *best = &t->row[t->best];
    struct price other;
    struct zero_error refusal = ERROR_NONE;
    size_t length = strlen(t->advice);
    char *config = edit_ratio(s->config);
    if (!config) return error_set(error, ZERO_E_MEMORY, "no memory for a configuration");
    changed.config = config;
    if (!price_cell(&changed, &best->cell, &other, &refusal) && other.fits && other.kept_s > best->kept_s &&
        better(&other, best))
        snprintf(
            t->advice + length, sizeof t->advice - length,
            " With offload_optimizer.ratio 1.0 blocks keep more, and state fills no room on the device: %s "
            "per step.",
            figure_seconds(other.step.seconds).chars);
    free(config);
    return ZERO_OK;
}

zero_status table_make(const struct scenario *s, struct table *out, struct zero_error *error) {
    TRY(price_all(s, out, error));
    advise(s, out);
    const struct price *nearest = &out->row[out->best];
    bool fills = nearest->fits && !s->bytes_alone && !s->machine.device.is_host &&
                 nearest->cell.optimizer != ZERO_DEVICE && nearest->cell.recompute;
    if (fills && s->outputs == GPT_OUTPUTS_FITTING) return try_ratio(s, out, error);
    bool gathers = nearest->short_bytes[SHORT_DEVICE] && nearest->gathered_bytes;
    return !nearest->fits && gathers ? try_no_prefetch(s, out, error) : ZERO_OK;
}

void table_free(struct table *table) {
    free(table->row);
    *table = (struct table){0};
}

/* The neighbour of a row that differs from it in recomputation alone; UINT32_MAX: none. */
static uint32_t neighbour(const struct table *t, uint32_t row) {
    for (uint32_t other = row ? row - 1 : 1; other < t->rows && other <= row + 1; other += 2) {
        struct cell cell = t->row[other].cell;
        bool differs = cell.recompute != t->row[row].cell.recompute;
        cell.recompute = t->row[row].cell.recompute;
        if (differs && cell_equal(&cell, &t->row[row].cell)) return other;
    }
    return UINT32_MAX;
}

bool table_shown(const struct table *t, uint32_t row) {
    uint32_t other = neighbour(t, row);
    return other == UINT32_MAX || better(&t->row[row], &t->row[other]) ||
           (row < other && !better(&t->row[other], &t->row[row]));
}

/* ---- the rows after the best one ---- */

static bool comes_before(const struct price *p, const struct price *than) {
    if (p->fits != than->fits) return p->fits;
    return p->fits ? p->tokens_per_s > than->tokens_per_s : missing(p) < missing(than);
}

/* Rows of one stage with the state in one tier. */
static bool alike(const struct table *t, uint32_t a, uint32_t b) {
    const struct cell *x = &t->row[a].cell, *y = &t->row[b].cell;
    return x->stage == y->stage && x->optimizer == y->optimizer;
}

/* The number of chosen rows with the same stage and tier; UINT32_MAX: the row itself is chosen. */
static uint32_t told(const struct table *t, uint32_t row, const uint32_t *out, uint32_t count) {
    uint32_t same = alike(t, row, t->best);
    for (uint32_t i = 0; i < count; i++) {
        if (out[i] == row) return UINT32_MAX;
        same += alike(t, row, out[i]);
    }
    return row == t->best || !table_shown(t, row) ? UINT32_MAX : same;
}

/* The best row among those whose stage and tier the fewest chosen rows share; UINT32_MAX: none is left. */
static uint32_t next_row(const struct table *t, const uint32_t *out, uint32_t count, bool fits) {
    uint32_t next = UINT32_MAX, least = UINT32_MAX;
    for (uint32_t i = 0; i < t->rows; i++) {
        uint32_t same = told(t, i, out, count);
        if (same == UINT32_MAX || t->row[i].fits != fits || same > least) continue;
        if (same < least || comes_before(&t->row[i], &t->row[next])) next = i, least = same;
    }
    return next;
}

uint32_t table_others(const struct table *t, uint32_t out[TABLE_OTHERS]) {
    uint32_t count = 0, next, most = TABLE_OTHERS - (next_row(t, out, 0, false) != UINT32_MAX);
    while (count < most && (next = next_row(t, out, count, true)) != UINT32_MAX) out[count++] = next;
    while (count < TABLE_OTHERS && (next = next_row(t, out, count, false)) != UINT32_MAX) out[count++] = next;
    return count;
}

void table_reason(const struct table *t, uint32_t row, char out[TABLE_NAME_BYTES]) {
    const struct price *p = &t->row[row], *best = &t->row[t->best];
    double slower = 100 * (best->tokens_per_s / p->tokens_per_s - 1);
    int length = 0;
    if (p->fits && slower < 1)
        snprintf(out, TABLE_NAME_BYTES, "as fast");
    else if (p->fits)
        snprintf(out, TABLE_NAME_BYTES, "slower by %.0f %%", slower);
    for (int k = 0; k < SHORTAGES && !p->fits; k++)
        if (p->short_bytes[k])
            length +=
                snprintf(out + length, (size_t)(TABLE_NAME_BYTES - length), "%s%s short on %s",
                         length ? ", " : "", figure_bytes((double)p->short_bytes[k]).chars, tier_name(k));
}
