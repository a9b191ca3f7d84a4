/* All ways to run one model on one machine, with their prices, and the best of them. */
#ifndef ZERO_TOOLS_PLAN_TABLE_H
#define ZERO_TOOLS_PLAN_TABLE_H

#include "tools/plan/price.h"

enum { TABLE_ROWS = 96 /* at most 12 per stage */, TABLE_ADVICE_BYTES = 640 };

struct table {
    struct price row[TABLE_ROWS];
    uint32_t rows;
    uint32_t best; /* index of the best row; if none fits, of the row that lacks the least */
    char advice[TABLE_ADVICE_BYTES];
};

/* Rows: stages, times the tier of the state, times (where the stage shards them) the tier of the parameters, times recomputation.
 * Tiers that the machine lacks are left out. */
zero_status table_make(const struct scenario *scenario, struct table *out, struct zero_error *error);

/* Bytes alone: the first row that fits; if none does, the row that lacks the least. Begins with the row of number *first, 0 at
 * the beginning, and sets it to the row that fits: the rows before it do not fit a larger model either. */
zero_status table_fit(const struct scenario *scenario, uint32_t *first, struct price *out,
                      struct zero_error *error);

/* True if the row is the one to show of two rows that differ only in recomputation. */
bool table_shown(const struct table *table, uint32_t row);

#endif
