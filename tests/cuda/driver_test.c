/* GPUs and drivers that this build has no kernels for are refused when the device is opened, in one sentence. Pinned memory
 * is on the GPU's memory node, and the driver's own where it refuses to register other memory. Of the stand-in alone. */
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/system/thread.h"
#include "engine/device/cuda/driver.h"
#include "engine/device/device.h"
#include "tests/check.h"

static void refused(const char *variable, const char *value, zero_status status, const char *sentence) {
    struct device *device = NULL;
    struct zero_error error;
    error_clear(&error);
    setenv(variable, value, 1);
    CHECK_INT(device_table[DEVICE_CUDA]->open(&(struct device_options){0}, &device, &error), status);
    unsetenv(variable);
    CHECK_STRING(error.message, sentence);
    CHECK(!device);
}

enum { PINNED_BYTES = 40 << 20, PAGE = 4096, NODES_MAX = 1024 };

/* The policy of the memory at this address; -1: the system does not tell. */
static int policy_of(void *memory, unsigned long nodes[NODES_MAX / 64]) {
    int policy = -1;
    return syscall(SYS_get_mempolicy, &policy, nodes, (unsigned long)NODES_MAX, memory, MPOL_F_ADDR) ? -1
                                                                                                     : policy;
}

static void check_node(void *memory, int expected, unsigned long first) {
    unsigned long nodes[NODES_MAX / 64] = {0};
    int policy = policy_of(memory, nodes);
    if (policy < 0) return;
    CHECK_INT(policy, expected);
    CHECK_INT(nodes[0], first);
}

/* All of it is zero and there, and the GPU reaches it. */
static void check_pinned(struct device *device, uint8_t *memory) {
    static uint8_t zero[PAGE];
    unsigned char there[PINNED_BYTES / PAGE];
    struct zero_error error;
    uint64_t ticket, missing = 0;
    error_clear(&error);
    for (uint64_t at = 0; at < PINNED_BYTES; at += PAGE) missing += memcmp(memory + at, zero, PAGE) != 0;
    CHECK_INT(missing, 0);
    CHECK_INT(mincore(memory, PINNED_BYTES, there), 0);
    for (uint64_t i = 0; i < sizeof there; i++) missing += !(there[i] & 1);
    CHECK_INT(missing, 0);
    CHECK_INT(device->ops->clear(device, DEVICE_IN, memory, PINNED_BYTES, &ticket, &error), ZERO_OK);
    for (bool done = false; !done && CHECK_INT(device->ops->test(device, ticket, &done, &error), ZERO_OK);)
        sched_yield();
}

/* `node`: the driver's answer. `registers`: it registers the host's memory. */
static void pinned(const char *node, const char *registers, bool by_driver, int policy) {
    struct device *device = NULL;
    struct zero_error error;
    error_clear(&error);
    setenv("FAKE_CUDA_NODE", node, 1), setenv("FAKE_CUDA_REGISTERS", registers, 1);
    CHECK_INT(device_table[DEVICE_CUDA]->open(&(struct device_options){0}, &device, &error), ZERO_OK);
    CHECK_INT(device->node, atoi(node));
    uint8_t *memory = device->ops->allocate(device, PINNED_BYTES, DEVICE_PINNED);
    if (CHECK(memory)) {
        CHECK_INT(device->pinned_by_driver, by_driver);
        CHECK_INT((uintptr_t)memory % DEVICE_PAGE_BYTES, 0);
        CHECK_INT(device->allocated[DEVICE_PINNED], PINNED_BYTES);
        check_node(memory, policy, policy == MPOL_PREFERRED);
        check_pinned(device, memory);
        device->ops->release(device, memory, PINNED_BYTES, DEVICE_PINNED);
    }
    CHECK_INT(device->allocated[DEVICE_PINNED], 0);
    device->ops->close(device);
    unsetenv("FAKE_CUDA_NODE"), unsetenv("FAKE_CUDA_REGISTERS");
}

/* Where the driver has no virtual memory, nothing is reserved. */
static void pages(const char *virtual_memory, uint32_t bytes) {
    struct device *device = NULL;
    struct zero_error error;
    error_clear(&error);
    setenv("FAKE_CUDA_VIRTUAL", virtual_memory, 1);
    CHECK_INT(device_table[DEVICE_CUDA]->open(&(struct device_options){0}, &device, &error), ZERO_OK);
    CHECK_INT(device->page_bytes, bytes);
    device->ops->close(device);
    unsetenv("FAKE_CUDA_VIRTUAL");
}

