/* With "nvme": {"shadow": true}: the drive keeps the last step that is whole on all ranks. A step is committed when every rank
 * has stored all of it and synced. Each function does nothing where there is no shadow. */
#pragma once

#include "engine/state/state.h"

/* At commit, collective: finds what an earlier run left. What is stored from now on leaves its last whole step as it is. */
zero_status shadow_open(struct state *state);

/* ZERO_E_ORDER: an earlier run's shadow would be lost, and the host has not discarded it. `what`: the call, for the sentence. */
zero_status shadow_check_overwriting(const struct state *state, const char *what);

/* Notes that the host wrote state. Updates in the backward then need a commit before the first of them: they overwrite the other
 * place of each chunk, which must not be the place with the host's values. All ranks call it. */
void shadow_written(struct state *state);

/* Before the agreement of the next step, or of a flush: syncs the data that this rank stored. */
zero_status shadow_sync(struct state *state);
/* After it: the step is whole on all ranks. */
zero_status shadow_commit(struct state *state);
/* Both, with an exchange between them: what was applied is whole. Collective. */
zero_status shadow_commit_now(struct state *state);
/* For a training that starts anew. */
zero_status shadow_forget(struct state *state);

/* Goes on from the last whole step; `fill` is called for frozen parameters. Collective, in place of a first fill. */
zero_status shadow_recover(struct state *state, zero_fill_fn fill, void *user);
