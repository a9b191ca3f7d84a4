/* The host program's texts that checkpoints keep. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine_internal.h"

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

zero_status zero_engine_set_note(zero_engine *e, const char *key, const char *value) {
    if (!key || !*key || strlen(key) >= NAME_BYTES_MAX || (value && strlen(value) >= NOTE_BYTES_MAX))
        return refuse(
            ZERO_E_ARGUMENT,
            "zero_engine_set_note: a key has 1 to %d bytes, a text at most %d; keep more in a file of "
            "your own",
            NAME_BYTES_MAX - 1, NOTE_BYTES_MAX - 1);
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