/* Unmaps that fail, as those of a GPU that has failed: all memory goes back nevertheless. */
static void unmapped_after_a_failure(void) {
    struct device *device = NULL;
    struct zero_error error;
    uint64_t before, after, total;
    error_clear(&error);
    CHECK_INT(device_table[DEVICE_CUDA]->open(&(struct device_options){0}, &device, &error), ZERO_OK);
    CHECK_INT(device->ops->memory(device, &before, &total, &error), ZERO_OK);
    void *space = device->ops->reserve(device, 4 * DEVICE_PART_BYTES, 3 * DEVICE_PART_BYTES);
    if (CHECK(space)) {
        CHECK_INT(device->ops->fill(device, space, 3 * DEVICE_PART_BYTES, &error), ZERO_OK);
        setenv("FAKE_CUDA_UNMAP_FAILS", "1", 1);
        device->ops->unreserve(device, space, 4 * DEVICE_PART_BYTES, 3 * DEVICE_PART_BYTES);
        unsetenv("FAKE_CUDA_UNMAP_FAILS");
    }
    CHECK_INT(device->ops->memory(device, &after, &total, &error), ZERO_OK);
    CHECK_INT(after, before);
    device->ops->close(device);
}

/* A GPU that has failed gives nothing, and takes back what it gave. */
static void released_after_a_failure(void) {
    struct device *device = NULL;
    struct zero_error error;
    uint64_t ticket;
    error_clear(&error);
    CHECK_INT(device_table[DEVICE_CUDA]->open(&(struct device_options){0}, &device, &error), ZERO_OK);
    void *memory = device->ops->allocate(device, PINNED_BYTES, DEVICE_MEMORY),
         *pinned = device->ops->allocate(device, PINNED_BYTES, DEVICE_PINNED);
    CHECK(memory && pinned);
    CHECK_INT(device->ops->copy(device, DEVICE_IN, memory, pinned, 2 * PINNED_BYTES, &ticket, &error),
              ZERO_E_INTERNAL);
    CHECK(!device->ops->allocate(device, PINNED_BYTES, DEVICE_MEMORY));
    device->ops->release(device, memory, PINNED_BYTES, DEVICE_MEMORY);
    device->ops->release(device, pinned, PINNED_BYTES, DEVICE_PINNED);
    CHECK_INT(device->allocated[DEVICE_MEMORY] + device->allocated[DEVICE_PINNED], 0);
    device->ops->close(device);
}

struct tested {
    struct device *device;
    uint64_t ticket;
    zero_status status;
};

static void *test_ticket(void *argument) {
    struct tested *t = argument;
    bool done = false;
    while (!done && !t->status) t->status = t->device->ops->test(t->device, t->ticket, &done, NULL);
    return NULL;
}

/* A program captures a graph on a stream of its own while a thread of the engine asks how far the GPU is. */
static void captured_beside(void) {
    struct tested t = {0};
    struct cuda_driver driver;
    struct zero_error error;
    pthread_t thread;
    CUstream stream;
    CUgraph graph;
    error_clear(&error);
    CHECK_INT(device_table[DEVICE_CUDA]->open(&(struct device_options){0}, &t.device, &error), ZERO_OK);
    CHECK_INT(cuda_driver_open(&driver, &error), ZERO_OK);
    CHECK_INT(t.device->ops->record(t.device, DEVICE_IN, &t.ticket, &error), ZERO_OK);
    CHECK_INT(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_INT(driver.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    CHECK_INT(thread_start(&thread, test_ticket, &t), 0);
    pthread_join(thread, NULL);
    CHECK_INT(t.status, ZERO_OK);
    if (CHECK_INT(driver.cuStreamEndCapture(stream, &graph), CUDA_SUCCESS)) driver.cuGraphDestroy(graph);
    driver.cuStreamDestroy(stream);
    t.device->ops->close(t.device);
    cuda_driver_close(&driver);
}

int main(void) {
    struct device *device = NULL;
    struct zero_error error;
    error_clear(&error);
    refused("FAKE_CUDA_VERSION", "12090", ZERO_E_CONFIG,
            "device cuda: the NVIDIA driver is one for CUDA 12.9, and this build's kernels are of CUDA 13: "
            "install a "
            "driver for CUDA 13.0 or later, or set device.type to \"cpu\"");
    refused(
        "FAKE_CUDA_CAPABILITY", "7", ZERO_E_CONFIG,
        "device cuda: GPU 0 is of compute capability 7.0, and this build has kernels for 8.0 and later; set "
        "device.type \"cpu\"");
    setenv("FAKE_CUDA_VERSION", "14000", 1), setenv("FAKE_CUDA_CAPABILITY", "12", 1);
    CHECK_INT(device_table[DEVICE_CUDA]->open(&(struct device_options){0}, &device, &error), ZERO_OK);
    if (device) device->ops->close(device);
    CHECK_STRING(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32"); /* the driver was loaded with it */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", 1);
    CHECK_INT(device_table[DEVICE_CUDA]->open(&(struct device_options){0}, &device, &error), ZERO_OK);
    if (device) device->ops->close(device);
    CHECK_STRING(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "4"); /* the user's */
    pinned("0", "1", false, MPOL_PREFERRED);
    pinned("-1", "1", false, MPOL_DEFAULT);
    pinned("0", "0", true, MPOL_DEFAULT);
    pages("1", DEVICE_PART_BYTES);
    pages("0", 0);
    unmapped_after_a_failure();
    released_after_a_failure();
    captured_beside();
    return check_end();
}
