/* Allocates the memory, and fills the numbers that never change. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/integer.h"
#include "tools/gpt/cuda/state.h"
#include "tools/gpt/rotary.h"

static zero_status allocate(struct cuda_gpt *c) {
    const struct cuda_driver *d = &c->driver;
    struct cuda_memory *m = &c->memory;
    CUdeviceptr device = 0;
    zero_status status =
        cuda_check(d, d->cuMemAlloc(&device, m->bytes), &c->error,
                   "the GPT on the GPU: %llu bytes for activations", (unsigned long long)m->bytes);
    m->device = (char *)(uintptr_t)device;
    if (status) return status;
    status = cuda_check(d, d->cuMemHostAlloc((void **)&m->pinned_whole, m->pinned_bytes + DRIVE_BYTES, 0),
                        &c->error, "the GPT on the GPU: %llu bytes of pinned memory",
                        (unsigned long long)m->pinned_bytes);
    if (!status)
        m->pinned = m->pinned_whole + (DRIVE_BYTES - (uintptr_t)m->pinned_whole % DRIVE_BYTES) % DRIVE_BYTES;
    return status;
}

/* Runs once, so it copies through pageable memory. */
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

/* One allocation: the sets, and then their arrays. */
static struct cuda_set *sets_create(const struct gpt_config *c) {
    uint32_t count = cuda_sets(c);
    uint64_t residual_bytes = (c->layers + 1) * sizeof(void *),
             saved_bytes = c->layers * sizeof(struct cuda_saved);
    struct cuda_set *sets = calloc(count, sizeof *sets + residual_bytes + saved_bytes);
    char *at = (char *)(sets + count);
    for (uint32_t s = 0; sets && s < count; s++, at += residual_bytes + saved_bytes)
        sets[s].residual = (void **)at, sets[s].saved = (struct cuda_saved *)(at + residual_bytes);
    return sets;
}

zero_status cuda_memory_open(struct gpt *gpt) {
    struct cuda_memory *m = &gpt->cuda->memory;
    gpt->cuda->count = calloc(max64(gpt->config.vocab, gpt->config.context), sizeof *gpt->cuda->count);
    if (!gpt->cuda->count) return ZERO_E_MEMORY;
    cuda_layout(m, &gpt->config, gpt->batch, gpt->cuda->type);
    TRY(allocate(gpt->cuda));
    m->set = sets_create(&gpt->config);
    if (!m->set) return ZERO_E_MEMORY;
    cuda_layout(m, &gpt->config, gpt->batch, gpt->cuda->type);
    return fill_angles(gpt);
}

/* Before the first pass, so no recording knows the scratch in their place. */
zero_status cuda_keep_outputs(struct gpt *gpt, struct zero_error *error) {
    struct cuda_gpt *c = gpt->cuda;
    struct cuda_memory *m = &c->memory;
    uint32_t kept[GPT_OUTPUT_KINDS];
    CUdeviceptr outputs = 0;
    for (int kind = 0; kind < GPT_OUTPUT_KINDS; kind++) kept[kind] = (uint32_t)gpt->granted[kind];
    cuda_layout_outputs(m, &gpt->config, gpt->batch, c->type, kept);
    if (!m->outputs_bytes) return ZERO_OK;
    zero_status status = cuda_check(&c->driver, c->driver.cuMemAlloc(&outputs, m->outputs_bytes), error,
                                    "the GPT on the GPU: %llu bytes for outputs that are kept",
                                    (unsigned long long)m->outputs_bytes);
    if (status) memset(kept, 0, sizeof kept);
    m->outputs = (char *)(uintptr_t)outputs;
    cuda_layout_outputs(m, &gpt->config, gpt->batch, c->type, kept);
    return status;
}

void cuda_memory_close(struct gpt *gpt) {
    struct cuda_gpt *c = gpt->cuda;
    struct cuda_memory *m = &c->memory;
    if (m->device) c->driver.cuMemFree((CUdeviceptr)(uintptr_t)m->device);
    if (m->outputs) c->driver.cuMemFree((CUdeviceptr)(uintptr_t)m->outputs);
    if (m->pinned_whole) c->driver.cuMemFreeHost(m->pinned_whole);
    free(m->set);
    free(c->count);
}
