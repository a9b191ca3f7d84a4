#include "engine/comm/tcp/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(KEY_BYTES >= crypto_generichash_KEYBYTES_MIN && KEY_BYTES <= crypto_generichash_KEYBYTES_MAX &&
                   KEY_BYTES <= crypto_generichash_BYTES_MAX && TAG_BYTES >= crypto_generichash_BYTES_MIN,
               "BLAKE2b has keys and hashes of these sizes");

/* ---- the secret ---- */

/* The bytes of the file, at most `most`; -1 with errno. A file that others may read is refused with EPERM. */
static ssize_t read_file(const char *path, char *out, size_t most) {
    struct stat stat;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return -1;
    ssize_t got = -1;
    if (fstat(fd, &stat) == 0) {
        errno = S_ISREG(stat.st_mode) ? EPERM : EINVAL;
        if (S_ISREG(stat.st_mode) && !(stat.st_mode & (S_IRWXG | S_IRWXO))) got = read(fd, out, most);
    }
    int why = errno;
    close(fd);
    errno = why;
    return got;
}

static zero_status take(const char *text, size_t bytes, const char *from, struct secret *out,
                        struct zero_error *error) {
    if (bytes < SECRET_BYTES_MIN || bytes > SECRET_BYTES_MAX)
        return error_set(error, ZERO_E_ARGUMENT,
                         "%s has %zu bytes: a job's secret has %d to %d; make one with: openssl rand -hex 32",
                         from, bytes, (int)SECRET_BYTES_MIN, (int)SECRET_BYTES_MAX);
    crypto_generichash(out->key.byte, KEY_BYTES, (const unsigned char *)text, bytes, NULL, 0);
    out->given = true;
    return ZERO_OK;
}

static zero_status take_file(const char *path, struct secret *out, struct zero_error *error) {
    char text[SECRET_BYTES_MAX + 2];
    ssize_t got = read_file(path, text, sizeof text);
    if (got < 0)
        return error_set(error, ZERO_E_ARGUMENT, "ZERO_JOB_SECRET_FILE: %s: %s", path,
                         errno == EPERM    ? "other users can read it: chmod 600"
                         : errno == EINVAL ? "it is not a file"
                                           : strerror(errno));
    if (got > 0 && text[got - 1] == '\n') got--;
    zero_status status = take(text, (size_t)got, path, out, error);
    sodium_memzero(text, sizeof text);
    return status;
}

zero_status secret_find(const char *text, const char *(*get)(void *user, const char *name), void *user,
                        struct secret *out, struct zero_error *error) {
    static const char variable[] = "ZERO_JOB_SECRET";
    const char *path = text ? NULL : get(user, "ZERO_JOB_SECRET_FILE");
    const char *value = text ? NULL : get(user, variable);
    *out = (struct secret){0};
    /* It chooses functions for this processor. It may be called any number of times. */
    if (sodium_init() < 0) return error_set(error, ZERO_E_INTERNAL, "libsodium cannot be initialized");
    if (text) return take(text, strlen(text), "zero_runtime.secret", out, error);
    if (value && path)
        return error_set(error, ZERO_E_ARGUMENT,
                         "ZERO_JOB_SECRET and ZERO_JOB_SECRET_FILE are both set: unset one of them");
    if (value) return take(value, strlen(value), variable, out, error);
    return path ? take_file(path, out, error) : ZERO_OK;
}

bool secret_nonce(uint8_t out[NONCE_BYTES]) { return getrandom(out, NONCE_BYTES, 0) == NONCE_BYTES; }

/* ---- keys and tags ---- */

static void hash(const struct key *key, const struct text *parts, uint32_t count, uint8_t *out,
                 size_t bytes) {
    crypto_generichash_state state;
    crypto_generichash_init(&state, key->byte, sizeof key->byte, bytes);
    for (uint32_t i = 0; i < count; i++) crypto_generichash_update(&state, parts[i].at, parts[i].bytes);
    crypto_generichash_final(&state, out, bytes);
}

/* The purpose is hashed with its final zero, so that no purpose is the beginning of another. */
struct key key_derive(const struct key *key, const char *purpose, struct text message) {
    struct key out;
    hash(key, (struct text[]){{purpose, strlen(purpose) + 1}, message}, 2, out.byte, sizeof out.byte);
    return out;
}

struct tag key_tag(const struct key *key, const char *purpose) {
    struct tag out;
    hash(key, &(struct text){purpose, strlen(purpose) + 1}, 1, out.byte, sizeof out.byte);
    return out;
}

bool tag_same(const struct tag *a, const struct tag *b) { return sodium_memcmp(a, b, sizeof *a) == 0; }

struct tag seal_next(struct seal *seal, const struct text *parts, uint32_t count) {
    enum { PARTS_MAX = 4 };
    struct text all[PARTS_MAX + 1] = {{&seal->count, sizeof seal->count}};
    struct tag out;
    memcpy(all + 1, parts, count * sizeof *parts);
    hash(&seal->key, all, count + 1, out.byte, sizeof out.byte);
    seal->count++;
    return out;
}

bool seal_fits(struct seal *seal, const struct text *parts, uint32_t count, const struct tag *tag) {
    struct tag own = seal_next(seal, parts, count);
    return tag_same(&own, tag);
}
