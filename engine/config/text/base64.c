#include "engine/config/text/scan.h"

#include <stdlib.h>
#include <string.h>

enum { LIKELY = 128 }; /* letters */
enum { LEAST = 24 };   /* fewer letters may be a word, and hold no configuration */

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_";

static uint32_t value_of(char letter) {
    uint32_t value = (uint32_t)(strchr(letters, letter) - letters);
    return value < 64 ? value : value - 2; /* - is +, and _ is / */
}

/* The letters at the beginning, if padding alone follows them; else 0. */
static size_t count_letters(const char *text) {
    size_t count = strspn(text, letters);
    return text[count + strspn(text + count, "=\r\n")] ? 0 : count;
}

bool config_base64_like(const char *text) { return count_letters(text) >= LIKELY; }

char *config_base64_text(const char *base64) {
    size_t count = count_letters(base64), at = 0;
    if (count < LEAST || count / 4 * 3 > SCAN_BYTES_MAX) return NULL;
    char *text = malloc(count / 4 * 3 + 3);
    uint32_t bits = 0;
    for (size_t i = 0; text && i < count; i++) {
        bits = bits << 6 | value_of(base64[i]);
        if (i % 4) text[at++] = (char)(bits >> (6 - i % 4 * 2));
    }
    if (text) text[at] = 0;
    if (text && strlen(text) == at && config_scan_is_text(text)) return text;
    free(text);
    return NULL;
}
