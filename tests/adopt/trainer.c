/* A trainer that knows nothing of the engine, of the kind of llm.c: a small transformer in plain C. All parameters are in one array,
 * and in it all layers of a kind one after another; the gradients are in a second array, which the backward adds to; AdamW has two
 * more. OpenMP cuts every loop by what it writes, so that the bits do not depend on the number of threads. Each token of the data
 * follows from the two before it.
 *
 *   trainer STEPS    prints the loss of each step, and of a batch that it does not train on */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, WIDTH = 32, HEADS = 4, HEAD = WIDTH / HEADS, TIME = 16, WORDS = 61, BATCH = 4 };
enum { TENSORS = 13 };

struct tensors {
    float *wte, *wpe;                                 /* WORDS x WIDTH, also the head; TIME x WIDTH */
    float *norm1, *qkvw, *qkvb, *projw, *projb;       /* LAYERS of each */
    float *norm2, *upw, *upb, *downw, *downb, *normf; /* LAYERS of each; the last is one */
};

/* clang-format off */
static const size_t sizes[TENSORS] = {
    WORDS * WIDTH, TIME * WIDTH,
    LAYERS * WIDTH, LAYERS * 3 * WIDTH * WIDTH, LAYERS * 3 * WIDTH, LAYERS * WIDTH * WIDTH, LAYERS * WIDTH,
    LAYERS * WIDTH, LAYERS * 4 * WIDTH * WIDTH, LAYERS * 4 * WIDTH, LAYERS * 4 * WIDTH * WIDTH, LAYERS * WIDTH, WIDTH};
/* clang-format on */

/* Kept from the forward for the backward; of each layer but for the last three. n: rows, a token each. */
struct activations {
    float *x, *rms1, *normed1, *qkv, *attention, *mixed, *middle, *rms2, *normed2, *up, *active;
    float *rmsf, *normedf, *probs;
};

struct model {
    struct tensors params, grads;
    struct activations acts;
    float *params_memory, *grads_memory, *m_memory, *v_memory, *acts_memory, *scratch;
    size_t count; /* of parameters */
    int tokens[BATCH * TIME], targets[BATCH * TIME];
};

static float *zeros(size_t count) {
    float *memory = calloc(count, sizeof *memory);
    if (!memory) exit(1);
    return memory;
}

/* ---- layers ---- */

static void embed_forward(float *out, const int *tokens, const float *wte, const float *wpe, int rows) {
#pragma omp parallel for
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < WIDTH; c++)
            out[r * WIDTH + c] = wte[tokens[r] * WIDTH + c] + wpe[r % TIME * WIDTH + c];
}

static void embed_backward(float *dwte, float *dwpe, const float *dout, const int *tokens, int rows) {
#pragma omp parallel for
    for (int c = 0; c < WIDTH; c++)
        for (int r = 0; r < rows; r++) {
            dwte[tokens[r] * WIDTH + c] += dout[r * WIDTH + c];
            dwpe[r % TIME * WIDTH + c] += dout[r * WIDTH + c];
        }
}

static void norm_forward(float *out, float *rms, const float *in, const float *weight, int rows) {
#pragma omp parallel for
    for (int r = 0; r < rows; r++) {
        float sum = 0;
        for (int c = 0; c < WIDTH; c++) sum += in[r * WIDTH + c] * in[r * WIDTH + c];
        rms[r] = 1 / sqrtf(sum / WIDTH + 1e-5f);
        for (int c = 0; c < WIDTH; c++) out[r * WIDTH + c] = in[r * WIDTH + c] * rms[r] * weight[c];
    }
}

static void norm_backward(float *din, float *dweight, const float *dout, const float *in, const float *rms,
                          const float *weight, int rows) {
#pragma omp parallel for
    for (int r = 0; r < rows; r++) {
        const float *x = in + r * WIDTH, *dy = dout + r * WIDTH;
        float sum = 0;
        for (int c = 0; c < WIDTH; c++) sum += dy[c] * weight[c] * x[c];
        float mean = sum * rms[r] * rms[r] / WIDTH;
        for (int c = 0; c < WIDTH; c++) din[r * WIDTH + c] += rms[r] * (dy[c] * weight[c] - x[c] * mean);
    }
#pragma omp parallel for
    for (int c = 0; c < WIDTH; c++)
        for (int r = 0; r < rows; r++) dweight[c] += dout[r * WIDTH + c] * in[r * WIDTH + c] * rms[r];
}

/* out = in weight' + bias; weight is outs x ins. bias may be NULL. */
static void matmul_forward(float *out, const float *in, const float *weight, const float *bias, int rows,
                           int ins, int outs) {
#pragma omp parallel for
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < outs; o++) {
            float sum = bias ? bias[o] : 0;
            for (int i = 0; i < ins; i++) sum += in[r * ins + i] * weight[o * ins + i];
            out[r * outs + o] = sum;
        }
}

