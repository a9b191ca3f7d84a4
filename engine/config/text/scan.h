/* Checks text before json-c builds the tree: for strict JSON (RFC 8259), or for JSON that people edit, which it rewrites as strict
 * JSON. json-c alone is not enough: even in strict mode it
 * accepts NaN, single quotes, remains of comments, invalid UTF-8 and duplicate keys. Pure; allocates nothing that
 * outlives the call. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

enum {
    SCAN_BYTES_MAX = 16 << 20, /* a configuration has a few kilobytes; a larger file is a wrong file */
    SCAN_DEPTH_MAX = 32,
    SCAN_KEYS_MAX = 1024, /* per object: the duplicate check is quadratic */
};

/* The document must be one object. On failure the message starts with "name:line:column: "; columns count bytes
 * from 1. */
zero_status config_scan(const char *text, size_t length, const char *name, struct zero_error *error);

/* As config_scan, for the configuration of a user. It may have comments (#, //, and as in C), a comma behind a last member, keys of
 * letters without quotes, strings in single quotes, a byte order mark, and Infinity, which Python's json writes. *out: the same as
 * strict JSON; the caller frees it. */
zero_status config_scan_edited(const char *text, size_t length, const char *name, char **out,
                               struct zero_error *error);

/* Whether the text is an object of config_scan_edited, and no path: { is behind spaces and comments. */
bool config_scan_is_text(const char *text);

/* The same check for text that does not come from a file; it may be any one value. */
zero_status config_scan_value(const char *text, size_t length, const char *name, struct zero_error *error);

/* As config_scan_value. *out_content: 1 for each null, 2 for each other value, and the bytes of keys and strings, each with a final zero. */
zero_status config_scan_content(const char *text, size_t length, uint64_t *out_content,
                                struct zero_error *error);

/* ---- base64.c: a configuration in base64, as DeepSpeed's tuner hands it to a program ---- */
/* The text behind the base64, with + and / or with - and _; the caller frees it. NULL: this is no base64 of an object, it is longer than
 * a configuration may be, or there is no memory. */
char *config_base64_text(const char *base64);

/* Whether a text is more likely base64, whole or not, than a path: it may hold a secret, and no message repeats it. */
bool config_base64_like(const char *text);
