/* cuBLASLt is column-major: its matrix is the transpose of a row-major one. Since c^T = b^T a^T, its A is our b, and
 * its B is our a. */
#include "tools/gpt/cuda/cublaslt.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* CUDA_MAJOR: the toolkit's major version, which is the library's (BUILD). */
#define NAME_OF(major) "libcublasLt.so." TEXT_OF(major)
#define TEXT_OF(major) #major
static const char library_name[] = NAME_OF(CUDA_MAJOR);

#define CUBLASLT_FUNCTIONS(X)                                                                                \
    X(cublasLtCreate)                                                                                        \
    X(cublasLtDestroy)                                                                                       \
    X(cublasLtGetStatusString)                                                                               \
    X(cublasLtMatmul)                                                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                        \
    X(cublasLtMatmulDescCreate)                                                                              \
    X(cublasLtMatmulDescDestroy)                                                                             \
    X(cublasLtMatmulDescSetAttribute)                                                                        \
    X(cublasLtMatmulPreferenceCreate)                                                                        \
    X(cublasLtMatmulPreferenceDestroy)                                                                       \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                  \
    X(cublasLtMatrixLayoutCreate)                                                                            \
    X(cublasLtMatrixLayoutDestroy)

struct table {
#define FIELD(name) __typeof__(name) *name;
    CUBLASLT_FUNCTIONS(FIELD)
#undef FIELD
};

/* The properties on which an algorithm depends. It has no padding: shapes are compared byte by byte. */
struct shape {
    uint64_t lda, ldb, ldc;
    uint32_t m, n, k, type, end, transposed_a, transposed_b, adds, alignment, wide;
};

enum { PLANS_MAX = 128 }; /* more than the shapes of a model; shapes of shorter batches replace each other */

struct plan {
    struct shape shape;
    bool made, possible;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
};

struct cublaslt {
    void *library;
    struct table table;
    cublasLtHandle_t handle;
    CUdeviceptr workspace;
    uint32_t next; /* the plan that a new shape replaces */
    struct plan plan[PLANS_MAX];
};

/* ---- opening ---- */

static zero_status look_up(struct cublaslt *lib, struct zero_error *error) {
    const char *missing = NULL;
#define LOOK_UP(name)                                                                                        \
    lib->table.name = (__typeof__(lib->table.name))dlsym(lib->library, #name);                               \
    if (!lib->table.name && !missing) missing = #name;
    CUBLASLT_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    if (!missing) return ZERO_OK;
    return error_set(error, ZERO_E_UNSUPPORTED, "cuBLASLt: %s lacks %s: install cuBLAS of CUDA %d",
                     library_name, missing, CUDA_MAJOR);
}

static zero_status failed(const struct cublaslt *lib, cublasStatus_t status, struct zero_error *error,
                          const char *what) {
    if (status == CUBLAS_STATUS_SUCCESS) return ZERO_OK;
    return error_set(error, status == CUBLAS_STATUS_ALLOC_FAILED ? ZERO_E_MEMORY : ZERO_E_INTERNAL,
                     "cuBLASLt: %s: %s", what, lib->table.cublasLtGetStatusString(status));
}

static zero_status load(struct cublaslt *lib, struct zero_error *error) {
    lib->library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!lib->library)
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "cuBLASLt: %s cannot be loaded (%s): install cuBLAS of CUDA %d, or put its folder "
                         "in LD_LIBRARY_PATH",
                         library_name, dlerror(), CUDA_MAJOR);
    zero_status status = look_up(lib, error);
    return status ? status : failed(lib, lib->table.cublasLtCreate(&lib->handle), error, "opening");
}

zero_status cublaslt_open(CUdeviceptr workspace, struct cublaslt **out, struct zero_error *error) {
    struct cublaslt *lib = calloc(1, sizeof *lib);
    if (!lib) return error_set(error, ZERO_E_MEMORY, "cuBLASLt: no memory for its plans");
    lib->workspace = workspace;
    zero_status status = load(lib, error);
    if (status)
        cublaslt_close(lib);
    else
        *out = lib;
    return status;
}

