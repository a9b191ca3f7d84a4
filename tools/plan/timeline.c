#include "tools/plan/timeline.h"

#include <math.h>
#include <string.h>

#include "engine/executor.h"

enum { PENDING_MAX = 8192, STEPS = 4 /* the last one is priced */ };

struct pending { /* what was started */
    uint64_t ticket;
    double finish;
    bool core; /* it takes its time on a core that the host may want, too */
};

struct timeline {
    const struct timeline_options *o;
    struct executor_options e;
    struct executor *executor;
    struct zero_error *error;
    double now, computing_until; /* computing_until: 0: the host waits */
    double free_at[RESOURCES]; /* when what was started on it is over; of compute: of what shares its core */
    double read_free_at, write_free_at; /* a drive's two ways */
    struct pending pending[PENDING_MAX];
    uint32_t pendings;
    uint64_t tickets;
    double node_ranks;
    struct step_price price;
};

const char *resource_name(enum resource resource) {
    static const char *const names[RESOURCES] = {"compute", "link", "update", "drive"};
    return names[resource];
}

/* ---- what operations take ---- */

static uint64_t part_bytes(const struct timeline *t, const struct operation *op, enum dtype dtype) {
    const struct policy *p = t->e.policy;
    return t->e.model->region[op->region].padded / placement_parts(p->region[op->region].state, p->mesh) *
           dtype_bytes(dtype);
}

static bool crosses(const struct timeline *t, enum tier_kind tier) {
    return !t->o->machine->device.is_host && tier != TIER_DEVICE;
}

static double call_s(struct timeline *t, const struct operation *op) {
    struct comm_group *group = t->e.group[op->axes][op->stream];
    uint32_t ranks = comm_group_size(group);
    struct comm_call call = executor_call(&t->e, op);
    struct comm_sent sent = comm_call_sent(&call, ranks);
    bool gathers = op->kind == OP_GATHER;
    t->price.wire_bytes += sent.bytes;
    *(gathers ? &t->price.gather_calls : &t->price.reduce_calls) += 1;
    double seconds = machine_collective_s(t->o->machine, ranks, t->o->nodes < ranks ? t->o->nodes : ranks,
                                          !gathers, (double)sent.bytes);
    bool from_host = gathers && op->object == OBJECT_PARAM && op->read[0].kind != BUFFER_PARAM_FULL &&
                     crosses(t, t->e.plan->param_tier);
    if (from_host) seconds += (double)part_bytes(t, op, call.dtype) / t->o->machine->host.device_per_s;
    return seconds;
}

/* Elements of the shard that one item of an update is about: a chunk, or all that is in memory. */
static uint64_t updated_elements(const struct timeline *t, const struct operation *op, uint32_t item) {
    const struct swap *swap = &t->e.plan->swap;
    return op->pipe.used ? swap_chunk(swap, op->region, op->first + item).count
                         : swap_resident_elements(swap, op->region);
}

/* The gradient is read; states and masters are read and written, or the parameters where they are the masters; else
 * these are written. Where state is not on the device, the host updates, and gradients and parameters cross. */
static double update_s(const struct timeline *t, const struct operation *op, uint32_t item) {
    const struct precision *p = &t->e.precision;
    const struct machine *m = t->o->machine;
    uint32_t array[PRECISION_ARRAYS_MAX], arrays = precision_arrays(p, t->e.state_count, array), bytes = 0;
    for (uint32_t k = 0; k < arrays; k++) bytes += 2 * array[k];
    uint32_t gradient = dtype_bytes(p->reduced), param = dtype_bytes(p->compute);
    bytes += gradient + (precision_keeps_masters(p) ? param : 2 * param);
    double elements = (double)updated_elements(t, op, item);
    if (!crosses(t, t->e.plan->row_tier[MEMORY_STATE0])) return elements * bytes / m->device.memory_per_s;
    double host = elements * bytes / (m->host.memory_per_s / t->node_ranks);
    return fmax(host, elements * fmax(gradient, param) / m->host.device_per_s);
}

/* What transfer.c moves for one chunk. */
static uint64_t chunk_bytes(const struct timeline *t, const struct operation *op, uint32_t item) {
    struct chunk c = swap_chunk(&t->e.plan->swap, op->region, op->first + item);
    if (op->object == OBJECT_PARAM) return c.param_bytes;
    return c.state * c.record_bytes + c.params * c.param_bytes;
}

/* ---- turns ---- */

