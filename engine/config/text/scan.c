/* A recursive-descent parser for RFC 8259, with a stack of the open objects' keys for the duplicate check. The stack
 * holds decoded keys ("a" and "\u0061" are the same key), in one buffer that grows, and shrinks when an object
 * closes. Of an edited text, the parts that are not strict JSON are replaced on the way. */
#include "engine/config/text/scan.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"

struct scan {
    const char *name;
    const char *text, *at, *end;
    struct zero_error *error;
    uint32_t depth;
    char *keys; /* the keys of the open objects, each with a final zero */
    size_t keys_length, keys_capacity;
    uint64_t content; /* see config_scan_content */
    bool edited;
    FILE *out;          /* edited: strict JSON */
    bool lost;          /* there was no memory for a part of it */
    const char *copied; /* edited: the text up to here is in `out` */
};

static zero_status value(struct scan *s);

static zero_status fail(struct scan *s, const char *at, const char *what) {
    uint64_t line = 1;
    if (s->edited && s->end - at >= 2 && !memcmp(at, "/*", 2))
        what = "a comment has no end: close it with */";
    const char *start = s->text;
    for (const char *c = s->text; c < at; c++) {
        if (*c == '\n') line++, start = c + 1;
    }
    return error_set(s->error, ZERO_E_CONFIG, "%s:%llu:%llu: %s", s->name, (unsigned long long)line,
                     (unsigned long long)(at - start) + 1, what);
}

static bool peek(const struct scan *s, char c) { return s->at < s->end && *s->at == c; }
static bool digit(const struct scan *s) { return s->at < s->end && *s->at >= '0' && *s->at <= '9'; }

/* Continues strict JSON with the text up to `until` and with `instead`; the text goes on at `next`. */
static void replace(struct scan *s, const char *until, const char *instead, const char *next) {
    size_t bytes = (size_t)(until - s->copied);
    if (s->out && (fwrite(s->copied, 1, bytes, s->out) < bytes || fputs(instead, s->out) < 0)) s->lost = true;
    s->copied = next;
}

/* The end of the comment that begins here; NULL: there is none, or it has no end. */
static const char *comment_end(const struct scan *s) {
    bool line = *s->at == '#' || (s->end - s->at >= 2 && !memcmp(s->at, "//", 2));
    if (line) {
        const char *end = memchr(s->at, '\n', (size_t)(s->end - s->at));
        return end ? end : s->end;
    }
    if (s->end - s->at < 4 || memcmp(s->at, "/*", 2)) return NULL;
    const char *end = memmem(s->at + 2, (size_t)(s->end - s->at) - 2, "*/", 2);
    return end ? end + 2 : NULL;
}

static void space(struct scan *s) {
    const char *end;
    for (;;) {
        while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r'))
            s->at++;
        if (!s->edited || s->at == s->end || !(end = comment_end(s))) return;
        replace(s, s->at, " ", end);
        s->at = end;
    }
}

static zero_status keep(struct scan *s, const char *bytes, size_t count) {
    if (s->keys_length + count > s->keys_capacity) {
        size_t capacity = 2 * (s->keys_length + count) + 256;
        char *keys = realloc(s->keys, capacity);
        if (!keys) return error_set(s->error, ZERO_E_MEMORY, "%s: no memory to check the keys", s->name);
        s->keys = keys, s->keys_capacity = capacity;
    }
    memcpy(s->keys + s->keys_length, bytes, count);
    s->keys_length += count, s->content += count;
    return ZERO_OK;
}

static zero_status keep_code(struct scan *s, uint32_t code) {
    char out[4];
    if (code < 0x80) return out[0] = (char)code, keep(s, out, 1);
    size_t count = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const uint8_t lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = count - 1; i > 0; i--, code >>= 6) out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)(lead[count] | code);
    return keep(s, out, count);
}

static bool hex4(struct scan *s, uint32_t *out) {
    uint32_t code = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        if (s->at >= s->end) return false;
        char c = *s->at;
        if (c >= '0' && c <= '9')
            code = code * 16 + (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            code = code * 16 + (uint32_t)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F')
            code = code * 16 + (uint32_t)(c - 'A' + 10);
        else
            return false;
    }
    *out = code;
    return true;
}

