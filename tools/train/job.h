/* The options and inputs of one `zero train`, shared by all ranks of this process; constant once the ranks start. */
#pragma once

#include "engine/base/error.h"
#include "engine/config/config.h"
#include "engine/zero.h"
#include "tools/data/decoder.h"
#include "tools/gpt/gpt.h"
#include "tools/run_directory/run_directory.h"
#include "tools/train/feed.h"
#include "tools/weights/weights.h"

/* ---- choose.c: chooses the next token from logits ---- */
/* The order is that of transformers: the temperature, then the k largest, then the smallest set of the most probable tokens
 * whose probability is at least top_p. */
struct choosing {
    double temperature; /* 0: the most probable token */
    uint64_t top_k;     /* 0: all */
    double top_p;       /* 1: all */
};

#define CHOOSING_DEFAULT                                                                                     \
    (struct choosing) { .temperature = 0.8, .top_p = 1 }

struct candidate {
    double weight;
    int32_t token;
};

/* *state: of the draws; the same state gives the same token. `scratch`: vocab of them. */
int32_t choose_token(const struct choosing *choosing, const float *logits, uint32_t vocab, uint64_t *state,
                     struct candidate *scratch);

/* ---- pretrained.c: the weights in a Hugging Face directory, as the first weights of a run: `zero train --model DIR`. A process opens
 * them once and its ranks share them, because reading changes nothing. Each rank reads only the elements that it owns. ---- */
struct pretrained {
    const char *directory;   /* NULL: none is given */
    struct weights *weights; /* NULL: the run begins with random weights */
    uint64_t identity;       /* a hash, to compare the ranks; 0: random weights */
};

/* Opens the weights in out->directory. Leaves out->weights NULL if the directory has no weights, or if the path is a
 * file. Errors: the weights are a pickle, are damaged, or belong to another model than `model`. */
zero_status pretrained_open(struct pretrained *out, const struct gpt_config *model, struct zero_error *error);
void pretrained_close(struct pretrained *pretrained); /* a zeroed struct is allowed */

/* `user` of pretrained_fill, which is a zero_fill_fn. `error` gets the first failure to read; the elements are then 0,
 * and the caller lets the ranks agree. */
struct pretrained_fill {
    const struct pretrained *from;
    struct zero_error *error;
};
void pretrained_fill(void *user, const char *param, uint64_t first, uint64_t count, float *out);

/* How text is generated. */
struct sampling {
    struct choosing choosing;
    const struct decoder *decoder; /* NULL: numbers of tokens are printed */
    const int32_t *prompt;         /* in place of a text */
    uint64_t prompt_count;
    const int32_t *ends; /* tokens that end a text */
    uint32_t end_count;
    int32_t begin; /* the token before a text, if there is no prompt */
    bool has_begin;
    bool no_cache; /* compute all tokens again for each */
};

struct job {
    struct run_request run;     /* its directory, and the configuration's text */
    const char *gpu, *hardware; /* the machine that the command line describes; NULL: none */
    const char *transport;      /* of ranks that are processes; NULL: threads */
    const char *tokenizer;      /* the directory in which it may lie; NULL: none */
    struct config config;       /* resolved for `ranks` */
    struct gpt_config model;
    struct pretrained pretrained; /* the first weights of a run that begins anew */
    struct dataset dataset;
    /* Why the first weights or the dataset could not be opened: the ranks agree on it before they train. */
    struct zero_error data_error;
    struct zero_error lock_error; /* why the lock could not be taken: the ranks agree on it too */
    zero_local *local;            /* NULL: this process is one rank */
    uint32_t ranks;
    uint64_t steps;      /* 0: one pass over the training samples */
    uint64_t eval_every; /* 0: the held-out loss is not measured */
    bool eval_average;   /* then that of the averaged weights, too */
    uint64_t sample;     /* tokens to generate at the end */
    const char *prompt;  /* NULL: no prompt */
    struct sampling sampling;
    uint64_t save_every; /* steps; 0: nothing is saved */
    uint64_t keep;       /* checkpoints; 0: all */
    bool is_text;        /* tokens are bytes */
    bool live;           /* show a live line on a terminal; not under mpirun, whose output may go elsewhere */
};

/* ---- generate.c: generates text from the current weights. Every rank computes; rank 0 chooses each token. ---- */
/* Draws up to job->sample tokens after the prompt, by job->sampling; uses at most the last context - 1 tokens. Rank 0
 * prints printable ASCII and dots where tokens are bytes, their text where there is a decoder, else token numbers.
 * ZERO_E_INTERRUPTED: all ranks stopped after the same token. `error` holds this rank's failure; an empty message means
 * that another rank reports the failure. Collective. */
zero_status generate(zero_engine *engine, struct gpt *gpt, const struct job *job, struct zero_error *error);

/* ---- agreement.c: whether all ranks go on. A rank keeps a failure outside the engine, or a signal, and sends it with sums that all
 * ranks make; so all ranks stop at the same place. ---- */
enum { FAILED, INTERRUPTED, SIGNALS, AGREED }; /* indices of the first sums */

/* Sums `values` over all ranks. The first AGREED values are set here: the caller's begin at AGREED. `error`: this rank's
 * failure so far. ZERO_E_PEER: a rank has a failure; ZERO_E_INTERRUPTED: a rank got a signal. Both without a message if this
 * rank has no failure to report; values[FAILED] or values[INTERRUPTED] is then above 0. Collective. */
zero_status agreement_sum(zero_engine *engine, double *values, uint32_t count, struct zero_error *error);

/* A call of the engine or of the model failed: keeps its message, or else the status's meaning. */
zero_status agreement_engine_failed(zero_status status, struct zero_error *error);
