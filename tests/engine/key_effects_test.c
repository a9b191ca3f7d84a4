/* Every used key of the configuration does something in a training: one row per key with two values and what
 * must then differ. A used key without a row fails. The rows of keys that only the `zero` command reads are
 * in tests/tools/command/key_effects_test.sh. */
#include <pthread.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/hash.h"
#include "engine/config/key.h"
#include "tests/check.h"
#include "tests/engine/toy_trainer.h"

struct row {
    const char *path;
    void (*check)(const struct row *row);
    const char *with; /* members of both configurations, ' for " */
    const char *one, *other;
};

static struct toy_result one, other;
static uint32_t nan_every; /* steps */
static zero_status (*between)(zero_engine *engine, uint32_t steps, void *user);
static void *between_user;

/* ---- training with a row's values ---- */

static void compose(const struct row *row, const char *value, char *out, size_t capacity) {
    snprintf(out, capacity, "{'train_micro_batch_size_per_gpu': 3%s%s, %s}", row->with ? ", " : "",
             row->with ? row->with : "", value);
    for (char *c = out; *c; c++)
        if (*c == '\'') *c = '"';
}

static void train(const struct row *row, const char *value, uint32_t ranks, uint32_t micro_steps,
                  struct toy_result *out) {
    char json[1024];
    struct toy_setup s = toy_setup_default();
    compose(row, value, json, sizeof json);
    s.steps = 6;
    s.nvme_bytes = 8192;
    s.ranks = ranks;
    s.micro_steps = micro_steps;
    s.nan_every = nan_every;
    s.between = between, s.user = between_user;
    s.config = json;
    toy_train(&s, out);
}

static void train_both(const struct row *row) {
    train(row, row->one, 2, 1, &one);
    train(row, row->other, 2, 1, &other);
    CHECK_STRING(one.error, "");
}

static void differ(const struct row *row, const char *what, uint64_t a, uint64_t b) {
    CHECK_STRING(other.error, "");
    if (!CHECK(a != b))
        fprintf(stderr, "%s: %s is %" PRIu64 " with %s and with %s\n", row->path, what, a, row->one,
                row->other);
}

/* ---- what differs ---- */

static void weights(const struct row *row) {
    train_both(row);
    CHECK_STRING(other.error, "");
    if (!CHECK(strcmp(one.hash, other.hash) != 0))
        fprintf(stderr, "%s: the weights are the same with %s and with %s\n", row->path, row->one,
                row->other);
}

static void same_weights(const struct row *row) {
    if (!CHECK_STRING(other.hash, one.hash)) fprintf(stderr, "%s\n", row->path);
}

static void gathers(const struct row *row) {
    train_both(row);
    differ(row, "gather_calls", one.last.gather_calls, other.last.gather_calls);
    same_weights(row);
}

static void reduces(const struct row *row) {
    train(row, row->one, 2, 3, &one);
    train(row, row->other, 2, 3, &other);
    differ(row, "reduce_calls", one.last.reduce_calls, other.last.reduce_calls);
}

static void state_bytes(const struct row *row) {
    train_both(row);
    differ(row, "state_bytes", one.plan.state_bytes, other.plan.state_bytes);
    differ(row, "param_bytes", one.plan.param_bytes, other.plan.param_bytes);
    same_weights(row);
}

/* After six steps, of every parameter that is trained. */
static zero_status keep_averages(zero_engine *engine, uint32_t steps, void *user) {
    float got[TOY_VOCAB * TOY_WIDTH];
    uint64_t *hash = user;
    for (uint32_t i = 0; i < TOY_PARAMS && steps == 6; i++) {
        const struct toy_param *p = &toy_params[i];
        uint64_t count = p->rows * p->columns;
        if (p->tied_to || p->flags & ZERO_FROZEN) continue;
        zero_status status = zero_engine_get(engine, p->name, ZERO_EMA, got, 0, count);
        if (status) return status;
        if (zero_engine_rank(engine) == 0) *hash = hash_bytes(*hash, got, count * sizeof *got);
    }
    return ZERO_OK;
}

static void averages(const struct row *row) {
    uint64_t hash[2] = {HASH_START, HASH_START};
    between = keep_averages;
    between_user = &hash[0], train(row, row->one, 2, 1, &one);
    between_user = &hash[1], train(row, row->other, 2, 1, &other);
    between = NULL;
    CHECK_STRING(one.error, "");
    differ(row, "the averages' hash", hash[0], hash[1]);
    same_weights(row);
}

static void cpu_bytes(const struct row *row) {
    train_both(row);
    differ(row, "bytes of the cpu", one.plan.bytes[ZERO_CPU], other.plan.bytes[ZERO_CPU]);
    CHECK(other.plan.bytes[ZERO_CPU] >= other.plan.state_bytes);
    same_weights(row);
}

/* Half of the state, as far as whole regions add up to it. */
static void half_on_device(const struct row *row) {
    train_both(row);
    differ(row, "bytes of the device", one.plan.bytes[ZERO_DEVICE], other.plan.bytes[ZERO_DEVICE]);
    CHECK(other.plan.bytes[ZERO_CPU] && other.plan.bytes[ZERO_CPU] <= one.plan.bytes[ZERO_CPU]);
    same_weights(row);
}

static void staging_bytes(const struct row *row) {
    train_both(row);
    differ(row, "staging_bytes", one.plan.staging_bytes, other.plan.staging_bytes);
    same_weights(row);
}

