#include "tools/report/page.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Colors are variables: one set for light screens, one for dark ones. */
static const char style[] =
    ":root{color-scheme:light dark;--text:#1f2328;--page:#fff;--soft:#59636e;--line:#d8dee4;--grid:#e6e9ed;"
    "--c0:#1f6fb2;--c1:#d1602b;--c2:#2f8f5b;--c3:#8a5bb5;--c4:#a0752d;--c5:#c2314f;--c6:#3d8b8b;--c7:#7d8590}"
    "@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--page:#0d1117;--soft:#9198a1;--line:#3d444d;--"
    "grid:#262c36;"
    "--c0:#58a6ff;--c1:#f0883e;--c2:#56d364;--c3:#bc8cff;--c4:#d4a72c;--c5:#ff7b72;--c6:#56d4dd;--c7:#9198a1}"
    "}"
    "body{font:15px/1.45 "
    "system-ui,Helvetica,Arial,sans-serif;color:var(--text);background:var(--page);max-width:1180px;"
    "margin:28px auto;padding:0 18px}"
    "h1{font-size:24px;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:17px;margin:34px 0 10px}"
    ".settings,.note{color:var(--soft)}.settings{margin:0 0 18px}.note{font-size:13px}"
    ".cards{display:flex;flex-wrap:wrap;gap:12px}"
    ".card{border:1px solid var(--line);border-radius:8px;padding:10px 16px;min-width:120px;flex:1 0 auto}"
    ".card b{display:block;font-size:20px}.card span{color:var(--soft);font-size:13px}"
    ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:18px "
    "22px;margin-top:18px}"
    "svg{width:100%;height:auto}svg.dot{width:10px;height:10px;margin-right:5px}"
    ".wide{overflow-x:auto}.wide>svg{min-width:900px}"
    ".title{font-size:14px;font-weight:600;fill:var(--text)}.unit,.tick{font-size:11px;fill:var(--soft)}"
    ".name{font-size:12px;fill:var(--text)}.grid{stroke:var(--grid)}"
    "polyline{fill:none;stroke-width:1.8;stroke-linejoin:round}circle{fill:var(--page);stroke-width:1.8}"
    ".c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}"
    ".c4{stroke:var(--c4)}.c5{stroke:var(--c5)}.c6{stroke:var(--c6)}.c7{stroke:var(--c7)}"
    ".f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}"
    ".f4{fill:var(--c4)}.f5{fill:var(--c5)}.f6{fill:var(--c6)}.f7{fill:var(--c7)}"
    ".k0{fill:#5a9bd4}.k1{fill:#1f6fb2}.k2{fill:#2f8f5b}.k3{fill:#d1602b}.k4{fill:#8a5bb5}.k5{fill:#c9a227}"
    ".k6{fill:#a0752d}.k7{fill:#7d8590}.k8{fill:#c2314f}"
    ".p rect{fill:transparent}.p text{visibility:hidden;font-size:12px;fill:var(--text)}"
    ".p:hover rect{fill:var(--soft);opacity:.35}.p:hover text{visibility:visible}"
    "table{border-collapse:collapse}td,th{padding:4px 16px 4px "
    "0;text-align:right;white-space:nowrap;border-bottom:1px solid "
    "var(--grid)}"
    "td:nth-child(-n+2),th:nth-child(-n+2){text-align:left}.bar{display:inline-block;height:10px;background:"
    "var(--c0)}"
    ".legend{font-size:12px}.legend span{margin-right:14px;white-space:nowrap}"
    "p.legend{position:sticky;top:0;padding:6px 0;background:var(--page)}"
    ".runs .settings{white-space:normal;min-width:300px}"
    "@media(max-width:640px){body{margin:14px auto;padding:0 10px}.title{font-size:20px}.unit,.tick,.name,.p "
    "text{"
    "font-size:17px}"
    ".runs tr:first-child{display:none}.runs,.runs tbody,.runs tr,.runs td{display:block}"
    ".runs tr{padding:8px 0;border-bottom:1px solid var(--line)}"
    ".runs td{border:0;padding:1px 0;text-align:left;white-space:normal;overflow-wrap:anywhere}.runs "
    ".settings{min-width:0}"
    ".runs td[data-n]::before{content:attr(data-n) \": \";color:var(--soft)}}";

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

static void write_card(FILE *file, const char *name, double value) {
    char text[32];
    if (isfinite(value))
        fprintf(file, "<div class=\"card\"><b>%s</b><span>%s</span></div>\n", markup_number(text, value),
                name);
}

