/* The host program's texts that checkpoints keep; a shadow keeps up to NOTES_PACKED_BYTES of them. */
#pragma once

#include "engine/base/error.h"
#include "engine/checkpoint/manifest.h"

enum { NOTES_PACKED_BYTES = 2048 };

/* NULL: there is none. */
const char *notes_find(const struct manifest_entries *notes, const char *key);

/* `value` NULL removes the note. `packs`: a shadow keeps the notes, so they must fit. Key and value may point into the notes. A
 * failure changes nothing. */
zero_status notes_set(struct manifest_entries *notes, const char *key, const char *value, bool packs,
                      struct zero_error *error);

/* The bytes that notes_pack needs. */
uint64_t notes_bytes(const struct manifest_entries *notes);

/* Each key and text with its final zero, then zeros; zeros alone where the notes do not fit. */
void notes_pack(const struct manifest_entries *notes, char out[NOTES_PACKED_BYTES]);

/* Replaces the notes by those that notes_pack wrote. False: no memory. */
bool notes_unpack(const char in[NOTES_PACKED_BYTES], struct manifest_entries *notes);
