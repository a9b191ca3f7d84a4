/* A simulated device for tests: work completes at a random later poll, from a seed, so tests see hostile orders of
 * completion. A stream is a queue in which only the oldest work is in progress. Streams are independent of each other.
 *
 * When work starts, the device poisons its outputs and copies all of its memory. If the memory has changed when the
 * work ends, a caller reused a buffer too early. This device may allocate memory at any time. */
#include <stdlib.h>
#include <string.h>

#include "engine/device/implementations.h"

enum { ROOM_FIRST = 16 };

struct pending {
    struct device_work work; /* no kernel: a record, or a wait */
    uint64_t awaits;         /* the ticket that a wait waits for; else 0 */
    uint64_t ticket;
    uint64_t done_at_ns;
    uint8_t *before; /* the bytes of all reads, then of all writes, at the start */
};

/* Only the oldest item is in progress. */
struct queue {
    struct pending *item;      /* a ring of `room` */
    uint64_t room, first, end; /* `first`, `end`: the number of the oldest item, and of the next item */
    /* The number of the item in item[0]. An empty queue begins again at item[0], so that it touches few pages. */
    uint64_t base;
};

struct sim {
    struct device base;
    uint64_t random;
    double probability;
    const struct device_pace *pace;
    const struct device_guard *guard;
    bool without_data;
    struct queue queue[DEVICE_STREAMS];
};

static double chance(struct sim *sim) {
    sim->random = sim->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(sim->random >> 33) / (double)(1u << 31);
}

static zero_status sim_open(const struct device_options *options, struct device **out_device,
                            struct zero_error *error) {
    struct sim *sim = calloc(1, sizeof *sim);
    if (!sim) return error_set(error, ZERO_E_MEMORY, "device sim: no memory for its handle");
    sim->base.ops = &device_sim;
    sim->base.discrete = options->guard != NULL;
    sim->base.index = sim->base.node = -1;
    sim->base.page_bytes = DEVICE_PAGE_BYTES;
    sim->random = options->seed * 2 + 1;
    sim->probability = options->probability;
    sim->pace = options->pace;
    sim->guard = options->guard;
    sim->without_data = options->without_data;
    *out_device = &sim->base;
    return ZERO_OK;
}

static struct pending *at(struct queue *queue, uint64_t number) {
    return &queue->item[(number - queue->base) % queue->room];
}

static void sim_close(struct device *device) {
    struct sim *sim = (struct sim *)device;
    for (int s = 0; s < DEVICE_STREAMS; s++) {
        if (sim->queue[s].first < sim->queue[s].end) free(at(&sim->queue[s], sim->queue[s].first)->before);
        free(sim->queue[s].item);
    }
    free(sim);
}

/* ---- memory ---- */

static void enter(const struct sim *sim) {
    if (sim->guard) sim->guard->enter();
}

static void leave(const struct sim *sim) {
    if (sim->guard) sim->guard->leave();
}

static void *sim_allocate(struct device *device, uint64_t bytes, enum device_memory kind) {
    bool hidden = device->discrete && kind == DEVICE_MEMORY;
    void *memory =
        hidden ? ((struct sim *)device)->guard->allocate(bytes) : host_allocate(device, bytes, kind);
    if (hidden && memory) device->allocated[kind] += page_bytes(bytes);
    return memory;
}

static void sim_release(struct device *device, void *memory, uint64_t bytes, enum device_memory kind) {
    if (!device->discrete || kind != DEVICE_MEMORY) {
        host_release(device, memory, bytes, kind);
        return;
    }
    ((struct sim *)device)->guard->release(memory, bytes);
    device->allocated[kind] -= page_bytes(bytes);
}

static void *sim_reserve(struct device *device, uint64_t space, uint64_t bytes) {
    if (!device->discrete) return host_reserve(device, space, bytes);
    void *memory = ((struct sim *)device)->guard->allocate(space);
    if (memory) device->allocated[DEVICE_MEMORY] += page_bytes(bytes);
    return memory;
}

static void sim_unreserve(struct device *device, void *memory, uint64_t space, uint64_t bytes) {
    if (!device->discrete) {
        host_unreserve(device, memory, space, bytes);
        return;
    }
    ((struct sim *)device)->guard->release(memory, space);
    device->allocated[DEVICE_MEMORY] -= page_bytes(bytes);
}

/* Work that is not done finds that its memory has changed. */
static void sim_empty(struct device *device, void *part, uint64_t bytes) {
    if (!device->discrete) {
        host_empty(device, part, bytes);
        return;
    }
    enter((struct sim *)device);
    memset(part, 0xff, bytes);
    leave((struct sim *)device);
}

/* ---- work ---- */

static uint64_t span_bytes(const struct device_work *w) {
    struct device_span s;
    uint64_t bytes = 0;
    bool read;
    for (uint32_t i = 0; device_work_place(w, i, &s, &read); i++) bytes += s.bytes;
    return bytes;
}

