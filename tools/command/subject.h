/* A model that is read from a path, for commands that only evaluate it: a checkpoint, a directory of checkpoints (the
 * latest), a run's directory, a Hugging Face directory, or a model file of llm.c. */
#pragma once

#include "engine/base/numbers/dtype.h"
#include "engine/config/config.h"
#include "tools/data/decoder.h"
#include "tools/train/job.h"

enum { SUBJECT_ENDS_MAX = 16, SUBJECT_RUN_BYTES = 4096 + 16 };

struct subject {
    char path[4096];      /* of the checkpoint or the weights */
    struct config config; /* resolved for one rank; with the model block */
    struct gpt_config model;
    struct pretrained pretrained; /* the weights, if the path is no checkpoint */
    enum dtype
        dtype; /* of compute: the run's, until subject_load takes fp32 where this processor cannot compute in it */
    const char *lacks;              /* why it took fp32; NULL: it did not */
    uint64_t context;               /* tokens of the run's samples; 0: the path is no checkpoint of a run */
    bool average;                   /* set by the command: use the checkpoint's averaged weights */
    char tokenizer[4096];           /* the directory in which it may lie; "": unknown */
    int32_t ends[SUBJECT_ENDS_MAX]; /* tokens that end a text */
    uint32_t end_count;
    int32_t begin; /* the token before a text */
    bool has_begin;
    zero_local *local; /* of the engine, from subject_load to subject_close */
};

zero_status subject_open(const char *path, uint64_t batch, uint64_t seed, struct subject *out,
                         struct zero_error *error);
/* Of a run's directory, its checkpoints; else the path as it is. ZERO_E_ARGUMENT: the path is not there, or the run saved nothing. */
zero_status subject_checkpoints(const char *path, char out[4096], struct zero_error *error);
/* Also after a failed open. The engine is destroyed before. */
void subject_close(struct subject *subject);

/* Opens an engine of one rank with the weights and without optimizer state, and the model in it. Ignores a launcher's variables.
 * The caller destroys both, also after a failure. */
zero_status subject_load(struct subject *subject, zero_engine **out_engine, struct gpt **out_gpt,
                         struct zero_error *error);

/* An engine's or a model's failure as a sentence. */
zero_status subject_failed(zero_status status, struct zero_error *error);

/* The run's directory, if the path is of a run's checkpoint; "": unknown. */
void subject_run(const struct subject *subject, char out[SUBJECT_RUN_BYTES]);

/* "of the run: bf16, sequences of 1,024 tokens"; out: "" where the path is no checkpoint of a run. After subject_load. */
void subject_settings(const struct subject *subject, char *out, size_t capacity);

/* *out: of `path`, or where that is NULL of the model's own directory; NULL: there is none, or none that can be read, of which
 * stderr says why. */
zero_status subject_decoder(const struct subject *subject, const char *path, struct decoder **out,
                            struct zero_error *error);

/* The tokenizer.json in a directory; NULL as above. `command` is named in the warning. */
struct decoder *subject_find_decoder(const char *directory, const char *command);
