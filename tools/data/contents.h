/* Whether two corpora hold the same: a hash of their files' sizes and contents, in the order of the stream, whatever
 * their paths. Of up to CONTENTS_BYTES every byte is read. Of more a sample is: the first and the last block of each
 * file (of CONTENTS_FILES files, evenly spread, if there are more), and CONTENTS_SPREAD larger blocks, evenly spread
 * over all. At most 32 MiB are read in all, so a change of a few bytes in the midst of hundreds of GB may be missed;
 * a change of size is not. */
#ifndef ZERO_TOOLS_DATA_CONTENTS_H
#define ZERO_TOOLS_DATA_CONTENTS_H

#include "tools/data/corpus.h"

enum {
    CONTENTS_BYTES = 32 << 20,
    CONTENTS_BLOCK_BYTES = 4 << 10, /* at the ends of a file */
    CONTENTS_FILES = 2048,
    CONTENTS_SPREAD_BYTES = 64 << 10,
    CONTENTS_SPREAD = 256
};

/* Goes on from `hash`. ZERO_E_IO names the file that cannot be read, or is shorter by now. */
zero_status corpus_contents(const struct corpus *corpus, uint64_t hash, uint64_t *out,
                            struct zero_error *error);

#endif
