/* Every device, by its table: memory, and work that reads and writes it. Then what the simulated one is for:
 * completion in an order that the seed decides, and the detection of buffers that are reused too early. */
#include <stdlib.h>
#include <string.h>

#include "engine/device/device.h"
#include "tests/check.h"

struct add {
    const uint32_t *from;
    uint32_t *to;
    uint32_t value;
};

static void run_add(void *argument) {
    const struct add *a = argument;
    *a->to = *a->from + a->value;
}

static struct device_work add_work(const uint32_t *from, uint32_t *to, uint32_t value) {
    struct device_work work = {.run = run_add,
                               .reads = 1,
                               .writes = 1,
                               .read = {{(void *)from, sizeof *from}},
                               .write = {{to, sizeof *to}}};
    struct add add = {from, to, value};
    memcpy(work.argument, &add, sizeof add);
    return work;
}

static struct device *open_device(enum device_kind kind, uint64_t seed, double probability) {
    struct device *device = NULL;
    struct zero_error error;
    error_clear(&error);
    struct device_options options = {.seed = seed, .probability = probability};
    CHECK_INT(device_table[kind]->open(&options, &device, &error), ZERO_OK);
    return device;
}

static zero_status finish(struct device *device, uint64_t ticket, struct zero_error *error) {
    bool done = false;
    zero_status status = ZERO_OK;
    error_clear(error);
    for (int i = 0; i < 10000 && !done; i++) status = device->ops->test(device, ticket, &done, error);
    CHECK(done);
    return status;
}

/* ---- all devices ---- */

static void memory(struct device *device) {
    static const uint64_t sizes[] = {1, 4096, 4097, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int pinned = 0; pinned < 2; pinned++) {
            uint64_t before = device->allocated, pages = (sizes[i] + 4095) / 4096 * 4096;
            uint8_t *memory = device->ops->allocate(device, sizes[i], pinned);
            if (!CHECK(memory)) continue;
            CHECK_INT((uintptr_t)memory % 4096, 0);
            CHECK_INT(device->allocated - before, pages);
            for (uint64_t k = 0; k < sizes[i]; k++)
                if (!CHECK_INT(memory[k], 0)) break;
            memset(memory, 0xa5, sizes[i]);
            device->ops->release(device, memory, sizes[i]);
            CHECK_INT(device->allocated, before);
        }
    CHECK(!device->ops->allocate(device, UINT64_C(1) << 60, false)); /* refused, not fatal */
    CHECK_INT(device->allocated, 0);
}

/* A chain of work, each waiting for the one before; the argument is copied. */
static void work(struct device *device) {
    uint32_t cell[5] = {7};
    struct zero_error error;
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t ticket;
        struct device_work w = add_work(&cell[i], &cell[i + 1], i + 1);
        CHECK_INT(device->ops->submit(device, &w, &ticket), ZERO_OK);
        memset(&w, 0xee, sizeof w);
        CHECK_INT(finish(device, ticket, &error), ZERO_OK);
        bool done = false; /* asking again is allowed */
        CHECK_INT(device->ops->test(device, ticket, &done, &error), ZERO_OK);
        CHECK(done);
    }
    CHECK_INT(cell[4], 7 + 1 + 2 + 3 + 4);
}

/* ---- sim ---- */

/* The order in which `count` pieces of work complete, as one number. */
static uint64_t completion_order(uint64_t seed) {
    enum { COUNT = 6 };
    struct device *device = open_device(DEVICE_SIM, seed, 0.3);
    uint32_t from = 1, to[COUNT];
    uint64_t ticket[COUNT], order = 0;
    bool finished[COUNT] = {false};
    struct zero_error error;
    for (uint32_t i = 0; i < COUNT; i++) {
        struct device_work w = add_work(&from, &to[i], i);
        CHECK_INT(device->ops->submit(device, &w, &ticket[i]), ZERO_OK);
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
    CHECK_INT(device->ops->submit(device, &w, &ticket), ZERO_OK);
    CHECK_INT(to, UINT32_MAX);
    CHECK_INT(from, 1);
    CHECK_INT(finish(device, ticket, &error), ZERO_OK);
    CHECK_INT(to, 2);
    /* What is updated in place is an input: it keeps its value. */
    w = add_work(&to, &to, 10);
    CHECK_INT(device->ops->submit(device, &w, &ticket), ZERO_OK);
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
        CHECK_INT(device->ops->submit(device, &w, &ticket), ZERO_OK);
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
    struct device_work w = add_work(&from, &to, 1);
    CHECK_INT(device->ops->submit(device, &w, &ticket), ZERO_OK);
    device->ops->close(device);
}

int main(void) {
    for (int kind = 0; kind < DEVICE_KINDS; kind++) {
        CHECK(device_table[kind] && device_table[kind]->name);
        struct device *device = open_device((enum device_kind)kind, 1, 0.5);
        memory(device);
        work(device);
        device->ops->close(device);
    }
    order_is_the_seeds();
    outputs_are_poisoned();
    early_reuse_is_found();
    closes_with_pending_work();
    return check_end();
}
