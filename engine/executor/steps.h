/* Functions that the files of the executor share.
 *
 * An item goes from step to step (the table is in perform.c). Each step returns at once. A step may start work on one
 * mechanism; the item then awaits that work. */
#ifndef ZERO_ENGINE_EXECUTOR_STEPS_H
#define ZERO_ENGINE_EXECUTOR_STEPS_H

#include "engine/executor/executor_internal.h"
#include "engine/model/lent.h"

/* perform.c: how each kind of operation is started, and whether it is done. */
zero_status perform_start(struct executor *e, struct item *item);
zero_status perform_test(struct executor *e, struct item *item, bool *out_done);

/* True if all remaining work of the item is queued on the device; the item is done when *out_ticket is done (0: it is
 * done). */
bool perform_queued(const struct executor *e, const struct item *item, uint64_t *out_ticket);

/* ahead.c: operations that are queued on the device behind those for which they wait. */
bool ahead_possible(const struct executor_options *options);
/* The value of task.ahead, once the task's buffers are bound. */
uint8_t ahead_streams(const struct executor *e, const struct task *task);
/* True if all items before the task on its line are queued or done. */
bool ahead_turn(const struct executor *e, const struct timeline *line, const struct task *task);
/* True if the operations of `stream` that the task waits for are queued or done. */
bool ahead_reached(const struct executor *e, const struct task *task, int stream);
/* Starts the item: its streams wait for operations that are queued and not done. */
zero_status ahead_start(struct executor *e, struct item *item);
/* Lets streams of the device (a bit for each) wait for a ticket; 0: for nothing. */
zero_status ahead_wait(struct executor *e, uint8_t streams, uint64_t ticket);

/* shards.c: elements of one part of a region under a placement, and of the part that this rank holds. */
const struct region *policy_region(const struct executor *e, uint32_t region);
uint64_t part_elements(const struct executor_shape *o, uint32_t region, struct placement placement);
uint64_t shard_elements(const struct executor *e, uint32_t region, struct placement placement);
/* Which type is where in a region. */
struct precision precision_of(const struct executor_shape *o, uint32_t region);
/* The same for an operation: directions are fp32, also when sent. Norms of tensors are sent as words of the size of
 * fp32. */
struct precision moved_precision(const struct executor_shape *o, const struct operation *op);
/* The address of this rank's part under `placement`, in a buffer that holds either that part alone or the whole
 * region. */
void *own_part_address(const struct executor *e, struct buffer_ref ref, uint32_t buffer,
                       struct placement placement, enum dtype dtype);
/* The directions of this rank's part of a region, in a buffer that has those of the whole region. */
float *part_of_directions(const struct executor *e, uint32_t region, uint32_t buffer,
                          struct placement placement);
/* The gradient shard that a reduction writes: its placement, also where the step needs the whole gradient, and its
 * size. */
struct placement grad_shard_placement(const struct region *r);

/* lent.c: regions in the host program's memory. lent_region: the region behind a reference, if the host's memory takes the buffer's
 * place; else NULL. lent_sum: completes a lent gradient, and takes its norm. The others take the places of steps. */
const struct model_region *lent_region(const struct executor *e, struct buffer_ref ref);
void lent_sum(struct executor *e, uint32_t region);
zero_status lent_gather(struct executor *e, struct item *item, struct comm_call call);
zero_status lent_take_gathered(struct executor *e, struct item *item);
zero_status lent_reduce(struct executor *e, struct item *item, struct comm_call call);
zero_status lent_take_sum(struct executor *e, struct item *item);
/* The staging bytes of a reduction whose gradient is lent; `call` has the whole share. */
uint64_t lent_reduce_bytes(const struct comm_group *group, struct comm_call call);

/* job.c. job_submit gives the item a job that reads or writes `bytes` bytes; false: the work is too small for a job or not the
 * host's, or there is no free job. job_test tests the item's job, and removes a job that is done. */
bool job_submit(struct executor *e, struct item *item, enum job_queue queue, const struct kernel *kernel,
                const void *argument, uint64_t bytes);
zero_status job_test(struct executor *e, struct item *item, bool *out_done);

/* perform.c: starts work or a copy on the device; the item awaits it. */
zero_status submit(struct executor *e, struct item *item, const struct kernel *kernel,
                   enum device_stream stream, const void *argument, struct device_work *work);
zero_status copy(struct executor *e, struct item *item, enum device_stream stream, void *target,
                 const void *source, uint64_t bytes);
/* True if the device is discrete and the address is in the host's memory. */
bool crosses(const struct executor *e, const void *address);

/* collective.c. Gathers and reductions post calls. Where comm has one order of calls, an item posts its first call once all gathers
 * and reductions that were emitted before it, on the other streams, have posted their last one. */
