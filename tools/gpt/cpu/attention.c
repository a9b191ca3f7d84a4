#include "tools/gpt/cpu/attention.h"

#include <math.h>
#include <string.h>

#include "tools/gpt/math/matmul.h"
#include "tools/gpt/rotary.h"

/* One head of one sequence. Pointers to its first row; rows are qkv_ld and mixed_ld apart. */
struct head {
    float *query, *key, *value, *mixed, *lse;
    uint64_t qkv_ld, mixed_ld, offset;     /* offset: of this head in arrays like mixed */
    uint32_t first, length, width, window; /* first: row of the pass */
    float scale;
};

static struct head find(const struct gpt *gpt, const struct saved *saved, uint32_t window, uint32_t sequence,
                        uint32_t head) {
    const struct gpt_config *c = &gpt->config;
    uint32_t width = c->head_width, group = c->heads / c->kv_heads;
    uint64_t query = extent_of(c, QUERY), key = extent_of(c, KEY), ld = extent_of(c, QKV);
    const uint32_t *first = &gpt->activations.sequences.first[sequence];
    uint64_t row = first[0], length = first[1] - first[0], offset = row * query + (uint64_t)head * width;
    float *qkv = saved->qkv + row * ld, *keys = qkv + query + (uint64_t)(head / group) * width;
    return (struct head){
        .query = qkv + (uint64_t)head * width,
        .key = keys,
        .value = keys + key,
        .qkv_ld = ld,
        .mixed = saved->mixed + offset,
        .mixed_ld = query,
        .offset = offset,
        .lse = saved->lse + row * c->heads + head * length,
        .first = first[0],
        .length = (uint32_t)length,
        .width = width,
        .window = window,
        .scale = 1 / sqrtf((float)width),
    };
}

static uint32_t strip_rows(const struct head *h, uint32_t first) {
    return h->length - first < QUERY_ROWS ? h->length - first : QUERY_ROWS;
}

/* A strip: the queries from `first` on, and the keys that they see, from `from` on. */
struct strip {
    uint32_t first, rows, from, keys;
    float *query, *key, *value;
};

static struct strip strip_at(const struct head *h, uint32_t first) {
    uint32_t rows = strip_rows(h, first), from = first >= h->window ? first - h->window + 1 : 0;
    return (struct strip){.first = first,
                          .rows = rows,
                          .from = from,
                          .keys = first + rows - from,
                          .query = h->query + first * h->qkv_ld,
                          .key = h->key + from * h->qkv_ld,
                          .value = h->value + from * h->qkv_ld};
}

/* Computes scores[rows][keys]. */
static void score(struct gpt *gpt, const struct head *h, const struct strip *s, float *scores,
                  uint32_t stride) {
    matmul(&gpt->failed, s->rows, s->keys, h->width, h->scale, plain(s->query, h->qkv_ld),
           transposed(s->key, h->qkv_ld), 0, scores, stride);
}

void attention_forward(struct gpt *gpt, const struct saved *saved, uint32_t window, uint32_t index,
                       uint32_t thread) {
    struct head h = find(gpt, saved, window, index / gpt->config.heads, index % gpt->config.heads);
    uint32_t stride = gpt->activations.strip_stride;
    float *scores = gpt->activations.strips + thread * gpt->activations.strip_elements;
    for (uint32_t first = gpt->pass.known; first < h.length; first += QUERY_ROWS) {
        struct strip s = strip_at(&h, first);
        score(gpt, &h, &s, scores, stride);
        gpt->kernels->softmax(scores, h.lse + first, stride, first - s.from, s.rows, s.keys, window);
        matmul(&gpt->failed, s.rows, h.width, s.keys, 1, plain(scores, stride), plain(s.value, h.qkv_ld), 0,
               h.mixed + first * h.mixed_ld, h.mixed_ld);
    }
}

/* A thread's scratch: two strips, the gradients of all keys and values, and a dot product for each query. */
struct scratch {
    float *p, *dp, *dkey, *dvalue, *dots;
    uint32_t stride;
};

