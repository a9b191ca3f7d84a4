/* Any bytes as a manifest, with the checksum that belongs to them. What is let through, printed and read again, is the
 * same text; its files cannot leave the directory; with a failure comes a message. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/manifest.h"
#include "kernels/checksum.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition, const char *what, const struct zero_error *error) {
    if (condition) return;
    fprintf(stderr, "%s: %s\n", what, error->message);
    abort();
}

static void print_again(const struct manifest *m, struct zero_error *error) {
    struct manifest again;
    size_t bytes, more;
    char *text = manifest_print(m, &bytes);
    require(text && !manifest_parse(text, bytes, "again", &again, error), "parse again", error);
    char *other = manifest_print(&again, &more);
    require(other && more == bytes && memcmp(text, other, bytes) == 0, "the same text", error);
    manifest_free(&again);
    free(other);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char key[] = "\"checksum\": \"";
    struct manifest manifest;
    struct zero_error error;
    error_clear(&error);
    char *text = malloc(size + sizeof key + CHECKSUM_DIGITS + 4);
    if (size) memcpy(text, data, size);
    strcpy(text + size, key);
    checksum_print(checksum(text, size), text + size + strlen(key));
    strcat(text + size, "\"}\n");
    zero_status status = manifest_parse(text, size + strlen(text + size), "fuzz", &manifest, &error);
    require((status != ZERO_OK) == (error.message[0] != 0), "a failure and a message go together", &error);
    if (!status) {
        require(manifest.files == manifest.ranks && manifest.files > 0, "a file per rank", &error);
        print_again(&manifest, &error);
        manifest_free(&manifest);
    }
    free(text);
    return 0;
}
