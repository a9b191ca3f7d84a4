/* A GPT in a foreign format, for reading: one table, and one file per format. Names, shapes and layouts are those of
 * tools/gpt, which are Hugging Face's; a format with other ones translates them. The code trusts no value in a file. */
#pragma once

#include <stdio.h>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/storage.h"
#include "engine/config/config.h"
#include "tools/gpt/gpt.h"

struct weights;

struct weights_format {
    const char *name;
    bool (*recognises)(const char *path);
    zero_status (*open)(const char *path, struct weights **out, struct zero_error *error);
    /* Reads elements [first, first + count) of a parameter of the model, as fp32; in any order. Hugging
     * Face's: any thread. */
    zero_status (*read)(struct weights *weights, const struct gpt_param *param, uint64_t first,
                        uint64_t count, float *out, struct zero_error *error);
    /* A hash by which ranks on several machines compare their files: of the tensors' names and types, and of a sample of
     * the contents. NULL: the format has none. */
    zero_status (*identify)(struct weights *weights, uint64_t *out, struct zero_error *error);
    void (*close)(struct weights *weights);
};

struct weights { /* the first member of every format's own struct */
    const struct weights_format *format;
    struct config config; /* resolved; with the model block of the file */
    struct gpt_config model;
    char title[64];                  /* "2 safetensors files, bf16"; "": the format gives none */
    char source[STORAGE_PATH_BYTES]; /* the directory, with the files that belong to the model; "": none */
};

extern const struct weights_format weights_huggingface; /* a directory: config.json, *.safetensors */
extern const struct weights_format weights_llmc;        /* a .bin of llm.c: version 3 (fp32) or 5 (bf16) */

/* Tries the formats in turn. ZERO_E_UNSUPPORTED: none knows the path; the message says what the user can do. */
zero_status weights_open(const char *path, struct weights **out, struct zero_error *error);
void weights_close(struct weights *weights); /* NULL is allowed */

/* *out: the file from which weights_open reads a directory's weights; NULL: the directory has no weights at all.
 * ZERO_E_UNSUPPORTED: it has weights that are not read here (a pickle, shards without an index, half a download); the
 * message names a file of them and says what to do. */
#define WEIGHTS_INDEX "model.safetensors.index.json"
zero_status weights_in_directory(const char *path, const char **out, struct zero_error *error);

/* For the formats: converts `dtype` (fp32, bf16 or fp16) to fp32. `in` may be at the end of `out`. */
void weights_widen(const void *in, int dtype, uint64_t count, float *out);

struct gpt_config weights_model(const struct config_model *model);

/* Prints the members of a checkpoint's model block as JSON: `indent` before each, commas between them, and a comma
 * before the first unless `first`. Keys of inner blocks are printed as blocks. `keeps` (NULL: all) chooses the keys. */
void weights_print_model(FILE *out, const struct manifest *manifest, bool first, const char *indent,
                         bool (*keeps)(const struct manifest *manifest, const char *key));

/* Reads the configuration of which `begin` is the JSON text up to the model block, and the block is the checkpoint's; resolved for one
 * rank. The caller frees it, also after a failure. */
zero_status weights_block_config(const struct manifest *manifest, const char *begin, struct config *out,
                                 struct zero_error *error);

/* Writes the weights as OUT/step_00000000, a checkpoint without optimizer state, and makes it the latest. Refuses an OUT
 * that holds checkpoints (ZERO_E_ARGUMENT): the run that saved them would go on from these weights. `left`: a
 * warning if the checkpoint cannot note the path of the weights, or if an old leftover there could not be removed; the caller clears
 * it. `stop` is asked between blocks (NULL: never); where it is not 0, the import ends with ZERO_E_INTERRUPTED and leaves nothing. */
zero_status weights_import(struct weights *weights, const char *out, int (*stop)(void),
                           struct zero_error *left, struct zero_error *error);

/* Calls `set` for each note with which a checkpoint remembers its source: the directory, and the ids of special tokens. */
typedef zero_status (*weights_note_fn)(void *user, const char *key, const char *value);
zero_status weights_note_source(const struct weights *weights, weights_note_fn set, void *user);

struct weights_export {
    uint64_t file_bytes; /* files of at most that size, where tensors allow */
    int dtype;           /* enum dtype; DTYPES: the type in which the run computed */
    bool average;        /* the averaged weights; those of frozen parameters are their weights */
    int (*stop)(void);   /* as in weights_import */
};

/* Replaces in `to` the files that belong to a model beside its weights, such as its tokenizer's, by those in `from`. */
zero_status weights_copy_companions(const char *from, const char *to, struct zero_error *error);

/* Where a run that began with --model keeps them: in the directory RUN/tokenizer. */
#define WEIGHTS_COMPANIONS "tokenizer"

/* Writes the weights of a checkpoint into a new or empty directory `out`, whose parents it makes: model.safetensors, or
 * several files with an index, and config.json if the checkpoint's model block describes a GPT with these parameters.
 * Copies the tokenizer's and the generation's files from the directory that the model came from, else from what the run keeps of
 * them. `left`: a warning if both are gone, or if the parameters are a GPT's and the model block is not; the caller clears it. The model is never
 * in memory as a whole. */
zero_status weights_export(const char *checkpoint, const char *out, const struct weights_export *options,
                           struct zero_error *left, struct zero_error *error);

/* ---- for the export: the Hugging Face directory that a checkpoint's model came from. Checkpoints remember it in notes, and an export
 * takes over the files that belong to the model beside its weights. ---- */

extern const char *const source_token_ids[]; /* config.json's keys; ends with NULL */

/* The id that the source's config.json gives under one of these keys, as JSON text; NULL: none. */
const char *source_token_id(const struct manifest *manifest, const char *key);

/* Copies the tokenizer's and the generation's files from the source to `directory`. Without a source it copies nothing.
 * If the source is gone, takes what the run keeps of it; `left` says if that is not there either. */
zero_status source_copy(const struct checkpoint *checkpoint, const char *directory, struct zero_error *left,
                        struct zero_error *error);
