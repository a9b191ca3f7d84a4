#include "engine/comm/launch.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/limits.h"

struct reader {
    launch_getenv_fn get;
    void *user;
    struct zero_error *error;
};

static bool has(const struct reader *reader, const char *name) {
    return reader->get(reader->user, name) != NULL;
}

static bool parse(const char *text, uint32_t *out_number) {
    uint32_t number = 0;
    if (*text == 0) return false;
    for (const char *c = text; *c; c++) {
        if (*c < '0' || *c > '9') return false;
        number = number * 10 + (uint32_t)(*c - '0');
        if (number > RANKS_MAX) return false;
    }
    *out_number = number;
    return true;
}

/* Reads a number; `missing` if the variable is not set. */
static zero_status read_number(const struct reader *reader, const char *name, uint32_t missing,
                               uint32_t *out_number) {
    const char *text = reader->get(reader->user, name);
    *out_number = missing;
    if (!text || parse(text, out_number)) return ZERO_OK;
    return error_set(reader->error, ZERO_E_ARGUMENT,
                     "launch: environment variable %s is \"%s\", which is not a number from 0 to %d: unset "
                     "it or start the program with mpirun",
                     name, text, (int)RANKS_MAX);
}

/* Reads rank, size, local rank and local size from the four variables. */
static zero_status read_ranks(const struct reader *reader, const char *const names[4],
                              struct launch *launch) {
    zero_status status = read_number(reader, names[0], 0, &launch->rank);
    if (status == ZERO_OK) status = read_number(reader, names[1], 0, &launch->size);
    if (status == ZERO_OK) status = read_number(reader, names[2], 0, &launch->local_rank);
    if (status == ZERO_OK) status = read_number(reader, names[3], 0, &launch->local_size);
    if (status == ZERO_OK && launch->size && launch->rank >= launch->size)
        return error_set(reader->error, ZERO_E_ARGUMENT,
                         "launch: %s is %u and %s is %u, but ranks are below the number of ranks: unset both "
                         "or start the program with mpirun",
                         names[0], launch->rank, names[1], launch->size);
    return status;
}

/* The variable with the number of tasks: of srun's step; if the step has none, of the job. */
static const char *step_tasks(const struct reader *reader) {
    return has(reader, "SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
}

static zero_status read_mpi(const struct reader *reader, struct launch *out_launch) {
    static const char *const open_mpi[4] = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
    const char *const pmix[4] = {"PMIX_RANK", step_tasks(reader), "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"};
    struct launch launch = {.transport = &comm_mpi_ops};
    zero_status status = read_ranks(reader, has(reader, open_mpi[1]) ? open_mpi : pmix, &launch);
    if (status == ZERO_OK) *out_launch = launch;
    return status;
}

/* Hydra (MPICH, Intel MPI) and srun --mpi=pmi2 use PMI, which Open MPI does not support: each process would become the
 * only rank of its own world. */
static zero_status refuse_other_mpi(const struct reader *reader) {
    uint32_t size;
    zero_status status = read_number(reader, "PMI_SIZE", 1, &size);
    if (status != ZERO_OK || size <= 1) return status;
    return error_set(reader->error, ZERO_E_UNSUPPORTED,
                     "launch: PMI_SIZE is %u, so MPICH, Intel MPI or srun --mpi=pmi2 started %u processes, "
                     "but only Open MPI connects the ranks of this program: start it with Open MPI's mpirun "
                     "-n %u, or with srun --mpi=pmix",
                     size, size, size);
}

/* The number of tasks of this process's srun step. In a batch script and in salloc's shell there is no step: the
 * program runs once there, for any number of tasks of the job. */
static zero_status read_step(const struct reader *reader, uint32_t *out_tasks) {
    if (has(reader, "SLURM_STEP_NUM_TASKS") || has(reader, "SLURM_STEP_ID"))
        return read_number(reader, step_tasks(reader), 1, out_tasks);
    *out_tasks = 1;
    return ZERO_OK;
}

/* Whether torchrun's agent listens on MASTER_PORT for its own store. If not, it leaves this port to rank 0. */
static bool port_taken(const struct reader *reader) {
    const char *text = reader->get(reader->user, "TORCHELASTIC_USE_AGENT_STORE");
    return text && (strcmp(text, "True") == 0 || strcmp(text, "1") == 0);
}

static zero_status read_torchrun(const struct reader *reader, struct launch *out_launch) {
    static const char *const torchrun[4] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
    struct launch launch = {.transport = &comm_tcp_ops};
    TRY(read_ranks(reader, torchrun, &launch));
    TRY(read_number(reader, "MASTER_PORT", 0, &launch.master_port));
    *out_launch = (struct launch){.transport = &comm_self_ops, .size = 1, .local_size = 1};
    if (launch.size <= 1) return ZERO_OK;
    launch.master = reader->get(reader->user, "MASTER_ADDR");
    if (!has(reader, "RANK") || !launch.master || !*launch.master || !launch.master_port)
        return error_set(reader->error, ZERO_E_ARGUMENT,
                         "launch: WORLD_SIZE is %u, but RANK, MASTER_ADDR or MASTER_PORT is missing: start "
                         "the program with torchrun, which sets them all, or with mpirun -n %u",
                         launch.size, launch.size);
    launch.master_port += port_taken(reader);
    if (launch.master_port > UINT16_MAX)
        return error_set(reader->error, ZERO_E_ARGUMENT,
                         "launch: the ranks would meet on port %u: set MASTER_PORT to a lower one",
                         launch.master_port);
    *out_launch = launch;
    return ZERO_OK;
}

/* In `srun torchrun ...` the ranks are torchrun's, and they inherit srun's variables. */
static bool torchrun_set_all(const struct reader *reader) {
    static const char *const names[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
    bool all = true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) all = all && has(reader, names[i]);
    return all;
}

zero_status launch_read(launch_getenv_fn get, void *user, struct launch *out_launch,
                        struct zero_error *error) {
    struct reader reader = {get, user, error};
    uint32_t tasks;
    if (has(&reader, "OMPI_COMM_WORLD_SIZE")) return read_mpi(&reader, out_launch);
    if (torchrun_set_all(&reader)) return read_torchrun(&reader, out_launch);
    if (has(&reader, "PMIX_RANK")) return read_mpi(&reader, out_launch);
    TRY(refuse_other_mpi(&reader));
    TRY(read_step(&reader, &tasks));
    if (tasks > 1)
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "launch: Slurm runs %u tasks that cannot reach each other, because srun gave them "
                         "no PMIx: start with srun --mpi=pmix, or with mpirun -n %u",
                         tasks, tasks);
    if (has(&reader, "WORLD_SIZE")) return read_torchrun(&reader, out_launch);
    *out_launch = (struct launch){.transport = &comm_self_ops, .size = 1, .local_size = 1};
    return ZERO_OK;
}

static const char *get_environment(void *user, const char *name) { return getenv(name); }

zero_status launch_read_environment(struct launch *out_launch, struct zero_error *error) {
    return launch_read(get_environment, NULL, out_launch, error);
}

static uint32_t common_divisor(uint32_t a, uint32_t b) { return b ? common_divisor(b, a % b) : a; }

uint32_t launch_node_group(const uint64_t *node, uint32_t ranks) {
    uint32_t group = ranks;
    for (uint32_t r = 1; r < ranks; r++)
        if (node[r] != node[r - 1]) group = common_divisor(group, r);
    return group;
}
