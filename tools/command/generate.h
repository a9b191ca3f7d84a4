/* Generates text from the current weights. Every rank computes; rank 0 chooses each token. */
#ifndef ZERO_TOOLS_COMMAND_GENERATE_H
#define ZERO_TOOLS_COMMAND_GENERATE_H

#include "tools/command/job.h"

/* Draws up to job->sample tokens after the prompt, by job->sampling; uses at most the last context - 1 tokens. Rank 0
 * prints printable ASCII and dots where tokens are bytes, their text where there is a decoder, else token numbers.
 * ZERO_E_INTERRUPTED: all ranks stopped after the same token. `error` holds this rank's failure; an empty message means
 * that another rank reports the failure. Collective. */
zero_status generate(zero_engine *engine, struct gpt *gpt, const struct job *job, struct zero_error *error);

#endif
