/* The choice of cuBLASLt's algorithms for the GPT's products (with "device": {"products": "timed"} on a GPU) and of the kernels of
 * attention (with "attention": "timed"): rank 0 chooses, and all ranks use its choice. A run that goes on takes the choice that its
 * directory has for these shapes (RUN/products-HASH), if it can be used. Else rank 0 takes the one that is kept for these shapes
 * and this GPU, driver and library (kept.h), or times anew. Without these keys, or on a CPU, these functions do nothing. */
#ifndef ZERO_TOOLS_COMMAND_PRODUCTS_H
#define ZERO_TOOLS_COMMAND_PRODUCTS_H

#include "tools/command/job.h"

struct products {
    bool chosen; /* also on ranks that do not know the choice yet */
    bool quiet;
    char choice[GPT_PRODUCTS_BYTES];
    struct gpt_products_question question;
    char setting[48]; /* for identity_describe: "timed-SHAPES-CHOICE", two hashes; "": nothing is chosen */
};

/* Rank 0 finds or makes the choice, before the engine's commit. Local. */
zero_status products_find(struct products *products, const struct job *job, zero_engine *engine,
                          struct gpt *gpt, struct zero_error *error);

/* Gives rank 0's choice to all ranks, after commit. Collective. A rank that cannot use it sets its error and returns ZERO_OK:
 * the ranks then agree on their failures. */
zero_status products_share(struct products *products, zero_engine *engine, struct gpt *gpt,
                           struct zero_error *error);

/* Leaves the choice in the run's directory. Only rank 0. */
zero_status products_keep(const struct products *products, const char *directory, struct zero_error *error);

#endif
