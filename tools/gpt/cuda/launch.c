/* Finds kernels by name, and enqueues work. */
#include <stdio.h>

#include "tools/gpt/cuda/state.h"

extern const unsigned char layer_norm_fatbin[], head_norm_fatbin[], vector_sums_fatbin[], activation_fatbin[],
    embedding_fatbin[], cross_entropy_fatbin[], attention_forward_fatbin[], attention_backward_fatbin[],
    flash_forward_fatbin[], flash_backward_fatbin[], warpgroup_forward_fatbin[], warpgroup_backward_fatbin[];

static const unsigned char *const images[] = {
    layer_norm_fatbin,    head_norm_fatbin,      vector_sums_fatbin,       activation_fatbin,
    embedding_fatbin,     cross_entropy_fatbin,  attention_forward_fatbin, attention_backward_fatbin,
    flash_forward_fatbin, flash_backward_fatbin, warpgroup_forward_fatbin, warpgroup_backward_fatbin};
enum { IMAGES = sizeof images / sizeof *images, WARPGROUP_IMAGE = IMAGES - 2 /* the first of two */ };
_Static_assert((int)IMAGES <= (int)MODULES_MAX, "a module per image");

static const char *const kernel_names[] = {
#define KERNEL_NAME(name) #name,
    GPT_CUDA_KERNELS(KERNEL_NAME) GPT_CUDA_FLASH_KERNELS(KERNEL_NAME) GPT_CUDA_WARPGROUP_KERNELS(KERNEL_NAME)
#undef KERNEL_NAME
};

static const uint32_t dynamic_bytes[GPT_KERNELS] = {
#define KERNEL_BYTES(name, bytes) [KERNEL_##name] = bytes,
    GPT_CUDA_DYNAMIC_SHARED(KERNEL_BYTES)
#undef KERNEL_BYTES
};

static const char *suffix_of(zero_dtype type) {
    return type == ZERO_F32 ? "f32" : type == ZERO_BF16 ? "bf16" : "f16";
}

void cuda_keep(struct cuda_gpt *c, CUresult result, const char *what) {
    if (result != CUDA_SUCCESS && c->error.code == ZERO_OK)
        cuda_check(&c->driver, result, &c->error, "the GPT on the GPU: %s", what);
}

/* Finds a kernel and loads all of it now, as prepare in device.h demands. */
static bool find(struct cuda_gpt *c, const char *name, CUfunction *out) {
    for (int i = 0; i < IMAGES; i++)
        if (c->module[i] && c->driver.cuModuleGetFunction(out, c->module[i], name) == CUDA_SUCCESS)
            return cuda_keep(c, c->driver.cuFuncLoad(*out), name), true;
    return false;
}

/* Without that a block gets 48 KiB at most. */
static void ask_for_shared(struct cuda_gpt *c, enum gpt_kernel kernel) {
    CUresult result = c->driver.cuFuncSetAttribute(
        c->function[kernel], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)dynamic_bytes[kernel]);
    cuda_keep(c, result, kernel_names[kernel]);
}

static void load(struct cuda_gpt *c, int first, int end) {
    for (int i = first; i < end && !c->error.code; i++)
        cuda_keep(c, c->driver.cuModuleLoadData(&c->module[i], images[i]), "loading kernels");
}

static void find_all(struct cuda_gpt *c, int first, int end) {
    for (int i = first; i < end && !c->error.code; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s_%s", kernel_names[i], suffix_of(c->type));
        if (!find(c, name, &c->function[i])) cuda_keep(c, CUDA_ERROR_NOT_FOUND, name);
        if (!c->error.code && dynamic_bytes[i]) ask_for_shared(c, (enum gpt_kernel)i);
    }
}

zero_status cuda_kernels_open(struct cuda_gpt *c) {
    load(c, 0, WARPGROUP_IMAGE);
    find_all(c, 0, c->type == ZERO_F32 ? GPT_KERNELS_OF_ALL : GPT_KERNELS_OF_16_BITS);
    return c->error.code;
}

zero_status cuda_warpgroup_kernels_open(struct cuda_gpt *c) {
    if (c->module[WARPGROUP_IMAGE]) return ZERO_OK;
    load(c, WARPGROUP_IMAGE, IMAGES);
    find_all(c, GPT_KERNELS_OF_16_BITS, GPT_KERNELS);
    return c->error.code;
}

void cuda_kernels_close(struct cuda_gpt *c) {
    for (int i = 0; i < IMAGES; i++)
        if (c->module[i]) c->driver.cuModuleUnload(c->module[i]);
}

void cuda_launch_shared(struct cuda_gpt *c, enum gpt_kernel kernel, struct grid blocks, struct grid threads,
                        uint32_t bytes, void *argument) {
    if (c->error.code || !blocks.x || !blocks.y || !blocks.z) return;
    cuda_keep(c,
              c->driver.cuLaunchKernel(c->function[kernel], blocks.x, blocks.y, blocks.z, threads.x,
                                       threads.y, threads.z, bytes, c->stream, (void *[]){argument}, NULL),
              kernel_names[kernel]);
}

void cuda_launch(struct cuda_gpt *c, enum gpt_kernel kernel, struct grid blocks, struct grid threads,
                 void *argument) {
    cuda_launch_shared(c, kernel, blocks, threads, dynamic_bytes[kernel], argument);
}

static struct grid line(uint64_t x) { return (struct grid){(uint32_t)x, 1, 1}; }

void cuda_launch_flat(struct cuda_gpt *c, enum gpt_kernel kernel, uint64_t count, void *argument) {
    cuda_launch(c, kernel, line((count + FLAT_THREADS - 1) / FLAT_THREADS), line(FLAT_THREADS), argument);
}

void cuda_launch_rows(struct cuda_gpt *c, enum gpt_kernel kernel, uint64_t rows, void *argument) {
    cuda_launch(c, kernel, line((rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK), line(ROWS_PER_BLOCK * WARP),
                argument);
}

void cuda_launch_blocks(struct cuda_gpt *c, enum gpt_kernel kernel, uint32_t rows, void *argument) {
    cuda_launch(c, kernel, line(rows), line(FLAT_THREADS), argument);
}

void cuda_multiply(struct cuda_gpt *c, const struct product *product) {
    if (!c->error.code) cublaslt_multiply(c->products, product, c->stream, &c->error);
}

void cuda_clear(struct cuda_gpt *c, void *memory, uint64_t bytes) {
    if (!c->error.code)
        cuda_keep(c, c->driver.cuMemsetD8Async((CUdeviceptr)(uintptr_t)memory, 0, bytes, c->stream),
                  "clearing memory");
}

void cuda_copy(struct cuda_gpt *c, void *target, const void *source, uint64_t bytes) {
    if (!c->error.code)
        cuda_keep(c,
                  c->driver.cuMemcpyAsync((CUdeviceptr)(uintptr_t)target, (CUdeviceptr)(uintptr_t)source,
                                          bytes, c->stream),
                  "a copy");
}
