/* The file of one path. It is nameless, so that nothing stays behind however the process ends (unless the file is
 * kept). All of its space is taken before the first transfer. Transfers are direct if the filesystem supports it.
 * Everything is opened relative to the directory's handle.
 *
 *   create, keep ---> [empty] ---> take ---> transfers ---> close */
#pragma once

#include "engine/base/error.h"
#include "offload/directory.h"

enum { SWAP_NAME_BYTES = 64 };

struct swap_file {
    const char *path; /* path of its directory, borrowed */
    int handle;
    uint64_t bytes;
    uint32_t alignment;  /* alignment of a transfer's offset, size and memory; 1 through the page cache */
    bool direct;         /* transfers bypass the page cache */
    bool allocated;      /* the filesystem has reserved all its blocks */
    uint64_t kept_bytes; /* the size of what an earlier process kept in the file */
    /* nothing was written to the kept file: a start that was killed had only taken space for it */
    bool blank;
};

/* The kernel holds the files of a killed process for a moment, if its ring had registered them. Such a file may still hold its
 * lock and its space. Sleeps before another try. False: two seconds of tries are over. *tries: 0 at first. */
bool swap_try_again(uint32_t *tries);

/* Creates a file of mode 0600, of `bytes` once its space is taken. `named`: behave as if the filesystem had no O_TMPFILE. ZERO_E_IO. */
zero_status swap_file_create(const struct swap_directory *directory, uint64_t bytes, bool named,
                             struct swap_file *out, struct zero_error *error);

struct swap_kept {
    const char *name;
    uint64_t step; /* the step that it keeps, for the message that refuses it; 0: unknown */
    bool discard;  /* the caller may empty it */
};

/* Opens the kept file `kept->name` as it is, or makes it, empty. The file stays after close. ZERO_E_IO, also if another
 * process has the file open, if it does not belong to this user alone, or if it has another size (`kept->discard`
 * permits that). */
zero_status swap_file_keep(const struct swap_directory *directory, uint64_t bytes,
                           const struct swap_kept *kept, struct swap_file *out, struct zero_error *error);
/* Removes a kept file that this process holds open. */
void swap_file_remove(const struct swap_directory *directory, const char *name);

/* The space that the file has already, in bytes. */
uint64_t swap_file_held(const struct swap_file *file);
/* Drops what was kept, and its space. ZERO_E_IO. */
zero_status swap_file_empty(struct swap_file *file, struct zero_error *error);
/* Takes the file's space, also for holes in a kept file. New space reads as zeros. ZERO_E_IO. If the file is not
 * `allocated` then, only writing all of it takes its space. */
zero_status swap_file_take(struct swap_file *file, struct zero_error *error);

void swap_file_close(struct swap_file *file);

struct swap_size {
    char chars[24];
};
struct swap_size swap_size(uint64_t bytes); /* "12.4 GiB" */
