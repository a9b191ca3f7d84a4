/* The executor performs operations. No other part of the engine does.
 *
 * It is a state machine that can resume. An event appends operations to the streams. executor_poll starts the
 * operations that can start, and retires the operations that have finished. It never blocks. One exception: a pass or
 * a flush first writes the chunks that the host changed, and waits for these writes (chunk_access.c).
 *
 *   emitted --(all waits reached, room in flight)--> in flight --(its mechanism is done)--> done
 *           --(all earlier operations of its stream have retired)--> retired
 *
 * The executor uses four mechanisms, which do not know each other: comm (collectives), offload (tiers, through
 * addresses), kernels (arithmetic) and device (memory, work).
 *
 * Invariants: the operations of a stream start and retire in the order of emission. Nothing is allocated after
 * executor_open. A failure is sticky.
 *
 * Threads: one thread at a time; the owner of the executor locks. The executor borrows everything in its options. */
#pragma once

#include <stdatomic.h>

#include "engine/comm/comm.h"
#include "engine/config/schedule/lr_schedule.h"
#include "engine/device/device.h"
#include "engine/plan/plan.h"
#include "kernels/quantize.h"

/* The contribution of one rank to the agreement of a step. It has the same size on all ranks. */
struct agreement {
    /* Of this rank's shards of the summed gradient, without parameters that count on another model rank. */
    double norm_squared;
    struct lr_setting setting[GROUP_MAX];
    uint64_t overflow_unit; /* 1 + the last unit with an inf or NaN in this rank's shards; 0: none */
    uint64_t trace;         /* hash of all operations emitted */
    uint64_t fingerprint;   /* of all collectives posted */
    uint64_t settings;      /* hash of the settings that each rank takes from its own */
    struct save_report {
        uint64_t state, bytes, checksum; /* of this rank's file; see background_save.h */
    } save;
};

/* The collectives posted since executor_open: only the gathers and reductions of the policy. Elements and bytes are
 * those that this rank sent. Coded elements are counted as elements, and `bytes` counts the bytes of their codes. */
struct traffic {
    uint64_t gather_calls, gather_elements, reduce_calls, reduce_elements, bytes;
    uint64_t to_host_bytes, to_device_bytes; /* copies between a discrete device and its host */
};

/* Callbacks that watch operations: for traces, and for the invariants of simulations. Each may be NULL. */
struct executor_watch {
    void *user;
    /* The list of operations that the stage's policy made for an event, before the second policy expands it. The
     * callback may edit the list, to simulate a broken stage. */
    void (*listed)(void *user, struct operation_list *list);
    /* An item of an operation starts (`started`) or is done (`done`). An operation on a run of chunks has one item
     * per chunk. `read` and `write` are the planned buffers behind op->read and op->write. */
    void (*started)(void *user, const struct operation *op, uint32_t item, const uint32_t *read,
                    const uint32_t *write);
    void (*done)(void *user, const struct operation *op, uint32_t item, const uint32_t *read,
                 const uint32_t *write);
};

/* Replaces the mechanisms when operations are priced: the performer gives each item a time, and touches no data. */
struct performer {
    /* Starts one item of the operation. */
    void (*start)(void *user, const struct operation *op, uint32_t item, uint64_t *out_ticket);
    bool (*done)(void *user, uint64_t ticket); /* not called for COMPUTE, which the host ends */
    void *user;
};

/* The options that decide the operations, the collectives that they post and the memory that they need. */
struct executor_shape {
    struct policy *policy;
    const struct model *model;
    struct comm_group *group[AXES_BOTH + 1][STREAMS]; /* by axes and stream; NULL where not used */
    /* its precision is that of regions that are not kept in fp32: see region_precision */
    const struct terms *terms;
    bool host_updates; /* the value of plan_host_updates, which needs the plan */
    /* Per parameter: the rank that changes its direction, where its optimizer updates whole matrices. */
    const uint32_t *matrix_owner;
};

/* The operations that the executor performs, from blueprint_executor_options. */
struct executor_options {
    struct executor_shape shape;
    const struct plan *plan;
    const struct optimizer *optimizer[2]; /* by region_other */
    uint32_t state_count;                 /* the most states that one of them uses, and the average */
};

