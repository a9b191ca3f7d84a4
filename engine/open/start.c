#include "engine/open/start.h"

#include <inttypes.h>
#include <stdlib.h>

#include "engine/ranks/model_ranks.h"
#include "engine/state/commit_page.h"
#include "kernels/device_work.h"
#include "kernels/ordered_sum.h"

/* ---- groups of ranks ---- */

static zero_status open_group(struct ranks *ranks, const struct terms *terms, uint8_t axes,
                              struct comm_group **out, struct zero_error *error) {
    uint32_t shards = terms->mesh[AXIS_SHARD];
    uint32_t *list = malloc(ranks->data_size * sizeof *list), count = 0, rank = ranks->data_rank;
    if (!list)
        return error_set(error, ZERO_E_MEMORY, "no memory for a list of %" PRIu32 " ranks", ranks->data_size);
    for (uint32_t r = 0; r < ranks->data_size; r++) {
        bool same_row = r / shards == rank / shards, same_column = r % shards == rank % shards;
        if ((axes & AXES_SHARD || same_column) && (axes & AXES_REPLICATE || same_row))
            list[count++] = model_ranks_at(ranks, ranks->model_rank, r);
    }
    zero_status status = comm_group_open(ranks->data, list, count, out);
    free(list);
    if (status) return error_pass(error, comm_error(ranks->data));
    comm_group_place(*out, terms->node_ranks, axes & AXES_SHARD ? 1 : shards);
    return ZERO_OK;
}

zero_status start_groups(struct ranks *ranks, const struct terms *terms,
                         struct comm_group *group[AXES_BOTH + 1][STREAMS], struct zero_error *error) {
    static const enum stream streams[] = {STREAM_GATHER, STREAM_REDUCE};
    uint8_t most = terms->mesh[AXIS_REPLICATE] > 1 ? AXES_BOTH : AXES_SHARD;
    for (uint8_t axes = AXES_SHARD; axes <= most; axes++)
        for (int s = 0; s < 2; s++) {
            TRY(open_group(ranks, terms, axes, &group[axes][streams[s]], error));
        }
    return ZERO_OK;
}

/* ---- memory ---- */

uint8_t *start_row(const struct running *run, const struct plan *plan, enum memory_row row) {
    struct tier *tier = run->tier[plan->row_tier[row]];
    return (uint8_t *)tier->ops->address(tier) + plan->row_offset[row];
}

enum { TRANSFER_ROWS = 3 };

/* WSL2, some containers: the transfers pin their pages one by one. */
static void log_pinned(const struct running *run) {
    if (run->device->pinned_by_driver)
        log_line(&run->ranks->log, ZERO_LOG_INFO,
                 "GPU %" PRId64 ": the driver refuses to pin the engine's memory (cuMemHostRegister), and "
                 "allocates pinned memory itself; io_uring does not register that",
                 run->device->index);
}

/* Chunks, parameters and gradients go to and come from these rows, which are pinned for the drive's requests. */
static uint32_t transfer_buffers(const struct running *run, const struct plan *plan,
                                 struct device_span out[TRANSFER_ROWS]) {
    static const enum memory_row rows[TRANSFER_ROWS] = {MEMORY_SLOTS, MEMORY_PARAM_STAGING,
                                                        MEMORY_GRAD_STAGING};
    uint32_t count = 0;
    for (int i = 0; i < TRANSFER_ROWS && !run->device->pinned_by_driver; i++)
        if (plan->row_bytes[rows[i]])
            out[count++] = (struct device_span){start_row(run, plan, rows[i]), plan->row_bytes[rows[i]]};
    return count;
}

struct tier_options start_drive_options(const struct running *run, const struct config *c,
                                        const struct config_paths *paths) {
    return (struct tier_options){.device = run->device,
                                 .log = &run->ranks->log,
                                 .hook = run->hook,
                                 .nvme = {.paths = (const char *const *)paths->items,
                                          .path_count = (uint32_t)paths->count,
                                          .block_bytes = (uint32_t)c->aio_block_bytes,
                                          .queue_depth = (uint32_t)c->aio_queue_depth,
                                          .no_uring = c->nvme_uring == CONFIG_URING_NEVER}};
}

static zero_status open_drive(struct running *run, const struct start_options *o, struct zero_error *error) {
    const struct plan *plan = &o->blueprint->plan;
    const struct config *c = o->blueprint->o.config;
    const struct config_paths *paths = config_drive_paths(c);
    struct device_span buffers[TRANSFER_ROWS];
    struct commit_file keep = commit_file(run->ranks->rank, run->ranks->size);
    struct commit kept = {0};
    if (c->nvme_shadow) commit_search(paths, run->ranks->size, true, &kept);
    struct tier_options options = start_drive_options(run, c, paths);
    options.bytes = plan->tier_bytes[TIER_NVME];
    options.requests_max = executor_requests_max(plan);
    options.nvme.keep = c->nvme_shadow ? keep.name : NULL;
    options.nvme.kept_step = kept.steps;
    options.nvme.discard = o->host->discard_shadow;
    options.nvme.buffers = buffers;
    options.nvme.buffer_count = transfer_buffers(run, plan, buffers);
    return tier_open(config_tier(c, TIER_NVME), &options, &run->tier[TIER_NVME], error);
}