/* Copies all places to one array, reads first. With restore_reads, it copies the reads back from the array: an output
 * that is also an input then has its content again. */
static void copy_spans(const struct device_work *w, uint8_t *array, bool restore_reads) {
    struct device_span s;
    bool read;
    for (uint32_t i = 0; device_work_place(w, i, &s, &read); i++) {
        if (!restore_reads && s.bytes) memcpy(array, s.data, s.bytes);
        if (restore_reads && read && s.bytes) memcpy(s.data, array, s.bytes);
        array += s.bytes;
    }
}

static bool unchanged(const struct device_work *w, const uint8_t *array) {
    struct device_span s;
    bool read;
    for (uint32_t i = 0; device_work_place(w, i, &s, &read); i++) {
        if (s.bytes && memcmp(array, s.data, s.bytes) != 0) return false;
        array += s.bytes;
    }
    return true;
}

static void poison_writes(const struct device_work *w) {
    struct device_span s;
    bool read;
    for (uint32_t i = 0; device_work_place(w, i, &s, &read); i++)
        if (!read && s.bytes) memset(s.data, 0xff, s.bytes);
}

/* Copies all memory of the work, and poisons the outputs that are not also inputs. */
static zero_status take_memory(const struct sim *sim, struct pending *p) {
    const struct device_work *work = &p->work;
    if (!span_bytes(work)) return ZERO_OK;
    p->before = malloc(span_bytes(work));
    if (!p->before) return ZERO_E_MEMORY;
    enter(sim);
    copy_spans(work, p->before, false);
    poison_writes(work);
    copy_spans(work, p->before, true);
    copy_spans(work, p->before, false);
    leave(sim);
    return ZERO_OK;
}

/* Starts an item that has become the oldest of its stream. */
static zero_status start(struct sim *sim, struct pending *p) {
    zero_status status = sim->without_data ? ZERO_OK : take_memory(sim, p);
    p->done_at_ns = sim->pace && p->work.kernel ? sim->pace->done_at_ns(sim->pace->user, &p->work) : 0;
    return status;
}

/* Doubles the ring of a full queue. Work with coded messages has a piece for each of the ranks. */
static bool make_room(struct queue *queue) {
    uint64_t count = queue->end - queue->first;
    if (count < queue->room) return true;
    uint64_t room = queue->room ? 2 * queue->room : ROOM_FIRST;
    struct pending *item = malloc(room * sizeof *item);
    if (!item) return false;
    for (uint64_t i = 0; i < count; i++) item[i] = *at(queue, queue->first + i);
    free(queue->item);
    queue->item = item, queue->room = room, queue->base = queue->first;
    return true;
}

static zero_status push_item(struct sim *sim, const struct device_work *work, uint64_t awaits,
                             uint64_t *out_ticket, struct zero_error *error) {
    struct queue *queue = &sim->queue[work->stream];
    if (!make_room(queue))
        return error_set(error, ZERO_E_MEMORY, "device sim: no memory for the work of a stream");
    if (queue->end == queue->first) queue->base = queue->end;
    struct pending *p = at(queue, queue->end);
    *p = (struct pending){
        .work = *work, .awaits = awaits, .ticket = (queue->end + 1) * TICKET_STREAMS + work->stream};
    *out_ticket = sim->base.newest[work->stream] = p->ticket;
    queue->end++;
    zero_status status = queue->end - queue->first == 1 ? start(sim, p) : ZERO_OK;
    return status ? error_set(error, status, "device sim: no memory to remember what work uses") : ZERO_OK;
}

static zero_status push(struct sim *sim, const struct device_work *work, uint64_t *out_ticket,
                        struct zero_error *error) {
    return push_item(sim, work, 0, out_ticket, error);
}

static zero_status sim_submit(struct device *device, const struct device_work *work, uint64_t *out_ticket,
                              struct zero_error *error) {
    return push((struct sim *)device, work, out_ticket, error);
}

/* ---- copies, clears and records as work ---- */

struct move {
    void *target;
    const void *source;
    uint64_t bytes;
};

static void run_copy(void *argument) {
    const struct move *move = argument;
    if (move->bytes) memcpy(move->target, move->source, move->bytes);
}

static void run_clear(void *argument) {
    const struct move *move = argument;
    if (move->bytes) memset(move->target, 0, move->bytes);
}

static struct kernel_grid whole(const void *argument) {
    return (struct kernel_grid){.blocks = 1, .threads = 1};
}

static const struct kernel copy_kernel = {.name = "copy", .run = run_copy, .grid = whole},
                           clear_kernel = {.name = "clear", .run = run_clear, .grid = whole};

