/* A host's own optimizers that need more than an element: Lamb and Muon through zero_engine_set_optimizer must end in the bits of the
 * engine's; two of the host's own end alike at all stages and on all tiers; they are refused where they cannot work. */
#include <math.h>
#include <stdlib.h>

#include "kernels/optimizer.h"
#include "tests/check.h"
#include "tests/engine/own_scopes.h"
#include "tests/engine/toy_trainer.h"
#include "tests/float_control.h"

/* ---- the engine's, as the host's ---- */

/* The rows of the table: Lamb's or Muon's. */
static const struct optimizer *row;

static struct optimizer_scalars scalars_of(const float *scalars) {
    struct optimizer_scalars s = {{0}, NULL};
    memcpy(s.value, scalars, sizeof s.value);
    return s;
}

static void prepare(void *user, const zero_optimizer_params *p, uint64_t step,
                    float scalars[ZERO_SCALARS_MAX]) {
    struct optimizer_scalars out;
    struct optimizer_params params = row->defaults; /* what the host is not given is a default */
    params.lr = p->lr, params.weight_decay = p->weight_decay;
    row->prepare(&params, step, &out);
    memcpy(scalars, out.value, sizeof out.value);
}

static void update(void *user, float *weight, float *m, float *v, const float *gradient, float scale,
                   const float *scalars, uint64_t count) {
    static const float none[4096]; /* Lamb's loop reads an array */
    struct optimizer_scalars s = scalars_of(scalars);
    if (!gradient && !CHECK(count <= 4096)) return;
    row->update[KERNEL_SCALAR](weight, m, v, gradient ? gradient : none, scale, &s, count);
}

static void before(void *user, float *weight, float *m, float *v, const float *gradient, float scale,
                   const float *scalars, uint64_t count) {
    struct optimizer_scalars s = scalars_of(scalars);
    row->before->update[KERNEL_SCALAR](weight, m, v, gradient, scale, &s, count);
}

static void direction(void *user, float *weight, const float *m, const float *v, const float *scalars,
                      uint64_t count) {
    static const float none[4096];
    struct optimizer_scalars s = scalars_of(scalars);
    if (!CHECK(count <= 4096)) return;
    row->direction->update[KERNEL_SCALAR](weight, (float *)m, (float *)v, none, 1, &s, count);
}

static void trust(void *user, double weight_norm, double direction_norm, float scalars[ZERO_SCALARS_MAX]) {
    struct optimizer_scalars s = scalars_of(scalars);
    struct tensor_norms squares = {weight_norm * weight_norm, direction_norm * direction_norm};
    row->trust(&squares, &s);
    memcpy(scalars, s.value, sizeof s.value);
}

static void matrix(void *user, float *direction, uint64_t rows, uint64_t columns, const float *scalars,
                   float *scratch, uint32_t threads) {
    struct optimizer_scalars s = scalars_of(scalars);
    row->matrix(direction, rows, columns, &s, scratch, threads);
}

static uint64_t scratch(uint64_t rows, uint64_t columns) { return row->matrix_scratch(rows, columns); }

static const zero_optimizer my_lamb = {.struct_size = sizeof my_lamb,
                                       .name = "my_lamb",
                                       .states = 2,
                                       .state_names = {"m", "v"},
                                       .rounds_states = 1,
                                       .prepare = prepare,
                                       .update = update,
                                       .scope = ZERO_SCOPE_TENSOR,
                                       .before = before,
                                       .direction = direction,
                                       .trust = trust};

static const zero_optimizer my_muon = {.struct_size = sizeof my_muon,
                                       .name = "my_muon",
                                       .states = 1,
                                       .state_names = {"m"},
                                       .rounds_states = 1,
                                       .prepare = prepare,
                                       .update = update,
                                       .scope = ZERO_SCOPE_MATRIX,
                                       .before = before,
                                       .matrix = matrix,
                                       .matrix_scratch = scratch};

static const zero_optimizer *chosen;
static void set(zero_engine *e) { CHECK_INT(zero_engine_set_optimizer(e, chosen), ZERO_OK); }

/* Lamb of all tensors, or Muon of matrices beside AdamW; and the host's in its place. */
static struct toy_setup setup_of(const zero_optimizer *own) {
    struct toy_setup s = toy_setup_default();
    chosen = own, s.begin = set;
    s.lamb = own->scope == ZERO_SCOPE_TENSOR, s.muon = !s.lamb;
    s.steps = 4;
    return s;
}

