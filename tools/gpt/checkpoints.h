/* Checkpoints on the drive: the inputs of segments leave while the forward goes on, and come back, read ahead, in the backward. So
 * their memory does not depend on the number of layers.
 *
 * A pass uses these inputs in one order: in the forward those of segment 0, 1, ..., S - 1, each of micro-batch 0 ... M - 1; in the
 * backward those of S - 2, ..., 0, in the same order of micro-batches. The last segment's stay in memory between the two. The inputs are
 * numbered in this order, 0 ... (2 S - 1) M - 1, and number n is in slot n % slots. An input is of no more use when that of the same
 * micro-batch M numbers later has been made or used, so M slots and a few more are enough: a number may take its slot once number
 * - slots is used, and the slot's last transfer has ended.
 *
 * Place of segment s and micro-batch m in the scratch: s * M + m. Each is stored once per pass and fetched once. Those of segments below
 * the lowest trained unit, and of evaluations, stay out. */
#ifndef ZERO_TOOLS_GPT_CHECKPOINTS_H
#define ZERO_TOOLS_GPT_CHECKPOINTS_H

#include "engine/zero.h"
#include "tools/gpt/gpt.h"

struct gpt;

struct checkpoints {
    zero_scratch *scratch;    /* NULL: checkpoints stay in memory; the functions below then do nothing */
    uint32_t segments, first; /* first: the lowest segment that the backward needs */
    uint64_t fetched;         /* of this pass: numbers below are on their way or have come */
    uint64_t *place;          /* [slots]: of the slot's last transfer, or NO_PLACE */
};

/* Before commit: declares the scratch, if config->checkpoints asks for it. `trained`: the blocks that the backward runs. *out is NULL if
 * nothing goes to the drive. */
zero_status checkpoints_declare(zero_engine *engine, const struct gpt_config *config, uint32_t batch,
                                uint32_t trained, zero_scratch **out);

/* Before commit, once the units are declared; and the end, which waits for all transfers. */
zero_status checkpoints_open(struct gpt *gpt);
void checkpoints_close(struct gpt *gpt);

/* A pass begins; its forward ends, and its backward follows. */
void checkpoints_pass(struct gpt *gpt);
zero_status checkpoints_turn(struct gpt *gpt);

/* Around what computes the stream before block `index` (the head: the number of layers) of micro-batch `micro`, in the forward: gives it a slot; lets
 * it leave. */
zero_status checkpoints_make(struct gpt *gpt, uint32_t index, uint32_t micro);
zero_status checkpoints_made(struct gpt *gpt, uint32_t index, uint32_t micro);

/* Before each use of it in the backward: waits until it is there. After the last one: its slot is free for what comes next. */
zero_status checkpoints_need(struct gpt *gpt, uint32_t index, uint32_t micro);
zero_status checkpoints_done(struct gpt *gpt, uint32_t index, uint32_t micro);

#endif
