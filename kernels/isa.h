/* The instruction sets that kernels are built for. All give the same bits; only their speed differs. */
#ifndef ZERO_KERNELS_ISA_H
#define ZERO_KERNELS_ISA_H

#include <stdbool.h>

enum kernel_isa { KERNEL_SCALAR, KERNEL_AVX2, KERNEL_AVX512, KERNEL_ISAS };

/* Attributes of functions: the instructions that the compiler may use. If an instruction set is not built (not x86),
 * its entry in the tables is NULL. target_clones is not used: gcc's avx2 clone lacks FMA. */
#define ISA_TARGET_SCALAR
#if defined(__x86_64__)
#define ISA_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define ISA_TARGET_AVX512 __attribute__((target("avx512f,avx512vl,avx2,fma,f16c")))
#define ISA_TABLE(name)                                                                                      \
    { [KERNEL_SCALAR] = name##_scalar, [KERNEL_AVX2] = name##_avx2, [KERNEL_AVX512] = name##_avx512 }
#else
#define ISA_TABLE(name)                                                                                      \
    { [KERNEL_SCALAR] = name##_scalar }
#endif

/* The best instruction set of this CPU, or a lower one from the environment variable ZERO_ISA=scalar|avx2|avx512. The
 * first call decides. Any thread may call it. */
enum kernel_isa kernel_isa(void);

bool kernel_isa_present(enum kernel_isa isa); /* true: this CPU and this build have it */
const char *kernel_isa_name(enum kernel_isa isa);

#endif
