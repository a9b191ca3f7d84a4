#include "tools/report/draw.h"

#include <math.h>

enum {
    WIDTH = 560,
    HEIGHT = 260,
    LEFT = 64,
    RIGHT = 16,
    TOP = 40,
    BOTTOM = 34,
    TICKS_ABOUT = 5,
    TICKS_MAX = 50, /* beside values that are large for their span, a tick may change nothing */
    POINTS_MAX = 300
};

struct axis {
    double least, most, tick;
    bool doubles; /* from tick to tick */
};

static void extend(struct axis *a, double value) {
    if (!isfinite(value)) return;
    a->least = fmin(a->least, value);
    a->most = fmax(a->most, value);
}

static void choose_ticks(struct axis *a) {
    double span = a->most - a->least;
    if (span <= 0) span = fabs(a->most) > 0 ? fabs(a->most) : 1;
    a->tick = tick_of(span, TICKS_ABOUT);
    a->least = floor(a->least / a->tick) * a->tick;
    a->most = ceil(a->most / a->tick) * a->tick;
    if (a->most <= a->least) a->most = a->least + a->tick;
}

static double place(const struct axis *a, double value, double from, double to) {
    double part = a->doubles ? log2(value / a->least) / log2(a->most / a->least)
                             : (value - a->least) / (a->most - a->least);
    return from + (to - from) * part;
}

static double place_x(const struct axis *x, double value) { return place(x, value, LEFT, WIDTH - RIGHT); }
static double place_y(const struct axis *y, double value) { return place(y, value, HEIGHT - BOTTOM, TOP); }

static const char *x_name(const struct plot *p) { return p->x_name ? p->x_name : "step"; }

