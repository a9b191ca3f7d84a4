/* Writes runs as one HTML page that loads nothing: no script, font or picture from elsewhere, and none of its own that runs. */
#pragma once

#include <stdio.h>

#include "tools/report/draw.h"
#include "tools/report/record.h"

enum { PAGE_RUNS_MAX = PLOT_CURVES_MAX };

/* One run. */
void page_write(const struct run_record *record, FILE *file);

/* Up to PAGE_RUNS_MAX runs beside each other. names: of the runs. */
void page_compare(const struct run_record *runs, const char *const *names, uint32_t count, FILE *file);
