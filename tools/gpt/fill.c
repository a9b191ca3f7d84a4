/* Initial weights from a counter-based generator: any range of elements gets the same values on any rank. Each pair of
 * elements has its own 64 bits of splitmix64 (Steele et al. 2014), which Box and Muller's method makes normal. */
#include <math.h>
#include <string.h>

#include "engine/base/hash.h"
#include "tools/gpt/gpt.h"
#include "tools/gpt/math/parallel.h"

enum { TASK_ELEMENTS = 4096 };

static uint64_t key_of(uint64_t seed, const char *name) {
    return hash_mix(hash_mix(seed + HASH_STEP) ^ hash_bytes(HASH_START, name, strlen(name)));
}

struct pair {
    float even, odd;
};

static struct pair normal_pair(uint64_t key, uint64_t index, double deviation) {
    uint64_t bits = hash_mix(key + (index + 1) * HASH_STEP);
    double u = ((double)(bits >> 32) + 0.5) * 0x1p-32,
           angle = (double)(uint32_t)bits * (0x1p-32 * 6.283185307179586);
    double radius = deviation * sqrt(-2 * log(u)), sine, cosine;
    sincos(angle, &sine, &cosine);
    return (struct pair){(float)(radius * cosine), (float)(radius * sine)};
}

static void fill_normal(uint64_t key, double deviation, uint64_t first, uint64_t count, float *out) {
    uint64_t end = first + count;
    for (uint64_t pair = first / 2; pair * 2 < end; pair++) {
        struct pair value = normal_pair(key, pair, deviation);
        if (pair * 2 >= first) out[pair * 2 - first] = value.even;
        if (pair * 2 + 1 < end) out[pair * 2 + 1 - first] = value.odd;
    }
}

struct filling {
    uint64_t key, first, count;
    double deviation;
    float *out;
};

static void fill_task(void *context, uint32_t index, uint32_t thread) {
    const struct filling *f = context;
    uint64_t begin = (uint64_t)index * TASK_ELEMENTS, left = f->count - begin;
    fill_normal(f->key, f->deviation, f->first + begin, left < TASK_ELEMENTS ? left : TASK_ELEMENTS,
                f->out + begin);
}

static int ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static int is_norm(const char *param) {
    static const char *const norms[] = {"ln_1.weight",      "ln_2.weight",       "ln_f.weight",
                                        "layernorm.weight", "model.norm.weight", "_norm.weight"};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        if (ends_with(param, norms[i])) return 1;
    return 0;
}

void gpt_fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    const struct gpt_init *init = user;
    if (ends_with(param, ".bias") || is_norm(param)) {
        for (uint64_t i = 0; i < count; i++) out[i] = is_norm(param) ? 1.f : 0.f;
        return;
    }
    double deviation = init->config.initializer_range;
    if (ends_with(param, "c_proj.weight")) deviation /= sqrt(2.0 * init->config.layers);
    struct filling f = {key_of(init->seed, param), first, count, deviation, out};
    parallel_run(init->threads ? init->threads : 1, (uint32_t)((count + TASK_ELEMENTS - 1) / TASK_ELEMENTS),
                 fill_task, &f);
}