static void write_frame(const struct plot *p, const struct axis *x, const struct axis *y, FILE *file) {
    char text[32];
    fprintf(file, "<svg viewBox=\"0 0 %d %d\" role=\"img\"><text class=\"title\" x=\"%d\" y=\"20\">", WIDTH,
            HEIGHT, LEFT);
    markup_text(file, p->title);
    fprintf(file, "<tspan class=\"unit\" dx=\"8\">%s</tspan></text>\n", p->unit);
    double v = y->least;
    for (int i = 0; i < TICKS_MAX && v <= y->most + y->tick / 2; i++, v += y->tick)
        fprintf(
            file,
            "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/><text class=\"tick\" x=\"%d\" "
            "y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
            LEFT, place_y(y, v), WIDTH - RIGHT, place_y(y, v), LEFT - 8, place_y(y, v) + 4,
            markup_number(text, fabs(v) < y->tick / 1e6 ? 0 : v));
    v = x->doubles ? x->least : ceil(x->least / x->tick) * x->tick;
    for (int i = 0; i < TICKS_MAX && v <= x->most; i++, v += x->doubles ? v : x->tick)
        fprintf(file, "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                place_x(x, v), HEIGHT - 14, markup_number(text, v));
    fprintf(file, "<text class=\"unit\" x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LEFT - 8,
            HEIGHT - 14, x_name(p));
}

/* A point is the mean of `share` steps, from its first one on. */
static uint32_t share_of(const struct curve *c) { return (c->steps + POINTS_MAX - 1) / POINTS_MAX; }

/* NaN: none of the steps has a value. */
static double point_at(const struct curve *c, uint32_t first) {
    double sum = 0;
    uint32_t count = 0;
    for (uint32_t i = first; i < first + share_of(c) && i < c->steps; i++)
        if (isfinite(c->value[i])) sum += c->value[i], count++;
    return count ? sum / count : NAN;
}

static void write_curve(const struct curve *c, uint32_t k, const struct axis *x, const struct axis *y,
                        FILE *file) {
    uint32_t last = UINT32_MAX;
    fprintf(file, "<polyline class=\"c%u\" points=\"", k);
    for (uint32_t i = 0; i < c->steps; i += share_of(c)) {
        double value = point_at(c, i);
        if (!isfinite(value)) continue;
        fprintf(file, "%.1f,%.1f ", place_x(x, c->step[i]), place_y(y, value));
        last = i;
    }
    fputs("\"/>\n", file);
    if (last != UINT32_MAX) /* a line with one point would be invisible */
        fprintf(file, "<circle class=\"c%u\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", k,
                place_x(x, c->step[last]), place_y(y, point_at(c, last)));
}

static void write_names(const struct plot *p, FILE *file) {
    for (uint32_t k = 0; k < p->curves && p->curves > 1 && !p->unnamed; k++) {
        fprintf(file, "<text class=\"name f%u\" x=\"%d\" y=\"20\" text-anchor=\"end\">", k,
                WIDTH - RIGHT - 76 * (int)(p->curves - 1 - k));
        markup_text(file, p->curve[k].name);
        fputs("</text>\n", file);
    }
}

/* The first value at or after the step, if it belongs to the same point. */
static double value_near(const struct curve *c, double step, double width) {
    for (uint32_t i = 0; i < c->steps; i += share_of(c))
        if (c->step[i] >= step) return c->step[i] < step + width ? point_at(c, i) : NAN;
    return NAN;
}

/* The values of all curves at a point, which the style hides until the pointer is above it. */
static void write_values(const struct plot *p, const struct axis *x, double step, double width, FILE *file) {
    double from = place_x(x, x->doubles ? step / M_SQRT2 : step - width / 2),
           to = place_x(x, x->doubles ? step * M_SQRT2 : step + width / 2);
    char text[32];
    fprintf(file,
            "<g class=\"p\"><rect x=\"%.1f\" y=\"%d\" width=\"%.2f\" height=\"%d\"/><text x=\"%d\" "
            "y=\"%d\">%s %s",
            from, TOP, fmax(to - from, 0.5), HEIGHT - TOP - BOTTOM, LEFT + 8, HEIGHT - BOTTOM - 8, x_name(p),
            markup_number(text, step));
    for (uint32_t k = 0; k < p->curves; k++) {
        double value = value_near(&p->curve[k], step, width);
        if (!isfinite(value)) continue;
        fputs(k || p->curves > 1 ? ", " : ": ", file);
        if (p->curves > 1) markup_text(file, p->curve[k].name), fputc(' ', file);
        fputs(markup_number(text, value), file);
    }
    fputs("</text></g>\n", file);
}

static void write_pointer(const struct plot *p, const struct axis *x, FILE *file) {
    const struct curve *longest = &p->curve[0];
    for (uint32_t k = 1; k < p->curves; k++)
        if (p->curve[k].steps > longest->steps) longest = &p->curve[k];
    uint32_t share = share_of(longest);
    double width = longest->steps > share ? longest->step[share] - longest->step[0] : 1;
    for (uint32_t i = 0; i < longest->steps; i += share) write_values(p, x, longest->step[i], width, file);
}

bool plot_write(const struct plot *p, FILE *file) {
    struct axis x = {INFINITY, -INFINITY, 0, p->doubles},
                y = {p->from_zero ? 0 : INFINITY, p->from_zero ? 0 : -INFINITY, 0, false};
    bool any = false;
    for (uint32_t k = 0; k < p->curves; k++)
        for (uint32_t i = 0; i < p->curve[k].steps; i++) {
            extend(&x, p->curve[k].step[i]);
            extend(&y, p->curve[k].value[i]);
            any |= isfinite(p->curve[k].value[i]);
        }
    if (!any) return false;
    double first = x.least, final = x.most;
    choose_ticks(&x), choose_ticks(&y);
    x.least = first, x.most = final > first ? final : x.doubles ? 2 * first : first + 1;
    x.tick = fmax(1, x.tick); /* steps are whole numbers */
    write_frame(p, &x, &y, file);
    for (uint32_t k = 0; k < p->curves; k++) write_curve(&p->curve[k], k, &x, &y, file);
    write_names(p, file);
    write_pointer(p, &x, file);
    fputs("</svg>\n", file);
    return true;
}
