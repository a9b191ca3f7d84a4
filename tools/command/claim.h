/* Decides how a run begins, and whether it may take the shadow that an earlier run left on the drive ("nvme": {"shadow": true}):
 * continue from it, or overwrite it. A shadow of another run is refused unless the user named it or discarded it. */
#ifndef ZERO_TOOLS_COMMAND_CLAIM_H
#define ZERO_TOOLS_COMMAND_CLAIM_H

#include "tools/command/identity.h"
#include "tools/command/job.h"

/* How a run begins: as the job says; or, with --continue, from checkpoint or shadow, whichever is later; or anew if
 * there is neither. */
enum claim_way { CLAIM_ANEW, CLAIM_RESUME, CLAIM_RECOVER };

struct claim {
    const struct job *job;
    zero_engine *engine;
    bool speaks;              /* rank 0 */
    enum claim_way way;       /* set by claim_check, the same on all ranks */
    const char *products;     /* identity_describe's */
    struct identity own;      /* of this configuration and this data */
    struct identity previous; /* of the run that used this directory before; an empty id: none */
    bool same_run; /* it begins anew with the id of `previous`, whose shadow stays; only rank 0 sets it */
};

/* Whether the run may write in its directory, which it has locked. ZERO_E_ARGUMENT: it holds an earlier run, and the job does not
 * say what to do with that; ZERO_E_IO: one of the run's file names is taken by a file that no run made. `is_new`: the directory was
 * not there before; then --continue, too, finds no earlier run. Called on rank 0. */
zero_status claim_directory(const struct job *job, const char *directory, bool is_new,
                            struct zero_error *error);

/* Called after commit and before the weights are filled, loaded or recovered. All ranks call it and then agree on their
 * failures. Chooses the way. */
zero_status claim_check(struct claim *claim, struct zero_error *error);

/* ZERO_E_ARGUMENT: the run goes on by --continue, and the checkpoint was made with other settings. Called on rank 0 once the
 * checkpoint is loaded, before a file of the run is changed. */
zero_status claim_same(const struct claim *claim, struct zero_error *error);

/* Gives the run its id and writes it to RUN/identity. A run that continues an earlier one keeps its id: the id of the
 * shadow, of the directory, or of the checkpoint. So does a run that --continue begins anew while a shadow of it stays for another number
 * of ranks, which may go on from it. Called on rank 0 once the weights are there. */
zero_status claim_begin(struct claim *claim, const char *directory, struct zero_error *error);

/* Copies rank 0's id to all ranks, and notes it in each checkpoint and shadow that is saved later. Collective. */
zero_status claim_note(struct claim *claim, struct zero_error *error);

/* Marks the run as ended: all steps are done, and the next run may overwrite the shadow. If the mark cannot be written
 * (the disk is full), the next run refuses the shadow until the user decides. */
void claim_end(struct claim *claim, const char *directory);

#endif