bool posts_calls(const struct operation *op);
bool has_posted(const struct item *item); /* its last call */
bool collective_turn(const struct executor *e, const struct item *item);
zero_status post_call(struct executor *e, struct item *item, struct comm_group *group,
                      const struct comm_call *call);
/* Posts a gather or a reduction, and adds comm's counters of that call to executor_traffic. `codes`: elements per
 * share whose codes are sent; 0: elements are sent. */
zero_status post_counted(struct executor *e, struct item *item, struct comm_group *group,
                         const struct comm_call *call, uint64_t codes);
/* A part of each share; the shares cut a whole region, or this rank's shard. */
struct part {
    uint64_t first, count, share; /* elements */
};
struct part item_part(const struct executor_shape *o, const struct operation *op, uint32_t index);
/* The elements that the item's next call moves, after `moved` elements; at most round_elements (reduce.c). */
struct part round_part(const struct executor_shape *o, const struct operation *op, uint32_t index,
                       uint64_t moved);
uint64_t round_elements(const struct executor_shape *o, const struct operation *op);
/* Elements of each share in a piece of all shares: whole blocks of the norm, one at least. */
uint64_t piece_elements(const struct executor_shape *o, enum dtype dtype, uint32_t shares);
struct comm_call element_call(const struct executor_shape *o, const struct operation *op, uint32_t index,
                              uint64_t moved);
/* A chunk that is scattered and then summed over the replicate axis: the second operation. */
struct operation sum_of_scatter(const struct operation *op);
bool scatters(const struct operation *op);
enum dtype reduced_from(const struct precision *p, bool scatter);

/* gather.c, reduce.c, norms.c: steps. */
zero_status bring_share(struct executor *e, struct item *item);
zero_status encode_share(struct executor *e, struct item *item);
zero_status post_gather(struct executor *e, struct item *item);
zero_status decode_shares(struct executor *e, struct item *item);
zero_status make_message(struct executor *e, struct item *item);
zero_status encode_message(struct executor *e, struct item *item);
zero_status bring_shard(struct executor *e, struct item *item);
zero_status post_reduce(struct executor *e, struct item *item);
zero_status decode_sum(struct executor *e, struct item *item);
zero_status sum_replicas(struct executor *e, struct item *item);
zero_status norm_shard(struct executor *e, struct item *item);
zero_status leave_shard(struct executor *e, struct item *item);
zero_status add_left(struct executor *e, struct item *item);
zero_status end_round(struct executor *e, struct item *item);
zero_status complete_norms(struct executor *e, struct item *item);
zero_status post_agreement(struct executor *e, struct item *item);
/* norms.c: the function that takes the norm of a shard while the reduction writes it, and the norm of a shard on a
 * device. */
comm_written_fn norm_of_written(enum dtype dtype);
zero_status norm_on_device(struct executor *e, struct item *item, uint32_t region, struct part part,
                           const void *elements);
/* The places of a norm that the kernel of a sum takes. */
void norm_with_sum(const struct executor *e, uint32_t region, struct part part, struct comm_norm *out);
void norm_in_memory(struct executor *e, uint32_t region, struct part part, const void *elements);
/* The same without `normed`, in work of the device. */
void add_norm_in_memory(struct executor *e, uint32_t region, struct part part, const void *elements);
struct part norm_part(const struct executor *e, uint32_t region); /* the whole shard */

/* update.c: the update by the host, or by the device. */
/* Copies a whole gradient to the host's memory, where the host updates. */
zero_status leave_whole(struct executor *e, struct item *item);
zero_status bring_for_update(struct executor *e, struct item *item);
zero_status update(struct executor *e, struct item *item);
zero_status take_updated(struct executor *e, struct item *item);

/* matrix.c: the operation MATRIX; and the optimizer of a region. */
zero_status change_matrices(struct executor *e, struct item *item);
const struct optimizer *region_optimizer(const struct executor *e, uint32_t region);

/* tensor.c: norms of whole tensors. tensor_words: fp32 words of a region's norms, of all parts. tensor_clear: clears the norms of
 * this rank's shard, which begins at `first` in the region, before its first elements; tensor_begin: the same before the host
 * measures. tensor_measure_run: the first part of the update of elements of one tensor, of one rank's part; `first`: their place in
 * the region; tensor_measure_queue: the same on a device. tensor_trust: puts what all parts say into the scalars. `norms`: those of
 * the region, in memory that the host reaches; `param`: the tensor's place among the region's. */