static struct scratch scratch_of(const struct gpt *gpt, uint32_t thread) {
    const struct activations *a = &gpt->activations;
    struct scratch s = {.stride = a->strip_stride, .p = a->strips + thread * a->strip_elements};
    s.dp = s.p + QUERY_ROWS * s.stride;
    s.dkey = s.dp + QUERY_ROWS * s.stride;
    s.dvalue = s.dkey + (uint64_t)gpt->config.context * gpt->config.head_width;
    s.dots = s.dvalue + (uint64_t)gpt->config.context * gpt->config.head_width;
    return s;
}

/* Adds a strip's part of dkey and dvalue (beta 0: overwrites them), and overwrites the strip's queries with their
 * gradient. */
static void strip_backward(struct gpt *gpt, const struct head *h, const struct scratch *s,
                           const float *gradient, uint32_t first, float beta) {
    struct strip t = strip_at(h, first);
    uint64_t at = (uint64_t)t.from * h->width;
    float *dkey = s->dkey + at, *dvalue = s->dvalue + at;
    struct matrix dmixed = plain(gradient + first * h->mixed_ld, h->mixed_ld);
    if (beta == 0) memset(s->dkey, 0, at * sizeof *dkey), memset(s->dvalue, 0, at * sizeof *dvalue);
    score(gpt, h, &t, s->p, s->stride);
    matmul(&gpt->failed, t.rows, t.keys, h->width, 1, dmixed, transposed(t.value, h->qkv_ld), 0, s->dp,
           s->stride);
    gpt->kernels->row_dots(s->dots, h->mixed + first * h->mixed_ld, dmixed.data, (uint32_t)h->mixed_ld,
                           t.rows, h->width);
    gpt->kernels->softmax_backward(s->p, s->dp, h->lse + first, s->dots, s->stride, first - t.from, t.rows,
                                   t.keys, h->window);
    matmul(&gpt->failed, t.keys, h->width, t.rows, 1, transposed(s->p, s->stride), dmixed, beta, dvalue,
           h->width);
    matmul(&gpt->failed, t.keys, h->width, t.rows, h->scale, transposed(s->dp, s->stride),
           plain(t.query, h->qkv_ld), beta, dkey, h->width);
    matmul(&gpt->failed, t.rows, h->width, t.keys, h->scale, plain(s->dp, s->stride), plain(t.key, h->qkv_ld),
           0, t.query, h->qkv_ld);
}

/* Goes from the last strip to the first. The last strip uses all keys up to the end, so the last strip of the first head
 * can overwrite dkey and dvalue; all other strips add to them. */
void attention_backward(struct gpt *gpt, const struct saved *saved, const float *gradient, uint32_t window,
                        uint32_t index, uint32_t thread) {
    uint32_t sequence = index / gpt->config.kv_heads, keys = index % gpt->config.kv_heads;
    uint32_t group = gpt->config.heads / gpt->config.kv_heads;
    struct scratch s = scratch_of(gpt, thread);
    struct head h = {0};
    for (uint32_t member = 0; member < group; member++) {
        h = find(gpt, saved, window, sequence, keys * group + member);
        uint32_t strips = (h.length + QUERY_ROWS - 1) / QUERY_ROWS;
        for (uint32_t i = strips; i-- > 0;)
            strip_backward(gpt, &h, &s, gradient + h.offset, i * QUERY_ROWS,
                           member == 0 && i + 1 == strips ? 0 : 1);
    }
    for (uint32_t row = 0; row < h.length; row++) {
        gpt->kernels->scale_add(h.key + row * h.qkv_ld, s.dkey + (uint64_t)row * h.width, 0, h.width);
        gpt->kernels->scale_add(h.value + row * h.qkv_ld, s.dvalue + (uint64_t)row * h.width, 0, h.width);
    }
    float *queries = h.query - (uint64_t)(group - 1) * h.width; /* h is the last head of the group */
    rotary_turn(gpt, queries, h.qkv_ld, group, h.first, h.length, true);
    rotary_turn(gpt, h.key, h.qkv_ld, 1, h.first, h.length, true);
}
