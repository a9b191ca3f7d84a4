/* A plan is made twice by the same code: without memory for the size, then with it for the pointers. */
#include "tools/gpt/activations.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE_BYTES = 64, HUGE_BYTES = 2 << 20 };

/* Arrays start on lines of their own, a few lines past a multiple of the page: arrays read side by side then do not
 * fall into the same sets of the cache. */
static void *take(struct activations *a, uint64_t count, uint64_t element_bytes) {
    uint64_t start = a->bytes;
    uint64_t bytes = (count * element_bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    a->bytes += bytes + 5 * LINE_BYTES;
    return a->memory ? (char *)a->memory + start : NULL;
}

static float *take_floats(struct activations *a, uint64_t count) { return take(a, count, sizeof(float)); }

static uint32_t round_up(uint32_t x, uint32_t to) { return (x + to - 1) / to * to; }

static void plan_sizes(struct activations *a, const struct gpt_config *c, uint32_t batch, uint32_t threads) {
    a->rows = batch * c->context;
    a->tile_rows =
        round_up((a->rows + threads - 1) / threads, 16); /* every thread has a tile, if there are rows */
    if (a->tile_rows > TILE_ROWS_MAX) a->tile_rows = TILE_ROWS_MAX;
    a->tiles = (a->rows + a->tile_rows - 1) / a->tile_rows;
    uint32_t head_tiles = threads > HEAD_TILES ? threads : HEAD_TILES;
    if (head_tiles > a->tiles) head_tiles = a->tiles;
    a->head_rows = head_tiles * a->tile_rows;
    a->partial_stride = 9ull * c->width + c->inner + LINE_BYTES / sizeof(float);
    a->strip_stride = round_up(c->context, 16) + 16;
    a->strip_elements =
        2ull * QUERY_ROWS * a->strip_stride + 2ull * c->context * (c->width / c->heads) + QUERY_ROWS;
    a->strip_elements = (a->strip_elements + 15) / 16 * 16;
}

static void plan_saved(struct activations *a, struct saved *s, const struct gpt_config *c, uint32_t batch) {
    uint64_t rows = a->rows;
    s->middle = take_floats(a, rows * c->width);
    s->qkv = take_floats(a, rows * c->width * 3);
    s->mixed = take_floats(a, rows * c->width);
    s->inner = take_floats(a, rows * c->inner);
    s->lse = take_floats(a, (uint64_t)batch * c->heads * c->context);
    s->mean1 = take_floats(a, rows), s->rstd1 = take_floats(a, rows);
    s->mean2 = take_floats(a, rows), s->rstd2 = take_floats(a, rows);
}

/* Used as all rows by tile, or as a tile by thread: so room for the last tile's missing rows, and for every
 * thread. */
static void plan_scratch(struct activations *a, const struct gpt_config *c, uint32_t threads) {
    uint64_t whole = (uint64_t)(threads > a->tiles ? threads : a->tiles) * a->tile_rows;
    for (int i = 0; i < 2; i++) a->gradient[i] = take_floats(a, whole * c->width);
    a->mixed_gradient = take_floats(a, whole * c->width);
    a->norm1 = take_floats(a, whole * c->width);
    a->norm2 = take_floats(a, whole * c->width);
    a->gelu = take_floats(a, whole * c->inner);
    a->turned_qkv = take_floats(a, 3ull * c->width * c->width);
    a->turned_project = take_floats(a, (uint64_t)c->width * c->width);
    a->turned_widen = take_floats(a, (uint64_t)c->width * c->inner);
    a->turned_narrow = take_floats(a, (uint64_t)c->width * c->inner);
    a->logits = take_floats(a, (uint64_t)a->head_rows * c->vocab);
    a->partial = take_floats(a, a->tiles * a->partial_stride);
    a->strips = take_floats(a, threads * a->strip_elements);
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static void plan_bf16(struct activations *a, const struct gpt_config *c, uint32_t threads) {
    uint64_t width = c->width, vectors = 9 * width + c->inner;
    uint64_t block = 4 * width * width + 2 * width * c->inner + vectors;
    uint64_t embedding = width * ((uint64_t)c->vocab + c->context), head = width * ((uint64_t)c->vocab + 2);
    uint64_t widest = larger(larger(c->inner, 3 * width), c->vocab);
    a->operand_elements = larger(a->tile_rows * widest, (uint64_t)a->rows * PANEL_ROWS);
    a->wide_params = take_floats(a, vectors);
    a->wide_grads = take_floats(a, larger(block, larger(embedding, head)));
    a->operands = take(a, threads * a->operand_elements, sizeof *a->operands);
    a->rounded = take(a, a->rows * larger(c->inner + 2 * width, 3 * width), sizeof *a->rounded);
}

static void plan(struct activations *a, const struct gpt_config *c, uint32_t batch, uint32_t threads,
                 bool bf16) {
    plan_sizes(a, c, batch, threads);
    a->bytes = 0;
    a->residual = take(a, c->layers + 1, sizeof *a->residual);
    a->saved = take(a, c->layers, sizeof *a->saved);
    struct saved unplaced;
    for (uint32_t i = 0; i <= c->layers; i++) {
        float *residual = take_floats(a, (uint64_t)a->rows * c->width);
        if (a->memory) a->residual[i] = residual;
        if (i < c->layers) plan_saved(a, a->memory ? &a->saved[i] : &unplaced, c, batch);
    }
    a->final_mean = take_floats(a, a->rows), a->final_rstd = take_floats(a, a->rows);
    a->row_loss = take(a, a->rows, sizeof *a->row_loss);
    plan_scratch(a, c, threads);
    if (bf16) plan_bf16(a, c, threads);
}

zero_status activations_create(struct activations *a, const struct gpt_config *config, uint32_t batch,
                               uint32_t threads, bool bf16) {
    memset(a, 0, sizeof *a);
    plan(a, config, batch, threads, bf16);
    if (posix_memalign(&a->memory, HUGE_BYTES, a->bytes)) {
        a->memory = NULL;
        return ZERO_E_MEMORY;
    }
    madvise(a->memory, a->bytes, MADV_HUGEPAGE); /* fewer misses of the TLB; only a wish */
    plan(a, config, batch, threads, bf16);
    return ZERO_OK;
}

void activations_destroy(struct activations *a) {
    free(a->memory);
    memset(a, 0, sizeof *a);
}
