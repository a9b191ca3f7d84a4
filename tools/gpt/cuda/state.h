/* The inside of the CUDA backend. All work is enqueued on the engine's stream, in the order of the calls, so kernels
 * need no other order. The backend keeps the first failure; later calls then do nothing. Compute is in one type, the
 * engine's: activations, the residual stream and gradients have this type; statistics, sums and losses are fp32. */
#pragma once

#include "engine/device/cuda/driver.h"
#include "tools/gpt/cuda/cublaslt.h"
#include "tools/gpt/cuda/kernels/kernels.h"
#include "tools/gpt/cuda/layout.h"
#include "tools/gpt/model.h"

enum gpt_kernel {
#define KERNEL_INDEX(name) KERNEL_##name,
    GPT_CUDA_KERNELS(KERNEL_INDEX)
        GPT_KERNELS_OF_ALL, /* the number of kernels for all types; the other kernels do not exist for fp32 */
    KERNEL_before_flash = GPT_KERNELS_OF_ALL - 1,
    GPT_CUDA_FLASH_KERNELS(KERNEL_INDEX)
        GPT_KERNELS_OF_16_BITS, /* those of warpgroups exist for bf16 alone */
    KERNEL_before_warpgroup = GPT_KERNELS_OF_16_BITS - 1,
    GPT_CUDA_WARPGROUP_KERNELS(KERNEL_INDEX)
#undef KERNEL_INDEX
        GPT_KERNELS
};
enum { MODULES_MAX = 12 };

/* The copies of checkpoints to host memory; without such copies `stream` is NULL. */
struct cuda_checkpoints {
    CUstream stream;
    /* by slot on the device: its last use on the engine's stream; its last copy on this stream */
    CUevent used[2], moved[2];
    /* With a scratch, by slot in pinned memory: */
    struct cuda_pinned_slot {
        CUevent copied;        /* its last copy on this stream */
        bool waits, in_flight; /* `place` is stored after that copy; a transfer of `place` was started */
        uint64_t place;
    } slot[CUDA_CHECKPOINT_SLOTS];
    uint32_t unread; /* of this pass: places below have yet to be fetched */
};

/* Micro-batches that share two sets (waiting.c); without them `in` is NULL. */
enum cuda_stream { CUDA_INPUT, CUDA_GRADIENT, CUDA_STREAMS };
enum { CUDA_BUFFERS = 3 }; /* of a set: inputs of even and of odd blocks, and the gradient */
struct cuda_waiting {
    CUstream in, out; /* copies to the sets, and from them */
    CUevent mark;     /* of the engine's stream, for the copy that is enqueued next */
    CUevent *left;    /* [micro-batches]: the last copy of each from its set */
    struct cuda_buffer {
        CUevent arrived; /* the last copy to it */
        uint32_t position, micro;
        bool filled; /* it has, or will have, `stream` at `position` of micro-batch `micro` */
    } buffer[CUDA_BUFFERS][2];
};

struct cuda_gpt {
    struct zero_error error; /* the first failure */
    struct cuda_driver driver;
    CUdevice device; /* its primary context is retained, and is current in the rank's thread */
    bool retained;
    CUstream stream; /* the engine's, borrowed */
    CUmodule module[MODULES_MAX];
    CUfunction function[GPT_KERNELS];
    struct cublaslt *products;
    zero_dtype type;
    bool slope_ends;               /* products multiply by GELU's slope in their ends */
    bool laid_out;                 /* the units' views know which parameters adjoin */
    bool warpgroups;               /* attention uses kernels of warpgroups, where there are any */
    uint32_t number_bytes, widest; /* widest: how many numbers 16 bytes hold */
    uint32_t *count;               /* [vocab or context, the larger]: for the sort of rows */
    struct cuda_memory memory;
    struct cuda_graphs *graphs; /* NULL with config.no_graphs, and once they are given up */
    struct cuda_checkpoints checkpoints;
    struct cuda_waiting waiting;
    uint32_t set;         /* the set in use */
    uint32_t turn;        /* of this pass: uses of a unit by a micro-batch */
    uint32_t batch_micro; /* whose batch is in device memory */
};

