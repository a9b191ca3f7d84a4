#include "tools/plan/host_work.h"

enum units { IN_EMBEDDING = 1, IN_BLOCK = 2, IN_HEAD = 4 };
enum family { OF_GPT2 = 1, OF_LLAMA = 2 /* and its relatives: RMSNorm, rotation, a gate */, OF_ALL = 3 };
enum elements { STREAM, HEADS, KEYS, INNER, VOCABULARY, ELEMENTS };

/* A pass of a unit over `times` rows of a token, in bytes of an element: 2 for each that is read or written in 16 bits, 4 in
 * fp32. Eager RMSNorm is a cast to fp32 (6), a square (8), a mean (4), a multiplication (8), a cast back (6) and the
 * multiplication by its weight (4); backward the two products with the weight and their sum (12), casts (12), the factor (8), its
 * product and sum for the mean (16), the square (12) and the sum of both ways (12). Eager rotation: a cast to fp32, a complex
 * multiplication, a cast back. Eager loss: a cast to fp32 and log-softmax; backward the target's gradient (4), log-softmax (12) and
 * the cast (6). An input of several products gets a sum of gradients for each but the first.
 * tools/gpt: a norm's backward reads the gradient in fp32 (4), and makes the gradients of its weight and of the stream's biases on the
 * way (as for widths that are multiples of 8, up to 4,096); products add residuals, and sums of gradients in fp32, as they write. */
/* clang-format off */
static const struct pass_bytes {
    const char *name;
    int places, families;
    enum elements of;
    double times;
    struct {
        double forward, backward;
    } bytes[3];   /* by enum kernels */
    double again; /* tools/gpt's, unless it keeps outputs */
    double attention, mlp; /* how often it belongs to these parts of a block */
} passes[] = {
    {"embedding",           IN_EMBEDDING,       OF_ALL,   STREAM,     1, {{4, 8},  {4, 8},   {4, 8}}, 0, 0, 0},
    {"RMSNorm",             IN_BLOCK,           OF_LLAMA, STREAM,     2, {{4, 8},  {36, 72}, {4, 10}}, 4, 1, 1},
    {"LayerNorm",           IN_BLOCK,           OF_GPT2,  STREAM,     2, {{4, 8},  {4, 10},  {4, 10}}, 4, 1, 1},
    {"last RMSNorm",        IN_HEAD,            OF_LLAMA, STREAM,     1, {{4, 8},  {36, 72}, {4, 8}}, 0, 0, 0},
    {"last LayerNorm",      IN_HEAD,            OF_GPT2,  STREAM,     1, {{4, 8},  {4, 10},  {4, 8}}, 0, 0, 0},
    {"residual sum",        IN_BLOCK,           OF_ALL,   STREAM,     2, {{6, 0},  {6, 6},   {2, 0}}, 0, 1, 0},
    {"sums of gradients",   IN_BLOCK,           OF_LLAMA, STREAM,     3, {{0, 2},  {0, 6},   {0, 4}}, 0, 0, 0},
    {"rotation, queries",   IN_BLOCK,           OF_LLAMA, HEADS,      1, {{4, 4},  {20, 20}, {4, 4}}, 0, 1, 0},
    {"rotation, keys",      IN_BLOCK,           OF_LLAMA, KEYS,       1, {{4, 4},  {20, 20}, {4, 4}}, 0, 1, 0},
    {"SwiGLU",              IN_BLOCK,           OF_LLAMA, INNER,      1, {{6, 10}, {10, 18}, {6, 10}}, 6, 0, 0},
    {"GELU",                IN_BLOCK,           OF_GPT2,  INNER,      1, {{4, 6},  {4, 6},   {4, 6}}, 4, 0, 0},
    {"biases' gradients",   IN_BLOCK,           OF_GPT2,  STREAM,     3, {{0, 2},  {0, 2},   {0, 2}}, 0, 0, 0},
    {"of the stream",       IN_BLOCK,           OF_GPT2,  STREAM,     2, {{0, 2},  {0, 2},   {0, 0}}, 0, 0, 0},
    {"biases' gradients",   IN_BLOCK,           OF_GPT2,  INNER,      1, {{0, 2},  {0, 2},   {0, 2}}, 0, 0, 0},
    {"loss",                IN_HEAD,            OF_ALL,   VOCABULARY, 1, {{4, 4},  {14, 22}, {4, 4}}, 0, 0, 0},
};
/* clang-format on */

struct elementwise elementwise_of(const struct shapes *s, uint32_t unit, enum kernels kernels) {
    double head = (double)(s->head_width ? s->head_width : s->width / s->heads), width = (double)s->width;
    uint32_t layers = (uint32_t)s->layers, ends = (shapes_units(s) - layers) / 2;
    const double elements[ELEMENTS] = {[STREAM] = width,
                                       [HEADS] = head * (double)s->heads,
                                       [KEYS] = head * (double)(s->kv_heads ? s->kv_heads : s->heads),
                                       [INNER] = s->inner ? (double)s->inner : 4 * width,
                                       [VOCABULARY] = (double)s->vocab / ends};
    int place = unit < ends            ? IN_EMBEDDING
                : unit < ends + layers ? IN_BLOCK
                                       : IN_HEAD,
        family = s->architecture == GPT_GPT2 ? OF_GPT2 : OF_LLAMA;
    struct elementwise all = {0};
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        const struct pass_bytes *p = &passes[i];
        if (!(p->places & place) || !(p->families & family)) continue;
        all.forward += p->times * elements[p->of] * p->bytes[kernels].forward;
        all.backward += p->times * elements[p->of] * p->bytes[kernels].backward;
        if (kernels != KERNELS_OWN) continue;
        all.again[p->of == INNER ? GPT_ACTIVATIONS : GPT_NORMS] += p->times * elements[p->of] * p->again;
        all.again[GPT_ATTENTION] += p->attention * elements[p->of] * p->bytes[kernels].forward;
        all.again[GPT_MLP] += p->mlp * elements[p->of] * p->bytes[kernels].forward;
    }
    return all;
}
