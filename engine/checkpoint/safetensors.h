/* Safetensors files (huggingface/safetensors 0.4, "Format"): 8 bytes N, little-endian; N bytes of JSON, padded with
 * spaces; then the tensors, one after another without holes. Nothing in a file is trusted: the table holds only
 * values that were checked against the size of the file. */
#pragma once

#include "engine/base/numbers/dtype.h"
#include "engine/checkpoint/json.h"
#include "engine/checkpoint/storage.h"

enum {
    TENSOR_DIMS_MAX = 8,
    SAFETENSORS_HEADER_BYTES_MAX =
        1 << 30, /* of files that are read, and of files that only the engine reads */
    SAFETENSORS_SHARED_HEADER_BYTES_MAX = 100000000, /* of others: the limit of the Python package */
    SAFETENSORS_ALIGN_BYTES = 4096 /* in files that are written here, the data start on a page */
};

struct tensor {
    const char *name; /* in the table's text */
    const char *note; /* the entry of this name in the metadata; or NULL */
    enum dtype dtype; /* DTYPES: a type that the engine does not compute with */
    uint32_t dims;
    uint64_t shape[TENSOR_DIMS_MAX];
    uint64_t count;         /* elements */
    uint64_t offset, bytes; /* offset in the file */
};

struct tensor_table {
    char *text;            /* the header; names and notes are in it */
    struct tensor *tensor; /* ascending by offset */
    uint32_t count;
    uint64_t header_bytes, header_checksum; /* of the first 8 + N bytes */
};

/* `bytes` has the first `count` = 8 + N bytes of the file, followed by a zero byte. `path` is for messages. */
zero_status safetensors_parse(const char *bytes, uint64_t count, uint64_t file_bytes, const char *path,
                              struct tensor_table *out, struct zero_error *error);
zero_status safetensors_read(struct storage_file *file, struct tensor_table *out, struct zero_error *error);
void safetensors_free(struct tensor_table *table); /* a zeroed struct is allowed */

const struct tensor *safetensors_find(const struct tensor_table *table, const char *name); /* NULL: none */

/* Makes the first 8 + N bytes of a file with these tensors, in this order; sets the offset and bytes of each tensor.
 * Notes become metadata, and so does `format` if it is not NULL: "pt" in files that transformers reads, whose header has at most
 * SAFETENSORS_SHARED_HEADER_BYTES_MAX bytes. The caller frees *out. Notes of equal lengths give headers of equal lengths. */
zero_status safetensors_print(struct tensor *tensor, uint32_t count, const char *format, char **out,
                              uint64_t *out_bytes, struct zero_error *error);
