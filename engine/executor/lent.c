/* Regions that rest in the host program's memory (engine/model/lent.h), in a world of one rank: a gather has nothing to bring, and
 * the gradient is its own sum. */
#include "engine/executor/steps.h"
#include "kernels/ordered_sum.h"
#include "kernels/work.h"

const struct model_region *lent_region(const struct executor *e, struct buffer_ref ref) {
    const struct region *r =
        ref.kind == BUFFER_PARAM_FULL || ref.kind == BUFFER_GRAD_FULL ? policy_region(e, ref.region) : NULL;
    bool lent = r && (ref.kind == BUFFER_PARAM_FULL ? r->lent : r->grad_lent);
    return lent ? &e->o.shape.model->region[ref.region] : NULL;
}

/* Block by block as a reduction does it, with the same bits. A block that is not in one piece is copied. */
void lent_sum(struct executor *e, uint32_t region) {
    const struct model_region *r = &e->o.shape.model->region[region];
    enum dtype dtype = e->o.shape.precision.reduced;
    uint64_t bytes = dtype_bytes(dtype);
    float copy[NORM_BLOCK_ELEMENTS];
    e->norm[region] = 0;
    e->normed[region] = true;
    for (uint64_t first = 0, left = r->padded, count, there; left; first += count, left -= count) {
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

zero_status lent_posted(struct executor *e, struct item *item) {
    item->posted = true;
    *(item->task->op.kind == OP_GATHER ? &e->traffic.gather_calls : &e->traffic.reduce_calls) += 1;
    return ZERO_OK;
}
