#include "tools/plan/host_work.h"

#include <stdlib.h>

/* How often a pass goes over a unit's weights, for any size of batch. A forward reads them. A backward reads them and
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
    for (uint32_t i = m->unit[unit]->first_param; i < m->params && m->param[i].unit == unit; i++) {
        const struct model_param *p = &m->param[i];
        all += (double)p->count;
        if (!(m->param[p->owner].flags & ZERO_FROZEN)) trained += (double)p->count;
    }
    return all > 0 ? trained / all : 0;
}

static uint64_t nanoseconds(double seconds) { return (uint64_t)(seconds * 1e9 + 0.5); }

/* Seconds. again: of the forward that the backward recomputes in its own use; kept: struct pass_work */
struct unit_times {
    double forward, backward, recompute, again, kept;
};

/* On a host the rate of arithmetic is measured on a whole model, with its elementwise passes; only the rows that enter and leave
 * count. A backward multiplies once for the gradient of its input, and once for the gradients of the trained weights. */
static struct unit_times host_times(const struct work_options *o, uint32_t unit, double share) {
    const struct machine *m = o->machine;
    double tokens = (double)o->batch * (double)o->shapes->context,
           rate = m->device.flops[o->blueprint->terms.precision.compute] / tokens,
           weights = weights_s(o, unit),
           rows_s = tokens * (double)o->shapes->width * sizeof(float) / m->device.memory_per_s,
           forward = shapes_forward_flops(o->shapes, unit) / rate,
           untrained = (1 - share) * shapes_weight_flops(o->shapes, unit) / rate,
           passes = HOST_BACKWARD_PASSES + share * HOST_GRADIENT_PASSES;
    return (struct unit_times){
        .forward = forward + rows_s + FORWARD_PASSES * weights,
        .backward =
            2 * forward + shapes_again_flops(o->shapes, unit) / rate - untrained + rows_s + passes * weights,
        .recompute = forward - shapes_output_flops(o->shapes) / rate + FORWARD_PASSES * weights};
}

static const struct work_style gpt_style = {.kernels = KERNELS_OWN};

/* The backward of attention has five products to the forward's two, because it computes the scores again. */
#define ATTENTION_BACKWARD 2.5

/* Heads that are padded with zeros take the time of the zeros, too. Without the tensor cores attention multiplies in
 * fp32. */
static double attention_rate_of(const struct hardware_device *d, enum dtype dtype, double fill) {
    if (fill > 0) return (d->attention_flops > 0 ? d->attention_flops : d->flops[dtype]) / fill;
    return d->flops[DTYPE_F32] > 0 ? d->flops[DTYPE_F32] : d->flops[dtype];
}

/* Of a block's forward one part, where products take products_s, attention's scores attention_s, and a byte of elementwise passes per_byte.
 * Both parts together lack the activation, the last product, and its residual sum. */
static double part_s(const struct work_options *o, uint32_t unit, int part, double products_s,
                     double attention_s, const struct elementwise *bytes, double per_byte) {
    double all = shapes_weight_flops(o->shapes, unit), narrow = shapes_output_flops(o->shapes),
           widen = o->shapes->architecture == GPT_GPT2 ? narrow : 2 * narrow,
           share = (part == GPT_MLP ? widen : all - widen - narrow) / all;
    return products_s * share + (part == GPT_ATTENTION ? attention_s : 0) + bytes->again[part] * per_byte;
}

