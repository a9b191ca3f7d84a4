/* The table of formats. */
#include <string.h>

#include "tools/weights/weights.h"

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
