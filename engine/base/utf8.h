/* UTF-8, as RFC 3629 defines it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The number of bytes of the UTF-8 sequence at `at`; 0: not UTF-8. Overlong forms, surrogates and codes past U+10FFFF
 * are not UTF-8. */
static inline size_t utf8_length(const char *at, const char *end) {
    const uint8_t *b = (const uint8_t *)at;
    size_t left = (size_t)(end - at), count;
    if (b[0] < 0x80) return 1;
    if (b[0] < 0xC2 || b[0] > 0xF4) return 0;
    count = b[0] < 0xE0 ? 2 : b[0] < 0xF0 ? 3 : 4;
    if (left < count) return 0;
    for (size_t i = 1; i < count; i++) {
        if ((b[i] & 0xC0) != 0x80) return 0;
    }
    if (b[0] == 0xE0 && b[1] < 0xA0) return 0;
    if (b[0] == 0xED && b[1] > 0x9F) return 0;
    if (b[0] == 0xF0 && b[1] < 0x90) return 0;
    if (b[0] == 0xF4 && b[1] > 0x8F) return 0;
    return count;
}

/* The number of bytes, up to `bytes`, in whole sequences before the first that is none. */
static inline size_t utf8_prefix(const char *text, size_t bytes) {
    const char *at = text, *end = text + bytes;
    for (size_t length; at < end && (length = utf8_length(at, end)); at += length) {
    }
    return (size_t)(at - text);
}

/* The last place up to `at` that is not inside a character. */
static inline size_t utf8_cut(const char *text, size_t at) {
    while (at && ((uint8_t)text[at] & 0xC0) == 0x80) at--;
    return at;
}

/* The bytes of the characters that fit in `bytes`: for "%.*s". */
static inline int utf8_fit(const char *text, size_t bytes) {
    size_t length = strlen(text);
    return (int)(length > bytes ? utf8_cut(text, bytes) : length);
}

/* Copies the text, or the characters of it that fit. */
static inline void utf8_copy(char *out, size_t capacity, const char *text) {
    int bytes = utf8_fit(text, capacity - 1);
    memcpy(out, text, (size_t)bytes);
    out[bytes] = 0;
}

/* Puts ? in place of control characters, which a terminal obeys: for names out of foreign files. */
static inline void utf8_tame(char *text) {
    for (uint8_t *c = (uint8_t *)text; *c; c++) {
        if (c[0] < 0x20 || c[0] == 0x7F) c[0] = '?';
        if (c[0] == 0xC2 && c[1] >= 0x80 && c[1] < 0xA0) c[0] = c[1] = '?';
    }
}

static inline bool utf8_is(const char *text) {
    size_t bytes = strlen(text);
    return utf8_prefix(text, bytes) == bytes;
}