/* memory.c: one allocation of each kind, and one for outputs that are kept; layout.h lays them out. */
zero_status cuda_memory_open(struct gpt *gpt);
zero_status cuda_keep_outputs(struct gpt *gpt, struct zero_error *error);
void cuda_memory_close(struct gpt *gpt);

/* launch.c */
zero_status cuda_kernels_open(struct cuda_gpt *c);
zero_status cuda_warpgroup_kernels_open(struct cuda_gpt *c); /* once more, it does nothing */
void cuda_kernels_close(struct cuda_gpt *c);

struct grid {
    uint32_t x, y, z; /* 0 blocks: the kernel is not launched */
};
void cuda_launch(struct cuda_gpt *c, enum gpt_kernel kernel, struct grid blocks, struct grid threads,
                 void *argument);
/* With `bytes` of dynamic shared memory in place of all that the kernel may have. */
void cuda_launch_shared(struct cuda_gpt *c, enum gpt_kernel kernel, struct grid blocks, struct grid threads,
                        uint32_t bytes, void *argument);
/* Launch a thread for each of `count`; a warp for each of `rows`; a block of FLAT_THREADS for each of `rows`. */
void cuda_launch_flat(struct cuda_gpt *c, enum gpt_kernel kernel, uint64_t count, void *argument);
void cuda_launch_rows(struct cuda_gpt *c, enum gpt_kernel kernel, uint64_t rows, void *argument);
void cuda_launch_blocks(struct cuda_gpt *c, enum gpt_kernel kernel, uint32_t rows, void *argument);
void cuda_multiply(struct cuda_gpt *c, const struct product *product);
void cuda_clear(struct cuda_gpt *c, void *memory, uint64_t bytes);
/* Keep the first failure: of a call to the driver that does `what`; of the scratch, whose sentence the engine knows. */
void cuda_keep(struct cuda_gpt *c, CUresult result, const char *what);
void cuda_keep_scratch(struct cuda_gpt *c, zero_status status);
void cuda_copy(struct cuda_gpt *c, void *target, const void *source, uint64_t bytes);

/* The address of the number at index `at`. */
static inline void *number_at(const struct cuda_gpt *c, const void *array, uint64_t at) {
    return (char *)(uintptr_t)array + at * c->number_bytes;
}

/* parts.c: functions for blocks and for the head. x and y are [rows][width]. The gradient of a vector or a weight goes
 * to its slot, if the parameter is trained. */
struct cuda_norm {
    const struct zero_slot *weight, *bias; /* bias: without a bias, a slot with NULL addresses */
    struct cuda_statistics statistics;
};
void cuda_norm_forward(struct gpt *gpt, struct cuda_norm norm, const void *x, void *y);
void cuda_norm_backward(struct gpt *gpt, struct cuda_norm norm, const void *skip, const float *dy,
                        const void *x, void *dx);
/* The norms of queries and keys, in place; qkv: [rows][qkv]. */
struct cuda_head_norms {
    const struct zero_slot *query, *key;
    void *raw;
    float *rstd;
};
void cuda_head_norms_forward(struct gpt *gpt, struct cuda_head_norms norms, void *qkv);
void cuda_head_norms_backward(struct gpt *gpt, struct cuda_head_norms norms, void *qkv_gradient);
/* The kernel that makes a norm's backward and its sums at once, and its launch. GPT_KERNELS: there is none for so many columns, because
 * a row does not fill its groups of 16 bytes, or is too wide. The launch sets the argument's part_rows. */
enum gpt_kernel cuda_norm_back(const struct cuda_gpt *c, uint32_t columns);
void cuda_launch_norm_back(struct cuda_gpt *c, struct norm_backward_argument *a);
/* Sets the argument's `slots`. */
void cuda_launch_cross_entropy(struct cuda_gpt *c, struct cross_entropy_argument *a);
/* Of biases that stand side by side in the columns of [rows][columns]. */
struct cuda_bias {
    const struct zero_slot *slot;
    uint32_t columns;
};
void cuda_bias_gradients(struct gpt *gpt, const struct cuda_bias biases[], uint32_t count,
                         const void *gradient, uint32_t columns);
