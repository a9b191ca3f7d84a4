#include "tools/data/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct handle {
    const struct corpus_file *file; /* NULL: unused */
    int fd;
    uint64_t used; /* the reader's clock when it was last used */
};

struct reader {
    const struct corpus *corpus;
    uint32_t vocab;
    struct reader *mask; /* of the loss masks; NULL: there are none */
    bool masks;          /* it reads loss masks itself */
    uint64_t clock;
    struct handle handles[READER_FILES];
    uint8_t bytes[READER_BYTES]; /* the bytes of the last read */
};

enum { MASK_COUNTS = 1, MASK_INSIDE = 2, MASK_VALUES = 4 }; /* the bits of a mask's byte */

zero_status reader_open(const struct corpus *corpus, uint32_t vocab, struct zero_error *error,
                        struct reader **out) {
    struct reader *reader = calloc(1, sizeof *reader);
    if (!reader) return error_set(error, ZERO_E_MEMORY, "data: no memory for a reader");
    reader->corpus = corpus;
    reader->vocab = vocab;
    zero_status status =
        corpus->mask ? reader_open(corpus->mask, MASK_VALUES, error, &reader->mask) : ZERO_OK;
    if (reader->mask) reader->mask->masks = true;
    if (status == ZERO_OK)
        *out = reader;
    else
        reader_close(reader);
    return status;
}

static void close_handle(struct handle *handle) {
    if (handle->file) close(handle->fd);
    handle->file = NULL;
}

void reader_close(struct reader *reader) {
    if (!reader) return;
    reader_close(reader->mask);
    for (int i = 0; i < READER_FILES; i++) close_handle(&reader->handles[i]);
    free(reader);
}

static zero_status cannot_read(const struct corpus_file *file, struct zero_error *error) {
    return error_set(error, ZERO_E_IO, "data: cannot read %s: %s", file->path, strerror(errno));
}

static zero_status changed(const struct corpus_file *file, uint64_t bytes, struct zero_error *error) {
    return error_set(error, ZERO_E_IO,
                     "data: %s had %" PRIu64 " bytes at the start and has %" PRIu64
                     " now: it must not change during a run",
                     file->path, file->bytes, bytes);
}

/* If a file changed since it was indexed, every later token would be shifted, or be another. */
static zero_status check_unchanged(const struct handle *handle, struct zero_error *error) {
    struct stat now;
    if (fstat(handle->fd, &now) != 0) return cannot_read(handle->file, error);
    const struct timespec *then = &handle->file->modified;
    if ((uint64_t)now.st_size != handle->file->bytes)
        return changed(handle->file, (uint64_t)now.st_size, error);
    if (now.st_mtim.tv_sec == then->tv_sec && now.st_mtim.tv_nsec == then->tv_nsec) return ZERO_OK;
    return error_set(error, ZERO_E_IO,
                     "data: %s was written since the start of the run: it must not change during a run",
                     handle->file->path);
}

/* The handle of the open file. Opens the file, in place of the file unused for the longest time, if it is not open. */
static zero_status find_handle(struct reader *reader, const struct corpus_file *file,
                               struct zero_error *error, struct handle **out) {
    struct handle *handle = &reader->handles[0];
    for (int i = 0; i < READER_FILES && handle->file != file; i++) {
        struct handle *other = &reader->handles[i];
        if (other->file == file || other->used < handle->used) handle = other;
    }
    if (handle->file != file) {
        close_handle(handle);
        int fd = open(file->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0) return cannot_read(file, error);
        *handle = (struct handle){.file = file, .fd = fd};
    }
    handle->used = ++reader->clock;
    *out = handle;
    return check_unchanged(handle, error);
}

static zero_status read_bytes(struct reader *reader, const struct corpus_file *file, uint64_t offset,
                              uint64_t bytes, struct zero_error *error) {
    struct handle *handle = NULL;
    zero_status status = find_handle(reader, file, error, &handle);
    for (uint64_t done = 0; done < bytes && status == ZERO_OK;) {
        ssize_t got = pread(handle->fd, reader->bytes + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) status = cannot_read(file, error);
        if (got == 0) status = changed(file, offset + done, error);
        if (got > 0) done += (uint64_t)got;
    }
    return status;
}

