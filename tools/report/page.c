#include "tools/report/page.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/report/markup.h"
#include "tools/report/plot.h"
#include "tools/report/strips.h"

static const char style[] =
    "body{font:15px/1.45 system-ui,Helvetica,Arial,sans-serif;color:#1f2328;background:#fff;max-width:1180px;"
    "margin:28px auto;padding:0 18px}"
    "h1{font-size:24px;margin:0 0 4px}h2{font-size:17px;margin:34px 0 10px}"
    ".settings{color:#59636e;margin:0 0 18px}.cards{display:flex;flex-wrap:wrap;gap:12px}"
    ".card{border:1px solid #d8dee4;border-radius:8px;padding:10px 16px;min-width:120px}"
    ".card b{display:block;font-size:20px}.card span{color:#59636e;font-size:13px}"
    ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(440px,1fr));gap:18px 22px}"
    "svg{width:100%;height:auto}svg.dot{width:10px;height:10px;margin-right:5px}"
    ".title{font-size:14px;font-weight:600}.unit,.tick{font-size:11px;fill:#59636e}.name{font-size:12px}"
    ".grid{stroke:#e6e9ed}polyline{fill:none;stroke-width:1.8;stroke-linejoin:round}"
    ".c0{stroke:#1f6fb2}.c1{stroke:#d1602b}.c2{stroke:#2f8f5b}.c3{stroke:#8a5bb5}circle{fill:#fff;stroke-"
    "width:1.8}"
    ".f0{fill:#1f6fb2}.f1{fill:#d1602b}.f2{fill:#2f8f5b}.f3{fill:#8a5bb5}"
    ".k0{fill:#5a9bd4}.k1{fill:#1f6fb2}.k2{fill:#2f8f5b}.k3{fill:#d1602b}.k4{fill:#8a5bb5}.k5{fill:#c9a227}"
    ".k6{fill:#a0752d}.k7{fill:#7d8590}.k8{fill:#c2314f}"
    "table{border-collapse:collapse}td,th{padding:4px 16px 4px 0;text-align:right;border-bottom:1px solid "
    "#e6e9ed}"
    "td:nth-child(-n+2),th:nth-child(-n+2){text-align:left}.bar{display:inline-block;height:10px;background:#"
    "5a9bd4}"
    ".legend{font-size:12px}.legend span{margin-right:14px}.note{color:#59636e;font-size:13px}";

