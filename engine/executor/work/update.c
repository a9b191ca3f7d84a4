/* The update: the optimizer, on one part of a shard that is in memory or in a staging slot.
 *
 * Three cases. The host updates memory that it reaches. The device updates if it is discrete and holds the state. If
 * a discrete device holds the parameters and the host holds the state, the host updates: reduced shards are in the
 * host's memory (reduce.c), the host writes new weights to staging, and a copy brings them back to the device.
 *
 * The legs of an update (engine/base/update.h) differ in the arrays that they read and change; the table below has the work of each.
 * A leg that makes directions writes them in the place of the masters, and the next one reads them in the place of the gradient. A
 * discrete device holds them: to and from a host that updates they go through staging. Norms of tensors are in memory that the host
 * reaches: it makes the scalars of each tensor from them.
 *
 * A repeated update starts from the record of before the step's first update. The record's masters are also the old values of the
 * parameters; an update that is taken back restores only these.
 *
 * If part of a shard's state is on the device, the shard's gradient is in host memory. The device reads the gradient there, and
 * parameters that are there: host and device both reach pinned memory. */
#include "engine/executor/work/work.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/model/lent.h"
#include "kernels/cast.h"
#include "kernels/device_work.h"

struct update_argument {
    struct executor *executor;
    void *master, *state[OPTIMIZER_STATES_MAX]; /* address of element `begin`, as are gradient and out */
    float *average;                             /* the averaged weights, where they move; or NULL */
    void *out;                                  /* the parameters; NULL where they are the master */
    float *copy;                                /* where the record keeps the masters; or NULL */
    const void *gradient;
    struct tensor_norms *norms; /* of the region's tensors */
    uint64_t begin, end;        /* in elements of the shard */
    /* Regions in the host's own arrays, in place of the addresses above; or NULL. The gradient is lent only with the parameters. */
    const struct model_region *lent_params, *lent_grads;
    uint32_t region, scalars;
    const struct update_leg *leg;
    const struct leg_work *work;
    const struct optimizer *row; /* that the leg runs */
    struct precision types;      /* which type is where: directions are fp32 */
    uint32_t states;             /* that the leg reads */
    uint8_t outcome;             /* enum outcome */
    bool by_device;
    bool moves;   /* the leg moves the weights */
    bool directs; /* it makes directions */
    bool follows; /* it moves the weights along directions */
};

_Static_assert(sizeof(struct update_argument) <= DEVICE_ARGUMENT_BYTES, "arguments are copied into the work");

enum { UPDATE_SPANS = 5 + OPTIMIZER_STATES_MAX }; /* gradient, master, parameters, copy, average, states */
_Static_assert((int)UPDATE_SPANS <= (int)DEVICE_SPANS_MAX, "an update's memory fits its description");

static void *at(const void *base, uint64_t bytes) { return base ? (uint8_t *)base + bytes : NULL; }

/* Where this rank's shard begins in the region. */
static uint64_t shard_first(const struct executor *e, uint32_t region) {
    struct placement cut = e->o.shape.policy->region[region].state;
    return placement_part(cut, e->o.shape.policy->mesh, e->m.rank) *
           (e->o.shape.model->region[region].padded / placement_parts(cut, e->o.shape.policy->mesh));
}

static uint32_t master_bytes(const struct precision *p) {
    return precision_keeps_masters(p) ? precision_master_bytes(p) : sizeof(float);
}

/* The arguments for elements [begin, end) of the shard. The random bits depend on the element's place in the region,
 * not on its buffer or its rank. */
static struct optimizer_args args_of(const struct update_argument *a, uint64_t begin, uint64_t end,
                                     uint32_t scalars) {
    struct executor *e = a->executor;
    const struct precision p = a->types;
    struct scalar_set *set = &e->scalars[a->scalars];
    uint64_t skip = begin - a->begin;
    void *master = at(a->master, skip * master_bytes(&p));
    struct optimizer_args args = {.count = end - begin,
                                  .master = p.split ? NULL : master,
                                  .master_low = p.split ? master : NULL,
                                  .state_dtype = p.state,
                                  .rounding_key = set->rounding_key + ((uint64_t)a->region << 32),
                                  .first = shard_first(e, a->region) + begin,
                                  .gradient = at(a->gradient, skip * dtype_bytes(p.reduced)),
                                  .gradient_dtype = p.reduced,
                                  .gradient_scale = a->follows ? 1 : set->scale,
                                  .out = at(a->out, skip * dtype_bytes(p.compute)),
                                  .out_dtype = p.compute,
                                  .average = at(a->average, skip * sizeof(float)),
                                  .average_share = set->average_share,
                                  .scalars = &set->group[scalars],
                                  .threads = e->m.threads};
    for (uint32_t k = 0; k < a->states; k++) args.state[k] = at(a->state[k], skip * dtype_bytes(p.state));
    return args;
}