/* Decodes a \u escape; s->at is behind the 'u'. */
static zero_status unicode(struct scan *s, const char *start) {
    uint32_t code, low;
    if (!hex4(s, &code)) return fail(s, start, "\\u needs four hexadecimal digits");
    if (code == 0) return fail(s, start, "\\u0000 cannot stand in a key or a path");
    if (code >= 0xDC00 && code <= 0xDFFF) return fail(s, start, "a low surrogate without its high surrogate");
    if (code >= 0xD800 && code <= 0xDBFF) {
        if (s->end - s->at < 2 || s->at[0] != '\\' || s->at[1] != 'u')
            return fail(s, start, "a high surrogate without its low surrogate");
        s->at += 2;
        if (!hex4(s, &low) || low < 0xDC00 || low > 0xDFFF)
            return fail(s, start, "a high surrogate without its low surrogate");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    return keep_code(s, code);
}

static zero_status escape(struct scan *s) {
    static const char from[] = "\"\\/bfnrt'", to[] = "\"\\/\b\f\n\r\t'";
    const char *start = s->at++;
    if (s->at >= s->end) return fail(s, start, "a string has no end");
    if (*s->at == 'u') return s->at++, unicode(s, start);
    const char *found = *s->at ? strchr(from, *s->at) : NULL;
    if (!found || (*found == '\'' && !s->edited))
        return fail(s, start, "an unknown escape: write \\\\ for a backslash");
    if (*found == '\'') replace(s, start, "'", s->at + 1);
    s->at++;
    return keep(s, &to[found - from], 1);
}

/* Appends the decoded text, with a final zero, to s->keys. */
static zero_status string(struct scan *s) {
    const char *start = s->at++;
    bool single = *start == '\'';
    if (single) replace(s, start, "\"", s->at);
    while (s->at < s->end && *s->at != *start) {
        zero_status status;
        if ((uint8_t)*s->at < 0x20)
            return fail(s, s->at, "a control character in a string: write it as \\n, \\t or \\u00XX");
        if (*s->at == '\\') {
            status = escape(s);
        } else {
            size_t bytes = utf8_length(s->at, s->end);
            if (bytes == 0) return fail(s, s->at, "this is not UTF-8: save the file as UTF-8");
            if (*s->at == '"') replace(s, s->at, "\\\"", s->at + 1);
            status = keep(s, s->at, bytes);
            s->at += bytes;
        }
        if (status) return status;
    }
    if (s->at >= s->end) return fail(s, start, "a string has no end");
    if (single) replace(s, s->at, "\"", s->at + 1);
    s->at++;
    return keep(s, "", 1);
}

/* Python's json writes a number without end as this word. */
static bool infinity(struct scan *s) {
    static const char word[] = "Infinity";
    if (!s->edited || (size_t)(s->end - s->at) < sizeof word - 1 || memcmp(s->at, word, sizeof word - 1))
        return false;
    replace(s, s->at, "1e999", s->at + sizeof word - 1);
    s->at += sizeof word - 1;
    return true;
}

static zero_status number(struct scan *s) {
    const char *start = s->at;
    if (peek(s, '-')) s->at++;
    if (infinity(s)) return ZERO_OK;
    if (!digit(s)) return fail(s, start, "a number needs a digit here; NaN and Infinity are not JSON");
    if (peek(s, '0')) {
        s->at++;
        if (digit(s)) return fail(s, start, "a number may not start with 0");
    }
    while (digit(s)) s->at++;
    if (peek(s, '.')) {
        s->at++;
        if (!digit(s)) return fail(s, start, "a number needs a digit after the point");
        while (digit(s)) s->at++;
    }
    if (peek(s, 'e') || peek(s, 'E')) {
        s->at++;
        if (peek(s, '+') || peek(s, '-')) s->at++;
        if (!digit(s)) return fail(s, start, "a number needs a digit in the exponent");
        while (digit(s)) s->at++;
    }
    if (s->at - start > 64) return fail(s, start, "a number of more than 64 characters");
    return ZERO_OK;
}

static zero_status word(struct scan *s) {
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t length = strlen(words[i]);
        if ((size_t)(s->end - s->at) >= length && memcmp(s->at, words[i], length) == 0) {
            s->at += length;
            return ZERO_OK;
        }
    }
    if (infinity(s)) return ZERO_OK;
    switch (*s->at) {
    case '\'':
        return fail(s, s->at, "strings stand in double quotes");
    case '/':
    case '#':
        return fail(s, s->at, "JSON has no comments: remove it");
    case 'N':
    case 'I':
    case '+':
        return fail(s, s->at, "NaN, Infinity and +1 are not JSON: write a finite number");
    case 'T':
    case 'F':
        return fail(s, s->at, "true and false are written in lower case");
    case ',':
    case ']':
    case '}':
        return fail(s, s->at,
                    s->edited ? "a value is missing here"
                              : "a value is missing here; JSON has no trailing commas");
    default:
        return fail(s, s->at,
                    "a value is expected here: an object, a list, a string, a number, true, false or null");
    }
}

