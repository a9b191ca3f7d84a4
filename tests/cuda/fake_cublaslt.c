/* A stand-in libcublasLt.so.13: the calls that tools/gpt/cuda/cublaslt.c makes, with plain loops in double over the fake
 * driver's memory, in the order of its streams. It refuses what the real one would or might: TF32, an end without its
 * pointer, GELU's ends on fp32 or on rows that are no multiple of 8, pointers that are less aligned than was said or
 * where no GPU reaches, a plan for other shapes, a small workspace, and to open without a context. It refuses what the
 * real one would compute slowly without need: 16-bit products with aligned strides but other extents. It counts products
 * that round their own result again. An algorithm is for one shape. */
#include <cublasLt.h>
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/numbers/convert.h"
#include "tests/cuda/fake_cuda.h"

struct layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld;
};

struct operation {
    cublasComputeType_t compute;
    cublasOperation_t a, b;
    cublasLtEpilogue_t end;
    const void *bias;
    void *aux;
    int64_t aux_ld;
};

struct preference {
    uint64_t workspace;
    uint32_t schemes, alignment;
};

static void *of_driver(const char *name) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *function = driver ? dlsym(driver, name) : NULL;
    if (!function) abort(); /* the real driver, or none: this stand-in goes with the other alone */
    return function;
}

/* ---- objects ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
    CUcontext current = NULL;
    ((__typeof__(cuCtxGetCurrent) *)of_driver("cuCtxGetCurrent"))(&current);
    if (!current) return CUBLAS_STATUS_NOT_INITIALIZED;
    *out = (cublasLtHandle_t)calloc(1, 1);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}
const char *cublasLtGetStatusString(cublasStatus_t status) {
    if (status == CUBLAS_STATUS_EXECUTION_FAILED) return "CUBLAS_STATUS_EXECUTION_FAILED";
    return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "refused by the stand-in";
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
    struct layout *layout = calloc(1, sizeof *layout);
    *layout = (struct layout){type, rows, columns, ld};
    *out = (cublasLtMatrixLayout_t)layout;
    return (uint64_t)ld >= rows ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    struct operation *operation = calloc(1, sizeof *operation);
    *operation = (struct operation){.compute = compute, .end = CUBLASLT_EPILOGUE_DEFAULT};
    *out = (cublasLtMatmulDesc_t)operation;
    return scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
    free(operation);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t take(void *to, size_t wanted, const void *from, size_t bytes) {
    if (bytes != wanted) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute, const void *value,
                                              size_t bytes) {
    struct operation *o = (struct operation *)handle;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return take(&o->a, sizeof o->a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return take(&o->b, sizeof o->b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return take(&o->end, sizeof o->end, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return take(&o->bias, sizeof o->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return take(&o->aux, sizeof o->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return take(&o->aux_ld, sizeof o->aux_ld, value, bytes);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    struct preference *p = calloc(1, sizeof *p);
    *p = (struct preference){0, CUBLASLT_REDUCTION_SCHEME_MASK, 256};
    *out = (cublasLtMatmulPreference_t)p;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes) {
    struct preference *p = (struct preference *)handle;
    uint32_t alignment;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return take(&p->workspace, sizeof p->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return take(&p->schemes, sizeof p->schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        if (take(&alignment, sizeof alignment, value, bytes)) return CUBLAS_STATUS_INVALID_VALUE;
        if (alignment < p->alignment) p->alignment = alignment;
        return CUBLAS_STATUS_SUCCESS;
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

/* ---- products ---- */

struct product { /* column-major, as cuBLASLt has it */
    struct operation operation;
    struct layout a_layout, b_layout, c_layout;
    float alpha, beta;
    const void *a, *b, *c;
    void *d;
};

static uint64_t rows_of(struct layout l, cublasOperation_t op) {
    return op == CUBLAS_OP_N ? l.rows : l.columns;
}
static uint64_t columns_of(struct layout l, cublasOperation_t op) {
    return op == CUBLAS_OP_N ? l.columns : l.rows;
}

static bool has_slope(const struct operation *o) { return o->end == CUBLASLT_EPILOGUE_DGELU; }
static bool has_bias(const struct operation *o) { return o->end == CUBLASLT_EPILOGUE_BIAS; }

/* Factors of 16 bits may have a product in fp32. */
static bool fits(const struct operation *o, struct layout a, struct layout b, struct layout c) {
    bool types = a.type == b.type && (c.type == a.type || c.type == CUDA_R_32F);
    return rows_of(a, o->a) == c.rows && columns_of(a, o->a) == rows_of(b, o->b) &&
           columns_of(b, o->b) == c.columns && types;
}

static uint64_t bytes_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

enum { FAST_BYTES = 16 };

static bool is_whole(uint64_t numbers, cudaDataType type) {
    return numbers * bytes_of(type) % FAST_BYTES == 0;
}

