/* The driver's functions of modules and kernels. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/cuda/emulator.h"
#include "tests/cuda/fake_internal.h"

struct CUfunc_st {
    const struct emulated_kernel *kernel;
    uint32_t shared_max;
    bool loaded;
    struct CUfunc_st *next;
};

struct CUmod_st {
    struct CUfunc_st *functions;
    const unsigned char *image;
    size_t bytes;
};

static const uint32_t fatbin_magic = 0xba55ed50;

/* The head of a fatbin: magic, version (16 bits), bytes of the head (16), bytes of what follows (64). */
static size_t image_bytes(const unsigned char *image) {
    uint32_t magic;
    uint16_t head;
    uint64_t body;
    memcpy(&magic, image, sizeof magic);
    memcpy(&head, image + 6, sizeof head);
    memcpy(&body, image + 8, sizeof body);
    return magic == fatbin_magic ? head + body : 0;
}

EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image) {
    size_t bytes = image ? image_bytes(image) : 0;
    if (!bytes) return CUDA_ERROR_INVALID_IMAGE;
    ENTER(true);
    struct CUmod_st *m = calloc(1, sizeof *m);
    if (!m) fake_fail("the host has no memory");
    m->image = image;
    m->bytes = bytes;
    *out = m;
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuFuncLoad(CUfunction f) {
    ENTER(true);
    if (!f->loaded) count_load();
    f->loaded = true;
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
    ENTER(true);
    while (module->functions) {
        struct CUfunc_st *f = module->functions;
        module->functions = f->next;
        free(f);
    }
    free(module);
    return call_leave(CUDA_SUCCESS);
}

/* The fatbin is real, though it does not run: an entry that it lacks would be missing on a GPU. */
static bool image_has(const struct CUmod_st *m, const char *name) {
    char symbol[256];
    int bytes = snprintf(symbol, sizeof symbol, ".text.%s", name) + 1;
    return memmem(m->image, m->bytes, symbol, (size_t)bytes) != NULL;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
    ENTER(true);
    if (!image_has(module, name)) return call_leave(CUDA_ERROR_NOT_FOUND);
    const struct emulated_kernel *kernel = emulator_find(name);
    if (!kernel) fake_fail("kernel %s has no emulation: add its file to tests/cuda/BUILD", name);
    struct CUfunc_st *f = calloc(1, sizeof *f);
    if (!f) fake_fail("the host has no memory");
    *f = (struct CUfunc_st){.kernel = kernel, .shared_max = SHARED_DEFAULT, .next = module->functions};
    module->functions = f;
    *out = f;
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value) {
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_NOT_SUPPORTED;
    if (value < 0 || value > SHARED_MAX) return CUDA_ERROR_INVALID_VALUE;
    f->shared_max = (uint32_t)value;
    return CUDA_SUCCESS;
}

struct launch {
    const struct emulated_kernel *kernel;
    struct emulator_shape shape;
    _Alignas(16) unsigned char argument[];
};

static void run_launch(void *argument) {
    const struct launch *l = argument;
    const char *idle = getenv("FAKE_CUDA_IDLE");
    if (idle && strcmp(idle, l->kernel->name) == 0) return;
    emulator_launch(l->kernel, &l->shape, l->argument, streams_random());
}

static bool shape_fits(const struct CUfunc_st *f, const struct emulator_shape *s) {
    uint64_t threads = (uint64_t)s->threads[0] * s->threads[1] * s->threads[2];
    return threads && threads <= f->kernel->threads_max && threads <= 1024 && s->threads[2] <= 64 &&
           s->blocks[0] && s->blocks[1] && s->blocks[2] && s->blocks[0] <= INT32_MAX &&
           s->blocks[1] <= UINT16_MAX && s->blocks[2] <= UINT16_MAX && s->shared_bytes <= f->shared_max;
}

/* Below this address are programs linked to fixed addresses, and the sanitizers' records of all memory: there, any two
 * numbers side by side form an address. */
#define SHADOWS_END UINT64_C(0x340000000000)

/* True if the address is in host memory that exists but that a GPU does not reach. Memory that a program is loaded with
 * does not count: an argument may name a table of the host's functions. */
static bool is_pageable(uint64_t address) {
    void *page = (void *)(uintptr_t)(address & ~UINT64_C(4095));
    Dl_info loaded;
    if (address < SHADOWS_END || address >= UINT64_C(1) << 47 || memory_is_device(address)) return false;
    return !pinned_has(address, 0) && msync(page, 1, MS_ASYNC) == 0 &&
           !dladdr((void *)(uintptr_t)address, &loaded);
}

/* A value in an argument that looks like a pointer is checked as one; except an enumerator, which padding may follow,
 * and the last word, of which one half may be padding. */
static void check_pointers(const struct emulated_kernel *kernel, const void *argument) {
    for (size_t at = 0; at + 2 * sizeof(uint64_t) <= kernel->argument_bytes; at += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, (const char *)argument + at, sizeof word);
        if ((uint32_t)word < 16) continue;
        if (is_pageable(word))
            fake_fail(
                "kernel %s is given an address of the host's pageable memory, at byte %zu of its argument",
                kernel->name, at);
        if (memory_is_device(word) && !memory_has(word, 0))
            fake_fail("kernel %s is given an address in no allocation, at byte %zu of its argument",
                      kernel->name, at);
    }
}

EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
                               unsigned threads_x, unsigned threads_y, unsigned threads_z,
                               unsigned shared_bytes, CUstream stream, void **arguments, void **extra) {
    ENTER(true);
    size_t bytes = sizeof(struct launch) + f->kernel->argument_bytes;
    struct launch *l = calloc(1, bytes);
    if (!l) fake_fail("the host has no memory");
    *l = (struct launch){.kernel = f->kernel,
                         .shape = {.blocks = {blocks_x, blocks_y, blocks_z},
                                   .threads = {threads_x, threads_y, threads_z},
                                   .shared_bytes = shared_bytes}};
    memcpy(l->argument, arguments[0], f->kernel->argument_bytes);
    check_pointers(f->kernel, l->argument);
    if (!f->loaded) count_load();
    f->loaded = true;
    struct stream *s = stream_of(stream);
    bool here = s && s->context == current_context();
    if (here) count_kernel(s->capture);
    CUresult result = !here                      ? call_leave(CUDA_ERROR_INVALID_HANDLE)
                      : shape_fits(f, &l->shape) ? call_enqueue(stream, NULL, run_launch, l, bytes)
                                                 : call_leave(CUDA_ERROR_INVALID_VALUE);
    free(l);
    return result;
}
