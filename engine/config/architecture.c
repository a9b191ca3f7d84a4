#include "engine/config/architecture.h"

#include "engine/config/config.h"

static const char *const names[TYPES] = {
    [GPT2] = "gpt2", [LLAMA] = "llama", [MISTRAL] = "mistral", [QWEN2] = "qwen2", [QWEN3] = "qwen3"};

const char *config_architecture(uint32_t index) { return index < TYPES ? names[index] : NULL; }