/* The fast path of the tensor cores wants strides and stored lines (a layout's rows) of whole 16 bytes (cuBLAS, "Tensor
 * Core Usage"). A program that aligns all addresses and strides means that path. It can multiply the whole 16 bytes
 * apart from the rest: only the rest, an extent below 16 bytes, may be slow. */
static bool misses_fast_path(const struct operation *o, struct layout a, struct layout b, struct layout c) {
    uint64_t unit = FAST_BYTES / bytes_of(a.type), inner = columns_of(a, o->a);
    bool rest = c.rows < unit || c.columns < unit || inner < unit;
    bool strides = is_whole((uint64_t)a.ld, a.type) && is_whole((uint64_t)b.ld, b.type) &&
                   is_whole((uint64_t)c.ld, c.type);
    bool lines = is_whole(a.rows, a.type) && is_whole(b.rows, b.type) && is_whole(c.rows, c.type);
    return a.type != CUDA_R_32F && strides && !lines && !rest;
}

static bool allowed(const struct operation *o, struct layout a, struct layout c) {
    if (o->compute != CUBLAS_COMPUTE_32F) return false;
    if (has_bias(o) && !o->bias) return false;
    if (a.type != c.type) return o->end == CUBLASLT_EPILOGUE_DEFAULT;
    if (!has_slope(o)) return has_bias(o) || o->end == CUBLASLT_EPILOGUE_DEFAULT;
    return o->aux && c.type != CUDA_R_32F && o->aux_ld % 8 == 0 && c.rows % 8 == 0;
}

static bool reaches(const void *memory, uint64_t count, cudaDataType type) {
    __typeof__(fake_cuda_reaches) *ask = (__typeof__(fake_cuda_reaches) *)of_driver("fake_cuda_reaches");
    return !count || ask(memory, count * bytes_of(type));
}

static bool reaches_matrix(const void *matrix, struct layout l, int64_t ld) {
    return reaches(matrix, l.columns ? (l.columns - 1) * (uint64_t)ld + l.rows : 0, l.type);
}

struct choice { /* in a cublasLtMatmulAlgo_t; without padding, so that equal choices have equal bytes */
    uint64_t workspace;
    uint32_t rows, columns, inner;
    uint16_t alignment, bias_alignment, aux_alignment, unused[3];
};
_Static_assert(sizeof(struct choice) <= sizeof(cublasLtMatmulAlgo_t), "a choice is an algorithm");

