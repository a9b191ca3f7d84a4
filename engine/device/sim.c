/* A device whose work completes at a random later poll, from a seed: adversarial completion order for tests.
 * At the start of work its outputs are poisoned and all its memory is remembered; at its end, memory that
 * changed meanwhile means that somebody reused a buffer too early. May allocate: it is for tests. */
#include <stdlib.h>
#include <string.h>

#include "engine/device/implementations.h"

enum { PENDING_MAX = 64 };

struct pending {
    struct device_work work;
    uint64_t ticket; /* 0: free */
    uint64_t done_at_ns;
    uint8_t *before; /* the bytes of all reads, then of all writes, at the start */
};

struct sim {
    struct device base;
    uint64_t random, tickets;
    double probability;
    const struct device_pace *pace;
    bool without_data;
    struct pending pending[PENDING_MAX];
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
    sim->random = options->seed * 2 + 1;
    sim->probability = options->probability;
    sim->pace = options->pace;
    sim->without_data = options->without_data;
    *out_device = &sim->base;
    return ZERO_OK;
}

static void sim_close(struct device *device) {
    struct sim *sim = (struct sim *)device;
    for (int i = 0; i < PENDING_MAX; i++) free(sim->pending[i].before);
    free(sim);
}

static uint64_t span_bytes(const struct device_work *w) {
    uint64_t bytes = 0;
    for (int i = 0; i < w->reads; i++) bytes += w->read[i].bytes;
    for (int i = 0; i < w->writes; i++) bytes += w->write[i].bytes;
    return bytes;
}

/* Copies all spans to or from one array; reads first, so that restoring leaves outputs that are also inputs
 * whole. */
static void copy_spans(const struct device_work *w, uint8_t *array, bool restore_reads) {
    for (int i = 0; i < w->reads + w->writes; i++) {
        struct device_span s = i < w->reads ? w->read[i] : w->write[i - w->reads];
        if (!restore_reads) memcpy(array, s.data, s.bytes);
        if (restore_reads && i < w->reads) memcpy(s.data, array, s.bytes);
        array += s.bytes;
    }
}

static bool unchanged(const struct device_work *w, const uint8_t *array) {
    for (int i = 0; i < w->reads + w->writes; i++) {
        struct device_span s = i < w->reads ? w->read[i] : w->write[i - w->reads];
        if (memcmp(array, s.data, s.bytes) != 0) return false;
        array += s.bytes;
    }
    return true;
}

/* Remembers all memory, and poisons what is written alone. */
static zero_status take_memory(struct pending *p, const struct device_work *work) {
    p->before = malloc(span_bytes(work) + 1);
    if (!p->before) return ZERO_E_MEMORY;
    copy_spans(work, p->before, false);
    for (int i = 0; i < work->writes; i++) memset(work->write[i].data, 0xff, work->write[i].bytes);
    copy_spans(work, p->before, true);
    copy_spans(work, p->before, false);
    return ZERO_OK;
}

static zero_status sim_submit(struct device *device, const struct device_work *work, uint64_t *out_ticket) {
    struct sim *sim = (struct sim *)device;
    struct pending *p = sim->pending;
    while (p < sim->pending + PENDING_MAX && p->ticket) p++;
    if (p == sim->pending + PENDING_MAX) return ZERO_E_INTERNAL;
    p->work = *work;
    zero_status status = sim->without_data ? ZERO_OK : take_memory(p, work);
    if (status) return status;
    p->done_at_ns = sim->pace ? sim->pace->done_at_ns(sim->pace->user, work) : 0;
    *out_ticket = p->ticket = ++sim->tickets;
    return ZERO_OK;
}

static bool ready(struct sim *sim, const struct pending *p) {
    return sim->pace ? *sim->pace->now_ns >= p->done_at_ns : chance(sim) <= sim->probability;
}

static zero_status sim_test(struct device *device, uint64_t ticket, bool *out_done,
                            struct zero_error *error) {
    struct sim *sim = (struct sim *)device;
    struct pending *p = sim->pending;
    while (p < sim->pending + PENDING_MAX && p->ticket != ticket) p++;
    *out_done = p == sim->pending + PENDING_MAX;
    if (*out_done || !ready(sim, p)) return ZERO_OK;
    bool clean = sim->without_data || unchanged(&p->work, p->before);
    if (!sim->without_data) p->work.run(p->work.argument);
    free(p->before);
    p->before = NULL;
    p->ticket = 0;
    *out_done = true;
    if (clean) return ZERO_OK;
    return error_set(
        error, ZERO_E_INTERNAL,
        "device sim: a buffer was overwritten between the start and the end of work that uses it");
}

const struct device_ops device_sim = {
    .name = "sim",
    .open = sim_open,
    .close = sim_close,
    .allocate = host_allocate,
    .release = host_release,
    .submit = sim_submit,
    .test = sim_test,
};
