/* A table for people, or for programs. */
#pragma once

#include <stdio.h>

#include "tools/plan/print/largest.h"
#include "tools/plan/print/table.h"

/* Prints a table for people. `all`: also prints the row of each pair (with and without recomputation) that is otherwise
 * left out. */
void print_table(const struct scenario *scenario, const struct table *table, bool all, FILE *out);

/* Prints the largest model, and the memory that a larger one lacks. */
void print_largest(const struct largest *largest, FILE *out);

/* Prints one JSON object with all rows. */
void print_json(const struct scenario *scenario, const struct table *table, FILE *out);
