/* What the executor's files do for each other. An item goes from step to step (perform.c has the table); each step returns at
 * once, having started something that the item awaits, or nothing. */
#ifndef ZERO_ENGINE_EXECUTOR_STEPS_H
#define ZERO_ENGINE_EXECUTOR_STEPS_H

#include "engine/executor/executor_internal.h"

/* perform.c: how each kind of operation is started, and whether it is done. */
zero_status perform_start(struct executor *e, struct item *item);
zero_status perform_test(struct executor *e, struct item *item, bool *out_done);

/* shards.c. Of a region under a placement: elements of one part; and of the part that this rank holds. */
const struct region *policy_region(const struct executor *e, uint32_t region);
uint64_t part_elements(const struct executor_options *o, uint32_t region, struct placement placement);
uint64_t shard_elements(const struct executor *e, uint32_t region, struct placement placement);
/* The part that this rank holds under `placement`, in a buffer that holds either only that part or the whole. */
void *own_part_address(const struct executor *e, struct buffer_ref ref, uint32_t buffer,
                       struct placement placement, enum dtype dtype);
/* What a reduction leaves: how it is cut, where the step needs the whole too, and its size. */
struct placement grad_shard_placement(const struct region *r);
uint64_t grad_shard_bytes(const struct executor *e, uint32_t region);

/* What the steps of items start, and await: work of the device ... */
zero_status submit(struct executor *e, struct item *item, const struct kernel *kernel,
                   enum device_stream stream, const void *argument, struct device_work *work);
zero_status copy(struct executor *e, struct item *item, enum device_stream stream, void *target,
                 const void *source, uint64_t bytes);
/* The device is discrete, and this is the host's memory. */
bool crosses(const struct executor *e, const void *address);

/* collective.c. */
zero_status post_call(struct executor *e, struct item *item, struct comm_group *group,
                      const struct comm_call *call);
/* A gather or a reduction; what comm counts for the one call is this operation's. `codes`: it sends the codes of
 * shares of so many elements; 0: it sends elements. */
zero_status post_counted(struct executor *e, struct item *item, struct comm_group *group,
                         const struct comm_call *call, uint64_t codes);
struct comm_call element_call(const struct executor_options *o, const struct operation *op);
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
zero_status norm_shard(struct executor *e, struct item *item);
zero_status leave_shard(struct executor *e, struct item *item);
zero_status complete_norms(struct executor *e, struct item *item);
zero_status post_agreement(struct executor *e, struct item *item);
/* norms.c, for a reduction: what takes the norm of a shard while it is written, or of one on a device. */
comm_written_fn norm_of_written(enum dtype dtype);
zero_status norm_on_device(struct executor *e, struct item *item, uint32_t region, const void *shard);

/* update.c: in memory that the host reaches, or by the device. */
zero_status leave_whole(struct executor *e,
                        struct item *item); /* a whole gradient, to where the host updates */
zero_status bring_for_update(struct executor *e, struct item *item);
zero_status update(struct executor *e, struct item *item);
zero_status take_updated(struct executor *e, struct item *item);

/* quantized.c: a gather or a scatter of codes: what is posted in its place, and what is made of what came. */
/* The shape of what is posted in place of a call of elements; as it is, where nothing is coded. */
struct comm_call coded_call(const struct executor_options *o, const struct operation *op,
                            struct comm_call call);
bool gathers_codes(const struct item *item);
zero_status code_gather(struct executor *e, struct item *item, const void *source,
                        const struct comm_call *call);
void coded_gather_call(const struct executor *e, const struct item *item, struct comm_call *call);
zero_status decode_gather(struct executor *e, struct item *item);
uint64_t reduce_code_bytes(const struct executor_options *o, uint64_t share, uint32_t members);
bool reduces_codes(const struct executor *e, const struct item *item);
zero_status code_reduce(struct executor *e, struct item *item, const void *source,
                        const struct comm_call *call);
void coded_reduce_call(const struct executor *e, const struct item *item, struct comm_call *call);
zero_status decode_reduce(struct executor *e, struct item *item, void *target, uint64_t share);

/* transfer.c: chunks to and from the drive. */
zero_status fetch_chunk(struct executor *e, struct item *item);
zero_status check_fetched(struct executor *e, struct item *item);
zero_status store_chunk(struct executor *e, struct item *item);
uint8_t *slot_address(const struct executor *e, uint64_t slot);
uint8_t *access_slot(const struct executor *e); /* the one that the ring does not use */
/* A chunk between its place on the drive and a slot, and what else the drive holds: each starts transfers of the item. */
zero_status transfer_post(struct executor *e, struct item *item, bool write, uint64_t place, uint64_t bytes,
                          void *memory);
zero_status transfer_read(struct executor *e, struct item *item, uint32_t region, const struct chunk *c,
                          uint8_t *slot);
zero_status transfer_write(struct executor *e, struct item *item, uint32_t region, const struct chunk *c,
                           uint8_t *slot);
zero_status transfer_done(struct executor *e, struct item *item, bool *out_done);
/* What was read is what was stored; else ZERO_E_IO. */
zero_status transfer_check(struct executor *e, uint32_t region, const struct chunk *c, const uint8_t *slot);

/* chunk_access.c: a dirty chunk goes to the drive, now. */
zero_status access_flush(struct executor *e);

void *buffer_address(const struct executor *e, uint32_t buffer);

#endif
