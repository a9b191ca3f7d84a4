/* Any bytes as a configuration: read, resolve, print, free. With --config=fuzz libFuzzer drives it; otherwise
 * replay.c runs it over the committed corpus. Beyond crashes it holds the scanner to its promise: what it
 * rewrites is strict, and what it lets through, json-c takes; a failure has a message; what is resolved is consistent. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/config.h"
#include "engine/config/text/scan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition, const char *what, const struct zero_error *error) {
    if (condition) return;
    fprintf(stderr, "%s: %s\n", what, error->message);
    abort();
}

static void use(struct config *config, uint32_t ranks) {
    struct zero_error error;
    error_clear(&error);
    zero_status status = config_resolve(config, ranks, &error);
    require((status != ZERO_OK) == (error.message[0] != 0), "a failure and a message go together", &error);
    char *text = config_print(config);
    require(text != NULL, "print", &error);
    free(text);
    if (status) return;
    uint64_t product = config->micro_batch * config->accumulation_steps * ranks;
    require(config->train_batch == product, "the batch triple", &error);
    require(config->optimizer.name && config->terms.depth <= 8, "ranges", &error);
    const struct config_model *m = &config->model;
    require(m->layers && m->width && m->heads && m->context && m->vocab && m->inner, "sizes", &error);
    require(m->width % m->heads == 0, "heads", &error);
    bool llama = strcmp(config_architecture((uint32_t)m->type), "gpt2") != 0;
    require(!llama || (m->kv_heads && m->heads % m->kv_heads == 0 && m->head_width % 2 == 0), "key heads",
            &error);
    require(!llama || m->rope.theta > 0, "rope_theta", &error);
    bool ranges = m->rope.type == CONFIG_ROPE_LLAMA3 || m->rope.type == CONFIG_ROPE_YARN;
    require(m->rope.type == CONFIG_ROPE_DEFAULT || m->rope.factor >= 1, "rope factor", &error);
    require(!ranges || (m->rope.low < m->rope.high && m->rope.original_context), "rope", &error);
    require(config->recompute.blocks <= 65536, "recomputation", &error);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct config config;
    struct zero_error error;
    error_clear(&error);
    char *strict;
    bool reads = config_scan_edited((const char *)data, size, "fuzz", &strict, &error) == ZERO_OK;
    require(!reads || config_scan(strict, strlen(strict), "strict", &error) == ZERO_OK,
            "what is rewritten is strict", &error);
    free(strict);
    error_clear(&error);
    zero_status status = config_read_text((const char *)data, size, "fuzz", &config, &error);
    require((status != ZERO_OK) == (error.message[0] != 0), "a failure and a message go together", &error);
    require(status != ZERO_E_INTERNAL && status != ZERO_E_MEMORY, "scanner and json-c disagree", &error);
    if (status == ZERO_OK) use(&config, 1), use(&config, 3);
    config_free(&config);
    return 0;
}
