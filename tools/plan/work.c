#include "tools/plan/work.h"

#include <stdlib.h>

/* How often a pass goes over a unit's weights, whatever the batch. A forward reads them. A backward reads them and
 * writes the gradients of the trained ones. On a host the backward also writes transposed weights first, and a write
 * reads the memory before it. */
enum { FORWARD_PASSES = 1, BACKWARD_PASSES = 1, GRADIENT_PASSES = 1 };
enum { HOST_BACKWARD_PASSES = 4, HOST_GRADIENT_PASSES = 2 };

/* The embedding reads only rows, so its weights do not count. */
static double weights_s(const struct work_options *o, uint32_t unit) {
    const struct blueprint *b = o->blueprint;
    const struct use *use = &b->policy.forward[unit];
    double bytes = 0;
    for (uint8_t i = 0; i < use->count && !shapes_embeds(o->shapes, unit); i++)
        bytes += (double)b->o.model->region[use->region[i]].elements *
                 dtype_bytes(blueprint_precision_of(b, use->region[i]).compute);
    return bytes / o->machine->device.memory_per_s;
}

/* The fraction of a unit's parameters that have gradients. */
static double trained_share(const struct model *m, uint32_t unit) {
    double all = 0, trained = 0;
    for (uint32_t i = 0; i < m->params; i++) {
        const struct model_param *p = &m->param[i];
        if (p->unit != unit) continue;
        all += (double)p->count;
        if (!(m->param[p->owner].flags & ZERO_FROZEN)) trained += (double)p->count;
    }
    return all > 0 ? trained / all : 0;
}

static uint64_t nanoseconds(double seconds) { return (uint64_t)(seconds * 1e9 + 0.5); }

/* A backward multiplies once for the gradient of its input, and once for the gradients of the trained weights. */
struct pass_work work_of_unit(const struct work_options *o, uint32_t unit) {
    const struct machine *m = o->machine;
    bool host = m->device.is_host;
    double tokens = (double)o->batch * (double)o->shapes->context,
           rate = m->device.flops[o->blueprint->terms.precision.compute] / tokens,
           share = trained_share(o->blueprint->o.model, unit), weights = weights_s(o, unit),
           rows_s = tokens * (double)o->shapes->width * sizeof(float) / m->device.memory_per_s,
           forward = shapes_forward_flops(o->shapes, unit) / rate,
           again = shapes_again_flops(o->shapes, unit) / rate,
           untrained = (1 - share) * shapes_weight_flops(o->shapes, unit) / rate,
           passes = host ? HOST_BACKWARD_PASSES + share * HOST_GRADIENT_PASSES
                         : BACKWARD_PASSES + share * GRADIENT_PASSES;
    double recompute = forward - shapes_output_flops(o->shapes) / rate + FORWARD_PASSES * weights;
    return (struct pass_work){.forward_ns = nanoseconds(forward + rows_s + FORWARD_PASSES * weights),
                              .backward_ns =
                                  nanoseconds(2 * forward + again - untrained + rows_s + passes * weights),
                              .recompute_ns = recompute > 0 ? nanoseconds(recompute) : 0,
                              .trains = share > 0};
}

bool work_recomputes_in_use(const struct blueprint *b, uint32_t recompute) {
    return recompute == 1 && policy_use_micros(&b->policy) > 1;
}

zero_status work_pass(const struct work_options *o, struct pass *out, struct zero_error *error) {
    uint32_t units = shapes_units(o->shapes);
    struct pass_segments segments = shapes_segments(o->shapes, o->recompute);
    segments.in_use = work_recomputes_in_use(o->blueprint, o->recompute);
    struct pass_work *work = calloc(units, sizeof *work);
    if (!work) return error_set(error, ZERO_E_MEMORY, "no memory for the times of %u units", units);
    for (uint32_t u = 0; u < units; u++) work[u] = work_of_unit(o, u);
    zero_status status = pass_make(work, units, &segments, out, error);
    free(work);
    return status;
}
