/* The weights in a Hugging Face directory, as the first weights of a run: `zero train --model DIR`. A process opens them
 * once and its ranks share them, because reading changes nothing. Each rank reads only the elements that it owns. */
#ifndef ZERO_TOOLS_COMMAND_PRETRAINED_H
#define ZERO_TOOLS_COMMAND_PRETRAINED_H

#include "tools/weights/weights.h"

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

#endif