/* The one meaning of memory on these pages: what the engine allocated for a rank, of the device and the host together. */
static double memory_of(const struct run_record *r, bool planned) {
    double bytes = 0;
    for (uint32_t i = 0; i < r->memory_count; i++) {
        const struct memory_line *line = &r->memory[i];
        bytes += strcmp(line->tier, "nvme") ? (double)(planned ? line->planned : line->measured) : 0;
    }
    return bytes;
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
    write_card(file, steps, r->steps ? r->step[r->steps - 1] : 0);
    write_card(file, "loss, the last step's", last_of(r, LOSS));
    write_card(file, "held-out loss", last_of(r, EVAL_LOSS));
    write_card(file, "tokens/s, median", median_of(r, TOKENS_PER_S));
    write_card(file, "s per step, median", median_of(r, SECONDS));
    write_card(file, "MFU in %, median", 100 * median_of(r, MFU));
    fputs("<div class=\"card\"><b>", file);
    write_bytes(file, memory_of(r, false));
    fputs("</b><span>memory per rank</span></div>\n", file);
    if (total_of(r, SKIPPED) > 0) write_card(file, "steps skipped", total_of(r, SKIPPED));
    if (total_of(r, REPEATED) > 0) write_card(file, "steps updated again", total_of(r, REPEATED));
    fputs("</div>\n", file);
    if (!*r->peak) return;
    fputs("<p class=\"note\">MFU is the model's arithmetic as a share of the peak: ", file);
    markup_text(file, r->peak);
    fputs("</p>\n", file);
}

/* ---- curves ---- */

/* A plot of the page: one run's quantities together, or one quantity of several runs. */
static const struct {
    const char *title, *unit;
    bool from_zero;
    struct {
        const char *name;
        enum quantity quantity;
    } curve[4];
    int curves;
} plots[] = {
    {"Loss", "nats per token", false, {{"training", LOSS}, {"held out", EVAL_LOSS}}, 2},
    {"Throughput", "tokens/s", true, {{"tokens/s", TOKENS_PER_S}}, 1},
    {"Time of a step",
     "s",
     true,
     {{"step", SECONDS}, {"compute", COMPUTE_S}, {"waiting", WAIT_S}, {"updates", UPDATE_S}},
     4},
    {"Gradient norm", "L2, before clipping", true, {{"norm", GRAD_NORM}}, 1},
    {"Learning rate", "per update", true, {{"lr", LR}}, 1},
    {"MFU", "share of the peak", true, {{"MFU", MFU}}, 1},
};
enum { PLOTS = sizeof plots / sizeof *plots };

static struct curve curve_of(const struct run_record *r, const char *name, enum quantity q) {
    return (struct curve){name, r->step, r->value[q], r->steps};
}

static void write_plots(const struct run_record *r, FILE *file) {
    fputs("<h2>The run</h2>\n<div class=\"plots\">\n", file);
    for (int i = 0; i < PLOTS; i++) {
        struct plot plot = {.title = plots[i].title, .unit = plots[i].unit, .from_zero = plots[i].from_zero};
        for (int k = 0; k < plots[i].curves; k++)
            if (k == 0 || isfinite(last_of(r, plots[i].curve[k].quantity)))
                plot.curve[plot.curves++] = curve_of(r, plots[i].curve[k].name, plots[i].curve[k].quantity);
        plot_write(&plot, file);
    }
    fputs("</div>\n", file);
}

/* ---- planned and measured memory ---- */

static void write_total(const char *name, double planned, double measured, FILE *file) {
    fprintf(file, "<tr><th></th><th>%s</th><th>", name);
    write_bytes(file, planned);
    fputs("</th><th>", file);
    write_bytes(file, measured);
    fputs("</th><th></th></tr>\n", file);
}

static void write_memory(const struct run_record *r, FILE *file) {
    enum { BAR = 260 };
    double most = 1, drives[2] = {0};
    for (uint32_t i = 0; i < r->memory_count; i++) most = fmax(most, (double)r->memory[i].planned);
    fputs("<h2>Memory per "
          "rank</h2>\n<div "
          "class=\"wide\"><table><tr><th>tier</th><th>what</th><th>planned</th><th>measured</th><th></th></"
          "tr>\n",
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
        bool on_drive = strcmp(line->tier, "nvme") == 0;
        drives[0] += on_drive ? (double)line->planned : 0, drives[1] += on_drive ? (double)line->measured : 0;
    }
    write_total("memory per rank: device and host", memory_of(r, true), memory_of(r, false), file);
    if (drives[0] + drives[1] > 0) write_total("on drives, per rank", drives[0], drives[1], file);
    fputs("</table></div>\n", file);
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
          "together</h2>\n<div class=\"wide\"><table><tr><th></th><th></th><th>planned</th><th>the last "
          "step's</th></tr>\n",
          file);
    write_traffic_row(r, "sent between ranks", WIRE_BYTES, r->wire_planned, file);
    write_traffic_row(r, "read from drives", DRIVE_READ_BYTES, r->drive_read_planned, file);
    write_traffic_row(r, "written to drives", DRIVE_WRITE_BYTES, r->drive_write_planned, file);
    fputs("</table></div>\n", file);
}