static void moves_what_it_plans(const struct toy_result *got) {
    for (int t = 0; t < ZERO_TIERS; t++) CHECK_INT(got->measured[t], got->planned[t]);
}

static void is_same(const struct toy_setup *s, const char *hash) {
    static struct toy_result got;
    toy_train(s, &got);
    if (!CHECK_STRING(got.error, "") || !CHECK_STRING(got.hash, hash))
        fprintf(stderr, "%s at stage %u, %u ranks, %s\n", chosen->name, s->stage, s->ranks, s->tiers);
    moves_what_it_plans(&got);
}

static void the_same_as_the_engines(void) {
    static const char *const more[] = {"", ", \"bf16\": {\"enabled\": true}",
                                       ", \"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true}"};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
            static struct toy_result expected;
            struct toy_setup s = setup_of(k ? &my_muon : &my_lamb);
            row = optimizer_find(k ? "muon" : "lamb");
            s.extra = more[i], s.begin = NULL;
            toy_train(&s, &expected);
            CHECK_STRING(expected.error, "");
            s.begin = set;
            for (s.stage = 0; s.stage <= 3; s.stage++) {
                s.tiers = toy_tiers[s.stage].json;
                is_same(&s, expected.hash);
            }
        }
}

/* ---- the host's own ---- */

static void everywhere(const zero_optimizer *own) {
    struct toy_setup s = setup_of(own);
    for (s.ranks = 1; s.ranks <= 4; s.ranks++) {
        static struct toy_result first;
        s.compute = s.ranks % 2 ? ZERO_F32 : ZERO_BF16;
        s.stage = 0, s.tiers = NULL;
        toy_train(&s, &first);
        CHECK_STRING(first.error, "");
        for (s.stage = 0; s.stage <= 3; s.stage++)
            for (int t = 0; t < TOY_TIERS; t++) {
                s.tiers = toy_tiers[t].json;
                if (s.stage >= toy_tiers[t].stage_min) is_same(&s, first.hash);
            }
    }
}

/* The directions and norms of a backward's updates are those of the step's. */
static void in_the_backward(void) {
    static struct toy_result first;
    for (int k = 0; k < 2; k++) {
        struct toy_setup s = setup_of(k ? &own_balanced : &own_trusting);
        s.clip = 0;
        toy_train(&s, &first);
        s.updates = 1;
        for (s.stage = 0; s.stage <= 3; s.stage += 3) {
            s.tiers = toy_tiers[s.stage].json;
            is_same(&s, first.hash);
        }
    }
}

/* One step of a whole tensor has the length lr times its norm, wherever its parts are. */
static void a_ratio_is_of_a_whole_tensor(void) {
    static struct toy_result got;
    static float first[TOY_VOCAB * TOY_WIDTH];
    struct toy_setup s = setup_of(&own_trusting);
    s.optimizer = "{\"type\": \"Lamb\", \"params\": {\"lr\": 0.02, \"weight_decay\": 0}}", s.lamb = 0;
    s.steps = 1, s.ranks = 3, s.stage = 3;
    toy_train(&s, &got);
    CHECK_STRING(got.error, "");
    for (int i = 0; i < TOY_PARAMS; i++) {
        double moved = 0, norm = 0;
        const struct toy_param *p = &toy_params[i];
        if (p->tied_to || p->flags & ZERO_FROZEN) continue;
        toy_fill(NULL, p->name, 0, p->rows * p->columns, first);
        for (uint32_t k = 0; k < p->rows * p->columns; k++) {
            double by = (double)got.weights[i][k] - (double)first[k];
            moved += by * by, norm += (double)first[k] * (double)first[k];
        }
        CHECK_DOUBLE(moved / norm, 0.02 * 0.02, 1e-6);
    }
}

static void make_sign(void *user, float *weight, const float *mean, const float *none, const float *scalars,
                      uint64_t count) {
    for (uint64_t i = 0; i < count; i++) weight[i] = mean[i] >= 0 ? 1 : -1;
}