static void param_tier(const struct row *row) {
    train_both(row);
    differ(row, "bytes of the cpu", one.plan.bytes[ZERO_CPU], other.plan.bytes[ZERO_CPU]);
    CHECK(other.plan.bytes[ZERO_CPU] + other.plan.bytes[ZERO_DEVICE] >= other.plan.param_bytes);
    same_weights(row);
}

static void grad_tier(const struct row *row) {
    train_both(row);
    uint64_t one_memory = one.plan.bytes[ZERO_CPU] + one.plan.bytes[ZERO_DEVICE],
             other_memory = other.plan.bytes[ZERO_CPU] + other.plan.bytes[ZERO_DEVICE];
    differ(row, "bytes of the drive", one.plan.bytes[ZERO_NVME], other.plan.bytes[ZERO_NVME]);
    differ(row, "bytes in memory", one_memory, other_memory);
    same_weights(row);
}

/* A directory that cannot be made is named. */
static void opens_path(const struct row *row) {
    train_both(row);
    CHECK_INT(other.status, ZERO_E_IO);
    CHECK_CONTAINS(other.error, "/proc/nowhere");
}

static void gathered_bytes(const struct row *row) {
    train_both(row);
    differ(row, "gathered_bytes", one.plan.gathered_bytes, other.plan.gathered_bytes);
    same_weights(row);
}

/* Of four ranks, in groups of two. */
static void second_shard(const struct row *row) {
    train(row, row->one, 4, 1, &one);
    train(row, row->other, 4, 1, &other);
    CHECK_STRING(one.error, "");
    differ(row, "param_bytes", one.plan.param_bytes, other.plan.param_bytes);
    same_weights(row);
}

static void threads(const struct row *row) {
    train_both(row);
    CHECK_INT(one.threads, 1);
    CHECK_INT(other.threads, 3);
    same_weights(row);
}

static void refused(const struct row *row, zero_status status, const char *part) {
    train(row, row->one, 1, 1, &one); /* one rank: of two, one may only hear of the other's refusal */
    train(row, row->other, 1, 1, &other);
    CHECK_STRING(one.error, "");
    if (!CHECK_INT(other.status, status)) fprintf(stderr, "%s\n", row->path);
    CHECK_CONTAINS(other.error, part);
}

/* The loss scale that the steps were made with. */
static void loss_scales(const struct row *row) {
    train_both(row);
    CHECK_STRING(other.error, "");
    if (!CHECK(memcmp(one.scale, other.scale, sizeof one.scale) != 0))
        fprintf(stderr, "%s: the loss scales are the same\n", row->path);
}

/* Every second step has a NaN. */
static void loss_scales_of_nans(const struct row *row) {
    nan_every = 2;
    loss_scales(row);
    nan_every = 0;
}

/* Every step has a NaN: the limit ends the training. */
static void ends_at_the_limit(const struct row *row) {
    nan_every = 1;
    train_both(row);
    nan_every = 0;
    CHECK_INT(one.skipped, 6);
    CHECK(other.status == ZERO_E_OVERFLOW ||
          other.status == ZERO_E_PEER); /* found by this rank, or by another */
    CHECK_CONTAINS(other.error, row->path);
}

static void other_sum(const struct row *row) {
    train(row, row->one, 1, 2, &one);
    train(row, row->other, 1, 2, &other);
    CHECK_STRING(one.error, "");
    CHECK_INT(other.status, ZERO_E_CONFIG);
    CHECK_CONTAINS(other.error, row->path);
}

/* The ranks say hashes to each other. */
static void control_messages(const struct row *row) {
    train_both(row);
    differ(row, "control_messages", one.last.control_messages, other.last.control_messages);
    same_weights(row);
}

static void too_few_micro_steps(const struct row *row) { refused(row, ZERO_E_ORDER, "micro-step"); }
/* The toy's head is tied: vertical order sums its gradient in another order. */
static void tied_sums(const struct row *row) {
    train(row, row->one, 2, 3, &one);
    train(row, row->other, 2, 3, &other);
    CHECK_STRING(one.error, "");
    CHECK_STRING(other.error, "");
    CHECK(strcmp(one.hash, other.hash) != 0);
}
static void over_budget(const struct row *row) { refused(row, ZERO_E_BUDGET, row->path); }
/* Keys that say what there is only one of, so far. */
static void one_value(const struct row *row) { refused(row, ZERO_E_CONFIG, row->path); }

/* ---- a rank whose thread has ended ends the others, not before the time is over ---- */

struct absence {
    zero_local *local;
    const char *json;
    zero_engine *engine;
};

static zero_engine *open_rank(const struct absence *a, uint32_t rank) {
    zero_runtime runtime = {.struct_size = sizeof runtime, .local = a->local, .local_rank = rank};
    return zero_engine_init_with(a->json, &runtime);
}

static void *stay_away(void *argument) {
    struct absence *a = argument;
    a->engine = open_rank(a, 1);
    return NULL;
}

static double wait_in_vain(const struct row *row, const char *value) {
    char json[1024];
    compose(row, value, json, sizeof json);
    struct absence a = {.local = zero_local_create(2), .json = json};
    struct toy_setup setup = toy_setup_default();
    pthread_t away;
    pthread_create(&away, NULL, stay_away, &a);
    zero_engine *engine = open_rank(&a, 0);
    pthread_join(away, NULL);
    uint64_t began = clock_now_ns();
    if (CHECK(engine != NULL)) toy_train_rank(engine, &setup, &one);
    double seconds = (double)(clock_now_ns() - began) * 1e-9;
    CHECK_INT(one.status, ZERO_E_PEER);
    CHECK_CONTAINS(one.error, "rank 1");
    zero_engine_destroy(engine);
    zero_engine_destroy(a.engine);
    zero_local_destroy(a.local);
    return seconds;
}