static uint16_t alignment_of(const void *memory) {
    uintptr_t bits = (uintptr_t)memory | 256;
    return (uint16_t)(bits & -bits);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t result[], int *out_found) {
    const struct operation *o = (const struct operation *)operation;
    const struct preference *p = (const struct preference *)preference;
    struct layout la = *(struct layout *)a, lb = *(struct layout *)b, lc = *(struct layout *)c;
    *out_found = 0;
    if (!fits(o, la, lb, lc) || d != c || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
    if (!allowed(o, la, lc)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p->alignment >= FAST_BYTES && misses_fast_path(o, la, lb, lc)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p->schemes & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    struct choice choice = {.rows = (uint32_t)lc.rows,
                            .columns = (uint32_t)lc.columns,
                            .inner = (uint32_t)columns_of(la, o->a),
                            .alignment = (uint16_t)p->alignment,
                            .bias_alignment = alignment_of(o->bias),
                            .aux_alignment = alignment_of(o->aux),
                            .workspace = p->workspace};
    memset(result, 0, sizeof *result);
    memcpy(&result->algo, &choice, sizeof choice);
    *out_found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static bool is_for(const struct choice *choice, const struct operation *o, struct layout a, struct layout c) {
    return choice->rows == c.rows && choice->columns == c.columns && choice->inner == columns_of(a, o->a);
}

static double read(const void *from, cudaDataType type, uint64_t at) {
    if (type == CUDA_R_32F) return ((const float *)from)[at];
    uint16_t bits = ((const uint16_t *)from)[at];
    return type == CUDA_R_16BF ? f32_from_bf16(bits) : f32_from_f16(bits);
}

static void write(void *to, cudaDataType type, uint64_t at, double x) {
    if (type == CUDA_R_32F)
        ((float *)to)[at] = (float)x;
    else
        ((uint16_t *)to)[at] = type == CUDA_R_16BF ? bf16_from_f32((float)x) : f16_from_f32((float)x);
}

static double factor(const void *from, struct layout l, cublasOperation_t op, uint64_t row, uint64_t column) {
    return read(from, l.type,
                op == CUBLAS_OP_N ? column * (uint64_t)l.ld + row : row * (uint64_t)l.ld + column);
}

static double gelu_slope(double x) {
    double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return (1 + t) / 2 + x / 2 * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static double end_of(const struct product *p, uint64_t row, uint64_t column, double sum) {
    const struct operation *o = &p->operation;
    uint64_t aux = column * (uint64_t)o->aux_ld + row;
    if (has_slope(o)) return sum * gelu_slope(read(o->aux, p->c_layout.type, aux));
    return has_bias(o) ? sum + read(o->bias, p->c_layout.type, row) : sum;
}

/* The sums of one column, number by number of the inner extent. `left`: the left factor, the numbers of each inner index one after
 * another. */
static void sum_column(const struct product *p, const double *left, uint64_t inner, uint64_t column,
                       double *restrict sums) {
    const uint64_t rows = p->c_layout.rows;
    memset(sums, 0, rows * sizeof *sums);
    for (uint64_t k = 0; k < inner; k++) {
        const double by = factor(p->b, p->b_layout, p->operation.b, k, column);
        const double *restrict from = left + k * rows;
        for (uint64_t row = 0; row < rows; row++) sums[row] += from[row] * by;
    }
}

static void run(void *argument) {
    const struct product *p = argument;
    const struct operation *o = &p->operation;
    const uint64_t inner = columns_of(p->a_layout, o->a), rows = p->c_layout.rows;
    double *left = malloc((inner + 1) * rows * sizeof *left), *sums = left + inner * rows;
    if (!left) abort();
    for (uint64_t i = 0; i < inner; i++)
        for (uint64_t row = 0; row < rows; row++)
            left[i * rows + row] = factor(p->a, p->a_layout, o->a, row, i);
    for (uint64_t column = 0; column < p->c_layout.columns; column++) {
        sum_column(p, left, inner, column, sums);
        for (uint64_t row = 0; row < rows; row++) {
            uint64_t at = column * (uint64_t)p->c_layout.ld + row;
            double sum =
                p->alpha * sums[row] + (p->beta != 0 ? p->beta * read(p->c, p->c_layout.type, at) : 0);
            write(p->d, p->c_layout.type, at, end_of(p, row, column, sum));
        }
    }
    free(left);
}

/* A GPU that were given other memory would end the process's context. */
static bool reaches_all(const struct product *p) {
    const struct operation *o = &p->operation;
    return reaches_matrix(p->a, p->a_layout, p->a_layout.ld) &&
           reaches_matrix(p->b, p->b_layout, p->b_layout.ld) &&
           reaches_matrix(p->d, p->c_layout, p->c_layout.ld) &&
           (p->beta == 0 || reaches_matrix(p->c, p->c_layout, p->c_layout.ld)) &&
           (!has_bias(o) || reaches(o->bias, p->c_layout.rows, p->c_layout.type)) &&
           (!has_slope(o) || reaches_matrix(o->aux, p->c_layout, o->aux_ld));
}

/* As the algorithm was chosen: by what was said of the matrices, and by the addresses of an end's that were set then. */
static bool aligned(const struct product *p, const struct choice *choice) {
    const struct operation *o = &p->operation;
    uintptr_t all = (uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)p->c | (uintptr_t)p->d;
    return all % choice->alignment == 0 && alignment_of(o->bias) >= choice->bias_alignment &&
           alignment_of(o->aux) >= choice->aux_alignment;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
    struct product p = {.operation = *(struct operation *)operation,
                        .a_layout = *(struct layout *)a_layout,
                        .b_layout = *(struct layout *)b_layout,
                        .c_layout = *(struct layout *)c_layout,
                        .alpha = *(const float *)alpha,
                        .beta = *(const float *)beta,
                        .a = a,
                        .b = b,
                        .c = c,
                        .d = d};
    struct choice choice;
    memcpy(&choice, algorithm, sizeof choice);
    bool same = is_for(&choice, &p.operation, p.a_layout, p.c_layout);
    bool room = workspace_bytes >= choice.workspace && (uintptr_t)workspace % 256 == 0 &&
                reaches(workspace, workspace_bytes / 2, CUDA_R_16BF);
    if (!same || !aligned(&p, &choice) || d_layout != c_layout || !room) return CUBLAS_STATUS_INVALID_VALUE;
    if (!reaches_all(&p)) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!fits(&p.operation, p.a_layout, p.b_layout, p.c_layout) ||
        !allowed(&p.operation, p.a_layout, p.c_layout))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    bool rounds_again = p.c == p.d && p.beta != 0 && p.c_layout.type != CUDA_R_32F;
    ((__typeof__(fake_cuda_count_product) *)of_driver("fake_cuda_count_product"))(rounds_again);
    __typeof__(fake_cuda_enqueue) *enqueue = (__typeof__(fake_cuda_enqueue) *)of_driver("fake_cuda_enqueue");
    CUresult result = enqueue((CUstream)stream, NULL, run, &p, sizeof p);
    return result == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