static void matmul_backward(float *din, float *dweight, float *dbias, const float *dout, const float *in,
                            const float *weight, int rows, int ins, int outs) {
#pragma omp parallel for
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < ins; i++) din[r * ins + i] = 0;
        for (int o = 0; o < outs; o++)
            for (int i = 0; i < ins; i++) din[r * ins + i] += dout[r * outs + o] * weight[o * ins + i];
    }
#pragma omp parallel for
    for (int o = 0; o < outs; o++)
        for (int r = 0; r < rows; r++) {
            if (dbias) dbias[o] += dout[r * outs + o];
            for (int i = 0; i < ins; i++) dweight[o * ins + i] += dout[r * outs + o] * in[r * ins + i];
        }
}

/* qkv: rows of 3 x WIDTH; attention: TIME x TIME probabilities of each head of each sequence. */
static void attention_forward(float *out, float *attention, const float *qkv, int rows) {
#pragma omp parallel for
    for (int bh = 0; bh < rows / TIME * HEADS; bh++)
        for (int t = 0; t < TIME; t++) {
            const float *at = qkv + (size_t)(bh / HEADS * TIME) * 3 * WIDTH + bh % HEADS * HEAD;
            float *p = attention + ((size_t)bh * TIME + t) * TIME,
                  *y = out + (bh / HEADS * TIME + t) * WIDTH + bh % HEADS * HEAD;
            float sum = 0;
            for (int s = 0; s <= t; s++) {
                float dot = 0;
                for (int i = 0; i < HEAD; i++) dot += at[t * 3 * WIDTH + i] * at[s * 3 * WIDTH + WIDTH + i];
                sum += p[s] = expf(dot / sqrtf(HEAD));
            }
            memset(y, 0, HEAD * sizeof *y);
            for (int s = 0; s <= t; s++) {
                p[s] /= sum;
                for (int i = 0; i < HEAD; i++) y[i] += p[s] * at[s * 3 * WIDTH + 2 * WIDTH + i];
            }
        }
}

static void attention_backward(float *dqkv, const float *dout, const float *attention, const float *qkv,
                               int rows) {
    memset(dqkv, 0, (size_t)rows * 3 * WIDTH * sizeof *dqkv);
#pragma omp parallel for
    for (int bh = 0; bh < rows / TIME * HEADS; bh++)
        for (int t = 0; t < TIME; t++) {
            size_t first = (size_t)(bh / HEADS * TIME) * 3 * WIDTH + bh % HEADS * HEAD;
            const float *at = qkv + first, *p = attention + ((size_t)bh * TIME + t) * TIME;
            const float *dy = dout + (bh / HEADS * TIME + t) * WIDTH + bh % HEADS * HEAD;
            float *d = dqkv + first, dp[TIME], mean = 0;
            for (int s = 0; s <= t; s++) {
                dp[s] = 0;
                for (int i = 0; i < HEAD; i++) {
                    dp[s] += dy[i] * at[s * 3 * WIDTH + 2 * WIDTH + i];
                    d[s * 3 * WIDTH + 2 * WIDTH + i] += p[s] * dy[i];
                }
                mean += p[s] * dp[s];
            }
            for (int s = 0; s <= t; s++) {
                float dscore = p[s] * (dp[s] - mean) / sqrtf(HEAD);
                for (int i = 0; i < HEAD; i++) {
                    d[t * 3 * WIDTH + i] += dscore * at[s * 3 * WIDTH + WIDTH + i];
                    d[s * 3 * WIDTH + WIDTH + i] += dscore * at[t * 3 * WIDTH + i];
                }
            }
        }
}

static void silu_forward(float *out, const float *in, int count) {
#pragma omp parallel for
    for (int i = 0; i < count; i++) out[i] = in[i] / (1 + expf(-in[i]));
}

static void silu_backward(float *din, const float *in, int count) {
#pragma omp parallel for
    for (int i = 0; i < count; i++) {
        float s = 1 / (1 + expf(-in[i]));
        din[i] *= s * (1 + in[i] * (1 - s));
    }
}

static void add(float *out, const float *a, const float *b, int count) {
#pragma omp parallel for
    for (int i = 0; i < count; i++) out[i] = a[i] + b[i];
}

/* The mean loss. Logits become their gradient. */
static double cross_entropy(float *logits, const int *targets, int rows) {
    double loss = 0;
    for (int r = 0; r < rows; r++) {
        float *p = logits + r * WORDS, sum = 0;
        for (int v = 0; v < WORDS; v++) sum += p[v] = expf(p[v]);
        loss -= log((double)(p[targets[r]] / sum));
        for (int v = 0; v < WORDS; v++) p[v] = (p[v] / sum - (v == targets[r])) / (float)rows;
    }
    return loss / rows;
}