/* The mechanisms that perform the operations. */
struct executor_mechanisms {
    void *memory[TIERS]; /* the tiers' extents */
    void *space;         /* plan.space_bytes of address space, whose parts are empty; else NULL */
    struct tier *drive;  /* stores the chunks; NULL: the plan puts nothing on a drive */
    struct comm *comm;
    struct comm_group *world; /* for agreements */
    struct device *device;
    double *norms; /* per region, in memory that host and device reach; NULL: the executor allocates them */
    uint32_t rank, threads;            /* rank: among the data ranks */
    const struct performer *performer; /* NULL: the mechanisms perform. Else all others may be NULL */
    struct agreement *agreements;      /* comm_size + 1 entries: the first is this rank's contribution */
    /* For simulations: the memory at the addresses of `memory` is never touched, nor the entries of `agreements`
     * after the first. */
    bool without_data;
    const struct executor_watch *watch; /* or NULL */
};

struct executor;

/* The most requests to the drive that may be in flight. */
uint32_t executor_requests_max(const struct plan *plan);

/* True if the host adds this reduction's result to the shard, because the shard rests in host memory; else the device
 * adds. */
bool executor_host_adds(const struct executor_shape *shape, const struct operation *op);

/* True if on a discrete device a second kernel must read the reduced shard for its norm, because the kernel that sums cannot take
 * the norm. `by_host`: the host adds the shard. */
bool executor_norm_apart(const struct executor_shape *shape, const struct operation *op, bool by_host);

/* The most scratch bytes that one reduction needs, and the part of them that the host adds; the most for one coded gather;
 * and the most for one gather to lent regions. The plan needs these numbers. */
uint64_t executor_staging_bytes(const struct executor_shape *shape);
uint64_t executor_round_staging_bytes(const struct executor_shape *shape);
uint64_t executor_gather_staging_bytes(const struct executor_shape *shape);
/* The same of one region; 0: its gathers need none. */
uint64_t executor_gather_staging(const struct executor_shape *shape, uint32_t region);
uint64_t executor_lent_staging_bytes(const struct executor_shape *shape);

/* The shapes of the collectives that an item of a gather or a reduction posts, one after another: kind, types and count,
 * without buffers. False: there are no more. `round` is zero before the first. */
struct executor_round {
    uint64_t moved; /* elements of each share, before this round */
    bool sum;       /* over the replicate axis, after the scatter */
    uint8_t axes;   /* of the group that *out is for; 0: before the first call */
};
bool executor_next_call(const struct executor_shape *shape, const struct operation *op, uint32_t item,
                        struct executor_round *round, struct comm_call *out);

/* The bytes that an item sends to other ranks (as zero_counters counts them), and those that it reads from the drive or
 * writes there. A record that was never written is not read. */
uint64_t executor_wire_bytes(const struct executor_shape *shape, const struct operation *op, uint32_t item);
uint64_t executor_drive_bytes(const struct plan *plan, const struct operation *op, uint32_t item);

/* The floating-point operations of the fp32 products of those matrices of a region that a rank owns. */
double executor_matrix_flops(const struct executor_shape *shape, uint32_t region, uint32_t rank);

zero_status executor_open(const struct executor_options *options,
                          const struct executor_mechanisms *mechanisms, struct executor **out,
                          struct zero_error *error);
void executor_close(struct executor *executor);
struct zero_error *executor_error(struct executor *executor);

/* Tells the executor that the memory of these three mechanisms has moved, with its content. Call it between steps, with
 * nothing in flight. */
void executor_place(struct executor *executor, void *const memory[TIERS], void *space,
                    struct agreement *agreements);

/* ---- events (stages/policy.h) ---- */

/* The settings of the updates of a step. `scalars` has `count` entries, indexed by model_param.scalars. `scale` multiplies the summed
 * gradient. `rounding_key` is the key of this step for states that are rounded stochastically. The averaged weights move by
 * `average_share` (kernels/average.h); 0: they stay. */
struct update_settings {
    float scale;
    const struct optimizer_scalars *scalars;
    uint32_t count;
    uint64_t rounding_key;
    float average_share;
};

