/* Matrix products on a GPU by cuBLASLt (libcublasLt.so.13 with CUDA 13), which is loaded at run time. Row-major. Products add in
 * fp32 (fp32 numbers without TF32) and round once, or not at all if the result is fp32. The library proposes algorithms for
 * a shape; an algorithm that adds parts in another type than fp32 is not used. A shape uses the first proposal, unless
 * another is chosen. The bits depend only on the GPU, the library's version, the shape and the choice. Threads: one at a
 * time. */
#ifndef ZERO_TOOLS_GPT_CUDA_CUBLASLT_H
#define ZERO_TOOLS_GPT_CUDA_CUBLASLT_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

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

/* c[m][n] = end(alpha a[m][k] b[k][n] + add). */
struct product {
    zero_dtype type; /* of all arrays */
    bool wide;       /* add and c are fp32 in any case; only with PRODUCT_PLAIN */
    uint32_t m, n, k;
    float alpha;
    struct factor a, b;
    const void *add; /* NULL, or an array with c's layout; may be c */
    void *c;
    uint64_t ldc;
    enum product_end end;
    const void *bias;
    void *aux; /* rows have c's distance */
};

/* The properties on which an algorithm depends. It has no padding: shapes are compared byte by byte. */
struct product_shape {
    uint64_t lda, ldb, ldc;
    uint32_t m, n, k, type, end, transposed_a, transposed_b, adds, alignment, wide;
};
struct product_shape product_shape(const struct product *product);

/* The library's own description of an algorithm. Another process may use it, with the same version of the library. */
struct algorithm {
    uint64_t data[8];
};
enum { ALGORITHMS_MAX = 8, CHOICES_MAX = 96 };

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

/* ---- choosing an algorithm for a shape ---- */

uint64_t cublaslt_version(const struct cublaslt *lib);

/* From now on cublaslt_multiply enqueues nothing. It gives each product that it would enqueue, which may be a part, to
 * `seen`. NULL: it enqueues again. */
void cublaslt_watch(struct cublaslt *lib, void (*seen)(void *user, const struct product *part), void *user);

/* The proposals for a part's shape, in the library's order: the fastest by its own estimate is the first. Returns their
 * number; 0: there is none. */
uint32_t cublaslt_propose(struct cublaslt *lib, const struct product *part,
                          struct algorithm out[ALGORITHMS_MAX]);

/* Products of this shape use the algorithm from now on; NULL: the first proposal. At most CHOICES_MAX shapes have one.
 * ZERO_E_UNSUPPORTED: the library cannot use the algorithm for this shape on this GPU. */
zero_status cublaslt_choose(struct cublaslt *lib, const struct product *part,
                            const struct algorithm *algorithm, struct zero_error *error);

#endif
