#include "tools/plan/timeline.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/integer.h"
#include "tools/plan/loop.h"

enum { STEPS = 4 /* only the last one is priced */ };

/* What a lap of an operation waits for its turn on: the bus out of the device, and into it; links; the device's memory, for sums, norms
 * and updates; the host's memory; the drive. */
enum turn {
    TURN_OUT,
    TURN_IN,
    TURN_LINK,
    TURN_SUM,
    TURN_NORM,
    TURN_UPDATE,
    TURN_STREAM, /* of calls whose parts come one after the other */
    TURN_HOST,
    TURN_READ,
    TURN_WRITE
};

struct lap {
    enum turn turn;
    uint64_t amount; /* bytes; of sums, norms and updates on the device: ns */
    struct speeds_call call;
    uint32_t more; /* such calls follow, one after another; others take turns with them */
};

enum { LAPS_MAX = 8 };

/* An operation that was started. A lap takes its turn when the one before has ended, so nothing waits for data that have not come. */
struct pending {
    uint64_t ticket, finish_ns; /* finish_ns: of its present lap */
    bool core;                  /* it runs on a core that the host may want, too */
    uint8_t laps, begun;
    struct lap lap[LAPS_MAX];
};

struct way { /* one direction between the device and its host */
    uint64_t free_ns, busy_ns;
};

enum { OUT, IN };

struct timeline {
    const struct timeline_options *o;
    struct speeds speeds;
    struct executor_options e;
    struct executor *executor;
    struct loop loop;
    enum outcome outcome; /* of all steps */
    struct zero_error *error;
    uint64_t now, computing_until; /* computing_until: 0: the host waits */
    /* When the started operations end. */
    uint64_t inside_free, between_free, stream_free, update_free, core_free, norm_free;
    struct speeds_turns drive;
    uint64_t memory_ns;       /* speeds_pass, of the host */
    uint64_t stored, fetched; /* tickets: the last checkpoint leaves, the next one comes */
    bool ahead;               /* the next one is on its way */
    struct pending *pending;
    uint32_t pendings, pendings_max;
    uint64_t tickets;
    bool failed; /* no memory for an entry of `pending` */
    uint64_t busy[RESOURCES];
    struct way bus[2]; /* out of the device, and into it */
    struct step_price price;
};

const char *resource_name(enum resource resource) {
    static const char *const names[RESOURCES] = {"compute", "link", "update", "drive", "bus"};
    return names[resource];
}

/* ---- times of operations ---- */

/* The elements of this rank's shard that an item moves. */
static uint64_t part_bytes(const struct timeline *t, const struct operation *op, uint32_t item,
                           enum dtype dtype) {
    const struct policy *p = t->e.shape.policy;
    uint64_t shard = t->e.shape.model->region[op->region].padded /
                     placement_parts(p->region[op->region].state, p->mesh),
             first = item * op->piece;
    return (op->piece ? min64(op->piece, shard - first) : shard) * dtype_bytes(dtype);
}

/* True if data in the tier must cross the bus to the device. */
static bool crosses(const struct timeline *t, enum tier_kind tier) {
    return t->e.plan->terms->discrete && tier != TIER_DEVICE;
}

/* True if the buffer is planned and its memory is on the host. */
static bool rests_on_host(const struct timeline *t, enum buffer_kind kind, uint16_t region) {
    uint32_t buffer = plan_fixed(t->e.plan, (struct buffer_ref){kind, region});
    return buffer != NO_BUFFER && crosses(t, t->e.plan->row_tier[t->e.plan->buffer[buffer].row]);
}

static void add_lap(struct pending *p, enum turn turn, uint64_t amount) {
    if (amount) p->lap[p->laps++] = (struct lap){.turn = turn, .amount = amount};
}

/* Links inside and between nodes work at the same time, but for sums by levels, whose calls are on one stream. */
static void add_calls(struct pending *p, struct speeds_call all, uint32_t calls) {
    if (all.in_turn) {
        add_lap(p, TURN_STREAM, all.inside_ns + all.between_ns);
        p->lap[p->laps++] =
            (struct lap){.turn = TURN_LINK, .call = {.inside_ns = all.inside_ns, .in_turn = true}};
        p->lap[p->laps++] =
            (struct lap){.turn = TURN_LINK, .call = {.between_ns = all.between_ns, .in_turn = true}};
    } else if (calls) {
        all.inside_ns /= calls, all.between_ns /= calls;
        p->lap[p->laps++] = (struct lap){.turn = TURN_LINK, .call = all, .more = calls - 1};
    }
}

