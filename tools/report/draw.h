/* What a page is made of. */
#pragma once

#include <math.h>
#include <stdio.h>

#include "tools/report/record.h"

/* ---- markup.c: text inside HTML and SVG ---- */
/* Writes text and escapes the characters that have a meaning in markup. */
void markup_text(FILE *file, const char *text);

/* A number for people: "11,770", "0.01234", "1.2e-05". Returns `out`. */
const char *markup_number(char out[32], double value);

/* ---- plot.c: curves over the steps of one run or of several, or over numbers of ranks, as SVG. A point's values are shown while the
 * pointer is above it. ---- */
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
    bool from_zero;     /* the axis begins at zero */
    bool unnamed;       /* the page says which curve is which */
    bool doubles;       /* the horizontal axis, from tick to tick */
    const char *x_name; /* of the horizontal axis; NULL: "step" */
};

/* Writes nothing and returns false if no curve has a value. If there are more steps than points on the page, each point
 * is a mean. */
bool plot_write(const struct plot *plot, FILE *file);

/* ---- strips.c: the timeline of a run's first ranks as SVG: a strip per stream, a box per operation ---- */
void strips_write(const struct run_record *record, FILE *file);

/* 1, 2 or 5 times a power of ten, so that `span`, which is above 0, has about `about` steps. */
static inline double tick_of(double span, int about) {
    double power = pow(10, floor(log10(span / about))), ratio = span / about / power;
    return power * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);
}
