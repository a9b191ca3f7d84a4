#include "engine/checkpoint/shard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/integer.h"
#include "engine/base/name_index.h"
#include "engine/checkpoint/checksum.h"
#include "kernels/checksum.h"

enum { FIRST_DIGITS = 20 };

static uint64_t blocks_of(uint64_t count) { return (count + BLOCK_ELEMENTS - 1) / BLOCK_ELEMENTS; }

/* ---- writing ---- */

/* A header under construction: a tensor and its texts per piece. */
struct draft {
    struct tensor *tensor;
    char **note, **name;
    uint32_t count;
};

static void draft_free(struct draft *d) {
    for (uint32_t i = 0; d->note && i < d->count; i++) free(d->note[i]);
    for (uint32_t i = 0; d->name && i < d->count; i++) free(d->name[i]);
    free(d->note);
    free(d->name);
    free(d->tensor);
}

static void draft_piece(struct draft *d, uint32_t i, const struct manifest *m, const struct piece *p) {
    struct tensor *t = &d->tensor[i];
    bool whole = p->count == p->param->count;
    sprintf(d->note[i], "%0*" PRIu64, FIRST_DIGITS, p->first);
    *t = (struct tensor){.name = d->name[i], .note = d->note[i], .count = p->count, .dtype = DTYPE_F32};
    t->dims = whole ? p->param->dims : 1;
    memcpy(t->shape, whole ? p->param->shape : &p->count, t->dims * sizeof *t->shape);
}

/* "param/wte.weight", "param#3/wte.weight"; NULL: no memory. */
static char *piece_name(const struct manifest *m, const struct piece *p) {
    char *name, part[16] = "";
    if (p->part) snprintf(part, sizeof part, "#%" PRIu32, p->part);
    return asprintf(&name, "%s%s/%s", manifest_kind(m, p->kind), part, p->param->name) < 0 ? NULL : name;
}

static zero_status draft_make(const struct manifest *m, const struct piece *pieces, uint32_t count,
                              struct draft *out, struct zero_error *error) {
    struct draft d = {.count = count};
    d.tensor = calloc(count + 1, sizeof *d.tensor);
    d.note = calloc(count + 1, sizeof *d.note);
    d.name = calloc(count + 1, sizeof *d.name);
    bool good = d.tensor && d.note && d.name;
    for (uint32_t i = 0; i < count && good; i++) {
        size_t bytes = FIRST_DIGITS + blocks_of(pieces[i].count) * (CHECKSUM_DIGITS + 1) + 1;
        d.note[i] = malloc(bytes);
        d.name[i] = piece_name(m, &pieces[i]);
        good = d.note[i] && d.name[i];
        if (!good) break;
        memset(d.note[i], ' ', bytes - 1); /* as long as it will be once the checksums are known */
        d.note[i][bytes - 1] = 0;
        draft_piece(&d, i, m, &pieces[i]);
        d.note[i][FIRST_DIGITS] = bytes > FIRST_DIGITS + 1 ? ' ' : 0;
    }
    if (good) {
        *out = d;
        return ZERO_OK;
    }
    draft_free(&d);
    return error_set(error, ZERO_E_MEMORY, "no memory for the header of %" PRIu32 " pieces", count);
}

zero_status shard_bytes(const struct manifest *m, const struct piece *pieces, uint32_t count,
                        uint64_t *out_bytes, struct zero_error *error) {
    struct draft d;
    char *header = NULL;
    TRY(draft_make(m, pieces, count, &d, error));
    zero_status status = safetensors_print(d.tensor, count, NULL, &header, out_bytes, error);
    for (uint32_t i = 0; i < count && !status; i++) *out_bytes += pieces[i].count * sizeof(float);
    free(header);
    draft_free(&d);
    return status;
}

struct shard_writer {
    struct storage_file file;
    struct draft draft;
    const struct piece *piece;
    uint64_t header_bytes, bytes;
    struct checksum_stream sum[1 + MANIFEST_STATES_MAX]; /* by kind: of a block that is not complete yet */
};

static zero_status print_header(struct shard_writer *w, char **out, struct zero_error *error) {
    return safetensors_print(w->draft.tensor, w->draft.count, NULL, out, &w->header_bytes, error);
}

zero_status shard_create(struct storage *storage, const char *directory, uint32_t rank,
                         const struct manifest *m, const struct piece *pieces, uint32_t count,
                         const struct storage_staging *staging, struct shard_writer **out,
                         struct zero_error *error) {
    char name[32], path[STORAGE_PATH_BYTES], *header = NULL;
    struct shard_writer *w = aligned_alloc(_Alignof(struct shard_writer), sizeof *w);
    if (!w) return error_set(error, ZERO_E_MEMORY, "no memory to write a shard");
    *w = (struct shard_writer){.piece = pieces};
    manifest_file_name(rank, name);
    zero_status status = storage_join(directory, name, path, error);
    if (!status) status = draft_make(m, pieces, count, &w->draft, error);
    if (!status) status = print_header(w, &header, error); /* sets the tensors' offsets */
    free(header);
    w->bytes = w->header_bytes;
    for (uint32_t i = 0; i < count; i++) w->bytes += pieces[i].count * sizeof(float);
    if (!status) status = storage_create(storage, path, w->bytes, staging, &w->file, error);
    if (status)
        shard_drop(w);
    else
        *out = w;
    return status;
}

