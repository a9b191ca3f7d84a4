/* Matrix products on a GPU by cuBLASLt, loaded at run time: libcublasLt.so.13. Row-major; products are added up in fp32,
 * of fp32 numbers without TF32, and rounded once. The library's choice of an algorithm for a shape is asked for once and
 * kept; one that adds up parts in anything but fp32 is not taken. The bits depend on the GPU, the library's version and
 * the shape alone. Threads: one at a time. */
#ifndef ZERO_TOOLS_GPT_CUDA_CUBLASLT_H
#define ZERO_TOOLS_GPT_CUDA_CUBLASLT_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/zero.h"
#include "tools/gpt/cuda/workspace.h"

/* What is done to the sums before they are rounded. */
enum product_end {
    PRODUCT_PLAIN,
    PRODUCT_BIAS,         /* + bias[n] in every row */
    PRODUCT_BIAS_GELU,    /* + bias, which goes to aux as well; c = gelu of it, in tanh's form */
    PRODUCT_GELU_BACKWARD /* * gelu'(aux) */
};

struct factor {
    const void *data;
    uint64_t ld;     /* numbers from one row to the next, as stored */
    bool transposed; /* the product uses the transpose of what is stored */
};

/* c[m][n] = end(alpha a[m][k] b[k][n] + add). */
struct product {
    zero_dtype type; /* of all arrays */
    uint32_t m, n, k;
    float alpha;
    struct factor a, b;
    const void *add; /* NULL, or laid out like c; may be c */
    void *c;
    uint64_t ldc;
    enum product_end end;
    const void *bias;
    void *aux; /* rows as far apart as c's */
};

struct cublaslt;

/* workspace: CUBLASLT_WORKSPACE_BYTES of the device, for products of one stream. ZERO_E_UNSUPPORTED: no such library. */
zero_status cublaslt_open(CUdeviceptr workspace, struct cublaslt **out, struct zero_error *error);
void cublaslt_close(struct cublaslt *lib);

/* Whether the library has an algorithm for the product: not every end goes with every type and shape. */
bool cublaslt_can(struct cublaslt *lib, const struct product *product);

/* Enqueues it. ZERO_E_UNSUPPORTED: there is no algorithm. */
zero_status cublaslt_multiply(struct cublaslt *lib, const struct product *product, CUstream stream,
                              struct zero_error *error);

#endif
