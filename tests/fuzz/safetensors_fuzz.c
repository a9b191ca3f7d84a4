/* Any bytes as a safetensors file. What the parser lets through covers the file exactly, and what it covers, written
 * again, is read as the same; with a failure comes a message. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition, const char *what, const struct zero_error *error) {
    if (condition) return;
    fprintf(stderr, "%s: %s\n", what, error->message);
    abort();
}

static void write_again(struct tensor_table *table, struct zero_error *error) {
    struct tensor_table again;
    char *header;
    uint64_t bytes, data = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        if (table->tensor[i].dtype == DTYPES || table->tensor[i].count == 0)
            return; /* only what is written here */
        data += table->tensor[i].bytes;
    }
    require(!safetensors_print(table->tensor, table->count, NULL, &header, &bytes, error), "print", error);
    char *text = malloc(bytes + 1);
    memcpy(text, header, bytes);
    text[bytes] = 0;
    require(!safetensors_parse(text, bytes, bytes + data, "again", &again, error), "parse again", error);
    require(again.count == table->count, "as many tensors", error);
    for (uint32_t i = 0; i < again.count; i++)
        require(!strcmp(again.tensor[i].name, table->tensor[i].name) &&
                    again.tensor[i].count == table->tensor[i].count,
                "the same tensors", error);
    safetensors_free(&again);
    free(header);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct tensor_table table;
    struct zero_error error;
    error_clear(&error);
    uint64_t length = 0;
    for (int i = 0; i < 8 && size >= 8; i++) length |= (uint64_t)data[i] << 8 * i;
    uint64_t header = size >= 8 && length <= size - 8 ? 8 + length : size;
    char *text = malloc(header + 1);
    memcpy(text, data, header);
    text[header] = 0;
    zero_status status = safetensors_parse(text, header, size, "fuzz", &table, &error);
    require((status != ZERO_OK) == (error.message[0] != 0), "a failure and a message go together", &error);
    uint64_t at = header;
    for (uint32_t i = 0; !status && i < table.count; at += table.tensor[i++].bytes)
        require(table.tensor[i].offset == at, "no holes", &error);
    if (!status) {
        require(at == size, "no bytes at the end", &error);
        write_again(&table, &error);
        safetensors_free(&table);
    }
    free(text);
    return 0;
}
