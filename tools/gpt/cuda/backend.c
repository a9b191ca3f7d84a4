/* The GPU backend's table, and the begin and end of a micro-step: the only places where the host waits for the GPU. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/convert.h"
#include "tools/gpt/cuda/attention_choice.h"

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
    if (!status) status = attention_open(gpt, &c->error);
    if (!status) status = cuda_graphs_open(gpt);
    return status ? status : cuda_checkpoints_open(gpt);
}

static zero_status open(struct gpt *gpt, uint64_t out_bytes[ZERO_TIERS], struct zero_error *error) {
    struct cuda_gpt *c = gpt->cuda = calloc(1, sizeof *c);
    if (!c) return ZERO_E_MEMORY;
    c->type = zero_engine_dtype(gpt->engine);
    c->number_bytes = c->type == ZERO_F32 ? 4 : 2;
    c->widest = 16 / c->number_bytes;
    zero_status status = open_all(gpt, c);
    if (status) error_pass(error, &c->error);
    out_bytes[ZERO_DEVICE] = c->memory.bytes;
    out_bytes[ZERO_CPU] = c->memory.pinned_bytes;
    return status;
}

static void close(struct gpt *gpt) {
    struct cuda_gpt *c = gpt->cuda;
    if (!c) return;
    if (c->retained) c->driver.cuStreamSynchronize(c->stream);
    cuda_checkpoints_close(gpt);
    cuda_graphs_close(gpt);
    cublaslt_close(c->products);
    cuda_memory_close(gpt);
    cuda_kernels_close(c);
    if (c->retained) c->driver.cuDevicePrimaryCtxRelease(c->device);
    if (c->driver.library) cuda_driver_close(&c->driver);
    free(c);
}

/* ---- a micro-step ---- */

/* Sorts the rows by token with a counting sort; rows of the same token keep their order. */
static void sort_rows(struct cuda_batch *batch, uint32_t rows, uint32_t vocab, uint32_t *count) {
    uint32_t groups = 0, at = 0;
    memset(count, 0, (size_t)vocab * sizeof *count);
    for (uint32_t row = 0; row < rows; row++) count[batch->tokens[row]]++;
    for (uint32_t token = 0; token < vocab; token++) {
        uint32_t of_token = count[token];
        count[token] = at;
        if (!of_token) continue;
        batch->group_token[groups] = (int32_t)token;
        batch->group_first[groups++] = at;
        at += of_token;
    }
    batch->group_first[groups] = at;
    *batch->groups = groups;
    for (uint32_t row = 0; row < rows; row++) batch->order[count[batch->tokens[row]]++] = row;
}

static zero_status pass_begin(struct gpt *gpt) {
    struct cuda_gpt *c = gpt->cuda;
    struct cuda_batch *batch = &c->memory.pinned_batch;
    uint32_t rows = gpt->pass.rows;
    if (!c->laid_out) note_adjoining(gpt), c->laid_out = true;
    memcpy(batch->tokens, gpt->pass.tokens, rows * sizeof *batch->tokens);
    if (gpt->pass.targets) memcpy(batch->targets, gpt->pass.targets, rows * sizeof *batch->targets);
    sort_rows(batch, rows, gpt->config.vocab, c->token_count);
    cuda_copy(c, c->memory.batch.tokens, batch->tokens, c->memory.batch_bytes);
    return c->error.code;
}

static double mean_loss(const struct cuda_memory *m, uint32_t rows, double divisor) {
    double total = 0;
    for (uint32_t row = 0; row < rows; row++) total += (double)m->pinned_loss[row];
    return total / divisor;
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
    struct cuda_memory *m = &c->memory;
    if (gpt->pass.targets) cuda_copy(c, m->pinned_loss, m->loss, gpt->pass.rows * sizeof *m->loss);
    CUresult result = c->driver.cuStreamSynchronize(c->stream);
    if (!c->error.code) cuda_check(&c->driver, result, &c->error, "the GPT on the GPU: a micro-step");
    if (c->error.code) {
        error_pass(error, &c->error);
        return c->error.code;
    }
    if (gpt->pass.targets && out_loss) *out_loss = mean_loss(m, gpt->pass.rows, gpt->pass.divisor);
    if (gpt->pass.logits) give_logits(gpt);
    return ZERO_OK;
}

/* ---- units ---- */

static void enqueue_embedding_forward(struct gpt *gpt) {
    cuda_checkpoints_room(gpt, 0);
    cuda_run_phase(gpt, 0, CUDA_FORWARD, true);
    cuda_checkpoints_written(gpt, 0);
}
static void enqueue_embedding_backward(struct gpt *gpt) { cuda_run_phase(gpt, 0, CUDA_BACKWARD, true); }
static void enqueue_block_forward(struct gpt *gpt, uint32_t index, bool output) {
    if (output) cuda_checkpoints_room(gpt, index + 1);
    cuda_run_phase(gpt, 1 + index, CUDA_FORWARD, output);
    if (output) cuda_checkpoints_written(gpt, index + 1);
}
static void enqueue_block_backward(struct gpt *gpt, uint32_t index) {
    cuda_run_phase(gpt, 1 + index, CUDA_BACKWARD, true);
    cuda_checkpoints_back(gpt, index);
}
static void enqueue_head_evaluate(struct gpt *gpt) {
    cuda_run_phase(gpt, 1 + gpt->config.layers, CUDA_FORWARD, true);
}
static void enqueue_head_backward(struct gpt *gpt) {
    cuda_run_phase(gpt, 1 + gpt->config.layers, CUDA_BACKWARD, true);
}
static void enqueue_head_logits(struct gpt *gpt) {
    cuda_run_phase(gpt, 1 + gpt->config.layers, CUDA_LOGITS, true);
}

/* The kernels read the slots themselves. */
static void nothing(struct gpt *gpt, struct unit *unit, bool backward) {}

static bool attention_times(const struct gpt *gpt, struct gpt_attention_times *out) {
    const float(*ms)[2] = gpt->cuda->attention_ms;
    memcpy(out->forward_ms, ms[ATTENTION_FORWARD], sizeof out->forward_ms);
    memcpy(out->backward_ms, ms[ATTENTION_BACKWARD], sizeof out->backward_ms);
    return out->forward_ms[0] > 0;
}

static uint32_t kept(const struct gpt *gpt, enum gpt_output kind) {
    uint32_t layers = gpt->config.layers, places = gpt_cuda_places(&gpt->config), more = layers % places,
             of_place = layers / places, count = gpt->cuda->memory.kept[kind];
    return of_place * count + (count < more ? count : more);
}

const struct backend cuda_backend = {
    .reserved = {[ZERO_DEVICE] = "activations", [ZERO_CPU] = "batches, losses, checkpoints"},
    .problem = problem,
    .open = open,
    .close = close,
    .keep_outputs = cuda_keep_outputs,
    .kept = kept,
    .products_question = cuda_products_question,
    .products_time = cuda_products_time,
    .products_use = cuda_products_use,
    .attention_times = attention_times,
    .pass_begin = pass_begin,
    .pass_end = pass_end,
    .unit_begin = nothing,
    .unit_end = nothing,
    .embedding_forward = enqueue_embedding_forward,
    .embedding_backward = enqueue_embedding_backward,
    .block_forward = enqueue_block_forward,
    .block_backward = enqueue_block_backward,
    .head_evaluate = enqueue_head_evaluate,
    .head_backward = enqueue_head_backward,
    .head_logits = enqueue_head_logits,
};
