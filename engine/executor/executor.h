/* The executor: the only place that performs operations. A resumable state machine: events append operations
 * to the streams, poll starts what can start and retires what has finished, and never blocks. (What the host left in a
 * chunk is written before a pass or a flush: chunk_access.c.)
 *
 *   emitted --(all waits reached, a place in flight free)--> in flight --(its mechanism is done)--> done
 *           --(all before it on its stream have retired)--> retired
 *
 * It knows four mechanisms, which do not know each other: comm (collectives), offload (tiers, through
 * addresses), kernels (arithmetic) and device (memory, work). Invariants: operations of a stream start and
 * retire in the order of emission; nothing is allocated after executor_open; a failure is sticky.
 *
 * Threads: one at a time; the owner locks. Borrows everything in its options. */
#ifndef ZERO_ENGINE_EXECUTOR_H
#define ZERO_ENGINE_EXECUTOR_H

#include <stdatomic.h>

#include "engine/comm/comm.h"
#include "engine/device/device.h"
#include "engine/plan/plan.h"
#include "engine/schedule/lr_schedule.h"

struct point {
    uint8_t stream;
    uint64_t value; /* reached when that many operations of the stream have retired */
};

/* What every rank contributes to the agreement of a step. Equal sizes on all ranks. */
struct agreement {
    double norm_squared; /* of this rank's shards of the summed gradient */
    struct lr_setting setting[GROUP_MAX];
    uint64_t overflow_unit; /* 1 + the last unit with an inf or NaN in this rank's shards; 0: none */
    uint64_t trace;         /* hash of all operations emitted */
    uint64_t fingerprint;   /* of all collectives posted */
    struct save_report {
        uint64_t state, bytes, checksum; /* saver.h; of this rank's file */
    } save;
};

/* Posted since the opening: gathers and reductions of the policy alone. Elements and bytes sent by this rank, also
 * where elements are sent in fewer bytes than they have. */
struct traffic {
    uint64_t gather_calls, gather_elements, reduce_calls, reduce_elements, bytes;
};

/* Who watches operations: traces, and the invariants of simulations. Each may be NULL. */
struct executor_watch {
    void *user;
    /* What the stage's policy listed for an event, before anything is made of it. It may be edited: a broken stage. */
    void (*listed)(void *user, struct operation_list *list);
    /* An item of an operation starts, and is done; of a run of chunks there are several. `read`, `write`: the planned
     * buffers behind op->read and op->write. */
    void (*started)(void *user, const struct operation *op, uint32_t item, const uint32_t *read,
                    const uint32_t *write);
    void (*done)(void *user, const struct operation *op, uint32_t item, const uint32_t *read,
                 const uint32_t *write);
};

/* In place of the mechanisms, for those who price operations: whoever is asked takes time, and touches nothing. */
struct performer {
    void (*start)(void *user, const struct operation *op, uint32_t item,
                  uint64_t *out_ticket);       /* its item-th point */
    bool (*done)(void *user, uint64_t ticket); /* not asked of COMPUTE, which the host ends */
    void *user;
};

struct executor_options {
    struct policy *policy;
    const struct model *model;
    const struct plan *plan;
    void *memory[TIERS]; /* the tiers' extents */
    struct tier *drive;  /* where chunks go; NULL: nothing is planned there */
    struct comm *comm;
    struct comm_group *group[AXES_BOTH + 1][STREAMS]; /* by axes and stream; those in use */
    struct comm_group *world;                         /* for agreements */
    struct device *device;
    bool discrete; /* its memory is not the host's to touch: plan_options.discrete */
    double *norms; /* per region, in memory that host and device reach; NULL: the executor's own */
    const struct optimizer *optimizer;
    uint32_t state_count; /* of the optimizer's states, those in use */
    uint32_t rank, threads;
    bool native_reduction;
    bool host_updates; /* plan_host_updates, for those who have no plan yet */
    struct precision precision;
    float gradient_factor; /* of gradients, rounded to the message's type, before they are sent; 0: none */
    /* Bits of what is sent in place of them: 8 or 4 (kernels/quantize.h); 0: they are sent as they are. */
    uint32_t param_bits; /* of parameters that are gathered from shards: policy->gather_stagings is not 0 */
    uint32_t gradient_bits;            /* of gradients that are scattered */
    const struct performer *performer; /* NULL: the mechanisms perform. Else they may all be NULL */
    struct agreement *agreements;      /* comm_size + 1 of them: the first is this rank's contribution */
    bool without_data; /* simulations: what is at the addresses of `memory` is never touched; nor what follows
                          `agreements` */
    const struct executor_watch *watch; /* or NULL */
};

struct executor;

/* Requests that may be in flight to the drive. */
uint32_t executor_requests_max(const struct plan *plan);

/* The scratch that one reduction needs at most: for the plan, before opening. Reads policy, model, group, discrete,
 * host_updates, native_reduction, gradient_bits and precision. */
uint64_t executor_staging_bytes(const struct executor_options *options);

/* The same of a quantised gather; reads param_bits, too. */
uint64_t executor_gather_staging_bytes(const struct executor_options *options);

/* The shape of what a gather or a reduction posts: kind, types and count, no buffers. Reads what
 * executor_staging_bytes and executor_gather_staging_bytes read. */
