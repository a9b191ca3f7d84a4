#include "engine/open/device_memory.h"

#include <inttypes.h>

enum { ROOM_LEAVES = 20 }; /* what need not be there leaves one part of so many of the GPU's memory free */

static const double gib = 1.0 / (1 << 30);

zero_status device_memory_free(struct device *device, uint64_t *out, struct zero_error *error) {
    uint64_t total;
    *out = 0;
    return device->ops->memory ? device->ops->memory(device, out, &total, error) : ZERO_OK;
}

zero_status device_memory_measure(struct device_room *m, struct device *device, struct zero_error *error) {
    return device->ops->memory ? device->ops->memory(device, &m->available, &m->total, error) : ZERO_OK;
}

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

/* The part of the host program's reservations that it has allocated already: it may allocate before the commit, or
 * later. */
static uint64_t reserved_taken(const struct device_room *m) {
    uint64_t taken = less(m->at_open, m->at_commit);
    return taken < m->reserved ? taken : m->reserved;
}

uint64_t device_memory_budget(const struct device_room *m) {
    uint64_t budget = less(m->available + reserved_taken(m), m->margin);
    return m->total && !budget ? 1 : budget;
}

uint64_t device_memory_room(const struct device_room *m, uint32_t sharers) {
    uint64_t free_part = m->total / ROOM_LEAVES, kept = free_part > m->margin ? free_part : m->margin;
    return m->total ? less(m->available / sharers + reserved_taken(m), kept) : UINT64_MAX;
}

uint64_t device_memory_spare(const struct device_room *m, uint64_t planned, uint32_t sharers) {
    return m->total ? less(device_memory_room(m, sharers), planned + m->reserved) : UINT64_MAX;
}

zero_status device_memory_check(const struct device_room *m, const struct device *device, uint64_t planned,
                                const struct log *log, struct zero_error *error) {
    uint64_t later = m->reserved - reserved_taken(m) + m->spare;
    if (!m->total) return ZERO_OK;
    log_line(log, ZERO_LOG_INFO,
             "GPU %" PRId64
             ": of %.2f GiB, %.2f GiB were free when the engine opened; the host program has taken %.2f GiB "
             "since then and the engine's communicators %.2f GiB; the plan takes %.2f GiB of %.2f GiB",
             device->index, (double)m->total * gib, (double)m->at_open * gib,
             (double)less(m->at_open, m->at_commit) * gib, (double)less(m->at_commit, m->available) * gib,
             (double)planned * gib, (double)m->available * gib);
    if (planned <= m->available && later + m->margin <= m->available - planned) return ZERO_OK;
    return error_set(error, ZERO_E_BUDGET,
                     "device memory: this rank's engine needs %.2f GiB, its host program %.2f GiB more, and "
                     "memory.device_margin keeps %.2f GiB; of GPU %" PRId64
                     "'s %.2f GiB only %.2f GiB are free (the driver's context, other ranks and other "
                     "programs take the rest): raise zero_optimization.stage, offload to \"cpu\" or "
                     "\"nvme\", stop the other programs, or set memory.device_margin lower",
                     (double)planned * gib, (double)later * gib, (double)m->margin * gib, device->index,
                     (double)m->total * gib, (double)m->available * gib);
}

void device_memory_report(const struct device_room *m, struct device *device, uint64_t planned,
                          const struct log *log) {
    uint64_t available, total, all = planned + m->reserved + m->spare;
    struct zero_error error; /* a failed device says so in the next call that needs it */
    error_clear(&error);
    if (!device->ops->memory || device->ops->memory(device, &available, &total, &error)) return;
    bool scarce = available < m->margin / 8;
    log_line(log, scarce ? ZERO_LOG_WARN : ZERO_LOG_INFO,
             "GPU %" PRId64 ": of %.2f GiB the plan takes %.2f GiB, %.2f GiB are taken by the driver's "
             "context, kernels, graphs, communicators and other programs, %.2f GiB are free%s",
             device->index, (double)total * gib, (double)all * gib,
             (double)less(total - available, all) * gib, (double)available * gib,
             scarce ? ": raise memory.device_margin, or set memory.device to a smaller budget" : "");
}
