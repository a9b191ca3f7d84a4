/* The plan runs the same code twice: without memory to get the size, then with memory to get the pointers. */
#include "tools/gpt/activations.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/integer.h"

enum { LINE_BYTES = 64, PAGE_BYTES = 4096, HUGE_BYTES = 2 << 20 };

/* Starts each array on its own cache line, a few lines past a multiple of the page. Arrays that are read side by side
 * then use different sets of the cache. */
static void *take_from(struct arena *arena, uint64_t count, uint64_t element_bytes) {
    uint64_t start = arena->bytes;
    uint64_t bytes = round_up(count * element_bytes, LINE_BYTES);
    arena->bytes += bytes + 5 * LINE_BYTES;
    return arena->memory ? (char *)arena->memory + start : NULL;
}

static void *take(struct activations *a, uint64_t count, uint64_t element_bytes) {
    return take_from(&a->device, count, element_bytes);
}

static float *take_floats(struct activations *a, uint64_t count) { return take(a, count, sizeof(float)); }

/* The elements of the largest unit. */
static uint64_t widest_unit(const struct gpt_config *c, bool vectors_alone) {
    struct gpt_config untied = *c; /* a tied head has a gradient, too */
    untied.tied = false;
    uint64_t most = declared_elements(&untied, 0, vectors_alone);
    for (uint32_t unit = 1; unit <= c->layers + 1; unit += c->layers) /* all blocks have the same size */
        most = max64(most, declared_elements(&untied, unit, vectors_alone));
    return most;
}

uint64_t checkpoint_place_bytes(const struct gpt_config *c, uint32_t batch, zero_dtype dtype) {
    uint64_t number_bytes = c->gpu && dtype != ZERO_F32 ? 2 : sizeof(float); /* the host computes in fp32 */
    return round_up((uint64_t)batch * c->context * c->width * number_bytes, PAGE_BYTES);
}

static void plan_sizes(struct activations *a, const struct gpt_config *c, uint32_t batch, uint32_t threads) {
    a->rows = batch * c->context;
    /* Every thread has a tile, if there are enough rows. */
    a->tile_rows = (uint32_t)round_up((a->rows + threads - 1) / threads, 16);
    if (a->tile_rows > TILE_ROWS_MAX) a->tile_rows = TILE_ROWS_MAX;
    a->tiles = (a->rows + a->tile_rows - 1) / a->tile_rows;
    uint32_t head_tiles = threads > HEAD_TILES ? threads : HEAD_TILES;
    if (head_tiles > a->tiles) head_tiles = a->tiles;
    a->head_rows = head_tiles * a->tile_rows;
    a->partial_stride = widest_unit(c, true) + LINE_BYTES / sizeof(float);
    a->strip_stride = (uint32_t)round_up(c->context, 16) + 16;
    a->strip_elements = 2ull * QUERY_ROWS * a->strip_stride + 2ull * c->context * c->head_width + QUERY_ROWS;
    a->strip_elements = (a->strip_elements + 15) / 16 * 16;
}

static struct statistics plan_statistics(struct activations *a, const struct gpt_config *c) {
    struct statistics s = {0};
    if (kernels_best()->norm[architecture_of(c)->norm].centred) s.mean = take_floats(a, a->rows);
    s.rstd = take_floats(a, a->rows);
    return s;
}

static void plan_saved(struct activations *a, struct saved *s, const struct gpt_config *c, uint32_t batch) {
    uint64_t rows = a->rows;
    s->middle = take_floats(a, rows * c->width);
    s->qkv = take_floats(a, rows * extent_of(c, QKV));
    s->mixed = take_floats(a, rows * extent_of(c, QUERY));
    s->wide = take_floats(a, rows * projection_outputs(c, PROJECT_WIDEN));
    s->lse = take_floats(a, (uint64_t)batch * c->heads * c->context);
    s->norm1 = plan_statistics(a, c);
    s->norm2 = plan_statistics(a, c);
    s->raw = norms_heads(c) ? take_floats(a, rows * (extent_of(c, QUERY) + extent_of(c, KEY))) : NULL;
    s->raw_rstd = norms_heads(c) ? take_floats(a, rows * (c->heads + c->kv_heads)) : NULL;
}

/* A buffer holds either all rows, by tile, or one tile per thread. It therefore has room for the missing rows of the
 * last tile, and for a tile of every thread. */