void cuda_bias_gradient(struct gpt *gpt, const struct zero_slot *bias, const void *gradient,
                        uint32_t columns);
/* The same of a bias that is added to the stream, whose gradient the last cuda_norm_backward wrote. */
void cuda_stream_bias_gradient(struct gpt *gpt, const struct zero_slot *bias, const void *gradient);
/* slot's grad [outer][inner] = or += left^T right. The rows may be those of several parameters that adjoin. */
void cuda_weight_gradient(struct gpt *gpt, const struct zero_slot *slot, uint32_t outer, uint32_t inner,
                          struct factor left, struct factor right);

/* attention.c: both passes of all heads, in tiles of width `tile` (gpt_cuda_head). cuda_attention_fits: there are kernels of
 * warpgroups for the tile, on this GPU. */
bool cuda_attention_fits(const struct cuda_gpt *c, uint32_t tile);
void cuda_attention_forward(struct cuda_gpt *c, uint32_t tile, struct attention_argument *a);
void cuda_attention_backward(struct cuda_gpt *c, uint32_t tile, struct attention_argument *a);

/* graph.c: enqueues the work of a unit's phase, or replays it. The forward of a whole head is the evaluation. `output`: for blocks, compute
 * the output. */
enum cuda_phase { CUDA_FORWARD, CUDA_BACKWARD, CUDA_LOGITS, CUDA_PHASES };
zero_status cuda_graphs_open(struct gpt *gpt);
void cuda_graphs_close(struct gpt *gpt);
void cuda_run_phase(struct gpt *gpt, const struct unit *unit, enum cuda_phase phase, bool output);

/* checkpoints.c: called between the phases, for the input of block `index`: `room` before a forward writes the input,
 * `written` after it, `back` after the backward of block `index`. */
zero_status cuda_checkpoints_open(struct gpt *gpt);
void cuda_checkpoints_close(struct gpt *gpt);
void cuda_checkpoints_room(struct gpt *gpt, uint32_t index);
void cuda_checkpoints_written(struct gpt *gpt, uint32_t index);
void cuda_checkpoints_back(struct gpt *gpt, uint32_t index);

/* waiting.c: called between the phases. `begin`: before the work of the micro-batch in use, which reads these positions of the stream and
 * of its gradient; `next`: what the first micro-batch of the next unit reads. CUDA_NONE: nothing. `writes`, `wrote`: around the work that
 * writes a position. */
#define CUDA_NONE UINT32_MAX
struct cuda_reads {
    uint32_t position[CUDA_STREAMS];
};
zero_status cuda_waiting_open(struct gpt *gpt);
void cuda_waiting_close(struct gpt *gpt);
void cuda_waiting_pass(struct gpt *gpt);
void cuda_waiting_begin(struct gpt *gpt, struct cuda_reads reads, struct cuda_reads next);
void cuda_waiting_writes(struct gpt *gpt, enum cuda_stream stream, uint32_t position);
void cuda_waiting_await_input(struct gpt *gpt, uint32_t micro); /* backend.h */
void cuda_waiting_await_read(struct gpt *gpt, uint32_t index);
void cuda_waiting_wrote(struct gpt *gpt, enum cuda_stream stream, uint32_t position);

/* attention_check.c: chooses attention's kernels, and checks those of warpgroups. */
zero_status cuda_attention_open(struct gpt *gpt, struct zero_error *error);

/* block.c, ends.c: backend.h says what they do. */
void cuda_block_forward(struct gpt *gpt, uint32_t index, bool output);
void cuda_block_backward(struct gpt *gpt, uint32_t index);
/* The forward in progress runs again, and what this part leaves is still there. */
bool cuda_block_has(const struct gpt *gpt, uint32_t index, enum gpt_output part);
void cuda_embedding_forward(struct gpt *gpt);
void cuda_embedding_backward(struct gpt *gpt);
void cuda_head_forward(struct gpt *gpt);
void cuda_head_backward(struct gpt *gpt);
void cuda_head_logits(struct gpt *gpt);
