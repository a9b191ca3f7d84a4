#include "tools/data/corpus.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/hash.h"
#include "kernels/checksum.h"

_Static_assert(CONTENTS_FILES * 2 * CONTENTS_BLOCK_BYTES + CONTENTS_SPREAD * CONTENTS_SPREAD_BYTES <=
                   CONTENTS_BYTES,
               "a sample is no more than is read as a whole");

struct sampler {
    const struct corpus *corpus;
    uint64_t hash;
    uint64_t opened; /* the index of the open file */
    int handle;      /* below 0: none */
    uint8_t *block;  /* CONTENTS_SPREAD_BYTES */
    struct zero_error *error;
};

static zero_status open_file(struct sampler *s, uint64_t index) {
    if (s->handle >= 0 && s->opened == index) return ZERO_OK;
    if (s->handle >= 0) close(s->handle);
    const char *path = s->corpus->files[index].path;
    s->handle = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    s->opened = index;
    if (s->handle >= 0) return ZERO_OK;
    return error_set(s->error, ZERO_E_IO, "data: cannot read %s: %s", path, strerror(errno));
}

/* Hashes at most a block's bytes of one file. */
static zero_status take_block(struct sampler *s, uint64_t index, uint64_t offset, uint64_t bytes) {
    const struct corpus_file *file = &s->corpus->files[index];
    zero_status status = bytes ? open_file(s, index) : ZERO_OK;
    for (uint64_t done = 0; done < bytes && !status;) {
        ssize_t got = pread(s->handle, s->block + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            status = error_set(s->error, ZERO_E_IO, "data: cannot read %s: %s", file->path, strerror(errno));
        else if (got == 0)
            status = error_set(s->error, ZERO_E_IO,
                               "data: %s had %" PRIu64 " bytes and has fewer now: it must not change",
                               file->path, file->bytes);
        else
            done += (uint64_t)got;
    }
    uint64_t sum = status ? 0 : checksum(s->block, bytes);
    s->hash = hash_bytes(s->hash, &sum, sizeof sum);
    return status;
}

static zero_status take_file(struct sampler *s, uint64_t index) {
    uint64_t size = s->corpus->files[index].bytes;
    for (uint64_t at = 0, bytes; at < size; at += bytes) {
        bytes = size - at < CONTENTS_SPREAD_BYTES ? size - at : CONTENTS_SPREAD_BYTES;
        TRY(take_block(s, index, at, bytes));
    }
    return ZERO_OK;
}

static zero_status take_ends(struct sampler *s, uint64_t index) {
    uint64_t size = s->corpus->files[index].bytes;
    uint64_t bytes = size < CONTENTS_BLOCK_BYTES ? size : CONTENTS_BLOCK_BYTES;
    zero_status status = take_block(s, index, 0, bytes);
    return status ? status : take_block(s, index, size - bytes, bytes);
}

/* Hashes blocks at even distances over all files, in order. */
static zero_status take_spread(struct sampler *s, uint64_t total) {
    uint64_t index = 0, first = 0; /* the first byte of the file in the stream of all bytes */
    for (uint64_t k = 0; k < CONTENTS_SPREAD; k++) {
        uint64_t at = total / CONTENTS_SPREAD * k;
        while (at >= first + s->corpus->files[index].bytes) first += s->corpus->files[index++].bytes;
        uint64_t left = s->corpus->files[index].bytes - (at - first);
        TRY(take_block(s, index, at - first, left < CONTENTS_SPREAD_BYTES ? left : CONTENTS_SPREAD_BYTES));
    }
    return ZERO_OK;
}

static zero_status take_all(struct sampler *s) {
    const struct corpus *corpus = s->corpus;
    uint64_t total = 0, every = (corpus->file_count + CONTENTS_FILES - 1) / CONTENTS_FILES;
    zero_status status = ZERO_OK;
    for (uint64_t i = 0; i < corpus->file_count; i++) {
        s->hash = hash_bytes(s->hash, &corpus->files[i].bytes, sizeof corpus->files[i].bytes);
        total += corpus->files[i].bytes;
    }
    bool whole = total <= CONTENTS_BYTES;
    for (uint64_t i = 0; i < corpus->file_count && !status; i += whole ? 1 : every)
        status = whole ? take_file(s, i) : take_ends(s, i);
    return status || whole ? status : take_spread(s, total);
}

static zero_status sample(const struct corpus *corpus, uint64_t hash, uint64_t *out,
                          struct zero_error *error) {
    struct sampler s = {
        .corpus = corpus, .hash = hash, .handle = -1, .block = malloc(CONTENTS_SPREAD_BYTES), .error = error};
    if (!s.block) return error_set(error, ZERO_E_MEMORY, "data: no memory for a block of a file");
    zero_status status = take_all(&s);
    if (s.handle >= 0) close(s.handle);
    free(s.block);
    if (!status) *out = s.hash;
    return status;
}

zero_status corpus_contents(const struct corpus *corpus, uint64_t hash, uint64_t *out,
                            struct zero_error *error) {
    zero_status status = sample(corpus, hash, out, error);
    return status || !corpus->mask ? status : sample(corpus->mask, *out, out, error);
}
