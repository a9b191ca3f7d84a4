/* A GPT in somebody else's format, for reading: one table, and a file per format. Names, shapes and layouts are
 * those of tools/gpt, which are Hugging Face's; a format that has others translates. Nothing in a file is trusted. */
#ifndef ZERO_TOOLS_WEIGHTS_WEIGHTS_H
#define ZERO_TOOLS_WEIGHTS_WEIGHTS_H

#include <stdio.h>

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/storage.h"
#include "engine/config/config.h"
#include "tools/gpt/gpt.h"

struct weights;

struct weights_format {
    const char *name;
    bool (*recognises)(const char *path);
    zero_status (*open)(const char *path, struct weights **out, struct zero_error *error);
    /* Elements [first, first + count) of a parameter of the model, as fp32; in any order. */
    zero_status (*read)(struct weights *weights, const struct gpt_param *param, uint64_t first,
                        uint64_t count, float *out, struct zero_error *error);
    void (*close)(struct weights *weights);
};

struct weights { /* the head of every format's own struct */
    const struct weights_format *format;
    struct config config; /* resolved; its model block is the file's */
    struct gpt_config model;
};

extern const struct weights_format weights_huggingface; /* a directory: config.json, *.safetensors */
extern const struct weights_format weights_llmc;        /* a .bin of llm.c: version 3 (fp32) or 5 (bf16) */

/* Asks the formats in turn. ZERO_E_UNSUPPORTED: none knows it, and what to do. */
zero_status weights_open(const char *path, struct weights **out, struct zero_error *error);
void weights_close(struct weights *weights); /* NULL is allowed */

/* For the formats: `dtype` fp32, bf16 or fp16; `in` may be where `out` ends. */
void weights_widen(const void *in, int dtype, uint64_t count, float *out);

struct gpt_config weights_model(const struct config_model *model);

/* The members of a checkpoint's model block as JSON, `indent` before each, commas between and a comma before the first
 * unless `first`; keys of blocks inside it are written as blocks. `keeps` (NULL: all) says which. */
void weights_print_model(FILE *out, const struct manifest *manifest, bool first, const char *indent,
                         bool (*keeps)(const struct manifest *manifest, const char *key));

/* Makes OUT/step_00000000 of them, a checkpoint without optimizer state, and the latest. `left`: of a left-over
 * there that could not be removed, a warning; cleared by the caller. */
zero_status weights_import(struct weights *weights, const char *out, struct zero_error *left,
                           struct zero_error *error);

/* The fp32 weights of a checkpoint as a new directory `out`: model.safetensors, or several with an index if that
 * is over `file_bytes`, and config.json where the checkpoint is a GPT's. The model is never in memory. */
zero_status weights_export(const char *checkpoint, const char *out, uint64_t file_bytes,
                           struct zero_error *error);

#endif
