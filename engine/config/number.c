/* Numbers and sizes as text, the same in every locale. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/numbers/decimal.h"
#include "engine/config/value.h"

const char *config_number_text(double number, char out[32]) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, number);
        if (strtod(out, NULL) == number) break;
    }
    decimal_point(out);
    return out;
}

/* Parses digits, point, digits, exponent; moves *at behind them. It does not use strtod, which depends on the
 * locale. */
static bool decimal(const char **at, double *out) {
    const char *c = *at, *start = c;
    double number = 0, place = 1;
    for (; *c >= '0' && *c <= '9'; c++) number = number * 10 + (*c - '0');
    if (c == start) return false;
    if (*c == '.') {
        for (c++; *c >= '0' && *c <= '9'; c++) number += (*c - '0') * (place /= 10);
    }
    if ((*c == 'e' || *c == 'E') && c[1] >= '0' && c[1] <= '9') {
        int exponent = 0;
        for (c++; *c >= '0' && *c <= '9'; c++)
            exponent = exponent < 100 ? exponent * 10 + (*c - '0') : exponent;
        for (; exponent > 0; exponent--) number *= 10;
    }
    *at = c;
    *out = number;
    return true;
}

bool config_size_parse(const char *text, uint64_t *out_bytes) {
    static const struct {
        const char *name;
        double bytes;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"KiB", 1024.0},
        {"MiB", 1048576.0},
        {"GiB", 1073741824.0},
        {"TiB", 1099511627776.0},
        {"KB", 1e3},
        {"MB", 1e6},
        {"GB", 1e9},
        {"TB", 1e12},
    };
    if (strcasecmp(text, "unlimited") == 0) return *out_bytes = CONFIG_BYTES_UNLIMITED, true;
    double number;
    if (!decimal(&text, &number)) return false;
    while (*text == ' ') text++;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        double bytes = number * units[i].bytes;
        if (strcasecmp(text, units[i].name) != 0) continue;
        if (!(bytes < 9e18)) return false;
        *out_bytes = (uint64_t)bytes;
        return true;
    }
    return false;
}
