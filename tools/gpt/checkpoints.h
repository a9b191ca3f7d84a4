/* Checkpoints on the drive: the inputs of segments leave while the forward goes on. They come back, read ahead, in the backward. So
 * their memory does not depend on the number of layers.
 *
 * With S segments and M micro-batches, a pass uses the inputs in one order, and numbers them in it:
 *
 *   number          0 ...                                (S - 1) M ...      S M ...              ... (2 S - 1) M - 1
 *   segment         0, 1, ... S - 2                      S - 1              S - 2, S - 3, ... 0
 *                   made in the forward, and stored      stays in memory    fetched for the backward
 *
 * Each segment stands for M numbers, one for each micro-batch. Number n is in slot n % slots. In the forward, number n is of no more use
 * once number n + M is made from it. So M slots and a few more are enough: number n may take its slot when number n - slots is used,
 * and when the slot's last transfer has ended.
 *
 * On a GPU the slots are in pinned memory, and work is late: what is made is stored two numbers later, or with two micro-batches one,
 * when its copy has ended, and a slot is free when the copy from it has ended (backend.h).
 *
 * Segment s of micro-batch m has place s * M + m of the scratch. Each place is stored once per pass, and fetched once. Segments below
 * the lowest trained block are not stored, nor is anything in an evaluation. */
#pragma once

#include "engine/zero.h"
#include "tools/gpt/gpt.h"

struct gpt;

struct checkpoints {
    zero_scratch *scratch;    /* NULL: checkpoints stay in memory */
    uint32_t segments, first; /* first: the lowest segment that the backward needs */
    /* Of this pass: numbers below have been made; are stored or on their way; have been fetched or are on their way. */
    uint64_t made, stored, fetched;
    bool turned; /* the forward has ended */
    /* [slots]: of the slot's last transfer, or NO_PLACE. NULL: without a scratch, and where cuda/checkpoints.c moves the inputs; the
     * functions of a pass then do nothing */
    uint64_t *place;
    char *memory; /* [slots][slot_bytes]: the backend's */
    uint32_t slots;
    uint64_t slot_bytes;
};

/* Before commit: declares the scratch, if config->checkpoints asks for it. `trained`: the blocks that the backward runs. *out is NULL
 * if nothing goes to the drive. */
zero_status checkpoints_declare(zero_engine *engine, const struct gpt_config *config, uint32_t batch,
                                uint32_t trained, zero_scratch **out);

/* Before commit, once the units are declared; and the end, which waits for all transfers. */
zero_status checkpoints_open(struct gpt *gpt);
void checkpoints_close(struct gpt *gpt);

/* The slot of an input in this part of the pass. */
void *checkpoints_at(const struct gpt *gpt, uint32_t index, uint32_t micro);

/* A pass begins; its forward ends, and its backward follows. */
void checkpoints_pass(struct gpt *gpt);
zero_status checkpoints_turn(struct gpt *gpt);

/* `index`: of the block whose input it is; the number of layers stands for the head. In the forward, before the input is computed: gives
 * it a slot. After that: lets it leave. */
zero_status checkpoints_make(struct gpt *gpt, uint32_t index, uint32_t micro);
zero_status checkpoints_made(struct gpt *gpt, uint32_t index, uint32_t micro);

/* In the backward, before each use: waits until the input is there. After the last use: its slot is free for what comes next. */
zero_status checkpoints_need(struct gpt *gpt, uint32_t index, uint32_t micro);
zero_status checkpoints_done(struct gpt *gpt, uint32_t index, uint32_t micro);
