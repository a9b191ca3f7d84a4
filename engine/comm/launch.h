/* The launcher that started this process, the rank of this process, and the number of ranks. They come from the
 * environment, never from the network. */
#pragma once

#include "engine/base/error.h"
#include "engine/comm/comm.h"

struct launch {
    const struct comm_ops *transport; /* self, mpi or tcp */
    uint32_t rank, size;              /* size 0: only MPI knows it (PMIx without Open MPI's variables) */
    uint32_t local_rank, local_size;  /* on this node; local_size 0: not known */
    const char *master;               /* tcp: the address of rank 0; borrowed from `get` */
    uint32_t master_port;
};

/* Returns the value of an environment variable, or NULL, as getenv does. */
typedef const char *(*launch_getenv_fn)(void *user, const char *name);

/* clang-format off */
/* Looks for launchers in this order. Reads no globals.
 *
 *   1. mpirun: OMPI_COMM_WORLD_*
 *   2. torchrun, where all are set: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; its children inherit the variables of an
 *      srun around it. If torchrun's agent listens on MASTER_PORT itself (TORCHELASTIC_USE_AGENT_STORE=True), the
 *      ranks meet on MASTER_PORT + 1.
 *   3. srun --mpi=pmix: PMIX_RANK with SLURM_*
 *   4. the launcher of another MPI: PMI_SIZE; refused
 *   5. an srun step of several tasks without PMIx; refused
 *   6. no launcher: one rank */
/* clang-format on */
zero_status launch_read(launch_getenv_fn get, void *user, struct launch *out_launch,
                        struct zero_error *error);

/* launch_read of this process's environment. */
zero_status launch_read_environment(struct launch *out_launch, struct zero_error *error);

/* Cuts the ranks into groups of n adjacent ranks (0 .. n-1, n .. 2n-1, ...; n divides `ranks`), each within one node.
 * Returns the largest such n. node[r]: equal for ranks of one node. */
uint32_t launch_node_group(const uint64_t *node, uint32_t ranks);