/* On a GPU products, attention and elementwise passes take turns, each at its own rate. */
static struct unit_times device_times(const struct work_options *o, uint32_t unit, double share) {
    const struct hardware_device *d = &o->machine->device;
    enum dtype dtype = o->blueprint->terms.precision.compute;
    const struct work_style *style = o->style ? o->style : &gpt_style;
    double fill = shapes_attention_fill(o->shapes, dtype);
    bool block = !shapes_embeds(o->shapes, unit) && unit < shapes_segments(o->shapes, 0).end;
    double tokens = (double)o->batch * (double)o->shapes->context, rate = d->flops[dtype] / tokens,
           attention_rate = attention_rate_of(d, dtype, fill) / tokens, weights = weights_s(o, unit),
           flops = shapes_weight_flops(o->shapes, unit), products = flops / rate,
           attention = (shapes_forward_flops(o->shapes, unit) - flops) / attention_rate;
    struct elementwise bytes = elementwise_of(o->shapes, unit, style->kernels);
    double per_byte = tokens * dtype_bytes(dtype) / 2 / d->memory_per_s, passes = bytes.forward * per_byte,
           outputs = 0;
    for (int kind = 0; kind < GPT_ATTENTION; kind++)
        if (!shapes_keeps(o->shapes, o->recompute, unit, (enum gpt_output)kind))
            outputs += bytes.again[kind] * per_byte;
    struct unit_times t = {.forward = products + attention + passes + FORWARD_PASSES * weights,
                           .backward = (1 + share) * products + shapes_again_flops(o->shapes, unit) / rate +
                                       ATTENTION_BACKWARD * attention + bytes.backward * per_byte +
                                       (BACKWARD_PASSES + share * GRADIENT_PASSES) * weights,
                           .again = block ? style->again.products * products +
                                                style->again.attention * attention +
                                                style->again.elementwise * passes + outputs
                                          : 0};
    bool own = block && style->kernels == KERNELS_OWN;
    if (!own) t.recompute = t.forward - shapes_output_flops(o->shapes) / rate;
    for (int part = GPT_ATTENTION; own && part < GPT_OUTPUT_KINDS; part++) {
        double s = part_s(o, unit, part, products + FORWARD_PASSES * weights, attention, &bytes, per_byte);
        t.recompute += s;
        if (shapes_keeps(o->shapes, o->recompute, unit, (enum gpt_output)part)) t.kept += s;
    }
    /* else the backward computes it */
    if (own && shapes_keeps(o->shapes, o->recompute, unit, GPT_ACTIVATIONS))
        t.recompute += bytes.again[GPT_ACTIVATIONS] * per_byte;
    return t;
}

struct pass_work work_of_unit(const struct work_options *o, uint32_t unit) {
    double share = trained_share(o->blueprint->o.model, unit);
    struct unit_times t =
        o->machine->device.is_host ? host_times(o, unit, share) : device_times(o, unit, share);
    return (struct pass_work){.forward_ns = nanoseconds(t.forward),
                              .backward_ns = nanoseconds(t.backward + t.again),
                              .recompute_ns = t.recompute > 0 ? nanoseconds(t.recompute) : 0,
                              .kept_ns = t.kept > 0 ? nanoseconds(t.kept) : 0,
                              .trains = share > 0};
}

bool work_recomputes_in_use(const struct blueprint *b, uint32_t recompute) {
    return recompute == 1 && policy_use_micros(&b->policy) > 1;
}

zero_status work_pass(const struct work_options *o, struct pass *out, struct zero_error *error) {
    uint32_t units = shapes_units(o->shapes);
    struct pass_segments segments = shapes_segments(o->shapes, o->recompute.blocks);
    segments.in_use = work_recomputes_in_use(o->blueprint, o->recompute.blocks);
    segments.stay = shapes_checkpoints_kept(o->shapes, o->recompute);
    bool far = !o->machine->device.is_host && o->recompute.blocks && o->recompute.tier != ZERO_DEVICE;
    segments.waits = far && segments.in_use;
    segments.near = far && !segments.waits ? CHECKPOINTS_NEAR : 0;
    struct pass_work *work = calloc(units, sizeof *work);
    if (!work) return error_set(error, ZERO_E_MEMORY, "no memory for the times of %u units", units);
    for (uint32_t u = 0; u < units; u++) work[u] = work_of_unit(o, u);
    zero_status status = pass_make(work, units, &segments, out, error);
    free(work);
    return status;
}
