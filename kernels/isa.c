#include "kernels/isa.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[KERNEL_ISAS] = {
    [KERNEL_SCALAR] = "scalar", [KERNEL_AVX2] = "avx2", [KERNEL_AVX512] = "avx512", [KERNEL_NEON] = "neon"};

const char *kernel_isa_name(enum kernel_isa isa) { return names[isa]; }

bool kernel_isa_present(enum kernel_isa isa) {
    if (isa == KERNEL_SCALAR) return true;
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == KERNEL_AVX2) return avx2;
    return isa == KERNEL_AVX512 && avx2 && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512vl");
#elif defined(__aarch64__)
    return isa == KERNEL_NEON;
#else
    return false;
#endif
}

static enum kernel_isa choose(void) {
    int best = KERNEL_ISAS - 1;
    const char *wish = getenv("ZERO_ISA");
    for (int i = 0; wish && i < KERNEL_ISAS; i++)
        if (strcmp(wish, names[i]) == 0) best = i;
    while (!kernel_isa_present((enum kernel_isa)best)) best--;
    return (enum kernel_isa)best;
}

/* Constant for the process, and computed at the first call. Threads that compute it at the same time get the same
 * value. */
enum kernel_isa kernel_isa(void) {
    static atomic_int known = -1;
    int isa = atomic_load_explicit(&known, memory_order_relaxed);
    if (isa < 0) {
        isa = choose();
        atomic_store_explicit(&known, isa, memory_order_relaxed);
    }
    return (enum kernel_isa)isa;
}
