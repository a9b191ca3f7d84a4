/* The products of a training pass, and the text that says which algorithms they use, and which kernels attention uses
 * (gpt.h). */
#ifndef ZERO_TOOLS_GPT_CUDA_CHOICES_H
#define ZERO_TOOLS_GPT_CUDA_CHOICES_H

#include "tools/gpt/cuda/state.h"

enum { PLACE_BYTES = sizeof((struct gpt_products_question *)0)->place };

struct listed_product {
    struct product product;
    struct product_shape shape;
};

struct product_list { /* one product of each shape; shapes beyond the last place keep the first proposal */
    uint32_t count;
    struct listed_product item[CHOICES_MAX];
};

/* Lists the products of a micro-step that overwrites gradients, then those of one that adds. All parameters are at
 * `memory`, on 256 bytes, and all gradients `bytes` behind them. Enqueues nothing. */
zero_status choices_list(struct gpt *gpt, char *memory, uint64_t bytes, struct product_list *out);

void choices_place(const struct cuda_gpt *c, char out[PLACE_BYTES]);

/* Writes a shape's line at `text`, and returns its end. NULL: the first proposal. */
char *choices_write(char *text, const struct listed_product *item, const struct algorithm *algorithm);

#endif