static uint64_t whole_rows(const struct activations *a, uint32_t threads) {
    return (uint64_t)(threads > a->tiles ? threads : a->tiles) * a->tile_rows;
}

static void plan_norms(struct activations *a, const struct gpt_config *c, uint32_t threads) {
    a->norm1 = take_floats(a, whole_rows(a, threads) * c->width);
    a->norm2 = take_floats(a, whole_rows(a, threads) * c->width);
}

static void plan_scratch(struct activations *a, const struct gpt_config *c, uint32_t threads, bool bf16) {
    uint64_t whole = whole_rows(a, threads);
    a->gradient[1] = take_floats(a, whole * c->width);
    a->mixed_gradient = take_floats(a, whole * extent_of(c, QUERY));
    a->inner = take_floats(a, whole * c->inner);
    for (uint32_t i = 0; i < PROJECTIONS && !bf16; i++)
        a->turned[i] =
            take_floats(a, extent_of(c, architecture_of(c)->projection[i].inputs) * projection_outputs(c, i));
    a->logits = take_floats(a, (uint64_t)a->head_rows * c->vocab);
    a->partial = take_floats(a, a->tiles * a->partial_stride);
    a->strips = take_floats(a, threads * a->strip_elements);
}

/* Elements per row that are rounded to bf16 for gradients of weights: the largest of a block's phases and the head. */
static uint64_t rounded_columns(const struct gpt_config *c) {
    uint64_t last = projection_right(c, PROJECT_QKV), middle = 0;
    for (uint32_t i = 0; i < PROJECTIONS; i++) middle += i == PROJECT_QKV ? 0 : projection_right(c, i);
    return max64(max64(last, middle), c->width);
}

static void plan_wide(struct activations *a, const struct gpt_config *c, bool vectors_alone) {
    a->wide_params = take_floats(a, widest_unit(c, vectors_alone));
    a->wide_grads = take_floats(a, widest_unit(c, false));
}

static void plan_bf16(struct activations *a, const struct gpt_config *c, uint32_t threads) {
    uint64_t widest = max64(c->width, c->vocab);
    for (uint32_t i = 0; i < PROJECTIONS; i++)
        widest = max64(
            widest, max64(extent_of(c, architecture_of(c)->projection[i].inputs), projection_outputs(c, i)));
    a->operand_elements = max64(a->tile_rows * widest, (uint64_t)a->rows * PANEL_ROWS);
    a->operands = take(a, threads * a->operand_elements, sizeof *a->operands);
    a->rounded = take(a, a->rows * rounded_columns(c), sizeof *a->rounded);
}

/* Slots of checkpoints on their way to the drive and back: whole pages, as the drive needs them. */
static void plan_checkpoints(struct activations *a, const struct gpt_config *c, uint32_t batch) {
    a->device.bytes = round_up(a->device.bytes, PAGE_BYTES);
    a->checkpoints = take(a, checkpoint_slots(c), checkpoint_place_bytes(c, batch, ZERO_F32));
}

/* The input of block `i`: kept, or in a buffer that all segments share. NULL: in the slots of checkpoints. */
static float *plan_residual(struct activations *a, const struct gpt_config *c, uint32_t i) {
    uint32_t segment = c->recompute ? c->recompute : 1;
    bool last = i == c->layers, kept = i % segment == 0;
    if (checkpoints_leave(c) && checkpoint_at(c, i)) return NULL;
    if (!last && !kept && i >= segment) return a->device.memory ? a->residual[i % segment] : NULL;
    struct arena *arena = c->recompute && c->checkpoints == ZERO_CPU && kept && !last ? &a->cpu : &a->device;
    return take_from(arena, (uint64_t)a->rows * c->width, sizeof(float));
}

/* `again`: what a block's forward leaves, where it exists once for all blocks and micro-batches; else NULL. */
static void plan_blocks(struct activations *a, const struct gpt_config *c, uint32_t batch,
                        const struct saved *again) {
    uint32_t places = c->recompute && c->recompute < c->layers ? c->recompute : c->layers;
    a->residual = take(a, c->layers + 1, sizeof *a->residual);
    a->saved = take(a, c->layers, sizeof *a->saved);
    struct saved unplaced;
    for (uint32_t i = 0; i <= c->layers; i++) {
        float *residual = plan_residual(a, c, i);
        if (a->device.memory) a->residual[i] = residual;
        if (i < places && !again) plan_saved(a, a->device.memory ? &a->saved[i] : &unplaced, c, batch);
        if (i < c->layers && a->device.memory && (again || i >= places))
            a->saved[i] = again ? *again : a->saved[i % places];
    }
}