static void forget(struct cublaslt *lib, struct plan *plan) {
    if (plan->a) lib->table.cublasLtMatrixLayoutDestroy(plan->a);
    if (plan->b) lib->table.cublasLtMatrixLayoutDestroy(plan->b);
    if (plan->c) lib->table.cublasLtMatrixLayoutDestroy(plan->c);
    if (plan->operation) lib->table.cublasLtMatmulDescDestroy(plan->operation);
    memset(plan, 0, sizeof *plan);
}

void cublaslt_close(struct cublaslt *lib) {
    if (!lib) return;
    for (uint32_t i = 0; i < PLANS_MAX; i++) forget(lib, &lib->plan[i]);
    if (lib->handle) lib->table.cublasLtDestroy(lib->handle);
    if (lib->library) dlclose(lib->library);
    free(lib);
}

/* ---- plans ---- */

static cudaDataType_t type_of(zero_dtype type) {
    return type == ZERO_F32 ? CUDA_R_32F : type == ZERO_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* The common alignment of all arrays that the product reads or writes, the vectors of its end included: kernels may
 * load any of them at that width. */
static uint32_t alignment_of(const struct product *p) {
    uintptr_t all = (uintptr_t)p->a.data | (uintptr_t)p->b.data | (uintptr_t)p->c | (uintptr_t)p->add |
                    (uintptr_t)p->bias | (uintptr_t)p->aux | 16;
    return (uint32_t)(all & -all);
}

static struct shape shape_of(const struct product *p) {
    struct shape shape;
    memset(&shape, 0, sizeof shape);
    shape.lda = p->a.ld, shape.ldb = p->b.ld, shape.ldc = p->ldc;
    shape.m = p->m, shape.n = p->n, shape.k = p->k;
    shape.type = (uint32_t)p->type, shape.end = (uint32_t)p->end;
    shape.transposed_a = p->a.transposed, shape.transposed_b = p->b.transposed;
    shape.adds = p->add != NULL, shape.alignment = alignment_of(p), shape.wide = p->wide;
    return shape;
}

static cublasStatus_t set(const struct table *t, cublasLtMatmulDesc_t operation,
                          cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes) {
    return t->cublasLtMatmulDescSetAttribute(operation, attribute, value, bytes);
}

/* Sets the pointers that differ between products of the same shape. */
static cublasStatus_t set_pointers(const struct table *t, cublasLtMatmulDesc_t operation,
                                   enum product_end end, const void *bias, void *aux) {
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (end == PRODUCT_BIAS)
        status = set(t, operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    if (status == CUBLAS_STATUS_SUCCESS && end == PRODUCT_GELU_BACKWARD)
        status = set(t, operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux);
    return status;
}

/* The library derives alignments from these addresses. The function sets addresses with exactly the shape's alignment,
 * so that the choice does not depend on this product's addresses. */
static cublasStatus_t set_alignment(const struct table *t, cublasLtMatmulDesc_t operation,
                                    const struct product *p) {
    void *aligned = (void *)(uintptr_t)alignment_of(p);
    return set_pointers(t, operation, p->end, aligned, aligned);
}

static cublasStatus_t make_operation(const struct table *t, const struct product *p,
                                     cublasLtMatmulDesc_t *out) {
    static const cublasLtEpilogue_t ends[] = {[PRODUCT_PLAIN] = CUBLASLT_EPILOGUE_DEFAULT,
                                              [PRODUCT_BIAS] = CUBLASLT_EPILOGUE_BIAS,
                                              [PRODUCT_GELU_BACKWARD] = CUBLASLT_EPILOGUE_DGELU};
    cublasOperation_t a = p->b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = p->a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    int64_t ld = (int64_t)p->ldc;
    cublasStatus_t status = t->cublasLtMatmulDescCreate(out, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!status) status = set(t, *out, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a);
    if (!status) status = set(t, *out, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b);
    if (!status) status = set(t, *out, CUBLASLT_MATMUL_DESC_EPILOGUE, &ends[p->end], sizeof ends[p->end]);
    if (!status && p->end == PRODUCT_GELU_BACKWARD)
        status = set(t, *out, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld);
    return status ? status : set_alignment(t, *out, p);
}

/* Describes a factor as it is stored: rows x columns, row-major. */
static cublasStatus_t make_layout(const struct table *t, zero_dtype type, uint64_t rows, uint64_t columns,
                                  uint64_t ld, cublasLtMatrixLayout_t *out) {
    return t->cublasLtMatrixLayoutCreate(out, type_of(type), columns, rows, (int64_t)ld);
}

static cublasStatus_t make_layouts(const struct table *t, const struct product *p, struct plan *plan) {
    uint32_t m = p->m, n = p->n, k = p->k;
    bool ta = p->a.transposed, tb = p->b.transposed;
    cublasStatus_t status = make_layout(t, p->type, tb ? n : k, tb ? k : n, p->b.ld, &plan->a);
    if (!status) status = make_layout(t, p->type, ta ? k : m, ta ? m : k, p->a.ld, &plan->b);
    return status ? status : make_layout(t, p->wide ? ZERO_F32 : p->type, m, n, p->ldc, &plan->c);
}

static cublasStatus_t prefer(const struct table *t, uint32_t alignment, cublasLtMatmulPreference_t *out) {
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    size_t workspace = CUBLASLT_WORKSPACE_BYTES;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasStatus_t status = t->cublasLtMatmulPreferenceCreate(out);
    if (!status)
        status = t->cublasLtMatmulPreferenceSetAttribute(*out, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                         &workspace, sizeof workspace);
    if (!status)
        status = t->cublasLtMatmulPreferenceSetAttribute(*out, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                         &schemes, sizeof schemes);
    for (int i = 0; i < 4 && !status; i++)
        status = t->cublasLtMatmulPreferenceSetAttribute(*out, alignments[i], &alignment, sizeof alignment);
    return status;
}

/* The library's first proposal for the plan's shape. A plan without an algorithm is marked as not possible. */
static cublasStatus_t take_algorithm(const struct cublaslt *lib, struct plan *plan) {
    const struct table *t = &lib->table;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t first;
    int found = 0;
    memset(&first, 0, sizeof first);
    cublasStatus_t status = prefer(t, plan->shape.alignment, &preference);
    if (!status)
        status = t->cublasLtMatmulAlgoGetHeuristic(lib->handle, plan->operation, plan->a, plan->b, plan->c,
                                                   plan->c, preference, 1, &first, &found);
    if (preference) t->cublasLtMatmulPreferenceDestroy(preference);
    plan->possible = !status && found > 0 && first.state == CUBLAS_STATUS_SUCCESS;
    plan->algorithm = first.algo;
    bool none = status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
    return none ? CUBLAS_STATUS_SUCCESS : status;
}

static zero_status plan_of(struct cublaslt *lib, const struct product *p, struct plan **out,
                           struct zero_error *error) {
    struct shape shape = shape_of(p);
    for (uint32_t i = 0; i < PLANS_MAX; i++)
        if (lib->plan[i].made && memcmp(&lib->plan[i].shape, &shape, sizeof shape) == 0) {
            *out = &lib->plan[i];
            return ZERO_OK;
        }
    struct plan *plan = *out = &lib->plan[lib->next++ % PLANS_MAX];
    forget(lib, plan);
    plan->shape = shape;
    cublasStatus_t status = make_operation(&lib->table, p, &plan->operation);
    if (!status) status = make_layouts(&lib->table, p, plan);
    if (!status) status = take_algorithm(lib, plan);
    plan->made = !status;
    return failed(lib, status, error, "planning a product");
}

bool cublaslt_can(struct cublaslt *lib, const struct product *product) {
    struct zero_error ignored = ERROR_NONE;
    struct plan *plan;
    return plan_of(lib, product, &plan, &ignored) == ZERO_OK && plan->possible;
}

static zero_status multiply_whole(struct cublaslt *lib, const struct product *p, CUstream stream,
                                  struct zero_error *error) {
    struct plan *plan;
    const float alpha = 1, beta = p->add ? 1 : 0;
    TRY(plan_of(lib, p, &plan, error));
    if (!plan->possible)
        return error_set(
            error, ZERO_E_UNSUPPORTED,
            "cuBLASLt: no algorithm for a product of %u x %u x %u: make the model's sizes multiples of 8",
            p->m, p->n, p->k);
    TRY(failed(lib, set_pointers(&lib->table, plan->operation, p->end, p->bias, p->aux), error,
               "a product's pointers"));
    return failed(lib,
                  lib->table.cublasLtMatmul(lib->handle, plan->operation, &alpha, p->b.data, plan->a,
                                            p->a.data, plan->b, &beta, p->add ? p->add : p->c, plan->c, p->c,
                                            plan->c, &plan->algorithm, (void *)(uintptr_t)lib->workspace,
                                            CUBLASLT_WORKSPACE_BYTES, (cudaStream_t)stream),
                  error, "a product");
}

/* ---- parts ---- */

enum extent { EXTENT_M, EXTENT_N, EXTENT_K, EXTENTS };
enum { FAST_BYTES = 16 };

static uint64_t bytes_of(zero_dtype type) { return type == ZERO_F32 ? 4 : 2; }
static const void *at(const void *array, uint64_t bytes) {
    return array ? (const char *)array + bytes : NULL;
}

static uint32_t *extent_of(struct product *p, enum extent e) {
    return e == EXTENT_M ? &p->m : e == EXTENT_N ? &p->n : &p->k;
}

/* The part of an extent that fills multiples of 16 bytes; 0: the product is not cut there. A sum is cut only if its
 * parts are not rounded. */
static uint32_t whole_part(struct product *p, enum extent e) {
    uint64_t each = bytes_of(p->type), sum_each = p->wide ? 4 : each;
    bool strides = p->a.ld * each % FAST_BYTES == 0 && p->b.ld * each % FAST_BYTES == 0 &&
                   p->ldc * sum_each % FAST_BYTES == 0 && alignment_of(p) == FAST_BYTES;
    const bool stored[EXTENTS] = {p->a.transposed, true, p->wide && (!p->a.transposed || p->b.transposed)};
    uint32_t extent = *extent_of(p, e), rest = extent % (uint32_t)(FAST_BYTES / each);
    return p->type != ZERO_F32 && strides && stored[e] && rest ? extent - rest : 0;
}

/* The product of `count` indices of an extent, from `first` on. */
static struct product part_of(const struct product *p, enum extent e, uint32_t first, uint32_t count) {
    struct product part = *p;
    uint64_t each = bytes_of(p->type), sum_each = p->wide ? 4 : each, i = first;
    uint64_t in_a = i * (e == EXTENT_N ? 0 : p->a.transposed == (e == EXTENT_M) ? 1 : p->a.ld);
    uint64_t in_b = i * (e == EXTENT_M ? 0 : p->b.transposed == (e == EXTENT_K) ? 1 : p->b.ld);
    uint64_t in_c = i * (e == EXTENT_K ? 0 : e == EXTENT_M ? p->ldc : 1);
    *extent_of(&part, e) = count;
    part.a.data = at(p->a.data, in_a * each), part.b.data = at(p->b.data, in_b * each);
    part.c = (char *)p->c + in_c * sum_each, part.add = at(p->add, in_c * sum_each);
    if (e == EXTENT_K && first) part.add = p->c;
    if (e == EXTENT_N) part.bias = at(p->bias, i * each);
    if (p->aux) part.aux = (char *)p->aux + in_c * each;
    return part;
}

/* Cuts the product along its extents from `e` on. */
static zero_status multiply_parts(struct cublaslt *lib, struct product p, enum extent e, CUstream stream,
                                  struct zero_error *error) {
    if (e == EXTENTS) return multiply_whole(lib, &p, stream, error);
    uint32_t whole = whole_part(&p, e), all = *extent_of(&p, e);
    if (!whole) return multiply_parts(lib, p, e + 1, stream, error);
    TRY(multiply_parts(lib, part_of(&p, e, 0, whole), e + 1, stream, error));
    return multiply_parts(lib, part_of(&p, e, whole, all - whole), e + 1, stream, error);
}

zero_status cublaslt_multiply(struct cublaslt *lib, const struct product *p, CUstream stream,
                              struct zero_error *error) {
    return multiply_parts(lib, *p, EXTENT_M, stream, error);
}