struct comm_call executor_call(const struct executor_options *options, const struct operation *op);

zero_status executor_open(const struct executor_options *options, struct executor **out,
                          struct zero_error *error);
void executor_close(struct executor *executor);
struct zero_error *executor_error(struct executor *executor);

/* ---- events; room for them must be there ---- */

bool executor_has_room(const struct executor *executor);
zero_status executor_pass(struct executor *executor, bool evaluating, bool last);
/* Emits what the use needs; it has started, and the host may compute, once executor_computing() says so. */
zero_status executor_begin(struct executor *executor, uint32_t position);
bool executor_computing(const struct executor *executor);
zero_status executor_end(struct executor *executor);
/* Inside the backward: policy_recompute. Begun and ended as a use is. */
zero_status executor_recompute(struct executor *executor, uint32_t use, uint32_t next);
zero_status executor_recomputed(struct executor *executor, uint32_t use);
zero_status executor_complete(struct executor *executor); /* all gradients, after the last micro-step */
zero_status executor_agree(struct executor *executor, const struct agreement *mine, struct point *out_point);
/* The members' agreements, in rank order; valid after the agreement's point was reached, until the next one.
 */
const struct agreement *executor_agreements(const struct executor *executor);
/* scalars: by model_param.scalars; scale multiplies the summed gradient. */
/* rounding_key: of this step, for states that are rounded stochastically. */
zero_status executor_apply(struct executor *executor, bool skip, float scale,
                           const struct optimizer_scalars *scalars, uint32_t count, uint64_t rounding_key);
zero_status executor_written(struct executor *executor);
zero_status executor_flush(struct executor *executor);

/* From now on the update of region r starts only where go[r] is not 0: its state is being read elsewhere until then. The
 * caller's, `regions` of them, set by any thread; NULL: all may start. */
void executor_hold(struct executor *executor, const atomic_uchar *go);

/* ---- progress ---- */

zero_status executor_poll(struct executor *executor, bool *out_moved);
bool executor_reached(const struct executor *executor, struct point point);
bool executor_idle(const struct executor *executor); /* everything emitted has retired */
/* A collective has started and not retired: peers may use its buffers. */
bool executor_in_flight(const struct executor *executor);
/* Requests to the drive are in flight. */
bool executor_transferring(const struct executor *executor);
/* Nothing can move before the host ends its use, or something failed: there is no point in polling. */
bool executor_waits_for_host(const struct executor *executor);

/* ---- what buffers are where ---- */

/* The address behind a reference as of the last event: for regions that are gathered, their present interval.
 * NULL: there is none. Of the type that options.precision says. */
void *executor_address(const struct executor *executor, struct buffer_ref ref);
/* What the optimizer keeps in memory, as options.precision says: its state k, and the masters, where they are not
 * the parameters (NULL: they are). */
void *executor_state(const struct executor *executor, uint32_t region, uint32_t k);
void *executor_master(const struct executor *executor, uint32_t region);
void *executor_grad_shard(const struct executor *executor,
                          uint32_t region); /* this rank's part of the reduced one */

/* ---- chunks on the drive, for the host, between steps and with nothing in flight ---- */

/* The last slot holds the chunk: loads it if it is another one. *out: the slot's address. _poll does not wait: call it
 * again until it is there; a chunk whose update is held back may be read so while others move. */
zero_status executor_chunk(struct executor *executor, uint32_t region, uint32_t chunk, uint8_t **out);
zero_status executor_chunk_poll(struct executor *executor, uint32_t region, uint32_t chunk, uint8_t **out,
                                bool *out_there);
void executor_chunk_forget(struct executor *executor); /* what the slot holds will be old */
/* It was written there: it goes to the drive before another one comes, or the next pass begins. */
void executor_chunk_written(struct executor *executor);
/* Some rank's chunks are written: what was fetched ahead is old. All ranks call it, for all must emit alike. */
void executor_refetch(struct executor *executor);
/* All state on the drive is zero. */
zero_status executor_clear_state(struct executor *executor);

/* ---- with a shadow: epochs, of which the drive keeps two; between steps, executor_commit in one ---- */

/* Everything emitted has been stored. */
bool executor_stored(const struct executor *executor);
uint64_t executor_epoch(const struct executor *executor);             /* of what is stored now, 1 at first */
void executor_begin_epoch(struct executor *executor, uint64_t epoch); /* before anything is stored */
/* A page of the caller's, CHUNK_ALIGN_BYTES, that says the present epoch is whole: what is stored from now on is of the
 * next one, and leaves this one as it is. */
zero_status executor_commit(struct executor *executor, const void *page);
zero_status executor_read_commit(struct executor *executor, uint32_t which, void *page); /* which: 0 or 1 */
zero_status executor_forget_commits(struct executor *executor);
/* Goes on from a committed epoch: its chunks are then read as executor_chunk reads them. */
zero_status executor_resume(struct executor *executor, uint64_t epoch);

/* The sum of squares of this rank's shards of the gradient, regions in the order of refresh. */
double executor_norm_squared(const struct executor *executor);
uint64_t executor_trace(const struct executor *executor);
struct traffic executor_traffic(const struct executor *executor);
double executor_update_seconds(const struct executor *executor);

#endif
