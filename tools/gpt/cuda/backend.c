/* The GPU backend's table, and the begin and end of a micro-step: the only places where the host waits for the GPU. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/numbers/convert.h"
#include "tools/gpt/cuda/state.h"

static const char *problem(zero_dtype dtype) { return NULL; }

/* A grid has at most 65,535 blocks along y and z (CUDA C++ Programming Guide, "Technical Specifications"): attention has the
 * sequences along z, sums over rows have parts of SUM_ROWS along y. */
static zero_status refuse(const struct gpt *gpt, struct zero_error *error) {
    enum { BLOCKS_MAX = 65535 };
    const char *problem = gpt_cuda_problem(&gpt->config);
    if (problem) return error_set(error, ZERO_E_UNSUPPORTED, "%s", problem);
    if (gpt->batch <= BLOCKS_MAX &&
        (uint64_t)gpt->batch * gpt->config.context <= (uint64_t)BLOCKS_MAX * SUM_ROWS)
        return ZERO_OK;
    return error_set(
        error, ZERO_E_UNSUPPORTED,
        "a GPU computes micro-batches of at most 65535 samples and 16776960 tokens, not of %" PRIu32
        " samples of %" PRIu32 ": choose a smaller train_micro_batch_size_per_gpu",
        gpt->batch, gpt->config.context);
}

/* Before sm_90 a product with GELU's slope at its end is slower than a product and a kernel; llm.c makes the same choice. In fp32
 * the kernel is known to be accurate to the last digits. */
static CUresult choose_ends(struct cuda_gpt *c) {
    int major = 0;
    CUresult result =
        c->driver.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, c->device);
    c->slope_ends = c->type != ZERO_F32 && major >= 9;
    return result;
}

static zero_status open_context(struct gpt *gpt, struct cuda_gpt *c) {
    void *stream = NULL;
    CUcontext context = NULL;
    int index = zero_engine_cuda(gpt->engine, &stream);
    c->stream = stream;
    CUresult result = c->driver.cuDeviceGet(&c->device, index);
    if (!result) result = choose_ends(c);
    if (!result) result = c->driver.cuDevicePrimaryCtxRetain(&context, c->device);
    c->retained = context != NULL;
    if (!result) result = c->driver.cuCtxSetCurrent(context);
    return cuda_check(&c->driver, result, &c->error, "the GPT on the GPU: opening GPU %d", index);
}

static zero_status open_all(struct gpt *gpt, struct cuda_gpt *c) {
    zero_status status = refuse(gpt, &c->error);
    if (!status) status = cuda_driver_open(&c->driver, &c->error);
    if (!status) status = open_context(gpt, c);
    if (!status) status = cuda_kernels_open(c);
    if (!status) status = cuda_memory_open(gpt);
    if (!status) status = cublaslt_open((CUdeviceptr)(uintptr_t)c->memory.workspace, &c->products, &c->error);
    if (!status) status = cuda_attention_open(gpt, &c->error);
    if (!status) status = cuda_graphs_open(gpt);
    if (!status) status = cuda_checkpoints_open(gpt);
    return status ? status : cuda_waiting_open(gpt);
}

static zero_status open(struct gpt *gpt, uint64_t out_bytes[ZERO_TIERS], struct zero_error *error) {
    struct cuda_gpt *c = gpt->cuda = calloc(1, sizeof *c);
    if (!c) return ZERO_E_MEMORY;
    c->type = zero_engine_dtype(gpt->engine);
    c->number_bytes = c->type == ZERO_F32 ? 4 : 2;
    c->widest = 16 / c->number_bytes;
    zero_status status = open_all(gpt, c);
    if (status) error_pass(error, &c->error);
    gpt->checkpoints.memory = c->memory.inputs;
    out_bytes[ZERO_DEVICE] = c->memory.bytes;
    out_bytes[ZERO_CPU] = c->memory.pinned_bytes;
    return status;
}

