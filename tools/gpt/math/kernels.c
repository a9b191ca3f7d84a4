/* Lists the kernel tables that this processor can run. */
#include "tools/gpt/math/kernels.h"

extern const struct kernels kernels_generic;

#if defined(__x86_64__)
extern const struct kernels kernels_avx2, kernels_avx512;

static int avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

static int avx512(void) {
    return avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
}

const struct kernels *kernels_at(uint32_t index) {
    if (index == 0) return &kernels_generic;
    if (index == 1 && avx2()) return &kernels_avx2;
    if (index == 2 && avx512()) return &kernels_avx512;
    return NULL;
}
#elif defined(__aarch64__)
extern const struct kernels kernels_neon;

const struct kernels *kernels_at(uint32_t index) {
    return index == 0 ? &kernels_generic : index == 1 ? &kernels_neon : NULL;
}
#else
const struct kernels *kernels_at(uint32_t index) { return index == 0 ? &kernels_generic : NULL; }
#endif

const struct kernels *kernels_best(void) {
    uint32_t last = 0;
    while (kernels_at(last + 1)) last++;
    return kernels_at(last);
}
