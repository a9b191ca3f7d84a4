
#include <stdlib.h>
#include <string.h>

#include "engine/base/integer.h"
#include "engine/plan/plan_internal.h"

enum { ALIAS_BYTES = 4096, STAGGER_BYTES = 5 * ALIGN_BYTES };

const char *memory_row_name(enum memory_row row) {
    static const char *const names[] = {
#define MEMORY_ROW(row, tier, rests, name) name,
#include "engine/plan/memory_rows.def"
    };
    return names[row];
}

/* Gives each interval a place of its own, at multiples of `unit`. Returns the end of the last one. */
static uint64_t lay_out_at(struct intervals *intervals, uint64_t unit) {
    uint64_t end = 0;
    for (uint32_t i = 0; i < intervals->count; i++) {
        intervals->item[i].offset = end;
        end += round_up(intervals->item[i].bytes, unit);
    }
    return end;
}

/* The most memory that is in use at once, in pages of the device. `apart` has room for all intervals. */
static uint64_t paged_bytes(const struct plan *plan, const struct intervals *intervals, struct apart *apart) {
    const uint64_t page = plan->terms->page_bytes;
    uint64_t bytes = 0;
    for (int object = 0; object < ROOMS; object++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < intervals->count; i++) {
            const struct interval *v = &intervals->item[i];
            if (v->bytes && (v->ref.kind == BUFFER_GRAD_FULL) == (object == OBJECT_GRAD))
                apart[count++] = (struct apart){round_up(v->bytes, DEVICE_PAGE_BYTES) / DEVICE_PAGE_BYTES,
                                                round_up(v->bytes, page) / DEVICE_PAGE_BYTES};
        }
        uint64_t pages = intervals_most_at_once(apart, count, plan->policy->room[object] / DEVICE_PAGE_BYTES);
        bytes += round_up(pages * DEVICE_PAGE_BYTES, page);
    }
    return bytes;
}

/* Gives each interval a place of its own. *out_bytes: in use at most. A device with large pages keeps room for all intervals where their
 * pages would take no less. */
static zero_status lay_out_apart(struct plan *plan, struct intervals *intervals, uint64_t *out_bytes,
                                 struct zero_error *error) {
    const uint64_t page = plan->terms->page_bytes;
    struct apart *apart = malloc((intervals->count + 1) * sizeof *apart);
    if (!apart) return error_set(error, ZERO_E_MEMORY, "no memory for the plan");
    uint64_t all = lay_out_at(intervals, ALIGN_BYTES), paged = page ? paged_bytes(plan, intervals, apart) : 0;
    bool in_parts = page && (page == DEVICE_PAGE_BYTES || paged < all);
    plan->space_bytes = in_parts ? lay_out_at(intervals, DEVICE_PART_BYTES) : 0;
    *out_bytes = in_parts ? paged : all;
    free(apart);
    return ZERO_OK;
}