/* Takes the addresses of elements in the host's memory, as many as follow in one piece. False: they are in a gap. */
static bool take_lent(const struct update_argument *a, struct optimizer_args *args) {
    const struct precision p = precision_of(&a->executor->o.shape, a->region);
    uint64_t there;
    void *params = lent_at(a->lent_params, LENT_PARAMS, dtype_bytes(p.compute), args->first, &there);
    if (args->count > there) args->count = there;
    if (precision_keeps_masters(&p))
        args->out = params;
    else
        args->master = params;
    if (a->lent_grads)
        args->gradient = lent_at(a->lent_grads, LENT_GRADS, dtype_bytes(p.reduced), args->first, &there);
    return params;
}

/* `param`: the place of the run's first parameter in its region. */
typedef zero_status (*run_fn)(const struct update_argument *a, const struct optimizer_args *args,
                              uint32_t param, void *user);

/* The work of each leg on a run of parameters: by the host, and queued on the device. */
static const struct leg_work { run_fn host, device; } leg_work[SCOPES][UPDATE_LEGS_MAX];

/* Norms are taken separately for each part that a reduction cuts a region into, also if one rank has all parts. */
static uint64_t piece_end(const struct update_argument *a, uint64_t begin, uint64_t end) {
    uint64_t shard = shard_first(a->executor, a->region);
    if (!a->leg->ordered) return end;
    uint64_t part = tensor_part_end(a->executor, a->region, shard + begin) - shard;
    return part < end ? part : end;
}

/* Gaps between parameters are zero, and stay zero if the optimizer turns zeros into zeros. */
static zero_status run_pieces(const struct update_argument *a, uint64_t begin, uint64_t end, uint32_t scalars,
                              uint32_t param, run_fn run, void *user) {
    zero_status status = ZERO_OK;
    while (begin < end && !status) {
        struct optimizer_args args = args_of(a, begin, piece_end(a, begin, end), scalars);
        if (!a->lent_params || take_lent(a, &args)) status = run(a, &args, param, user);
        begin += args.count;
    }
    return status;
}

static uint64_t clamp(uint64_t value, uint64_t low, uint64_t high) {
    return value < low ? low : value > high ? high : value;
}

/* Norms are taken without the gap behind the parameter: a direction of zeros need not be zero. */
static uint64_t own_end(const struct update_argument *a, uint64_t shard, uint32_t param, uint64_t begin,
                        uint64_t next) {
    uint64_t end = tensor_end(a->executor, a->region, param);
    return clamp(end > shard ? end - shard : 0, begin, next);
}

/* Calls `run` once per run of parameters with the same scalars; once per piece, where they are lent; once per tensor, where their norms
 * count. */
static zero_status each_run(const struct update_argument *a, run_fn run, void *user) {
    struct executor *e = a->executor;
    const struct model_region *region = &e->o.shape.model->region[a->region];
    uint64_t shard = shard_first(e, a->region), begin = a->begin;
    uint32_t scalars = e->o.shape.model->param[region->param[0]].scalars, first = 0;
    bool alone = a->leg->makes == BUFFER_TENSOR_NORMS || a->leg->takes == BUFFER_TENSOR_NORMS;
    zero_status status = ZERO_OK;
    for (uint32_t i = 1; i <= region->params && begin < a->end && !status; i++) {
        const struct model_param *p = i < region->params ? &e->o.shape.model->param[region->param[i]] : NULL;
        if (p && p->scalars == scalars && !alone) continue;
        uint64_t next = p ? clamp(p->offset > shard ? p->offset - shard : 0, begin, a->end) : a->end,
                 until = next;
        if (a->leg->ordered) until = own_end(a, shard, first, begin, next);
        status = run_pieces(a, begin, until, scalars, first, run, user);
        begin = next, first = i;
        if (p) scalars = p->scalars;
    }
    return status;
}