static double timeout_of(const char *value) { return atof(strchr(value, ':') + 1); }

static void waits_for_silence(const struct row *row) {
    const char *const values[] = {row->one, row->other};
    for (int i = 0; i < 2; i++) {
        double seconds = wait_in_vain(row, values[i]);
        CHECK(seconds >= timeout_of(values[i]));
        CHECK(seconds < 60); /* the default */
    }
}

#define ZERO3 "'zero_optimization': {'stage': 3, 'stage3_param_persistence_threshold': 0}"
#define OPTIMIZER(type, params) "'optimizer': {'type': '" type "', 'params': {" params "}}"
#define ADAMW(params) OPTIMIZER("AdamW", params)
#define MUON(params)                                                                                         \
    OPTIMIZER("Muon", params) ", 'param_groups': [{'match': ['*.b', '*.g', 'out.c'], 'optimizer': 'AdamW'}]"
#define SGD(params) OPTIMIZER("SGD", "'lr': 0.01, 'momentum': 0.9, " params)
#define ON_NVME(more)                                                                                        \
    "'zero_optimization': {'offload_optimizer': {'device': 'nvme', 'nvme_path': '/tmp'" more "}}"
#define PARAMS(members)                                                                                      \
    "'zero_optimization': {'stage': 3, 'stage3_param_persistence_threshold': 0" members "}"
#define BF16 "'bf16': {'enabled': true}"
#define FP16(values) "'fp16': {'enabled': true, " values "}"
#define ON_CPU "'zero_optimization': {'offload_optimizer': {'device': 'cpu'}}"

#define SCHEDULE(type, params) "'scheduler': {'type': '" type "', 'params': {" params "}}"
#define DECAY(params) SCHEDULE("WarmupDecayLR", "'total_num_steps': 8, 'warmup_num_steps': 4, " params)
#define COSINE(params) SCHEDULE("WarmupCosineLR", "'total_num_steps': 8, 'warmup_num_steps': 3, " params)
#define RANGE(params) SCHEDULE("LRRangeTest", params)
#define CYCLE(params)                                                                                        \
    SCHEDULE("OneCycle", "'cycle_min_lr': 1e-3, 'cycle_max_lr': 1e-2, 'cycle_first_step_size': 2, " params)
#define DECAYING(params) CYCLE("'decay_step_size': 1, " params)

#define BEGINNING(key, type, params, one, two)                                                               \
    {                                                                                                        \
        "scheduler.params." key, weights, NULL, SCHEDULE(type, params "'" key "': " one),                    \
            SCHEDULE(type, params "'" key "': " two)                                                         \
    }
#define CYCLIC(key, params, one, two)                                                                        \
    BEGINNING(key, "CyclicLR", "'base_lr': 1e-3, 'max_lr': 1e-2, 'step_size_up': 2, " params, one, two)
#define ONE_CYCLE(key, params, one, two)                                                                     \
    BEGINNING(key, "OneCycleLR", "'max_lr': 1e-2, 'total_steps': 8, " params, one, two)

static void less_gradient(const struct row *row) {
    train_both(row);
    CHECK_STRING(other.error, "");
    CHECK_STRING(other.hash, one.hash);
    CHECK(other.plan.grad_bytes < one.plan.grad_bytes);
}

static void less_state(const struct row *row) {
    train_both(row);
    CHECK_STRING(other.error, "");
    CHECK_STRING(other.hash, one.hash);
    CHECK(other.plan.master_bytes > 0);
    CHECK_INT(2 * other.plan.master_bytes, one.plan.master_bytes);
}

static void more_gradient(const struct row *row) {
    train_both(row);
    CHECK_STRING(other.error, "");
    CHECK_STRING(other.hash, one.hash);
    CHECK(other.plan.grad_bytes > one.plan.grad_bytes);
}

