#include "tools/report/draw.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum {
    WIDTH = 1160,
    LEFT = 74,
    RIGHT = 10,
    TOP = 26,
    STRIP = 16,
    GAP = 3,
    HEAD = 22,
    RANKS_MAX = 4,
    TICKS_ABOUT = 8,
    BOXES_MAX = 8000
};

/* The color of a box: by the first word of the operation's name. */
static const struct {
    const char *word, *class;
} kinds[] = {{"forward", "k0"}, {"backward", "k1"}, {"GATHER", "k2"}, {"REDUCE", "k3"}, {"UPDATE", "k4"},
             {"FETCH", "k5"},   {"STORE", "k6"},    {"COPY", "k7"},   {"CLEAR", "k7"},  {"AGREE", "k8"}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const char *class_of(const char *name) {
    for (int i = 0; i < KINDS; i++)
        if (strncmp(name, kinds[i].word, strlen(kinds[i].word)) == 0) return kinds[i].class;
    return "k8";
}

/* A stream without an operation on any rank gets no strip: *out_row[s] < 0. */
static int lay_rows(const struct run_record *r, int rows[16]) {
    int count = 0;
    for (uint32_t s = 0; s < 16; s++) rows[s] = -1;
    for (uint32_t i = 0; i < r->span_count; i++) rows[r->span[i].stream] = 0;
    for (uint32_t s = 0; s < r->streams; s++)
        if (rows[s] == 0) rows[s] = count++;
    return count;
}

static void write_axis(double end_us, double height, FILE *file) {
    double tick = tick_of(end_us, TICKS_ABOUT);
    for (double at = 0; at <= end_us; at += tick) {
        double x = LEFT + (WIDTH - LEFT - RIGHT) * at / end_us;
        fprintf(file,
                "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%.1f\"/>"
                "<text class=\"tick\" x=\"%.1f\" y=\"14\" text-anchor=\"%s\">%.6g ms</text>\n",
                x, TOP - 6, x, height, x, x > WIDTH - 40 ? "end" : "middle", at / 1000);
    }
}

static void write_box(const struct span *s, double y, double per_us, FILE *file) {
    fprintf(file, "<rect class=\"%s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\"><title>",
            class_of(s->name), LEFT + s->began_us * per_us, y, fmax(0.4, s->took_us * per_us), STRIP);
    markup_text(file, s->name);
    fprintf(file, ", %.3f ms from %.3f ms</title></rect>\n", s->took_us / 1000, s->began_us / 1000);
}

static void write_names(const struct run_record *r, uint32_t rank, const int rows[16], double top,
                        FILE *file) {
    fprintf(file, "<text class=\"name\" x=\"0\" y=\"%.1f\">rank %" PRIu32 "</text>\n", top - 6, rank);
    for (uint32_t s = 0; s < r->streams; s++) {
        if (rows[s] < 0) continue;
        fprintf(file, "<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", LEFT - 8,
                top + rows[s] * (STRIP + GAP) + 12);
        markup_text(file, r->stream[s]);
        fputs("</text>\n", file);
    }
}

void strips_write(const struct run_record *r, FILE *file) {
    int rows[16], count = lay_rows(r, rows);
    uint32_t ranks = r->ranks < RANKS_MAX ? r->ranks : RANKS_MAX, boxes = 0;
    double end_us = 1, block = HEAD + count * (STRIP + GAP), height = TOP + ranks * block + 6;
    for (uint32_t i = 0; i < r->span_count; i++)
        end_us = fmax(end_us, r->span[i].began_us + r->span[i].took_us);
    double per_us = (WIDTH - LEFT - RIGHT) / end_us;
    fprintf(file, "<svg viewBox=\"0 0 %d %.0f\" role=\"img\">\n", WIDTH, height);
    write_axis(end_us, height, file);
    for (uint32_t rank = 0; rank < ranks; rank++) write_names(r, rank, rows, TOP + rank * block + HEAD, file);
    for (uint32_t i = 0; i < r->span_count && boxes < BOXES_MAX; i++) {
        const struct span *s = &r->span[i];
        if (s->rank >= ranks) continue;
        write_box(s, TOP + s->rank * block + HEAD + rows[s->stream] * (STRIP + GAP), per_us, file);
        boxes++;
    }
    fputs("</svg>\n<p class=\"legend\">", file);
    for (int i = 0; i < KINDS; i++)
        fprintf(file,
                "<span><svg class=\"dot\" viewBox=\"0 0 10 10\"><rect class=\"%s\" width=\"10\" "
                "height=\"10\"/></svg>%s</span> ",
                kinds[i].class, kinds[i].word);
    fputs("</p>\n", file);
    if (boxes == BOXES_MAX || r->ranks > ranks)
        fprintf(file,
                "<p class=\"note\">Shown: the first %" PRIu32
                " ranks, at most %d operations; trace.json has all.</p>\n",
                ranks, BOXES_MAX);
}
