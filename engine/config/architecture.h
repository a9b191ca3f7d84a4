/* The architectures of the model block: config_model.type. */
#ifndef ZERO_ENGINE_CONFIG_ARCHITECTURE_H
#define ZERO_ENGINE_CONFIG_ARCHITECTURE_H

enum architecture { GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, TYPES };

#endif