zero_status start_scratches(struct scratches *scratches, const struct running *run,
                            const struct start_options *o, struct zero_error *error) {
    const struct config *c = o->blueprint->o.config;
    struct tier_options options = start_drive_options(run, c, config_scratch_paths(c));
    options.bytes = scratches_bytes(scratches);
    options.requests_max = (uint32_t)scratches_places(scratches);
    return scratches_open(scratches, config_tier(c, TIER_NVME), &options, error);
}

/* The parts of the device's address space. */
static void empty_parts(struct running *run, const struct plan *plan, uint8_t *space) {
    for (uint32_t i = 0; i < plan->buffers; i++)
        if (plan_in_space(plan, i))
            run->device->ops->empty(run->device, space + plan->buffer[i].offset, plan->buffer[i].bytes);
}

zero_status start_memory(struct running *run, const struct blueprint *b, enum tier_kind kind,
                         struct tier **out, struct zero_error *error) {
    const struct plan *plan = &b->plan;
    struct tier_options options = {.bytes = plan_extent_bytes(plan, kind),
                                   .device = run->device,
                                   .space_bytes = kind == TIER_DEVICE ? plan->space_bytes : 0,
                                   .space_used_bytes = plan->row_bytes[MEMORY_GATHERED]};
    zero_status status = tier_open(config_tier(b->o.config, kind), &options, out, error);
    if (!status && (*out)->space) empty_parts(run, plan, (*out)->space);
    return status;
}

static zero_status allocate(struct running *run, const struct start_options *o, struct zero_error *error) {
    zero_status status = start_memory(run, o->blueprint, TIER_DEVICE, &run->tier[TIER_DEVICE], error);
    if (!status) status = start_memory(run, o->blueprint, TIER_CPU, &run->tier[TIER_CPU], error);
    if (!status) log_pinned(run);
    return status ? status : open_drive(run, o, error);
}

/* ---- the executor ---- */

void start_place(struct running *run, const struct blueprint *b, uint8_t *messages) {
    struct blueprint_messages m = blueprint_messages(b);
    void *memory[TIERS];
    for (int t = 0; t < TIERS; t++) memory[t] = run->tier[t]->ops->address(run->tier[t]);
    executor_place(run->executor, memory, run->tier[TIER_DEVICE]->space,
                   (struct agreement *)(void *)(messages + m.agreements));
    run->ranks->message = messages + m.message;
    run->ranks->text = messages + m.piece;
}

static zero_status open_executor(struct running *run, const struct start_options *o,
                                 struct zero_error *error) {
    const struct blueprint *b = o->blueprint;
    struct blueprint_messages m = blueprint_messages(b);
    uint8_t *messages = start_row(run, &b->plan, MEMORY_MESSAGES);
    struct executor_options options = blueprint_executor_options(b);
    struct executor_mechanisms mechanisms = {
        .comm = run->ranks->data,
        .world = run->ranks->world,
        .device = run->device,
        .rank = run->ranks->data_rank,
        .threads = o->host->threads,
        .watch = o->watch,
        .drive = b->plan.tier_bytes[TIER_NVME] ? run->tier[TIER_NVME] : NULL,
        .agreements = (struct agreement *)(void *)(messages + m.agreements),
        .norms = run->discrete ? (double *)(void *)(messages + m.norms) : NULL};
    zero_status status = executor_open(&options, &mechanisms, &run->executor, error);
    if (!status) start_place(run, b, messages);
    return status;
}

static zero_status load_optimizer(struct device *device, const struct optimizer *row,
                                  struct zero_error *error) {
    const struct kernel *kernels[] = {kernel_optimizer_step(row), kernel_optimizer_measure(row)};
    for (int i = 0; i < 2; i++)
        if (kernels[i]) TRY(device->ops->prepare(device, kernels[i], error));
    return ZERO_OK;
}

/* All kernels that the steps may need. */
static zero_status load_kernels(struct device *device, const struct blueprint_options *o,
                                struct zero_error *error) {
    const struct optimizer *rows[] = {o->optimizer, o->other};
    zero_status status = ZERO_OK;
    if (!device->ops->prepare) return ZERO_OK;
    for (int i = 0; i < WORK_KERNELS && !status; i++)
        status = device->ops->prepare(device, work_kernels[i], error);
    if (!status) status = device->ops->prepare(device, &kernel_ordered_sum, error);
    for (int i = 0; i < 2 && !status; i++) {
        if (rows[i]) status = load_optimizer(device, rows[i], error);
        if (rows[i] && rows[i]->before && !status) status = load_optimizer(device, rows[i]->before, error);
    }
    return status;
}

zero_status start_run(struct running *run, const struct start_options *options, struct zero_error *error) {
    zero_status status = allocate(run, options, error);
    if (!status) status = open_executor(run, options, error);
    return status ? status : load_kernels(run->device, &options->blueprint->o, error);
}
