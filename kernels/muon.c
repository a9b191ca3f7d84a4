#include "kernels/muon.h"

#include "kernels/element_loop.h"
#include "kernels/orthogonalize.h"

ELEMENT_LOOPS(muon_momentum, 1)
ELEMENT_LOOPS(muon_apply, 0)

static void prepare(const struct optimizer_params *params, uint64_t step,
                    struct optimizer_scalars *out_scalars) {
    *out_scalars = (struct optimizer_scalars){.value = {
                                                  [MUON_LR] = (float)params->lr,
                                                  [MUON_DECAY] = (float)(params->lr * params->weight_decay),
                                                  [MUON_MOMENTUM] = (float)params->momentum,
                                                  [MUON_ONE_MINUS_MOMENTUM] = (float)(1 - params->momentum),
                                                  [MUON_NESTEROV] = params->nesterov,
                                                  [MUON_EPS] = (float)params->eps,
                                                  [MUON_STEPS] = (float)params->ns_steps,
                                                  [MUON_MATCH_RMS] = params->match_rms,
                                                  [MUON_BF16] = params->ns_bf16,
                                              }};
}

static struct orthogonalize_options options_of(uint64_t rows, uint64_t columns,
                                               const struct optimizer_scalars *scalars) {
    const float *s = scalars->value;
    double long_side = (double)(rows > columns ? rows : columns), tall = (double)rows / (double)columns;
    return (struct orthogonalize_options){
        .steps = (uint32_t)s[MUON_STEPS],
        .eps = s[MUON_EPS],
        .scale = (float)(s[MUON_MATCH_RMS] != 0 ? 0.2 * sqrt(long_side) : sqrt(tall > 1 ? tall : 1)),
        .bf16 = s[MUON_BF16] != 0};
}

static void matrix(float *direction, uint64_t rows, uint64_t columns, const struct optimizer_scalars *scalars,
                   float *scratch, uint32_t threads) {
    struct orthogonalize_options options = options_of(rows, columns, scalars);
    orthogonalize(direction, rows, columns, &options, scratch, threads);
}

static bool matrix_step(uint32_t at, float *direction, uint64_t rows, uint64_t columns,
                        const struct optimizer_scalars *scalars, float *scratch, struct matrix_step *out) {
    struct orthogonalize_options options = options_of(rows, columns, scalars);
    return orthogonalize_step(at, direction, rows, columns, &options, scratch, out);
}

#define DEFAULTS                                                                                             \
    { .lr = 1e-3, .eps = 1e-7, .momentum = 0.95, .nesterov = true, .ns_steps = 5 }

static const struct optimizer before = {.name = "muon's momentum",
                                        .state_count = 1,
                                        .state_names = {"exp_avg"},
                                        .defaults = DEFAULTS,
                                        .prepare = prepare,
                                        .update = ISA_TABLE(muon_momentum)};

/* Its momentum is an exponential average, and has the name of the others'. */
const struct optimizer optimizer_muon = {
    .name = "muon",
    .title = "Muon",
    .keys = {{"lr", "0.001"},
             {"eps", "1e-7"},
             {"weight_decay", "0"},
             {"momentum", "0.95"},
             {"nesterov", "true"},
             {"ns_steps", "5"},
             {"adjust_lr_fn", "\"original\""},
             {"ns_dtype", "\"fp32\""},
             {"betas", "null"},
             {"muon_lr", "null"},
             {"adam_lr", "null"}},
    .state_count = 1,
    .state_names = {"exp_avg"},
    .defaults = {.lr = 1e-3, .eps = 1e-7, .momentum = 0.95, .nesterov = true, .ns_steps = 5},
    .prepare = prepare,
    .update = ISA_TABLE(muon_apply),
    .scope = SCOPE_MATRIX,
    .before = &before,
    .matrix = matrix,
    .matrix_scratch = orthogonalize_scratch,
    .matrix_step = matrix_step,
};