/* All calls of an item. */
static void add_calls_of(struct timeline *t, const struct operation *op, uint32_t item, struct pending *p) {
    struct executor_round round = {0};
    struct comm_call call;
    struct speeds_call all = {0};
    bool gathers = op->kind == OP_GATHER;
    uint32_t calls = 0;
    for (; executor_next_call(&t->e.shape, op, item, &round, &call); calls++) {
        const struct comm_group *group = t->e.shape.group[round.axes][op->stream];
        uint32_t ranks = comm_group_size(group),
                 nodes = speeds_nodes(&t->speeds, comm_group_ranks(group), ranks);
        struct comm_sent sent = comm_call_sent(group, &call);
        struct speeds_call one = speeds_collective(&t->speeds, ranks, nodes, &sent, 0, !gathers);
        t->price.wire_bytes += sent.bytes;
        *(gathers ? &t->price.gather_calls : &t->price.reduce_calls) += 1;
        all.inside_ns += one.inside_ns, all.between_ns += one.between_ns;
        all.in_turn |= one.in_turn;
    }
    add_calls(p, all, calls);
}

/* Each rank sends its contribution to a step to all other ranks. */
static struct speeds_call agreement_ns(const struct timeline *t) {
    uint32_t ranks = t->o->blueprint->ranks;
    const struct comm_sent sent = {.ring = (ranks - 1) * sizeof(struct agreement)};
    return speeds_collective(&t->speeds, ranks, t->o->nodes, &sent, 0, false);
}

/* True if the host updates for a discrete device. */
static bool host_updates(const struct timeline *t, const struct chunk_range *range) {
    return plan_host_updates(t->e.plan) && !range->device;
}

/* The bytes of an element that a leg reads and writes. A leg that leaves the weights reads the masters, and no averages. Parameters are
 * read only if they are the masters, or halves of them. */
static uint64_t leg_bytes(const struct update_leg *leg, const struct chunk_format *format, bool joins) {
    uint64_t bytes = 0, param = dtype_bytes(format->param_dtype);
    for (uint32_t k = 0; k < format->arrays; k++) {
        uint8_t array = k < format->moments ? ARRAY_MOMENTS : ARRAY_WEIGHTS;
        bool writes = leg->writes & array, average = k >= format->moments && k < format->states,
             reads = leg->reads & array && (writes || !average);
        bytes += (uint64_t)(reads + writes) * format->array_bytes[k];
    }
    bytes += leg->reads & ARRAY_GRADIENT ? dtype_bytes(format->grad_dtype) : 0;
    bytes += ((leg->makes == BUFFER_DIRECTION) + (leg->takes == BUFFER_DIRECTION)) * sizeof(float);
    return bytes + (leg->reads & ARRAY_PARAMS && joins ? param : 0) +
           (leg->writes & ARRAY_PARAMS ? param : 0);
}

/* The bytes of memory that an update moves. */
static uint64_t update_bytes(const struct timeline *t, const struct operation *op,
                             const struct chunk_range *range) {
    const struct precision type = blueprint_precision_of(t->o->blueprint, op->region), *p = &type;
    const struct chunk_layout *layout = &t->e.plan->layout;
    const struct chunk_format *format = &layout->format[layout->kind[op->region]];
    bool joins = !precision_keeps_masters(p) || p->split;
    return range->count * leg_bytes(policy_leg(t->e.shape.policy, op), format, joins);
}

/* ---- turns ---- */

/* On shared cores, while the host and other work both want a core, each gets half of it. */
static uint64_t take_core(struct timeline *t, enum resource resource, uint64_t ns) {
    uint64_t begin = max64(t->now, t->core_free),
             shared = t->computing_until > begin ? min64(ns, t->computing_until - begin) : 0;
    t->busy[resource] += ns;
    if (shared) t->computing_until += shared;
    t->core_free = begin + ns + shared;
    return t->core_free;
}

