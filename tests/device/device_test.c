/* Every device, by its table: memory of both kinds, work that reads and writes it, copies, clears and records, in the
 * order of their stream. Then the features of the simulated device: completion in an order that the seed determines,
 * detection of buffers that are reused too early, and memory that the host cannot touch. device_test cuda: only a
 * GPU. */
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/numbers/dtype.h"
#include "engine/device/device.h"
#include "kernels/device_work.h"
#include "tests/check.h"
#include "tests/device/discrete.h"

enum { POLLS = 10 * 1000 * 1000 }; /* a GPU takes its time */

struct add {
    const uint32_t *from;
    uint32_t *to;
    uint32_t value;
};

static void run_add(void *argument) {
    const struct add *a = argument;
    *a->to = *a->from + a->value;
}

static struct kernel_grid one_block(const void *argument) { return (struct kernel_grid){1, 1, 0}; }

static const struct kernel add_kernel = {
    .name = "add", .run = run_add, .grid = one_block, .argument_bytes = sizeof(struct add)};

static struct device_work add_work(const uint32_t *from, uint32_t *to, uint32_t value) {
    struct device_work work = {.kernel = &add_kernel,
                               .reads = 1,
                               .writes = 1,
                               .read = {{(void *)from, sizeof *from}},
                               .write = {{to, sizeof *to}}};
    struct add add = {from, to, value};
    memcpy(work.argument, &add, sizeof add);
    return work;
}

static struct device *open_with(enum device_kind kind, struct device_options options) {
    struct device *device = NULL;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(device_table[kind]->open(&options, &device, &error), ZERO_OK);
    CHECK_STRING(error.message, "");
    return device;
}

static struct device *open_device(enum device_kind kind, uint64_t seed, double probability) {
    return open_with(kind, (struct device_options){.seed = seed, .probability = probability});
}

static zero_status finish(struct device *device, uint64_t ticket, struct zero_error *error) {
    bool done = false;
    zero_status status = ZERO_OK;
    error_clear(error);
    for (int i = 0; i < POLLS && !done; i++) status = device->ops->test(device, ticket, &done, error);
    CHECK(done);
    return status;
}

/* ---- all devices ---- */

/* As a host must do it that cannot reach the memory. */
static void move(struct device *device, void *target, const void *source, uint64_t bytes) {
    uint64_t ticket;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(device->ops->copy(device, DEVICE_OUT, target, source, bytes, &ticket, &error), ZERO_OK);
    CHECK_INT(finish(device, ticket, &error), ZERO_OK);
}

/* What the host's part takes counts, whichever it is. */
static void check_resident(const uint8_t *memory, uint64_t all, uint64_t bytes) {
    static unsigned char resident[4 * DEVICE_PART_BYTES / DEVICE_PAGE_BYTES];
    uint64_t pages = 0;
    CHECK_INT(mincore((void *)(uintptr_t)memory, all, resident), 0);
    for (size_t i = 0; i < sizeof resident; i++) pages += resident[i] & 1;
    CHECK_INT(pages * DEVICE_PAGE_BYTES, bytes);
}

/* Two parts, of one page more than a huge page. */
static void space(struct device *device) {
    static uint8_t given[2 * DEVICE_PART_BYTES], seen[2 * DEVICE_PART_BYTES];
    const uint64_t bytes = DEVICE_PART_BYTES + device->page_bytes, all = 4 * (uint64_t)DEVICE_PART_BYTES;
    uint64_t before = device->allocated[DEVICE_MEMORY];
    uint8_t *memory = device->ops->reserve(device, all, bytes);
    struct zero_error error;
    if (!CHECK(memory)) return;
    error_clear(&error);
    CHECK_INT(device->allocated[DEVICE_MEMORY] - before, bytes);
    for (int i = 0; i < 2; i++) device->ops->empty(device, memory + i * 2 * DEVICE_PART_BYTES, bytes);
    for (int round = 0; round < 4; round++) {
        uint8_t *part = memory + round % 2 * 2 * DEVICE_PART_BYTES;
        if (device->ops->fill) CHECK_INT(device->ops->fill(device, part, bytes, &error), ZERO_OK);
        if (!device->discrete) CHECK_INT(part[0] + part[bytes - 1], 0);
        memset(given, 0xa5 + round, bytes);
        move(device, part, given, bytes);
        move(device, seen, part, bytes);
        CHECK_BYTES(seen, given, bytes);
        if (!device->discrete) {
            CHECK_INT((uintptr_t)memory % DEVICE_PART_BYTES, 0);
            check_resident(memory, all, bytes);
        }
        device->ops->empty(device, part, bytes);
    }
    device->ops->unreserve(device, memory, all, bytes);
    CHECK_INT(device->allocated[DEVICE_MEMORY], before);
    CHECK(!device->ops->reserve(device, UINT64_C(1) << 60, 1)); /* refused, not fatal */
}

