#include "tools/sim/scaling.h"

#include <inttypes.h>
#include <math.h>
#include <stdint.h>

#include "tools/plan/print/figure.h"

/* ---- a line chart as an SVG file: a title, two axes with ticks, a legend. The horizontal axis doubles from tick to tick. ---- */

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

enum { WIDTH = 760, HEIGHT = 470, LEFT = 86, RIGHT = 24, TOP = 76, BOTTOM = 62, Y_TICKS_ABOUT = 6 };

static const char *const colours[CHART_SERIES_MAX] = {"#1f6fb2", "#d1602b", "#2f8f5b", "#8a5bb5"};

struct scale { /* of the values that are shown */
    double x_least, x_most, y_step;
    int y_ticks; /* steps up to the top of the axis */
};

static void extend(const struct chart *c, struct scale *s) {
    double y_most = 0;
    *s = (struct scale){.x_least = INFINITY};
    for (uint32_t k = 0; k < c->count; k++)
        for (uint32_t i = 0; i < c->series[k].points; i++) {
            s->x_least = fmin(s->x_least, c->series[k].x[i]);
            s->x_most = fmax(s->x_most, c->series[k].x[i]);
            y_most = fmax(y_most, c->series[k].y[i]);
        }
    /* Ticks are at 1, 2 or 5 times a power of ten. */
    double about = fmax(y_most, 1e-300) / Y_TICKS_ABOUT, power = pow(10, floor(log10(about))),
           ratio = about / power;
    s->y_step = power * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);
    s->y_ticks = 1 + (int)floor(y_most / s->y_step);
}

static double place_x(const struct scale *s, double x) {
    double span = log2(s->x_most / s->x_least);
    return LEFT + (WIDTH - LEFT - RIGHT) * (span > 0 ? log2(x / s->x_least) / span : 0.5);
}

static double place_y(const struct scale *s, double y) {
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / (s->y_ticks * s->y_step);
}

static void text(FILE *file, double x, double y, const char *anchor, const char *style, const char *words) {
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" %s>", x, y, anchor, style);
    for (const char *c = words; *c; c++) {
        if (*c == '<' || *c == '&')
            fputs(*c == '<' ? "&lt;" : "&amp;", file);
        else
            fputc(*c, file);
    }
    fputs("</text>\n", file);
}

static void line(FILE *file, double x1, double y1, double x2, double y2, const char *colour) {
    fprintf(file, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x1, y1, x2, y2,
            colour);
}

static void write_axes(const struct chart *c, const struct scale *s, FILE *file) {
    char words[32];
    double bottom = HEIGHT - BOTTOM;
    for (int i = 0; i <= s->y_ticks; i++) {
        double y = place_y(s, i * s->y_step);
        line(file, LEFT, y, WIDTH - RIGHT, y, i ? "#e3e6ea" : "#59636e");
        snprintf(words, sizeof words, "%.10g", i * s->y_step);
        text(file, LEFT - 10, y + 4, "end", "class=\"tick\"", words);
    }
    for (double x = s->x_least; x <= s->x_most * 1.001; x *= 2) {
        line(file, place_x(s, x), bottom, place_x(s, x), bottom + 5, "#59636e");
        snprintf(words, sizeof words, "%.10g", x);
        text(file, place_x(s, x), bottom + 20, "middle", "class=\"tick\"", words);
    }
    text(file, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 16, "middle", "class=\"label\"", c->x_label);
    fprintf(file, "<g transform=\"translate(22 %.1f) rotate(-90)\">", (TOP + bottom) / 2);
    text(file, 0, 0, "middle", "class=\"label\"", c->y_label);
    fputs("</g>\n", file);
}

static void write_series(const struct chart_series *line, const struct scale *s, const char *colour,
                         FILE *file) {
    fprintf(file,
            "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2.2\" stroke-linejoin=\"round\" points=\"",
            colour);
    for (uint32_t i = 0; i < line->points; i++)
        fprintf(file, "%s%.1f,%.1f", i ? " " : "", place_x(s, line->x[i]), place_y(s, line->y[i]));
    fputs("\"/>\n", file);
    for (uint32_t i = 0; i < line->points; i++)
        fprintf(file,
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.4\" fill=\"%s\"><title>%.10g: %.6g</title></circle>\n",
                place_x(s, line->x[i]), place_y(s, line->y[i]), colour, line->x[i], line->y[i]);
}

/* At the upper right, where falling curves do not reach. */
static void write_legend(const struct chart *c, FILE *file) {
    for (uint32_t k = 0; k < c->count; k++) {
        double x = WIDTH - RIGHT - 130, y = TOP + 24 + 20.0 * k;
        fprintf(file, "<rect x=\"%.1f\" y=\"%.1f\" width=\"18\" height=\"3\" fill=\"%s\"/>\n", x, y - 5,
                colours[k]);
        text(file, x + 26, y, "start", "class=\"label\"", c->series[k].name);
    }
}