static void close(struct gpt *gpt) {
    struct cuda_gpt *c = gpt->cuda;
    if (!c) return;
    if (c->retained) c->driver.cuStreamSynchronize(c->stream);
    cuda_checkpoints_close(gpt);
    cuda_waiting_close(gpt);
    cuda_graphs_close(gpt);
    cublaslt_close(c->products);
    cuda_memory_close(gpt);
    cuda_kernels_close(c);
    if (c->retained) c->driver.cuDevicePrimaryCtxRelease(c->device);
    if (c->driver.library) cuda_driver_close(&c->driver);
    free(c);
}

/* ---- a micro-step ---- */

/* Sorts the rows by numbers below `limit` with a counting sort; rows of the same number keep their order. */
static void sort_rows(const struct cuda_groups *to, const int32_t *number, uint32_t rows, uint32_t limit,
                      uint32_t *count) {
    uint32_t groups = 0, at = 0;
    memset(count, 0, (size_t)limit * sizeof *count);
    for (uint32_t row = 0; row < rows; row++) count[number[row]]++;
    for (uint32_t n = 0; n < limit; n++) {
        uint32_t here = count[n];
        count[n] = at;
        if (!here) continue;
        to->number[groups] = (int32_t)n;
        to->first[groups++] = at;
        at += here;
    }
    to->first[groups] = at;
    *to->count = groups;
    for (uint32_t row = 0; row < rows; row++) to->order[count[number[row]]++] = row;
}

/* A document begins with a sequence, and after a target GPT_NEXT_DOCUMENT. */
static void find_documents(const struct gpt *gpt, const struct cuda_batch *batch, const int32_t *targets) {
    uint32_t length = gpt->pass.length, begin = 0;
    for (uint32_t row = 0; row < gpt->pass.rows; row++) {
        uint32_t at = row % length;
        if (at == 0 || (targets && targets[row - 1] == GPT_NEXT_DOCUMENT)) begin = at;
        batch->begins[row] = begin, batch->position[row] = at - begin;
    }
    for (uint32_t row = gpt->pass.rows; row-- > 0;) {
        bool last = row % length + 1 == length || batch->position[row + 1] == 0;
        batch->ends[row] = last ? row % length + 1 : batch->ends[row + 1];
    }
}

static void fill_batch(struct gpt *gpt, uint32_t micro) {
    struct cuda_batch batch = cuda_pinned_batch(&gpt->cuda->memory, &gpt->config, micro);
    uint32_t rows = gpt->pass.rows, *count = gpt->cuda->count;
    const int32_t *targets = gpt->pass.targets ? gpt->pass.targets + (uint64_t)micro * rows : NULL;
    memcpy(batch.tokens, gpt->pass.tokens + (uint64_t)micro * rows, rows * sizeof *batch.tokens);
    if (targets) memcpy(batch.targets, targets, rows * sizeof *batch.targets);
    sort_rows(&batch.by_token, batch.tokens, rows, gpt->config.vocab, count);
    if (batch.position) find_documents(gpt, &batch, targets);
    if (batch.by_position.count)
        sort_rows(&batch.by_position, (const int32_t *)batch.position, rows, gpt->config.context, count);
}

/* Device memory has one batch: that of the micro-batch in use. */
static void use_batch(struct gpt *gpt) {
    struct cuda_gpt *c = gpt->cuda;
    struct cuda_batch batch = cuda_pinned_batch(&c->memory, &gpt->config, gpt->pass.micro);
    if (c->batch_micro == gpt->pass.micro) return;
    c->batch_micro = gpt->pass.micro;
    cuda_copy(c, c->memory.batch.tokens, batch.tokens, c->memory.batch_bytes);
}

static void use_set(struct cuda_gpt *c, uint32_t set) {
    c->set = set;
    cuda_use_set(&c->memory, set);
}

static zero_status pass_begin(struct gpt *gpt) {
    struct cuda_gpt *c = gpt->cuda;
    if (!c->laid_out) note_adjoining(gpt), c->laid_out = true;
    for (uint32_t m = 0; m < gpt->pass.micros; m++) fill_batch(gpt, m);
    c->turn = 0, c->batch_micro = UINT32_MAX;
    use_set(c, 0);
    use_batch(gpt);
    cuda_waiting_pass(gpt);
    return c->error.code;
}