static void memory(struct device *device) {
    static const uint64_t sizes[] = {1, 4096, 4097, 1 << 20};
    static uint8_t seen[1 << 20], given[1 << 20];
    memset(given, 0xa5, sizeof given);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int kind = 0; kind < 2; kind++) {
            uint64_t before = device->allocated[kind], pages = (sizes[i] + 4095) / 4096 * 4096;
            uint8_t *memory = device->ops->allocate(device, sizes[i], (enum device_memory)kind);
            if (!CHECK(memory)) continue;
            CHECK_INT((uintptr_t)memory % 4096, 0);
            CHECK_INT(device->allocated[kind] - before, pages);
            memset(seen, 1, sizeof seen);
            move(device, seen, memory, sizes[i]);
            for (uint64_t k = 0; k < sizes[i]; k++)
                if (!CHECK_INT(seen[k], 0)) break;
            move(device, memory, given, sizes[i]);
            move(device, seen, memory, sizes[i]);
            CHECK_BYTES(seen, given, sizes[i]);
            device->ops->release(device, memory, sizes[i], (enum device_memory)kind);
            CHECK_INT(device->allocated[kind], before);
        }
    CHECK(!device->ops->allocate(device, UINT64_C(1) << 60, DEVICE_MEMORY)); /* refused, not fatal */
    if (device->page_bytes) space(device);
    CHECK_INT(device->allocated[DEVICE_MEMORY], 0);
    CHECK_INT(device->allocated[DEVICE_PINNED], 0);
}

enum { CELLS = 5 };

/* A kernel that every device has: *to = *from * factor. */
static struct device_work scale_work(const float *from, float *to, float factor) {
    struct cast_scaled_argument a = {.target = to, .source = from, .count = 1, .factor = factor};
    struct device_work work = {.kernel = &kernel_cast_scaled,
                               .reads = 1,
                               .writes = 1,
                               .read = {{(void *)from, sizeof *from}},
                               .write = {{to, sizeof *to}}};
    memcpy(work.argument, &a, sizeof a);
    return work;
}

/* A chain of work on one stream: each piece reads the output of the previous piece, and the host waits only for the
 * last piece. The argument is copied. */
static void chain(struct device *device, enum device_stream stream, bool wait_for_each) {
    float *cell = device->ops->allocate(device, CELLS * sizeof *cell, DEVICE_MEMORY), first = 7, last = 0;
    uint64_t ticket = 0;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(device->ops->copy(device, stream, cell, &first, sizeof first, &ticket, &error), ZERO_OK);
    for (uint32_t i = 0; i + 1 < CELLS; i++) {
        struct device_work w = scale_work(&cell[i], &cell[i + 1], (float)i + 2);
        w.stream = (uint8_t)stream;
        CHECK_INT(device->ops->submit(device, &w, &ticket, &error), ZERO_OK);
        memset(&w, 0xee, sizeof w);
        if (wait_for_each) CHECK_INT(finish(device, ticket, &error), ZERO_OK);
    }
    CHECK_INT(device->ops->copy(device, stream, &last, &cell[CELLS - 1], sizeof last, &ticket, &error),
              ZERO_OK);
    CHECK_INT(device->ops->clear(device, stream, &cell[1], 2 * sizeof *cell, &ticket, &error), ZERO_OK);
    CHECK_INT(device->ops->record(device, stream, &ticket, &error), ZERO_OK);
    CHECK_INT(finish(device, ticket, &error), ZERO_OK);
    bool done = false; /* asking again is allowed */
    CHECK_INT(device->ops->test(device, ticket, &done, &error), ZERO_OK);
    CHECK(done);
    CHECK_INT(last, 7 * 2 * 3 * 4 * 5);
    float seen[CELLS] = {0}, expected[CELLS] = {7, 0, 0, 7 * 2 * 3 * 4, 7 * 2 * 3 * 4 * 5};
    move(device, seen, cell, sizeof seen);
    CHECK_BYTES(seen, expected, sizeof seen);
    device->ops->release(device, cell, CELLS * sizeof *cell, DEVICE_MEMORY);
}

