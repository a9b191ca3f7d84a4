/* Llama's part of reference.h. */
#ifndef ZERO_TESTS_GPT_REFERENCE_LLAMA_H
#define ZERO_TESTS_GPT_REFERENCE_LLAMA_H

#include "tests/gpt/reference.h"

void reference_rms_norm(const struct gpt_config *config, const double *x, const double *gain, int rows,
                        double *y);

/* x: the embedded tokens, [batch * length][width]; becomes the input of the last norm. */
void reference_llama_blocks(const struct gpt_config *config, reference_get_fn get, void *user, int batch,
                            int length, double *x);

#endif