/* The host begins to compute. Work that already runs on the host's core slows the host down, and the host slows that
 * work down. */
static uint64_t share_core(struct timeline *t, uint64_t ns) {
    if (!t->o->machine->device.shares_cores || t->core_free <= t->now) return ns;
    uint64_t shared = min64(ns, t->core_free - t->now);
    for (uint32_t i = 0; i < t->pendings; i++)
        if (t->pending[i].core) t->pending[i].finish_ns += shared;
    t->core_free += shared;
    return ns + shared;
}

static uint64_t take(const struct timeline *t, uint64_t *free_at, uint64_t ns) {
    *free_at = max64(t->now, *free_at) + ns;
    return *free_at;
}

static uint64_t cross(struct timeline *t, int way, uint64_t bytes) {
    uint64_t ns = speeds_ns(bytes, t->speeds.bus_bytes_per_s);
    t->bus[way].busy_ns += ns;
    speeds_pass(&t->speeds, &t->memory_ns, t->now, bytes);
    return take(t, &t->bus[way].free_ns, ns);
}

/* The host moves so many bytes through its memory, after what it does already. */
static uint64_t host_moves(struct timeline *t, uint64_t bytes) {
    uint64_t began = max64(t->now, t->update_free),
             passed = speeds_pass(&t->speeds, &t->memory_ns, t->now, bytes);
    t->update_free = max64(began + speeds_ns(bytes, t->speeds.update_bytes_per_s), passed);
    t->busy[RESOURCE_UPDATE] += t->update_free - began;
    return t->update_free;
}

static uint64_t communicate(struct timeline *t, struct speeds_call call) {
    uint64_t longer = max64(call.inside_ns, call.between_ns), finish = t->now;
    if (t->o->machine->device.shares_cores) return take_core(t, RESOURCE_LINK, longer);
    t->busy[RESOURCE_LINK] += longer;
    if (call.inside_ns) finish = take(t, &t->inside_free, call.inside_ns);
    return call.between_ns ? max64(finish, take(t, &t->between_free, call.between_ns)) : finish;
}

static uint64_t device_updates(struct timeline *t, uint64_t ns) {
    if (t->o->machine->device.shares_cores) return take_core(t, RESOURCE_UPDATE, ns);
    t->busy[RESOURCE_UPDATE] += ns;
    return take(t, &t->update_free, ns);
}

static uint64_t transfer(struct timeline *t, bool write, uint64_t bytes) {
    uint64_t began = max64(t->now, t->drive.free_ns);
    *(write ? &t->price.drive_write_bytes : &t->price.drive_read_bytes) += bytes;
    uint64_t finish = speeds_transfer(&t->speeds, &t->drive, t->now, write, bytes);
    t->busy[RESOURCE_DRIVE] += t->drive.free_ns - began;
    if (!t->o->machine->device.shares_cores) return finish;
    return max64(finish, take_core(t, RESOURCE_UPDATE, speeds_ns(bytes, t->speeds.device_bytes_per_s)));
}

/* When a lap that begins now ends. */
static uint64_t begin_lap(struct timeline *t, const struct lap *lap) {
    uint64_t finish;
    switch (lap->turn) {
    case TURN_OUT:
    case TURN_IN:
        return cross(t, lap->turn == TURN_IN ? IN : OUT, lap->amount);
    case TURN_LINK:
        finish = communicate(t, lap->call);
        if (lap->call.in_turn) t->stream_free = max64(t->stream_free, finish); /* links may have more to do */
        return finish;
    case TURN_STREAM: /* ends at once; the laps behind it use the stream */
        return take(t, &t->stream_free, lap->amount) - lap->amount;
    case TURN_SUM:
        return take(t, &t->inside_free, lap->amount);
    case TURN_NORM:
        return take(t, &t->norm_free, lap->amount);
    case TURN_UPDATE:
        return device_updates(t, lap->amount);
    case TURN_HOST:
        return host_moves(t, lap->amount);
    default:
        return transfer(t, lap->turn == TURN_WRITE, lap->amount);
    }
}