static uint32_t token_at(const uint8_t *in, uint32_t token_bytes, uint64_t index) {
    uint32_t token = 0;
    for (uint32_t i = 0; i < token_bytes; i++) token |= (uint32_t)in[index * token_bytes + i] << (8 * i);
    return token;
}

/* Widens `count` tokens; returns the index of the first token at or above `vocab`, or `count`. Token files are
 * little-endian, like the machines on which llm.c and this engine run. */
static uint64_t widen(const uint8_t *in, uint32_t token_bytes, uint64_t count, uint32_t vocab, int32_t *out) {
    for (uint64_t i = 0; i < count; i++) {
        uint32_t token = token_at(in, token_bytes, i);
        if (token >= vocab) return i;
        out[i] = (int32_t)token;
    }
    return count;
}

static zero_status unknown_token(const struct reader *reader, const struct corpus_file *file, uint64_t index,
                                 uint32_t token, struct zero_error *error) {
    if (reader->masks)
        return error_set(error, ZERO_E_ARGUMENT,
                         "data: byte %" PRIu64 " of %s is %u: a loss mask has bytes 0 to 3 only", index,
                         file->path, token);
    return error_set(error, ZERO_E_ARGUMENT,
                     "data: token %" PRIu64 " of %s is %u, but the model's vocab_size is %u", index,
                     file->path, token, reader->vocab);
}

/* Reads the tokens from `position` on that lie in one file and in one read, at most `count`. */
static zero_status read_run(struct reader *reader, uint64_t position, uint64_t count, int32_t *out,
                            uint64_t *out_count, struct zero_error *error) {
    const struct corpus *corpus = reader->corpus;
    const struct corpus_file *file = corpus_find(corpus, position);
    uint64_t index = position - file->first, run = READER_BYTES / corpus->token_bytes;
    if (run > file->tokens - index) run = file->tokens - index;
    if (run > count) run = count;
    *out_count = run;
    if (!file->path) {
        for (uint64_t i = 0; i < run; i++) out[i] = 1;
        return ZERO_OK;
    }
    TRY(read_bytes(reader, file, corpus_header_bytes(corpus) + index * corpus->token_bytes,
                   run * corpus->token_bytes, error));
    const uint8_t *in = reader->bytes;
    uint64_t good = widen(in, corpus->token_bytes, run, reader->vocab, out);
    if (good < run)
        return unknown_token(reader, file, index + good, token_at(in, corpus->token_bytes, good), error);
    return ZERO_OK;
}

zero_status reader_read(struct reader *reader, uint64_t first, uint64_t count, int32_t *out,
                        struct zero_error *error) {
    if (first > reader->corpus->tokens || count > reader->corpus->tokens - first)
        return error_set(error, ZERO_E_ARGUMENT,
                         "data: tokens %" PRIu64 " to %" PRIu64 " were requested from a stream of %" PRIu64,
                         first, first + count, reader->corpus->tokens);
    while (count) {
        uint64_t run = 0;
        TRY(read_run(reader, first, count, out, &run, error));
        first += run, out += run, count -= run;
    }
    return ZERO_OK;
}

zero_status reader_mask(struct reader *reader, uint64_t first, uint64_t count, int32_t *targets,
                        struct zero_error *error) {
    enum { BLOCK = 1024 };
    int32_t counts[BLOCK];
    zero_status status = ZERO_OK;
    for (uint64_t at = 0; at < count && reader->mask && !status; at += BLOCK) {
        uint64_t run = count - at < BLOCK ? count - at : BLOCK;
        status = reader_read(reader->mask, first + at, run, counts, error);
        for (uint64_t i = 0; i < run && !status; i++)
            if (!(counts[i] & MASK_COUNTS)) targets[at + i] = READER_NO_TARGET;
    }
    return status;
}

zero_status reader_inside(struct reader *reader, uint64_t at, bool *out, struct zero_error *error) {
    int32_t byte = 0;
    zero_status status = reader->mask ? reader_read(reader->mask, at, 1, &byte, error) : ZERO_OK;
    *out = byte & MASK_INSIDE;
    return status;
}
