/* All ways to run one model on one machine, priced, and which of them to take. */
#ifndef ZERO_TOOLS_PLAN_TABLE_H
#define ZERO_TOOLS_PLAN_TABLE_H

#include "tools/plan/price.h"

enum { TABLE_ROWS = 30, TABLE_ADVICE_BYTES = 640 };

struct table {
    struct price row[TABLE_ROWS];
    uint32_t rows;
    uint32_t best; /* index of the row to take; where nothing fits, of the one that is nearest */
    char advice[TABLE_ADVICE_BYTES];
};

/* Stages 0 to 3 x where the state lives x, at stage 3, where the parameters do x recomputation. Tiers that the machine
 * has not are left out. */
zero_status table_make(const struct scenario *scenario, struct table *out, struct zero_error *error);

/* Of two rows that differ in recomputation alone, the one to show. */
bool table_shown(const struct table *table, uint32_t row);

#endif
