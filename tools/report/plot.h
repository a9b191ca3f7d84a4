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
        const double *value; /* NaN: no value at this step */
    } curve[PLOT_CURVES_MAX];
    uint32_t curves;
    bool from_zero; /* the axis begins at zero */
};

/* Writes nothing and returns false if no curve has a value. If there are more steps than points on the page, each point
 * is a mean. */
bool plot_write(const struct plot *plot, FILE *file);

#endif
