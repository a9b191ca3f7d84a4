/* The secret of a job, and what is made from it: keys and tags by keyed BLAKE2b (RFC 7693), from libsodium. A tag proves
 * that its maker knows the key, and that no byte of the message has changed. It does not encrypt the message.
 *
 * Threads: any. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

enum { KEY_BYTES = 32, TAG_BYTES = 16, NONCE_BYTES = 16, SECRET_BYTES_MIN = 16, SECRET_BYTES_MAX = 4096 };

struct key {
    uint8_t byte[KEY_BYTES];
};

struct tag {
    uint8_t byte[TAG_BYTES];
};

/* All zero: a job without a secret, whose key every program knows. */
struct secret {
    struct key key;
    bool given;
};

/* A part of a message. */
struct text {
    const void *at;
    size_t bytes;
};

/* Takes `text`, or if it is NULL the environment variable ZERO_JOB_SECRET, or the file that ZERO_JOB_SECRET_FILE names, without
 * the newline at its end; with none of them, there is no secret. `get`: as launch_getenv_fn. ZERO_E_ARGUMENT: a secret of less
 * than SECRET_BYTES_MIN or more than SECRET_BYTES_MAX bytes, both variables, or a file that cannot be read, or that other users can
 * read. */
zero_status secret_find(const char *text, const char *(*get)(void *user, const char *name), void *user,
                        struct secret *out, struct zero_error *error);

/* False: the system has no random bytes. */
bool secret_nonce(uint8_t out[NONCE_BYTES]);

/* Another key, from this one. Keys of different purposes or different messages tell nothing about each other. */
struct key key_derive(const struct key *key, const char *purpose, struct text message);
struct tag key_tag(const struct key *key, const char *purpose);
bool tag_same(const struct tag *a, const struct tag *b); /* takes the same time wherever they differ */

/* One direction of a connection. The tag of a message also covers how many came before it: a message that is repeated, left out
 * or moved does not fit its tag. */
struct seal {
    struct key key;
    uint64_t count;
};

struct tag seal_next(struct seal *seal, const struct text *parts, uint32_t count);
bool seal_fits(struct seal *seal, const struct text *parts, uint32_t count, const struct tag *tag);