static void work(struct device *device) {
    for (int s = 0; s < DEVICE_STREAMS; s++)
        chain(device, (enum device_stream)s, true), chain(device, (enum device_stream)s, false);
}

/* Streams wait for each other, and the host for the last one alone. */
static void waits(struct device *device) {
    float *cell = device->ops->allocate(device, CELLS * sizeof *cell, DEVICE_MEMORY), first = 7, last = 0;
    uint64_t ticket = 0;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(device->ops->wait(device, DEVICE_IN, ticket, &error), ZERO_OK); /* for nothing */
    CHECK_INT(device->ops->copy(device, DEVICE_IN, cell, &first, sizeof first, &ticket, &error), ZERO_OK);
    for (uint32_t i = 0; i + 1 < CELLS; i++) {
        struct device_work w = scale_work(&cell[i], &cell[i + 1], (float)i + 2);
        w.stream = (uint8_t)(i % 2 ? DEVICE_COMPUTE : DEVICE_GATHER);
        CHECK_INT(device->ops->wait(device, (enum device_stream)w.stream, ticket, &error), ZERO_OK);
        CHECK_INT(device->ops->submit(device, &w, &ticket, &error), ZERO_OK);
    }
    CHECK_INT(device->ops->wait(device, DEVICE_OUT, ticket, &error), ZERO_OK);
    CHECK_INT(device->ops->copy(device, DEVICE_OUT, &last, &cell[CELLS - 1], sizeof last, &ticket, &error),
              ZERO_OK);
    CHECK_INT(finish(device, ticket, &error), ZERO_OK);
    CHECK_DOUBLE((double)last, 7 * 2 * 3 * 4 * 5, 0);
    device->ops->release(device, cell, CELLS * sizeof *cell, DEVICE_MEMORY);
}

/* ---- sim ---- */

/* A message that is coded for each rank is a piece of work for each rank. */
static void a_long_stream(void) {
    enum { COPIES = 2000 };
    static uint32_t chain[COPIES + 1] = {7};
    struct device *device = open_device(DEVICE_SIM, 3, 0.9);
    struct zero_error error;
    uint64_t ticket = 0;
    error_clear(&error);
    for (int i = 0; i < COPIES; i++)
        if (!CHECK_INT(device->ops->copy(device, DEVICE_REDUCE, &chain[i + 1], &chain[i], sizeof *chain,
                                         &ticket, &error),
                       ZERO_OK))
            break;
    CHECK_INT(finish(device, ticket, &error), ZERO_OK);
    CHECK_INT(chain[COPIES], 7);
    device->ops->close(device);
}

/* The order in which `count` pieces of work complete, as one number. */
static uint64_t completion_order(uint64_t seed) {
    enum { COUNT = DEVICE_STREAMS };
    struct device *device = open_device(DEVICE_SIM, seed, 0.3);
    uint32_t from = 1, to[COUNT];
    uint64_t ticket[COUNT], order = 0;
    bool finished[COUNT] = {false};
    struct zero_error error;
    for (uint32_t i = 0; i < COUNT; i++) {
        struct device_work w = add_work(&from, &to[i], i);
        w.stream = (uint8_t)i; /* of one stream they complete in order */
        CHECK_INT(device->ops->submit(device, &w, &ticket[i], &error), ZERO_OK);
    }
    for (int left = COUNT; left > 0;)
        for (uint32_t i = 0; i < COUNT; i++) {
            if (finished[i]) continue;
            CHECK_INT(device->ops->test(device, ticket[i], &finished[i], &error), ZERO_OK);
            if (finished[i]) order = order * COUNT + i, left--;
        }
    for (uint32_t i = 0; i < COUNT; i++) CHECK_INT(to[i], 1 + i);
    device->ops->close(device);
    return order;
}

static void order_is_the_seeds(void) {
    uint64_t first = completion_order(1);
    int others = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        check_seed(seed);
        uint64_t order = completion_order(seed);
        CHECK_INT(completion_order(seed), order);
        others += order != first;
    }
    CHECK(others > 10);
}

