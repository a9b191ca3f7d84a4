/* Which kernels attention uses. */
#ifndef ZERO_TOOLS_GPT_CUDA_ATTENTION_CHOICE_H
#define ZERO_TOOLS_GPT_CUDA_ATTENTION_CHOICE_H

#include "tools/gpt/cuda/timing.h"

/* Where warpgroups are used without a choice, they are checked. */
zero_status attention_open(struct gpt *gpt, struct zero_error *error);
/* Chooses on this GPU, and writes a line of the choice. */
zero_status attention_choose(struct gpt *gpt, const struct timing *t, char *text, struct zero_error *error);
/* Uses the line that *text begins with, if it is attention's; *text is then behind it. */
zero_status attention_use(struct gpt *gpt, const char **text, struct zero_error *error);
void attention_forget(struct gpt *gpt); /* the choice */

#endif