static void write_chart(const struct chart *c, FILE *file) {
    struct scale s;
    extend(c, &s);
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"Helvetica, Arial, sans-serif\">\n"
            "<style>.title{font-size:17px;font-weight:bold;fill:#1f2328}.note{font-size:12px;fill:#59636e}"
            ".label{font-size:13px;fill:#1f2328}.tick{font-size:12px;fill:#59636e}</style>\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT);
    text(file, LEFT, 30, "start", "class=\"title\"", c->title);
    text(file, LEFT, 51, "start", "class=\"note\"", c->note);
    write_axes(c, &s, file);
    for (uint32_t k = 0; k < c->count; k++) write_series(&c->series[k], &s, colours[k], file);
    write_legend(c, file);
    fputs("</svg>\n", file);
}

/* ---- the simulations ---- */

static const char *const names[SCALING_MESHES] = {"full shard", "hybrid"};

static zero_status run_point(const struct job *job, uint32_t shards, uint32_t steps, uint64_t seed,
                             struct scaling_point *point, enum scaling_mesh mesh, struct zero_error *error) {
    struct job_ranks r;
    TRY(job_place(job, point->ranks, shards, &r, error));
    r.setup.steps = steps;
    r.setup.seed = seed;
    zero_status status = sim_run(&r.setup, &point->result[mesh], error);
    point->tokens = r.tokens;
    job_release(&r);
    return status ? status : error_pass(error, &point->result[mesh].error);
}

zero_status scaling_run(const struct job *job, uint32_t most, uint32_t steps, uint64_t seed, FILE *progress,
                        struct scaling *out, struct zero_error *error) {
    *out = (struct scaling){0};
    for (uint32_t ranks = 8; ranks <= most && out->points < SCALING_POINTS_MAX; ranks *= 2) {
        struct scaling_point *point = &out->point[out->points++];
        uint32_t node = job->machine.node_ranks < ranks ? job->machine.node_ranks : ranks;
        while (ranks % node) node--;
        point->ranks = ranks;
        if (progress) fprintf(progress, "zero sim: %" PRIu32 " ranks\n", ranks);
        TRY(run_point(job, ranks, steps, seed, point, SCALING_FULL, error));
        TRY(run_point(job, node, steps, seed, point, SCALING_HYBRID, error));
    }
    return out->points
               ? ZERO_OK
               : error_set(error, ZERO_E_ARGUMENT, "scaling begins at 8 ranks: give --ranks 8 or more");
}

static double rate(const struct scaling_point *p, enum scaling_mesh mesh) { /* tokens per second and rank */
    return p->tokens / p->ranks / ((double)p->result[mesh].step_ns * 1e-9);
}

void scaling_csv(const struct scaling *s, FILE *file) {
    fputs("ranks,mesh,step_s,tokens_per_s,tokens_per_s_per_rank,efficiency,compute_s,exposed_communication_s,"
          "wire_bytes_per_rank_and_step,device_bytes_per_rank\n",
          file);
    for (int m = 0; m < SCALING_MESHES; m++)
        for (uint32_t i = 0; i < s->points; i++) {
            const struct scaling_point *p = &s->point[i];
            const struct sim_result *r = &p->result[m];
            uint64_t exposed = r->wait_ns[WAIT_GATHER] + r->wait_ns[WAIT_REDUCE] + r->wait_ns[WAIT_AGREE];
            fprintf(file, "%" PRIu32 ",%s,%.9f,%.3f,%.3f,%.5f,%.9f,%.9f,%" PRIu64 ",%" PRIu64 "\n", p->ranks,
                    names[m], (double)r->step_ns * 1e-9, rate(p, (enum scaling_mesh)m) * p->ranks,
                    rate(p, (enum scaling_mesh)m),
                    rate(p, (enum scaling_mesh)m) / rate(&s->point[0], SCALING_FULL),
                    (double)r->compute_ns * 1e-9, (double)exposed * 1e-9, r->wire_bytes,
                    r->planned_bytes[TIER_DEVICE]);
        }
}

void scaling_svg(const struct scaling *s, const struct job *job, FILE *file) {
    char note[256], model[64];
    if (job->units)
        snprintf(model, sizeof model, "%s parameters in %" PRIu32 " units",
                 figure_count((double)job->params).chars, job->units);
    else
        snprintf(model, sizeof model, "%s", job->shapes.name);
    snprintf(note, sizeof note,
             "%s on %s, nodes of %" PRIu32 "; hybrid: sharded in a node, copied between nodes", model,
             job->machine.device.name, job->machine.node_ranks);
    struct chart chart = {.title = "Weak scaling, simulated",
                          .note = note,
                          .x_label = "ranks",
                          .y_label = "tokens per second and rank",
                          .count = SCALING_MESHES};
    for (int m = 0; m < SCALING_MESHES; m++) {
        struct chart_series *line = &chart.series[m];
        line->name = names[m];
        for (uint32_t i = 0; i < s->points; i++, line->points++) {
            line->x[i] = s->point[i].ranks;
            line->y[i] = rate(&s->point[i], (enum scaling_mesh)m);
        }
    }
    write_chart(&chart, file);
}
