/* The virtual device: the time of work follows from its bytes, from the memories that hold them, and from its
 * products. */
#include "tools/sim/run.h"

bool rank_on_host(const struct rank *rank, const void *data) {
    const uint8_t *extent = executor_memory(rank->executor, TIER_CPU), *at = data;
    return extent && at >= extent && at < extent + rank->run->blueprint.plan.tier_bytes[TIER_CPU];
}

/* The host's memory and the way to it work at the same time; what stays on the host waits for its part of the memory. */
static uint64_t bytes_ns(struct rank *rank, const struct device_work *w) {
    const struct speeds *s = &rank->run->setup->speeds;
    uint64_t host = 0, device = 0, now = rank->run->clock.now_ns;
    struct device_span span;
    bool read;
    for (uint32_t i = 0; device_work_place(w, i, &span, &read); i++)
        *(rank_on_host(rank, span.data) ? &host : &device) += span.bytes;
    if (!host) return speeds_ns(device, s->device_bytes_per_s);
    if (!s->bus_bytes_per_s) return speeds_ns(host + device, s->host_bytes_per_s);
    uint64_t passed = speeds_pass(s, &rank->memory_ns, now, host) - now,
             host_ns = speeds_ns(host, s->update_bytes_per_s);
    return device ? max64(host_ns, speeds_ns(device, s->bus_bytes_per_s)) : max64(host_ns, passed);
}

static uint64_t work_ns(struct rank *rank, const struct device_work *w) {
    return bytes_ns(rank, w) + speeds_ns((uint64_t)w->flops, speeds_matrix_flops(&rank->run->setup->speeds));
}

static uint64_t done_at_ns(void *user, const struct device_work *work) {
    struct rank *rank = user;
    struct run *run = rank->run;
    uint64_t which = rank->paced++;
    uint64_t ns =
        run->setup->chaos_ns ? run_chaos_ns(run, RANDOM_DEVICE, rank->index, which) : work_ns(rank, work);
    clock_add(&run->clock, run->clock.now_ns + ns, EVENT_WAKE, rank->index);
    return run->clock.now_ns + ns;
}

zero_status device_attach(struct rank *rank, struct zero_error *error) {
    rank->pace =
        (struct device_pace){.user = rank, .now_ns = &rank->run->clock.now_ns, .done_at_ns = done_at_ns};
    struct device_options options = {.pace = &rank->pace, .without_data = !rank->run->setup->host};
    return device_table[DEVICE_SIM]->open(&options, &rank->device, error);
}
