/* Matrix products by oneDNN. fp32 products use dnnl_sgemm; the matmul primitive rounds differently, so fp32 never uses
 * it. bf16 products, which add in fp32, use the matmul primitive. Row-major; ld: elements from one stored row to the
 * next. Any thread. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum transpose { PLAIN = 'N', TRANSPOSED = 'T' };

struct matrix {
    const void *data; /* float, or bf16 in 16 bits */
    uint64_t ld;
    enum transpose form; /* TRANSPOSED: the product uses data's transpose */
    bool bf16;           /* both factors are bf16, or neither */
};

/* c[m][n] = beta c + alpha a b, inner dimension k; beta 0 does not read c. bf16: alpha is 1, beta 0 or 1. If oneDNN
 * fails (no memory for its scratch), *failed becomes 1 and c is undefined. */
void matmul(atomic_int *failed, uint32_t m, uint32_t n, uint32_t k, float alpha, struct matrix a,
            struct matrix b, float beta, float *c, uint64_t ldc);

bool matmul_has_bf16(void); /* this processor has bf16 products */

static inline struct matrix plain(const float *data, uint64_t ld) {
    return (struct matrix){data, ld, PLAIN, false};
}
static inline struct matrix transposed(const float *data, uint64_t ld) {
    return (struct matrix){data, ld, TRANSPOSED, false};
}
static inline struct matrix narrowed(const uint16_t *data, uint64_t ld, enum transpose form) {
    return (struct matrix){data, ld, form, true};
}