static zero_status push_move(struct device *device, const struct kernel *kernel, enum device_stream stream,
                             struct move move, uint64_t *out_ticket, struct zero_error *error) {
    struct device_work work = {.kernel = kernel,
                               .stream = (uint8_t)stream,
                               .reads = move.source != NULL,
                               .writes = 1,
                               .read = {{(void *)move.source, move.bytes}},
                               .write = {{move.target, move.bytes}}};
    memcpy(work.argument, &move, sizeof move);
    return push((struct sim *)device, &work, out_ticket, error);
}

static zero_status sim_copy(struct device *device, enum device_stream stream, void *target,
                            const void *source, uint64_t bytes, uint64_t *out_ticket,
                            struct zero_error *error) {
    return push_move(device, &copy_kernel, stream, (struct move){target, source, bytes}, out_ticket, error);
}

static zero_status sim_clear(struct device *device, enum device_stream stream, void *memory, uint64_t bytes,
                             uint64_t *out_ticket, struct zero_error *error) {
    return push_move(device, &clear_kernel, stream, (struct move){memory, NULL, bytes}, out_ticket, error);
}

static zero_status sim_record(struct device *device, enum device_stream stream, uint64_t *out_ticket,
                              struct zero_error *error) {
    return push((struct sim *)device, &(struct device_work){.stream = (uint8_t)stream}, out_ticket, error);
}

static zero_status sim_wait(struct device *device, enum device_stream stream, uint64_t ticket,
                            struct zero_error *error) {
    struct device_work nothing = {.stream = (uint8_t)stream};
    uint64_t ignored;
    return ticket ? push_item((struct sim *)device, &nothing, ticket, &ignored, error) : ZERO_OK;
}

/* ---- completion ---- */

static bool ready(struct sim *sim, const struct pending *p) {
    return sim->pace ? *sim->pace->now_ns >= p->done_at_ns : chance(sim) <= sim->probability;
}

static bool is_hosts(const struct kernel *kernel) { return kernel && !kernel->grid; }

/* Performs the work. Returns whether no one touched its memory since its start. A kernel without a grid runs as host
 * code: outside of enter and leave. */
static bool perform(const struct sim *sim, struct pending *p) {
    const struct kernel *kernel = p->work.kernel;
    bool hosts = is_hosts(kernel), opens = span_bytes(&p->work) > 0;
    if (opens) enter(sim);
    bool clean = unchanged(&p->work, p->before);
    if (kernel && !hosts) kernel->run(p->work.argument);
    if (opens) leave(sim);
    if (hosts) kernel->run(p->work.argument);
    return clean;
}

/* Performs the oldest item of a stream, and starts the next one. In between, the memory stays open: to open and to close it takes
 * longer than small work. */
static zero_status complete(struct sim *sim, struct queue *queue, struct zero_error *error) {
    struct pending *p = at(queue, queue->first);
    bool opens = !sim->without_data && !is_hosts(p->work.kernel) && span_bytes(&p->work);
    if (opens) enter(sim);
    bool clean = sim->without_data || perform(sim, p);
    free(p->before);
    p->before = NULL;
    zero_status status = ++queue->first < queue->end ? start(sim, at(queue, queue->first)) : ZERO_OK;
    if (opens) leave(sim);
    if (status) return error_set(error, status, "device sim: no memory to remember what work uses");
    if (clean) return ZERO_OK;
    return error_set(
        error, ZERO_E_INTERNAL,
        "device sim: a buffer was overwritten between the start and the end of work that uses it");
}

/* A wait at the head of a stream advances the stream that it waits for, because nobody else may test that stream. The depth of the
 * calls is bounded: a ticket is older than the waits for it. */
static zero_status sim_test(struct device *device, uint64_t ticket, bool *out_done,
                            struct zero_error *error) {
    struct sim *sim = (struct sim *)device;
    struct queue *queue = &sim->queue[ticket % TICKET_STREAMS];
    uint64_t number = ticket / TICKET_STREAMS; /* the ticket is done when this number of items are done */
    zero_status status = ZERO_OK;
    for (bool goes = true; !status && goes && queue->first < number;) {
        uint64_t awaits = at(queue, queue->first)->awaits;
        if (awaits)
            status = sim_test(device, awaits, &goes, error);
        else
            goes = ready(sim, at(queue, queue->first));
        if (!status && goes) status = complete(sim, queue, error);
    }
    *out_done = queue->first >= number;
    return status;
}

const struct device_ops device_sim = {
    .name = "sim",
    .open = sim_open,
    .close = sim_close,
    .allocate = sim_allocate,
    .release = sim_release,
    .reserve = sim_reserve,
    .unreserve = sim_unreserve,
    .empty = sim_empty,
    .submit = sim_submit,
    .copy = sim_copy,
    .clear = sim_clear,
    .record = sim_record,
    .wait = sim_wait,
    .test = sim_test,
};
