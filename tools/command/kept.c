#include "tools/command/kept.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/hash.h"
#include "tools/command/new_file.h"

enum { HASH_DIGITS = 16, BEGINNING_BYTES = 64 };

/* "zero machine 1 ": the hash follows. */
static void begin(const struct kept *k, char out[BEGINNING_BYTES]) {
    snprintf(out, BEGINNING_BYTES, "zero %s 1 ", k->kind);
}

static bool cache_directory(char out[KEPT_PATH_BYTES]) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool given = cache && *cache == '/'; /* the XDG rule: other values are ignored */
    if (!given && (!home || *home != '/')) return false;
    return snprintf(out, KEPT_PATH_BYTES, "%s%s/zero", given ? cache : home, given ? "" : "/.cache") <
           KEPT_PATH_BYTES - 64;
}

bool kept_path(const struct kept *k, char out[KEPT_PATH_BYTES]) {
    char directory[KEPT_PATH_BYTES];
    if (!k->directory && !cache_directory(directory)) return false;
    return snprintf(out, KEPT_PATH_BYTES, "%s/%s-%016" PRIx64, k->directory ? k->directory : directory,
                    k->kind, hash_string(HASH_START, k->question)) < KEPT_PATH_BYTES;
}

/* Ignores a file that another user may have written. */
static bool read_own(const char *path, char *out, size_t size) {
    struct stat found;
    int handle = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (handle < 0) return false;
    bool own = fstat(handle, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == geteuid() &&
               !(found.st_mode & (S_IWGRP | S_IWOTH));
    ssize_t length = own ? read(handle, out, size) : -1;
    close(handle);
    if (length <= 0 || (size_t)length == size) return false;
    out[length] = 0;
    return strlen(out) == (size_t)length;
}

/* The text in the file's contents; NULL: it counts as missing. */
static const char *text_of(const struct kept *k, const char *contents) {
    char expected[BEGINNING_BYTES + HASH_DIGITS];
    begin(k, expected);
    size_t begins = strlen(expected) + HASH_DIGITS, question = strlen(k->question);
    if (strlen(contents) <= begins) return NULL;
    const char *rest = contents + begins + 1;
    sprintf(expected + strlen(expected), "%016" PRIx64, hash_string(HASH_START, rest));
    if (strncmp(contents, expected, begins) != 0) return NULL;
    bool same = strncmp(rest, k->question, question) == 0 && rest[question] == '\n';
    return same ? rest + question + 1 : NULL;
}

bool kept_find(const struct kept *k, char *out, size_t size) {
    char path[KEPT_PATH_BYTES];
    size_t capacity = size + strlen(k->question) + BEGINNING_BYTES + HASH_DIGITS;
    char *contents = malloc(capacity);
    const char *text = NULL;
    if (contents && kept_path(k, path) && read_own(path, contents, capacity)) text = text_of(k, contents);
    bool fits = text && strlen(text) < size;
    if (fits) strcpy(out, text);
    free(contents);
    return fits;
}

static void make_cache_directory(void) {
    char directory[KEPT_PATH_BYTES];
    cache_directory(directory);
    *strrchr(directory, '/') = 0;
    mkdir(directory, 0700);
    strcat(directory, "/zero");
    mkdir(directory, 0700);
}

zero_status kept_store(const struct kept *k, const char *text, struct zero_error *error) {
    char path[KEPT_PATH_BYTES], beginning[BEGINNING_BYTES], *rest = NULL, *contents = NULL;
    if (!kept_path(k, path))
        return error_set(error, ZERO_E_IO, "neither HOME nor XDG_CACHE_HOME names a directory");
    if (!k->directory) make_cache_directory();
    begin(k, beginning);
    bool made = asprintf(&rest, "%s\n%s", k->question, text) > 0;
    if (!made) rest = NULL;
    made = made &&
           asprintf(&contents, "%s%016" PRIx64 " %s", beginning, hash_string(HASH_START, rest), rest) > 0;
    zero_status status = made ? new_file_write_private(path, contents, error)
                              : error_set(error, ZERO_E_MEMORY, "no memory for what is kept");
    if (made) free(contents);
    free(rest);
    return status;
}
