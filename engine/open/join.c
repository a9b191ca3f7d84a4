#include "engine/open/join.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/hash.h"
#include "engine/base/host_call.h"
#include "engine/base/integer.h"
#include "engine/comm/launch.h"
#include "engine/ranks/local_ranks.h"
#include "engine/ranks/model_ranks.h"
#include "engine/ranks/rank_agreement.h"
#include "kernels/ordered_sum.h"

/* The CPUs that this thread may run on: how many, and which, of which machine. */
struct cpus {
    uint32_t count;
    uint64_t hash; /* equal for ranks that share them all */
};

/* CPUs, and the ranks that divide them, this one included. */
struct share {
    uint32_t cpus, ranks;
};

enum { CPUS_MAX = 1 << 16 }; /* Linux builds end at 8192; it refuses sets smaller than its own */
enum { DRIVING_CPUS = 2 };   /* of a rank with a GPU; of few CPUs at most half of them */

/* Allocates nothing: the number of threads may not depend on memory. The engine's bits do not depend on that number, but those of a
 * host program that computes on the CPU may, as tools/gpt's do from 9 threads on (gpt.h). One CPU where Linux does not tell. */
static struct cpus find_cpus(void) {
    char host[256] = "";
    cpu_set_t set[CPUS_MAX / CPU_SETSIZE];
    gethostname(host, sizeof host - 1);
    struct cpus cpus = {1, hash_string(HASH_START, host)};
    if (sched_getaffinity(0, sizeof set, set) == 0)
        cpus = (struct cpus){(uint32_t)CPU_COUNT_S(sizeof set, set), hash_bytes(cpus.hash, set, sizeof set)};
    return cpus;
}

