#include "tools/train/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text/output.h"

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
    /* the number of these, from the first on, that the model has already seen at their present positions */
    uint32_t known;
    float *logits; /* `vocab` of them */
    struct candidate *candidates;
    uint64_t state;
    bool prints, is_text;
    bool begun; /* a token's text is printed */
    struct printer printer;
};

/* ---- printing ---- */

static void print_token(struct sampler *s, int32_t token) {
    const struct decoder *decoder = s->job->sampling.decoder;
    if (s->is_text) { /* prints no control characters to a terminal, and no invalid UTF-8 */
        putchar(token == '\n' || token == '\t' || (token >= 32 && token <= 126) ? token : '.');
    } else if (decoder) {
        struct spelling text = decoder_spell(decoder, (uint32_t)token, !s->begun);
        printer_put(&s->printer, text.bytes, text.count);
        s->begun |= text.count > 0;
    } else {
        printf("%d ", token);
    }
    streams_flush();
}

/* A prompt of token numbers is printed where it has a text. */
static void print_prompt(struct sampler *s, const char *text) {
    printf("sample:\n%s", text);
    for (uint64_t i = 0; i < s->job->sampling.prompt_count && s->job->sampling.decoder; i++)
        print_token(s, s->job->sampling.prompt[i]);
}

/* ---- tokens ---- */

static void begin(struct sampler *s) {
    const struct job *job = s->job;
    const struct sampling *a = &job->sampling;
    uint32_t context = job->model.context;
    const char *prompt = job->prompt ? job->prompt : s->is_text ? "\n" : "";
    uint64_t cut = a->prompt_count > context ? a->prompt_count - context : 0;
    s->length = (uint32_t)(a->prompt_count - cut);
    if (a->prompt_count)
        memcpy(s->tokens, a->prompt + cut, s->length * sizeof *s->tokens);
    else
        s->length = encode(prompt, s->is_text, job->model.vocab, context, s->tokens);
    if (!a->prompt_count && !s->is_text && a->has_begin) s->tokens[0] = a->begin;
    if (s->prints) print_prompt(s, prompt);
}

/* Copies rank 0's `next` to all ranks, unless a rank has failed or was asked to stop. */
static zero_status agree(struct sampler *s, double *next) {
    double sums[AGREED + 1] = {[AGREED] = s->prints ? *next : 0};
    zero_status status = agreement_sum(s->engine, sums, AGREED + 1, s->error);
    *next = sums[AGREED];
    return status;
}

static bool ends_text(const struct sampling *a, int32_t token) {
    for (uint32_t i = 0; i < a->end_count; i++)
        if (a->ends[i] == token) return true;
    return false;
}

static zero_status next_token(struct sampler *s, bool *out_ended) {
    const struct job *job = s->job;
    uint32_t context = job->model.context, known = job->sampling.no_cache ? 0 : s->known;
    zero_status status = gpt_next_logits(s->gpt, s->tokens, s->length, known, s->logits);
    if (status != ZERO_OK) return agreement_engine_failed(status, s->error);
    double next = !s->prints ? 0
                             : choose_token(&job->sampling.choosing, s->logits, job->model.vocab, &s->state,
                                            s->candidates);
    TRY(agree(s, &next));
    *out_ended = ends_text(&job->sampling, (int32_t)next);
    s->known = s->length;
    if (s->length == context) { /* all tokens move to other positions */
        memmove(s->tokens, s->tokens + 1, --s->length * sizeof *s->tokens);
        s->known = 0;
    }
    s->tokens[s->length++] = (int32_t)next;
    if (s->prints && !*out_ended) print_token(s, (int32_t)next);
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
                        .candidates = malloc(vocab * sizeof *s.candidates),
                        .state = job->config.seed,
                        .prints = zero_engine_rank(engine) == 0,
                        .is_text = job->is_text,
                        .printer = {.out = stdout}};
    if (!s.tokens || !s.logits || !s.candidates)
        error_set(error, ZERO_E_MEMORY, "no memory for a sample's %u tokens and the scores of %u", context,
                  vocab);
    zero_status status = agree(&s, &(double){0});
    bool ended = false;
    if (status == ZERO_OK) begin(&s);
    for (uint64_t i = 0; i < job->sample && status == ZERO_OK && !ended; i++) status = next_token(&s, &ended);
    if (s.prints && s.length) printer_end(&s.printer), putchar('\n');
    free(s.tokens);
    free(s.logits);
    free(s.candidates);
    return status;
}
