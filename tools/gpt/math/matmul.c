/* dnnl_sgemm is row-major. A failure is remembered rather than returned, because products run inside parallel tasks. */
#include "tools/gpt/math/matmul.h"

#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stddef.h>

/* oneDNN's engine and stream hold no state of a product. All threads share one of each until the process ends. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static dnnl_engine_t engine;
static dnnl_stream_t stream;

static void open_engine(void) {
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) == dnnl_success)
        dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
}

/* On other processors these bits mean other instruction sets, and oneDNN 2.6 multiplies bf16 on none of them. */
bool matmul_has_bf16(void) {
#if defined(__x86_64__)
    int isa = dnnl_get_effective_cpu_isa();
    return (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
#else
    return false;
#endif
}

/* oneDNN 2 and 3 differ in what follows alone: 3 makes descriptors, where 2 filled structs of the caller. */
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t description;
typedef const_dnnl_memory_desc_t described;
static described of(const description *desc) { return *desc; }
static dnnl_status_t make(description *out, dnnl_dims_t dims, dnnl_data_type_t type, dnnl_dims_t strides) {
    return dnnl_memory_desc_create_with_strides(out, 2, dims, type, strides);
}
static void forget(description *desc) {
    if (*desc) dnnl_memory_desc_destroy(*desc);
}
static dnnl_status_t append_sum(dnnl_post_ops_t operations) {
    return dnnl_post_ops_append_sum(operations, 1, 0, dnnl_data_type_undef);
}
static dnnl_status_t plan(dnnl_primitive_desc_t *out, const description desc[3],
                          dnnl_primitive_attr_t attributes) {
    return dnnl_matmul_primitive_desc_create(out, engine, desc[0], desc[1], NULL, desc[2], attributes);
}
#else
typedef dnnl_memory_desc_t description;
typedef const dnnl_memory_desc_t *described;
static described of(const description *desc) { return desc; }
static dnnl_status_t make(description *out, dnnl_dims_t dims, dnnl_data_type_t type, dnnl_dims_t strides) {
    return dnnl_memory_desc_init_by_strides(out, 2, dims, type, strides);
}
static void forget(description *desc) { (void)desc; }
static dnnl_status_t append_sum(dnnl_post_ops_t operations) {
    return dnnl_post_ops_append_sum(operations, 1);
}
static dnnl_status_t plan(dnnl_primitive_desc_t *out, const description desc[3],
                          dnnl_primitive_attr_t attributes) {
    dnnl_matmul_desc_t matmul;
    dnnl_status_t status = dnnl_matmul_desc_init(&matmul, &desc[0], &desc[1], NULL, &desc[2]);
    return status ? status : dnnl_primitive_desc_create(out, &matmul, attributes, engine, NULL);
}
#endif

/* Describes a matrix of rows x columns as the product uses it. */
static dnnl_status_t describe(description *out, uint32_t rows, uint32_t columns, dnnl_data_type_t type,
                              uint64_t ld, enum transpose form) {
    dnnl_dims_t dims = {rows, columns}, strides = {(dnnl_dim_t)ld, 1};
    if (form == TRANSPOSED) strides[0] = 1, strides[1] = (dnnl_dim_t)ld;
    return make(out, dims, type, strides);
}

static dnnl_status_t create_attributes(bool add, dnnl_primitive_attr_t *out) {
    dnnl_status_t status = dnnl_primitive_attr_create(out);
    if (status != dnnl_success || !add) return status;
    dnnl_post_ops_t sum = NULL;
    status = dnnl_post_ops_create(&sum);
    if (status == dnnl_success) status = append_sum(sum);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(*out, sum);
    dnnl_post_ops_destroy(sum);
    return status;
}

/* oneDNN caches the primitives of shapes it has seen; making a cached one takes 15 us. */
static dnnl_status_t create_primitive(const description desc[3], bool add, dnnl_primitive_t *out) {
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t primitive = NULL;
    dnnl_status_t status = create_attributes(add, &attributes);
    if (status == dnnl_success) status = plan(&primitive, desc, attributes);
    if (status == dnnl_success) status = dnnl_primitive_create(out, primitive);
    if (primitive) dnnl_primitive_desc_destroy(primitive);
    if (attributes) dnnl_primitive_attr_destroy(attributes);
    return status;
}

static dnnl_status_t execute(dnnl_primitive_t primitive, const description desc[3], void *const data[3]) {
    static const int names[3] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    dnnl_exec_arg_t argument[3] = {{0, NULL}, {0, NULL}, {0, NULL}};
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < 3 && status == dnnl_success; i++) {
        argument[i].arg = names[i];
        status = dnnl_memory_create(&argument[i].memory, of(&desc[i]), engine, data[i]);
    }
    if (status == dnnl_success) status = dnnl_primitive_execute(primitive, stream, 3, argument);
    for (int i = 0; i < 3; i++)
        if (argument[i].memory) dnnl_memory_destroy(argument[i].memory);
    return status;
}

static dnnl_status_t multiply_bf16(uint32_t m, uint32_t n, uint32_t k, struct matrix a, struct matrix b,
                                   bool add, float *c, uint64_t ldc) {
    description desc[3] = {0};
    dnnl_primitive_t primitive = NULL;
    pthread_once(&once, open_engine);
    if (!stream) return dnnl_out_of_memory;
    dnnl_status_t status = describe(&desc[0], m, k, dnnl_bf16, a.ld, a.form);
    if (status == dnnl_success) status = describe(&desc[1], k, n, dnnl_bf16, b.ld, b.form);
    if (status == dnnl_success) status = describe(&desc[2], m, n, dnnl_f32, ldc, PLAIN);
    if (status == dnnl_success) status = create_primitive(desc, add, &primitive);
    if (status == dnnl_success)
        status = execute(primitive, desc, (void *const[3]){(void *)a.data, (void *)b.data, c});
    if (primitive) dnnl_primitive_destroy(primitive);
    for (int i = 0; i < 3; i++) forget(&desc[i]);
    return status;
}

void matmul(atomic_int *failed, uint32_t m, uint32_t n, uint32_t k, float alpha, struct matrix a,
            struct matrix b, float beta, float *c, uint64_t ldc) {
    dnnl_status_t status =
        a.bf16 ? multiply_bf16(m, n, k, a, b, beta != 0, c, ldc)
               : dnnl_sgemm((char)a.form, (char)b.form, m, n, k, alpha, a.data, (dnnl_dim_t)a.ld, b.data,
                            (dnnl_dim_t)b.ld, beta, c, (dnnl_dim_t)ldc);
    if (status != dnnl_success) atomic_store(failed, 1);
}
