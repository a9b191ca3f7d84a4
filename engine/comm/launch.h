/* Who started this process, and as which rank of how many: read from the environment, never from the network.
 */
#ifndef ZERO_ENGINE_COMM_LAUNCH_H
#define ZERO_ENGINE_COMM_LAUNCH_H

#include <stdint.h>

#include "engine/base/error.h"
#include "engine/comm/comm.h"

struct launch {
    enum comm_transport transport;   /* COMM_SELF, COMM_MPI or COMM_TCP */
    uint32_t rank, size;             /* size 0: known to MPI alone (PMIx without Open MPI's variables) */
    uint32_t local_rank, local_size; /* on this node; local_size 0: not known */
    const char *master;              /* COMM_TCP: where rank 0 listens; as `get` returned it */
    uint32_t master_port;
};

/* The value of an environment variable or NULL, as getenv. */
typedef const char *(*launch_getenv_fn)(void *user, const char *name);

/* In this order: mpirun (OMPI_COMM_WORLD_*), srun --mpi=pmix (PMIX_RANK with SLURM_*), the launcher of another
 * MPI (PMI_SIZE: refused), an srun step of several tasks without PMIx (refused), torchrun (RANK, WORLD_SIZE,
 * MASTER_ADDR, MASTER_PORT; where its agent itself listens on that port, TORCHELASTIC_USE_AGENT_STORE=True, ranks
 * meet on the next one), nothing (one rank). Reads no globals. */
zero_status launch_read(launch_getenv_fn get, void *user, struct launch *out_launch,
                        struct zero_error *error);

/* launch_read of this process's environment. */
zero_status launch_read_environment(struct launch *out_launch, struct zero_error *error);

/* The largest groups of adjacent ranks (0 .. n-1, n .. 2n-1, ...; n divides `ranks`) of which none reaches over a
 * node's bounds. node[r]: equal for ranks of one node. */
uint32_t launch_node_group(const uint64_t *node, uint32_t ranks);

#endif
