/* With "nvme": {"shadow": true}: the drive keeps the last step that is whole on all ranks. A step is committed when every
 * rank has stored all of it and synced; not for others than the engine's files. */
#ifndef ZERO_ENGINE_SHADOW_H
#define ZERO_ENGINE_SHADOW_H

#include "engine/engine_internal.h"

/* At commit, collective: what is stored from now on leaves the last whole step of an earlier run as it is. */
zero_status shadow_open(zero_engine *engine);

/* Before the agreement of the next step, or of a flush: what this rank stored is safe. Nothing without a shadow. */
zero_status shadow_sync(zero_engine *engine);
/* After it: on all ranks. */
zero_status shadow_commit(zero_engine *engine);
/* A training starts anew. */
zero_status shadow_forget(zero_engine *engine);

#endif