static void is_of_a_parameter(void *user, double weight_norm, double direction_norm,
                              float scalars[ZERO_SCALARS_MAX]) {
    bool found = false;
    for (int i = 0; i < TOY_PARAMS; i++)
        found = found || sqrt(toy_params[i].rows * toy_params[i].columns) == direction_norm;
    if (!CHECK(found)) fprintf(stderr, "no parameter has the norm %g\n", direction_norm);
}

/* Between parameters there are gaps, where a direction of zeros need not be zero. */
static void a_norm_is_of_a_parameter_alone(void) {
    static struct toy_result got;
    zero_optimizer signs = own_trusting;
    signs.direction = make_sign, signs.trust = is_of_a_parameter;
    struct toy_setup s = setup_of(&signs);
    for (s.ranks = 1; s.ranks <= 3; s.ranks++)
        for (s.stage = 0; s.stage <= 3; s.stage += 3)
            for (int t = 0; t < TOY_TIERS; t++) {
                if (s.stage < toy_tiers[t].stage_min) continue;
                s.tiers = toy_tiers[t].json;
                toy_train(&s, &got);
                CHECK_STRING(got.error, "");
            }
}

static void flush(zero_engine *e) {
    set(e);
    float_control_set(float_control() |
                      FLOAT_CONTROL_FLUSHES); /* of this rank's thread, and of those that it begins */
}

/* own_scopes.c looks at its own. */
static void a_host_flushes_denormals(void) {
    for (int k = 0; k < 2; k++) {
        static struct toy_result got;
        struct toy_setup s = setup_of(k ? &own_balanced : &own_trusting);
        s.begin = flush;
        toy_train(&s, &got);
        CHECK_STRING(got.error, "");
    }
}

/* ---- refusals ---- */

static void refused(struct toy_setup s, const char *message) {
    static struct toy_result got;
    toy_train(&s, &got);
    CHECK(got.status != ZERO_OK);
    CHECK_CONTAINS(got.error, message);
}

static zero_status flat(zero_engine *engine, uint32_t param, zero_param *out) {
    if (toy_params[param].columns == 1) out->dims = 1;
    return ZERO_OK;
}

static void not_everywhere(void) {
    struct toy_setup s = setup_of(&own_trusting);
    s.device = "sim";
    refused(s,
            "optimizer \"trusting\" is the host program's and runs on the CPU: keep its state there, with");
    s = setup_of(&own_balanced);
    s.device = "sim", s.offload = "cpu";
    refused(s, "balanced updates whole matrices, which it does not do on a GPU: set device.type");
    s = setup_of(&own_balanced);
    s.muon = 0, s.declare = flat;
    refused(s, "parameter \"in.b\" has 1 dimension, and balanced updates matrices: name it in a group of");
}

static void is_not_taken(zero_optimizer given, const char *message) {
    zero_engine *engine = zero_engine_init("{\"train_micro_batch_size_per_gpu\": 1}");
    CHECK_INT(zero_engine_set_optimizer(engine, &given), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), message);
    zero_engine_destroy(engine);
}

static void a_scope_has_its_functions(void) {
    zero_optimizer o = own_trusting;
    o.scope = ZERO_SCOPE_ELEMENT;
    is_not_taken(o, "the scope of an element takes update alone: set these, and no other functions of \"tru");
    o.scope = ZERO_SCOPE_MATRIX;
    is_not_taken(o,
                 "the scope of a matrix takes before, matrix and update, and may have matrix_scratch: set");
    o = own_trusting, o.trust = NULL;
    is_not_taken(o, "the scope of a tensor takes before, direction, trust and update: set these, and no");
    o = own_trusting, o.direction = NULL;
    is_not_taken(o, "the scope of a tensor takes");
    o = own_balanced, o.before = NULL;
    is_not_taken(o, "the scope of a matrix takes");
    o = own_balanced, o.scope = (zero_scope)3;
    is_not_taken(o, "there is no scope 3: take one of zero_scope");
    o = own_trusting, o.matrix_scratch = own_balanced.matrix_scratch;
    is_not_taken(o, "the scope of a tensor takes");
}

int main(void) {
    the_same_as_the_engines();
    everywhere(&own_trusting);
    everywhere(&own_balanced);
    in_the_backward();
    a_ratio_is_of_a_whole_tensor();
    a_norm_is_of_a_parameter_alone();
    a_host_flushes_denormals();
    not_everywhere();
    a_scope_has_its_functions();
    return check_end();
}
