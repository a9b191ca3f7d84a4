/* The forward of Llama and of its relatives, as Hugging Face's modeling_llama.py, modeling_mistral.py, modeling_qwen2.py and
 * modeling_qwen3.py have it. */
#include "tests/gpt/reference_llama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct model {
    const struct gpt_config *c;
    reference_get_fn get;
    void *user;
    uint32_t layer;
    int heads, kv_heads, head; /* head: width of one */
};

/* NULL: the model has no such tensor. */
static const double *tensor(const struct model *m, const char *name) {
    char full[96];
    snprintf(full, sizeof full, "model.layers.%u.%s", m->layer, name);
    return m->get(m->user, full);
}

void reference_rms_norm(const struct gpt_config *c, const double *x, const double *gain, int rows,
                        double *y) {
    int width = (int)c->width;
    for (int r = 0; r < rows; r++) {
        double square = 0;
        for (int i = 0; i < width; i++) square += x[r * width + i] * x[r * width + i] / width;
        for (int i = 0; i < width; i++)
            y[r * width + i] = x[r * width + i] / sqrt(square + c->layer_norm_epsilon) * gain[i];
    }
}

/* y[rows][out] (+)= x[rows][in] w[out][in]^T */
static void linear(const double *x, const double *w, int rows, int in, int out, int add, double *y) {
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < out; o++) {
            double s = add ? y[r * out + o] : 0;
            for (int i = 0; i < in; i++) s += x[r * in + i] * w[o * in + i];
            y[r * out + o] = s;
        }
}

/* As _compute_yarn_parameters has it. */
static double yarn(const struct gpt_config *c, int pair, int head) {
    double old = c->rope.original_context, low, high;
    low = head * log(old / (c->rope.high * 2 * M_PI)) / (2 * log(c->rope.theta));
    high = head * log(old / (c->rope.low * 2 * M_PI)) / (2 * log(c->rope.theta));
    if (!c->rope.exact_range) low = floor(low), high = ceil(high);
    if (low < 0) low = 0;
    if (high > head - 1) high = head - 1;
    double ramp = (pair - low) / (high == low ? 0.001 : high - low),
           f = 1 / pow(c->rope.theta, 2. * pair / head);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return f / c->rope.factor * ramp + f * (1 - ramp);
}

/* Radians per position; the scaling as _compute_llama3_parameters has it, by wavelengths. */
static double frequency(const struct gpt_config *c, int pair, int head) {
    double f = 1 / pow(c->rope.theta, 2. * pair / head), wave = 2 * M_PI / f, old = c->rope.original_context;
    if (c->rope.kind == GPT_ROPE_PLAIN) return f;
    if (c->rope.kind == GPT_ROPE_LINEAR) return f / c->rope.factor;
    if (c->rope.kind == GPT_ROPE_YARN) return yarn(c, pair, head);
    if (wave < old / c->rope.high) return f;
    if (wave > old / c->rope.low) return f / c->rope.factor;
    double smooth = (old / wave - c->rope.low) / (c->rope.high - c->rope.low);
    return (1 - smooth) * f / c->rope.factor + smooth * f;
}

static void rotate(const struct model *m, double *x, int rows, int heads, int length) {
    double length_of = m->c->rope.kind == GPT_ROPE_YARN ? m->c->rope.attention : 1;
    for (int i = 0; i < m->head / 2; i++) {
        double turns = frequency(m->c, i, m->head);
        for (int r = 0; r < rows; r++) {
            double angle = r % length * turns, c = cos(angle) * length_of, s = sin(angle) * length_of;
            for (int h = 0; h < heads; h++) {
                double *p = x + (r * heads + h) * m->head + i, *q = p + m->head / 2, a = *p, b = *q;
                *p = a * c - b * s;
                *q = b * c + a * s;
            }
        }
    }
}

