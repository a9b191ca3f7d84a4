/* Curves over the steps of one run or of several, as SVG. A point's values are shown while the pointer is above it. */
#ifndef ZERO_TOOLS_REPORT_PLOT_H
#define ZERO_TOOLS_REPORT_PLOT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { PLOT_CURVES_MAX = 8 };

struct curve {
    const char *name;
    const double *step, *value; /* step: ascending; value: NaN where a step has none */
    uint32_t steps;
};

struct plot {
    const char *title, *unit;
    struct curve curve[PLOT_CURVES_MAX];
    uint32_t curves;
    bool from_zero; /* the axis begins at zero */
    bool unnamed;   /* the page says which curve is which */
};

/* Writes nothing and returns false if no curve has a value. If there are more steps than points on the page, each point
 * is a mean. */
bool plot_write(const struct plot *plot, FILE *file);

#endif
