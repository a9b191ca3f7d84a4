/* The sequences of a micro-step. */
#ifndef ZERO_TOOLS_GPT_SEQUENCES_H
#define ZERO_TOOLS_GPT_SEQUENCES_H

#include "tools/gpt/model.h"

/* Sets activations.sequences of each micro-step of the pass: its samples, or with config.documents the documents of its samples. */
void sequences_find(struct gpt *gpt);

#endif
