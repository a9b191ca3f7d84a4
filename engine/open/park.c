#include "engine/open/park.h"

#include <inttypes.h>

#include "engine/base/integer.h"
#include "engine/base/limits.h"
#include "engine/open/device_memory.h"
#include "engine/open/start.h"

static const struct plan *plan_of(const struct park *p) { return &p->blueprint->plan; }

/* ---- the plan of a parked engine ---- */

static bool given_back(const struct park *p, enum memory_row row) {
    return p->parked && plan_of(p)->row_tier[row] == TIER_DEVICE;
}

uint64_t park_row_bytes(const struct park *p, enum memory_row row) {
    return given_back(p, row) && row != MEMORY_MESSAGES ? 0 : plan_of(p)->row_bytes[row];
}

uint64_t park_row_offset(const struct park *p, enum memory_row row) {
    return given_back(p, row) ? 0 : plan_of(p)->row_offset[row];
}

/* The bytes that stay on the device while parked: the row of messages, in whole pages. */
static uint64_t kept_bytes(const struct park *p) {
    const struct plan *plan = plan_of(p);
    if (plan->row_tier[MEMORY_MESSAGES] != TIER_DEVICE) return 0;
    return round_up(plan->row_bytes[MEMORY_MESSAGES], CHUNK_ALIGN_BYTES);
}

uint64_t park_tier_bytes(const struct park *p, enum tier_kind tier) {
    return p->parked && tier == TIER_DEVICE ? kept_bytes(p) : plan_of(p)->tier_bytes[tier];
}

bool park_store_row(const struct park *p, uint32_t index, zero_memory_row *out) {
    if (!p->parked || !p->store.bytes || index > (p->store.staging != NULL)) return false;
    const struct tier *tier = index ? p->store.staging : p->store.tier;
    *out = (zero_memory_row){.tier = index ? ZERO_CPU : (zero_tier)p->tier,
                             .name = index ? "staging of the parked state" : "parked state",
                             .planned = tier->bytes,
                             .measured = tier->allocated};
    return true;
}

/* ---- what refuses ---- */

zero_status park_check(const struct park *p, zero_tier tier) {
    if (tier != ZERO_CPU && tier != ZERO_NVME)
        return refuse(ZERO_E_ARGUMENT, "zero_engine_park: tier %d: give ZERO_CPU or ZERO_NVME", (int)tier);
    if (tier == ZERO_CPU || config_park_paths(p->blueprint->o.config)->count) return ZERO_OK;
    return refuse(ZERO_E_ARGUMENT, "zero_engine_park: ZERO_NVME needs a directory on the drive: set "
                                   "zero_optimization.offload_optimizer.nvme_path, or give ZERO_CPU");
}

/* Checks that the store fits into the budgets and into host memory, in addition to the plan. */
static zero_status check_room(const struct park *p, enum tier_kind tier, struct zero_error *error) {
    const struct config *c = p->blueprint->o.config;
    struct store_need need = store_need(&p->store, tier);
    for (int t = TIER_CPU; t < TIERS; t++) {
        uint64_t all = blueprint_bytes(p->blueprint, t) + need.bytes[t];
        if (!need.bytes[t] || all <= c->budget_bytes[t]) continue;
        return error_set(error, ZERO_E_BUDGET,
                         "memory.%s: a parked engine needs %" PRIu64
                         " bytes per rank beside the plan's %" PRIu64 ", %" PRIu64
                         " more than the budget of %" PRIu64 "; raise it%s",
                         tier_table[t]->name, need.bytes[t], all - need.bytes[t], all - c->budget_bytes[t],
                         c->budget_bytes[t], tier == TIER_CPU ? ", or park to ZERO_NVME" : "");
    }
    return host_memory_check(&p->host->memory, blueprint_host_bytes(p->blueprint) + need.bytes[TIER_CPU],
                             p->host->memory_ranks, error);
}

/* Checks that every rank gives the same tier and none fails; otherwise all ranks refuse. */
static zero_status agree(const struct park *p, const struct zero_error *mine, enum tier_kind tier,
                         const char *what) {
    const struct rank_report *all;
    uint64_t word[2] = {tier};
    zero_status status = ranks_agree(p->run->ranks, mine, word, what, &all);
    for (uint32_t r = 1; r < p->run->ranks->size && !status; r++)
        if (all[r].word[0] != all[0].word[0])
            status =
                refuse(ZERO_E_ARGUMENT,
                       "%s: rank %" PRIu32 " has another tier than rank 0: give all ranks the same", what, r);
    return status;
}

