#include "engine/comm/launch.h"

#include <string.h>

#include "tests/check.h"

/* `user`: "NAME=value" strings, ended by NULL. */
static const char *get(void *user, const char *name) {
    size_t length = strlen(name);
    for (const char *const *entry = user; *entry; entry++)
        if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=') return *entry + length + 1;
    return NULL;
}

#define READ(...) read_from((const char *const[]){__VA_ARGS__ NULL})

static struct launch launch;
static struct zero_error error;

static zero_status read_from(const char *const *entries) {
    memset(&launch, 0xee, sizeof launch);
    error_clear(&error);
    return launch_read(get, (void *)(uintptr_t)entries, &launch, &error);
}

static void check_launch(const struct comm_ops *transport, uint32_t rank, uint32_t size, uint32_t local_rank,
                         uint32_t local_size) {
    CHECK(launch.transport == transport);
    CHECK_INT(launch.rank, rank);
    CHECK_INT(launch.size, size);
    CHECK_INT(launch.local_rank, local_rank);
    CHECK_INT(launch.local_size, local_size);
}

static void started(void) {
    CHECK_INT(READ(), ZERO_OK);
    check_launch(&comm_self_ops, 0, 1, 0, 1);
    CHECK_INT(READ("OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_LOCAL_RANK=1",
                   "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_RANK=3", ),
              ZERO_OK);
    check_launch(&comm_mpi_ops, 3, 8, 1, 2);
    CHECK_INT(READ("PMIX_RANK=5", "SLURM_NTASKS=99", "SLURM_STEP_NUM_TASKS=6", "SLURM_LOCALID=1", ), ZERO_OK);
    check_launch(&comm_mpi_ops, 5, 6, 1, 0);
    CHECK_INT(READ("PMIX_RANK=2", ), ZERO_OK);
    check_launch(&comm_mpi_ops, 2, 0, 0, 0);
    CHECK_INT(READ("RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", "MASTER_ADDR=h", "MASTER_PORT=29500", ),
              ZERO_OK);
    check_launch(&comm_self_ops, 0, 1, 0, 1);
    CHECK_INT(READ("RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=h",
                   "MASTER_PORT=29500", ),
              ZERO_OK);
    check_launch(&comm_tcp_ops, 3, 8, 1, 2);
    CHECK_STRING(launch.master, "h");
    CHECK_INT(launch.master_port, 29500);
    CHECK_INT(READ("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=29500",
                   "TORCHELASTIC_USE_AGENT_STORE=True", ),
              ZERO_OK);
    CHECK_INT(launch.master_port, 29501);
    CHECK_INT(READ("SLURM_NTASKS=1", "SLURM_PROCID=0", ), ZERO_OK);
    check_launch(&comm_self_ops, 0, 1, 0, 1);
    /* a batch script, and salloc's shell without and with a step of its own */
    CHECK_INT(READ("SLURM_NTASKS=4", "SLURM_PROCID=0", "SLURM_JOB_ID=9", ), ZERO_OK);
    check_launch(&comm_self_ops, 0, 1, 0, 1);
    CHECK_INT(READ("SLURM_NTASKS=4", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=1", ), ZERO_OK);
    check_launch(&comm_self_ops, 0, 1, 0, 1);
    CHECK_INT(READ("PMI_SIZE=1", "PMI_RANK=0", ), ZERO_OK);
    check_launch(&comm_self_ops, 0, 1, 0, 1);
    CHECK_INT(READ("PMI_SIZE=4", "PMI_RANK=1", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", ),
              ZERO_OK);
    check_launch(&comm_mpi_ops, 1, 2, 0, 0);
    /* srun torchrun: the ranks are torchrun's, whatever the step around it */
    CHECK_INT(READ("RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=h",
                   "MASTER_PORT=29500", "PMIX_RANK=1", "SLURM_STEP_NUM_TASKS=4", "SLURM_PROCID=1", ),
              ZERO_OK);
    check_launch(&comm_tcp_ops, 3, 8, 1, 2);
    CHECK_INT(READ("RANK=3", "WORLD_SIZE=8", "MASTER_ADDR=h", "MASTER_PORT=29500", "SLURM_STEP_NUM_TASKS=4",
                   "PMI_SIZE=4", "SLURM_STEP_ID=0", ),
              ZERO_OK);
    check_launch(&comm_tcp_ops, 3, 8, 0, 0);
    CHECK_INT(READ("RANK=3", "WORLD_SIZE=8", "PMIX_RANK=1", "SLURM_STEP_NUM_TASKS=4", ),
              ZERO_OK); /* not all */
    check_launch(&comm_mpi_ops, 1, 4, 0, 0);
    /* mpirun inside of what torchrun or a batch script left behind */
    CHECK_INT(READ("WORLD_SIZE=4", "RANK=1", "SLURM_NTASKS=4", "OMPI_COMM_WORLD_RANK=0",
                   "OMPI_COMM_WORLD_SIZE=2", ),
              ZERO_OK);
    check_launch(&comm_mpi_ops, 0, 2, 0, 0);
}

static void refused(void) {
    CHECK_INT(READ("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=h", ), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "MASTER_PORT is missing");
    CHECK_CONTAINS(error.message, "mpirun -n 2");
    CHECK_INT(READ("WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=29500", ), ZERO_E_ARGUMENT);
    CHECK_INT(READ("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=http", ), ZERO_E_ARGUMENT);
    CHECK_INT(READ("RANK=2", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=29500", ), ZERO_E_ARGUMENT);
    CHECK_INT(READ("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=65536", ), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "the ranks would meet on port 65536: set MASTER_PORT to a lower one");
    CHECK_INT(READ("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=65535",
                   "TORCHELASTIC_USE_AGENT_STORE=1", ),
              ZERO_E_ARGUMENT);
    CHECK_INT(READ("SLURM_NTASKS=9", "SLURM_STEP_NUM_TASKS=4", "SLURM_PROCID=1", ), ZERO_E_UNSUPPORTED);
    CHECK_CONTAINS(error.message, "srun --mpi=pmix, or with mpirun -n 4");
    CHECK_INT(READ("SLURM_NTASKS=4", "SLURM_STEP_ID=0", "SLURM_PROCID=1", ), ZERO_E_UNSUPPORTED);
    CHECK_CONTAINS(error.message, "mpirun -n 4");
    CHECK_INT(READ("PMI_SIZE=4", "PMI_RANK=1", "SLURM_STEP_NUM_TASKS=2", ), ZERO_E_UNSUPPORTED);
    CHECK_CONTAINS(error.message, "start it with Open MPI's mpirun -n 4");
    CHECK_INT(READ("PMI_SIZE=many", ), ZERO_E_ARGUMENT);
    CHECK_INT(READ("OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=2", ), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "OMPI_COMM_WORLD_RANK is 2 and OMPI_COMM_WORLD_SIZE is 2");
    CHECK_INT(READ("RANK=0", "WORLD_SIZE=two", ), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "WORLD_SIZE is \"two\"");
    CHECK_INT(READ("OMPI_COMM_WORLD_RANK=-1", "OMPI_COMM_WORLD_SIZE=2", ), ZERO_E_ARGUMENT);
    CHECK_INT(READ("OMPI_COMM_WORLD_RANK=", "OMPI_COMM_WORLD_SIZE=2", ), ZERO_E_ARGUMENT);
    CHECK_INT(READ("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=4294967297", ), ZERO_E_ARGUMENT);
}

static void nodes(void) {
    static const struct {
        uint64_t node[8];
        uint32_t ranks, group;
    } rows[] = {{{5}, 1, 1},
                {{5, 5, 5, 5}, 4, 4},
                {{5, 5, 9, 9}, 4, 2},
                {{5, 5, 5, 5, 9, 9}, 6, 2},
                {{5, 5, 5, 9, 9}, 5, 1},
                {{5, 9, 5, 9}, 4, 1}, /* numbered in turns */
                {{5, 5, 5, 5, 9, 9, 9, 9}, 8, 4},
                {{5, 5, 9, 9, 5, 5, 9, 9}, 8, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_INT(launch_node_group(rows[i].node, rows[i].ranks), rows[i].group);
}

int main(void) {
    nodes();
    started();
    refused();
    return check_end();
}
