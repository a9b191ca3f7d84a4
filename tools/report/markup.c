#include "tools/report/markup.h"

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
