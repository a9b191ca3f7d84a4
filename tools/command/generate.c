#include "tools/command/generate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/command/agreement.h"
#include "tools/command/streams.h"

static const double temperature = 0.8;

/* splitmix64; in [0, 1). */
static double draw(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

static int32_t choose(const float *logits, uint32_t vocab, uint64_t *state) {
    double largest = logits[0], sum = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > largest) largest = logits[i];
    for (uint32_t i = 0; i < vocab; i++) sum += exp((logits[i] - largest) / temperature);
    double left = draw(state) * sum;
    for (uint32_t i = 0; i < vocab; i++) {
        left -= exp((logits[i] - largest) / temperature);
        if (left < 0) return (int32_t)i;
    }
    return (int32_t)vocab - 1;
}

static void print_token(int32_t token, bool is_text) {
    if (!is_text)
        printf("%d ", token);
    else /* prints no control characters to a terminal, and no invalid UTF-8 */
        putchar(token == '\n' || token == '\t' || (token >= 32 && token <= 126) ? token : '.');
    streams_flush();
}

enum { GPT2_END_OF_TEXT = 50256 }; /* the token between two documents of GPT-2's training data */

/* Writes the first tokens of the window: at least one, because the model needs a token to continue. */
static uint32_t encode(const char *prompt, bool is_text, uint32_t vocab, uint32_t capacity, int32_t *tokens) {
    size_t length = strlen(prompt);
    if (length > capacity) prompt += length - capacity, length = capacity;
    uint32_t count = 0, first = is_text ? '\n' : GPT2_END_OF_TEXT;
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)prompt[i] < vocab) tokens[count++] = (unsigned char)prompt[i];
    if (!count) tokens[count++] = first < vocab ? (int32_t)first : 0;
    return count;
}

struct sampler {
    zero_engine *engine;
    struct gpt *gpt;
    const struct job *job;
    struct zero_error *error;
    int32_t *tokens; /* `context` tokens, of which the first `length` are set */
    uint32_t length;
    float *logits; /* `vocab` of them */
    uint64_t state;
    bool speaks, is_text;
};

/* Copies rank 0's `next` to all ranks, unless a rank has failed or was asked to stop. */
static zero_status agree(struct sampler *s, double *next) {
    double sums[AGREED + 1] = {[AGREED] = s->speaks ? *next : 0};
    zero_status status = agreement_sum(s->engine, sums, AGREED + 1, s->error);
    *next = sums[AGREED];
    return status;
}

static zero_status next_token(struct sampler *s) {
    uint32_t context = s->job->model.context;
    zero_status status = gpt_logits(s->gpt, s->tokens, s->length, s->logits);
    if (status != ZERO_OK) return agreement_engine_failed(status, s->error);
    double next = s->speaks ? choose(s->logits, s->job->model.vocab, &s->state) : 0;
    status = agree(s, &next);
    if (status != ZERO_OK) return status;
    if (s->length == context) memmove(s->tokens, s->tokens + 1, --s->length * sizeof *s->tokens);
    s->tokens[s->length++] = (int32_t)next;
    if (s->speaks) print_token((int32_t)next, s->is_text);
    return ZERO_OK;
}

zero_status generate(zero_engine *engine, struct gpt *gpt, const struct job *job, struct zero_error *error) {
    uint32_t context = job->model.context, vocab = job->model.vocab;
    struct sampler s = {.engine = engine,
                        .gpt = gpt,
                        .job = job,
                        .error = error,
                        .tokens = malloc(context * sizeof *s.tokens),
                        .logits = malloc(vocab * sizeof *s.logits),
                        .state = job->config.seed,
                        .speaks = zero_engine_rank(engine) == 0,
                        .is_text = job->is_text};
    if (!s.tokens || !s.logits)
        error_set(error, ZERO_E_MEMORY, "no memory for a sample's %u tokens and the scores of %u", context,
                  vocab);
    zero_status status = agree(&s, &(double){0});
    const char *prompt = job->prompt ? job->prompt : s.is_text ? "\n" : "";
    if (status == ZERO_OK) s.length = encode(prompt, s.is_text, vocab, context, s.tokens);
    if (status == ZERO_OK && s.speaks) printf("sample:\n%s", prompt);
    for (uint64_t i = 0; i < job->sample && status == ZERO_OK; i++) status = next_token(&s);
    if (s.speaks && s.length) putchar('\n');
    free(s.tokens);
    free(s.logits);
    return status;
}
