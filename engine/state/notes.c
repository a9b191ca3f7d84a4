#include "engine/state/notes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/limits.h"
#include "engine/base/utf8.h"

enum { NOTES_MAX = 64, NOTE_BYTES_MAX = 4096 };

static uint32_t index_of(const struct manifest_entries *notes, const char *key) {
    uint32_t i = 0;
    while (i < notes->count && strcmp(notes->entry[i].key, key) != 0) i++;
    return i;
}

const char *notes_find(const struct manifest_entries *notes, const char *key) {
    uint32_t i = key ? index_of(notes, key) : notes->count;
    return i < notes->count ? notes->entry[i].value : NULL;
}

static uint64_t bytes_of(const char *key, const char *value) {
    return strlen(key) + (value ? strlen(value) : 0) + 2;
}

uint64_t notes_bytes(const struct manifest_entries *notes) {
    uint64_t bytes = 1; /* an empty key ends them */
    for (uint32_t i = 0; i < notes->count; i++) bytes += bytes_of(notes->entry[i].key, notes->entry[i].value);
    return bytes;
}

void notes_pack(const struct manifest_entries *notes, char out[NOTES_PACKED_BYTES]) {
    char *at = out;
    memset(out, 0, NOTES_PACKED_BYTES);
    if (notes_bytes(notes) > NOTES_PACKED_BYTES)
        return; /* zero_engine_set_note refuses what makes them that, a load warns */
    for (uint32_t i = 0; i < notes->count; i++) {
        at = stpcpy(at, notes->entry[i].key) + 1;
        at = stpcpy(at, notes->entry[i].value) + 1;
    }
}

bool notes_unpack(const char in[NOTES_PACKED_BYTES], struct manifest_entries *notes) {
    struct manifest_entries found = {0};
    bool whole = true;
    for (const char *key = in; whole && *key;) {
        const char *value = key + strlen(key) + 1;
        whole = manifest_add_entry(&found, key, value);
        key = value + strlen(value) + 1;
    }
    struct manifest_entries *gone = whole ? notes : &found;
    struct manifest_entries old = *gone;
    if (whole) *notes = found;
    manifest_free_entries(&old);
    return whole;
}

static zero_status check(const struct manifest_entries *notes, const char *key, const char *value, bool packs,
                         struct zero_error *error) {
    if (!key || !*key || strlen(key) >= NAME_BYTES_MAX || (value && strlen(value) >= NOTE_BYTES_MAX))
        return error_set(
            error, ZERO_E_ARGUMENT,
            "zero_engine_set_note: a key has 1 to %d bytes, a text at most %d; keep more in a file of "
            "your own",
            NAME_BYTES_MAX - 1, NOTE_BYTES_MAX - 1);
    if (!utf8_is(key) || (value && !utf8_is(value)))
        return error_set(error, ZERO_E_ARGUMENT,
                         "zero_engine_set_note: keys and texts must be UTF-8, and those of \"%s\" are not",
                         key);
    const char *before = notes_find(notes, key);
    uint64_t packed = notes_bytes(notes) + bytes_of(key, value);
    if (before) packed -= bytes_of(key, before);
    if (value && packs && packed > NOTES_PACKED_BYTES)
        return error_set(
            error, ZERO_E_ARGUMENT,
            "zero_engine_set_note: a shadow keeps %d bytes of notes, and \"%s\" would make them %" PRIu64
            "; keep more in a file of your own",
            NOTES_PACKED_BYTES, key, packed);
    if (value && !before && notes->count == NOTES_MAX)
        return error_set(error, ZERO_E_ARGUMENT,
                         "zero_engine_set_note: there are %d notes; remove one with NULL", NOTES_MAX);
    return ZERO_OK;
}

/* The new note is copied before the old one is freed: the host may hand out a text that it got from notes_find. */
zero_status notes_set(struct manifest_entries *notes, const char *key, const char *value, bool packs,
                      struct zero_error *error) {
    TRY(check(notes, key, value, packs, error));
    uint32_t before = index_of(notes, key), count = notes->count;
    if (value && !manifest_add_entry(notes, key, value))
        return error_set(error, ZERO_E_MEMORY, "zero_engine_set_note: no memory for \"%s\"", key);
    if (before == count) return ZERO_OK;
    struct manifest_entry gone = notes->entry[before];
    memmove(&notes->entry[before], &notes->entry[before + 1], (notes->count - before - 1) * sizeof gone);
    notes->count--;
    free(gone.key), free(gone.value);
    return ZERO_OK;
}