static const struct row rows[] = {
    {"gradient_accumulation_steps", too_few_micro_steps, NULL, "'gradient_accumulation_steps': 1",
     "'gradient_accumulation_steps': 2"},
    {"gradient_accumulation_by_program", too_few_micro_steps, "'gradient_accumulation_steps': 2",
     "'gradient_accumulation_by_program': true", "'gradient_accumulation_by_program': false"},
    {"zero_optimization.micro_order", tied_sums, "'gradient_accumulation_steps': 3",
     "'zero_optimization': {'micro_order': 'horizontal'}",
     "'zero_optimization': {'micro_order': 'vertical'}"},
    {"zero_optimization.offload_optimizer.masters", less_state, BF16,
     "'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'cpu', 'masters': 'fp32'}}",
     "'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'cpu', 'masters': 'split'}}"},
    {"zero_optimization.update_in_backward", less_gradient, "'gradient_clipping': 0",
     "'zero_optimization': {'stage': 2}", "'zero_optimization': {'stage': 2, 'update_in_backward': true}"},
    {"zero_optimization.update_in_forward", more_gradient, "'gradient_clipping': 0",
     "'zero_optimization': {'stage': 2, 'update_in_backward': true}",
     "'zero_optimization': {'stage': 2, 'update_in_backward': true, 'update_in_forward': 0.5}"},
    {"gradient_accumulation_mode", reduces, "'gradient_accumulation_steps': 3",
     "'gradient_accumulation_mode': 'last'", "'gradient_accumulation_mode': 'every'"},
    {"prescale_gradients", weights,
     BF16 ", 'gradient_clipping': 0, 'optimizer': {'type': 'SGD', 'params': {'lr': 0.1}}",
     "'prescale_gradients': false, 'gradient_predivide_factor': 3", "'prescale_gradients': true"},
    {"gradient_predivide_factor", weights, BF16, "'gradient_predivide_factor': 1",
     "'gradient_predivide_factor': 3"},
    {"gradient_allreduce_op", weights,
     "'gradient_clipping': 0, 'optimizer': {'type': 'SGD', 'params': {'lr': 0.1}}",
     "'gradient_allreduce_op': 'mean'", "'gradient_allreduce_op': 'sum'"},
    {"gradient_clipping", weights, NULL, "'gradient_clipping': 0.01", "'gradient_clipping': 0"},
    {"optimizer.type", weights, NULL, OPTIMIZER("AdamW", "'lr': 1e-3"), OPTIMIZER("Lion", "'lr': 1e-3")},
    {"optimizer.params.lr", weights, NULL, ADAMW("'lr': 1e-3"), ADAMW("'lr': 2e-3")},
    {"optimizer.params.betas", weights, NULL, ADAMW("'betas': [0.9, 0.99]"), ADAMW("'betas': [0.9, 0.9]")},
    {"optimizer.params.eps", weights, NULL, ADAMW("'eps': 1e-8"), ADAMW("'eps': 1e-3")},
    {"optimizer.params.weight_decay", weights, NULL, ADAMW("'weight_decay': 0"),
     ADAMW("'weight_decay': 0.1")},
    {"optimizer.params.momentum", weights, NULL, OPTIMIZER("SGD", "'lr': 0.01"), SGD("'dampening': 0")},
    {"optimizer.params.dampening", weights, NULL, SGD("'dampening': 0"), SGD("'dampening': 0.5")},
    {"optimizer.params.nesterov", weights, NULL, SGD("'nesterov': false"), SGD("'nesterov': true")},
    {"optimizer.params.lr_decay", weights, NULL, OPTIMIZER("Adagrad", "'lr_decay': 0"),
     OPTIMIZER("Adagrad", "'lr_decay': 0.5")},
    {"optimizer.params.bias_correction", weights, NULL, ADAMW("'bias_correction': true"),
     ADAMW("'bias_correction': false")},
    {"optimizer.params.adam_w_mode", weights, NULL,
     OPTIMIZER("Adam", "'weight_decay': 0.1, 'adam_w_mode': true"),
     OPTIMIZER("Adam", "'weight_decay': 0.1, 'adam_w_mode': false")},
    {"optimizer.params.torch_adam", weights, NULL, ADAMW("'torch_adam': false"), ADAMW("'torch_adam': true")},
    {"optimizer.params.ns_steps", weights, NULL, MUON("'ns_steps': 5"), MUON("'ns_steps': 4")},
    {"optimizer.params.adjust_lr_fn", weights, NULL, MUON("'adjust_lr_fn': 'original'"),
     MUON("'adjust_lr_fn': 'match_rms_adamw'")},
    {"optimizer.params.muon_lr", weights, NULL, MUON("'lr': 0.1"), MUON("'lr': 0.1, 'muon_lr': 0.2")},
    {"optimizer.params.adam_lr", weights, NULL, MUON("'lr': 0.1"), MUON("'lr': 0.1, 'adam_lr': 0.2")},
    {"optimizer.params.ns_dtype", weights, NULL, MUON("'ns_dtype': 'fp32'"), MUON("'ns_dtype': 'bf16'")},
    {"optimizer.params.max_coeff", weights, NULL, OPTIMIZER("Lamb", "'max_coeff': 10"),
     OPTIMIZER("Lamb", "'max_coeff': 0.05")},
    {"optimizer.params.min_coeff", weights, NULL, OPTIMIZER("Lamb", "'min_coeff': 0.01"),
     OPTIMIZER("Lamb", "'min_coeff': 2")},
    {"param_groups", weights, NULL, "'param_groups': [{'match': '*.b', 'lr': 1e-3}]",
     "'param_groups': [{'match': '*.b', 'lr': 2e-3}]"},
    {"scheduler.type", weights, NULL, SCHEDULE("WarmupLR", ""), SCHEDULE("LRRangeTest", "")},
    {"scheduler.params.warmup_min_lr", weights, NULL, DECAY("'warmup_min_lr': 0"),
     DECAY("'warmup_min_lr': [1e-4]")},
    {"scheduler.params.warmup_max_lr", weights, NULL, DECAY("'warmup_max_lr': 1e-3"),
     DECAY("'warmup_max_lr': 2e-3")},
    {"scheduler.params.warmup_num_steps", weights, NULL, SCHEDULE("WarmupLR", "'warmup_num_steps': 3"),
     SCHEDULE("WarmupLR", "'warmup_num_steps': 4")},
    {"scheduler.params.warmup_type", weights, NULL, DECAY("'warmup_type': 'log'"),
     DECAY("'warmup_type': 'linear'")},
    {"scheduler.params.total_num_steps", weights, NULL,
     SCHEDULE("WarmupDecayLR", "'warmup_num_steps': 2, 'total_num_steps': 8"),
     SCHEDULE("WarmupDecayLR", "'warmup_num_steps': 2, 'total_num_steps': 9")},
    {"scheduler.params.warmup_min_ratio", weights, NULL, COSINE("'warmup_min_ratio': 0"),
     COSINE("'warmup_min_ratio': 0.5")},
    {"scheduler.params.cos_min_ratio", weights, NULL, COSINE("'cos_min_ratio': 0"),
     COSINE("'cos_min_ratio': 0.5")},
    {"scheduler.params.last_batch_iteration", weights, NULL, DECAY("'last_batch_iteration': -1"),
     DECAY("'last_batch_iteration': 2")},
    {"scheduler.params.lr_range_test_min_lr", weights, NULL, RANGE("'lr_range_test_min_lr': 1e-3"),
     RANGE("'lr_range_test_min_lr': 2e-3")},
    {"scheduler.params.lr_range_test_step_size", weights, NULL, RANGE("'lr_range_test_step_size': 2"),
     RANGE("'lr_range_test_step_size': 3")},
    {"scheduler.params.lr_range_test_step_rate", weights, NULL, RANGE("'lr_range_test_step_rate': 2"),
     RANGE("'lr_range_test_step_rate': 3")},
    {"scheduler.params.lr_range_test_staircase", weights, NULL,
     RANGE("'lr_range_test_step_size': 2, 'lr_range_test_staircase': false"),
     RANGE("'lr_range_test_step_size': 2, 'lr_range_test_staircase': true")},
    {"scheduler.params.cycle_min_lr", weights, NULL,
     SCHEDULE("OneCycle", "'cycle_max_lr': 1e-2, 'cycle_min_lr': 1e-3"),
     SCHEDULE("OneCycle", "'cycle_max_lr': 1e-2, 'cycle_min_lr': 2e-3")},
    {"scheduler.params.cycle_max_lr", weights, NULL,
     SCHEDULE("OneCycle", "'cycle_min_lr': 1e-3, 'cycle_max_lr': 1e-2"),
     SCHEDULE("OneCycle", "'cycle_min_lr': 1e-3, 'cycle_max_lr': 2e-2")},
    {"scheduler.params.decay_lr_rate", weights, NULL, DECAYING("'decay_lr_rate': 0"),
     DECAYING("'decay_lr_rate': 0.5")},
    {"scheduler.params.cycle_first_step_size", weights, NULL,
     SCHEDULE("OneCycle", "'cycle_min_lr': 1e-3, 'cycle_max_lr': 1e-2, 'cycle_first_step_size': 2"),
     SCHEDULE("OneCycle", "'cycle_min_lr': 1e-3, 'cycle_max_lr': 1e-2, 'cycle_first_step_size': 3")},
    {"scheduler.params.cycle_second_step_size", weights, NULL, CYCLE("'cycle_second_step_size': 2"),
     CYCLE("'cycle_second_step_size': 3")},
    {"scheduler.params.cycle_first_stair_count", weights, NULL, CYCLE("'cycle_first_stair_count': 0"),
     CYCLE("'cycle_first_stair_count': 1")},
    {"scheduler.params.cycle_second_stair_count", weights, NULL, CYCLE("'cycle_second_stair_count': 0"),
     CYCLE("'cycle_second_stair_count': 1")},
    {"scheduler.params.decay_step_size", weights, NULL, CYCLE("'decay_lr_rate': 0.5, 'decay_step_size': 1"),
     CYCLE("'decay_lr_rate': 0.5, 'decay_step_size': 2")},
    {"scheduler.params.cycle_momentum", weights, NULL, CYCLE("'cycle_momentum': true"),
     CYCLE("'cycle_momentum': false")},
    {"scheduler.params.cycle_min_mom", weights, NULL, CYCLE("'cycle_min_mom': 0.8"),
     CYCLE("'cycle_min_mom': 0.7")},
    {"scheduler.params.cycle_max_mom", weights, NULL, CYCLE("'cycle_max_mom': 0.9"),
     CYCLE("'cycle_max_mom': 0.95")},
    {"scheduler.params.decay_mom_rate", weights, NULL, DECAYING("'decay_mom_rate': 0"),
     DECAYING("'decay_mom_rate': -0.1")},
    BEGINNING("step_size", "StepLR", "", "1", "2"),
    BEGINNING("gamma", "StepLR", "'step_size': 1, ", "0.5", "0.25"),
    BEGINNING("milestones", "MultiStepLR", "", "[1]", "[1, 2]"),
    BEGINNING("factor", "ConstantLR", "", "0.5", "0.25"),
    BEGINNING("total_iters", "ConstantLR", "", "1", "2"),
    BEGINNING("start_factor", "LinearLR", "", "0.5", "0.25"),
    BEGINNING("end_factor", "LinearLR", "", "0.5", "0.25"),
    BEGINNING("power", "PolynomialLR", "", "1", "2"),
    BEGINNING("T_max", "CosineAnnealingLR", "", "8", "9"),
    BEGINNING("eta_min", "CosineAnnealingLR", "'T_max': 8, ", "0", "1e-4"),
    BEGINNING("T_0", "CosineAnnealingWarmRestarts", "", "2", "3"),
    BEGINNING("T_mult", "CosineAnnealingWarmRestarts", "'T_0': 1, ", "1", "2"),
    BEGINNING("base_lr", "CyclicLR", "'max_lr': 1e-2, ", "1e-3", "2e-3"),
    BEGINNING("max_lr", "CyclicLR", "'base_lr': 1e-3, ", "1e-2", "2e-2"),
    BEGINNING("step_size_up", "CyclicLR", "'base_lr': 1e-3, 'max_lr': 1e-2, ", "2", "3"),
    CYCLIC("step_size_down", "", "1", "2"),
    CYCLIC("mode", "'step_size_down': 1, 'gamma': 0.5, ", "'triangular'", "'exp_range'"),
    CYCLIC("base_momentum", "", "0.8", "0.7"),
    CYCLIC("max_momentum", "", "0.9", "0.95"),
    BEGINNING("total_steps", "OneCycleLR", "'max_lr': 1e-2, ", "8", "9"),
    ONE_CYCLE("pct_start", "", "0.3", "0.5"),
    ONE_CYCLE("anneal_strategy", "'pct_start': 0.5, ", "'cos'", "'linear'"),
    ONE_CYCLE("div_factor", "", "25", "10"),
    ONE_CYCLE("final_div_factor", "", "1e4", "10"),
    ONE_CYCLE("three_phase", "", "false", "true"),
    BEGINNING("num_warmup_steps", "warmup_stable_decay", "'num_decay_steps': 1, 'num_training_steps': 9, ",
              "0", "2"),
    BEGINNING("num_training_steps", "cosine_with_min_lr", "'min_lr': 0, ", "3", "4"),
    BEGINNING("min_lr", "cosine_with_min_lr", "'num_training_steps': 3, ", "0", "1e-4"),
    BEGINNING("min_lr_rate", "cosine_with_min_lr", "'num_training_steps': 3, ", "0", "0.5"),
    BEGINNING("num_decay_steps", "warmup_stable_decay", "'num_training_steps': 3, ", "1", "3"),
    BEGINNING("num_stable_steps", "warmup_stable_decay", "'num_decay_steps': 1, ", "1", "9"),
    BEGINNING("min_lr_ratio", "warmup_stable_decay", "'num_decay_steps': 1, 'num_stable_steps': 1, ", "0",
              "0.5"),
    BEGINNING("decay_type", "warmup_stable_decay", "'num_decay_steps': 9, 'num_stable_steps': 0, ",
              "'cosine'", "'1-sqrt'"),
    {"communication_data_type", weights, NULL, "'communication_data_type': 'fp32'",
     "'communication_data_type': 'bf16'"},
    {"bf16.enabled", weights, NULL, "'bf16': {'enabled': false}", BF16},
    {"bfloat16.enabled", weights, NULL, "'bfloat16': {'enabled': false}", "'bfloat16': {'enabled': true}"},
    {"torch_autocast.enabled", weights, NULL, "'torch_autocast': {'enabled': false}",
     "'torch_autocast': {'enabled': true}"},
    {"torch_autocast.dtype", weights, NULL, "'torch_autocast': {'enabled': true}",
     "'torch_autocast': {'enabled': true, 'dtype': 'float16'}"},
    {"fp16.enabled", weights, NULL, "'fp16': {'enabled': false}", FP16("'hysteresis': 2")},
    {"fp16.loss_scale", loss_scales, NULL, FP16("'loss_scale': 0"), FP16("'loss_scale': 128")},
    {"fp16.initial_scale_power", loss_scales, NULL, FP16("'initial_scale_power': 4"),
     FP16("'initial_scale_power': 5")},
    {"fp16.loss_scale_window", loss_scales, NULL, FP16("'loss_scale_window': 1"),
     FP16("'loss_scale_window': 9")},
    {"fp16.hysteresis", loss_scales_of_nans, NULL, FP16("'hysteresis': 1"), FP16("'hysteresis': 2")},
    {"fp16.consecutive_hysteresis", loss_scales_of_nans, NULL, FP16("'consecutive_hysteresis': false"),
     FP16("'consecutive_hysteresis': true")},
    {"fp16.min_loss_scale", ends_at_the_limit, NULL, FP16("'hysteresis': 1"),
     FP16("'hysteresis': 1, 'min_loss_scale': 32768")},
    {"max_skipped_steps", ends_at_the_limit, NULL, "'max_skipped_steps': 0", "'max_skipped_steps': 3"},
    {"data_types.grad_accum_dtype", other_sum, "'gradient_accumulation_steps': 2, " BF16,
     "'data_types': {'grad_accum_dtype': 'bf16'}", "'data_types': {'grad_accum_dtype': 'fp16'}"},
    {"zero_optimization.stage", state_bytes, NULL, "'zero_optimization': {'stage': 0}", ZERO3},
    {"zero_optimization.offload_optimizer.device", cpu_bytes, NULL,
     "'zero_optimization': {'offload_optimizer': {'device': 'none'}}", ON_CPU},
    {"zero_optimization.offload_optimizer.nvme_path", opens_path, NULL, ON_NVME(""),
     "'zero_optimization': {'offload_optimizer': {'device': 'nvme', 'nvme_path': '/proc/nowhere'}}"},
    {"zero_optimization.offload_optimizer.buffer_count", staging_bytes, NULL, ON_NVME(", 'buffer_count': 1"),
     ON_NVME(", 'buffer_count': 3")},
    {"zero_optimization.offload_optimizer.ratio", half_on_device, NULL, ON_CPU,
     "'zero_optimization': {'offload_optimizer': {'device': 'cpu', 'ratio': 0.5}}"},
    {"zero_optimization.offload_param.device", param_tier, NULL, PARAMS(""),
     PARAMS(", 'offload_param': {'device': 'cpu'}")},
    {"zero_optimization.offload_param.nvme_path", opens_path, NULL,
     PARAMS(", 'offload_param': {'device': 'nvme', 'nvme_path': '/tmp'}"),
     PARAMS(", 'offload_param': {'device': 'nvme', 'nvme_path': '/proc/nowhere'}")},
    {"zero_optimization.offload_gradients.device", grad_tier, NULL,
     "'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'nvme', 'nvme_path': '/tmp'}, "
     "'offload_gradients': {'device': 'none'}}",
     "'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'nvme', 'nvme_path': '/tmp'}}"},
    {"zero_optimization.cpu_offload_param", param_tier, NULL, PARAMS(""),
     PARAMS(", 'cpu_offload_param': true")},
    {"zero_optimization.cpu_offload", cpu_bytes, NULL, "'zero_optimization': {'cpu_offload': false}",
     "'zero_optimization': {'cpu_offload': true}"},
    {"zero_optimization.stage3_param_persistence_threshold", gathers, NULL, ZERO3,
     "'zero_optimization': {'stage': 3, 'stage3_param_persistence_threshold': 1000}"},
    {"zero_optimization.mics_shard_size", state_bytes, NULL, PARAMS(""), PARAMS(", 'mics_shard_size': 1")},
    {"zero_optimization.zero_hpz_partition_size", second_shard, NULL, PARAMS(""),
     PARAMS(", 'zero_hpz_partition_size': 2")},
    {"zero_optimization.zero_quantized_weights", weights, NULL, PARAMS(""),
     PARAMS(", 'zero_quantized_weights': true")},
    {"zero_optimization.zero_quantized_gradients", weights, NULL, PARAMS(""),
     PARAMS(", 'zero_quantized_gradients': true")},
    {"comm.quantized_gradient_bits", weights, PARAMS(", 'zero_quantized_gradients': true"),
     "'comm': {'quantized_gradient_bits': 4}", "'comm': {'quantized_gradient_bits': 8}"},
    {"comm.node_ranks", state_bytes, PARAMS(", 'mics_shard_size': 'auto'"), "'comm': {'node_ranks': 2}",
     "'comm': {'node_ranks': 1}"},
    {"comm.reshard_after_forward", gathers, PARAMS(""), "'comm': {'reshard_after_forward': true}",
     "'comm': {'reshard_after_forward': false}"},
    {"ema.decay", averages, NULL, "'ema': {'decay': 0.5}", "'ema': {'decay': 0.75}"},
    {"ema.every", averages, NULL, "'ema': {'decay': 0.5, 'every': 1}", "'ema': {'decay': 0.5, 'every': 2}"},
    {"ema.begin", averages, NULL, "'ema': {'decay': 0.5, 'begin': 0}", "'ema': {'decay': 0.5, 'begin': 6}"},
    {"ema.warmup", averages, NULL, "'ema': {'decay': 0.5, 'warmup': false}",
     "'ema': {'decay': 0.5, 'warmup': true}"},
    {"debug.compare_every", control_messages, NULL, "'debug': {'compare_every': 0}",
     "'debug': {'compare_every': 2}"},
    {"comm.transport", one_value, NULL, "'comm': {'transport': 'auto'}", "'comm': {'transport': 'nccl'}"},
    {"trace.steps", cpu_bytes, NULL, "'trace': {'steps': 0}", "'trace': {'steps': 1}"},
    {"trace.first_step", control_messages, "'seed': 1", "'trace': {'steps': 1, 'first_step': 2}",
     "'trace': {'steps': 1, 'first_step': 100}"},
    {"threads", threads, NULL, "'threads': 1", "'threads': 3"},
    {"comm.timeout_s", waits_for_silence, NULL, "'comm': {'timeout_s': 2}", "'comm': {'timeout_s': 3}"},
    {"comm.prefetch_depth", gathered_bytes, ZERO3, "'comm': {'prefetch_depth': 0}",
     "'comm': {'prefetch_depth': 2}"},
    {"comm.backward_prefetch_depth", gathered_bytes, ZERO3,
     "'comm': {'prefetch_depth': 0, 'backward_prefetch_depth': 0}",
     "'comm': {'prefetch_depth': 0, 'backward_prefetch_depth': 2}"},
    {"zero_optimization.stage3_max_live_parameters", gathered_bytes, "'comm': {'prefetch_depth': 2}",
     PARAMS(""), PARAMS(", 'stage3_max_live_parameters': 200")},
    {"zero_optimization.stage3_prefetch_bucket_size", gathered_bytes, "'comm': {'prefetch_depth': 2}",
     PARAMS(""), PARAMS(", 'stage3_prefetch_bucket_size': 100")},
    {"memory.device", over_budget, NULL, "'memory': {'device': '1MiB'}", "'memory': {'device': 1024}"},
    {"memory.cpu", over_budget, ON_CPU, "'memory': {'cpu': '1MiB'}", "'memory': {'cpu': 1024}"},
    {"model.activation_function", one_value, NULL, "'model': {'activation_function': 'gelu_new'}",
     "'model': {'activation_function': 'relu'}"},
    {"checkpoint.async", staging_bytes, NULL, "'checkpoint': {'async': false}",
     "'checkpoint': {'async': true}"},
    {"checkpoint.async_bytes", staging_bytes, NULL, "'checkpoint': {'async': true}",
     "'checkpoint': {'async': true, 'async_bytes': '2MiB'}"},
    {"model.hidden_act", one_value, NULL, "'model': {'model_type': 'llama', 'hidden_act': 'silu'}",
     "'model': {'model_type': 'llama', 'hidden_act': 'relu'}"},
    {"memory.nvme", over_budget, NULL, "'memory': {'nvme': 8192}", "'memory': {'nvme': 4096}"},
};

