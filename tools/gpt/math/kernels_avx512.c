/* The kernels for AVX-512. The flags are in BUILD. */
#define KERNELS kernels_avx512
#define KERNELS_NAME "avx512"
#define LANES 16
#include <immintrin.h>
#define STREAM_LINE(y, line) _mm512_stream_ps(y, _mm512_load_ps(line))
#define STREAM_END() _mm_sfence()
#include "tools/gpt/math/kernels.inc"