static zero_status run_now(const struct update_argument *a, const struct optimizer_args *args, uint32_t param,
                           void *user) {
    optimizer_update(a->row, args);
    return ZERO_OK;
}

static zero_status measure(const struct update_argument *a, const struct optimizer_args *args, uint32_t param,
                           void *user) {
    tensor_measure_run(a->executor, a->region, param, args->first, args, a->norms);
    return ZERO_OK;
}

/* Each tensor has scalars of its own. */
static zero_status run_trusted(const struct update_argument *a, const struct optimizer_args *args,
                               uint32_t param, run_fn run, void *user) {
    struct optimizer_scalars scalars = *args->scalars;
    struct optimizer_args own = *args;
    tensor_trust(a->executor, a->region, param, a->norms, &scalars);
    own.scalars = &scalars;
    return run(a, &own, param, user);
}

static zero_status move_trusted(const struct update_argument *a, const struct optimizer_args *args,
                                uint32_t param, void *user) {
    return run_trusted(a, args, param, run_now, user);
}

/* Gives the parameters the values from before the step. Norms are taken from the record's copy. */
static void take_back(const struct update_argument *a) {
    const struct precision p = a->types;
    if (!a->moves) return;
    if (a->copy)
        memcpy(a->master, a->copy, (a->end - a->begin) * sizeof(float));
    else if (a->outcome == OUTCOME_SKIPPED)
        cast(a->out, p.compute, a->master, DTYPE_F32, a->end - a->begin);
}

static void run_update(void *argument) {
    const struct update_argument *a = argument;
    uint64_t started = clock_now_ns();
    if (a->outcome != OUTCOME_UPDATED) take_back(a);
    if (a->leg->ordered && a->begin == 0 && a->outcome != OUTCOME_SKIPPED)
        tensor_begin(a->executor, a->region, shard_first(a->executor, a->region), a->norms);
    if (a->outcome != OUTCOME_SKIPPED) each_run(a, a->work->host, NULL);
    if (a->copy && a->lent_params)
        lent_read(a->lent_params, LENT_PARAMS, sizeof(float), shard_first(a->executor, a->region) + a->begin,
                  a->end - a->begin, a->copy);
    else if (a->copy)
        memcpy(a->copy, a->master, (a->end - a->begin) * sizeof(float));
    atomic_fetch_add_explicit(&a->executor->update_ns, clock_now_ns() - started, memory_order_relaxed);
}

/* The update by the host. */
static const struct kernel update_kernel = {
    .name = "update", .run = run_update, .argument_bytes = sizeof(struct update_argument)};

/* The leg that changes weights moves their average, in the steps that do. */
static bool moves_average(const struct update_argument *a) {
    const struct executor *e = a->executor;
    bool moves = a->moves && a->outcome != OUTCOME_SKIPPED;
    return e->o.shape.terms->precision.average && moves && e->scalars[a->scalars].average_share != 0;
}

/* The part of the shard whose state is in the memory of one tier, or a chunk of it. */
static void whole_run(struct executor *e, const struct item *item, struct update_argument *a) {
    const struct precision p = a->types;
    a->gradient = at(a->gradient, a->begin * dtype_bytes(p.reduced));
    a->out = at(a->out, a->begin * dtype_bytes(p.compute));
    if (precision_keeps_masters(&p)) a->master = executor_master(e, a->region, a->begin);
    for (uint32_t k = 0; k < a->states; k++) a->state[k] = executor_state(e, a->region, k, a->begin);
    if (moves_average(a)) a->average = executor_state(e, a->region, e->o.state_count - 1, a->begin);
}

