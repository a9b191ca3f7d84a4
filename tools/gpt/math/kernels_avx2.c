/* The kernels for AVX2 with FMA. The flags are in BUILD. */
#define KERNELS kernels_avx2
#define KERNELS_NAME "avx2"
#define LANES 8
#include <immintrin.h>
#define STREAM_LINE(y, line)                                                                                 \
    (_mm256_stream_ps(y, _mm256_load_ps(line)), _mm256_stream_ps((y) + 8, _mm256_load_ps((line) + 8)))
#define STREAM_END() _mm_sfence()
#include "tools/gpt/math/kernels.inc"