/* Emits the operations of an event; executor_has_room() must be true. In a use the host may compute once executor_computing() is
 * true; a forward that runs again inside the backward begins and ends like a use.
 *
 * PASS: with updates in the backward, the last training pass of a step has the settings of the updates. Until the backward begins,
 * those of another pass replace them.
 * APPLY: with updates in the backward, OUTCOME_REPEATED and OUTCOME_SKIPPED need a shadow: the other place of each chunk has the
 * values before the updates. Its settings are then used only for OUTCOME_REPEATED, because the backward has used those of PASS. */
zero_status executor_emit(struct executor *executor, const struct event *event);

bool executor_has_room(const struct executor *executor);
bool executor_computing(const struct executor *executor);
/* The device's compute stream has room for work of the host. A failure of the device counts as room: the work reports it. */
bool executor_stream_has_room(const struct executor *executor);
bool executor_agreed(const struct executor *executor); /* the last AGREE is done */
/* The agreements of all ranks, in rank order. Valid once executor_agreed() is true, until the next AGREE. */
const struct agreement *executor_agreements(const struct executor *executor);
/* After APPLY: the updates are complete, if the plan needs that before the next pass. */
bool executor_settled(const struct executor *executor);

/* From now on the update of region r starts only while go[r] is not 0. A save in the background uses this while it
 * reads the region's state. The caller owns `go`, which has one entry per region; any thread may set an entry. NULL:
 * every update may start. */
void executor_hold(struct executor *executor, const atomic_uchar *go);

/* ---- jobs: work of the host that takes long (updates, checksums, sums), without the lock under which the executor is used ---- */

struct job;

/* Each queue has a thread of its own, so that chunks go on beside a sum of a whole unit. */
enum job_queue {
    JOBS_CHUNKS, /* updates, and checksums of chunks */
    JOBS_CALLS,  /* gathers and reductions of a rank that is alone */
    JOB_QUEUES
};

/* From now on work of the host on `bytes` or more is queued as a job, and `queued` is called, with the lock. Other threads
 * then take and run the jobs of each queue, one after another, until executor_close. Without this call executor_poll does such work itself. */
void executor_detach(struct executor *executor, uint64_t bytes, void (*queued)(void *user), void *user);
struct job *executor_take_job(struct executor *executor,
                              enum job_queue queue); /* with the lock. NULL: none is queued */
/* Call it without the lock. The next executor_poll notices that the job is done. */
void executor_run_job(struct job *job);
/* True while a job is queued or runs, and until executor_poll has noticed that it is done. */
bool executor_works(const struct executor *executor);
uint32_t executor_threads(const struct executor *executor); /* of a job: at least 1 */

/* ---- progress ---- */

zero_status executor_poll(struct executor *executor, bool *out_moved);
bool executor_idle(const struct executor *executor); /* every operation that was emitted has retired */
/* A collective has started and has not retired: other ranks may use its buffers. */
bool executor_in_flight(const struct executor *executor);
/* A collective was emitted and has not retired: other ranks may wait for this rank's part in it. */
bool executor_owes(const struct executor *executor);
/* The host may compute before the device has done what the use needs: the device's streams are in order. */
bool executor_runs_ahead(const struct executor *executor);
/* Requests to the drive are in flight. */
bool executor_transferring(const struct executor *executor);
/* True if polling cannot advance anything: the host must first end its use, or the executor has failed. */
bool executor_waits_for_host(const struct executor *executor);

/* ---- addresses of buffers ---- */

/* The address behind a reference after the last event. For a gathered region it is the region's present interval.
 * NULL: the buffer has no address, or the host's memory takes its place (engine/model/lent.h). The element type is that
 * of region_precision. */
void *executor_address(const struct executor *executor, struct buffer_ref ref);
/* The address that the buffer has whenever it has one: the same until executor_place. NULL: never. */
void *executor_lasting_address(const struct executor *executor, struct buffer_ref ref);
/* The addresses of the optimizer's data in memory, in the types of region_precision, from element `first` of the shard on:
 * state k, and the master weights. The device has arrays of its own (chunk_layout_device).
 * executor_master returns NULL where the parameters are the master weights. */
void *executor_state(const struct executor *executor, uint32_t region, uint32_t k, uint64_t first);
void *executor_master(const struct executor *executor, uint32_t region, uint64_t first);
/* This rank's part of the reduced gradient. NULL: it is lent, or on the drive. */
void *executor_grad_shard(const struct executor *executor, uint32_t region);