static int compare(const void *a, const void *b) {
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static uint32_t find(const uint64_t *bound, uint32_t count, uint64_t offset) {
    return (uint32_t)((const uint64_t *)bsearch(&offset, bound, count, sizeof *bound, compare) - bound);
}

/* Cuts the row of gathered units where any of its buffers begins or ends. */
static zero_status cut_parts(struct plan *plan, uint32_t first, struct zero_error *error) {
    uint32_t bounds = 0, unique = 0;
    uint64_t *bound = malloc((2 * (plan->buffers - first) + 1) * sizeof *bound);
    if (!bound) return error_set(error, ZERO_E_MEMORY, "no memory for the plan");
    for (uint32_t i = first; i < plan->buffers; i++) {
        bound[bounds++] = plan->buffer[i].offset;
        bound[bounds++] = plan->buffer[i].offset + plan->buffer[i].bytes;
    }
    qsort(bound, bounds, sizeof *bound, compare);
    for (uint32_t i = 0; i < bounds; i++)
        if (!i || bound[i] != bound[unique - 1]) bound[unique++] = bound[i];
    for (uint32_t i = first; i < plan->buffers; i++) {
        const struct plan_buffer *b = &plan->buffer[i];
        plan->span[i] =
            (struct hazard_span){find(bound, unique, b->offset), find(bound, unique, b->offset + b->bytes)};
    }
    plan->parts = unique;
    free(bound);
    return ZERO_OK;
}

/* Makes each interval a buffer of the row of gathered units. */
static zero_status place_slots(struct plan *plan, struct intervals *intervals, struct zero_error *error) {
    uint32_t first = plan->buffers;
    uint64_t *bytes = &plan->row_bytes[MEMORY_GATHERED];
    if (plan->policy->bound)
        TRY(lay_out_apart(plan, intervals, bytes, error));
    else
        *bytes = intervals_lay_out(intervals, &plan->lasting_bytes);
    for (uint32_t i = 0; i < intervals->count; i++)
        plan->buffer[plan->buffers++] = (struct plan_buffer){
            .offset = intervals->item[i].offset, .bytes = intervals->item[i].bytes, .row = MEMORY_GATHERED};
    for (uint32_t i = 0; i < dry_run_slots(plan->policy); i++)
        if (plan->slot[i] != NO_BUFFER) plan->slot[i] += first;
    return cut_parts(plan, first, error);
}

/* Places the rows of a tier one after another in its extent. The starts of the rows are staggered by distinct cache
 * lines: an update walks parameters, moments and gradients at once, and equal offsets modulo a page would alias in
 * the cache. Rows that a drive reads or writes start on a page. An extent has whole pages. */
static void place_row(struct plan *plan, int r) {
    if (!plan->row_bytes[r]) return;
    uint64_t *end = &plan->tier_bytes[plan->row_tier[r]];
    bool walked = r < MEMORY_OFFLOADED_PARAMETERS || r >= MEMORY_AVERAGES,
         read = r == MEMORY_GATHERED && plan->layout.reads_in_place;
    uint64_t stagger = walked && !read ? (uint64_t)r * STAGGER_BYTES : 0;
    plan->row_offset[r] = round_up(*end, ALIAS_BYTES) + stagger;
    *end = plan->row_offset[r] + plan->row_bytes[r];
}

/* Commits come first on their tier, so that a run with another plan finds them, too. What is not in the extent comes last. */
static void place_rows(struct plan *plan) {
    uint64_t *device = &plan->tier_bytes[TIER_DEVICE];
    place_row(plan, MEMORY_COMMITS);
    for (int r = 0; r < MEMORY_ROWS; r++)
        if (r != MEMORY_COMMITS && (r != MEMORY_GATHERED || !plan->space_bytes)) place_row(plan, r);
    for (int t = 0; t < TIERS; t++) plan->tier_bytes[t] = round_up(plan->tier_bytes[t], ALIAS_BYTES);
    if (!plan->space_bytes) return;
    plan->row_offset[MEMORY_GATHERED] = *device;
    *device += plan->row_bytes[MEMORY_GATHERED];
}

static zero_status allocate_tables(struct plan *plan, const struct plan_options *o,
                                   struct zero_error *error) {
    const struct policy *p = o->policy;
    uint32_t slots = dry_run_slots(p);
    plan->fixed_width = p->regions * PRECISION_STATES_MAX + p->stagings + p->gather_stagings +
                        p->lent_stagings + UPDATE_STAGINGS + p->directions;
    plan->capacity = BUFFER_KINDS * plan->fixed_width + slots;
    plan->buffer = calloc(plan->capacity, sizeof *plan->buffer);
    plan->fixed = malloc(BUFFER_KINDS * plan->fixed_width * sizeof *plan->fixed);
    plan->slot = malloc(slots * sizeof *plan->slot);
    plan->turn_bytes = calloc(p->regions, sizeof *plan->turn_bytes);
    plan->turn = calloc(p->regions, sizeof *plan->turn);
    plan->span = calloc(plan->capacity, sizeof *plan->span);
    if (!plan->buffer || !plan->fixed || !plan->slot || !plan->turn_bytes || !plan->turn || !plan->span)
        return error_set(error, ZERO_E_MEMORY, "no memory for the plan");
    memset(plan->fixed, 0xff, BUFFER_KINDS * plan->fixed_width * sizeof *plan->fixed);
    memset(plan->slot, 0xff, slots * sizeof *plan->slot);
    return ZERO_OK;
}

static struct chunk_format format_of(const struct plan_options *o, bool keeps_fp32, bool other) {
    const struct precision kept = precision_kept_fp32(&o->terms->precision),
                           *p = keeps_fp32 ? &kept : &o->terms->precision;
    struct chunk_format format = {.states = o->states[other] + o->terms->precision.average,
                                  .moments = o->states[other],
                                  .param_dtype = p->compute,
                                  .grad_dtype = p->reduced};
    format.arrays = precision_arrays(p, format.states, format.array_bytes);
    return format;
}

static zero_status cut_chunks(struct plan *plan, const struct plan_options *o, struct zero_error *error) {
    struct chunk_format format[CHUNK_FORMATS];
    for (int other = 0; other < 2; other++)
        for (int kept = 0; kept < 2; kept++)
            format[chunk_format_index(kept, other)] = format_of(o, kept, other);
    return chunk_layout_make(&plan->layout, o->terms, format, o->model, o->policy, error);
}

static void place_tiers(struct plan *plan, const struct terms *t) {
    const bool discrete = t->discrete;
    const enum tier_kind params = t->param_tier,
                         state = t->state_tier == TIER_NVME ? TIER_CPU : t->state_tier;
    const enum tier_kind tiers[] = {
#define MEMORY_ROW(row, tier, rests, name) tier,
#include "engine/plan/memory_rows.def"
    };
    memcpy(plan->row_tier, tiers, sizeof tiers);
}

zero_status plan_make(struct plan *plan, const struct plan_options *o, struct zero_error *error) {
    *plan = (struct plan){.terms = o->terms, .model = o->model, .policy = o->policy};
    struct intervals intervals = {0};
    TRY(allocate_tables(plan, o, error));
    TRY(cut_chunks(plan, o, error));
    place_tiers(plan, o->terms);
    fixed_make(plan, o);
    plan->row_bytes[MEMORY_MESSAGES] = o->message_bytes;
    plan->row_bytes[MEMORY_CHECKPOINT] = o->terms->checkpoint_bytes;
    zero_status status =
        intervals_open(&intervals, dry_run_slots(o->policy), o->policy->regions,
                       plan->layout.reads_in_place ? plan->layout.align_bytes : ALIGN_BYTES, error);
    if (!status) dry_run_begin_apart(plan, &intervals);
    if (!status) status = dry_run(plan, &intervals, error);
    for (uint32_t i = 0; i < intervals.count && !status; i++)
        if (intervals.item[i].open)
            status = error_set(error, ZERO_E_INTERNAL, "the plan's dry run never released region %d",
                               intervals.item[i].ref.region);
    if (!status) status = place_slots(plan, &intervals, error);
    intervals_close(&intervals);
    place_rows(plan);
    return status;
}

void plan_free(struct plan *plan) {
    free(plan->buffer);
    free(plan->fixed);
    free(plan->slot);
    free(plan->turn_bytes);
    free(plan->turn);
    free(plan->span);
    chunk_layout_free(&plan->layout);
}

uint32_t plan_fixed(const struct plan *plan, struct buffer_ref ref) {
    return plan->fixed[ref.kind * plan->fixed_width + ref.region];
}

uint32_t plan_slot(const struct plan *plan, bool evaluating, uint32_t position, struct buffer_ref ref) {
    const uint32_t *slot = dry_run_slot(plan, evaluating, position, ref);
    return slot ? *slot : NO_BUFFER;
}

uint32_t plan_any(const struct plan *plan, struct buffer_ref ref) {
    uint32_t buffer = plan_fixed(plan, ref);
    for (uint32_t q = 0; q < 2 * plan->policy->uses && buffer == NO_BUFFER; q++)
        buffer = plan_slot(plan, false, q, ref);
    return buffer;
}

bool plan_in_space(const struct plan *plan, uint32_t buffer) {
    return plan->space_bytes && plan->buffer[buffer].row == MEMORY_GATHERED;
}

uint64_t plan_extent_bytes(const struct plan *plan, enum tier_kind tier) {
    return plan->space_bytes && tier == TIER_DEVICE ? plan->row_offset[MEMORY_GATHERED]
                                                    : plan->tier_bytes[tier];
}

uint64_t plan_place(const struct plan *plan, uint32_t buffer) {
    const struct plan_buffer *b = &plan->buffer[buffer];
    return plan->row_offset[b->row] + b->offset;
}

/* The rows of a tier lie in their order, and so do the buffers of a row. Between two of them is alignment. */
uint32_t plan_rest(const struct plan *plan, enum tier_kind tier, struct plan_range *out) {
    uint32_t count = 0;
    for (uint32_t row = 0; row < MEMORY_ROWS; row++) {
        bool follows = false; /* extends the last range, if no buffer that does not rest lies between */
        for (uint32_t i = 0; i < plan->buffers && plan->row_tier[row] == tier; i++) {
            const struct plan_buffer *b = &plan->buffer[i];
            if (b->row != row || !b->bytes) continue;
            uint64_t place = plan_place(plan, i);
            if (b->rests && !follows) out[count++] = (struct plan_range){.offset = place};
            if (b->rests) out[count - 1].bytes = place + b->bytes - out[count - 1].offset;
            follows = b->rests;
        }
    }
    return count;
}
