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

/* timing.c: times of work on the GPU. What is compared takes turns, TIMING_ROUNDS times, so that a GPU that changes its clock treats
 * all alike; medians of the rounds are compared. */
enum { TIMING_ROUNDS = 5 };
static const float timing_faster = 0.98f; /* than the first: what another must be to be taken in its place */
struct timing {
    struct cuda_gpt *c;
    CUevent begin, end;
};
CUresult timing_take(const struct timing *t, CUresult (*enqueue)(void *user, int count), void *user,
                     float *out_ms);
float timing_median(float ms[TIMING_ROUNDS]); /* sorts them */

/* attention_choice.c. Where warpgroups are used without a choice, they are checked. */
zero_status attention_open(struct gpt *gpt, struct zero_error *error);
/* Chooses on this GPU, and writes a line of the choice. */
zero_status attention_choose(struct gpt *gpt, const struct timing *t, char *text, struct zero_error *error);
/* Uses the line that *text begins with, if it is attention's; *text is then behind it. */
zero_status attention_use(struct gpt *gpt, const char **text, struct zero_error *error);
void attention_forget(struct gpt *gpt); /* the choice */

#endif