static void write_timeline(const struct run_record *r, FILE *file) {
    fputs("<h2>Timeline</h2>\n", file);
    if (!r->has_trace) {
        fputs("<p class=\"note\">The run left no trace.json.</p>\n", file);
        return;
    }
    fputs("<div class=\"wide\">", file);
    strips_write(r, file);
    fputs("</div>\n", file);
}

static void write_begin(const char *title, FILE *file) {
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">",
          file);
    fputs("<title>", file);
    markup_text(file, title);
    fprintf(file, "</title><style>%s</style></head><body>\n", style);
}

void page_write(const struct run_record *r, FILE *file) {
    write_begin(r->title, file);
    write_head(r, file);
    write_plots(r, file);
    write_timeline(r, file);
    write_memory(r, file);
    write_traffic(r, file);
    fputs("</body></html>\n", file);
}

/* ---- several runs ---- */

/* On a phone a cell stands in a line of its own, behind its column's name. */
static void write_cell(const char *column, double value, FILE *file) {
    char text[32];
    fprintf(file, "<td data-n=\"%s\">%s</td>", column,
            isfinite(value) ? markup_number(text, value) : "&ndash;");
}

static void write_dot(const char *name, uint32_t number, FILE *file) {
    fprintf(file,
            "<svg class=\"dot\" viewBox=\"0 0 10 10\"><rect class=\"f%" PRIu32
            "\" width=\"10\" height=\"10\"/></svg>",
            number);
    markup_text(file, name);
}

static const char *const columns[] = {"steps",      "loss",     "held-out loss",  "tokens/s",
                                      "s per step", "MFU in %", "memory per rank"};
enum { COLUMNS = sizeof columns / sizeof *columns };

static void write_run(const struct run_record *r, const char *name, uint32_t number, FILE *file) {
    fputs("<tr><td>", file);
    write_dot(name, number, file);
    fputs("</td><td class=\"settings\">", file);
    markup_text(file, r->title);
    for (uint32_t i = 0; i < r->setting_count; i++) {
        fputs(" &middot; ", file);
        markup_text(file, r->settings[i]);
    }
    fputs("</td>", file);
    write_cell(columns[0], r->steps ? r->step[r->steps - 1] : 0, file);
    write_cell(columns[1], last_of(r, LOSS), file);
    write_cell(columns[2], last_of(r, EVAL_LOSS), file);
    write_cell(columns[3], median_of(r, TOKENS_PER_S), file);
    write_cell(columns[4], median_of(r, SECONDS), file);
    write_cell(columns[5], 100 * median_of(r, MFU), file);
    fprintf(file, "<td data-n=\"%s\">", columns[6]);
    write_bytes(file, memory_of(r, false));
    fputs("</td></tr>\n", file);
}

void page_compare(const struct run_record *runs, const char *const *names, uint32_t count, FILE *file) {
    write_begin("Runs compared", file);
    fputs(
        "<h1>Runs compared</h1>\n<div class=\"wide\"><table class=\"runs\"><tr><th>run</th><th>settings</th>",
        file);
    for (int i = 0; i < COLUMNS; i++) fprintf(file, "<th>%s</th>", columns[i]);
    fputs("</tr>\n", file);
    for (uint32_t r = 0; r < count; r++) write_run(&runs[r], names[r], r, file);
    fputs("</table></div>\n<p class=\"legend\">", file);
    for (uint32_t r = 0; r < count; r++) {
        fputs("<span>", file);
        write_dot(names[r], r, file);
        fputs("</span>", file);
    }
    fputs("</p>\n<div class=\"plots\">\n", file);
    for (int i = 0; i < PLOTS; i++)
        for (int k = 0; k < plots[i].curves; k++) {
            char title[64];
            snprintf(title, sizeof title, plots[i].curves > 1 ? "%s: %s" : "%s", plots[i].title,
                     plots[i].curve[k].name);
            struct plot plot = {.title = title,
                                .unit = plots[i].unit,
                                .from_zero = plots[i].from_zero,
                                .unnamed = true,
                                .curves = count};
            for (uint32_t r = 0; r < count; r++)
                plot.curve[r] = curve_of(&runs[r], names[r], plots[i].curve[k].quantity);
            plot_write(&plot, file);
        }
    fputs("</div></body></html>\n", file);
}
