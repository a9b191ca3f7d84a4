/* All ways to run one model on one machine, with their prices, and the best of them. */
#pragma once

#include "tools/plan/price.h"

enum { TABLE_ADVICE_BYTES = 640, TABLE_NAME_BYTES = 160, TABLE_OTHERS = 3 };

struct table {
    struct price *row;
    uint32_t rows;
    uint32_t best; /* index of the best row; if none fits, of the row that lacks the least */
    char advice[TABLE_ADVICE_BYTES];
};

/* The rows of the scenario's space. Tiers that the machine lacks are left out. In a space that a configuration opens, rows that
 * it refuses are left out too, and so are smaller micro-batches once every row of one micro-batch fits: they would only move more
 * bytes. The caller frees the table, also after a failure. */
zero_status table_make(const struct scenario *scenario, struct table *out, struct zero_error *error);
void table_free(struct table *table);

/* Prices bytes alone: finds the first row that fits; if none fits, the row that lacks the fewest bytes. Begins with the row of
 * number *first, 0 at the beginning, and sets it to the row that fits: the rows before it do not fit a larger model either. */
zero_status table_fit(const struct scenario *scenario, uint32_t *first, struct price *out,
                      struct zero_error *error);

/* True if the row is the one to show of two rows that differ only in recomputation. */
bool table_shown(const struct table *table, uint32_t row);

/* The rows that follow the best one: the fastest others that fit, of other stages or tiers of the state where there are any; the
 * last is the nearest that does not fit, if there is one. Returns how many. */
uint32_t table_others(const struct table *table, uint32_t out[TABLE_OTHERS]);

/* Names a row: "stage 3 with its state in host memory and recomputation". Of an open space also gradients and micro-batch. */
void table_name(const struct price *row, char out[TABLE_NAME_BYTES]);

/* Why the row is not the best one: "slower by 12 %", or "1.2 GB short on the device". */
void table_reason(const struct table *table, uint32_t row, char out[TABLE_NAME_BYTES]);