/* One chunk. Its data from the drive is in a slot now. */
static void one_chunk(struct executor *e, const struct item *item, struct update_argument *a) {
    const struct operation *op = &item->task->op;
    const struct precision p = a->types;
    struct chunk c = chunk_layout_moved(&e->o.plan->layout, op, item->index);
    uint8_t *slot = slot_address(e, op->sequence + item->index);
    a->gradient = c.grads ? slot + c.slot_grad : at(a->gradient, c.first * dtype_bytes(p.reduced));
    a->out = c.params ? slot + c.slot_param : at(a->out, c.first * dtype_bytes(p.compute));
    if (precision_keeps_masters(&p))
        a->master = c.state ? slot + c.array[c.states] : executor_master(e, a->region, c.first);
    if (precision_copies_masters(&p)) a->copy = (float *)(void *)(slot + c.array[c.states]);
    if (a->leg->ordered && op->outcome == OUTCOME_REPEATED && !precision_keeps_masters(&p))
        a->out = slot + c.array[c.states]; /* the copy, of before the step */
    for (uint32_t k = 0; k < a->states; k++)
        a->state[k] = c.state ? slot + c.array[k] : executor_state(e, a->region, k, c.first);
    if (!moves_average(a)) return;
    a->average = c.state ? (void *)(slot + c.array[c.states - 1])
                         : executor_state(e, a->region, e->o.state_count - 1, c.first);
}

/* An update's array in a buffer: of gradients, parameters or directions. */
static void *array_of(struct executor *e, const struct operation *op, struct buffer_ref ref, uint32_t buffer,
                      enum dtype dtype) {
    struct placement cut = e->o.shape.policy->region[op->region].state;
    if (ref.kind == BUFFER_DIRECTION) return part_of_directions(e, op->region, buffer, cut);
    return own_part_address(e, ref, buffer, cut, dtype);
}

/* The gradient, or what another leg made in its place. `left`: the whole gradient in the host's memory, or NULL. */
static const void *source_of(struct executor *e, const struct item *item, const struct update_argument *a,
                             const void *left) {
    const struct operation *op = &item->task->op;
    bool reads = a->leg->reads & ARRAY_GRADIENT;
    if (a->outcome == OUTCOME_SKIPPED || a->lent_grads || (!reads && !a->follows)) return NULL;
    return reads && left ? left : array_of(e, op, op->read[0], item->task->read[0], a->types.reduced);
}

/* The parameters, or the directions that it makes. A leg that leaves the weights reads them there; NULL: they are in the slot, or the
 * masters are enough. */
static void *target_of(struct executor *e, const struct item *item, const struct update_argument *a) {
    const struct task *t = item->task;
    const struct precision *p = &a->types;
    bool joins = !precision_keeps_masters(p) || p->split;
    if (a->lent_params) return NULL;
    if (a->moves || a->directs)
        return t->op.write[0].kind == BUFFER_STATE
                   ? NULL
                   : array_of(e, &t->op, t->op.write[0], t->write[0], p->compute);
    return joins && t->op.reads > 1 ? array_of(e, &t->op, t->op.read[1], t->read[1], p->compute) : NULL;
}

static void choose_leg(struct executor *e, const struct operation *op, struct update_argument *a) {
    enum optimizer_scope scope = policy_region(e, op->region)->scope;
    uint32_t all = e->o.state_count - e->o.shape.terms->precision.average;
    a->leg = policy_leg(e->o.shape.policy, op);
    a->work = &leg_work[scope][op->leg];
    a->moves = a->leg->writes & ARRAY_PARAMS;
    a->directs = a->leg->makes == BUFFER_DIRECTION;
    a->follows = a->leg->takes == BUFFER_DIRECTION;
    a->row = region_optimizer(e, op->region);
    if (a->directs) a->row = a->row->before;
    if (a->leg->reads & ARRAY_MOMENTS) a->states = a->row->state_count < all ? a->row->state_count : all;
    a->types = precision_of(&e->o.shape, op->region);
    if (a->directs) a->types.compute = DTYPE_F32, a->types.split = false;
    if (!a->moves) a->types.copies = false;
    if (a->follows) a->types.reduced = DTYPE_F32;
}

