/* Gradient norms: the sum of squares of each shard, taken at the shard's last write, and the step's agreement. */
#include "engine/executor/work/work.h"

#include <math.h>

#include "engine/model/lent.h"
#include "kernels/device_work.h"
#include "kernels/norm.h"
#include "kernels/ordered_sum.h"

static void add_norm_f32(void *user, const void *block, uint64_t first, uint64_t count) {
    *(double *)user += norm_block(block, DTYPE_F32, count);
}

static void add_norm_bf16(void *user, const void *block, uint64_t first, uint64_t count) {
    *(double *)user += norm_block(block, DTYPE_BF16, count);
}

static void add_norm_f16(void *user, const void *block, uint64_t first, uint64_t count) {
    *(double *)user += norm_block(block, DTYPE_F16, count);
}

static const comm_written_fn add_norm[DTYPES] = {
    [DTYPE_F32] = add_norm_f32, [DTYPE_BF16] = add_norm_bf16, [DTYPE_F16] = add_norm_f16};

comm_written_fn norm_of_written(enum dtype dtype) { return add_norm[dtype]; }

/* The norm on a device: the sums of blocks go to the device's scratch, which all such works of the reduce stream
 * share; their total goes to memory that the host reads. */
static struct part norm_part(const struct executor *e, uint32_t region) {
    uint64_t share = shard_elements(e, region, grad_shard_placement(policy_region(e, region)));
    return (struct part){0, share, share};
}

static uint64_t blocks_of(uint64_t elements) {
    return (elements + NORM_BLOCK_ELEMENTS - 1) / NORM_BLOCK_ELEMENTS;
}

void norm_with_sum(const struct executor *e, uint32_t region, struct part part, struct comm_norm *out) {
    double *sums =
        (double *)(void *)((uint8_t *)e->m.memory[TIER_DEVICE] + e->o.plan->row_offset[MEMORY_NORMS]);
    *out = (struct comm_norm){.sums = sums + part.first / NORM_BLOCK_ELEMENTS,
                              .all = sums,
                              .total = &e->norm[region],
                              .blocks = blocks_of(part.share),
                              .last = part.first + part.count == part.share};
}

zero_status norm_on_device(struct executor *e, struct item *item, uint32_t region, struct part part,
                           const void *elements) {
    uint64_t blocks = blocks_of(part.count), all_blocks = blocks_of(part.share);
    double *sums =
        (double *)(void *)((uint8_t *)e->m.memory[TIER_DEVICE] + e->o.plan->row_offset[MEMORY_NORMS]);
    enum dtype reduced = precision_of(&e->o.shape, region).reduced;
    double *own = sums + part.first / NORM_BLOCK_ELEMENTS;
    struct norm_blocks_argument each = {elements, own, part.count, reduced};
    struct norm_total_argument all = {.sums = sums, .total = &e->norm[region], .count = all_blocks};
    struct device_work work = {.reads = 1,
                               .writes = 1,
                               .read = {{(void *)each.elements, part.count * dtype_bytes(reduced)}},
                               .write = {{own, blocks * sizeof *own}}};
    struct device_work total = {.reads = 1,
                                .writes = 1,
                                .read = {{sums, all_blocks * sizeof *sums}},
                                .write = {{all.total, sizeof *all.total}}};
    e->normed[region] = true;
    zero_status status = submit(e, item, &kernel_norm_blocks, DEVICE_REDUCE, &each, &work);
    bool last = part.first + part.count == part.share;
    return status || !last ? status : submit(e, item, &kernel_norm_total, DEVICE_REDUCE, &all, &total);
}

/* Blocks are added in ascending order, over all parts of the shard. */
void add_norm_in_memory(struct executor *e, uint32_t region, struct part part, const void *elements) {
    enum dtype reduced = precision_of(&e->o.shape, region).reduced;
    e->norm[region] = norm_more(part.first ? e->norm[region] : 0, elements, reduced, part.count);
}

void norm_in_memory(struct executor *e, uint32_t region, struct part part, const void *elements) {
    e->normed[region] = true;
    if (!e->m.without_data) add_norm_in_memory(e, region, part, elements);
}

