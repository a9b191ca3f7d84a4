#include "tools/weights/weights.h"

#include <string.h>

#include "engine/base/convert.h"
#include "engine/base/dtype.h"

static const struct weights_format *const formats[] = {&weights_huggingface, &weights_llmc};

static bool is_pickle(const char *path) {
    const char *end = strrchr(path, '.');
    return end && (!strcmp(end, ".pt") || !strcmp(end, ".pth") || !strcmp(end, ".ckpt"));
}

zero_status weights_open(const char *path, struct weights **out, struct zero_error *error) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i]->recognises(path)) return formats[i]->open(path, out, error);
    if (is_pickle(path))
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "%s is a pickle, which can run any program: turn it into safetensors first (a "
                         "DeepSpeed checkpoint with its zero_to_fp32.py --safe_serialization)",
                         path);
    return error_set(
        error, ZERO_E_UNSUPPORTED,
        "%s is neither a directory with a config.json and safetensors nor a model file (.bin) of llm.c",
        path);
}

void weights_close(struct weights *weights) {
    if (weights) weights->format->close(weights);
}

void weights_widen(const void *in, int dtype, uint64_t count, float *out) {
    const uint16_t *half = in;
    if (dtype == DTYPE_F32) memmove(out, in, count * sizeof *out);
    for (uint64_t i = 0; i < count && dtype == DTYPE_BF16; i++) out[i] = f32_from_bf16(half[i]);
    for (uint64_t i = 0; i < count && dtype == DTYPE_F16; i++) out[i] = f32_from_f16(half[i]);
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
        .rope = {.theta = model->rope.theta,
                 .factor = model->rope.factor,
                 .low = model->rope.low,
                 .high = model->rope.high,
                 .original_context = (uint32_t)model->rope.original_context},
        .tied = model->tied,
        .vocab_block = (uint32_t)model->vocab_block,
        .layer_norm_epsilon = model->layer_norm_epsilon,
        .initializer_range = model->initializer_range,
    };
}