/* Begins the laps whose turn has come. False: the operation has ended. */
static bool go_on(struct timeline *t, struct pending *p) {
    while (p->finish_ns <= t->now && p->begun < p->laps) {
        struct lap *lap = &p->lap[p->begun];
        bool waits = lap->turn == TURN_STREAM && t->stream_free > t->now;
        p->finish_ns = waits ? t->stream_free : begin_lap(t, lap);
        if (lap->more)
            lap->more--;
        else
            p->begun += !waits;
    }
    return p->finish_ns > t->now;
}

/* Its laps begin. Returns the ticket. */
static uint64_t post(struct timeline *t, struct pending *p) {
    p->ticket = ++t->tickets, p->finish_ns = t->now;
    if (!go_on(t, p)) return p->ticket;
    if (t->pendings == t->pendings_max) {
        uint32_t max = t->pendings_max ? 2 * t->pendings_max : 256;
        struct pending *more = realloc(t->pending, max * sizeof *more);
        if (!more) {
            t->failed = true;
            return p->ticket;
        }
        t->pending = more;
        t->pendings_max = max;
    }
    t->pending[t->pendings++] = *p;
    return p->ticket;
}

/* ---- laps of operations ---- */

/* A shard in host memory crosses to the device first. A whole gradient that the host's update needs crosses to the host
 * after the gather. */
static void gather(struct timeline *t, const struct operation *op, uint32_t item, struct pending *p) {
    struct precision type = blueprint_precision_of(t->o->blueprint, op->region);
    enum dtype dtype = op->object == OBJECT_GRAD ? type.reduced : type.compute;
    bool brings = op->object == OBJECT_PARAM && op->read[0].kind != BUFFER_PARAM_FULL &&
                  op->read[0].kind != BUFFER_PARAM_SECOND && crosses(t, t->e.plan->terms->param_tier);
    bool leaves = op->object == OBJECT_GRAD && rests_on_host(t, BUFFER_GRAD_HOST, op->region);
    if (brings) add_lap(p, TURN_IN, part_bytes(t, op, item, dtype));
    add_calls_of(t, op, item, p);
    if (leaves) add_lap(p, TURN_OUT, t->e.shape.model->region[op->region].padded * dtype_bytes(dtype));
}

/* A device that reduces alone sums in its own memory. In the gradient's place this only reads. */
static uint64_t sum_alone_ns(const struct timeline *t, const struct operation *op, uint32_t item) {
    const struct precision p = blueprint_precision_of(t->o->blueprint, op->region);
    if (!t->e.plan->terms->discrete || comm_group_size(t->e.shape.group[op->axes][op->stream]) > 1) return 0;
    bool scatters = op->reads > 0, stays = !scatters || t->e.shape.policy->region[op->region].grad_in_place;
    uint64_t source = part_bytes(t, op, item, scatters ? p.message : p.reduced),
             target = stays ? 0 : part_bytes(t, op, item, p.reduced);
    return speeds_ns(source + (op->add ? 2 : 1) * target, t->speeds.device_bytes_per_s);
}

/* A gradient shard in host memory crosses to the device first, if the device adds to it or sums it over the replicate axis. The
 * result crosses back to the host, which may add it there. */
static void reduce(struct timeline *t, const struct operation *op, uint32_t item, struct pending *p) {
    bool host = op->object == OBJECT_GRAD && op->write[0].kind != BUFFER_GRAD_HELD &&
                rests_on_host(t, BUFFER_GRAD_SHARD, op->region);
    uint64_t bytes = part_bytes(t, op, item, blueprint_precision_of(t->o->blueprint, op->region).reduced);
    bool adds = host && executor_host_adds(&t->e.shape, op);
    if (host && (op->add || !op->reads) && !adds) add_lap(p, TURN_IN, bytes);
    add_calls_of(t, op, item, p);
    add_lap(p, TURN_SUM, sum_alone_ns(t, op, item));
    if (executor_norm_apart(&t->e.shape, op, adds))
        add_lap(p, TURN_NORM, speeds_ns(bytes, t->speeds.device_bytes_per_s));
    if (host) add_lap(p, TURN_OUT, bytes);
    if (adds) add_lap(p, TURN_HOST, 3 * bytes); /* reads two arrays, writes one */
}

/* True if the parameters cross to the host because its update reads weights: the parameters are the masters, or
 * halves of them. Norms of tensors are on the host. */
