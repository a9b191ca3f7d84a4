/* The product of a tile with a weight. */
#include "tools/gpt/model.h"

struct matrix weight_of(const struct gpt *gpt, const struct view *view, enum transpose form) {
    return (struct matrix){view->param, view->columns, form, gpt->bf16};
}

void product(struct gpt *gpt, uint32_t thread, uint32_t rows, uint32_t n, uint32_t k, const float *a,
             uint64_t lda, struct matrix weight, float beta, float *c, uint64_t ldc) {
    struct matrix left = plain(a, lda);
    if (weight.bf16) {
        uint16_t *operand = gpt->activations.operands + thread * gpt->activations.operand_elements;
        for (uint32_t row = 0; row < rows; row++)
            gpt->kernels->narrow(operand + (uint64_t)row * k, a + row * lda, k);
        left = narrowed(operand, k, PLAIN);
    }
    matmul(&gpt->failed, rows, n, k, 1, left, weight, beta, c, ldc);
}
