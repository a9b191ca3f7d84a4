/* Which kernels attention uses for a width of heads, and the shapes of their grids. */
#include "tools/gpt/cuda/state.h"

enum { THREADS = 4 * WARP };

struct attention_kernel {
    enum gpt_kernel kernel;
    uint32_t rows, threads; /* queries or keys of a block; its threads */
};
struct attention_kernels {
    struct attention_kernel forward, query_backward, key_backward;
};

/* A block of the forward has WARPGROUP_ROWS queries. */
struct warpgroup_kernels {
    enum gpt_kernel forward, dots, backward, finish;
};
#define BY_WARPGROUPS(width)                                                                                 \
    {                                                                                                        \
        KERNEL_warpgroup_forward_##width, KERNEL_warpgroup_dots_##width, KERNEL_warpgroup_backward_##width,  \
            KERNEL_warpgroup_finish_##width                                                                  \
    }

struct tile_kernels {
    uint32_t tile;
    bool has_warpgroups;
    struct attention_kernels mma;
    struct warpgroup_kernels warpgroups;
};
static const struct tile_kernels tile_kernels[] = {
    {.tile = 64,
     .mma = {{KERNEL_flash_forward_64, FLASH_QUERIES_64, THREADS},
             {KERNEL_flash_query_backward_64, FLASH_QUERIES_64, THREADS},
             {KERNEL_flash_key_backward_64, FLASH_ROWS, THREADS}},
     .has_warpgroups = true,
     .warpgroups = BY_WARPGROUPS(64)},
    {.tile = 96,
     .mma = {{KERNEL_flash_forward_96, FLASH_ROWS, THREADS},
             {KERNEL_flash_query_backward_96, FLASH_ROWS, THREADS},
             {KERNEL_flash_key_backward_96, FLASH_ROWS, THREADS}}},
    {.tile = 128,
     .mma = {{KERNEL_flash_forward_128, FLASH_QUERIES_128, FLASH_WIDE_THREADS},
             {KERNEL_flash_query_backward_128, FLASH_ROWS, THREADS},
             {KERNEL_flash_key_backward_128, FLASH_ROWS, THREADS}},
     .has_warpgroups = true,
     .warpgroups = BY_WARPGROUPS(128)},
    {.tile = 0,
     .mma = {{KERNEL_attention_forward, QUERIES_PER_BLOCK, THREADS},
             {KERNEL_attention_query_backward, QUERIES_PER_BLOCK, THREADS},
             {KERNEL_attention_key_backward, KEYS_PER_BLOCK, THREADS}}},
};

static const struct tile_kernels *kernels_of(uint32_t tile) {
    const struct tile_kernels *k = tile_kernels;
    while (k->tile != tile) k++;
    return k;
}

bool cuda_attention_fits(const struct cuda_gpt *c, uint32_t tile) {
    int major = 0, minor = 0;
    if (c->driver.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, c->device) ||
        c->driver.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, c->device))
        return false;
    return major == 9 && minor == 0 && c->type == ZERO_BF16 && kernels_of(tile)->has_warpgroups;
}

/* In kernels of warpgroups a query sees all keys before its own. */
static bool by_warpgroups(const struct cuda_gpt *c, uint32_t tile, const struct attention_argument *a) {
    bool sees_all = !a->begins && (!a->window || a->window >= a->length);
    return c->warpgroups && kernels_of(tile)->has_warpgroups && sees_all;
}

static void launch(struct cuda_gpt *c, const struct attention_kernel *k, uint32_t heads,
                   struct attention_argument *a) {
    struct grid blocks = {(a->length + k->rows - 1) / k->rows, heads, a->batch};
    cuda_launch(c, k->kernel, blocks, (struct grid){k->threads, 1, 1}, a);
}

void cuda_attention_forward(struct cuda_gpt *c, uint32_t tile, struct attention_argument *a) {
    const struct tile_kernels *k = kernels_of(tile);
    struct attention_kernel warpgroups = {k->warpgroups.forward, WARPGROUP_ROWS, WARPGROUP_THREADS};
    launch(c, by_warpgroups(c, tile, a) ? &warpgroups : &k->mma.forward, a->heads, a);
}

/* ---- the backward by warpgroups ---- */

/* Also clears what begins with zeros. Returns the number of sums. */
static uint64_t take_scratch(struct cuda_gpt *c, uint32_t tile, struct attention_argument *a) {
    uint64_t sequences = (uint64_t)a->batch * a->heads, zeros = cuda_attention_zeros(sequences),
             sums = cuda_attention_sums(tile, sequences, a->length);
    a->sums = a->scratch;
    a->item = (uint32_t *)a->sums + sums;
    a->maxima = a->item + 1;
    a->bases = (float *)a->item + zeros;
    a->norms = a->bases + sequences * a->length;
    cuda_clear(c, a->sums, (sums + zeros) * sizeof *a->sums);
    return sums;
}

static uint32_t blocks_of(uint64_t count, uint64_t each) { return (uint32_t)((count + each - 1) / each); }

/* A block for each multiprocessor takes one block of keys after another. */
static void backward_by_warpgroups(struct cuda_gpt *c, uint32_t tile, struct attention_argument *a) {
    const struct warpgroup_kernels *k = &kernels_of(tile)->warpgroups;
    const struct grid threads = {WARPGROUP_THREADS, 1, 1};
    uint64_t sums = take_scratch(c, tile, a);
    uint32_t items = blocks_of(a->length, WARPGROUP_ROWS) * a->kv_heads * a->batch,
             eights = (a->heads + 2 * a->kv_heads) * tile / 8;
    int most = 1;
    c->driver.cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, c->device);
    struct grid dots = {a->batch * blocks_of(a->length, WARPGROUP_DOT_ROWS),
                        blocks_of(eights, WARPGROUP_THREADS), 1},
                blocks = {items < (uint32_t)most ? items : (uint32_t)most, 1, 1},
                finish = {blocks_of(sums, 8 * WARPGROUP_THREADS), 1, 1};
    cuda_launch(c, k->dots, dots, threads, a);
    cuda_launch(c, k->backward, blocks, threads, a);
    cuda_launch(c, k->finish, finish, threads, a);
}

void cuda_attention_backward(struct cuda_gpt *c, uint32_t tile, struct attention_argument *a) {
    const struct attention_kernels *k = &kernels_of(tile)->mma;
    uint64_t rows = (uint64_t)a->batch * a->length;
    if (by_warpgroups(c, tile, a)) {
        backward_by_warpgroups(c, tile, a);
        return;
    }
    if (!tile) cuda_launch_rows(c, KERNEL_attention_dots, rows * a->heads, a);
    launch(c, &k->query_backward, a->heads, a);
    launch(c, &k->key_backward, a->kv_heads, a);
}