/* The checksum of a block that ends here; the block may have come in several runs. */
static void sum_block(struct shard_writer *w, uint32_t index, uint64_t at, uint64_t count,
                      const float *block) {
    const struct piece *p = &w->piece[index];
    struct checksum_stream *sum = &w->sum[p->kind];
    bool begins = at % BLOCK_ELEMENTS == 0,
         ends = (at + count) % BLOCK_ELEMENTS == 0 || at + count == p->count;
    char *note =
        w->draft.note[index] + FIRST_DIGITS + at / BLOCK_ELEMENTS * (CHECKSUM_DIGITS + 1); /* " 0123…" */
    if (!begins || !ends) {
        if (begins) checksum_begin(sum);
        checksum_add(sum, block, count * sizeof *block);
    }
    if (!ends) return;
    *note = ' ';
    checksum_print(begins ? checksum(block, count * sizeof *block) : checksum_end(sum), note + 1);
}

zero_status shard_write_run(struct shard_writer *w, uint32_t index, uint64_t first, uint64_t count,
                            const struct shard_source *source, struct zero_error *error) {
    const struct piece *p = &w->piece[index];
    uint64_t offset = w->draft.tensor[index].offset, at = first - p->first, end = at + count;
    zero_status status = ZERO_OK;
    for (uint64_t some; at < end && !status; at += some) {
        some = min64(end - at, BLOCK_ELEMENTS - at % BLOCK_ELEMENTS);
        status = source->read(source->user, p, p->first + at, some, source->block, error);
        if (status) break;
        sum_block(w, index, at, some, source->block);
        status =
            storage_write(&w->file, source->block, some * sizeof(float), offset + at * sizeof(float), error);
    }
    return status;
}

zero_status shard_complete(struct shard_writer *w, struct manifest_file *out, struct zero_error *error) {
    char *header = NULL;
    /* the new header has the same length: only digits changed */
    TRY(print_header(w, &header, error));
    zero_status status = storage_write(&w->file, header, w->header_bytes, 0, error);
    *out = (struct manifest_file){w->bytes, checksum(header, w->header_bytes)};
    free(header);
    return status ? status : storage_sync(&w->file, error);
}

void shard_drop(struct shard_writer *w) {
    if (!w) return;
    storage_close(&w->file);
    draft_free(&w->draft);
    free(w);
}

zero_status shard_write(struct storage *storage, const char *directory, uint32_t rank,
                        const struct manifest *m, const struct piece *pieces, uint32_t count,
                        const struct shard_source *source, struct manifest_file *out,
                        struct zero_error *error) {
    struct shard_writer *w = NULL;
    zero_status status = shard_create(storage, directory, rank, m, pieces, count, NULL, &w, error);
    for (uint32_t i = 0; i < count && !status; i++)
        status = shard_write_run(w, i, pieces[i].first, pieces[i].count, source, error);
    if (!status) status = shard_complete(w, out, error);
    shard_drop(w);
    return status;
}

/* ---- opening ---- */

static zero_status damaged(const struct shard *s, const char *tensor, const char *what,
                           struct zero_error *error) {
    return error_set(error, ZERO_E_IO, "%s: the piece \"%s\" %s; the file is damaged", s->file.path, tensor,
                     what);
}

static const char *param_name(const void *manifest, uint32_t i) {
    return ((const struct manifest *)manifest)->param[i].name;
}

static const struct manifest_param *find_param(const struct manifest *m, const struct name_index *index,
                                               const char *name) {
    uint32_t i = name_index_find(index, name, param_name, m);
    return i == UINT32_MAX ? NULL : &m->param[i];
}

/* "#12" and what follows; 0 where there is no such number. */
static uint32_t read_part(const char *text, const char **out_end) {
    uint64_t part = 0;
    const char *c = text + 1;
    *out_end = text;
    if (*text != '#' || *c < '1') return 0;
    for (; *c >= '0' && *c <= '9' && part <= UINT32_MAX; c++) part = part * 10 + (uint64_t)(*c - '0');
    if (part > UINT32_MAX) return 0;
    *out_end = c;
    return (uint32_t)part;
}

static bool find_kind(const struct manifest *m, const char *tensor, struct piece *out,
                      const char **out_param) {
    for (uint32_t kind = 0; kind <= m->states; kind++) {
        const char *name = manifest_kind(m, kind);
        size_t length = strlen(name);
        if (strncmp(tensor, name, length) != 0) continue;
        out->kind = kind;
        out->part = read_part(tensor + length, out_param);
        if (*(*out_param)++ != '/') continue;
        return true;
    }
    return false;
}