/* ---- the model ---- */

static void model_build(struct model *m) {
    uint64_t random = 1;
    for (int k = 0; k < TENSORS; k++) m->count += sizes[k];
    m->params_memory = zeros(m->count);
    m->grads_memory = zeros(m->count);
    m->m_memory = zeros(m->count);
    m->v_memory = zeros(m->count);
    float *at = m->params_memory;
    for (int k = 0; k < TENSORS; at += sizes[k], k++) {
        ((float **)&m->params)[k] = at;
        ((float **)&m->grads)[k] = m->grads_memory + (at - m->params_memory);
        for (size_t i = 0; i < sizes[k]; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            at[i] = ((float)(random >> 40) * 0x1p-23f - 1) * 0.2f;
        }
    }
    for (int c = 0; c < LAYERS * WIDTH; c++) m->params.norm1[c] = m->params.norm2[c] = 1;
    for (int c = 0; c < WIDTH; c++) m->params.normf[c] = 1;
}

static void model_reserve(struct model *m) {
    enum { ROWS = BATCH * TIME, KINDS = 14 };
    /* clang-format off */
    static const size_t floats[KINDS] = {
        (LAYERS + 1) * ROWS * WIDTH, LAYERS * ROWS, LAYERS * ROWS * WIDTH, LAYERS * ROWS * 3 * WIDTH,
        LAYERS * ROWS * HEADS * TIME, LAYERS * ROWS * WIDTH, LAYERS * ROWS * WIDTH, LAYERS * ROWS,
        LAYERS * ROWS * WIDTH, LAYERS * ROWS * 4 * WIDTH, LAYERS * ROWS * 4 * WIDTH,
        ROWS, ROWS * WIDTH, ROWS * WORDS};
    /* clang-format on */
    size_t all = 0;
    for (int k = 0; k < KINDS; k++) all += floats[k];
    float *at = m->acts_memory = zeros(all);
    for (int k = 0; k < KINDS; at += floats[k], k++) ((float **)&m->acts)[k] = at;
    m->scratch = zeros(ROWS * 10 * WIDTH);
}

static double model_forward(struct model *m, int rows) {
    struct tensors p = m->params;
    struct activations a = m->acts;
    float *out = m->scratch;
    embed_forward(a.x, m->tokens, p.wte, p.wpe, rows);
    for (int l = 0; l < LAYERS; l++) {
        float *x = a.x + l * rows * WIDTH, *next = x + rows * WIDTH, *middle = a.middle + l * rows * WIDTH;
        float *normed1 = a.normed1 + l * rows * WIDTH, *normed2 = a.normed2 + l * rows * WIDTH;
        float *qkv = a.qkv + l * rows * 3 * WIDTH, *mixed = a.mixed + l * rows * WIDTH;
        float *up = a.up + l * rows * 4 * WIDTH, *active = a.active + l * rows * 4 * WIDTH;
        norm_forward(normed1, a.rms1 + l * rows, x, p.norm1 + l * WIDTH, rows);
        matmul_forward(qkv, normed1, p.qkvw + l * 3 * WIDTH * WIDTH, p.qkvb + l * 3 * WIDTH, rows, WIDTH,
                       3 * WIDTH);
        attention_forward(mixed, a.attention + l * rows * HEADS * TIME, qkv, rows);
        matmul_forward(out, mixed, p.projw + l * WIDTH * WIDTH, p.projb + l * WIDTH, rows, WIDTH, WIDTH);
        add(middle, x, out, rows * WIDTH);
        norm_forward(normed2, a.rms2 + l * rows, middle, p.norm2 + l * WIDTH, rows);
        matmul_forward(up, normed2, p.upw + l * 4 * WIDTH * WIDTH, p.upb + l * 4 * WIDTH, rows, WIDTH,
                       4 * WIDTH);
        silu_forward(active, up, rows * 4 * WIDTH);
        matmul_forward(out, active, p.downw + l * 4 * WIDTH * WIDTH, p.downb + l * WIDTH, rows, 4 * WIDTH,
                       WIDTH);
        add(next, middle, out, rows * WIDTH);
    }
    norm_forward(a.normedf, a.rmsf, a.x + LAYERS * rows * WIDTH, p.normf, rows);
    matmul_forward(a.probs, a.normedf, p.wte, NULL, rows, WIDTH, WORDS);
    return cross_entropy(a.probs, m->targets, rows);
}

