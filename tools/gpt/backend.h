/* A backend computes the arithmetic of a unit: on the host (host.c), or on the GPU that the engine uses (cuda/). Each
 * has one table of these functions. They run between the engine's begin and end of the unit (passes.c), while the
 * unit's slots are valid. The passes decide on the order of units, recomputation and frozen parameters. A backend may
 * only enqueue the work; it is complete after pass_end. The backend owns the activations, the residual stream and the
 * stream's gradient: each function reads what the previous one wrote. The backend remembers a failure, and pass_end
 * returns it. Threads: the rank's own. */
#pragma once

#include "engine/base/error.h"
#include "engine/zero.h"
#include "tools/gpt/gpt.h"

struct unit;

struct backend {
    const char *reserved[ZERO_TIERS]; /* the name of its memory in the engine's report, by tier */
    bool keeps_vectors;               /* reads vectors that stay fp32 where the compute type is narrower */
    bool keeps_keys;                  /* reads pass.known; else it computes all rows again */

    /* NULL, or a sentence that says why the backend cannot compute in this type on this machine. */
    const char *(*problem)(zero_dtype dtype);

    /* Called before the units are declared: allocates all activations. *out_bytes: by tier. */
    zero_status (*open)(struct gpt *gpt, uint64_t out_bytes[ZERO_TIERS], struct zero_error *error);
    void (*close)(struct gpt *gpt); /* also after a failed open */

    /* Outputs that are kept: gpt.h says what they do; gpt->granted are the places of each kind. NULL: there are none. */
    zero_status (*keep_outputs)(struct gpt *gpt, struct zero_error *error);
    uint32_t (*kept)(const struct gpt *gpt, enum gpt_output kind);

    /* NULL: it computes on the host. */
    void (*device_name)(const struct gpt *gpt, char out[GPT_DEVICE_NAME_BYTES]);

    /* Begin and end a pass, gpt->pass. out_loss: the mean cross-entropy of each micro-step; unchanged without targets. */
    zero_status (*pass_begin)(struct gpt *gpt);
    zero_status (*pass_end)(struct gpt *gpt, double out_loss[], struct zero_error *error);

    /* Inside a use: what follows is of micro-step `micro` of the pass. */
    void (*use_micro)(struct gpt *gpt, uint32_t micro);

    /* With checkpoints.h on a GPU: waits until the last input that a micro-batch wrote is in its slot; until the input of block `index` of the
     * micro-step in use has been read from its slot. NULL: nothing is late. */
    void (*await_input)(struct gpt *gpt, uint32_t micro);
    void (*await_read)(struct gpt *gpt, uint32_t index);

    /* Called after a unit's slots became valid, and before they end. `backward`: with gradients. */
    void (*unit_begin)(struct gpt *gpt, struct unit *unit, bool backward);
    void (*unit_end)(struct gpt *gpt, struct unit *unit, bool backward);

    void (*embedding_forward)(struct gpt *gpt); /* tokens -> the stream before block 0 */
    void (*embedding_backward)(struct gpt *gpt);
    /* Reads the stream before block `index`; writes the arrays that the backward needs and, if `output`, the stream
     * after the block. */
    void (*block_forward)(struct gpt *gpt, uint32_t index, bool output);
    /* Turns the gradient of the stream after the block into the gradient of the stream before it. Overwrites the arrays
     * of the forward. */
    void (*block_backward)(struct gpt *gpt, uint32_t index);
    /* With several blocks of the vocabulary (gpt->vocab_blocks), embedding_forward, embedding_backward and these three work on
     * gpt->pass.block. head_forward gives the loss, after the last block. head_backward gives the stream's gradient; without blocks also
     * the loss, and no forward comes before it. */
    void (*head_forward)(struct gpt *gpt);
    void (*head_backward)(struct gpt *gpt);
    void (*head_logits)(struct gpt *gpt); /* logits of the last row; pass.logits holds them after pass_end */
};

extern const struct backend host_backend, cuda_backend;
