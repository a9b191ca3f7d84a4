/* What items do: gathers, reductions and updates. */
#pragma once

#include "engine/executor/executor_internal.h"

/* ---- gather.c: the steps of a gather ---- */
zero_status bring_share(struct executor *e, struct item *item);
zero_status encode_share(struct executor *e, struct item *item);
zero_status post_gather(struct executor *e, struct item *item);
zero_status decode_shares(struct executor *e, struct item *item);

/* ---- reduce.c: the steps of a reduction ---- */
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

/* True if later items may post after this call: the item has one round only, and no norm to which rounds of other
 * items would add. */
bool reduce_posts_once(const struct executor *e, const struct item *item);

/* ---- staging.c: the scratch memory of a reduction's round, in its staging buffer ---- */
/* The message. 0: the message takes the gradient's place. */
uint64_t staged_message_bytes(const struct executor_shape *o, const struct operation *op, uint64_t count);
/* The reduced shard, at the end of the buffer. */
uint64_t staged_shard_bytes(const struct executor_shape *o, const struct operation *op, uint64_t count);

/* ---- rounds.c: which part of each share a gather or a reduction moves at a time, and with which calls ---- */
bool scatters(const struct operation *op);
/* True if a chunk is scattered and then summed over the replicate axis; and the second of these operations. */
bool sums_replicas(const struct operation *op);
struct operation sum_of_scatter(const struct operation *op);

/* The bytes of a round that the host copies from its program's memory, for all ranks' shares; more if one block of the norm per share
 * takes more, and over a few nodes up to so many times as much. */
enum { ROUND_BYTES = 4 << 20 };

/* The reduction reads the gradient in memory that the program gave. */
bool reads_given(const struct executor_shape *o, const struct operation *op);
/* The gradient is the host's arrays, and this rank is alone: it adds them up where they are, all at once. */
bool sums_lent(const struct executor_shape *o, const struct operation *op);
/* True if a reduction needs staging memory for its message, or for the reduced shard. */
bool stages_message(const struct executor_shape *o, const struct operation *op);
bool stages_shard(const struct executor_shape *o, const struct operation *op);

/* Elements of each share in a piece of the shares of a gather: whole blocks of the norm, one at least. */
uint64_t piece_elements(const struct executor_shape *o, enum dtype dtype, const struct comm_group *group);
/* The most elements of each share in a round. */
uint64_t round_elements(const struct executor_shape *o, const struct operation *op);
struct part item_part(const struct executor_shape *o, const struct operation *op, uint32_t index);
/* The elements that the item's next call moves, after `moved` elements. */
struct part round_part(const struct executor_shape *o, const struct operation *op, uint32_t index,
                       uint64_t moved);

/* The call of a reduction of `count` elements of each share. */
struct comm_call whole_call(const struct executor_shape *o, const struct operation *op, uint64_t count);
/* The call of a round, before coding. */
struct comm_call element_call(const struct executor_shape *o, const struct operation *op, uint32_t index,
                              uint64_t moved);

/* ---- quantized.c: gathers and scatters of codes ---- */
/* The shape of the call that replaces a call of elements; the same call where nothing is coded. */
struct comm_call coded_call(const struct executor_shape *o, const struct operation *op,
                            struct comm_call call);
bool stages_gather(const struct operation *op);
bool codes_gather(const struct executor_shape *o, const struct operation *op);
zero_status code_gather(struct executor *e, struct item *item, const void *source,
                        const struct comm_call *call);
void coded_gather_call(const struct executor *e, const struct item *item, struct comm_call *call);
zero_status decode_gather(struct executor *e, struct item *item, struct part part);
/* A scatter of a gradient sends codes: not of parameters that stay fp32 for their accuracy. */
bool codes_reduce(const struct executor_shape *o, const struct operation *op);
uint64_t reduce_code_bytes(const struct executor_shape *o, const struct operation *op, struct comm_call call);
/* `step`: elements from one share of the source to the next. */
zero_status code_reduce(struct executor *e, struct item *item, const void *source, uint64_t step,
                        const struct comm_call *call);
void coded_reduce_call(const struct executor *e, const struct item *item, struct comm_call *call);
/* `add`: to the content of the target. */
zero_status decode_reduce(struct executor *e, struct item *item, void *target, uint64_t count, bool add);

/* ---- lent.c: regions in the host program's memory. These functions take the places of steps. `post`: the step that posts the
 * call. ---- */
zero_status lent_gather(struct executor *e, struct item *item, struct comm_call call);
zero_status lent_take_gathered(struct executor *e, struct item *item, step_fn post);

/* ---- norms.c: gradient norms, and the steps of an agreement ---- */
zero_status complete_norms(struct executor *e, struct item *item);
zero_status post_agreement(struct executor *e, struct item *item);

/* The function that takes the norm of a shard while the reduction writes it. */
comm_written_fn norm_of_written(enum dtype dtype);
/* The norm of a shard on a device. */
zero_status norm_on_device(struct executor *e, struct item *item, uint32_t region, struct part part,
                           const void *elements);
/* The places of a norm that the kernel of a sum takes. */
void norm_with_sum(const struct executor *e, uint32_t region, struct part part, struct comm_norm *out);
void norm_in_memory(struct executor *e, uint32_t region, struct part part, const void *elements);
/* The same without `normed`, in work of the device. */
void add_norm_in_memory(struct executor *e, uint32_t region, struct part part, const void *elements);
/* Completes a lent gradient, and takes its norm. */
void lent_sum(struct executor *e, uint32_t region);

/* ---- update.c: the steps of an update by the host, or by the device ---- */
/* Copies a whole gradient to the host's memory, where the host updates. */
zero_status leave_whole(struct executor *e, struct item *item);
zero_status bring_for_update(struct executor *e, struct item *item);
zero_status update(struct executor *e, struct item *item);
zero_status take_updated(struct executor *e, struct item *item);

/* ---- matrix.c: the operation MATRIX ---- */
zero_status change_matrices(struct executor *e, struct item *item);

/* ---- tensor.c: norms of whole tensors. `norms`: those of the region, in memory that the host reaches; `param`: the tensor's place
 * among the region's. ---- */
/* fp32 words of a region's norms, of all parts. */
uint64_t tensor_words(const struct executor_shape *o, uint32_t region);
/* Clears the norms of this rank's shard, which begins at `first` in the region, before its first elements. */
void tensor_clear(const struct executor *e, uint32_t region, uint64_t first, struct tensor_norms *norms);
/* The same before the host measures. */
void tensor_begin(struct executor *e, uint32_t region, uint64_t first, struct tensor_norms *norms);
uint64_t tensor_part_end(const struct executor *e, uint32_t region, uint64_t first);
uint64_t tensor_end(const struct executor *e, uint32_t region, uint32_t param); /* in the region */
/* The first part of the update of elements of one tensor, of one rank's part; `first`: their place in the region. */
void tensor_measure_run(struct executor *e, uint32_t region, uint32_t param, uint64_t first,
                        const struct optimizer_args *args, struct tensor_norms *norms);
/* The same on a device. */
zero_status tensor_measure_queue(struct executor *e, struct item *item, uint32_t param,
                                 const struct optimizer_args *args, struct tensor_norms *norms);
/* Sets the trust ratio in the scalars from the norms of all parts. */
void tensor_trust(const struct executor *e, uint32_t region, uint32_t param, const struct tensor_norms *norms,
                  struct optimizer_scalars *scalars);
