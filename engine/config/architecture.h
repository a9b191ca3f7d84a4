/* The architectures of the model block: config_model.type. */
#ifndef ZERO_ENGINE_CONFIG_ARCHITECTURE_H
#define ZERO_ENGINE_CONFIG_ARCHITECTURE_H

/* ROW(enumerator, Hugging Face's model_type) */
#define ARCHITECTURE_LIST(ROW)                                                                               \
    ROW(GPT2, "gpt2") ROW(LLAMA, "llama") ROW(MISTRAL, "mistral") ROW(QWEN2, "qwen2") ROW(QWEN3, "qwen3")

#define ENUMERATOR(enumerator, name) enumerator,
enum architecture { ARCHITECTURE_LIST(ENUMERATOR) ARCHITECTURES };
#undef ENUMERATOR

#endif
