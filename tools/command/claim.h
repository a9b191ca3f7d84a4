/* Whether this run may take what an earlier one has left on the drive ("nvme": {"shadow": true}): go on with it, or
 * write over it. Another run's is refused, unless the user has said so. */
#ifndef ZERO_TOOLS_COMMAND_CLAIM_H
#define ZERO_TOOLS_COMMAND_CLAIM_H

#include "tools/command/identity.h"
#include "tools/command/job.h"

struct claim {
    const struct job *job;
    zero_engine *engine;
    bool speaks;              /* rank 0 */
    struct identity own;      /* of this configuration and these data */
    struct identity previous; /* of the run whose directory this is; an empty id: none */
};

/* After commit, before the weights are filled, loaded or recovered. All ranks call it, and then agree on their failures. */
zero_status claim_check(struct claim *claim, struct zero_error *error);

/* Gives the run its id and writes it to RUN/identity. A run that goes on keeps its id: the shadow's, the directory's, or the
 * checkpoint's. On rank 0, after the weights are there. */
zero_status claim_begin(struct claim *claim, const char *directory, struct zero_error *error);

/* Rank 0's id, in the notes of what is saved from now on. Collective. */
zero_status claim_note(struct claim *claim, struct zero_error *error);

/* All steps are done: the next run may write over the shadow. A disk that is full costs the user a question then. */
void claim_end(struct claim *claim, const char *directory);

#endif
