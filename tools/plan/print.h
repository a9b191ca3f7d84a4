/* A table for people, or for programs. */
#ifndef ZERO_TOOLS_PLAN_PRINT_H
#define ZERO_TOOLS_PLAN_PRINT_H

#include <stdio.h>

#include "tools/plan/table.h"

/* `all`: rows with and without recomputation, where each pair is otherwise one. */
void print_table(const struct scenario *scenario, const struct table *table, bool all, FILE *out);

/* One JSON object, with all rows. */
void print_json(const struct scenario *scenario, const struct table *table, FILE *out);

#endif
