/* The instruction sets that kernels are built for. All give the same bits; only their speed differs. */
#pragma once

#include <stdbool.h>

enum kernel_isa { KERNEL_SCALAR, KERNEL_AVX2, KERNEL_AVX512, KERNEL_NEON, KERNEL_ISAS };

/* Attributes of functions: the instructions that the compiler may use. If an instruction set is not built (it belongs to
 * another processor), its entry in the tables is NULL. target_clones is not used: gcc's avx2 clone lacks FMA.
 * ISA_EACH(code, ...): code(isa, attribute, ...) for each instruction set that is built. */
#if defined(__x86_64__)
#define ISA_TARGET_SCALAR
#define ISA_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define ISA_TARGET_AVX512 __attribute__((target("avx512f,avx512vl,avx2,fma,f16c")))
#define ISA_EACH(code, ...)                                                                                  \
    code(scalar, ISA_TARGET_SCALAR, ##__VA_ARGS__) code(avx2, ISA_TARGET_AVX2, ##__VA_ARGS__)                \
        code(avx512, ISA_TARGET_AVX512, ##__VA_ARGS__)
#define ISA_TABLE(name)                                                                                      \
    { [KERNEL_SCALAR] = name##_scalar, [KERNEL_AVX2] = name##_avx2, [KERNEL_AVX512] = name##_avx512 }
#elif defined(__aarch64__)
/* Every ARM processor of 64 bits has NEON, so gcc would make vector code for both. */
#if defined(__clang__)
#define ISA_TARGET_SCALAR
#else
#define ISA_TARGET_SCALAR __attribute__((optimize("no-tree-vectorize")))
#endif
#define ISA_TARGET_NEON
#define ISA_EACH(code, ...)                                                                                  \
    code(scalar, ISA_TARGET_SCALAR, ##__VA_ARGS__) code(neon, ISA_TARGET_NEON, ##__VA_ARGS__)
#define ISA_TABLE(name)                                                                                      \
    { [KERNEL_SCALAR] = name##_scalar, [KERNEL_NEON] = name##_neon }
#else
#define ISA_TARGET_SCALAR
#define ISA_EACH(code, ...) code(scalar, ISA_TARGET_SCALAR, ##__VA_ARGS__)
#define ISA_TABLE(name)                                                                                      \
    { [KERNEL_SCALAR] = name##_scalar }
#endif

/* The best instruction set of this CPU, or a lower one from the environment variable ZERO_ISA=scalar|avx2|avx512|neon.
 * The first call decides. Any thread may call it. */
enum kernel_isa kernel_isa(void);

bool kernel_isa_present(enum kernel_isa isa); /* true: this CPU and this build have it */
const char *kernel_isa_name(enum kernel_isa isa);
