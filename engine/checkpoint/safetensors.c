#include "engine/checkpoint/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/checksum.h"

/* The types that the engine does not compute with. */
static const struct {
    const char *name;
    uint64_t bytes;
} others[] = {{"BOOL", 1}, {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E4M3FN", 1}, {"I16", 2},
              {"U16", 2},  {"I32", 4}, {"U32", 4},     {"F64", 8},     {"I64", 8},       {"U64", 8}};

/* The bytes of an element; 0: there is no type of this name. */
static uint64_t type_named(const char *name, enum dtype *out) {
    for (*out = DTYPE_F32; name && *out < DTYPES; ++*out)
        if (strcmp(dtype_rows[*out].safetensors, name) == 0) return dtype_bytes(*out);
    for (size_t i = 0; name && i < sizeof others / sizeof *others; i++)
        if (strcmp(others[i].name, name) == 0) return others[i].bytes;
    return 0;
}

/* ---- reading ---- */

struct note {
    const char *name, *text;
};

struct reading {
    const char *path;
    struct tensor_table *table;
    uint32_t room; /* in table->tensor */
    struct note *note;
    uint32_t notes, note_room;
    uint64_t data_bytes;
};

/* The array, with room for one more entry after `count`; NULL: no memory. */
static void *grown(void *array, uint32_t count, uint32_t *room, size_t bytes) {
    if (count < *room) return array;
    uint32_t more = *room ? 2 * *room : 64;
    void *larger = realloc(array, more * bytes);
    if (larger) *room = more;
    return larger;
}

static zero_status no_memory(const struct reading *r, struct zero_error *error) {
    return error_set(error, ZERO_E_MEMORY, "no memory for the tensors of %s", r->path);
}

static zero_status bad_tensor(const struct reading *r, const char *name, const char *what,
                              struct zero_error *error) {
    return error_set(error, ZERO_E_IO, "%s: the header's entry of \"%s\" %s; the file is damaged", r->path,
                     name, what);
}

static bool read_shape(const struct json *shape, struct tensor *t) {
    if (!json_is_list(shape) || json_count(shape) > TENSOR_DIMS_MAX) return false;
    t->dims = (uint32_t)json_count(shape);
    t->count = 1;
    for (uint32_t d = 0; d < t->dims; d++)
        if (!json_integer(json_at(shape, d), &t->shape[d]) ||
            __builtin_mul_overflow(t->count, t->shape[d], &t->count) || t->count >> 56)
            return false;
    return true;
}

static zero_status read_tensor(struct reading *r, const char *name, const struct json *value,
                               struct zero_error *error) {
    const struct json *offsets = json_get(value, "data_offsets");
    struct tensor t = {.name = name};
    uint64_t element_bytes = type_named(json_string(json_get(value, "dtype")), &t.dtype);
    uint64_t begin, end;
    if (!element_bytes) return bad_tensor(r, name, "has an unknown dtype", error);
    if (!read_shape(json_get(value, "shape"), &t))
        return bad_tensor(r, name, "has no shape of at most 8 dimensions", error);
    if (json_count(offsets) != 2 || !json_integer(json_at(offsets, 0), &begin) ||
        !json_integer(json_at(offsets, 1), &end) || begin > end || end > r->data_bytes)
        return bad_tensor(r, name, "points outside of the file", error);
    t.offset = r->table->header_bytes + begin;
    t.bytes = end - begin;
    if (t.bytes != t.count * element_bytes)
        return bad_tensor(r, name, "has a number of bytes that does not match its shape", error);
    struct tensor *larger = grown(r->table->tensor, r->table->count, &r->room, sizeof t);
    if (!larger) return no_memory(r, error);
    r->table->tensor = larger;
    r->table->tensor[r->table->count++] = t;
    return ZERO_OK;
}

/* A value of JSON takes more than ten times its text in memory, so only short ones are read whole. */
static zero_status read_value(const struct reading *r, const char *name, const char *value, size_t bytes,
                              struct json **out, struct zero_error *error) {
    enum { VALUE_BYTES_MAX = 4096 };
    if (bytes > VALUE_BYTES_MAX) return bad_tensor(r, name, "has more than 4096 bytes", error);
    return json_parse(value, bytes, r->path, out, error);
}

/* Skips a note that is not text. */
static zero_status read_note(void *user, const char *name, char *value, size_t bytes,
                             struct zero_error *error) {
    struct reading *r = user;
    struct json *other;
    if (*value != '"') {
        zero_status status = read_value(r, name, value, bytes, &other, error);
        if (!status) json_free(other);
        return status;
    }
    TRY(members_decode(value, bytes, r->path, error));
    struct note *larger = grown(r->note, r->notes, &r->note_room, sizeof *r->note);
    if (!larger) return no_memory(r, error);
    r->note = larger;
    r->note[r->notes++] = (struct note){name, value};
    return ZERO_OK;
}

static zero_status read_entry(void *user, const char *name, char *value, size_t bytes,
                              struct zero_error *error) {
    struct reading *r = user;
    struct json *entry;
    bool notes = strcmp(name, "__metadata__") == 0;
    if (notes && *value == '{') return members_each(value, bytes, r->path, read_note, r, error);
    zero_status status = read_value(r, name, value, bytes, &entry, error);
    if (status) return status;
    if (!notes) status = read_tensor(r, name, entry, error);
    json_free(entry);
    return status;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct note *)a)->name, ((const struct note *)b)->name);
}