static void write_bytes(FILE *file, double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int unit = 0;
    for (; bytes >= 1024 && unit < 5; unit++) bytes /= 1024;
    fprintf(file, unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
}

/* ---- the head ---- */

static double last_of(const struct run_record *r, enum quantity q) {
    for (uint32_t i = r->steps; i-- > 0;)
        if (isfinite(r->value[q][i])) return r->value[q][i];
    return NAN;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* NaN: no values, or no memory. */
static double median_of(const struct run_record *r, enum quantity q) {
    double *sorted = malloc((r->steps + 1) * sizeof *sorted), median = NAN;
    uint32_t count = 0;
    for (uint32_t i = 0; sorted && i < r->steps; i++)
        if (isfinite(r->value[q][i])) sorted[count++] = r->value[q][i];
    if (count) {
        qsort(sorted, count, sizeof *sorted, ascending);
        median = sorted[count / 2];
    }
    free(sorted);
    return median;
}

static double total_of(const struct run_record *r, enum quantity q) {
    double total = 0;
    for (uint32_t i = 0; i < r->steps; i++)
        if (isfinite(r->value[q][i])) total += r->value[q][i];
    return total;
}

static void write_card(FILE *file, const char *name, const char *format, double value) {
    if (!isfinite(value)) return;
    fputs("<div class=\"card\"><b>", file);
    fprintf(file, format, value);
    fprintf(file, "</b><span>%s</span></div>\n", name);
}

static void write_head(const struct run_record *r, FILE *file) {
    fputs("<h1>", file);
    markup_text(file, r->title);
    fputs("</h1>\n<p class=\"settings\">", file);
    for (uint32_t i = 0; i < r->setting_count; i++) {
        if (i) fputs(" &middot; ", file);
        markup_text(file, r->settings[i]);
    }
    fputs("</p>\n<div class=\"cards\">\n", file);
    char steps[64];
    snprintf(steps, sizeof steps, "of %" PRIu64 " steps", r->steps_asked);
    write_card(file, steps, "%.0f", r->steps ? r->step[r->steps - 1] : 0);
    write_card(file, "loss, the last step's", "%.4f", last_of(r, LOSS));
    write_card(file, "held-out loss", "%.4f", last_of(r, EVAL_LOSS));
    write_card(file, "tokens/s, median", "%.4g", median_of(r, TOKENS_PER_S));
    write_card(file, "s per step, median", "%.4g", median_of(r, SECONDS));
    if (total_of(r, SKIPPED) > 0) write_card(file, "steps skipped", "%.0f", total_of(r, SKIPPED));
    fputs("</div>\n", file);
}

/* ---- curves ---- */

static void write_plots(const struct run_record *r, FILE *file) {
    double *const *v = r->value;
    const struct plot plots[] = {
        {.title = "Loss",
         .unit = "nats per token",
         .curve = {{"training", v[LOSS]}, {"held out", v[EVAL_LOSS]}},
         .curves = isfinite(last_of(r, EVAL_LOSS)) ? 2 : 1},
        {.title = "Throughput",
         .unit = "tokens/s",
         .curve = {{"tokens/s", v[TOKENS_PER_S]}},
         .curves = 1,
         .from_zero = true},
        {.title = "Time of a step",
         .unit = "s",
         .curve = {{"step", v[SECONDS]},
                   {"compute", v[COMPUTE_S]},
                   {"waiting", v[WAIT_S]},
                   {"updates", v[UPDATE_S]}},
         .curves = 4,
         .from_zero = true},
        {.title = "Gradient norm",
         .unit = "before clipping",
         .curve = {{"norm", v[GRAD_NORM]}},
         .curves = 1,
         .from_zero = true},
        {.title = "Learning rate", .unit = "", .curve = {{"lr", v[LR]}}, .curves = 1, .from_zero = true}};
    fputs("<h2>The run</h2>\n<div class=\"plots\">\n", file);
    for (size_t i = 0; i < sizeof plots / sizeof *plots; i++) {
        struct plot plot = plots[i];
        plot.step = r->step, plot.steps = r->steps;
        fputs("<div>", file);
        plot_write(&plot, file);
        fputs("</div>\n", file);
    }
    fputs("</div>\n", file);
}

/* ---- planned and measured memory ---- */

static void write_memory(const struct run_record *r, FILE *file) {
    enum { BAR = 260 };
    double most = 1, planned = 0, measured = 0;
    for (uint32_t i = 0; i < r->memory_count; i++) most = fmax(most, (double)r->memory[i].planned);
    fputs("<h2>Memory per "
          "rank</h2>\n<table><tr><th>tier</th><th>what</th><th>planned</th><th>measured</th><th></th></tr>\n",
          file);
    for (uint32_t i = 0; i < r->memory_count; i++) {
        const struct memory_line *line = &r->memory[i];
        fputs("<tr><td>", file);
        markup_text(file, line->tier);
        fputs("</td><td>", file);
        markup_text(file, line->name);
        fputs("</td><td>", file);
        write_bytes(file, (double)line->planned);
        fputs("</td><td>", file);
        write_bytes(file, (double)line->measured);
        fprintf(file,
                "</td><td style=\"text-align:left\"><span class=\"bar\" "
                "style=\"width:%.0fpx\"></span></td></tr>\n",
                BAR * (double)line->measured / most);
        planned += (double)line->planned, measured += (double)line->measured;
    }
    fputs("<tr><th></th><th>all</th><th>", file);
    write_bytes(file, planned);
    fputs("</th><th>", file);
    write_bytes(file, measured);
    fputs("</th><th></th></tr></table>\n", file);
}

static void write_traffic_row(const struct run_record *r, const char *name, enum quantity q, uint64_t planned,
                              FILE *file) {
    double last = last_of(r, q);
    if (!(last > 0) && !planned) return;
    fprintf(file, "<tr><td>%s</td><td></td><td>", name);
    if (planned)
        write_bytes(file, (double)planned);
    else
        fputs("&ndash;", file);
    fputs("</td><td>", file);
    write_bytes(file, isfinite(last) ? last : 0);
    fputs("</td></tr>\n", file);
}

static void write_traffic(const struct run_record *r, FILE *file) {
    fputs("<h2>Traffic of a step, all ranks "
          "together</h2>\n<table><tr><th></th><th></th><th>planned</th><th>the last "
          "step's</th></tr>\n",
          file);
    write_traffic_row(r, "sent between ranks", WIRE_BYTES, 0, file);
    write_traffic_row(r, "read from drives", DRIVE_READ_BYTES, r->drive_read_planned, file);
    write_traffic_row(r, "written to drives", DRIVE_WRITE_BYTES, r->drive_write_planned, file);
    fputs("</table>\n", file);
}

static void write_timeline(const struct run_record *r, FILE *file) {
    fputs("<h2>Timeline</h2>\n", file);
    if (!r->has_trace) {
        fputs("<p class=\"note\">The run left no trace.json.</p>\n", file);
        return;
    }
    strips_write(r, file);
}

void page_write(const struct run_record *r, FILE *file) {
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>", file);
    markup_text(file, r->title);
    fprintf(file, "</title><style>%s</style></head><body>\n", style);
    write_head(r, file);
    write_plots(r, file);
    write_timeline(r, file);
    write_memory(r, file);
    write_traffic(r, file);
    fputs("</body></html>\n", file);
}
