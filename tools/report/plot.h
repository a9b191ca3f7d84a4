/* Curves over the steps of a run, as SVG. */
#ifndef ZERO_TOOLS_REPORT_PLOT_H
#define ZERO_TOOLS_REPORT_PLOT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { PLOT_CURVES_MAX = 4 };

struct plot {
    const char *title, *unit;
    const double *step; /* ascending */
    uint32_t steps;
    struct {
        const char *name;
        const double *value; /* NaN: none at this step */
    } curve[PLOT_CURVES_MAX];
    uint32_t curves;
    bool from_zero; /* the axis begins there */
};

/* False, and nothing is written: no curve has a value. More steps than points on the page are averaged. */
bool plot_write(const struct plot *plot, FILE *file);

#endif
