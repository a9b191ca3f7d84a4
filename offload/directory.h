/* A directory of swap files, as nvme_path names it. The text may begin with ~ and may hold $NAME or ${NAME}: each rank expands them
 * in its own environment when it opens the directory, so the configurations of all ranks are the same text.
 *
 * $ZERO_SWAP always has a value: the variable's, else $SLURM_TMPDIR, else /var/tmp. (/tmp lies in memory on many systems.)
 *
 * Files that keep their names (a shadow's) never lie where other users can write: if the directory is such a place, as /var/tmp is,
 * they lie in its subdirectory zero-UID, of mode 0700. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "engine/base/error.h"

struct swap_directory {
    char *path; /* owned */
    int handle;
    dev_t device;
    char caution
        [160]; /* what the filesystem means for swap files: "is on tmpfs: ..."; empty: it is that of a drive */
};

/* The path that `text` means, for the caller to free. It makes and checks nothing. `named`: for files that keep their names.
 * ZERO_E_CONFIG: a variable is not set. */
zero_status swap_directory_path(const char *text, bool named, char **out, struct zero_error *error);

/* Opens the directory, and makes each level that is missing, with mode 0700. If the directory is itself a symbolic link, follows it
 * only if the link belongs to this user or to root. ZERO_E_CONFIG, ZERO_E_IO. */
zero_status swap_directory_open(const char *text, bool named, struct swap_directory *out,
                                struct zero_error *error);
void swap_directory_close(struct swap_directory *directory);

/* The bytes that this user may still write there. `handle`: of a file or a directory. */
uint64_t swap_free_bytes(int handle);
