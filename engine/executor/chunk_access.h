/* The host's access to chunks on the drive. Its calls are in executor.h. */
#ifndef ZERO_ENGINE_EXECUTOR_CHUNK_ACCESS_H
#define ZERO_ENGINE_EXECUTOR_CHUNK_ACCESS_H

#include "engine/executor/executor_internal.h"

/* Writes changed chunks to the drive, and waits. */
zero_status access_flush(struct executor *e);

#endif