static void attend(const struct model *m, const double *query, const double *key, const double *value,
                   int length, int head, double *out) {
    int kv = head / (m->heads / m->kv_heads), size = m->head, window = length;
    if (m->c->window && m->layer >= m->c->window_from) window = (int)m->c->window;
    for (int q = 0; q < length; q++) {
        double weight[length], total = 0;
        for (int k = 0; k <= q; k++) {
            double s = 0;
            if ((weight[k] = 0, k <= q - window)) continue;
            for (int i = 0; i < size; i++)
                s += query[(q * m->heads + head) * size + i] * key[(k * m->kv_heads + kv) * size + i];
            total += weight[k] = exp(s / sqrt(size));
        }
        for (int i = 0; i < size; i++) {
            double s = 0;
            for (int k = 0; k <= q; k++) s += weight[k] / total * value[(k * m->kv_heads + kv) * size + i];
            out[(q * m->heads + head) * size + i] = s;
        }
    }
}

static double *doubles(int count) { return malloc(sizeof(double) * (size_t)count); }

static void add_bias(const double *bias, int rows, int columns, double *x) {
    for (int i = 0; i < rows * columns && bias; i++) x[i] += bias[i % columns];
}

static void norm_heads(const struct model *m, const double *gain, int heads, double *x) {
    struct gpt_config narrow = *m->c;
    narrow.width = (uint32_t)m->head;
    if (gain) reference_rms_norm(&narrow, x, gain, heads, x);
}

static void attention(const struct model *m, int batch, int length, const double *n, double *x) {
    int width = (int)m->c->width, rows = batch * length, query = m->heads * m->head,
        key = m->kv_heads * m->head;
    double *q = doubles(rows * query), *k = doubles(rows * key), *v = doubles(rows * key);
    double *mixed = doubles(rows * query);
    linear(n, tensor(m, "self_attn.q_proj.weight"), rows, width, query, 0, q);
    linear(n, tensor(m, "self_attn.k_proj.weight"), rows, width, key, 0, k);
    linear(n, tensor(m, "self_attn.v_proj.weight"), rows, width, key, 0, v);
    add_bias(tensor(m, "self_attn.q_proj.bias"), rows, query, q);
    add_bias(tensor(m, "self_attn.k_proj.bias"), rows, key, k);
    add_bias(tensor(m, "self_attn.v_proj.bias"), rows, key, v);
    norm_heads(m, tensor(m, "self_attn.q_norm.weight"), rows * m->heads, q);
    norm_heads(m, tensor(m, "self_attn.k_norm.weight"), rows * m->kv_heads, k);
    rotate(m, q, rows, m->heads, length);
    rotate(m, k, rows, m->kv_heads, length);
    for (int b = 0; b < batch; b++)
        for (int h = 0; h < m->heads; h++)
            attend(m, q + b * length * query, k + b * length * key, v + b * length * key, length, h,
                   mixed + b * length * query);
    linear(mixed, tensor(m, "self_attn.o_proj.weight"), rows, query, width, 1, x);
    free(q), free(k), free(v), free(mixed);
}

static void mlp(const struct model *m, int rows, const double *n, double *x) {
    int width = (int)m->c->width, inner = (int)m->c->inner;
    double *gate = doubles(rows * inner), *up = doubles(rows * inner);
    linear(n, tensor(m, "mlp.gate_proj.weight"), rows, width, inner, 0, gate);
    linear(n, tensor(m, "mlp.up_proj.weight"), rows, width, inner, 0, up);
    for (int i = 0; i < rows * inner; i++) up[i] *= gate[i] / (1 + exp(-gate[i]));
    linear(up, tensor(m, "mlp.down_proj.weight"), rows, inner, width, 1, x);
    free(gate), free(up);
}

void reference_llama_blocks(const struct gpt_config *c, reference_get_fn get, void *user, int batch,
                            int length, double *x) {
    struct model m = {c,
                      get,
                      user,
                      0,
                      (int)c->heads,
                      (int)(c->kv_heads ? c->kv_heads : c->heads),
                      (int)(c->head_width ? c->head_width : c->width / c->heads)};
    int rows = batch * length;
    double *n = doubles(rows * (int)c->width);
    for (; m.layer < c->layers; m.layer++) {
        reference_rms_norm(c, x, tensor(&m, "input_layernorm.weight"), rows, n);
        attention(&m, batch, length, n, x);
        reference_rms_norm(c, x, tensor(&m, "post_attention_layernorm.weight"), rows, n);
        mlp(&m, rows, n, x);
    }
    free(n);
}
