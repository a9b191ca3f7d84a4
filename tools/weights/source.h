/* The Hugging Face directory that a checkpoint's model came from: checkpoints remember it in notes, and an export takes
 * over the files that belong to the model beside its weights. */
#ifndef ZERO_TOOLS_WEIGHTS_SOURCE_H
#define ZERO_TOOLS_WEIGHTS_SOURCE_H

#include "tools/weights/weights.h"

extern const char *const source_token_ids[]; /* config.json's keys; ends with NULL */

/* The id that the source's config.json gives under one of these keys, as JSON text; NULL: none. */
const char *source_token_id(const struct manifest *manifest, const char *key);

/* Copies the tokenizer's and the generation's files from the source to `directory`. Without a source it copies nothing.
 * If the source is gone, `left` says so. */
zero_status source_copy(struct storage *storage, const struct manifest *manifest, const char *directory,
                        struct zero_error *left, struct zero_error *error);

#endif
