#include "tools/report/draw.h"

#include <math.h>

void markup_text(FILE *file, const char *text) {
    for (const char *c = text; *c; c++) switch (*c) {
        case '<':
            fputs("&lt;", file);
            break;
        case '&':
            fputs("&amp;", file);
            break;
        case '"':
            fputs("&quot;", file);
            break;
        default:
            fputc(*c, file);
        }
}

const char *markup_number(char out[32], double value) {
    if (!(fabs(value) >= 1000 && fabs(value) < 1e15)) return snprintf(out, 32, "%.4g", value), out;
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%.0f", fabs(value)), at = 0;
    if (value < 0) out[at++] = '-';
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0) out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}