/* Whether the key at s->keys + at equals an earlier key of the same object; these keys begin at `first`. */
static bool duplicate(const struct scan *s, size_t first, size_t at) {
    for (size_t i = first; i < at; i += strlen(s->keys + i) + 1) {
        if (strcmp(s->keys + i, s->keys + at) == 0) return true;
    }
    return false;
}

static zero_status bare_key(struct scan *s) {
    const char *start = s->at;
    while (s->at < s->end && (isalnum((unsigned char)*s->at) || (*s->at && strchr("_-.$", *s->at)))) s->at++;
    if (s->at == start) return fail(s, s->at, "a key is expected here");
    replace(s, start, "\"", start);
    replace(s, s->at, "\"", s->at);
    zero_status status = keep(s, start, (size_t)(s->at - start));
    return status ? status : keep(s, "", 1);
}

static zero_status key(struct scan *s) {
    if (peek(s, '"')) return string(s);
    if (s->edited) return peek(s, '\'') ? string(s) : bare_key(s);
    if (peek(s, '\'')) return fail(s, s->at, "strings stand in double quotes");
    if (peek(s, '}')) return fail(s, s->at, "a key is missing here; JSON has no trailing commas");
    return fail(s, s->at, "a key in double quotes is expected here; JSON has no comments");
}

static zero_status member(struct scan *s, size_t first) {
    size_t at = s->keys_length;
    const char *start = s->at;
    TRY(key(s));
    if (duplicate(s, first, at)) {
        char what[160];
        snprintf(what, sizeof what, "key \"%.*s\" stands twice in one object: remove one",
                 utf8_fit(s->keys + at, 80), s->keys + at);
        return fail(s, start, what);
    }
    space(s);
    if (!peek(s, ':')) return fail(s, s->at, "a colon is expected after the key");
    s->at++;
    space(s);
    return value(s);
}

/* Whether `close` follows the comma that stands here. */
static bool ends(const struct scan *s, char close) {
    struct scan ahead = *s;
    ahead.out = NULL;
    ahead.at++;
    space(&ahead);
    return peek(&ahead, close);
}

/* Parses members or elements up to `close`; s->at is behind the opening bracket. */
static zero_status sequence(struct scan *s, char close, bool object) {
    size_t first = s->keys_length;
    uint32_t count = 0;
    space(s);
    if (peek(s, close)) return s->at++, ZERO_OK;
    for (;;) {
        if (object && ++count > SCAN_KEYS_MAX) return fail(s, s->at, "an object has more than 1024 keys");
        TRY(object ? member(s, first) : value(s));
        space(s);
        if (peek(s, close)) break;
        if (!peek(s, ','))
            return fail(s, s->at, object ? "a comma or } is expected here" : "a comma or ] is expected here");
        bool last = s->edited && ends(s, close);
        if (last) replace(s, s->at, "", s->at + 1);
        s->at++;
        space(s);
        if (last) break;
    }
    s->at++;
    s->keys_length = first;
    return ZERO_OK;
}