static void use_micro(struct gpt *gpt, uint32_t micro) {
    struct cuda_gpt *c = gpt->cuda;
    use_set(c, recomputes_in_use(&gpt->config) ? c->turn++ % 2 : micro);
}

static double mean_loss(const struct gpt *gpt, uint32_t micro) {
    const float *loss = gpt->cuda->memory.pinned_loss + (uint64_t)micro * gpt->pass.rows;
    double total = 0;
    for (uint32_t row = 0; row < gpt->pass.rows; row++) total += (double)loss[row];
    return total / gpt->pass.divisor;
}

static void give_logits(const struct gpt *gpt) {
    const struct cuda_gpt *c = gpt->cuda;
    const uint16_t *narrow = c->memory.pinned_logits;
    const float *plain = c->memory.pinned_logits;
    for (uint32_t i = 0; i < gpt->config.vocab; i++)
        gpt->pass.logits[i] = c->type == ZERO_F32    ? plain[i]
                              : c->type == ZERO_BF16 ? f32_from_bf16(narrow[i])
                                                     : f32_from_f16(narrow[i]);
}

static zero_status pass_end(struct gpt *gpt, double out_loss[], struct zero_error *error) {
    struct cuda_gpt *c = gpt->cuda;
    CUresult result = c->driver.cuStreamSynchronize(c->stream);
    if (!c->error.code) cuda_check(&c->driver, result, &c->error, "the GPT on the GPU: a micro-step");
    if (c->error.code) {
        error_pass(error, &c->error);
        return c->error.code;
    }
    for (uint32_t m = 0; m < gpt->pass.micros && gpt->pass.targets && out_loss; m++)
        out_loss[m] = mean_loss(gpt, m);
    if (gpt->pass.logits) give_logits(gpt);
    return ZERO_OK;
}

/* ---- units ---- */

static void begin(struct gpt *gpt, uint32_t input, uint32_t gradient, uint32_t next_input,
                  uint32_t next_gradient) {
    cuda_waiting_begin(gpt, (struct cuda_reads){{input, gradient}},
                       (struct cuda_reads){{next_input, next_gradient}});
}

static void enqueue_embedding_forward(struct gpt *gpt) {
    use_batch(gpt);
    begin(gpt, CUDA_NONE, CUDA_NONE, 0, CUDA_NONE);
    cuda_waiting_writes(gpt, CUDA_INPUT, 0);
    cuda_checkpoints_room(gpt, 0);
    cuda_run_phase(gpt, &gpt->embedding[gpt->pass.block], CUDA_FORWARD, true);
    cuda_checkpoints_written(gpt, 0);
    cuda_waiting_wrote(gpt, CUDA_INPUT, 0);
}

static void enqueue_embedding_backward(struct gpt *gpt) {
    use_batch(gpt);
    begin(gpt, CUDA_NONE, 0, CUDA_NONE, CUDA_NONE);
    cuda_run_phase(gpt, &gpt->embedding[gpt->pass.block], CUDA_BACKWARD, true);
}

/* Blocks read only where documents begin and end. */
static void use_documents(struct gpt *gpt) {
    if (gpt->config.documents) use_batch(gpt);
}

static void forward(struct gpt *gpt, uint32_t index) {
    begin(gpt, index, CUDA_NONE, index + 1, CUDA_NONE);
    cuda_waiting_writes(gpt, CUDA_INPUT, index + 1);
    cuda_checkpoints_room(gpt, index + 1);
    cuda_run_phase(gpt, &gpt->blocks[index], CUDA_FORWARD, true);
    cuda_checkpoints_written(gpt, index + 1);
    cuda_waiting_wrote(gpt, CUDA_INPUT, index + 1);
}

