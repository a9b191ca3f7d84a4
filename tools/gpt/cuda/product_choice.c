/* Chooses among cuBLASLt's proposals by the time that each takes on this GPU. Proposals take turns, so that a GPU that
 * changes its clock treats them alike; medians of the rounds are compared. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/gpt/cuda/attention_choice.h"
#include "tools/gpt/cuda/choices.h"
#include "tools/gpt/cuda/timing.h"

struct timed_product {
    const struct timing *t;
    const struct product *product;
};

static CUresult enqueue(void *user, int count) {
    const struct timed_product *p = user;
    struct zero_error refused;
    error_clear(&refused);
    for (int i = 0; i < count; i++)
        if (cublaslt_multiply(p->t->c->products, p->product, p->t->c->stream, &refused))
            return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

static bool time_product(const struct timing *t, const struct product *product, float *out_ms) {
    struct timed_product p = {t, product};
    return timing_take(t, enqueue, &p, out_ms) == CUDA_SUCCESS;
}

struct candidate {
    float ms[TIMING_ROUNDS];
    bool out; /* it cannot run, or is much slower */
};

/* Proposals take turns, so that a GPU that changes its clock treats them alike. */
static void time_rounds(const struct timing *t, const struct listed_product *item,
                        const struct algorithm *proposal, uint32_t count, struct candidate *out) {
    struct zero_error refused;
    for (int round = 0; round < TIMING_ROUNDS; round++) {
        float best = 0;
        for (uint32_t i = 0; i < count; i++) {
            error_clear(&refused);
            out[i].out = out[i].out ||
                         cublaslt_choose(t->c->products, &item->product, &proposal[i], &refused) ||
                         !time_product(t, &item->product, &out[i].ms[round]);
            if (!out[i].out && (best == 0 || out[i].ms[round] < best)) best = out[i].ms[round];
        }
        for (uint32_t i = 1; i < count; i++) out[i].out = out[i].out || out[i].ms[round] > 2 * best;
    }
}

/* The index of the proposal to take; `count`: none can run. */
static uint32_t fastest(const struct timing *t, const struct listed_product *item,
                        const struct algorithm *proposal, uint32_t count) {
    struct candidate candidate[ALGORITHMS_MAX] = {0};
    uint32_t best = count;
    float most = 0; /* the time below which another is taken */
    time_rounds(t, item, proposal, count, candidate);
    for (uint32_t i = 0; i < count; i++) {
        if (candidate[i].out) continue;
        float median = timing_median(candidate[i].ms);
        if (best < count && median >= most) continue;
        most = best == count ? median * timing_faster : median;
        best = i;
    }
    return best;
}

/* Writes at *text, and moves it on. Without `times` every product has the first proposal. */
static zero_status choose_all(const struct timing *t, const struct product_list *list, bool times,
                              char **text, struct zero_error *error) {
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < list->count && !status; i++) {
        const struct listed_product *item = &list->item[i];
        struct algorithm proposal[ALGORITHMS_MAX];
        uint32_t count = times ? cublaslt_propose(t->c->products, &item->product, proposal) : 0,
                 best = fastest(t, item, proposal, count);
        const struct algorithm *taken = best < count ? &proposal[best] : NULL;
        status = cublaslt_choose(t->c->products, &item->product, taken, error);
        *text = choices_write(*text, item, taken);
    }
    return status;
}

/* Of the largest parameter or projection, on a line of 256 bytes. */
static uint64_t parameter_bytes(const struct gpt *gpt) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < PROJECTIONS; i++) {
        uint64_t count = projection_outputs(&gpt->config, i) *
                         extent_of(&gpt->config, gpt->architecture->projection[i].inputs);
        if (count > most) most = count;
    }
    for (uint32_t u = 0; u < gpt_units(&gpt->config); u++)
        for (uint32_t p = 0; p < UNIT_PARAMS_MAX; p++)
            if (gpt->units[u].view[p].count > most) most = gpt->units[u].view[p].count;
    return (most * gpt->cuda->number_bytes + 255) / 256 * 256;
}

static zero_status time_in(struct gpt *gpt, char *memory, uint64_t bytes, struct product_list *list,
                           char *text, struct zero_error *error) {
    struct timing t = {.c = gpt->cuda};
    const struct cuda_driver *d = &t.c->driver;
    zero_status status = choices_list(gpt, memory, bytes, list);
    CUresult result = status ? CUDA_SUCCESS : d->cuEventCreate(&t.begin, CU_EVENT_DEFAULT);
    if (!status && !result) result = d->cuEventCreate(&t.end, CU_EVENT_DEFAULT);
    if (!status) status = cuda_check(d, result, error, "the GPT on the GPU: events");
    if (!status) status = choose_all(&t, list, gpt->config.times_products, &text, error);
    if (!status && gpt->config.attention == GPT_ATTENTION_TIMED) status = attention_choose(gpt, &t, text, error);
    d->cuStreamSynchronize(t.c->stream); /* before the memory is freed */
    if (t.begin) d->cuEventDestroy(t.begin);
    if (t.end) d->cuEventDestroy(t.end);
    return status;
}

zero_status cuda_products_time(struct gpt *gpt, char out[GPT_PRODUCTS_BYTES], struct zero_error *error) {
    const struct cuda_driver *d = &gpt->cuda->driver;
    uint64_t bytes = parameter_bytes(gpt);
    struct product_list *list = malloc(sizeof *list);
    CUdeviceptr memory = 0;
    if (!list) return ZERO_E_MEMORY;
    zero_status status =
        cuda_check(d, d->cuMemAlloc(&memory, 2 * bytes), error,
                   "the GPT on the GPU: %llu bytes to time products", (unsigned long long)(2 * bytes));
    choices_place(gpt->cuda, out);
    char *lines = out + strlen(out);
    lines += sprintf(lines, "\n");
    if (!status) status = time_in(gpt, (char *)(uintptr_t)memory, bytes, list, lines, error);
    if (memory) d->cuMemFree(memory);
    free(list);
    return status;
}