static zero_status nested(struct scan *s) {
    if (s->depth == SCAN_DEPTH_MAX) return fail(s, s->at, "objects and lists are nested more than 32 deep");
    s->depth++;
    bool object = *s->at++ == '{';
    zero_status status = sequence(s, object ? '}' : ']', object);
    s->depth--;
    return status;
}

static zero_status value(struct scan *s) {
    s->content += peek(s, 'n') ? 1 : 2;
    if (s->at >= s->end) return fail(s, s->at, "the text ends too early");
    if (*s->at == '{' || *s->at == '[') return nested(s);
    if (*s->at == '-' || digit(s)) return number(s);
    if (*s->at != '"' && !(s->edited && *s->at == '\'')) return word(s);
    size_t before = s->keys_length;
    zero_status status = string(s);
    s->keys_length = before;
    return status;
}

static zero_status whole_value(struct scan *s) {
    space(s);
    TRY(value(s));
    space(s);
    return s->at < s->end ? fail(s, s->at, "text after the end of the value: remove it") : ZERO_OK;
}

static zero_status document(struct scan *s) {
    if (s->end - s->at > SCAN_BYTES_MAX)
        return fail(s, s->at, "the text is larger than 16 MiB: this is not a configuration");
    const char *nul = memchr(s->at, 0, (size_t)(s->end - s->at));
    if (nul) return fail(s, nul, "a NUL byte: this is not a JSON file");
    bool marked = s->end - s->at >= 3 && memcmp(s->at, "\xEF\xBB\xBF", 3) == 0;
    if (marked && s->edited) s->text = s->copied = s->at += 3;
    if (marked && !s->edited) return fail(s, s->at, "a byte order mark: save the file as UTF-8 without one");
    space(s);
    if (s->at >= s->end) return fail(s, s->at, "the text is empty: a configuration is one JSON object");
    if (*s->at != '{') return fail(s, s->at, "a configuration is one JSON object: it starts with {");
    TRY(value(s));
    space(s);
    return s->at < s->end ? fail(s, s->at, "text after the end of the object: remove it") : ZERO_OK;
}

static zero_status scan(zero_status (*part)(struct scan *), const char *text, size_t length, const char *name,
                        uint64_t *out_content, struct zero_error *error) {
    struct scan s = {.name = name, .text = text, .at = text, .end = text + length, .error = error};
    zero_status status = part(&s);
    free(s.keys);
    *out_content = s.content;
    return status;
}

zero_status config_scan(const char *text, size_t length, const char *name, struct zero_error *error) {
    uint64_t unused;
    return scan(document, text, length, name, &unused, error);
}

zero_status config_scan_edited(const char *text, size_t length, const char *name, char **out,
                               struct zero_error *error) {
    size_t bytes;
    *out = NULL;
    FILE *strict = open_memstream(out, &bytes);
    if (!strict) return error_set(error, ZERO_E_MEMORY, "%s: no memory to check it", name);
    struct scan s = {.name = name, .text = text, .at = text, .end = text + length, .error = error};
    s.edited = true, s.out = strict, s.copied = text;
    zero_status status = document(&s);
    replace(&s, s.at, "", s.at);
    free(s.keys);
    s.lost |= fclose(strict) != 0 || !*out;
    if (s.lost && !status) status = error_set(error, ZERO_E_MEMORY, "%s: no memory to check it", name);
    if (status) free(*out), *out = NULL;
    return status;
}

bool config_scan_is_text(const char *text) {
    struct scan s = {.text = text, .at = text, .end = text + strlen(text), .edited = true};
    if (strncmp(text, "\xEF\xBB\xBF", 3) == 0) s.at += 3;
    space(&s);
    return peek(&s, '{');
}

zero_status config_scan_value(const char *text, size_t length, const char *name, struct zero_error *error) {
    uint64_t unused;
    return scan(whole_value, text, length, name, &unused, error);
}

zero_status config_scan_content(const char *text, size_t length, uint64_t *out_content,
                                struct zero_error *error) {
    return scan(whole_value, text, length, "configuration", out_content, error);
}
