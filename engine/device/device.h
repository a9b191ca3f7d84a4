/* Where compute happens: memory, and work that completes later. One table, one file per implementation.
 *
 * A piece of work is a function with its argument and the memory that it reads and writes. The host performs
 * it at once; a GPU enqueues it; the simulator performs it at a random later time and checks that nobody
 * touched its memory in between. Threads: one at a time per device (the executor's lock). */
#ifndef ZERO_ENGINE_DEVICE_DEVICE_H
#define ZERO_ENGINE_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

enum { DEVICE_SPANS_MAX = 8, DEVICE_ARGUMENT_BYTES = 80 };

struct device_span {
    void *data;
    uint64_t bytes;
};

struct device_work {
    void (*run)(void *argument);
    _Alignas(16) uint8_t argument[DEVICE_ARGUMENT_BYTES]; /* copied: `run` gets the copy's address */
    uint8_t reads, writes;
    struct device_span read[DEVICE_SPANS_MAX], write[DEVICE_SPANS_MAX]; /* may overlap only if equal */
};

struct device;

/* Virtual time, in the place of chance. */
struct device_pace {
    void *user;
    const uint64_t *now_ns;
    uint64_t (*done_at_ns)(void *user, const struct device_work *work); /* of work that starts now */
};

struct device_options { /* of sim */
    uint64_t seed;
    double probability;             /* that a poll finds a piece of work done */
    const struct device_pace *pace; /* decides when work is done, in the place of `probability`; or NULL */
    bool without_data;              /* work is never run, its memory never touched */
};

struct device_ops {
    const char *name;
    zero_status (*open)(const struct device_options *options, struct device **out_device,
                        struct zero_error *error);
    void (*close)(struct device *device);
    /* Page-aligned, zeroed memory; NULL when the system refuses. `pinned`: host memory that the device can
     * reach. */
    void *(*allocate)(struct device *device, uint64_t bytes, bool pinned);
    void (*release)(struct device *device, void *memory, uint64_t bytes);
    /* Starts work; *out_ticket is its number. Nothing is allocated on the host and GPU. */
    zero_status (*submit)(struct device *device, const struct device_work *work, uint64_t *out_ticket);
    /* *out_done: the work has completed. ZERO_E_INTERNAL: its memory was touched meanwhile (sim). */
    zero_status (*test)(struct device *device, uint64_t ticket, bool *out_done, struct zero_error *error);
};

struct device { /* the head of every implementation's own struct */
    const struct device_ops *ops;
    uint64_t allocated; /* bytes now held through `allocate`, whole pages: what the memory report measures */
};

enum device_kind { DEVICE_HOST, DEVICE_SIM, DEVICE_KINDS };

extern const struct device_ops *const device_table[DEVICE_KINDS];

#endif
