#include "tools/weights/weights.h"

#include <string.h>

#include "engine/base/numbers/convert.h"
#include "engine/base/numbers/dtype.h"

void weights_close(struct weights *weights) {
    if (weights) weights->format->close(weights);
}

void weights_widen(const void *in, int dtype, uint64_t count, float *out) {
    const uint16_t *half = in;
    if (dtype == DTYPE_F32) memmove(out, in, count * sizeof *out);
    for (uint64_t i = 0; i < count && dtype == DTYPE_BF16; i++) out[i] = f32_from_bf16(half[i]);
    for (uint64_t i = 0; i < count && dtype == DTYPE_F16; i++) out[i] = f32_from_f16(half[i]);
}

static struct gpt_rope rope_of(const struct config_rope *rope) {
    static const enum gpt_rope_kind kinds[] = {[CONFIG_ROPE_DEFAULT] = GPT_ROPE_PLAIN,
                                               [CONFIG_ROPE_LLAMA3] = GPT_ROPE_LLAMA3,
                                               [CONFIG_ROPE_LINEAR] = GPT_ROPE_LINEAR,
                                               [CONFIG_ROPE_YARN] = GPT_ROPE_YARN};
    return (struct gpt_rope){.kind = kinds[rope->type],
                             .theta = rope->theta,
                             .factor = rope->factor,
                             .low = rope->low,
                             .high = rope->high,
                             .original_context = (uint32_t)rope->original_context,
                             .attention = rope->attention,
                             .exact_range = !rope->truncate};
}

struct gpt_config weights_model(const struct config_model *model) {
    return (struct gpt_config){
        .architecture = gpt_architecture_of(config_architecture((uint32_t)model->type)),
        .layers = (uint32_t)model->layers,
        .width = (uint32_t)model->width,
        .heads = (uint32_t)model->heads,
        .context = (uint32_t)model->context,
        .vocab = (uint32_t)model->vocab,
        .inner = (uint32_t)model->inner,
        .kv_heads = (uint32_t)model->kv_heads,
        .head_width = (uint32_t)model->head_width,
        .rope = rope_of(&model->rope),
        .window = (uint32_t)model->window,
        .window_from = (uint32_t)model->window_from,
        .tied = model->tied,
        .vocab_block = (uint32_t)model->vocab_block,
        .layer_norm_epsilon = model->layer_norm_epsilon,
        .initializer_range = model->initializer_range,
    };
}
