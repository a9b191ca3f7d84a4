/* The RMSNorm of each head's queries and keys over the columns of the head (Henry et al. 2020, Query-key normalization for
 * transformers). All heads of queries share one weight, and so do all heads of keys. */
#include <string.h>

#include "tools/gpt/cpu/block.h"

/* The queries or the keys of one row. */
struct part {
    const struct view *weight;
    uint32_t heads;
    float *now, *raw, *rstd; /* in saved->qkv; before the norm; statistics of each head */
};

static struct part part_of(const struct block *b, uint64_t row, bool keys) {
    const struct gpt_config *c = &b->gpt->config;
    uint32_t stored = (c->heads + c->kv_heads) * c->head_width, at = keys ? b->query : 0;
    return (struct part){.weight = &b->unit->view[keys ? KEY_NORM_WEIGHT : QUERY_NORM_WEIGHT],
                         .heads = keys ? c->kv_heads : c->heads,
                         .now = b->saved->qkv + row * b->qkv + at,
                         .raw = b->saved->raw + row * stored + at,
                         .rstd = b->saved->raw_rstd + row * (c->heads + c->kv_heads) + (keys ? c->heads : 0)};
}

void head_norm_forward(const struct block *b, uint32_t first, uint32_t rows) {
    const struct gpt_config *c = &b->gpt->config;
    const struct norm_kernels *k = &b->gpt->kernels->norm[RMS_NORM];
    if (!norms_heads(c)) return;
    for (uint32_t i = 0; i < 2 * rows; i++) {
        struct part p = part_of(b, first + i / 2, i % 2);
        memcpy(p.raw, p.now, (size_t)p.heads * c->head_width * sizeof *p.raw);
        k->forward(p.now, NULL, p.rstd, p.raw, p.weight->param, NULL, p.heads, c->head_width,
                   (float)c->layer_norm_epsilon);
    }
}

void head_norm_backward(const struct block *b, uint32_t first, uint32_t rows, float *sums) {
    const struct gpt_config *c = &b->gpt->config;
    const struct norm_kernels *k = &b->gpt->kernels->norm[RMS_NORM];
    for (uint32_t i = 0; i < 2 * rows; i++) {
        struct part p = part_of(b, first + i / 2, i % 2);
        k->backward(p.now, sums_of(sums, p.weight), NULL, NULL, p.now, p.raw, NULL, p.rstd, p.weight->param,
                    p.heads, c->head_width);
    }
}
