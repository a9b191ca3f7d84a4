/* Who does a unit's arithmetic: the host (host.c), or the GPU that the engine is on (cuda/). One table each. What stands here runs between the
 * engine's begin and end of the unit (passes.c), where its slots are valid; the order of units, recomputation and what
 * is frozen are the passes' affair. A backend may only enqueue: what it was asked for is done after pass_end.
 * Activations, the residual stream and its gradient are the backend's own: each function reads what the one before left.
 * Failures are remembered and come out of pass_end. Threads: the rank's own. */
#ifndef ZERO_TOOLS_GPT_BACKEND_H
#define ZERO_TOOLS_GPT_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/zero.h"

struct gpt;
struct unit;

struct backend {
    const char *reserved[ZERO_TIERS]; /* what its memory is, for the engine's report */

    /* NULL, or a sentence that says why it cannot compute in this type here. */
    const char *(*problem)(zero_dtype dtype);

    /* Before the units are declared: takes the memory of all activations; *out_bytes: by tier. */
    zero_status (*open)(struct gpt *gpt, uint64_t out_bytes[ZERO_TIERS], struct zero_error *error);
    void (*close)(struct gpt *gpt); /* also after a failed open */

    /* A micro-step of gpt->pass. out_loss: the mean cross-entropy; NULL where there are no targets. */
    zero_status (*pass_begin)(struct gpt *gpt);
    zero_status (*pass_end)(struct gpt *gpt, double *out_loss, struct zero_error *error);

    /* A unit's slots became valid, or are about to end; `backward`: with gradients. */
    void (*unit_begin)(struct gpt *gpt, struct unit *unit, bool backward);
    void (*unit_end)(struct gpt *gpt, struct unit *unit, bool backward);

    void (*embedding_forward)(struct gpt *gpt); /* tokens -> the stream before block 0 */
    void (*embedding_backward)(struct gpt *gpt);
    /* The stream before block `index` -> what the backward needs and, if `output`, the stream behind it. */
    void (*block_forward)(struct gpt *gpt, uint32_t index, bool output);
    /* Gradient of the stream behind the block -> that of the stream before it. Uses up what the forward left. */
    void (*block_backward)(struct gpt *gpt, uint32_t index);
    void (*head_evaluate)(struct gpt *gpt); /* the loss */
    void (*head_backward)(
        struct gpt *gpt);                 /* the loss and the stream's gradient: there is no forward to it */
    void (*head_logits)(struct gpt *gpt); /* of the last row; pass.logits holds them after pass_end */
};

extern const struct backend host_backend, cuda_backend;

#endif