static uint32_t least_of(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* mpirun or taskset may have bound each rank to CPUs of its own, or to a socket that some share, or to none: those whose
 * sets are equal divide them. So do those that share a quota of CPU time, where that is less. Where a rank drives a GPU, its update leaves
 * CPUs to the threads that give the GPU work: the host's and the progress thread. */
static void choose_threads(const struct joining *j, uint32_t asked, struct share cpus, struct share quota) {
    struct share least = (uint64_t)quota.cpus * cpus.ranks < (uint64_t)cpus.cpus * quota.ranks ? quota : cpus;
    j->host->threads = asked ? asked : (uint32_t)j->config->threads;
    if (j->host->threads) return;
    j->host->threads = least.cpus > least.ranks ? least.cpus / least.ranks : 1;
    if (j->run->discrete) j->host->threads -= least_of(DRIVING_CPUS, j->host->threads / 2);
    j->host->cpus = least.cpus, j->host->sharers = least.ranks;
}

/* Ranks that are threads may have a GPU each, or share one. */
static zero_status find_gpus(struct joining *j, bool *out_several, struct zero_error *error) {
    uint64_t index[2] = {j->run->device->index, UINT64_MAX - j->run->device->index};
    zero_status status = ranks_least(j->ranks, index, 2, "the ranks' GPUs", error);
    *out_several = index[0] != UINT64_MAX - index[1];
    return status;
}

/* Threads on one GPU add up gradients over each axis of the mesh; with hpZ's second shard, over all ranks at once. */
static zero_status check_summands(const struct joining *j, struct zero_error *error) {
    uint64_t ranks = j->ranks->data_size, shards = j->config->shard_ranks, copies = ranks / shards;
    uint64_t most = j->config->reshard == RESHARD_GROUP ? ranks : shards > copies ? shards : copies;
    if (most <= ORDERED_INPUTS_MAX) return ZERO_OK;
    return error_set(
        error, ZERO_E_UNSUPPORTED,
        "%" PRIu64 " ranks on one GPU, which adds the gradients of at most %d: start fewer ranks on each GPU",
        most, (int)ORDERED_INPUTS_MAX);
}

/* The calls of the executor. */
static uint32_t first_calls(const struct terms *t) {
    return COMM_FIRST_GATHERS | (t->native_reduction ? COMM_FIRST_SUMS : COMM_FIRST_EXCHANGES);
}

/* Between GPUs NCCL moves what the executor gathers and reduces; comm stays beside it for the messages between
 * hosts. */
static zero_status open_data(struct joining *j, const struct membership *m, struct zero_error *error) {
    int asked = j->config->comm.transport;
    bool several = comm_of_processes(m->transport);
    if (j->host->plans_only) return ZERO_OK;
    if (!j->run->discrete && asked == CONFIG_TRANSPORT_NCCL)
        return error_set(error, ZERO_E_CONFIG,
                         "comm.transport: \"nccl\" moves the memory of GPUs, and this rank computes on the "
                         "CPU: set device.type to \"cuda\", or comm.transport to \"auto\"");
    if (!j->run->discrete || j->ranks->size == 1) return ZERO_OK;
    if (!several) TRY(find_gpus(j, &several, error));
    if (several && asked == CONFIG_TRANSPORT_COPIES)
        return error_set(error, ZERO_E_CONFIG,
                         "comm.transport: \"copies\" are for ranks that are threads on one GPU, and these "
                         "have several: set it to \"auto\", or device.index to one GPU");
    if (!several && asked != CONFIG_TRANSPORT_NCCL) return check_summands(j, error);
    struct comm_options options = m->options;
    options.rank = j->ranks->rank, options.size = j->ranks->size, options.beside = j->ranks->comm;
    options.first_calls = first_calls(&j->config->terms);
    if (comm_open(&comm_nccl_ops, &options, &j->ranks->data, error) == ZERO_OK) return ZERO_OK;
    j->ranks->data = j->ranks->comm;
    comm_fail(j->ranks->comm, error);
    return error->code;
}

/* MPI has no sum of bf16, and hosts none of fp16. */
static zero_status check_native(const struct joining *j, const struct membership *m,
                                struct zero_error *error) {
    bool only_fp32 = comm_native_fp32(j->host->plans_only ? m->options.mirrors : m->transport);
    bool fp32 = j->config->compute_dtype == DTYPE_F32 && j->config->communication_dtype == DTYPE_F32;
    if (j->config->comm.reduction != CONFIG_REDUCTION_NATIVE || !only_fp32 || j->run->discrete || fp32)
        return ZERO_OK;
    return error_set(error, ZERO_E_UNSUPPORTED,
                     "comm.reduction: MPI's native reductions support only fp32: set it to \"ordered\", or "
                     "compute and communicate in fp32");
}

struct question {
    const struct host *host;
    bool yes; /* also if the function throws */
};

static void ask(void *call) {
    struct question *q = call;
    q->yes = q->host->interrupted(q->host->interrupted_user) != 0;
}

static bool ask_host(void *user) {
    struct question question = {user, true};
    host_call(NULL, "zero_runtime.interrupted", ask, &question);
    return question.yes;
}

static zero_status open_comm(struct joining *j, struct membership *m, struct zero_error *error) {
    m->options.timeout_s = j->config->comm.timeout_s;
    m->options.unchecked = !j->config->comm.checksum;
    m->options.log = j->ranks->log;
    m->options.device = j->run->device;
    if (j->host->interrupted) m->options.interrupted = ask_host, m->options.interrupted_user = j->host;
    j->host->plans_only = m->options.mirrors != NULL;
    TRY(comm_open(m->transport, &m->options, &j->ranks->comm, error));
    j->ranks->data = j->ranks->comm;
    j->ranks->rank = comm_rank(j->ranks->comm);
    j->ranks->size = comm_size(j->ranks->comm);
    uint32_t *all = malloc(j->ranks->size * sizeof *all);
    if (!all)
        return error_set(error, ZERO_E_MEMORY, "no memory for a list of %" PRIu32 " ranks", j->ranks->size);
    for (uint32_t r = 0; r < j->ranks->size; r++) all[r] = r;
    zero_status status = comm_group_open(j->ranks->comm, all, j->ranks->size, &j->ranks->world);
    free(all);
    return status ? error_pass(error, comm_error(j->ranks->comm)) : ZERO_OK;
}

/* The most data ranks in groups of equal size that stay within a node, for every model rank. In the list, each model rank has
 * nodes of its own. */
static uint32_t node_group(const struct ranks *ranks, const uint64_t *host, uint64_t *list) {
    for (uint32_t i = 0; i < ranks->size; i++) list[i] = host[ranks->at[i]] + i / ranks->data_size;
    return launch_node_group(list, ranks->size);
}

static uint32_t count_host(const uint64_t *host, uint32_t ranks, uint64_t name) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < ranks; r++) count += host[r] == name;
    return count;
}