static struct update_argument argument_of(struct executor *e, const struct item *item) {
    const struct task *t = item->task;
    struct chunk_range range = chunk_layout_updated(&e->o.plan->layout, &t->op, item->index);
    struct update_argument a = {.executor = e,
                                .begin = range.first,
                                .end = range.first + range.count,
                                .by_device = e->o.shape.terms->discrete &&
                                             (range.device || !plan_host_updates(e->o.plan)),
                                .lent_params = lent_region(e, t->op.write[0]),
                                .lent_grads = lent_region(e, t->op.read[0]),
                                .region = t->op.region,
                                .outcome = t->op.outcome,
                                .scalars = t->scalars};
    choose_leg(e, &t->op, &a);
    struct buffer_ref left = {BUFFER_GRAD_HOST, t->op.region};
    a.gradient = source_of(e, item, &a, range.device ? NULL : executor_address(e, left));
    a.out = target_of(e, item, &a);
    if (a.leg->makes == BUFFER_TENSOR_NORMS) a.norms = buffer_address(e, t->write[0]);
    if (a.leg->takes == BUFFER_TENSOR_NORMS && t->op.reads) a.norms = buffer_address(e, t->read[0]);
    (t->op.pipe.used ? one_chunk : whole_run)(e, item, &a);
    return a;
}

/* ---- between a discrete device and the host that updates for it ---- */

static bool updates_through_staging(const struct executor *e, const struct update_argument *a) {
    return plan_host_updates(e->o.plan) && !a->by_device && a->out && !crosses(e, a->out);
}

/* True if the directions are on a device, where the host cannot read them. */
static bool brings_directions(const struct executor *e, const struct update_argument *a) {
    return a->follows && a->outcome != OUTCOME_SKIPPED && plan_host_updates(e->o.plan) && !a->by_device;
}

/* The staging buffer of an item. At most two updates are in flight, and they are neighbors in the ring of items. */
static void *staging_of(const struct executor *e, const struct item *item) {
    uint64_t index = (uint64_t)(item - e->stream[STREAM_UPDATE].item);
    return executor_address(e,
                            (struct buffer_ref){BUFFER_UPDATE_STAGING, (uint16_t)(index % UPDATE_STAGINGS)});
}

/* In it, the directions follow the parameters. */
static void *staged_directions(const struct executor *e, const struct item *item,
                               const struct update_argument *a) {
    uint64_t params = updates_through_staging(e, a) ? (a->end - a->begin) * dtype_bytes(a->types.compute) : 0;
    return (uint8_t *)staging_of(e, item) + round_up(params, ALIGN_BYTES);
}

zero_status leave_whole(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    void *left = executor_address(e, (struct buffer_ref){BUFFER_GRAD_HOST, op->region});
    if (op->object != OBJECT_GRAD || !left) return ZERO_OK;
    return copy(e, item, DEVICE_OUT, left, buffer_address(e, item->task->write[0]),
                e->o.shape.model->region[op->region].padded *
                    dtype_bytes(precision_of(&e->o.shape, op->region).reduced));
}

/* Copies the parameters to staging if the update changes them in place, and the directions if it reads them. */
zero_status bring_for_update(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    const struct precision p = precision_of(&e->o.shape, op->region);
    struct update_argument a = argument_of(e, item);
    bool in_place = op->outcome == OUTCOME_UPDATED && (!precision_keeps_masters(&p) || p.split) &&
                    a.leg->reads & ARRAY_PARAMS;
    zero_status status = ZERO_OK;
    if (brings_directions(e, &a))
        status = copy(e, item, DEVICE_OUT, staged_directions(e, item, &a), a.gradient,
                      (a.end - a.begin) * sizeof(float));
    if (status || !in_place || !updates_through_staging(e, &a)) return status;
    return copy(e, item, DEVICE_OUT, staging_of(e, item), a.out, (a.end - a.begin) * dtype_bytes(p.compute));
}

zero_status take_updated(struct executor *e, struct item *item) {
    struct update_argument a = argument_of(e, item);
    if ((!a.moves && !a.directs) || !updates_through_staging(e, &a)) return ZERO_OK;
    return copy(e, item, DEVICE_IN, a.out, staging_of(e, item),
                (a.end - a.begin) * dtype_bytes(a.types.compute));
}

/* ---- the update itself ---- */

static void uses(struct device_work *work, void *data, uint64_t bytes, bool changes) {
    device_work_reads(work, data, bytes);
    if (changes) device_work_writes(work, data, bytes);
}