static bool brings_params(const struct timeline *t, const struct operation *op,
                          const struct chunk_range *range) {
    const struct precision p = blueprint_precision_of(t->o->blueprint, op->region);
    const struct update_leg *leg = policy_leg(t->e.shape.policy, op);
    const struct buffer_ref *ref = leg->writes & ARRAY_PARAMS ? &op->write[0] : &op->read[1];
    bool joins = !precision_keeps_masters(&p) || p.split,
         slot = leg->writes & ARRAY_PARAMS ? ref->kind == BUFFER_STATE : op->reads < 2;
    return leg->reads & ARRAY_PARAMS && host_updates(t, range) && joins && !slot &&
           !rests_on_host(t, (enum buffer_kind)ref->kind, op->region);
}

/* If the host updates parameters on a device, the new parameters cross to the device afterwards; if the host reads the weights,
 * they cross to the host before. If the device updates and the shard's gradient is in host memory, the gradient crosses to the
 * device. Directions are on the device. */
static void update(struct timeline *t, const struct operation *op, uint32_t item, struct pending *p) {
    const struct precision type = blueprint_precision_of(t->o->blueprint, op->region);
    struct chunk_range range = chunk_layout_updated(&t->e.plan->layout, op, item);
    const struct update_leg *leg = policy_leg(t->e.shape.policy, op);
    bool directs = leg->makes == BUFFER_DIRECTION, follows = leg->takes == BUFFER_DIRECTION,
         host = host_updates(t, &range);
    uint64_t moved = update_bytes(t, op, &range),
             bytes = range.count * dtype_bytes(directs ? DTYPE_F32 : type.compute);
    bool staged = host && op->write[0].kind != BUFFER_STATE &&
                  !rests_on_host(t, (enum buffer_kind)op->write[0].kind, op->region);
    if (follows && host) add_lap(p, TURN_OUT, range.count * sizeof(float));
    if (brings_params(t, op, &range)) add_lap(p, TURN_OUT, bytes);
    if (range.device && leg->reads & ARRAY_GRADIENT && rests_on_host(t, BUFFER_GRAD_SHARD, op->region))
        add_lap(p, TURN_IN, range.count * dtype_bytes(type.reduced));
    if (host)
        add_lap(p, TURN_HOST, moved);
    else
        add_lap(p, TURN_UPDATE, speeds_ns(moved, t->speeds.device_bytes_per_s));
    if (staged) add_lap(p, TURN_IN, bytes);
}

static uint64_t matrices_ns(const struct timeline *t, const struct operation *op) {
    return speeds_ns((uint64_t)executor_matrix_flops(&t->e.shape, op->region, 0),
                     speeds_matrix_flops(&t->speeds));
}

/* The sum of a use's micro-batches, which waited on the device, crosses to the host. */
static void store(struct timeline *t, const struct operation *op, uint32_t item, struct pending *p) {
    bool held =
        t->e.plan->terms->discrete && op->object == OBJECT_GRAD && op->read[0].kind == BUFFER_GRAD_HELD;
    if (held) add_lap(p, TURN_OUT, chunk_layout_moved(&t->e.plan->layout, op, item).grad_used);
    add_lap(p, TURN_WRITE, executor_drive_bytes(t->e.plan, op, item));
}

static void start(void *user, const struct operation *op, uint32_t item, uint64_t *out_ticket) {
    struct timeline *t = user;
    struct pending p = {.core = t->o->machine->device.shares_cores};
    switch ((enum operation_kind)op->kind) {
    case OP_GATHER:
        gather(t, op, item, &p);
        break;
    case OP_REDUCE:
        reduce(t, op, item, &p);
        break;
    case OP_UPDATE:
        update(t, op, item, &p);
        break;
    case OP_MATRIX:
        add_lap(&p, TURN_UPDATE, matrices_ns(t, op));
        break;
    case OP_FETCH:
        add_lap(&p, TURN_READ, executor_drive_bytes(t->e.plan, op, item));
        p.core = false;
        break;
    case OP_STORE:
        store(t, op, item, &p);
        p.core = false;
        break;
    case OP_AGREE:
        add_calls(&p, agreement_ns(t), 1);
        break;
    default: /* releases take no time; copies and clears take little */
        break;
    }
    *out_ticket = post(t, &p);
}

