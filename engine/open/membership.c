#include "engine/open/join.h"

#include <inttypes.h>
#include <stdlib.h>

#include "engine/base/limits.h"
#include "engine/comm/launch.h"
#include "engine/ranks/local_ranks.h"

/* ---- one function for each way in which a host gives ranks ---- */

static zero_status take_planned(const zero_runtime *runtime, struct membership *out,
                                struct zero_error *error) {
    out->transport = &comm_mirror_ops;
    out->options.size = runtime->plan_ranks;
    out->options.mirrors = runtime->plan_ranks == 1   ? &comm_self_ops
                           : !runtime->plan_processes ? &comm_local_ops
                           : runtime->cuda            ? &comm_nccl_ops
                                                      : &comm_mpi_ops;
    return ZERO_OK;
}

static zero_status take_thread(const zero_runtime *runtime, struct membership *out,
                               struct zero_error *error) {
    out->transport = &comm_local_ops;
    out->options.local = local_world_of(runtime->local);
    out->options.rank = out->local_rank = runtime->local_rank;
    out->options.size = local_ranks(runtime->local);
    if (runtime->local_rank < local_ranks(runtime->local)) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT,
                     "zero_runtime.local_rank is %" PRIu32 ", and the world has %" PRIu32
                     " ranks: number them from 0",
                     runtime->local_rank, local_ranks(runtime->local));
}

/* The communicator knows its rank and size; the launcher's are those of its own world. */
static zero_status take_mpi(const zero_runtime *runtime, struct membership *out, struct zero_error *error) {
    out->transport = &comm_mpi_ops;
    out->options.size = 0;
    out->options.mpi_comm = runtime->mpi_comm;
    return ZERO_OK;
}

static zero_status take_numbered(const zero_runtime *runtime, struct membership *out,
                                 struct zero_error *error) {
    const char *address = runtime->address;
    if (runtime->size > RANKS_MAX)
        return error_set(error, ZERO_E_ARGUMENT,
                         "zero_runtime.size is %" PRIu32 ": there are at most %d ranks", runtime->size,
                         (int)RANKS_MAX);
    if (runtime->rank >= runtime->size)
        return error_set(error, ZERO_E_ARGUMENT,
                         "zero_runtime.rank is %" PRIu32 " and size is %" PRIu32
                         ": number the ranks from 0 to %" PRIu32,
                         runtime->rank, runtime->size, runtime->size - 1);
    out->options.rank = runtime->rank;
    out->options.size = runtime->size;
    out->local_rank = runtime->local_rank;
    if (runtime->size == 1) return ZERO_OK;
    if (!address || !*address)
        return error_set(error, ZERO_E_ARGUMENT,
                         "zero_runtime.size is %" PRIu32 " without an address: give the name or the address "
                         "of rank 0's host, \"127.0.0.1\" where all ranks are on one host",
                         runtime->size);
    if (!runtime->port || runtime->port > UINT16_MAX)
        return error_set(error, ZERO_E_ARGUMENT,
                         "zero_runtime.port is %" PRIu32
                         ": give the port, from 1 to 65535, on which rank 0 listens",
                         runtime->port);
    out->transport = &comm_tcp_ops;
    out->options.master = address;
    out->options.master_port = runtime->port;
    out->options.by_runtime = true;
    return ZERO_OK;
}

/* ---- the launcher ---- */

/* This rank's number on its host, from the launcher's variables. */
static uint32_t launched_local_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID",
                                        "MPI_LOCALRANKID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i])) return (uint32_t)strtoul(getenv(names[i]), NULL, 10);
    return 0;
}

static zero_status take_launched(const zero_runtime *runtime, struct membership *out,
                                 struct zero_error *error) {
    struct launch launch;
    if (runtime->rank || runtime->address || runtime->port)
        return error_set(error, ZERO_E_ARGUMENT,
                         "zero_runtime.%s is given without size: give the number of ranks",
                         runtime->rank      ? "rank"
                         : runtime->address ? "address"
                                            : "port");
    TRY(launch_read_environment(&launch, error));
    out->transport = launch.transport;
    out->options.rank = launch.rank;
    out->options.size = launch.size;
    out->options.master = launch.master;
    out->options.master_port = launch.master_port;
    return ZERO_OK;
}

static const char *get_environment(void *user, const char *name) { return getenv(name); }

static zero_status find_secret(const zero_runtime *runtime, struct membership *out, struct zero_error *mine,
                               struct zero_error *error) {
    out->options.secret = &out->secret;
    if (comm_takes_secret(out->transport))
        return secret_find(runtime->secret, get_environment, NULL, &out->secret, error);
    if (!runtime->secret || out->transport == &comm_self_ops) return ZERO_OK;
    error_set(mine, ZERO_E_ARGUMENT,
              "zero_runtime.secret is given, and these ranks do not meet over TCP: leave it NULL");
    return comm_of_processes(out->transport) ? ZERO_OK : error_pass(error, mine);
}

zero_status membership_find(const zero_runtime *runtime, struct membership *out, struct zero_error *mine,
                            struct zero_error *error) {
    const struct {
        const char *name;
        bool given;
        zero_status (*find)(const zero_runtime *, struct membership *, struct zero_error *);
    } ways[] = {{"plan_ranks", runtime->plan_ranks != 0, take_planned},
                {"local", runtime->local != NULL, take_thread},
                {"mpi_comm", runtime->mpi_comm != NULL, take_mpi},
                {"rank and size", runtime->size != 0, take_numbered},
                {NULL, true, take_launched}};
    *out = (struct membership){.transport = &comm_self_ops, .options = {.size = 1}};
    out->local_rank = runtime->local_rank ? runtime->local_rank : launched_local_rank();
    uint32_t way = 0;
    while (!ways[way].given) way++;
    for (uint32_t other = way + 1; ways[way].name && ways[other].name; other++)
        if (ways[other].given)
            return error_set(error, ZERO_E_ARGUMENT,
                             "zero_runtime says twice which rank this is, by %s and by %s: give one of them",
                             ways[way].name, ways[other].name);
    zero_status status = ways[way].find(runtime, out, error);
    return status ? status : find_secret(runtime, out, mine, error);
}
