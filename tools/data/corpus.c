#include "tools/data/corpus.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/hash.h"

static bool ends_with(const char *path, const char *end) {
    size_t length = strlen(path), of_end = strlen(end);
    return length > of_end && strcasecmp(path + length - of_end, end) == 0;
}

static bool is_token_file(const char *path) { return ends_with(path, ".bin"); }

/* The name of the same file with another end. The caller frees it; NULL: no memory. */
static char *sibling(const char *path, const char *end) {
    size_t stem = (size_t)(strrchr(path, '.') - path);
    char *name = malloc(stem + strlen(end) + 1);
    if (name) memcpy(name, path, stem), strcpy(name + stem, end);
    return name;
}

static bool is_mask(const char *path) {
    char *data = ends_with(path, ".mask") ? sibling(path, ".bin") : NULL;
    bool found = data && access(data, F_OK) == 0;
    free(data);
    return found;
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const struct corpus_file *)a)->path, ((const struct corpus_file *)b)->path);
}

/* ---- finding the files ---- */

static zero_status add_file(struct corpus *corpus, const char *path, const struct stat *found,
                            struct zero_error *error) {
    uint64_t n = corpus->file_count;
    if ((n & (n - 1)) == 0) { /* grows at the powers of two */
        void *grown = realloc(corpus->files, (n ? 2 * n : 1) * sizeof *corpus->files);
        if (!grown)
            return error_set(error, ZERO_E_MEMORY, "data: no memory for the names of %" PRIu64 " files", n);
        corpus->files = grown;
    }
    char *copy = strdup(path);
    if (!copy) return error_set(error, ZERO_E_MEMORY, "data: no memory for the name %s", path);
    corpus->files[corpus->file_count++] =
        (struct corpus_file){.path = copy, .bytes = (uint64_t)found->st_size, .modified = found->st_mtim};
    return ZERO_OK;
}

static bool is_hidden(const FTSENT *directory) {
    return directory->fts_level > FTS_ROOTLEVEL && directory->fts_name[0] == '.';
}

static zero_status visit(struct corpus *corpus, FTS *walk, FTSENT *entry, struct zero_error *error) {
    switch (entry->fts_info) {
    case FTS_D:
        if (is_hidden(entry)) fts_set(walk, entry, FTS_SKIP);
        return ZERO_OK;
    case FTS_F:
        return add_file(corpus, entry->fts_path, entry->fts_statp, error);
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
    case FTS_SLNONE:
        return error_set(error, ZERO_E_IO, "data: cannot read %s: %s", entry->fts_path,
                         strerror(entry->fts_errno ? entry->fts_errno : ENOENT));
    default:
        return ZERO_OK; /* links and devices; a directory comes a second time, after its files */
    }
}

static zero_status find_files(struct corpus *corpus, const char *path, struct zero_error *error) {
    if (!*path) return error_set(error, ZERO_E_ARGUMENT, "data: a path is empty");
    char *roots[] = {(char *)path, NULL};
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, NULL);
    if (!walk) return error_set(error, ZERO_E_IO, "data: cannot read %s: %s", path, strerror(errno));
    zero_status status = ZERO_OK;
    FTSENT *entry;
    while (status == ZERO_OK && (errno = 0, entry = fts_read(walk)))
        status = visit(corpus, walk, entry, error);
    if (status == ZERO_OK && errno) /* at the end it is 0 */
        status = error_set(error, ZERO_E_IO, "data: cannot read all of %s: %s", path, strerror(errno));
    fts_close(walk);
    return status;
}

static void sort_files(struct corpus *corpus) {
    if (corpus->file_count) qsort(corpus->files, corpus->file_count, sizeof *corpus->files, by_path);
    uint64_t kept = 0;
    for (uint64_t i = 0; i < corpus->file_count; i++) {
        struct corpus_file file = corpus->files[i];
        bool twice = kept && strcmp(corpus->files[kept - 1].path, file.path) == 0;
        if (twice || file.bytes == 0 || is_mask(file.path))
            free(file.path);
        else
            corpus->files[kept++] = file;
    }
    corpus->file_count = kept;
}