/* Until it completes, an output holds poison: who reads it too early cannot miss it. */
static void outputs_are_poisoned(void) {
    struct device *device = open_device(DEVICE_SIM, 3, 0.5);
    uint32_t from = 1, to = 5;
    uint64_t ticket;
    struct zero_error error;
    struct device_work w = add_work(&from, &to, 1);
    CHECK_INT(device->ops->submit(device, &w, &ticket, &error), ZERO_OK);
    CHECK_INT(to, UINT32_MAX);
    CHECK_INT(from, 1);
    CHECK_INT(finish(device, ticket, &error), ZERO_OK);
    CHECK_INT(to, 2);
    /* An array that is updated in place is an input: it keeps its value. */
    w = add_work(&to, &to, 10);
    CHECK_INT(device->ops->submit(device, &w, &ticket, &error), ZERO_OK);
    CHECK_INT(to, 2);
    CHECK_INT(finish(device, ticket, &error), ZERO_OK);
    CHECK_INT(to, 12);
    device->ops->close(device);
}

static void early_reuse_is_found(void) {
    for (int output = 0; output < 2; output++) {
        struct device *device = open_device(DEVICE_SIM, 4, 0.5);
        uint32_t from = 1, to = 5;
        uint64_t ticket;
        struct zero_error error;
        struct device_work w = add_work(&from, &to, 1);
        CHECK_INT(device->ops->submit(device, &w, &ticket, &error), ZERO_OK);
        if (output) to = 77;
        if (!output) from = 77;
        CHECK_INT(finish(device, ticket, &error), ZERO_E_INTERNAL);
        CHECK_CONTAINS(error.message, "overwritten");
        device->ops->close(device);
    }
}

/* Work that is pending when the device closes leaks nothing. */
static void closes_with_pending_work(void) {
    struct device *device = open_device(DEVICE_SIM, 5, 0);
    uint32_t from = 1, to = 5;
    uint64_t ticket;
    struct zero_error error;
    struct device_work w = add_work(&from, &to, 1);
    CHECK_INT(device->ops->submit(device, &w, &ticket, &error), ZERO_OK);
    device->ops->close(device);
}

static sigjmp_buf touched;
static void on_touch(int signal) { siglongjmp(touched, signal); }

/* True if the host may read and write there. */
static bool reaches(volatile uint8_t *memory) {
    struct sigaction crash = {.sa_handler = on_touch}, before;
    sigaction(SIGSEGV, &crash, &before);
    bool reached = sigsetjmp(touched, 1) == 0;
    if (reached) *memory = (uint8_t)(*memory + 1);
    sigaction(SIGSEGV, &before, NULL);
    return reached;
}

/* Also beside another device of the process that is at work. */
static void discrete_memory_is_out_of_reach(void) {
    struct device *device = open_with(DEVICE_SIM,
                                      (struct device_options){.probability = 1, .guard = &discrete_guard}),
                  *other = open_with(DEVICE_SIM,
                                     (struct device_options){.probability = 1, .guard = &discrete_guard});
    uint8_t *own = device->ops->allocate(device, 100, DEVICE_MEMORY),
            *pinned = device->ops->allocate(device, 100, DEVICE_PINNED),
            *others = other->ops->allocate(other, 100, DEVICE_MEMORY), seen = 7;
    CHECK(!reaches(own) && !reaches(others) && reaches(pinned));
    move(device, &seen, others, 1); /* as ranks that share a GPU do */
    CHECK_INT(seen, 0);
    CHECK(!reaches(own) && !reaches(others));
    device->ops->release(device, own, 100, DEVICE_MEMORY);
    device->ops->release(device, pinned, 100, DEVICE_PINNED);
    other->ops->release(other, others, 100, DEVICE_MEMORY);
    device->ops->close(device);
    other->ops->close(other);
}

static void conforms(struct device *device) {
    memory(device);
    work(device);
    waits(device);
    device->ops->close(device);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "cuda")) {
        struct device *device = open_with(DEVICE_CUDA, (struct device_options){.index = -1});
        if (device) conforms(device);
        return check_end();
    }
    discrete_memory_is_out_of_reach(); /* first: also of a thread that has done no work yet */
    for (int kind = 0; kind <= DEVICE_SIM; kind++) {
        CHECK(device_table[kind] && device_table[kind]->name);
        conforms(open_device((enum device_kind)kind, 1, 0.5));
    }
    for (uint64_t seed = 0; seed < 20; seed++)
        conforms(open_with(
            DEVICE_SIM, (struct device_options){.seed = seed, .probability = 0.3, .guard = &discrete_guard}));
    order_is_the_seeds();
    outputs_are_poisoned();
    a_long_stream();
    early_reuse_is_found();
    closes_with_pending_work();
    return check_end();
}
