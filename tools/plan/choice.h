/* The choices that `zero plan` and `zero sim` have in common. */
#pragma once

#include "engine/config/config.h"
#include "tools/plan/shapes.h"

/* Returns the text of a file, for edits; the caller frees it. NULL: the file cannot be read. */
char *choice_text(const char *path);

/* The same for DIRECTORY/config.json, which must be a regular file. */
char *choice_text_in(const char *directory);

/* The text of the model block that `model`, a path as in choice_model, gives; the caller frees it. NULL: it cannot be read. */
char *choice_block(const char *model);

/* `model`: a name of the table, or the path of a Hugging Face config.json, which is read into `config`; NULL: the
 * configuration's model block. `sequence`: tokens per sequence; 0: the model's. */
zero_status choice_model(const char *model, uint64_t sequence, struct config *config, struct shapes *out,
                         struct zero_error *error);

/* The blocks of a recomputed segment, from activation_checkpointing and the model block. 0: no recomputation. */
uint32_t choice_recompute(const struct config *config, uint64_t layers);
zero_tier choice_checkpoints(const struct config *config); /* of the inputs of segments */
