#include "engine/note.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { NOTES_MAX = 64, NOTE_BYTES_MAX = 4096 };

static void remove_note(struct manifest_entries *notes, const char *key) {
    for (uint32_t i = 0; i < notes->count; i++) {
        if (strcmp(notes->entry[i].key, key) != 0) continue;
        struct manifest_entry gone = notes->entry[i];
        memmove(&notes->entry[i], &notes->entry[i + 1], (notes->count - i - 1) * sizeof gone);
        notes->count--;
        free(gone.key), free(gone.value);
    }
}

static uint64_t bytes_of(const char *key, const char *value) {
    return strlen(key) + (value ? strlen(value) : 0) + 2;
}

uint64_t notes_bytes(const struct manifest_entries *notes) {
    uint64_t bytes = 1; /* an empty key ends them */
    for (uint32_t i = 0; i < notes->count; i++) bytes += bytes_of(notes->entry[i].key, notes->entry[i].value);
    return bytes;
}

void notes_pack(const struct manifest_entries *notes, char out[NOTES_KEPT_BYTES]) {
    char *at = out;
    memset(out, 0, NOTES_KEPT_BYTES);
    if (notes_bytes(notes) > NOTES_KEPT_BYTES)
        return; /* zero_engine_set_note refuses what makes them that, a load warns */
    for (uint32_t i = 0; i < notes->count; i++) {
        at = stpcpy(at, notes->entry[i].key) + 1;
        at = stpcpy(at, notes->entry[i].value) + 1;
    }
}

bool notes_unpack(const char in[NOTES_KEPT_BYTES], struct manifest_entries *notes) {
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

zero_status zero_engine_set_note(zero_engine *e, const char *key, const char *value) {
    if (!key || !*key || strlen(key) >= NAME_BYTES_MAX || (value && strlen(value) >= NOTE_BYTES_MAX))
        return refuse(
            ZERO_E_ARGUMENT,
            "zero_engine_set_note: a key has 1 to %d bytes, a text at most %d; keep more in a file of "
            "your own",
            NAME_BYTES_MAX - 1, NOTE_BYTES_MAX - 1);
    uint64_t packed = notes_bytes(&e->notes) + bytes_of(key, value);
    if (zero_engine_note(e, key)) packed -= bytes_of(key, zero_engine_note(e, key));
    if (value && e->config.nvme_shadow && packed > NOTES_KEPT_BYTES)
        return refuse(
            ZERO_E_ARGUMENT,
            "zero_engine_set_note: a shadow keeps %d bytes of notes, and \"%s\" would make them %" PRIu64
            "; keep more in a file of your own",
            NOTES_KEPT_BYTES, key, packed);
    remove_note(&e->notes, key);
    if (!value) return ZERO_OK;
    if (e->notes.count == NOTES_MAX)
        return refuse(ZERO_E_ARGUMENT, "zero_engine_set_note: there are %d notes; remove one with NULL",
                      NOTES_MAX);
    if (manifest_add_entry(&e->notes, key, value)) return ZERO_OK;
    return refuse(ZERO_E_MEMORY, "zero_engine_set_note: no memory for \"%s\"", key);
}

const char *zero_engine_note(const zero_engine *e, const char *key) {
    for (uint32_t i = 0; key && i < e->notes.count; i++)
        if (strcmp(e->notes.entry[i].key, key) == 0) return e->notes.entry[i].value;
    return NULL;
}