uint64_t tensor_words(const struct executor_shape *o, uint32_t region);
void tensor_clear(const struct executor *e, uint32_t region, uint64_t first, struct tensor_norms *norms);
void tensor_begin(struct executor *e, uint32_t region, uint64_t first, struct tensor_norms *norms);
uint64_t tensor_part_end(const struct executor *e, uint32_t region, uint64_t first);
uint64_t tensor_end(const struct executor *e, uint32_t region, uint32_t param); /* in the region */
void tensor_measure_run(struct executor *e, uint32_t region, uint32_t param, uint64_t first,
                        const struct optimizer_args *args, struct tensor_norms *norms);
zero_status tensor_measure_queue(struct executor *e, struct item *item, uint32_t param,
                                 const struct optimizer_args *args, struct tensor_norms *norms);
void tensor_trust(const struct executor *e, uint32_t region, uint32_t param, const struct tensor_norms *norms,
                  struct optimizer_scalars *scalars);

/* quantized.c: gathers and scatters of codes. */
/* The shape of the call that replaces a call of elements; the same call where nothing is coded. */
struct comm_call coded_call(const struct executor_shape *o, const struct operation *op,
                            struct comm_call call);
bool codes_gather(const struct operation *op);
bool gathers_codes(const struct item *item);
zero_status code_gather(struct executor *e, struct item *item, const void *source,
                        const struct comm_call *call);
void coded_gather_call(const struct executor *e, const struct item *item, struct comm_call *call);
zero_status decode_gather(struct executor *e, struct item *item, struct part part);
/* A scatter of this region's gradient sends codes: not of parameters that stay fp32 for their accuracy. */
bool codes_gradient(const struct executor_shape *o, uint32_t region);
uint64_t reduce_code_bytes(const struct executor_shape *o, uint64_t share, uint32_t members);
bool reduces_codes(const struct executor *e, const struct item *item);
/* True if later items may post after this call: the item has one round only, and no norm to which rounds of other
 * items would add. */
bool reduce_posts_once(const struct executor *e, const struct item *item);
/* `step`: elements from one share of the source to the next. */
zero_status code_reduce(struct executor *e, struct item *item, const void *source, uint64_t step,
                        const struct comm_call *call);
void coded_reduce_call(const struct executor *e, const struct item *item, struct comm_call *call);
/* `add`: to the content of the target. */
zero_status decode_reduce(struct executor *e, struct item *item, void *target, uint64_t count, bool add);

/* transfer.c: chunks to and from the drive. */
zero_status fetch_chunk(struct executor *e, struct item *item);
zero_status sum_fetched(struct executor *e, struct item *item);
zero_status check_fetched(struct executor *e, struct item *item);
zero_status sum_stored(struct executor *e, struct item *item);
zero_status store_chunk(struct executor *e, struct item *item);
uint8_t *slot_address(const struct executor *e, uint64_t slot);
uint8_t *access_slot(const struct executor *e); /* the slot after the ring */
/* Start transfers of the item: one request to the drive, or all of a chunk between its places on the drive and a
 * slot. */
zero_status transfer_post(struct executor *e, struct item *item, bool write, uint64_t place, uint64_t bytes,
                          void *memory);
zero_status transfer_read(struct executor *e, struct item *item, uint32_t region, const struct chunk *c,
                          uint8_t *slot);
/* Before a write: the item has the chunk's checksums. */
void transfer_sum(const struct executor *e, struct item *item, const struct chunk *c, const uint8_t *slot);
zero_status transfer_write(struct executor *e, struct item *item, uint32_t region, const struct chunk *c,
                           uint8_t *slot);
zero_status transfer_done(struct executor *e, struct item *item, bool *out_done);
/* Compares the chunk in the slot with the tag and checksum of the last store; ZERO_E_IO if they differ. */
zero_status transfer_check(struct executor *e, uint32_t region, const struct chunk *c, const uint8_t *slot);

/* chunk_access.c: writes changed chunks to the drive, and waits. */
zero_status access_flush(struct executor *e);
/* Gradients in slots are out of date. */
void access_forget_gradients(struct executor *e);

/* address.c: the planned buffer that a reference means now (NO_BUFFER: it is not in memory), and the variable that
 * holds it. */
uint32_t bound_buffer(const struct executor *e, struct buffer_ref ref);
uint32_t *buffer_binding(const struct executor *e, struct buffer_ref ref);
void *buffer_address(const struct executor *e, uint32_t buffer);
/* The address of a buffer for an item: the item's own slot if the buffer is a ring, else the start of the buffer. */
void *item_address(const struct executor *e, const struct item *item, struct buffer_ref ref, uint32_t buffer);
/* The memory that a part of the address space takes. */
uint64_t part_bytes(const struct executor *e, uint32_t buffer);

/* executor.c: the unit that a region belongs to. */
const char *unit_name(const struct executor *e, uint32_t region);

#endif
