#include "tools/report/plot.h"

#include <math.h>

#include "tools/report/markup.h"
#include "tools/report/tick.h"

enum {
    WIDTH = 560,
    HEIGHT = 260,
    LEFT = 64,
    RIGHT = 16,
    TOP = 40,
    BOTTOM = 34,
    TICKS_ABOUT = 5,
    POINTS_MAX = 500
};

struct axis {
    double least, most, tick;
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
    return from + (to - from) * (value - a->least) / (a->most - a->least);
}

static double place_x(const struct axis *x, double value) { return place(x, value, LEFT, WIDTH - RIGHT); }
static double place_y(const struct axis *y, double value) { return place(y, value, HEIGHT - BOTTOM, TOP); }

static void write_frame(const struct plot *p, const struct axis *x, const struct axis *y, FILE *file) {
    fprintf(file, "<svg viewBox=\"0 0 %d %d\" role=\"img\"><text class=\"title\" x=\"%d\" y=\"20\">", WIDTH,
            HEIGHT, LEFT);
    markup_text(file, p->title);
    fprintf(file, "<tspan class=\"unit\" dx=\"8\">%s</tspan></text>\n", p->unit);
    for (double v = y->least; v <= y->most + y->tick / 2; v += y->tick)
        fprintf(
            file,
            "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/><text class=\"tick\" x=\"%d\" "
            "y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n",
            LEFT, place_y(y, v), WIDTH - RIGHT, place_y(y, v), LEFT - 8, place_y(y, v) + 4,
            fabs(v) < y->tick / 1e6 ? 0 : v);
    for (double v = ceil(x->least / x->tick) * x->tick; v <= x->most; v += x->tick)
        fprintf(file, "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.10g</text>\n",
                place_x(x, v), HEIGHT - 12, v);
}

/* Each point is the mean of `share` steps. */
static void write_curve(const struct plot *p, uint32_t k, const struct axis *x, const struct axis *y,
                        FILE *file) {
    uint32_t share = (p->steps + POINTS_MAX - 1) / POINTS_MAX, points = 0, last = 0;
    const double *value = p->curve[k].value;
    fprintf(file, "<polyline class=\"c%u\" points=\"", k);
    for (uint32_t i = 0; i < p->steps; i += share) {
        double sum = 0;
        uint32_t count = 0;
        for (uint32_t j = i; j < i + share && j < p->steps; j++)
            if (isfinite(value[j])) sum += value[j], count++, last = j;
        if (!count) continue;
        fprintf(file, "%.1f,%.1f ", place_x(x, p->step[i]), place_y(y, sum / count));
        points++;
    }
    fputs("\"/>\n", file);
    if (points) /* a line with one point would be invisible */
        fprintf(file,
                "<circle class=\"c%u\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>step %.10g: "
                "%.6g</title></circle>\n",
                k, place_x(x, p->step[last]), place_y(y, value[last]), p->step[last], value[last]);
}

static void write_names(const struct plot *p, FILE *file) {
    for (uint32_t k = 0; k < p->curves && p->curves > 1; k++) {
        fprintf(file, "<text class=\"name f%u\" x=\"%d\" y=\"20\" text-anchor=\"end\">", k,
                WIDTH - RIGHT - 76 * (int)(p->curves - 1 - k));
        markup_text(file, p->curve[k].name);
        fputs("</text>\n", file);
    }
}

bool plot_write(const struct plot *p, FILE *file) {
    struct axis x = {INFINITY, -INFINITY, 0},
                y = {p->from_zero ? 0 : INFINITY, p->from_zero ? 0 : -INFINITY, 0};
    bool any = false;
    for (uint32_t i = 0; i < p->steps; i++) {
        extend(&x, p->step[i]);
        for (uint32_t k = 0; k < p->curves; k++) {
            extend(&y, p->curve[k].value[i]);
            any |= isfinite(p->curve[k].value[i]);
        }
    }
    if (!any) return false;
    double first = x.least, final = x.most;
    choose_ticks(&x), choose_ticks(&y);
    x.least = first, x.most = final > first ? final : first + 1;
    x.tick = fmax(1, x.tick); /* steps are whole numbers */
    write_frame(p, &x, &y, file);
    for (uint32_t k = 0; k < p->curves; k++) write_curve(p, k, &x, &y, file);
    write_names(p, file);
    fputs("</svg>\n", file);
    return true;
}