static double take_turn(struct timeline *t, enum resource resource, double seconds) {
    t->price.busy_s[resource] += seconds;
    t->free_at[resource] = fmax(t->now, t->free_at[resource]) + seconds;
    return t->free_at[resource];
}

/* On shared cores the host and what works beside it have half of a core each while both want it. */
static double take_core(struct timeline *t, enum resource resource, double seconds) {
    double begin = fmax(t->now, t->free_at[RESOURCE_COMPUTE]), left = t->computing_until - begin;
    double shared = left > 0 ? fmin(seconds, left) : 0;
    t->price.busy_s[resource] += seconds;
    if (left > 0) t->computing_until += shared;
    t->free_at[RESOURCE_COMPUTE] = begin + seconds + shared;
    return t->free_at[RESOURCE_COMPUTE];
}

/* The host begins to compute: what is at work on its core already is as much in its way as the other way round. */
static double share_core(struct timeline *t, double seconds) {
    double left = t->free_at[RESOURCE_COMPUTE] - t->now;
    if (!t->o->machine->device.shares_cores || !(left > 0)) return seconds;
    double shared = fmin(seconds, left);
    for (uint32_t i = 0; i < t->pendings; i++)
        if (t->pending[i].core) t->pending[i].finish += shared;
    t->free_at[RESOURCE_COMPUTE] += shared;
    return seconds + shared;
}

static double work(struct timeline *t, enum resource resource, double seconds) {
    return t->o->machine->device.shares_cores ? take_core(t, resource, seconds)
                                              : take_turn(t, resource, seconds);
}

/* One way at its own rate, both together at theirs. */
static double transfer(struct timeline *t, bool write, double bytes) {
    const struct hardware_drive *d = &t->o->machine->drive;
    double *way = write ? &t->write_free_at : &t->read_free_at;
    double share = t->node_ranks, both = fmax(d->mixed_per_s, write ? d->write_per_s : d->read_per_s);
    *way = fmax(t->now, *way) + bytes * share / (write ? d->write_per_s : d->read_per_s);
    bool other_idle = t->now >= (write ? t->read_free_at : t->write_free_at);
    double together = take_turn(t, RESOURCE_DRIVE, bytes * share / (other_idle ? both : d->mixed_per_s));
    return fmax(*way, together);
}

static double chunk_s(struct timeline *t, const struct operation *op, uint32_t item) {
    bool write = op->kind == OP_STORE;
    uint64_t bytes = chunk_bytes(t, op, item);
    *(write ? &t->price.drive_write_bytes : &t->price.drive_read_bytes) += bytes;
    double finish = transfer(t, write, (double)bytes);
    if (!t->o->machine->device.shares_cores) return finish;
    double checksum = (double)bytes / t->o->machine->device.memory_per_s;
    return fmax(finish, take_core(t, RESOURCE_UPDATE, checksum));
}

static void start(void *user, const struct operation *op, uint32_t item, uint64_t *out_ticket) {
    struct timeline *t = user;
    double finish = t->now;
    bool core = false;
    switch ((enum operation_kind)op->kind) {
    case OP_GATHER:
    case OP_REDUCE:
        finish = work(t, RESOURCE_LINK, call_s(t, op)), core = t->o->machine->device.shares_cores;
        break;
    case OP_UPDATE:
        finish = work(t, RESOURCE_UPDATE, update_s(t, op, item)), core = t->o->machine->device.shares_cores;
        break;
    case OP_FETCH:
    case OP_STORE:
        finish = chunk_s(t, op, item);
        break;
    case OP_AGREE:
        finish += machine_collective_s(t->o->machine, t->o->blueprint.ranks, t->o->nodes, false, 0);
        break;
    default: /* releases take no time; copies and clears little */
        break;
    }
    *out_ticket = ++t->tickets;
    if (finish > t->now && t->pendings < PENDING_MAX)
        t->pending[t->pendings++] = (struct pending){*out_ticket, finish, core};
}

static bool done(void *user, uint64_t ticket) {
    struct timeline *t = user;
    for (uint32_t i = 0; i < t->pendings; i++)
        if (t->pending[i].ticket == ticket) return false;
    return true;
}

/* ---- time ---- */

static zero_status fail(struct timeline *t) { return error_pass(t->error, executor_error(t->executor)); }

static zero_status settle(struct timeline *t) {
    bool moved = true;
    while (moved)
        if (executor_poll(t->executor, &moved)) return fail(t);
    return ZERO_OK;
}

