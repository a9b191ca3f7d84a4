/* The kernels for any processor: vectors of four floats, without fused multiply-add. The flags are in BUILD. */
#define KERNELS kernels_generic
#define KERNELS_NAME "generic"
#define LANES 4
#include "tools/gpt/math/kernels.inc"
