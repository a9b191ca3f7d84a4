/* A program whose allocations fail: its own malloc. json-c's calls are the program's, too. Not for a sanitizer, which has its own. */
#ifndef ZERO_TESTS_SCARCE_H
#define ZERO_TESTS_SCARCE_H

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int64_t left = INT64_MAX; /* allocations until one fails; all after it, too, if `lasts` */
static bool lasts;

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);

static bool fails(void) {
    if (left == INT64_MAX || left-- > 0) return false;
    if (!lasts && left < -1) return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes) { return fails() ? NULL : __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { return fails() ? NULL : __libc_calloc(count, bytes); }
void *realloc(void *old, size_t bytes) { return fails() ? NULL : __libc_realloc(old, bytes); }

/* json-c uses the result of its own strdup without a check: the copy of a member's name. */
char *strdup(const char *string) {
    Dl_info caller;
    size_t bytes = strlen(string) + 1;
    bool unchecked = dladdr(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, "json-c");
    void *copy = unchecked ? __libc_malloc(bytes) : malloc(bytes);
    return copy ? memcpy(copy, string, bytes) : NULL;
}

#endif