static void give_notes(struct reading *r) {
    if (!r->notes) return;
    qsort(r->note, r->notes, sizeof *r->note, by_name);
    for (uint32_t i = 0; i < r->table->count; i++) {
        struct note key = {.name = r->table->tensor[i].name};
        const struct note *found = bsearch(&key, r->note, r->notes, sizeof key, by_name);
        if (found) r->table->tensor[i].note = found->text;
    }
}

static int by_offset(const void *a, const void *b) {
    const struct tensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Checks that the tensors cover the data exactly: no holes, no overlaps, no other bytes at the end. */
static zero_status check_cover(struct reading *r, struct zero_error *error) {
    struct tensor_table *table = r->table;
    uint64_t at = table->header_bytes;
    if (table->count) qsort(table->tensor, table->count, sizeof *table->tensor, by_offset);
    for (uint32_t i = 0; i < table->count; at += table->tensor[i++].bytes)
        if (table->tensor[i].offset != at)
            return bad_tensor(r, table->tensor[i].name, "does not begin where the one before it ends", error);
    if (at == table->header_bytes + r->data_bytes) return ZERO_OK;
    return error_set(error, ZERO_E_IO,
                     "%s has %" PRIu64 " bytes, its tensors end at byte %" PRIu64 "; the file is damaged",
                     r->path, table->header_bytes + r->data_bytes, at);
}

static zero_status check_length(const char *bytes, uint64_t count, uint64_t file_bytes, const char *path,
                                uint64_t *out_length, struct zero_error *error) {
    uint64_t length = 0;
    for (int i = 0; i < 8 && count >= 8; i++) length |= (uint64_t)(unsigned char)bytes[i] << 8 * i;
    if (count < 8 || file_bytes < 8 || length < 2 || length > file_bytes - 8)
        return error_set(error, ZERO_E_IO, "%s is not a safetensors file: it is too short for its header",
                         path);
    if (length > SAFETENSORS_HEADER_BYTES_MAX)
        return error_set(error, ZERO_E_IO,
                         "%s is not a safetensors file, or has a header of more than %d bytes: %" PRIu64,
                         path, SAFETENSORS_HEADER_BYTES_MAX, length);
    *out_length = length;
    return ZERO_OK;
}

static zero_status read_table(const char *bytes, uint64_t length, struct reading *r,
                              struct zero_error *error) {
    struct tensor_table *table = r->table;
    if (bytes[8] != '{')
        return error_set(error, ZERO_E_IO, "%s is not a safetensors file: its header is not a JSON object",
                         r->path);
    table->header_bytes = 8 + length;
    table->header_checksum = checksum(bytes, 8 + (size_t)length);
    table->text = malloc((size_t)length + 1);
    if (!table->text) return no_memory(r, error);
    memcpy(table->text, bytes + 8, (size_t)length + 1);
    zero_status status = members_each(table->text, (size_t)length, r->path, read_entry, r, error);
    if (!status) give_notes(r);
    return status ? status : check_cover(r, error);
}

zero_status safetensors_parse(const char *bytes, uint64_t count, uint64_t file_bytes, const char *path,
                              struct tensor_table *out, struct zero_error *error) {
    struct tensor_table table = {0};
    uint64_t length = 0;
    TRY(check_length(bytes, count, file_bytes, path, &length, error));
    if (count != 8 + length)
        return error_set(error, ZERO_E_IO, "%s ends inside its header; the file is damaged", path);
    struct reading r = {.path = path, .table = &table, .data_bytes = file_bytes - 8 - length};
    zero_status status = read_table(bytes, length, &r, error);
    free(r.note);
    if (status)
        safetensors_free(&table);
    else
        *out = table;
    return status;
}

zero_status safetensors_read(struct storage_file *file, struct tensor_table *out, struct zero_error *error) {
    uint64_t file_bytes = 0, length = 0;
    char prefix[8], *bytes;
    TRY(storage_size(file, &file_bytes, error));
    if (file_bytes >= sizeof prefix) TRY(storage_read(file, prefix, sizeof prefix, 0, error));
    TRY(check_length(prefix, file_bytes < 8 ? file_bytes : 8, file_bytes, file->path, &length, error));
    bytes = malloc(8 + (size_t)length + 1);
    if (!bytes) return error_set(error, ZERO_E_MEMORY, "no memory for the header of %s", file->path);
    zero_status status = storage_read(file, bytes, 8 + (size_t)length, 0, error);
    bytes[8 + length] = 0;
    if (!status) status = safetensors_parse(bytes, 8 + length, file_bytes, file->path, out, error);
    free(bytes);
    return status;
}

void safetensors_free(struct tensor_table *table) {
    free(table->text);
    free(table->tensor);
    *table = (struct tensor_table){0};
}

const struct tensor *safetensors_find(const struct tensor_table *table, const char *name) {
    for (uint32_t i = 0; i < table->count; i++)
        if (strcmp(table->tensor[i].name, name) == 0) return &table->tensor[i];
    return NULL;
}

/* ---- writing ---- */

static void print_metadata(FILE *file, const struct tensor *tensor, uint32_t count, const char *format) {
    fputs("{\"__metadata__\":{", file);
    const char *comma = "";
    if (format) fprintf(file, "\"format\":\"%s\"", format), comma = ",";
    for (uint32_t i = 0; i < count; i++) {
        if (!tensor[i].note) continue;
        fputs(comma, file), comma = ",";
        json_write_string(file, tensor[i].name);
        fputc(':', file);
        json_write_string(file, tensor[i].note);
    }
    fputc('}', file);
}

static void print_tensor(FILE *file, const struct tensor *t, uint64_t begin) {
    fputc(',', file);
    json_write_string(file, t->name);
    fprintf(file, ":{\"dtype\":\"%s\",\"shape\":[", dtype_rows[t->dtype].safetensors);
    for (uint32_t d = 0; d < t->dims; d++) fprintf(file, "%s%" PRIu64, d ? "," : "", t->shape[d]);
    fprintf(file, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, begin + t->bytes);
}

static void finish(char *bytes, uint64_t total, struct tensor *tensor, uint32_t count) {
    for (int i = 0; i < 8; i++) bytes[i] = (char)((total - 8) >> 8 * i);
    for (uint32_t i = 0; i < count; i++) tensor[i].offset += total;
}

zero_status safetensors_print(struct tensor *tensor, uint32_t count, const char *format, char **out,
                              uint64_t *out_bytes, struct zero_error *error) {
    char *bytes = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&bytes, &length);
    if (!file) return error_set(error, ZERO_E_MEMORY, "no memory for a header of %" PRIu32 " tensors", count);
    fputs("\1\1\1\1\1\1\1\1", file); /* place for N, which is not known yet */
    print_metadata(file, tensor, count, format);
    uint64_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct tensor *t = &tensor[i];
        t->bytes = t->count * dtype_bytes(t->dtype);
        t->offset = at; /* from the start of the data; finish() adds the header */
        print_tensor(file, t, at);
        at += t->bytes;
    }
    fputc('}', file);
    long used = ftell(file);
    for (; used % SAFETENSORS_ALIGN_BYTES; used++) fputc(' ', file);
    bool failed = ferror(file);
    int most = format ? SAFETENSORS_SHARED_HEADER_BYTES_MAX : SAFETENSORS_HEADER_BYTES_MAX;
    failed |= fclose(file) != 0;
    if (failed || length - 8 > (size_t)most) {
        free(bytes);
        return failed
                   ? error_set(error, ZERO_E_MEMORY, "no memory for a header of %" PRIu32 " tensors", count)
                   : error_set(error, ZERO_E_UNSUPPORTED,
                               "the safetensors header of %" PRIu32
                               " tensors has %zu bytes, and may have %d: use more %s",
                               count, length - 8, most, format ? "files" : "ranks");
    }
    finish(bytes, length, tensor, count);
    *out = bytes;
    *out_bytes = length;
    return ZERO_OK;
}
