#include "engine/blueprint/blueprint.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of each row by unit; the last column is the part of the row that belongs to no unit. */
struct sums {
    uint64_t *bytes; /* [MEMORY_ROWS][units + 1] */
    uint32_t units;
};

static uint64_t *sum_at(struct sums *s, uint32_t row, uint32_t unit) {
    return &s->bytes[(size_t)row * (s->units + 1) + unit];
}

static void add_buffer(const struct blueprint *bp, struct sums *s, enum buffer_kind kind, uint32_t index,
                       uint32_t region) {
    uint32_t buffer = plan_fixed(&bp->plan, (struct buffer_ref){(uint8_t)kind, (uint16_t)index});
    if (buffer == NO_BUFFER) return;
    const struct plan_buffer *b = &bp->plan.buffer[buffer];
    *sum_at(s, b->row, bp->o.model->region[region].unit) += round_up(b->bytes, ALIGN_BYTES);
}

/* Bytes of the region's records on the drive. */
static uint64_t record_bytes(const struct plan *p, uint32_t region, uint32_t regions) {
    const struct chunk_layout *layout = &p->layout;
    if (!layout->first_record) return 0;
    uint64_t end = region + 1 < regions ? layout->first_record[region + 1] : layout->record_row_bytes;
    return (end - layout->first_record[region]) * (1 + p->terms->shadow);
}

static void add_region(const struct blueprint *b, struct sums *s, uint32_t region) {
    static const enum buffer_kind kinds[] = {BUFFER_PARAM_FULL, BUFFER_PARAM_SHARD,  BUFFER_PARAM_SECOND,
                                             BUFFER_GRAD_FULL,  BUFFER_GRAD_SHARD,   BUFFER_MASTER,
                                             BUFFER_GRAD_HOST,  BUFFER_DEVICE_MASTER};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) add_buffer(b, s, kinds[k], region, region);
    for (uint32_t k = 0; k == 0 || k < b->o.state_count; k++) {
        add_buffer(b, s, BUFFER_STATE, k * b->policy.regions + region, region);
        add_buffer(b, s, BUFFER_DEVICE_STATE, k * b->policy.regions + region, region);
    }
    *sum_at(s, MEMORY_RECORDS, b->o.model->region[region].unit) +=
        record_bytes(&b->plan, region, b->o.model->regions);
}

static void add_rest(const struct blueprint *b, struct sums *s) {
    for (uint32_t row = 0; row < MEMORY_ROWS; row++) {
        uint64_t named = 0;
        for (uint32_t u = 0; u < s->units; u++) named += *sum_at(s, row, u);
        *sum_at(s, row, s->units) = b->plan.row_bytes[row] - named;
    }
}

static int by_bytes(const void *a, const void *b) {
    const zero_memory_owner *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    int order = strcmp(x->what, y->what);
    return order ? order : strcmp(x->unit ? x->unit : "", y->unit ? y->unit : "");
}

uint32_t memory_owners(const struct blueprint *b, zero_memory_owner **out_list) {
    struct sums s = {.units = b->o.model->units};
    size_t most = (size_t)MEMORY_ROWS * (s.units + 1);
    zero_memory_owner *list = calloc(most + b->o.reservations->count, sizeof *list);
    uint32_t count = 0;
    s.bytes = calloc(most, sizeof *s.bytes);
    *out_list = list;
    for (uint32_t i = 0; i < b->o.model->regions && list && s.bytes; i++) add_region(b, &s, i);
    if (list && s.bytes) add_rest(b, &s);
    for (uint32_t row = 0; row < MEMORY_ROWS && list && s.bytes; row++)
        for (uint32_t u = 0; u <= s.units; u++) {
            if (!*sum_at(&s, row, u)) continue;
            list[count++] = (zero_memory_owner){.tier = (zero_tier)b->plan.row_tier[row],
                                                .unit = u < s.units ? b->o.model->unit[u]->name : NULL,
                                                .what = memory_row_name((enum memory_row)row),
                                                .bytes = *sum_at(&s, row, u)};
        }
    for (uint32_t i = 0; i < b->o.reservations->count && list; i++)
        list[count++] = (zero_memory_owner){.tier = b->o.reservations->item[i].tier,
                                            .what = b->o.reservations->item[i].name,
                                            .bytes = b->o.reservations->item[i].bytes};
    free(s.bytes);
    if (list) qsort(list, count, sizeof *list, by_bytes);
    return count;
}