/* The clock goes to the next thing that ends, or to `limit`. False: nothing does. */
static bool advance(struct timeline *t, double limit) {
    double next = limit;
    for (uint32_t i = 0; i < t->pendings; i++) next = fmin(next, t->pending[i].finish);
    if (isinf(next)) return false;
    t->now = fmax(t->now, next);
    for (uint32_t i = 0; i < t->pendings;)
        if (t->pending[i].finish <= t->now)
            t->pending[i] = t->pending[--t->pendings];
        else
            i++;
    return true;
}

static zero_status wait_for(struct timeline *t, bool (*holds)(const struct executor *, struct point),
                            struct point point) {
    zero_status status = settle(t);
    while (!status && !holds(t->executor, point)) {
        if (!advance(t, INFINITY))
            return error_set(t->error, ZERO_E_INTERNAL, "the priced step waits for nothing");
        status = settle(t);
    }
    return status;
}

static bool computing(const struct executor *e, struct point point) { return executor_computing(e); }
static bool has_room(const struct executor *e, struct point point) { return executor_has_room(e); }
static bool idle(const struct executor *e, struct point point) { return executor_idle(e); }

/* What starts meanwhile may take its part of the cores, and so put the end off. */
static zero_status compute(struct timeline *t, double seconds) {
    zero_status status = ZERO_OK;
    t->computing_until = t->now + share_core(t, seconds);
    t->price.busy_s[RESOURCE_COMPUTE] += seconds;
    while (!status && t->now < t->computing_until) {
        advance(t, t->computing_until);
        status = settle(t);
    }
    t->computing_until = 0;
    return status;
}

#define EVENT(t, call) ((call) ? fail(t) : ZERO_OK)

static zero_status use(struct timeline *t, uint32_t position) {
    zero_status status = wait_for(t, has_room, (struct point){0});
    if (!status) status = EVENT(t, executor_begin(t->executor, position));
    if (!status) status = wait_for(t, computing, (struct point){0});
    if (!status) status = compute(t, t->o->compute_s[position]);
    if (!status) status = wait_for(t, has_room, (struct point){0});
    return status ? status : EVENT(t, executor_end(t->executor));
}

/* As zero_micro_begin, the uses and zero_engine_step call the executor. */
static zero_status step(struct timeline *t) {
    const struct policy *p = t->e.policy;
    const struct agreement mine = {0};
    const struct optimizer_scalars scalars[2] = {0};
    struct point agreed;
    zero_status status = ZERO_OK;
    for (uint32_t micro = 1; micro <= p->micro_steps && !status; micro++) {
        status = wait_for(t, has_room, (struct point){0});
        if (!status) status = EVENT(t, executor_pass(t->executor, false, micro == p->micro_steps));
        for (uint32_t q = 0; q < 2 * p->uses && !status; q++) status = use(t, q);
    }
    if (!status) status = wait_for(t, has_room, (struct point){0});
    if (!status) status = EVENT(t, executor_agree(t->executor, &mine, &agreed));
    if (!status) status = wait_for(t, executor_reached, agreed);
    if (!status) status = wait_for(t, has_room, (struct point){0});
    if (!status) status = EVENT(t, executor_apply(t->executor, false, 1, scalars, 2, 0));
    return status || t->e.plan->tier_bytes[TIER_NVME] ? status : wait_for(t, idle, (struct point){0});
}

zero_status timeline_step(const struct timeline_options *o, struct step_price *out,
                          struct zero_error *error) {
    struct timeline t = {.o = o, .error = error};
    const struct blueprint *b = &o->blueprint;
    struct agreement agreements[2]; /* a rank's own, and room that nobody fills */
    struct performer performer = {start, done, &t};
    t.node_ranks = (double)b->ranks / o->nodes;
    t.e = (struct executor_options){.policy = b->policy,
                                    .model = b->model,
                                    .plan = b->plan,
                                    .optimizer = b->optimizer,
                                    .state_count = b->state_count,
                                    .precision = b->precision,
                                    .performer = &performer,
                                    .agreements = agreements};
    memcpy(t.e.group, b->group, sizeof t.e.group);
    zero_status status = executor_open(&t.e, &t.executor, error);
    if (status) return status;
    for (int k = 0; k < STEPS && !status; k++) {
        double began = t.now;
        t.price = (struct step_price){0};
        status = step(&t);
        t.price.seconds = t.now - began;
    }
    executor_close(t.executor);
    if (!status) *out = t.price;
    return status;
}
