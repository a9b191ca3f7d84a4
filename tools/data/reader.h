/* Reads tokens of a corpus through a limited buffer and a limited number of open files. No file is mapped into memory:
 * if a file shrinks during a run, a read fails; with a mapping, SIGBUS would end the process. Owns its files; borrows
 * the corpus. Threads: one per reader. */
#pragma once

#include "tools/data/corpus.h"

enum {
    READER_BYTES = 64 * 1024, /* in one read; a multiple of every token size */
    READER_FILES = 16         /* open at once */
};

struct reader;

/* A read of a token at or above `vocab` fails. */
zero_status reader_open(const struct corpus *corpus, uint32_t vocab, struct zero_error *error,
                        struct reader **out);
void reader_close(struct reader *reader);

/* Reads tokens [first, first + count) of the stream. Errors name the file and the position in it. */
zero_status reader_read(struct reader *reader, uint64_t first, uint64_t count, int32_t *out,
                        struct zero_error *error);

/* Gives READER_NO_TARGET to those of the tokens [first, first + count) that the corpus's loss masks leave out. */
enum { READER_NO_TARGET = -1, READER_NEXT_DOCUMENT = -2 };
zero_status reader_mask(struct reader *reader, uint64_t first, uint64_t count, int32_t *targets,
                        struct zero_error *error);

/* *out: the loss mask says that the token is inside a document, although it is the one that ends documents. */
zero_status reader_inside(struct reader *reader, uint64_t at, bool *out, struct zero_error *error);