static bool done(void *user, uint64_t ticket) {
    struct timeline *t = user;
    for (uint32_t i = 0; i < t->pendings; i++)
        if (t->pending[i].ticket == ticket) return false;
    return true;
}

/* ---- time ---- */

static zero_status fail(struct timeline *t) { return error_pass(t->error, executor_error(t->executor)); }

static zero_status poll_all(struct timeline *t) {
    bool moved = true;
    while (moved)
        if (executor_poll(t->executor, &moved)) return fail(t);
    return t->failed ? error_set(t->error, ZERO_E_MEMORY, "no memory for the operations of a priced step")
                     : ZERO_OK;
}

/* Advances the clock to the next end of an operation, or to `limit`. False: nothing ends. */
static bool advance(struct timeline *t, uint64_t limit) {
    uint64_t next = limit;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < t->pendings; i++) next = min64(next, t->pending[i].finish_ns);
    if (next == UINT64_MAX) return false;
    t->now = max64(t->now, next);
    for (uint32_t i = 0; i < t->pendings; i++) /* in their order, so that the oldest has the next turn */
        if (go_on(t, &t->pending[i])) t->pending[kept++] = t->pending[i];
    t->pendings = kept;
    return true;
}

static zero_status wait_move(struct timeline *t) {
    zero_status status = poll_all(t);
    while (!status && !loop_ready(&t->loop, t->executor)) {
        if (!advance(t, UINT64_MAX))
            return error_set(t->error, ZERO_E_INTERNAL, "the priced step is stuck: no operation can start");
        status = poll_all(t);
    }
    return status;
}

/* Operations that start meanwhile may take a part of the cores, and so delay the end. */
static zero_status compute(struct timeline *t, uint64_t ns) {
    zero_status status = ZERO_OK;
    t->computing_until = t->now + share_core(t, ns);
    t->busy[RESOURCE_COMPUTE] += ns;
    while (!status && t->now < t->computing_until) {
        advance(t, t->computing_until);
        status = poll_all(t);
    }
    t->computing_until = 0;
    return status;
}

static zero_status wait_for(struct timeline *t, uint64_t ticket) {
    while (!done(t, ticket)) {
        advance(t, UINT64_MAX);
        TRY(poll_all(t));
    }
    return ZERO_OK;
}

/* What a use needs comes from the drive, from the host, or from the drive by way of the host; and leaves as it came. */
static uint64_t bring(struct timeline *t, const struct pass_use *use) {
    struct pending p = {0};
    if (use->fetches) add_lap(&p, TURN_READ, t->o->checkpoint_bytes);
    add_lap(&p, TURN_IN, use->enters * t->o->stream_bytes);
    return post(t, &p);
}

static uint64_t send(struct timeline *t, const struct pass_use *use) {
    struct pending p = {0};
    add_lap(&p, TURN_OUT, use->leaves * t->o->stream_bytes);
    if (use->stores) add_lap(&p, TURN_WRITE, t->o->checkpoint_bytes);
    return post(t, &p);
}

static bool needs(const struct pass_use *use) { return use->fetches || use->enters; }

/* The next use of the pass that needs something, from the use `from` on; then it is brought ahead. */
static void bring_ahead(struct timeline *t, uint32_t from) {
    const struct pass *pass = t->o->pass;
    while (from < pass->uses && !needs(&pass->use[from])) from++;
    t->ahead = from < pass->uses;
    if (t->ahead) t->fetched = bring(t, &pass->use[from]);
}

/* With checkpoints on the drive or the host, a use waits for what it needs, which was brought ahead; and for what the one before left,
 * where it leaves something, too: tools/gpt has slots for more. A backward's first need is brought from its beginning on. */
static zero_status use(struct timeline *t) {
    const struct pass_use *use = loop_use(&t->loop);
    bool again = t->loop.within + 1 < t->loop.use_micros;
    zero_status status = ZERO_OK;
    if (use->position == 0 && !t->loop.within) t->ahead = false;
    if (!t->ahead && (needs(use) || use->position >= t->loop.forwards)) bring_ahead(t, t->loop.use);
    if (needs(use)) {
        status = wait_for(t, t->fetched);
        bring_ahead(t, t->loop.use + !again);
    }
    if (!status) status = compute(t, use->compute_ns);
    if (status || !(use->stores || use->leaves)) return status;
    status = wait_for(t, t->stored);
    t->stored = send(t, use);
    return status;
}