/* ---- the host's access to chunks on the drive; between steps, with nothing in flight ---- */

/* The parts of a chunk that may be on the drive. */
enum { CHUNK_STATE = 1, CHUNK_PARAMS = 2, CHUNK_ALL = 3, CHUNK_GRADS = 4 /* the host only reads them */ };

/* Reads the parts of a chunk into a slot, unless they are there already; *out is the slot's address, until the next call.
 * executor_chunk waits. executor_chunk_poll does not wait: call it again until *out_there is true. It may read a chunk
 * whose update executor_hold holds back while other chunks move. */
zero_status executor_chunk(struct executor *executor, uint32_t region, uint32_t chunk, uint8_t parts,
                           uint8_t **out);
zero_status executor_chunk_poll(struct executor *executor, uint32_t region, uint32_t chunk, uint8_t parts,
                                uint8_t **out, bool *out_there);
/* The same for the chunk's gradient; it waits for the stores of gradients. */
zero_status executor_gradient_poll(struct executor *executor, uint32_t region, uint32_t chunk, uint8_t **out,
                                   bool *out_there);
void executor_chunk_forget(struct executor *executor); /* chunks in slots become out of date */
/* The host changed parts of the chunk that it got last. They go to the drive when the host goes on to another chunk, or
 * before the next pass begins. */
void executor_chunk_written(struct executor *executor, uint8_t parts);

/* A sweep over many chunks uses the slots of the staging ring too, so that several chunks are read or written at the
 * same time. Chunks are read ahead in the order of these regions; `order` is borrowed; NULL: that of their indices. No
 * regions: nothing is read ahead. `parts`: are read of each chunk at least. Call it with nothing in flight. */
void executor_sweep(struct executor *executor, const uint16_t *order, uint32_t regions, uint8_t parts);
/* Waits until all that was written is on the drive. The next pass, or a flush, does the same. */
zero_status executor_end_sweep(struct executor *executor);

/* The chunks of some rank were changed, so the chunks that were fetched ahead are out of date. All ranks must call
 * it, because all ranks must emit the same operations. */
void executor_refetch(struct executor *executor);
/* All chunks on the drive count as never stored from now on: they are zero, and are not read. */
zero_status executor_clear_chunks(struct executor *executor);

/* With a shadow: the last step, or values that the host wrote, must be committed. APPLY sets it; a commit, and executor_forget_commits,
 * clear it. */
bool executor_commits(const struct executor *executor);
void executor_set_commits(struct executor *executor, bool commits);
/* True if the step before must be committed before this event: with updates in the backward, that of the first use in which, or after
 * which, the step may update: a use of the last pass's backward, or a forward that is recomputed for it. These updates overwrite the
 * step before the one that is committed. */
bool executor_commits_before(const struct executor *executor, const struct event *event);

/* ---- with a shadow: the drive keeps two epochs; call these between steps, except executor_commit (in a step) ---- */

/* Every STORE that was emitted has retired. */
bool executor_stored(const struct executor *executor);
uint64_t executor_epoch(const struct executor *executor); /* of the chunks stored now; 1 at first */
void executor_begin_epoch(struct executor *executor, uint64_t epoch); /* before anything is stored */
/* Stores the chunks of earlier epochs again, unchanged, in the present epoch. Call it before a commit of an epoch in which only the
 * host stored chunks. The staging slots must be idle. */
zero_status executor_complete_epoch(struct executor *executor);
/* Writes the caller's page of CHUNK_ALIGN_BYTES, which says that the present epoch is complete. Chunks stored from
 * now on belong to the next epoch, and do not overwrite this epoch. */
zero_status executor_commit(struct executor *executor, const void *page);
zero_status executor_read_commit(struct executor *executor, uint32_t which, void *page); /* which: 0 or 1 */
zero_status executor_forget_commits(struct executor *executor);
/* Resumes from a committed epoch. executor_chunk then reads the chunks of that epoch. */
zero_status executor_resume(struct executor *executor, uint64_t epoch);

uint64_t executor_trace(const struct executor *executor);
struct traffic executor_traffic(const struct executor *executor);
double executor_update_seconds(const struct executor *executor);
