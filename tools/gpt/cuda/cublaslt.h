/* Matrix products on a GPU by cuBLASLt (libcublasLt.so.13 with CUDA 13), which is loaded at run time. Row-major. Products add in
 * fp32 (fp32 numbers without TF32) and round once, or not at all if the result is fp32. A shape uses the algorithm that the
 * library proposes first, of those that add parts in fp32. The bits depend only on the GPU, the library's version and the shape. Threads: one at a time. */
#pragma once

#include <cuda.h>
#include <stdbool.h>

#include "engine/base/error.h"
#include "engine/zero.h"
#include "tools/gpt/cuda/workspace.h"

/* The operation on the sums before they are rounded. */
enum product_end {
    PRODUCT_PLAIN,
    PRODUCT_BIAS,         /* + bias[n] in every row */
    PRODUCT_GELU_BACKWARD /* * gelu'(aux), in tanh's form */
};

struct factor {
    const void *data;
    uint64_t ld;     /* numbers from one stored row to the next */
    bool transposed; /* the product uses the transpose of the stored matrix */
};

/* c[m][n] = end(a[m][k] b[k][n] + add). */
struct product {
    zero_dtype type; /* of all arrays */
    bool wide;       /* add and c are fp32 in any case; only with PRODUCT_PLAIN */
    uint32_t m, n, k;
    struct factor a, b;
    const void *add; /* NULL, or an array with c's layout; may be c */
    void *c;
    uint64_t ldc;
    enum product_end end;
    const void *bias;
    void *aux; /* rows have c's distance */
};

struct cublaslt;

/* workspace: CUBLASLT_WORKSPACE_BYTES on the device, for products of one stream. ZERO_E_UNSUPPORTED: the library is
 * missing. */
zero_status cublaslt_open(CUdeviceptr workspace, struct cublaslt **out, struct zero_error *error);
void cublaslt_close(struct cublaslt *lib);

/* True if the library has an algorithm for the product: not every end works with every type and shape. */
bool cublaslt_can(struct cublaslt *lib, const struct product *product);

/* Enqueues the product. ZERO_E_UNSUPPORTED: there is no algorithm.
 * 16-bit products are fast only if stored lines are multiples of 16 bytes, not their distances alone (cuBLAS, "Tensor
 * Core Usage"). If all addresses and distances are, the parts of whole 16 bytes are multiplied apart from the rest:
 * logits of a vocabulary of 50,257 are one product of 50,256 columns and one of 1. */
zero_status cublaslt_multiply(struct cublaslt *lib, const struct product *product, CUstream stream,
                              struct zero_error *error);
