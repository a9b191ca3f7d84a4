/* The forward of GPT-2 and of Llama in double, as plain loops, written independently of tools/gpt. Tests compare
 * results with it. */
#ifndef ZERO_TESTS_GPT_REFERENCE_H
#define ZERO_TESTS_GPT_REFERENCE_H

#include <stdint.h>

#include "tools/gpt/gpt.h"

/* The parameter of that name, its elements in double. */
typedef const double *(*reference_get_fn)(void *user, const char *name);

/* Mean cross-entropy of batch x length tokens. `logits`, unless NULL: [batch * length][vocab]. */
double reference_loss(const struct gpt_config *config, reference_get_fn get, void *user, uint32_t batch,
                      uint32_t length, const int32_t *tokens, const int32_t *targets, double *logits);

#endif