/* Keys that need larger shards, or whose effect shows only in the log or in time: tests/engine/offload_test.c,
 * tests/engine/pieces_test.c, tests/engine/writers_test.c and tests/offload. */
static const char *const in_the_offload_tests[] = {"zero_optimization.sub_group_size",
                                                   "zero_optimization.piece_bytes",
                                                   "aio.block_size",
                                                   "aio.queue_depth",
                                                   "nvme.io_uring",
                                                   "nvme.masters",
                                                   "nvme.shadow",
                                                   "bf16.bf16_optimizer_states",
                                                   "nvme.endurance_tbw",
                                                   "checkpoint.writers_per_node"};

/* What ranks in different processes send each other: tests/comm/tcp_fault_test.c. */
static const char *const in_the_transport_tests[] = {"comm.checksum"};

/* Where the memory is: tests/engine/devices_test.c. What the command does there: cuda_test.sh of tests/tools/command. */
static const char *const in_the_device_tests[] = {"device.type",         "device.index",
                                                  "device.graphs",       "device.attention",
                                                  "device.keep_outputs", "memory.device_margin"};

/* Keys that only the command reads, and keys whose effect shows only between processes. */
static const char *const in_the_command[] = {"train_batch_size",
                                             "train_micro_batch_size_per_gpu",
                                             "steps_per_print",
                                             "seed",
                                             "comm.reduction",
                                             "data.bytes",
                                             "data.path",
                                             "data.order",
                                             "data.document_end",
                                             "data.eval",
                                             "data.context",
                                             "tensorboard.enabled",
                                             "tensorboard.output_path",
                                             "tensorboard.job_name",
                                             "csv_monitor.enabled",
                                             "csv_monitor.output_path",
                                             "csv_monitor.job_name",
                                             "model.n_layer",
                                             "model.n_embd",
                                             "model.n_head",
                                             "model.n_positions",
                                             "model.n_ctx",
                                             "model.vocab_size",
                                             "model.n_inner",
                                             "model.layer_norm_epsilon",
                                             "model.initializer_range",
                                             "model.tie_word_embeddings",
                                             "model.gradient_checkpointing",
                                             "zero_optimization.vocabulary_block_rows",
                                             "activation_checkpointing.interval",
                                             "activation_checkpointing.number_checkpoints",
                                             "activation_checkpointing.cpu_checkpointing",
                                             "activation_checkpointing.nvme_checkpointing",
                                             "activation_checkpointing.nvme_path",
                                             "model.model_type",
                                             "model.num_hidden_layers",
                                             "model.hidden_size",
                                             "model.intermediate_size",
                                             "model.num_attention_heads",
                                             "model.num_key_value_heads",
                                             "model.head_dim",
                                             "model.max_position_embeddings",
                                             "model.max_sequence_length",
                                             "model.rms_norm_eps",
                                             "model.rope_theta",
                                             "model.rope_scaling.rope_type",
                                             "model.rope_scaling.type",
                                             "model.rope_scaling.factor",
                                             "model.rope_scaling.low_freq_factor",
                                             "model.rope_scaling.high_freq_factor",
                                             "model.rope_scaling.original_max_position_embeddings",
                                             "model.rope_parameters.rope_theta",
                                             "model.rope_parameters.rope_type",
                                             "model.rope_parameters.factor",
                                             "model.rope_parameters.low_freq_factor",
                                             "model.rope_parameters.high_freq_factor",
                                             "model.rope_parameters.original_max_position_embeddings",
                                             "model.rope_scaling.beta_fast",
                                             "model.rope_scaling.beta_slow",
                                             "model.rope_scaling.attention_factor",
                                             "model.rope_scaling.mscale",
                                             "model.rope_scaling.mscale_all_dim",
                                             "model.rope_scaling.truncate",
                                             "model.rope_parameters.beta_fast",
                                             "model.rope_parameters.beta_slow",
                                             "model.rope_parameters.attention_factor",
                                             "model.rope_parameters.mscale",
                                             "model.rope_parameters.mscale_all_dim",
                                             "model.rope_parameters.truncate",
                                             "model.sliding_window",
                                             "model.use_sliding_window",
                                             "model.max_window_layers",
                                             "model.layer_types"};

