/* Texts that are kept from run to run. A text answers a question of one line. The first line of its file has the kind of text, the
 * format's version, a hash of all that follows, and the question; the text follows. A file that is damaged, that answers
 * another question, or that another user may have written counts as missing. The file is DIRECTORY/KIND-HASH, with the hash of the
 * question. The user's cache directory is $XDG_CACHE_HOME/zero, else ~/.cache/zero. */
#ifndef ZERO_TOOLS_COMMAND_KEPT_H
#define ZERO_TOOLS_COMMAND_KEPT_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

enum { KEPT_PATH_BYTES = 4096 };

struct kept {
    const char *kind;      /* a word */
    const char *directory; /* NULL: the user's cache directory */
    const char *question;
};

/* False: the path is too long, or the user has no cache directory. */
bool kept_path(const struct kept *kept, char out[KEPT_PATH_BYTES]);

/* False: the file counts as missing, or its text does not fit. */
bool kept_find(const struct kept *kept, char *out, size_t size);

/* Replaces what is there. Makes the cache directory if there is none. */
zero_status kept_store(const struct kept *kept, const char *text, struct zero_error *error);

#endif
