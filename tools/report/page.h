/* Writes a run as one HTML page that loads nothing: no script, font or picture from elsewhere. */
#ifndef ZERO_TOOLS_REPORT_PAGE_H
#define ZERO_TOOLS_REPORT_PAGE_H

#include <stdio.h>

#include "tools/report/record.h"

void page_write(const struct run_record *record, FILE *file);

#endif
