/* The host program's texts that checkpoints keep; and a shadow, within NOTES_KEPT_BYTES. */
#ifndef ZERO_ENGINE_NOTE_H
#define ZERO_ENGINE_NOTE_H

#include "engine/engine_internal.h"

enum { NOTES_KEPT_BYTES = 2048 };

/* What notes_pack would need. */
uint64_t notes_bytes(const struct manifest_entries *notes);

/* Each key and text with its final zero, then zeros; zeros alone where there is no room. */
void notes_pack(const struct manifest_entries *notes, char out[NOTES_KEPT_BYTES]);
/* In the place of those that there are; false: no memory. `in` is what notes_pack made. */
bool notes_unpack(const char in[NOTES_KEPT_BYTES], struct manifest_entries *notes);

#endif