static struct device_work update_work(const struct update_argument *a) {
    const struct precision p = a->types;
    uint64_t count = a->end - a->begin, out_bytes = count * dtype_bytes(p.compute);
    bool moves = a->moves || a->directs;
    struct device_work work = {0};
    if (a->outcome != OUTCOME_SKIPPED) device_work_reads(&work, a->gradient, count * dtype_bytes(p.reduced));
    uses(&work, a->master, count * master_bytes(&p), moves);
    for (uint32_t k = 0; k < a->states; k++)
        uses(&work, a->state[k], count * dtype_bytes(p.state), a->leg->writes & ARRAY_MOMENTS);
    if (a->average) uses(&work, a->average, count * sizeof(float), true);
    if (a->out && p.split) uses(&work, a->out, out_bytes, moves); /* the master's upper half */
    if (a->copy && a->outcome != OUTCOME_UPDATED) device_work_reads(&work, a->copy, count * sizeof(float));
    if (a->out && !p.split && moves) device_work_writes(&work, a->out, out_bytes);
    if (a->copy) device_work_writes(&work, a->copy, count * sizeof(float));
    return work;
}

/* Runs of parameters of one item, which the device does one after another. */
struct device_queue {
    struct item *item;
    uint64_t runs; /* that were counted; item->moved are queued */
};

/* Enough work that the device does not wait for the host, and little enough for its queues. */
enum { QUEUED_RUNS = 16 };

/* Queues an update of one run of parameters. */
static zero_status queue_now(const struct update_argument *a, const struct optimizer_args *args,
                             uint32_t param, void *item) {
    const struct precision p = a->types;
    struct update_argument part = *a;
    part.begin = 0, part.end = args->count;
    part.gradient = args->gradient;
    part.master = p.split ? (void *)args->master_low : args->master;
    part.out = args->out;
    for (uint32_t k = 0; k < a->states; k++) part.state[k] = args->state[k];
    part.average = args->average;
    struct device_work work = update_work(&part);
    struct optimizer_step_argument step = {.args = *args, .scalars = *args->scalars, .optimizer = a->row};
    step.args.scalars = NULL; /* a pointer into the host's memory */
    return submit(a->executor, item, kernel_optimizer_step(a->row), DEVICE_UPDATE, &step, &work);
}

static zero_status queue_measure(const struct update_argument *a, const struct optimizer_args *args,
                                 uint32_t param, void *item) {
    return tensor_measure_queue(a->executor, item, param, args, a->norms);
}

static zero_status queue_trusted(const struct update_argument *a, const struct optimizer_args *args,
                                 uint32_t param, void *item) {
    return run_trusted(a, args, param, queue_now, item);
}

static const struct leg_work leg_work[SCOPES][UPDATE_LEGS_MAX] = {
    [SCOPE_ELEMENT] = {{run_now, queue_now}},
    [SCOPE_MATRIX] = {{run_now, queue_now}, {run_now, queue_now}},
    [SCOPE_TENSOR] = {{measure, queue_measure}, {move_trusted, queue_trusted}},
};

static zero_status run_on_device(const struct update_argument *a, const struct optimizer_args *args,
                                 uint32_t param, void *user) {
    struct device_queue *queue = user;
    uint64_t run = queue->runs++, queued = queue->item->moved;
    if (run < queued || run >= queued + QUEUED_RUNS) return ZERO_OK;
    return a->work->device(a, args, param, queue->item);
}

static zero_status update_on_device(struct executor *e, struct item *item, const struct update_argument *a) {
    struct device_queue queue = {.item = item};
    if (a->leg->ordered && a->begin == 0 && !item->moved)
        tensor_clear(e, a->region, shard_first(e, a->region), a->norms);
    zero_status status = each_run(a, run_on_device, &queue);
    item->moved += QUEUED_RUNS;
    if (queue.runs > item->moved) repeat_from(item, update);
    return status;
}

zero_status update(struct executor *e, struct item *item) {
    struct update_argument a = argument_of(e, item);
    if (brings_directions(e, &a)) a.gradient = staged_directions(e, item, &a);
    if (updates_through_staging(e, &a)) a.out = staging_of(e, item);
    const struct precision p = a.types;
    if (!precision_keeps_masters(&p)) a.master = a.out, a.out = NULL;
    if (a.by_device) return update_on_device(e, item, &a);
    struct device_work work = update_work(&a);
    return submit(e, item, &update_kernel, DEVICE_UPDATE, &a, &work);
}
