#include "tools/plan/print/figure.h"

#include <math.h>
#include <stdio.h>

static struct figure scaled(double value, const char *unit) {
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
    struct figure out;
    int k = 0;
    while (fabs(value) >= 999.5 && k < 6) value /= 1000, k++;
    int digits = k == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(out.chars, sizeof out.chars, "%.*f %s%s", digits, value, prefixes[k], unit);
    return out;
}

struct figure figure_bytes(double bytes) {
    return scaled(bytes, "B");
}
struct figure figure_count(double count) {
    return scaled(count, "");
}

struct figure figure_seconds(double seconds) {
    static const struct {
        double below, unit;
        const char *name;
    } rows[] = {{1e-3, 1e-6, "us"}, {1, 1e-3, "ms"}, {600, 1, "s"}, {36000, 60, "min"}, {1e30, 3600, "h"}};
    struct figure out;
    int k = 0;
    while (seconds >= rows[k].below && k < 4) k++;
    snprintf(out.chars, sizeof out.chars, "%.3g %s", seconds / rows[k].unit, rows[k].name);
    return out;
}
