#include "engine/loop/step.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "engine/base/utf8.h"
#include "engine/ranks/model_ranks.h"
#include "engine/ranks/peers.h"
#include "kernels/quantize.h"

struct spot {
    const struct model_param *param;
    uint64_t element;
};

static bool find_in(struct state *state, const struct model_param *p, struct spot *out) {
    struct stored_range part = stored_range(state->blueprint, state->ranks->data_rank, p->region, ZERO_GRAD);
    uint64_t begin = max64(p->offset, part.first), end = min64(p->offset + p->count, part.first + part.count);
    float *piece = (float *)(void *)state->piece;
    for (uint64_t at = begin, count; at < end; at += count) {
        count = min64(end - at, PIECE_BYTES / sizeof(float));
        if (state_read(state, p->region, ZERO_GRAD, at, count, piece)) return false;
        for (uint64_t i = 0; i < count; i++)
            if (!isfinite(piece[i])) return *out = (struct spot){p, at + i - p->offset}, true;
    }
    return false;
}

/* In this rank's shard of the unit's gradients. */
static bool find(struct state *state, uint32_t unit, struct spot *out) {
    for (uint32_t i = 0; i < state->model->params; i++) {
        const struct model_param *p = &state->model->param[i];
        if (p->unit == unit && p->owner == i && !(p->flags & ZERO_FROZEN) && find_in(state, p, out))
            return true;
    }
    return false;
}

/* In codes, one element that is not finite makes its whole block so. */
static void describe(const struct step *step, const struct spot *spot, size_t capacity, char *out) {
    const char *name = spot->param->name;
    int shown = utf8_fit(name, 200);
    if (step->blueprint->o.config->quantized_gradients)
        snprintf(out, capacity,
                 ", the first in parameter \"%.*s\" among the %d elements from %" PRIu64
                 " on, which zero_quantized_gradients codes together",
                 shown, name, (int)QUANTIZE_BLOCK, spot->element);
    else
        snprintf(out, capacity, ", the first in parameter \"%.*s\" at element %" PRIu64, shown, name,
                 spot->element);
}

void overflow_report(struct step *step, const struct agreement *all, struct overflow *out) {
    const struct ranks *ranks = step->run->ranks;
    uint64_t last = 0;
    uint32_t model = ranks->model_size;
    struct spot spot;
    *out = (struct overflow){0};
    while (!last && model-- > 0) /* the last stage of a pipeline is the nearest to the loss */
        for (uint32_t d = 0; d < ranks->data_size; d++) {
            uint32_t r = model_ranks_at(ranks, model, d);
            if (all[r].overflow_unit > last) last = all[r].overflow_unit, out->rank = r;
        }
    if (!last) return;
    uint32_t unit = (uint32_t)last - 1;
    const struct policy *policy = &step->blueprint->policy;
    bool own = model == ranks->model_rank;
    bool gone = policy->update_in_backward && !policy->repeats; /* other gradients use its memory now */
    bool fails = policy->update_in_backward && !step->blueprint->plan.terms->shadow;
    out->unit = own ? step->blueprint->o.model->unit[unit]->name : peers_unit(step->peers, model, unit);
    if (own && !gone && find(step->state, unit, &spot))
        describe(step, &spot, sizeof out->detail, out->detail);
    log_line(&ranks->log, ZERO_LOG_WARN,
             "step %" PRIu64 " %s on all ranks: gradients of unit \"%s\" are inf or NaN%s",
             step->training->steps + 1, fails ? "fails" : "skipped", out->unit, out->detail);
}

zero_status overflow_check_limit(struct step *step, const struct overflow *overflow) {
    uint64_t limit = step->blueprint->o.config->max_skipped_steps, row = step->training->skipped_in_a_row;
    struct zero_error error = ERROR_NONE;
    if (!limit || row < limit || step->run->ranks->rank != overflow->rank) return ZERO_OK;
    if (overflow->unit)
        error_set(&error, ZERO_E_OVERFLOW,
                  "%" PRIu64
                  " steps in a row were skipped (max_skipped_steps): in the last one, on rank %" PRIu32
                  ", gradients of unit \"%s\" are inf or NaN%s: lower the learning rate, or look at the data "
                  "of this step",
                  row, overflow->rank, overflow->unit, overflow->detail);
    else
        error_set(&error, ZERO_E_OVERFLOW,
                  "%" PRIu64 " steps in a row were skipped (max_skipped_steps): the norm of the gradients is "
                  "inf: lower the learning rate",
                  row);
    return ranks_fail(step->run->ranks, &error);
}