static void model_backward(struct model *m, int rows) {
    struct tensors p = m->params, g = m->grads;
    struct activations a = m->acts;
    float *dx = m->scratch, *dnormed = dx + rows * WIDTH, *dqkv = dnormed + rows * WIDTH,
          *dup = dqkv + rows * 3 * WIDTH;
    memset(dx, 0, (size_t)rows * WIDTH * sizeof *dx);
    matmul_backward(dnormed, g.wte, NULL, a.probs, a.normedf, p.wte, rows, WIDTH, WORDS);
    norm_backward(dx, g.normf, dnormed, a.x + LAYERS * rows * WIDTH, a.rmsf, p.normf, rows);
    for (int l = LAYERS - 1; l >= 0; l--) {
        float *x = a.x + l * rows * WIDTH, *middle = a.middle + l * rows * WIDTH,
              *qkv = a.qkv + l * rows * 3 * WIDTH;
        float *normed1 = a.normed1 + l * rows * WIDTH, *normed2 = a.normed2 + l * rows * WIDTH;
        float *up = a.up + l * rows * 4 * WIDTH, *active = a.active + l * rows * 4 * WIDTH;
        matmul_backward(dup, g.downw + l * 4 * WIDTH * WIDTH, g.downb + l * WIDTH, dx, active,
                        p.downw + l * 4 * WIDTH * WIDTH, rows, 4 * WIDTH, WIDTH);
        silu_backward(dup, up, rows * 4 * WIDTH);
        matmul_backward(dnormed, g.upw + l * 4 * WIDTH * WIDTH, g.upb + l * 4 * WIDTH, dup, normed2,
                        p.upw + l * 4 * WIDTH * WIDTH, rows, WIDTH, 4 * WIDTH);
        norm_backward(dx, g.norm2 + l * WIDTH, dnormed, middle, a.rms2 + l * rows, p.norm2 + l * WIDTH, rows);
        matmul_backward(dnormed, g.projw + l * WIDTH * WIDTH, g.projb + l * WIDTH, dx,
                        a.mixed + l * rows * WIDTH, p.projw + l * WIDTH * WIDTH, rows, WIDTH, WIDTH);
        attention_backward(dqkv, dnormed, a.attention + l * rows * HEADS * TIME, qkv, rows);
        matmul_backward(dnormed, g.qkvw + l * 3 * WIDTH * WIDTH, g.qkvb + l * 3 * WIDTH, dqkv, normed1,
                        p.qkvw + l * 3 * WIDTH * WIDTH, rows, WIDTH, 3 * WIDTH);
        norm_backward(dx, g.norm1 + l * WIDTH, dnormed, x, a.rms1 + l * rows, p.norm1 + l * WIDTH, rows);
    }
    embed_backward(g.wte, g.wpe, dx, m->tokens, rows);
}

/* ---- training ---- */

static void read_batch(struct model *m, int first, int sequences) {
    for (int b = 0; b < sequences; b++) {
        uint64_t random = (uint64_t)(first + b) * 0x9e3779b97f4a7c15u;
        int token = (int)((random >> 40) % WORDS), before = (int)((random >> 20) % WORDS);
        for (int t = 0; t < TIME; t++) {
            int next = (token + before % 2 + 1) % WORDS;
            m->tokens[b * TIME + t] = token, m->targets[b * TIME + t] = next;
            before = token, token = next;
        }
    }
}

/* AdamW (Loshchilov and Hutter 2019). */
static void model_update(struct model *m, int step) {
    float rate = (float)(3e-3 / (1 - pow(0.9, step))), root = (float)(1 / sqrt(1 - pow(0.99, step))),
          decay = (float)(3e-3 * 0.01);
#pragma omp parallel for
    for (size_t i = 0; i < m->count; i++) {
        float *w = m->params_memory + i, *mean = m->m_memory + i, *square = m->v_memory + i,
              grad = m->grads_memory[i];
        *mean = fmaf(0.9f, *mean, (float)(1 - 0.9) * grad);
        *square = fmaf(0.99f, *square, (float)(1 - 0.99) * grad * grad);
        *w = fmaf(-rate, *mean / fmaf(sqrtf(*square), root, 1e-8f), fmaf(-decay, *w, *w));
    }
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 20, sequences = BATCH;
    static struct model model;
    model_build(&model);
    model_reserve(&model);
    for (int step = 1; step <= steps; step++) {
        read_batch(&model, step * sequences, sequences);
        double loss = model_forward(&model, sequences * TIME);
        memset(model.grads_memory, 0, model.count * sizeof(float));
        model_backward(&model, sequences * TIME);
        model_update(&model, step);
        printf("step %d loss %.17g\n", step, loss);
    }
    read_batch(&model, 0, sequences);
    printf("validation loss %.17g\n", model_forward(&model, sequences * TIME));
    return 0;
}
