/* Reads tokens of a corpus through a bounded buffer and a bounded number of open files. Nothing is mapped into
 * memory: a file that shrinks during a run is an error of a read, where a mapping would end the process by SIGBUS.
 * Owns its files; borrows the corpus. Threads: one per reader. */
#ifndef ZERO_TOOLS_DATA_READER_H
#define ZERO_TOOLS_DATA_READER_H

#include <stdint.h>

#include "tools/data/corpus.h"

enum {
    READER_BYTES = 64 * 1024, /* in one read; a multiple of any token's size */
    READER_FILES = 16         /* open at once */
};

struct reader;

/* Tokens at or above `vocab` are refused when they are read. */
zero_status reader_open(const struct corpus *corpus, uint32_t vocab, struct zero_error *error,
                        struct reader **out);
void reader_close(struct reader *reader);

/* Tokens [first, first + count) of the stream. Errors name the file and the place in it. */
zero_status reader_read(struct reader *reader, uint64_t first, uint64_t count, int32_t *out,
                        struct zero_error *error);

#endif