/* Arrays that wait from one unit to another. */
static void plan_waiting(struct activations *a, const struct gpt_config *c, uint32_t batch, uint32_t threads,
                         bool cut, const struct saved *again) {
    plan_blocks(a, c, batch, again);
    a->norm = plan_statistics(a, c);
    a->row_loss = take(a, a->rows, sizeof *a->row_loss);
    a->sequences.first = take(a, a->rows + 1, sizeof *a->sequences.first);
    a->sequences.position = take(a, a->rows, sizeof *a->sequences.position);
    a->gradient[0] = take_floats(a, whole_rows(a, threads) * c->width);
    if (!cut) return;
    plan_norms(a, c, threads);
    a->row_most = take_floats(a, a->rows);
    a->row_total = take_floats(a, a->rows);
    a->row_wanted = take_floats(a, a->rows);
}

/* One block of the vocabulary is in use at a time: memory is that of a model whose vocabulary is the largest block. `each`: takes
 * the activations of each micro-batch; or NULL. */
static void plan(struct activations *a, const struct gpt_config *config, uint32_t batch, uint32_t threads,
                 zero_dtype compute, struct activations *each) {
    struct gpt_config largest = *config, *c = &largest;
    bool cut = gpt_vocab_blocks(config) > 1, in_use = recomputes_in_use(config);
    struct saved again;
    c->vocab = vocab_block_rows(config);
    plan_sizes(a, c, batch, threads);
    a->device.bytes = a->cpu.bytes = 0;
    if (architecture_of(c)->rotary) {
        a->cosine = take_floats(a, (uint64_t)c->context * (c->head_width / 2));
        a->sine = take_floats(a, (uint64_t)c->context * (c->head_width / 2));
    }
    if (!cut) plan_norms(a, c, threads);
    plan_scratch(a, c, threads, compute == ZERO_BF16);
    if (compute != ZERO_F32) plan_wide(a, c, compute == ZERO_BF16);
    if (compute == ZERO_BF16) plan_bf16(a, c, threads);
    if (in_use) plan_saved(a, &again, c, batch);
    if (checkpoints_leave(c)) plan_checkpoints(a, c, batch);
    for (uint32_t m = 0; m < c->micros; m++) {
        plan_waiting(a, c, batch, threads, cut, in_use ? &again : NULL);
        if (each) each[m] = *a;
    }
}

uint64_t gpt_activation_bytes(const struct gpt_config *config, uint32_t batch, uint32_t threads,
                              zero_dtype dtype, uint64_t *out_cpu) {
    struct gpt_config c = gpt_complete(config);
    struct activations a = {0};
    plan(&a, &c, batch, threads, dtype, NULL);
    *out_cpu = a.cpu.bytes;
    return a.device.bytes + a.cpu.bytes;
}

uint64_t gpt_checkpoint_bytes(const struct gpt_config *config, uint32_t batch, zero_dtype dtype) {
    struct gpt_config c = gpt_complete(config);
    return checkpoints_leave(&c) ? checkpoint_place_bytes(&c, batch, dtype) : 0;
}

uint32_t gpt_checkpoints_kept(const struct gpt_config *config) { return checkpoints_kept(config); }

static zero_status allocate(struct arena *arena) {
    if (arena->bytes == 0) return ZERO_OK;
    if (posix_memalign(&arena->memory, HUGE_BYTES, arena->bytes)) {
        arena->memory = NULL;
        return ZERO_E_MEMORY;
    }
    /* Huge pages cause fewer TLB misses; the kernel may refuse them. */
    madvise(arena->memory, arena->bytes, MADV_HUGEPAGE);
    return ZERO_OK;
}

zero_status activations_create(struct activations *out, const struct gpt_config *config, uint32_t batch,
                               uint32_t threads, zero_dtype compute) {
    struct activations a = {0};
    plan(&a, config, batch, threads, compute, NULL);
    zero_status status = allocate(&a.device);
    if (!status) status = allocate(&a.cpu);
    *out = a;
    if (!status) plan(&a, config, batch, threads, compute, out);
    return status;
}

void activations_destroy(struct activations *a) {
    free(a->device.memory);
    free(a->cpu.memory);
    memset(a, 0, sizeof *a);
}
