/* The kernels for ARM: two vectors of NEON at a time, so that sums have AVX2's order. The flags are in BUILD. */
#define KERNELS kernels_neon
#define KERNELS_NAME "neon"
#define LANES 8
#include "tools/gpt/math/kernels.inc"
