/* Tells whether two corpora have the same contents: a hash of the files' sizes and contents, in the order of the
 * stream, not of their paths. Up to CONTENTS_BYTES the hash covers every byte. Larger corpora are sampled: the first
 * and the last block of each file (of CONTENTS_FILES files, evenly spread, if there are more), and CONTENTS_SPREAD
 * larger blocks, evenly spread over all bytes. At most 32 MiB are read in total. A change of a few bytes inside
 * hundreds of GB may therefore be missed; a change of size is always found. */
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

/* Continues from `hash`. ZERO_E_IO names the file that cannot be read or has become shorter. */
zero_status corpus_contents(const struct corpus *corpus, uint64_t hash, uint64_t *out,
                            struct zero_error *error);

#endif