/* Completes this rank's part of a summed gradient, and takes its norm block by block, with the bits of a reduction. A block that
 * lies in several pieces is copied first. */
void lent_sum(struct executor *e, uint32_t region) {
    const struct model_region *r = &e->o.shape.model->region[region];
    struct placement cut = grad_shard_placement(policy_region(e, region));
    enum dtype dtype = precision_of(&e->o.shape, region).reduced;
    uint64_t bytes = dtype_bytes(dtype), left = shard_elements(e, region, cut);
    uint64_t first = placement_part(cut, e->o.shape.policy->mesh, e->m.rank) * left;
    float copy[NORM_BLOCK_ELEMENTS];
    e->norm[region] = 0;
    e->normed[region] = true;
    for (uint64_t count, there; left; first += count, left -= count) {
        double square;
        void *block = lent_at(r, LENT_GRADS, bytes, first, &there);
        count = left < NORM_BLOCK_ELEMENTS ? left : NORM_BLOCK_ELEMENTS;
        bool copied = !block || there < count;
        if (copied) lent_read(r, LENT_GRADS, bytes, first, count, block = copy);
        struct ordered_sum_argument sum = {.input = {block},
                                           .count = count,
                                           .target = block,
                                           .sums = &square,
                                           .input_count = 1,
                                           .dtype = dtype,
                                           .target_dtype = dtype};
        kernel_ordered_sum.run(&sum);
        e->norm[region] += square;
        if (copied) lent_write(r, LENT_GRADS, bytes, first, count, copy);
    }
}

/* Takes the norms that no reduction took: the gradient was reduced in an earlier micro-step, or over the replicate
 * axis. */
zero_status complete_norms(struct executor *e, struct item *item) {
    for (uint32_t k = 0; k < e->o.shape.policy->refreshes; k++) {
        uint32_t region = e->o.shape.policy->refresh[k];
        if (e->normed[region]) continue;
        const void *shard = executor_grad_shard(e, region);
        e->normed[region] = true;
        if (!shard && e->m.without_data) continue;
        if (!shard)
            lent_sum(e, region);
        else if (e->o.shape.terms->discrete && !crosses(e, shard))
            TRY(norm_on_device(e, item, region, norm_part(e, region), shard));
        else
            norm_in_memory(e, region, norm_part(e, region), shard);
    }
    return ZERO_OK;
}

/* Squares of parameters that count on another model rank are added here only if they are inf or NaN, so that all
 * ranks skip. */
static double counted_norm(const struct executor *e, uint32_t region) {
    bool elsewhere = region_elsewhere(&e->o.shape.model->region[region]);
    return elsewhere && isfinite(e->norm[region]) ? 0 : e->norm[region];
}

/* The sum of squares of this rank's shards of the gradient, regions in the order of first use. */
static double norm_squared(const struct executor *e) {
    const struct policy *p = e->o.shape.policy;
    double sum = 0;
    for (uint32_t k = 0; k < p->refreshes; k++) sum += counted_norm(e, p->region[k].kth_trained);
    return sum;
}

/* 1 + the last unit with an inf or NaN, because backward reaches that unit first; 0: none. */
static uint64_t overflow_unit(const struct executor *e) {
    uint64_t last = 0;
    for (uint32_t k = 0; k < e->o.shape.policy->refreshes; k++) {
        uint32_t region = e->o.shape.policy->refresh[k], unit = e->o.shape.model->region[region].unit;
        if (!isfinite(e->norm[region]) && unit + 1 > last) last = unit + 1;
    }
    return last;
}

zero_status post_agreement(struct executor *e, struct item *item) {
    e->mine->norm_squared = norm_squared(e);
    e->mine->overflow_unit = overflow_unit(e);
    e->mine->trace = e->trace;
    e->mine->fingerprint = comm_fingerprint(e->m.comm);
    struct comm_call call = comm_rows(e->mine, sizeof *e->mine, "the step's agreement");
    return post_call(e, item, e->m.world, &call);
}
