/* A line chart as an SVG file: a title, two axes with ticks, a legend. The horizontal axis doubles from tick to tick. */
#ifndef ZERO_TOOLS_SIM_CHART_H
#define ZERO_TOOLS_SIM_CHART_H

#include <stdint.h>
#include <stdio.h>

enum { CHART_SERIES_MAX = 4, CHART_POINTS_MAX = 32 };

struct chart_series {
    const char *name;
    double x[CHART_POINTS_MAX], y[CHART_POINTS_MAX];
    uint32_t points;
};

struct chart {
    const char *title, *note, *x_label, *y_label; /* note: a line below the title */
    struct chart_series series[CHART_SERIES_MAX];
    uint32_t count;
};

void chart_write(const struct chart *chart, FILE *file);

#endif
