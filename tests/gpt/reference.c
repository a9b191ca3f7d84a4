#include "tests/gpt/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpt/reference_llama.h"

struct model {
    const struct gpt_config *c;
    reference_get_fn get;
    void *user;
    char prefix[32];
};

static const double *tensor(struct model *m, const char *name) {
    char full[96];
    snprintf(full, sizeof full, "%s%s", m->prefix, name);
    return m->get(m->user, full);
}

static void norm(const struct model *m, const double *x, const double *gain, const double *bias, int rows,
                 double *y) {
    int width = (int)m->c->width;
    for (int r = 0; r < rows; r++, x += width, y += width) {
        double mean = 0, variance = 0;
        for (int i = 0; i < width; i++) mean += x[i] / width;
        for (int i = 0; i < width; i++) variance += (x[i] - mean) * (x[i] - mean) / width;
        for (int i = 0; i < width; i++)
            y[i] = (x[i] - mean) / sqrt(variance + m->c->layer_norm_epsilon) * gain[i] + bias[i];
    }
}

/* y[rows][out] = x[rows][in] w[in][out] + bias */
static void linear(const double *x, const double *w, const double *bias, int rows, int in, int out,
                   double *y) {
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < out; o++) {
            double s = bias[o];
            for (int i = 0; i < in; i++) s += x[r * in + i] * w[i * out + o];
            y[r * out + o] = s;
        }
}

static void attend(const struct model *m, const double *qkv, int length, int head, double *out) {
    int width = (int)m->c->width, size = width / (int)m->c->heads, at = head * size;
    for (int q = 0; q < length; q++) {
        double weight[length], total = 0;
        for (int k = 0; k <= q; k++) {
            double s = 0;
            for (int i = 0; i < size; i++)
                s += qkv[q * 3 * width + at + i] * qkv[k * 3 * width + width + at + i];
            total += weight[k] = exp(s / sqrt(size));
        }
        for (int i = 0; i < size; i++) {
            double s = 0;
            for (int k = 0; k <= q; k++) s += weight[k] / total * qkv[k * 3 * width + 2 * width + at + i];
            out[q * width + at + i] = s;
        }
    }
}

static double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

static void block(struct model *m, int batch, int length, double *x) {
    int width = (int)m->c->width, inner = (int)m->c->inner, rows = batch * length;
    double *n = malloc(sizeof(double) * rows * width), *qkv = malloc(sizeof(double) * rows * 3 * width);
    double *mixed = malloc(sizeof(double) * rows * width), *y = malloc(sizeof(double) * rows * width);
    double *wide = malloc(sizeof(double) * rows * inner);
    norm(m, x, tensor(m, "ln_1.weight"), tensor(m, "ln_1.bias"), rows, n);
    linear(n, tensor(m, "attn.c_attn.weight"), tensor(m, "attn.c_attn.bias"), rows, width, 3 * width, qkv);
    for (int b = 0; b < batch; b++)
        for (int h = 0; h < (int)m->c->heads; h++)
            attend(m, qkv + b * length * 3 * width, length, h, mixed + b * length * width);
    linear(mixed, tensor(m, "attn.c_proj.weight"), tensor(m, "attn.c_proj.bias"), rows, width, width, y);
    for (int i = 0; i < rows * width; i++) x[i] += y[i];
    norm(m, x, tensor(m, "ln_2.weight"), tensor(m, "ln_2.bias"), rows, n);
    linear(n, tensor(m, "mlp.c_fc.weight"), tensor(m, "mlp.c_fc.bias"), rows, width, inner, wide);
    for (int i = 0; i < rows * inner; i++) wide[i] = gelu(wide[i]);
    linear(wide, tensor(m, "mlp.c_proj.weight"), tensor(m, "mlp.c_proj.bias"), rows, inner, width, y);
    for (int i = 0; i < rows * width; i++) x[i] += y[i];
    free(n), free(qkv), free(mixed), free(y), free(wide);
}

static double row_loss(struct model *m, const double *x, const double *w, int target, double *logits) {
    double total = 0, wanted = 0;
    for (int v = 0; v < (int)m->c->vocab; v++) {
        double s = 0;
        for (int i = 0; i < (int)m->c->width; i++) s += x[i] * w[v * (int)m->c->width + i];
        if (logits) logits[v] = s;
        if (v == target) wanted = s;
        total += exp(s);
    }
    return log(total) - wanted;
}

/* Computes the input of the last norm. */
static void gpt2_stream(struct model *m, uint32_t batch, uint32_t length, const int32_t *tokens, double *x) {
    int width = (int)m->c->width, rows = (int)(batch * length);
    const double *wte = tensor(m, "wte.weight"), *wpe = tensor(m, "wpe.weight");
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < width; i++)
            x[r * width + i] = wte[tokens[r] * width + i] + wpe[r % (int)length * width + i];
    for (uint32_t i = 0; i < m->c->layers; i++) {
        snprintf(m->prefix, sizeof m->prefix, "h.%u.", i);
        block(m, (int)batch, (int)length, x);
    }
    m->prefix[0] = 0;
}

static void llama_stream(struct model *m, uint32_t batch, uint32_t length, const int32_t *tokens, double *x) {
    int width = (int)m->c->width, rows = (int)(batch * length);
    const double *embedding = tensor(m, "model.embed_tokens.weight");
    for (int i = 0; i < rows * width; i++) x[i] = embedding[tokens[i / width] * width + i % width];
    reference_llama_blocks(m->c, m->get, m->user, (int)batch, (int)length, x);
}

double reference_loss(const struct gpt_config *config, reference_get_fn get, void *user, uint32_t batch,
                      uint32_t length, const int32_t *tokens, const int32_t *targets, double *logits) {
    struct model m = {config, get, user, ""};
    int width = (int)config->width, rows = (int)(batch * length), llama = config->architecture != GPT_GPT2;
    double *x = malloc(sizeof(double) * rows * width), *n = malloc(sizeof(double) * rows * width), loss = 0;
    (llama ? llama_stream : gpt2_stream)(&m, batch, length, tokens, x);
    if (llama)
        reference_rms_norm(config, x, tensor(&m, "model.norm.weight"), rows, n);
    else
        norm(&m, x, tensor(&m, "ln_f.weight"), tensor(&m, "ln_f.bias"), rows, n);
    const double *head = tensor(&m, !config->tied ? "lm_head.weight"
                                    : llama       ? "model.embed_tokens.weight"
                                                  : "wte.weight");
    for (int r = 0; r < rows; r++)
        loss +=
            row_loss(&m, n + r * width, head, targets[r], logits ? logits + r * (int)config->vocab : NULL) /
            rows;
    free(x), free(n);
    return loss;
}
