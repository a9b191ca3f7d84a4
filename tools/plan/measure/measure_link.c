/* Measures the time of collectives between ranks, on the engine's own transports. */
#include <math.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/comm/comm.h"
#include "tools/plan/measure/measure.h"

enum { ROUNDS = 15 };

struct calls {
    struct comm_group *group;
    float *source, *target;
    void *staging;
    uint64_t share; /* in elements */
};

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double measure_median(double *values, uint32_t count) {
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

/* Seconds of one call: the median of several; negative: the call failed. */
static double time_call(const struct calls *c, enum comm_kind kind, uint64_t share) {
    double seconds[ROUNDS];
    struct comm_call call = {.kind = kind, .count = share, .target = c->target, .staging = c->staging};
    call.source = kind == COMM_ALL_GATHER ? c->source + comm_group_index(c->group) * share : c->source;
    for (int i = 0; i < ROUNDS; i++) {
        if (comm_run(c->group, &(struct comm_call){.kind = COMM_BARRIER})) return -1;
        uint64_t began = clock_now_ns();
        if (comm_run(c->group, &call)) return -1;
        seconds[i] = (double)(clock_now_ns() - began) * 1e-9;
    }
    return measure_median(seconds, ROUNDS);
}

static bool time_calls(const struct calls *c, struct measured_link *out) {
    uint32_t ranks = comm_group_size(c->group);
    double bytes = (double)(ranks - 1) * (double)c->share * sizeof(float), steps = ceil(log2(ranks));
    double small = time_call(c, COMM_ALL_GATHER, 16);
    double gather = time_call(c, COMM_ALL_GATHER, c->share);
    double reduce = time_call(c, COMM_REDUCE_SCATTER, c->share);
    if (small < 0 || gather < 0 || reduce < 0) return false;
    out->latency_s = small / steps;
    out->per_s = bytes / fmax(gather - small, gather / 10);
    out->reduce_per_s = bytes / fmax(reduce - small, reduce / 10);
    return true;
}

static bool measure_group(struct comm_group *group, uint64_t bytes, struct measured_link *out) {
    uint32_t ranks = comm_group_size(group);
    struct calls c = {.group = group, .share = (bytes / sizeof(float) / ranks + 15) / 16 * 16};
    struct comm_call reduce = {.kind = COMM_REDUCE_SCATTER, .count = c.share};
    c.source = calloc(ranks * c.share, sizeof(float));
    c.target = calloc(ranks * c.share, sizeof(float));
    c.staging = calloc(1, comm_staging_bytes(group, &reduce) + 1);
    bool measured = c.source && c.target && c.staging && time_calls(&c, out);
    free(c.source), free(c.target), free(c.staging);
    return measured;
}

static bool measure_world(struct comm *comm, uint64_t bytes, struct measured_link *out) {
    uint32_t ranks = comm_size(comm), *members = malloc(ranks * sizeof *members);
    struct comm_group *group;
    if (!members) return false;
    for (uint32_t r = 0; r < ranks; r++) members[r] = r;
    bool opened = comm_group_open(comm, members, ranks, &group) == ZERO_OK;
    bool measured = opened && (ranks == 1 || measure_group(group, bytes, out));
    if (opened) comm_group_close(group);
    free(members);
    return measured;
}

struct link_task {
    const struct measure_options *o;
    struct local_world *world;
    struct measured_link *link; /* index: rank */
    bool failed;
};

static void link_rank(struct measure_team *team, uint32_t rank, void *user) {
    struct link_task *t = user;
    struct comm_options options = {.rank = rank, .size = t->o->ranks, .local = t->world};
    struct comm *comm = NULL;
    struct zero_error error = ERROR_NONE;
    measure_together(team);
    if (comm_open(&comm_local_ops, &options, &comm, &error) ||
        !measure_world(comm, t->o->bytes, &t->link[rank]))
        t->failed = true;
    comm_close(comm);
}

zero_status measure_local(const struct measure_options *o, struct measured_link *out,
                          struct zero_error *error) {
    struct link_task task = {o, local_world_create(o->ranks), calloc(o->ranks, sizeof(struct measured_link)),
                             false};
    zero_status status = ZERO_OK;
    if (!task.world || !task.link)
        status = error_set(error, ZERO_E_MEMORY, "no memory for a world of %u ranks", o->ranks);
    if (!status) status = measure_run(o->ranks, link_rank, &task, error);
    if (!status && task.failed)
        status = error_set(error, ZERO_E_INTERNAL, "collectives between threads failed");
    if (!status) *out = task.link[0];
    if (task.world) local_world_destroy(task.world);
    free(task.link);
    return status;
}

zero_status measure_comm(struct comm *comm, uint64_t bytes, struct measured_link *out,
                         struct zero_error *error) {
    if (measure_world(comm, bytes, out)) return ZERO_OK;
    zero_status status = error_pass(error, comm_error(comm));
    return status ? status : error_set(error, ZERO_E_MEMORY, "no memory to measure with");
}

zero_status measure_mpi(uint64_t bytes, struct measured_link *out, struct zero_error *error) {
    struct comm *comm;
    TRY(comm_open(&comm_mpi_ops, &(struct comm_options){0}, &comm, error));
    zero_status status = measure_comm(comm, bytes, out, error);
    comm_close(comm);
    return status;
}
