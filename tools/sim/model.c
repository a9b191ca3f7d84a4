#include "tools/sim/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void sim_model_free(struct sim_model *m) {
    free(m->unit);
    free(m->param);
    *m = (struct sim_model){0};
}

zero_status sim_model_uniform(uint32_t units, uint64_t params, uint64_t tokens, struct sim_model *out,
                              struct zero_error *error) {
    struct sim_model m = {.units = units, .params = 2 * units};
    if (!units || params / units < 2)
        return error_set(error, ZERO_E_ARGUMENT,
                         "%" PRIu64 " parameters are too few for %" PRIu32
                         " units of a matrix and a bias each",
                         params, units);
    m.unit = calloc(units, sizeof *m.unit);
    m.param = calloc(m.params, sizeof *m.param);
    if (!m.unit || !m.param) {
        sim_model_free(&m);
        return error_set(error, ZERO_E_MEMORY, "no memory for a model of %" PRIu32 " units", units);
    }
    uint64_t each = params / units, bias = 1;
    /* as many as a square matrix has rows */
    while ((bias + 1) * (bias + 1) + bias + 1 <= each && bias < 65536) bias++;
    for (uint32_t u = 0; u < units; u++) {
        struct sim_param *matrix = &m.param[2 * u], *vector = matrix + 1;
        snprintf(m.unit[u].name, sizeof m.unit[u].name, "h.%" PRIu32, u);
        m.unit[u].flops = 2 * each * tokens;
        *matrix = (struct sim_param){.unit = u, .count = each - bias};
        *vector = (struct sim_param){.unit = u, .count = bias};
        snprintf(matrix->name, sizeof matrix->name, "h.%" PRIu32 ".weight", u);
        snprintf(vector->name, sizeof vector->name, "h.%" PRIu32 ".bias", u);
    }
    *out = m;
    return ZERO_OK;
}