/* ---- counting their tokens ---- */

static const struct token_format {
    int32_t magic, version;
    uint32_t token_bytes;
} token_formats[] = {{TOKEN_FILE_MAGIC, TOKEN_FILE_VERSION, 2},
                     {TOKEN_FILE_WIDE_MAGIC, TOKEN_FILE_WIDE_VERSION, 4}};

static zero_status find_format(const char *path, const int32_t header[3], const struct token_format **out,
                               struct zero_error *error) {
    *out = header[0] == TOKEN_FILE_WIDE_MAGIC ? &token_formats[1] : &token_formats[0];
    if (header[0] != (*out)->magic)
        return error_set(error, ZERO_E_IO,
                         "data: %s is not a token file: its magic number is %d, expected %d (llm.c's "
                         "format); text must not be named .bin",
                         path, header[0], TOKEN_FILE_MAGIC);
    if (header[1] != (*out)->version)
        return error_set(error, ZERO_E_IO, "data: %s has token file version %d, expected %d", path, header[1],
                         (*out)->version);
    return ZERO_OK;
}

static zero_status count_token_file(struct corpus_file *file, uint32_t *out_bytes, struct zero_error *error) {
    const struct token_format *format;
    int32_t header[3] = {0};
    int fd = open(file->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return error_set(error, ZERO_E_IO, "data: cannot read %s: %s", file->path, strerror(errno));
    ssize_t got = pread(fd, header, sizeof header, 0);
    close(fd);
    if (got != (ssize_t)sizeof header || file->bytes < TOKEN_FILE_HEADER_BYTES)
        return error_set(error, ZERO_E_IO, "data: %s is shorter than the 1024 bytes of a token file's header",
                         file->path);
    TRY(find_format(file->path, header, &format, error));
    *out_bytes = format->token_bytes;
    file->tokens = (uint32_t)header[2];
    uint64_t held = (file->bytes - TOKEN_FILE_HEADER_BYTES) / format->token_bytes,
             said = TOKEN_FILE_HEADER_BYTES + format->token_bytes * file->tokens;
    if (held < file->tokens)
        return error_set(error, ZERO_E_IO,
                         "data: %s is truncated: its header says %" PRIu64 " tokens, the file holds %" PRIu64,
                         file->path, file->tokens, held);
    if (file->bytes != said)
        return error_set(error, ZERO_E_IO,
                         "data: %s has %" PRIu64 " bytes, and its header says %" PRIu64
                         " tokens, which end at byte %" PRIu64 ": its header or its end is damaged",
                         file->path, file->bytes, file->tokens, said);
    return ZERO_OK;
}

static zero_status count_text_file(struct corpus_file *file, struct zero_error *error) {
    if (access(file->path, R_OK) != 0)
        return error_set(error, ZERO_E_IO, "data: cannot read %s: %s", file->path, strerror(errno));
    file->tokens = file->bytes;
    return ZERO_OK;
}

static zero_status count_tokens(struct corpus *corpus, struct zero_error *error) {
    for (uint64_t i = 0; i < corpus->file_count; i++) {
        struct corpus_file *file = &corpus->files[i];
        uint32_t token_bytes = 1;
        bool tokens = is_token_file(file->path), first_tokens = is_token_file(corpus->files[0].path);
        if (tokens != first_tokens)
            return error_set(
                error, ZERO_E_ARGUMENT,
                "data: %s and %s do not mix: one is text, the other a token file (.bin); give one kind",
                corpus->files[0].path, file->path);
        TRY(tokens ? count_token_file(file, &token_bytes, error) : count_text_file(file, error));
        if (i == 0) corpus->token_bytes = token_bytes;
        if (token_bytes != corpus->token_bytes)
            return error_set(error, ZERO_E_ARGUMENT,
                             "data: %s and %s do not mix: their tokens have %u and %u bytes; give one kind",
                             corpus->files[0].path, file->path, corpus->token_bytes, token_bytes);
        file->first = corpus->tokens;
        corpus->tokens += file->tokens;
    }
    return ZERO_OK;
}

/* ---- loss masks ---- */

static zero_status find_mask(const struct corpus_file *file, struct corpus_file *mask,
                             struct zero_error *error) {
    struct stat found;
    char *path = sibling(file->path, ".mask");
    *mask = (struct corpus_file){.first = file->first, .tokens = file->tokens};
    if (!path) return error_set(error, ZERO_E_MEMORY, "data: no memory for the name of a loss mask");
    if (stat(path, &found) != 0) {
        int number = errno;
        zero_status status = number == ENOENT ? ZERO_OK
                                              : error_set(error, ZERO_E_IO, "data: cannot read %s: %s", path,
                                                          strerror(number));
        free(path);
        return status;
    }
    mask->path = path, mask->bytes = (uint64_t)found.st_size, mask->modified = found.st_mtim;
    if (S_ISREG(found.st_mode) && mask->bytes == file->tokens) return ZERO_OK;
    return error_set(error, ZERO_E_IO,
                     "data: %s has %" PRIu64 " bytes, and %s %" PRIu64
                     " tokens: a loss mask has one byte for each token; make it anew, or remove it",
                     path, mask->bytes, file->path, file->tokens);
}

static zero_status find_masks(struct corpus *corpus, struct zero_error *error) {
    if (corpus->token_bytes <= 1) return ZERO_OK;
    struct corpus *mask = calloc(1, sizeof *mask);
    if (mask) mask->files = calloc(corpus->file_count, sizeof *mask->files);
    corpus->mask = mask;
    if (!mask || !mask->files) return error_set(error, ZERO_E_MEMORY, "data: no memory for loss masks");
    *mask = (struct corpus){mask->files, corpus->file_count, corpus->tokens, 1, NULL};
    bool any = false;
    zero_status status = ZERO_OK;
    for (uint64_t i = 0; i < corpus->file_count && !status; i++) {
        status = find_mask(&corpus->files[i], &mask->files[i], error);
        any |= mask->files[i].path != NULL;
    }
    if (!status && !any) corpus_close(mask), corpus->mask = NULL;
    return status;
}

zero_status corpus_open(const char *const *paths, uint32_t count, struct zero_error *error,
                        struct corpus **out) {
    if (count == 0) return error_set(error, ZERO_E_ARGUMENT, "data: no path is given");
    struct corpus *corpus = calloc(1, sizeof *corpus);
    if (!corpus) return error_set(error, ZERO_E_MEMORY, "data: no memory for the index");
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < count && status == ZERO_OK; i++) status = find_files(corpus, paths[i], error);
    if (status == ZERO_OK) {
        sort_files(corpus);
        status = count_tokens(corpus, error);
    }
    if (status == ZERO_OK) status = find_masks(corpus, error);
    if (status == ZERO_OK && corpus->tokens == 0)
        status = error_set(error, ZERO_E_ARGUMENT, "data: there are no tokens under %s%s", paths[0],
                           count > 1 ? " and the other paths" : "");
    if (status != ZERO_OK) {
        corpus_close(corpus);
        return status;
    }
    *out = corpus;
    return ZERO_OK;
}

void corpus_close(struct corpus *corpus) {
    if (!corpus) return;
    corpus_close(corpus->mask);
    for (uint64_t i = 0; i < corpus->file_count; i++) free(corpus->files[i].path);
    free(corpus->files);
    free(corpus);
}

uint64_t corpus_hash(const struct corpus *corpus, uint64_t hash) {
    for (uint64_t i = 0; i < corpus->file_count; i++) {
        hash = hash_string(hash, corpus->files[i].path ? corpus->files[i].path : "");
        hash = hash_bytes(hash, &corpus->files[i].bytes, sizeof corpus->files[i].bytes);
    }
    return corpus->mask ? corpus_hash(corpus->mask, hash) : hash;
}

const struct corpus_file *corpus_find(const struct corpus *corpus, uint64_t position) {
    /* invariant: files[low].first <= position < files[high].first */
    uint64_t low = 0, high = corpus->file_count;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (corpus->files[middle].first <= position)
            low = middle;
        else
            high = middle;
    }
    return &corpus->files[low];
}
