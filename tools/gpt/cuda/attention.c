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

#define BY_WARPGROUPS(width)                                                                                 \
    {                                                                                                        \
        {KERNEL_warpgroup_forward_##width, WARPGROUP_ROWS, WARPGROUP_THREADS},                               \
            {KERNEL_warpgroup_query_backward_##width, WARPGROUP_ROWS, WARPGROUP_THREADS},                    \
            {KERNEL_warpgroup_key_backward_##width, WARPGROUP_ROWS, WARPGROUP_THREADS},                      \
    }

struct tile_kernels {
    uint32_t tile;
    bool has_warpgroups;
    struct attention_kernels mma, warpgroups;
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

static const struct attention_kernels *kernels_for(const struct cuda_gpt *c, uint32_t tile,
                                                   enum attention_pass pass) {
    const struct tile_kernels *k = kernels_of(tile);
    return c->warpgroups[pass] && k->has_warpgroups ? &k->warpgroups : &k->mma;
}

static void launch(struct cuda_gpt *c, const struct attention_kernel *k, uint32_t heads,
                   struct attention_argument *a) {
    struct grid blocks = {(a->length + k->rows - 1) / k->rows, heads, a->batch};
    cuda_launch(c, k->kernel, blocks, (struct grid){k->threads, 1, 1}, a);
}

void cuda_attention_forward(struct cuda_gpt *c, uint32_t tile, struct attention_argument *a) {
    launch(c, &kernels_for(c, tile, ATTENTION_FORWARD)->forward, a->heads, a);
}

void cuda_attention_backward(struct cuda_gpt *c, uint32_t tile, struct attention_argument *a) {
    const struct attention_kernels *k = kernels_for(c, tile, ATTENTION_BACKWARD);
    uint64_t rows = (uint64_t)a->batch * a->length;
    if (!tile) cuda_launch_rows(c, KERNEL_attention_dots, rows * a->heads, a);
    launch(c, &k->query_backward, a->heads, a);
    launch(c, &k->key_backward, a->kv_heads, a);
}
