/* Whether this run may take what an earlier one has left on the drive ("nvme": {"shadow": true}): go on with it, or
 * write over it. Another run's is refused, unless the user has said so. */
#ifndef ZERO_TOOLS_COMMAND_CLAIM_H
#define ZERO_TOOLS_COMMAND_CLAIM_H

#include "tools/command/identity.h"
#include "tools/command/job.h"

struct claim {
    const struct job *job;
    const zero_engine *engine;
    const struct identity *own;      /* of this configuration and these data; its id is of no matter */
    const struct identity *previous; /* the run's whose directory this is; an empty id: none */
    bool speaks;                     /* rank 0 */
};

/* After commit, before the weights are filled, loaded or recovered. Local: the caller lets the ranks agree. */
zero_status claim_shadow(const struct claim *claim, struct zero_error *error);

#endif
