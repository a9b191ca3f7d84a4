#ifndef ZERO_ENGINE_ZERO_H
#define ZERO_ENGINE_ZERO_H 
#include <stddef.h>
#include <stdint.h>
#ifndef ZERO_ENGINE_BASE_LOG_LEVEL_H
#define ZERO_ENGINE_BASE_LOG_LEVEL_H 
#ifdef __cplusplus
extern "C" {
#endif
typedef enum zero_log_level { ZERO_LOG_DEBUG, ZERO_LOG_INFO, ZERO_LOG_WARN, ZERO_LOG_ERROR } zero_log_level;
typedef void (*zero_log_fn)(void *user, zero_log_level level, const char *line);
#ifdef __cplusplus
}
#endif
#endif
#ifndef ZERO_ENGINE_BASE_STATUS_H
#define ZERO_ENGINE_BASE_STATUS_H 
#ifdef __cplusplus
extern "C" {
#endif
#define ZERO_STATUS_LIST(X) \
    X(ZERO_OK, 0, "success") \
    X(ZERO_E_ARGUMENT, 1, "an argument is invalid") \
    X(ZERO_E_CONFIG, 2, "the configuration is invalid") \
    X(ZERO_E_ORDER, 3, "a call came out of order") \
    X(ZERO_E_MEMORY, 4, "the system refused memory") \
    X(ZERO_E_BUDGET, 5, "the plan does not fit a memory budget") \
    X(ZERO_E_IO, 6, "a file or drive failed") \
    X(ZERO_E_PEER, 7, "another rank failed or is silent") \
    X(ZERO_E_DIVERGED, 8, "ranks did different things") \
    X(ZERO_E_UNSUPPORTED, 9, "not supported here") \
    X(ZERO_E_INTERRUPTED, 10, "interrupted") \
    X(ZERO_E_INTERNAL, 11, "an invariant of the engine broke") \
    X(ZERO_E_OVERFLOW, 12, "gradients overflow")
typedef enum zero_status {
#define ZERO_STATUS_ENUM(name,code,meaning) name = code,
    ZERO_STATUS_LIST(ZERO_STATUS_ENUM)
#undef ZERO_STATUS_ENUM
} zero_status;
const char *zero_status_name(zero_status status);
const char *zero_status_meaning(zero_status status);
#ifdef __cplusplus
}
#endif
#endif
#define ZERO_VERSION_MAJOR 0
#define ZERO_VERSION_MINOR 1
#define ZERO_VERSION_PATCH 0
#define ZERO_ABI_VERSION 0
#ifdef __cplusplus
extern "C" {
#endif
typedef struct zero_engine zero_engine;
typedef struct zero_unit zero_unit;
typedef struct zero_handle zero_handle;
typedef struct zero_local zero_local;
typedef enum zero_mode { ZERO_TRAIN, ZERO_EVAL } zero_mode;
typedef enum zero_tier { ZERO_DEVICE, ZERO_CPU, ZERO_NVME } zero_tier;
typedef enum zero_kind {
    ZERO_PARAM,
    ZERO_GRAD,
    ZERO_STATE0,
    ZERO_STATE1
} zero_kind;
enum { ZERO_TIERS = 3, ZERO_DIMS_MAX = 8, ZERO_GROUPS_MAX = 8 };
typedef struct zero_runtime {
    size_t struct_size;
    zero_local *local;
    uint32_t local_rank;
    void *mpi_comm;
    uint32_t threads;
    zero_log_fn log;
    void *log_user;
    const char *model;
    uint64_t total_steps;
    uint32_t plan_ranks;
    uint32_t plan_node_ranks;
    int plan_processes;
    int cuda;
    void *cuda_stream;
    void *device;
    int discard_shadow;
    int (*interrupted)(void *user);
    void *interrupted_user;
    uint32_t rank, size;
    const char *address;
    uint32_t port;
    int cuda_default_stream;
    const char *secret;
} zero_runtime;
zero_engine *zero_engine_init(const char *json);
zero_engine *zero_engine_init_with(const char *json, const zero_runtime *runtime);
void zero_engine_destroy(zero_engine *engine);
zero_status zero_engine_open(const char *json, const zero_runtime *runtime, zero_engine **out);
const char *zero_last_error(void);
typedef struct zero_failure {
    size_t struct_size;
    zero_status code;
    int32_t rank;
    uint64_t step;
    const char *call;
    const char *unit;
    const char *sentence;
} zero_failure;
zero_status zero_last_failure(zero_failure *out);
zero_local *zero_local_create(uint32_t ranks);
void zero_local_destroy(zero_local *local);
const char *zero_version(void);
int zero_abi_version(void);
uint32_t zero_engine_rank(const zero_engine *engine);
uint32_t zero_engine_size(const zero_engine *engine);
uint32_t zero_engine_threads(const zero_engine *engine);
uint64_t zero_engine_micro_batch(const zero_engine *engine);
uint64_t zero_engine_accumulation_steps(const zero_engine *engine);
uint64_t zero_engine_use_micros(const zero_engine *engine);
uint64_t zero_engine_train_batch(const zero_engine *engine);
uint64_t zero_engine_seed(const zero_engine *engine);
double zero_engine_clipping(const zero_engine *engine);
const char *zero_engine_setting(const zero_engine *engine, const char *key);
typedef enum zero_dtype { ZERO_F32, ZERO_BF16, ZERO_F16 } zero_dtype;
zero_dtype zero_engine_dtype(const zero_engine *engine);
int zero_engine_cuda(const zero_engine *engine, void **out_stream);
typedef struct zero_slot {
    void *param;
    void *grad;
    int add;
} zero_slot;
enum {
    ZERO_FROZEN = 1,
    ZERO_NO_DECAY = 2,
    ZERO_ADDS_GRAD = 4,
    ZERO_KEEP_FP32 = 8
};
typedef struct zero_span {
    void *param, *grad;
    uint64_t count;
} zero_span;
typedef struct zero_param {
    size_t struct_size;
    const char *name;
    uint32_t dims;
    uint32_t flags;
    const char *tied_to;
    zero_slot *slot;
    const zero_span *spans;
    uint32_t span_count;
    uint32_t group;
    void *user;
    uint64_t shape[ZERO_DIMS_MAX];
    const float *values;
    void **param_pointer, **grad_pointer;
    uint64_t pointer_offset;
    const char *tensor;
} zero_param;
typedef struct zero_group {
    size_t struct_size;
    double lr, weight_decay;
} zero_group;
zero_status zero_engine_add_group(zero_engine *engine, const zero_group *group, int *out);
zero_status zero_engine_add_unit(zero_engine *engine, const char *name, zero_unit **out);
zero_status zero_unit_add_param(zero_unit *unit, const zero_param *param);
zero_handle *zero_unit_param(const zero_unit *unit, uint32_t index);
zero_handle *zero_engine_param(const zero_engine *engine, const char *name);
const char *zero_param_name(const zero_handle *param);
uint64_t zero_param_count(const zero_handle *param);
zero_dtype zero_param_dtype(const zero_handle *param);
zero_status zero_engine_free_order(zero_engine *engine);
zero_status zero_engine_free_order_within(zero_engine *engine, uint32_t units);
zero_status zero_unit_hold(zero_unit *unit);
int zero_unit_trains(const zero_unit *unit);
zero_status zero_param_addresses(const zero_handle *param, zero_slot *out);
typedef struct zero_optimizer_params {
    size_t struct_size;
    double lr, beta1, beta2, eps, weight_decay, momentum, dampening;
} zero_optimizer_params;
enum { ZERO_STATES_MAX = 2, ZERO_SCALARS_MAX = 16 };
typedef struct zero_optimizer {
    size_t struct_size;
    const char *name;
    uint32_t states;
    int rounds_states;
    void (*prepare)(void *user, const zero_optimizer_params *params, uint64_t step,
                    float scalars[ZERO_SCALARS_MAX]);
    void (*update)(void *user, float *weight, float *state0, float *state1, const float *gradient,
                   float gradient_scale, const float *scalars, uint64_t count);
    void *user;
    const char *state_names[ZERO_STATES_MAX];
} zero_optimizer;
zero_status zero_engine_set_optimizer(zero_engine *engine, const zero_optimizer *optimizer);
zero_status zero_engine_add_segment(zero_unit *first, zero_unit *last);
zero_status zero_engine_reserve(zero_engine *engine, zero_tier tier, uint64_t bytes, const char *name);
typedef struct zero_scratch zero_scratch;
typedef struct zero_scratch_needs {
    size_t struct_size;
    const char *name;
    uint64_t place_bytes;
    uint64_t places;
    uint64_t step_stores, step_fetches;
} zero_scratch_needs;
zero_status zero_engine_add_scratch(zero_engine *engine, const zero_scratch_needs *needs, zero_scratch **out);
zero_status zero_scratch_store(zero_scratch *scratch, uint64_t place, const void *memory);
zero_status zero_scratch_fetch(zero_scratch *scratch, uint64_t place, void *memory);
zero_status zero_scratch_wait(zero_scratch *scratch, uint64_t place);
zero_status zero_engine_trace(zero_engine *engine, uint64_t first_step, uint64_t steps);
typedef struct zero_plan {
    size_t struct_size;
    uint64_t params;
    uint64_t params_padded;
    uint64_t param_bytes, grad_bytes, state_bytes;
    uint64_t gathered_bytes;
    uint64_t lasting_bytes;
    uint64_t staging_bytes;
    uint64_t reserved_bytes;
    uint64_t resident_state_bytes;
    uint64_t drive_read_bytes, drive_write_bytes;
    double drive_life_steps;
    uint64_t master_bytes;
    uint64_t bytes[ZERO_TIERS];
} zero_plan;
zero_status zero_engine_commit(zero_engine *engine, zero_plan *out);
zero_status zero_engine_plan(zero_engine *engine, zero_plan *out);
typedef struct zero_memory_row {
    size_t struct_size;
    zero_tier tier;
    const char *name;
    uint64_t planned, measured;
} zero_memory_row;
zero_status zero_engine_memory(const zero_engine *engine, uint32_t index, zero_memory_row *out);
typedef struct zero_memory_owner {
    size_t struct_size;
    zero_tier tier;
    const char *unit;
    const char *what;
    uint64_t bytes;
} zero_memory_owner;
zero_status zero_engine_memory_owner(const zero_engine *engine, uint32_t index, zero_memory_owner *out);
typedef void (*zero_fill_fn)(void *user, const char *param, uint64_t first, uint64_t count, float *out);
zero_status zero_engine_fill(zero_engine *engine, zero_fill_fn fill, void *user);
typedef enum zero_shadow {
    ZERO_SHADOW_NONE,
    ZERO_SHADOW_USABLE,
    ZERO_SHADOW_OTHER,
    ZERO_SHADOW_OTHER_RANKS,
    ZERO_SHADOW_DAMAGED
} zero_shadow;
zero_shadow zero_engine_shadow(const zero_engine *engine, uint64_t *out_step);
const char *zero_engine_shadow_text(const zero_engine *engine);
const char *zero_engine_shadow_note(const zero_engine *engine, const char *key);
zero_status zero_engine_discard_shadow(zero_engine *engine);
zero_status zero_engine_recover(zero_engine *engine, zero_fill_fn fill, void *user, uint64_t *out_step);
zero_status zero_micro_begin(zero_engine *engine, zero_mode mode);
zero_status zero_micro_resume(zero_engine *engine);
zero_status zero_micro_cancel(zero_engine *engine);
zero_status zero_forward_begin(zero_unit *unit);
zero_status zero_forward_end(zero_unit *unit);
zero_status zero_backward_begin(zero_unit *unit);
zero_status zero_backward_end(zero_unit *unit);
zero_status zero_unit_next_micro(zero_unit *unit);
zero_status zero_param_give_grad(zero_handle *param, const void *grad);
zero_status zero_unit_give_grads(zero_unit *unit, const void *const *grads);
typedef struct zero_step_info {
    size_t struct_size;
    uint64_t step;
    double grad_norm;
    double lr;
    int skipped;
    uint64_t skipped_total;
    double loss_scale;
    uint32_t groups;
    double beta1;
    const char *overflow_unit;
    double group_lr[ZERO_GROUPS_MAX];
} zero_step_info;
zero_status zero_engine_step(zero_engine *engine, zero_step_info *out);
zero_status zero_engine_flush(zero_engine *engine);
float zero_engine_loss_scale(const zero_engine *engine);
zero_status zero_engine_set_lr(zero_engine *engine, int group, double lr);
typedef struct zero_setting {
    size_t struct_size;
    double lr, beta1, beta2;
} zero_setting;
typedef void (*zero_schedule_fn)(void *user, uint64_t step, int group, zero_setting *setting);
zero_status zero_engine_set_schedule(zero_engine *engine, zero_schedule_fn schedule, void *user);
zero_status zero_engine_get(zero_engine *engine, const char *param, zero_kind kind, float *out,
                            uint64_t first, uint64_t count);
zero_status zero_engine_put(zero_engine *engine, const char *param, zero_kind kind, const float *in,
                            uint64_t first, uint64_t count);
zero_status zero_param_get(const zero_handle *param, zero_kind kind, float *out, uint64_t first,
                           uint64_t count);
zero_status zero_param_put(zero_handle *param, zero_kind kind, const float *in, uint64_t first,
                           uint64_t count);
zero_status zero_param_owned(const zero_handle *param, zero_kind kind, uint64_t *out_first,
                             uint64_t *out_count);
zero_status zero_param_get_owned(const zero_handle *param, zero_kind kind, float *out, uint64_t first,
                                 uint64_t count);
zero_status zero_param_put_owned(zero_handle *param, zero_kind kind, const float *in, uint64_t first,
                                 uint64_t count);
zero_status zero_engine_written(zero_engine *engine);
zero_status zero_engine_hash(zero_engine *engine, char out[33]);
zero_status zero_engine_sum(zero_engine *engine, double *values, uint32_t count);
zero_status zero_engine_save(zero_engine *engine, const char *dir);
zero_status zero_engine_save_wait(zero_engine *engine);
zero_status zero_engine_load(zero_engine *engine, const char *dir);
zero_status zero_engine_load_weights(zero_engine *engine, const char *dir);
zero_status zero_engine_prune(zero_engine *engine, const char *dir, uint64_t keep);
zero_status zero_engine_set_note(zero_engine *engine, const char *key, const char *value);
const char *zero_engine_note(const zero_engine *engine, const char *key);
uint64_t zero_engine_steps(const zero_engine *engine);
typedef struct zero_counters {
    size_t struct_size;
    uint64_t gather_calls, gather_elements;
    uint64_t reduce_calls, reduce_elements;
    uint64_t wire_bytes;
    uint64_t control_messages, control_bytes;
    double compute_s;
    double wait_s;
    double update_s;
    uint64_t drive_read_bytes, drive_write_bytes;
} zero_counters;
zero_status zero_engine_counters(const zero_engine *engine, zero_counters *out);
zero_status zero_engine_write_trace(zero_engine *engine, const char *path);
#ifdef __cplusplus
}
#endif
#endif
