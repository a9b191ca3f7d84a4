/* Checks for strict JSON (RFC 8259), before json-c builds the tree. json-c alone is not enough: even in strict mode it
 * accepts NaN, single quotes, remains of comments, invalid UTF-8 and duplicate keys. Pure; allocates nothing that
 * outlives the call. */
#ifndef ZERO_ENGINE_CONFIG_SCAN_H
#define ZERO_ENGINE_CONFIG_SCAN_H

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

/* The same check for text that does not come from a file; it may be any one value. */
zero_status config_scan_value(const char *text, size_t length, const char *name, struct zero_error *error);

#endif
