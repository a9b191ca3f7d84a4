/* The micro-batches of one rank: which samples it reads at which step, and which samples are held out.
 * Held-out samples come from other files (data.eval is a path) or are the last fraction of the training files' samples
 * (data.eval.fraction). By default there are none. A process opens struct dataset once, and its ranks share it; each
 * rank has its own struct feed. */
#pragma once

#include "engine/config/config.h"
#include "tools/data/order.h"

struct dataset {
    struct corpus *train, *held_out; /* held_out: the same corpus, another one, or NULL */
    struct order train_order, held_out_order;
};

enum dataset_use { DATASET_TRAIN, DATASET_EVAL };

/* Needs a resolved `config`. Errors say which data is missing or too short, and by which key or option of `use` that changes. */
zero_status dataset_open(const struct config *config, enum dataset_use use, struct zero_error *error,
                         struct dataset *out);
void dataset_close(struct dataset *dataset);

/* The number of held-out samples that are measured: all, or 256 that are spread evenly. The choice of samples does not
 * depend on ranks or batches. */
uint64_t dataset_measured(const struct dataset *dataset);

struct feed {
    const struct dataset *dataset;
    struct reader *train, *held_out;
    uint32_t rank, ranks, batch, micro_count, context;
    uint64_t first_step, first_sample; /* where this run begins: zero unless it continues another run */
    uint64_t held_out_micros;          /* micro-batches that every rank evaluates, the same number on all */
    int32_t *tokens, *targets;         /* of one step: micro_count x batch x context */
};

zero_status feed_open(const struct dataset *dataset, const struct config *config, uint32_t rank,
                      uint32_t ranks, struct zero_error *error, struct feed *out);
void feed_close(struct feed *feed); /* a zeroed feed is allowed */

/* Reads all micro-batches of `step`, so that a failure to read shows before any rank begins the step. */
zero_status feed_read_step(struct feed *feed, uint64_t step, struct zero_error *error);

/* Reads held-out micro-batch `micro` < held_out_micros into the buffer of the first micro-batch. *out_count: the
 * number of its samples that count for this rank; the last micro-batches may have fewer than the batch, or none. */
zero_status feed_read_held_out(struct feed *feed, uint64_t micro, uint32_t *out_count,
                               struct zero_error *error);

/* Some targets of the stream do not count: by loss masks, or at the ends of documents. */
bool feed_leaves_out(const struct corpus *corpus, const struct order *order);

/* The number of targets of the first `samples` samples in the buffer that count. */
uint64_t feed_counted(const struct feed *feed, uint64_t samples);