/* With a shadow: writes the page that says which step is complete on all ranks. Its turn on the drive comes after the stores of that
 * step. */
static void commit(struct timeline *t) {
    t->price.drive_write_bytes += CHUNK_ALIGN_BYTES;
    t->now = speeds_transfer(&t->speeds, &t->drive, t->now, true, CHUNK_ALIGN_BYTES);
    executor_set_commits(t->executor, false);
}

/* Waits until the loop's next move is ready, does the host's work, and emits the move's event. */
static zero_status move(struct timeline *t) {
    static const struct optimizer_scalars scalars[2];
    static const struct update_settings update = {.scale = 1, .scalars = scalars, .count = 2};
    static const struct agreement mine;
    loop_prepare(&t->loop);
    t->loop.event.outcome = t->outcome, t->loop.event.update = &update, t->loop.event.mine = &mine;
    TRY(wait_move(t));
    if (loop_commits(&t->loop, t->executor)) commit(t);
    if (t->loop.next == MOVE_COMPUTE) TRY(use(t));
    return loop_emit(&t->loop, t->executor) ? fail(t) : ZERO_OK;
}

static zero_status step(struct timeline *t) {
    uint32_t steps = t->loop.step + 1;
    zero_status status = ZERO_OK;
    for (; !status && !loop_ended(&t->loop, steps); loop_advance(&t->loop)) status = move(t);
    return status;
}

/* The last of some steps. */
static zero_status price_steps(struct timeline *t, struct step_price *out) {
    zero_status status = ZERO_OK;
    for (int k = 0; k < STEPS && !status; k++) {
        uint64_t began = t->now;
        t->price = (struct step_price){0};
        memset(t->busy, 0, sizeof t->busy);
        t->bus[OUT].busy_ns = t->bus[IN].busy_ns = 0;
        status = step(t);
        t->price.seconds = (double)(t->now - began) * 1e-9;
    }
    t->busy[RESOURCE_BUS] = max64(t->bus[OUT].busy_ns, t->bus[IN].busy_ns);
    for (int r = 0; r < RESOURCES; r++) t->price.busy_s[r] = (double)t->busy[r] * 1e-9;
    *out = t->price;
    return status;
}

/* The steps after those of `out`, if updates can be repeated: in these steps all updates are. */
static zero_status price_repeated(struct timeline *t, struct step_price *out) {
    const struct blueprint *b = t->o->blueprint;
    struct step_price repeated;
    if (!b->policy.repeats) return ZERO_OK;
    out->repeat_read_bytes = plan_repeat_read_bytes(&b->plan);
    out->repeat_write_bytes = plan_repeat_write_bytes(&b->plan);
    t->outcome = OUTCOME_REPEATED;
    zero_status status = price_steps(t, &repeated);
    out->repeated_seconds = repeated.seconds;
    return status;
}

zero_status timeline_step(const struct timeline_options *o, struct step_price *out,
                          struct zero_error *error) {
    struct timeline t = {.o = o, .error = error};
    struct blueprint *b = o->blueprint;
    struct agreement agreements[2]; /* the rank's own, and unused room */
    struct performer performer = {start, done, &t};
    struct executor_mechanisms mechanisms = {.performer = &performer, .agreements = agreements};
    t.speeds = machine_speeds(o->machine, (double)b->ranks / o->nodes, b->terms.precision.compute);
    t.e = blueprint_executor_options(b);
    TRY(executor_open(&t.e, &mechanisms, &t.executor, error));
    executor_set_commits(t.executor, b->plan.terms->shadow && !b->policy.update_in_backward);
    t.loop = loop_begin(o->pass, &b->policy);
    struct step_price price;
    zero_status status = price_steps(&t, &price);
    if (!status) status = price_repeated(&t, &price);
    executor_close(t.executor);
    free(t.pending);
    if (!status) *out = price;
    return status;
}
