/* The timeline of a run's first ranks as SVG: a strip per stream, a box per operation. */
#ifndef ZERO_TOOLS_REPORT_STRIPS_H
#define ZERO_TOOLS_REPORT_STRIPS_H

#include <stdio.h>

#include "tools/report/record.h"

void strips_write(const struct run_record *record, FILE *file);

#endif