/* Nodes need not have equally many ranks. */
static void number_on_node(struct ranks *ranks, const uint64_t *host, uint64_t given) {
    ranks->node_index =
        given ? (uint32_t)(ranks->rank % given) : count_host(host, ranks->rank, host[ranks->rank]);
    ranks->node_most = given ? (uint32_t)min64(ranks->size, given) : ranks->node_ranks;
    for (uint32_t r = 0; r < ranks->size && !given; r++) {
        uint32_t count = r && host[r] == host[r - 1] ? 0 : count_host(host, ranks->size, host[r]);
        if (count > ranks->node_most) ranks->node_most = count;
    }
}

/* Which ranks share a node, by the hosts' names. */
static zero_status find_nodes(struct joining *j, struct zero_error *error) {
    uint64_t *host = outliving_message(j->ranks->outliving, (2 * j->ranks->size + 1) * sizeof *host);
    if (!host) {
        error_set(error, ZERO_E_MEMORY, "no memory to compare nodes");
        comm_fail(j->ranks->comm, error);
        return error->code;
    }
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    host[0] = hash_string(HASH_START, name);
    struct comm_call call = comm_rows(host, sizeof *host, "the ranks' nodes");
    if (comm_run(j->ranks->world, &call)) return error_pass(error, comm_error(j->ranks->comm));
    j->ranks->node_ranks = count_host(host + 1, j->ranks->size, host[0]);
    number_on_node(j->ranks, host + 1, j->config->comm.node_ranks * j->ranks->model_size);
    j->config->found_node_ranks = node_group(j->ranks, host + 1, host + 1 + j->ranks->size);
    return ZERO_OK;
}

/* For ranks that exist only in a plan. */
static void plan_nodes(struct joining *j, uint32_t node_ranks) {
    uint32_t data_ranks = node_ranks / j->ranks->model_size;
    j->ranks->node_ranks = node_ranks;
    j->config->found_node_ranks = data_ranks ? data_ranks : 1;
}

static zero_status find_model_ranks(struct joining *j, const zero_runtime *runtime,
                                    struct zero_error *error) {
    return (j->host->plans_only ? model_ranks_plan : model_ranks_open)(j->ranks, runtime->model_rank,
                                                                       runtime->model_size, error);
}

/* The message in which a rank describes its configuration and its CPUs. */
struct reading {
    uint64_t code, hash; /* zero_status; of the resolved text */
    uint64_t cpus;       /* their hash */
    uint64_t discrete;   /* its memory is a GPU's */
    uint64_t memory;     /* struct host_memory.group */
    uint64_t quota;      /* struct cpu_quota.group */
    uint64_t page_bytes; /* struct device.page_bytes */
};

static zero_status tell(struct joining *j, const struct comm_call *call, struct zero_error *error) {
    return comm_run(j->ranks->world, call) ? error_pass(error, comm_error(j->ranks->comm)) : ZERO_OK;
}

/* The sentence of the first rank that failed, on all ranks. `message` has room for it, and outlives this rank. */
static zero_status tell_failure(struct joining *j, uint32_t rank, zero_status code, struct zero_error *mine,
                                char *message, struct zero_error *error) {
    memcpy(message, mine->message, sizeof mine->message);
    struct comm_call call =
        comm_broadcast(message, DTYPE_U8, sizeof mine->message, rank, "why the configuration is wrong");
    TRY(tell(j, &call, error));
    if (rank == j->ranks->rank) return error_pass(error, mine);
    message[sizeof mine->message - 1] = 0; /* it came from another rank */
    return error_set(error, code, "rank %" PRIu32 ": %s", rank, message);
}

static const char *device_word(bool discrete) { return discrete ? "a GPU" : "the CPU"; }

/* All ranks must have read a configuration, and the same: another stage on one rank, or none, would end in a hang. If the
 * device of one has no address space in parts, no rank uses it. `mine`: this rank's failure to read it. out[0]: ranks with these CPUs; out[1]: with this quota. */