static void the_script_has_its_rows(const char *script) {
    for (size_t i = 0; i < sizeof in_the_command / sizeof *in_the_command; i++) {
        char line[128];
        snprintf(line, sizeof line, "\neffect %s ", in_the_command[i]);
        if (!CHECK(strstr(script, line) != NULL)) fprintf(stderr, "no row for %s\n", in_the_command[i]);
    }
}

static void every_used_key_has_a_row(void) {
    for (uint32_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        size_t found = 0;
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) found += strcmp(rows[r].path, key->path) == 0;
        for (size_t i = 0; i < sizeof in_the_command / sizeof *in_the_command; i++)
            found += strcmp(in_the_command[i], key->path) == 0;
        for (size_t i = 0; i < sizeof in_the_offload_tests / sizeof *in_the_offload_tests; i++)
            found += strcmp(in_the_offload_tests[i], key->path) == 0;
        for (size_t i = 0; i < sizeof in_the_transport_tests / sizeof *in_the_transport_tests; i++)
            found += strcmp(in_the_transport_tests[i], key->path) == 0;
        for (size_t i = 0; i < sizeof in_the_device_tests / sizeof *in_the_device_tests; i++)
            found += strcmp(in_the_device_tests[i], key->path) == 0;
        if (!CHECK_INT(found, key->use == KEY_USED)) fprintf(stderr, "%s\n", key->path);
    }
}

static char *read_text(const char *path) {
    static char text[1 << 16];
    FILE *file = fopen(path, "r");
    if (!CHECK(file != NULL)) return text;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

int main(int argc, char **argv) {
    if (!CHECK_INT(argc, 2)) return check_end();
    every_used_key_has_a_row();
    the_script_has_its_rows(read_text(argv[1]));
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) rows[r].check(&rows[r]);
    return check_end();
}
