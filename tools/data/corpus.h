/* The files that a run trains on, as one stream of tokens: only the index, no contents.
 * Text is byte-level: each byte of a file is one token. A file whose name ends in ".bin" is an llm.c token file: a
 * header of 256 int32 (magic 20240520, version 1, number of tokens), then uint16 tokens; or magic 20240801 and version 7,
 * which llm.c has for Llama 3, then uint32 tokens. A corpus has files of one kind only.
 *
 * Order: all regular files under the given paths, each once, sorted by path (strcmp). Inside a directory, symbolic
 * links are not followed, and directories whose names begin with a dot are left out. Empty files hold no tokens and are
 * left out, too.
 *
 * Loss masks: beside NAME.bin, NAME.mask has one byte for each token, 1 if the token counts as a target, else 0. It is found by its
 * name, and is no data itself. Owns the paths. Threads: immutable once open; any number of readers may share it. */
#pragma once

#include <stdbool.h>
#include <time.h>

#include "engine/base/error.h"

enum { TOKEN_FILE_HEADER_BYTES = 256 * 4, TOKEN_FILE_MAGIC = 20240520, TOKEN_FILE_VERSION = 1 };
enum { TOKEN_FILE_WIDE_MAGIC = 20240801, TOKEN_FILE_WIDE_VERSION = 7 };

struct corpus_file {
    char *path;     /* NULL, in a corpus of masks: its data file has none, so that all tokens count */
    uint64_t first; /* the position of its first token in the stream */
    uint64_t tokens;
    uint64_t bytes; /* of the file, with the header */
    struct timespec modified;
};

struct corpus {
    struct corpus_file *files;
    uint64_t file_count, tokens;
    uint32_t token_bytes; /* 1: text, or masks; 2, 4: token files */
    struct corpus *mask;  /* the mask of each file; NULL: there is none */
};

/* Errors name the path: missing, unreadable, no tokens, a wrong header, fewer tokens than the header says, a mask of another size. */
zero_status corpus_open(const char *const *paths, uint32_t count, struct zero_error *error,
                        struct corpus **out);
void corpus_close(struct corpus *corpus);

/* A hash of the paths and sizes of all files, continued from `hash`. The hash is equal if ranks on different hosts find
 * the same files. */
uint64_t corpus_hash(const struct corpus *corpus, uint64_t hash);

/* The file that holds token `position` < corpus->tokens. */
const struct corpus_file *corpus_find(const struct corpus *corpus, uint64_t position);

static inline uint64_t corpus_header_bytes(const struct corpus *corpus) {
    return corpus->token_bytes > 1 ? TOKEN_FILE_HEADER_BYTES : 0;
}

/* Tells whether two corpora have the same contents: a hash of the files' sizes and contents, in the order of the
 * stream, not of their paths. Up to CONTENTS_BYTES the hash covers every byte. Larger corpora are sampled: the first
 * and the last block of each file (of CONTENTS_FILES files, evenly spread, if there are more), and CONTENTS_SPREAD
 * larger blocks, evenly spread over all bytes. At most 32 MiB are read in total. A change of a few bytes inside
 * hundreds of GB may therefore be missed; a change of size is always found. */
enum {
    CONTENTS_BYTES = 32 << 20,
    CONTENTS_BLOCK_BYTES = 4 << 10, /* at the ends of a file */
    CONTENTS_FILES = 2048,
    CONTENTS_SPREAD_BYTES = 64 << 10,
    CONTENTS_SPREAD = 256
};

/* Continues from `hash`. ZERO_E_IO names the file that cannot be read or has become shorter. */
zero_status corpus_contents(const struct corpus *corpus, uint64_t hash, uint64_t *out,
                            struct zero_error *error);