static zero_status agree_config(struct joining *j, uint64_t cpus, uint64_t quota, struct zero_error *mine,
                                struct share out[2], struct zero_error *error) {
    char *text = mine->code ? NULL : config_print(j->config);
    struct reading *all =
        outliving_message(j->ranks->outliving, (j->ranks->size + 1) * sizeof *all + sizeof mine->message);
    if (!all) {
        error_set(error, ZERO_E_MEMORY, "no memory to compare configurations");
        comm_fail(j->ranks->comm, error);
        free(text);
        return error->code;
    }
    if (!text && !mine->code) error_set(mine, ZERO_E_MEMORY, "no memory to compare configurations");
    uint64_t hash = text ? hash_string(HASH_START + (uint64_t)j->host->discard_shadow, text) : 0;
    char *message = (char *)(all + j->ranks->size + 1);
    all[0] = (struct reading){
        mine->code, hash, cpus, j->run->discrete, j->host->memory.group, quota, j->run->device->page_bytes};
    struct comm_call call = comm_rows(all, sizeof *all, "the configuration's hash");
    zero_status status = tell(j, &call, error);
    for (uint32_t r = 0; r < j->ranks->size && !status; r++)
        if (all[r + 1].code) status = tell_failure(j, r, (zero_status)all[r + 1].code, mine, message, error);
    for (uint32_t r = 0; r < j->ranks->size && !status; r++)
        if (all[r + 1].hash != all[1].hash)
            status = error_set(
                error, ZERO_E_CONFIG,
                "rank %" PRIu32 " has another configuration than rank 0; give all ranks the same file", r);
    for (uint32_t r = 0; r < j->ranks->size && !status; r++)
        if (all[r + 1].discrete != all[1].discrete)
            status = error_set(
                error, ZERO_E_CONFIG,
                "rank %" PRIu32
                " computes on %s and rank 0 on %s: set device.type to \"cpu\", or give every rank a GPU",
                r, device_word(all[r + 1].discrete), device_word(all[1].discrete));
    for (uint32_t r = 0; r < j->ranks->size && !status; r++) {
        out[0].ranks += all[r + 1].cpus == cpus;
        out[1].ranks += all[r + 1].quota == quota;
        j->host->memory_ranks += all[r + 1].memory == j->host->memory.group;
        if (!all[r + 1].page_bytes) j->run->device->page_bytes = 0; /* all ranks must plan alike */
    }
    free(text);
    return status;
}

zero_status join_ranks(struct joining *j, const char *json, const zero_runtime *runtime,
                       struct zero_error *error) {
    struct zero_error mine = ERROR_NONE;
    if (!json) error_set(&mine, ZERO_E_ARGUMENT, "zero_engine_init: json is NULL; give a text or a path");
    if (!config_read(json ? json : "{}", j->config, &mine) && runtime->model)
        config_read_model(j->config, runtime->model, &mine);
    struct membership membership;
    zero_status found = membership_find(runtime, &membership, &mine, error);
    zero_status status = join_device(j, runtime, membership.local_rank, &mine);
    if (status) status = device_table[DEVICE_HOST]->open(&(struct device_options){0}, &j->run->device, error);
    if (!status) status = found;
    if (!status) status = open_comm(j, &membership, error);
    if (status && mine.code) *error = mine; /* its message says more */
    if (!status) status = find_model_ranks(j, runtime, error);
    if (!status) status = find_nodes(j, error);
    if (status) return error->code;
    if (runtime->plan_ranks && runtime->plan_node_ranks) plan_nodes(j, runtime->plan_node_ranks);
    j->config->planned_steps = runtime->total_steps;
    if (!mine.code) config_resolve(j->config, j->ranks->data_size, &mine);
    struct cpus cpus = find_cpus();
    struct cpu_quota quota;
    host_memory_read("", &j->host->memory);
    cpu_quota_read("", &quota);
    struct share shares[2] = {{cpus.count, 0}, {quota.cpus, 0}};
    status = agree_config(j, cpus.hash, quota.group, &mine, shares, error);
    if (!status) status = check_native(j, &membership, error);
    if (!status) status = open_data(j, &membership, error);
    if (!status) choose_threads(j, runtime->threads, shares[0], shares[1]);
    return status;
}
