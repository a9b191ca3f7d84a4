/* Safetensors files (huggingface/safetensors 0.4, "Format"): 8 bytes N, little-endian; N bytes of JSON, padded
 * with spaces; the tensors, one after another without holes. Nothing in a file is trusted: what the table
 * holds has been checked against the file's size. */
#ifndef ZERO_ENGINE_CHECKPOINT_SAFETENSORS_H
#define ZERO_ENGINE_CHECKPOINT_SAFETENSORS_H

#include "engine/base/dtype.h"
#include "engine/checkpoint/json.h"
#include "engine/checkpoint/storage.h"

enum {
    TENSOR_DIMS_MAX = 8,
    SAFETENSORS_HEADER_BYTES_MAX = 64 << 20, /* the Python package takes 100 MB */
    SAFETENSORS_ALIGN_BYTES = 4096           /* the data of files that are written here start on a page */
};

struct tensor {
    const char *name; /* the document's */
    const char *note; /* the metadata's entry of this name, or NULL */
    enum dtype dtype; /* DTYPES: one that nothing here computes with */
    uint32_t dims;
    uint64_t shape[TENSOR_DIMS_MAX];
    uint64_t count;         /* elements */
    uint64_t offset, bytes; /* in the file */
};

struct tensor_table {
    struct json *document;
    struct tensor *tensor; /* ascending by offset */
    uint32_t count;
    uint64_t header_bytes, header_checksum; /* of the 8 + N bytes */
};

/* `bytes`: the file's first 8 + N, a zero behind them; `count` of them. `path`: for messages. */
zero_status safetensors_parse(const char *bytes, uint64_t count, uint64_t file_bytes, const char *path,
                              struct tensor_table *out, struct zero_error *error);
zero_status safetensors_read(struct storage_file *file, struct tensor_table *out, struct zero_error *error);
void safetensors_free(struct tensor_table *table); /* a zeroed one, too */

const struct tensor *safetensors_find(const struct tensor_table *table, const char *name); /* NULL: none */

/* The 8 + N bytes of a header for these tensors, in this order; sets their offset and bytes. Notes and, if it
 * is not NULL, `format` ("pt", which transformers asks for) become metadata. Allocated; the caller frees it.
 * Notes of equal lengths give headers of equal lengths. */
zero_status safetensors_print(struct tensor *tensor, uint32_t count, const char *format, char **out,
                              uint64_t *out_bytes, struct zero_error *error);

#endif