/* ---- out and in ---- */

/* `tier` becomes the device's; the one before it is closed. `messages`: where the row of messages is now. */
static void install(struct park *p, struct tier *tier, bool parked) {
    struct running *run = p->run;
    struct tier *before = run->tier[TIER_DEVICE];
    fair_lock_take(&run->ranks->lock);
    run->tier[TIER_DEVICE] = tier;
    p->parked = parked;
    const struct tier *holds = run->tier[plan_of(p)->row_tier[MEMORY_MESSAGES]];
    uint8_t *messages =
        (uint8_t *)holds->ops->address((struct tier *)holds) + park_row_offset(p, MEMORY_MESSAGES);
    start_place(run, p->blueprint, messages);
    state_place(p->state, messages);
    before->ops->close(before);
    fair_lock_give(&run->ranks->lock);
}

static zero_status open_kept(struct park *p, struct tier **out, struct zero_error *error) {
    struct tier_options options = {.bytes = kept_bytes(p), .device = p->run->device};
    return tier_open(config_tier(p->blueprint->o.config, TIER_DEVICE), &options, out, error);
}

static uint8_t *device_extent(const struct park *p) {
    struct tier *device = p->run->tier[TIER_DEVICE];
    return device->ops->address(device);
}

static void close_tier(struct tier *tier) {
    if (tier) tier->ops->close(tier);
}

void park_close(struct park *p) {
    if (p->store.tier && p->tier == TIER_NVME) {
        p->read_bytes += p->store.tier->read_bytes;
        p->written_bytes += p->store.tier->written_bytes;
    }
    store_close(&p->store);
}

static void log_parked(const struct park *p, uint64_t before) {
    const double gib = 1.0 / (1 << 30);
    if (p->run->ranks->rank) return;
    log_line(
        &p->run->ranks->log, ZERO_LOG_INFO,
        "parked: %.3f GiB of each rank's memory on the device are given back, and %.3f GiB rest in tier %s",
        (double)(before - p->run->tier[TIER_DEVICE]->allocated) * gib, (double)p->store.bytes * gib,
        p->store.tier->ops->name);
}

zero_status park_out(struct park *p, enum tier_kind tier) {
    const struct config *c = p->blueprint->o.config;
    struct tier *kept = NULL;
    struct zero_error error = ERROR_NONE;
    zero_status status = store_prepare(&p->store, p->run, p->blueprint, &error);
    p->tier = tier;
    if (!status) status = check_room(p, tier, &error);
    if (!status) status = open_kept(p, &kept, &error);
    if (!status) status = store_open(&p->store, tier, c, &error);
    if (!status) status = store_take(&p->store, device_extent(p), &error);
    status = agree(p, &error, tier, "zero_engine_park");
    if (status) {
        close_tier(kept);
        park_close(p);
        return status;
    }
    uint64_t before = p->run->tier[TIER_DEVICE]->allocated;
    install(p, kept, true);
    log_parked(p, before);
    return ZERO_OK;
}

static zero_status check_free(const struct park *p, struct zero_error *error) {
    struct device_room room = {0};
    uint64_t bytes = plan_of(p)->tier_bytes[TIER_DEVICE];
    zero_status status = device_memory_measure(&room, p->run->device, error);
    if (status || !room.total || bytes <= room.available) return status;
    return error_set(error, ZERO_E_BUDGET,
                     "device memory: the engine needs %" PRIu64 " bytes, and %" PRIu64
                     " are free: free what the program has allocated since zero_engine_park, and call "
                     "zero_engine_unpark again",
                     bytes, room.available);
}

zero_status park_in(struct park *p) {
    struct tier *whole = NULL;
    struct zero_error error = ERROR_NONE;
    zero_status status = check_free(p, &error);
    if (!status) status = start_memory(p->run, p->blueprint, TIER_DEVICE, &whole, &error);
    if (!status) status = store_give(&p->store, whole->ops->address(whole), &error);
    status = agree(p, &error, p->tier, "zero_engine_unpark");
    if (status) return close_tier(whole), status;
    install(p, whole, false);
    park_close(p);
    return ZERO_OK;
}