/* "00000000000000000012 0123456789abcdef 0123456789abcdef" */
static bool read_first(const struct tensor *t, uint64_t *out_first) {
    if (!t->note || strlen(t->note) != FIRST_DIGITS + blocks_of(t->count) * (CHECKSUM_DIGITS + 1))
        return false;
    if (strspn(t->note, "0123456789") != FIRST_DIGITS) return false;
    *out_first = strtoull(t->note, NULL, 10);
    return true;
}

static zero_status read_piece(const struct shard *s, const struct tensor *t, const struct manifest *m,
                              const struct name_index *index, struct piece *out, struct zero_error *error) {
    const char *name;
    if (t->dtype != DTYPE_F32 || !t->count) return damaged(s, t->name, "is not of fp32 elements", error);
    if (!find_kind(m, t->name, out, &name)) return damaged(s, t->name, "is of an unknown kind", error);
    out->param = find_param(m, index, name);
    if (!out->param) return damaged(s, t->name, "belongs to no parameter of the manifest", error);
    if (!read_first(t, &out->first)) return damaged(s, t->name, "has no checksums", error);
    out->count = t->count;
    if (out->first > out->param->count || t->count > out->param->count - out->first)
        return damaged(s, t->name, "reaches past the end of its parameter", error);
    return ZERO_OK;
}

static zero_status read_pieces(struct shard *s, const struct manifest *m,
                               const struct manifest_file *expected, struct zero_error *error) {
    uint64_t bytes;
    TRY(storage_size(&s->file, &bytes, error));
    if (bytes != expected->bytes)
        return error_set(error, ZERO_E_IO,
                         "%s has %" PRIu64 " bytes, %" PRIu64 " by the manifest; the file is damaged",
                         s->file.path, bytes, expected->bytes);
    zero_status status = safetensors_read(&s->file, &s->table, error);
    if (status) return status;
    if (s->table.header_checksum != expected->header_checksum)
        return error_set(error, ZERO_E_IO,
                         "%s: the header's checksum does not match the manifest's; the file is damaged",
                         s->file.path);
    s->count = s->table.count;
    s->piece = calloc(s->count + 1, sizeof *s->piece);
    if (!s->piece)
        return error_set(error, ZERO_E_MEMORY, "no memory for the %" PRIu32 " pieces of %s", s->count,
                         s->file.path);
    struct name_index index = {0};
    for (uint32_t i = 0; i < m->params && !status; i++)
        if (!name_index_add(&index, i, param_name, m))
            status = error_set(error, ZERO_E_MEMORY, "no memory for the pieces of %s", s->file.path);
    for (uint32_t i = 0; i < s->count && !status; i++)
        status = read_piece(s, &s->table.tensor[i], m, &index, &s->piece[i], error);
    name_index_free(&index);
    return status;
}

zero_status shard_open(struct storage *storage, const char *directory, uint32_t rank,
                       const struct manifest *m, struct shard *out, struct zero_error *error) {
    char name[32], path[STORAGE_PATH_BYTES];
    *out = (struct shard){0};
    manifest_file_name(rank, name);
    zero_status status = storage_join(directory, name, path, error);
    if (!status) status = storage_open(storage, path, &out->file, error);
    if (!status) status = read_pieces(out, m, &m->file[rank], error);
    if (status) shard_close(out);
    return status;
}

void shard_close(struct shard *s) {
    storage_close(&s->file);
    safetensors_free(&s->table);
    free(s->piece);
    *s = (struct shard){0};
}

/* ---- reading ---- */

static zero_status read_block(struct shard *s, uint32_t index, uint64_t b, uint64_t count, float *block,
                              struct zero_error *error) {
    const struct tensor *t = &s->table.tensor[index];
    uint64_t offset = t->offset + b * BLOCK_BYTES, expected;
    TRY(storage_read(&s->file, block, count * sizeof *block, offset, error));
    const char *digits = t->note + FIRST_DIGITS + b * (CHECKSUM_DIGITS + 1) + 1;
    if (checksum_parse(digits, &expected) && checksum(block, count * sizeof *block) == expected)
        return ZERO_OK;
    return error_set(error, ZERO_E_IO,
                     "%s: bytes %" PRIu64 " to %" PRIu64
                     ", of \"%s\", do not match their checksum; the file is damaged",
                     s->file.path, offset, offset + count * sizeof *block, t->name);
}

zero_status shard_read(struct shard *s, uint32_t index, uint64_t first, uint64_t count, float *block,
                       piece_sink sink, void *user, struct zero_error *error) {
    const struct piece *p = &s->piece[index];
    uint64_t begin = first - p->first, end = begin + count; /* in the piece */
    zero_status status = ZERO_OK;
    for (uint64_t b = begin / BLOCK_ELEMENTS; b * BLOCK_ELEMENTS < end && !status; b++) {
        uint64_t from = b * BLOCK_ELEMENTS, to = min64(p->count, from + BLOCK_ELEMENTS);
        status = read_block(s, index, b, to - from, block, error);
        uint64_t low = begin > from ? begin : from, high = min64(end, to);
        if (!status) status = sink(user, p, p->first + low, high - low, block + (low - from), error);
    }
    return status;
}
