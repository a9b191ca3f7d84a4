/* A plan is made twice by the same code: without memory for the sizes, then with it for the pointers. */
#include <stdlib.h>
#include <string.h>

#include "tools/gpt/cuda/state.h"
#include "tools/gpt/rotary.h"

enum {
    LINE_BYTES = 256,    /* arrays begin at multiples of it */
    STRIDE_BYTES = 128,  /* rows of logits do */
    HEAD_BYTES = 1 << 30 /* of logits at a time: enough rows for products at full rate */
};

static void *take(struct arena *arena, uint64_t count, uint64_t element_bytes) {
    uint64_t start = arena->bytes;
    arena->bytes += (count * element_bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    return arena->memory ? (char *)arena->memory + start : NULL;
}

/* What the plan is made from. */
struct planning {
    struct gpt *gpt;
    const struct gpt_config *config;
    struct cuda_memory *memory;
    uint64_t rows, number_bytes;
    struct arena device, pinned;
};

static void *take_numbers(struct planning *p, uint64_t count) {
    return take(&p->device, count, p->number_bytes);
}
static float *take_floats(struct planning *p, uint64_t count) {
    return take(&p->device, count, sizeof(float));
}

static struct cuda_statistics plan_statistics(struct planning *p) {
    struct cuda_statistics s = {NULL, NULL};
    if (architecture_of(p->config)->norm == LAYER_NORM) s.mean = take_floats(p, p->rows);
    s.rstd = take_floats(p, p->rows);
    return s;
}

static struct cuda_saved plan_saved(struct planning *p) {
    const struct gpt_config *c = p->config;
    return (struct cuda_saved){
        .middle = take_numbers(p, p->rows * c->width),
        .qkv = take_numbers(p, p->rows * extent_of(c, QKV)),
        .mixed = take_numbers(p, p->rows * extent_of(c, QUERY)),
        .wide = take_numbers(p, p->rows * projection_outputs(c, PROJECT_WIDEN)),
        .lse = take_floats(p, p->rows * c->heads),
        .norm1 = plan_statistics(p),
        .norm2 = plan_statistics(p),
    };
}

/* What enters the first block of a segment is kept; what enters the others has places that all segments share. */
static void *plan_residual(struct planning *p, uint32_t i) {
    const struct gpt_config *c = p->config;
    uint32_t segment = c->recompute ? c->recompute : 1;
    bool shared = i < c->layers && i >= segment && i % segment;
    return shared ? p->memory->residual[i % segment] : take_numbers(p, p->rows * c->width);
}

static void plan_blocks(struct planning *p) {
    const struct gpt_config *c = p->config;
    uint32_t places = c->recompute && c->recompute < c->layers ? c->recompute : c->layers;
    for (uint32_t i = 0; i <= c->layers; i++) {
        p->memory->residual[i] = plan_residual(p, i);
        if (i < c->layers) p->memory->saved[i] = i < places ? plan_saved(p) : p->memory->saved[i % places];
    }
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static void plan_head(struct planning *p) {
    struct cuda_memory *m = p->memory;
    uint64_t unit = STRIDE_BYTES / p->number_bytes;
    m->logits_stride = (p->config->vocab + unit - 1) / unit * unit;
    uint64_t rows = HEAD_BYTES / (m->logits_stride * p->number_bytes);
    m->head_rows = (uint32_t)(rows < 1 ? 1 : rows < p->rows ? rows : p->rows);
    m->logits = take_numbers(p, m->head_rows * m->logits_stride);
    m->norm = plan_statistics(p);
    m->loss = take_floats(p, p->rows);
    m->pinned_loss = take(&p->pinned, p->rows, sizeof(float));
    m->pinned_logits = take(&p->pinned, p->config->vocab, p->number_bytes);
}

static void plan_scratch(struct planning *p) {
    const struct gpt_config *c = p->config;
    struct cuda_memory *m = p->memory;
    uint64_t parts = (p->rows + SUM_ROWS - 1) / SUM_ROWS, query = extent_of(c, QUERY),
             qkv = extent_of(c, QKV);
    uint64_t widest = larger(larger(2 * c->width, qkv), projection_outputs(c, PROJECT_WIDEN));
    for (int i = 0; i < 2; i++) m->gradient[i] = take_numbers(p, p->rows * c->width);
    m->normed = take_numbers(p, p->rows * c->width);
    m->normed_gradient = take_numbers(p, p->rows * c->width);
    m->inner = take_numbers(p, p->rows * c->inner);
    m->inner_gradient = take_numbers(p, p->rows * c->inner);
    m->mixed_gradient = take_numbers(p, p->rows * query);
    m->qkv_gradient = take_numbers(p, p->rows * qkv);
    m->sums = take_floats(p, parts * widest);
    m->dots = take_floats(p, p->rows * c->heads);
    m->workspace = take(&p->device, CUBLASLT_WORKSPACE_BYTES, 1);
    if (!architecture_of(c)->rotary) return;
    m->cosine = take_floats(p, (uint64_t)c->context * (c->head_width / 2));
    m->sine = take_floats(p, (uint64_t)c->context * (c->head_width / 2));
}

/* The same in both memories, side by side. */
static struct cuda_batch plan_batch(struct arena *arena, uint64_t rows) {
    return (struct cuda_batch){
        .tokens = take(arena, rows, 4),
        .targets = take(arena, rows, 4),
        .group_token = take(arena, rows, 4),
        .order = take(arena, rows, 4),
        .group_first = take(arena, rows + 1, 4),
        .groups = take(arena, 1, 4),
    };
}

static void plan(struct gpt *gpt, char *device, char *pinned) {
    struct cuda_memory *m = &gpt->cuda->memory;
    struct planning p = {.gpt = gpt,
                         .config = &gpt->config,
                         .memory = m,
                         .rows = (uint64_t)gpt->batch * gpt->config.context,
                         .number_bytes = gpt->cuda->number_bytes,
                         .device = {0, device},
                         .pinned = {0, pinned}};
    m->rows = (uint32_t)p.rows;
    m->pinned_batch = plan_batch(&p.pinned, p.rows);
    m->batch_bytes = p.pinned.bytes;
    m->batch = plan_batch(&p.device, p.rows);
    plan_blocks(&p);
    plan_head(&p);
    plan_scratch(&p);
    m->bytes = p.device.bytes, m->pinned_bytes = p.pinned.bytes;
}

static zero_status allocate(struct cuda_gpt *c) {
    const struct cuda_driver *d = &c->driver;
    struct cuda_memory *m = &c->memory;
    CUdeviceptr device = 0;
    zero_status status =
        cuda_check(d, d->cuMemAlloc(&device, m->bytes), &c->error,
                   "the GPT on the GPU: %llu bytes for activations", (unsigned long long)m->bytes);
    m->device = (char *)(uintptr_t)device;
    if (status) return status;
    return cuda_check(d, d->cuMemHostAlloc((void **)&m->pinned, m->pinned_bytes, 0), &c->error,
                      "the GPT on the GPU: %llu bytes of pinned memory", (unsigned long long)m->pinned_bytes);
}

/* Once, through pageable memory. */
static zero_status fill_angles(struct gpt *gpt) {
    struct cuda_gpt *c = gpt->cuda;
    uint64_t count = (uint64_t)gpt->config.context * (gpt->config.head_width / 2),
             bytes = count * sizeof(float);
    if (!c->memory.cosine) return ZERO_OK;
    float *angles = malloc(2 * bytes);
    if (!angles) return ZERO_E_MEMORY;
    rotary_fill(angles, angles + count, &gpt->config);
    cuda_copy(c, c->memory.cosine, angles, bytes);
    cuda_copy(c, c->memory.sine, angles + count, bytes);
    zero_status status = cuda_check(&c->driver, c->driver.cuStreamSynchronize(c->stream), &c->error,
                                    "the GPT on the GPU: rotary positions");
    free(angles);
    return c->error.code ? c->error.code : status;
}

zero_status cuda_memory_open(struct gpt *gpt) {
    struct cuda_memory *m = &gpt->cuda->memory;
    m->residual = calloc(gpt->config.layers + 1, sizeof *m->residual);
    m->saved = calloc(gpt->config.layers, sizeof *m->saved);
    gpt->cuda->token_count = calloc((uint64_t)gpt->config.vocab + 1, sizeof *gpt->cuda->token_count);
    if (!m->residual || !m->saved || !gpt->cuda->token_count) return ZERO_E_MEMORY;
    plan(gpt, NULL, NULL);
    zero_status status = allocate(gpt->cuda);
    if (status) return status;
    plan(gpt, m->device, m->pinned);
    return fill_angles(gpt);
}

void cuda_memory_close(struct gpt *gpt) {
    struct cuda_gpt *c = gpt->cuda;
    struct cuda_memory *m = &c->memory;
    if (m->device) c->driver.cuMemFree((CUdeviceptr)(uintptr_t)m->device);
    if (m->pinned) c->driver.cuMemFreeHost(m->pinned);
    free(m->residual);
    free(m->saved);
    free(c->token_count);
}