/* Without an output it is computed again; where micro-batches wait, right before its backward. */
static void enqueue_block_forward(struct gpt *gpt, uint32_t index, bool output) {
    use_documents(gpt);
    if (output) {
        forward(gpt, index);
        return;
    }
    if (cuda_block_has(gpt, index, GPT_ATTENTION) && cuda_block_has(gpt, index, GPT_MLP)) return;
    begin(gpt, index, index + 1, index ? index - 1 : CUDA_NONE, index);
    cuda_run_phase(gpt, &gpt->blocks[index], CUDA_FORWARD, false);
}

static void enqueue_block_backward(struct gpt *gpt, uint32_t index) {
    use_documents(gpt);
    cuda_waiting_writes(gpt, CUDA_GRADIENT, index);
    cuda_run_phase(gpt, &gpt->blocks[index], CUDA_BACKWARD, true);
    cuda_checkpoints_back(gpt, index);
    cuda_waiting_wrote(gpt, CUDA_GRADIENT, index);
}

/* The next micro-batch's loss has the same place. */
static void take_loss(struct gpt *gpt) {
    const struct cuda_memory *m = &gpt->cuda->memory;
    cuda_copy(gpt->cuda, m->pinned_loss + (uint64_t)gpt->pass.micro * gpt->pass.rows, m->loss,
              gpt->pass.rows * sizeof *m->loss);
}

/* The loss is there after the last block. */
static void enqueue_head_forward(struct gpt *gpt) {
    cuda_run_phase(gpt, &gpt->head[gpt->pass.block], CUDA_FORWARD, true);
    if (gpt->pass.block + 1 == gpt->vocab_blocks) take_loss(gpt);
}

static void enqueue_head_backward(struct gpt *gpt) {
    uint32_t layers = gpt->config.layers;
    if (gpt->vocab_blocks > 1) {
        cuda_run_phase(gpt, &gpt->head[gpt->pass.block], CUDA_BACKWARD, true);
        return;
    }
    use_batch(gpt);
    begin(gpt, layers, CUDA_NONE, layers - 1, layers);
    cuda_waiting_writes(gpt, CUDA_GRADIENT, layers);
    cuda_run_phase(gpt, gpt->head, CUDA_BACKWARD, true);
    cuda_waiting_wrote(gpt, CUDA_GRADIENT, layers);
    take_loss(gpt);
}

static void enqueue_head_logits(struct gpt *gpt) {
    cuda_run_phase(gpt, &gpt->head[gpt->pass.block], CUDA_LOGITS, true);
}

/* The kernels read the slots themselves. */
static void nothing(struct gpt *gpt, struct unit *unit, bool backward) {}

static void device_name(const struct gpt *gpt, char out[GPT_DEVICE_NAME_BYTES]) {
    gpt->cuda->driver.cuDeviceGetName(out, GPT_DEVICE_NAME_BYTES, gpt->cuda->device);
}

static uint32_t kept(const struct gpt *gpt, enum gpt_output kind) {
    uint32_t count = 0;
    for (uint32_t b = 0; b < gpt->config.layers; b++)
        count += gpt_cuda_keeps(&gpt->config, gpt->cuda->memory.kept, b, kind);
    return count;
}

const struct backend cuda_backend = {
    .reserved = {[ZERO_DEVICE] = "activations", [ZERO_CPU] = "batches, losses, checkpoints"},
    .problem = problem,
    .open = open,
    .close = close,
    .keep_outputs = cuda_keep_outputs,
    .kept = kept,
    .device_name = device_name,
    .pass_begin = pass_begin,
    .pass_end = pass_end,
    .use_micro = use_micro,
    .await_input = cuda_waiting_await_input,
    .await_read = cuda_waiting_await_read,
    .unit_begin = nothing,
    .unit_end = nothing,
    .embedding_forward = enqueue_embedding_forward,
    .embedding_backward = enqueue_embedding_backward,
    .block_forward = enqueue_block_forward,
    .block_backward = enqueue_block_backward,
    .head_forward = enqueue_head_forward,
    .head_backward = enqueue_head_backward,
    .head_logits = enqueue_head_logits,
};
