/* The file of one path: nameless, so that nothing is left of it however the process ends (unless it is kept); all of its
 * space taken at creation; direct where the filesystem can. Everything is opened relative to the directory's
 * handle. */
#ifndef ZERO_OFFLOAD_SWAP_FILE_H
#define ZERO_OFFLOAD_SWAP_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "engine/base/error.h"

struct swap_directory {
    const char *path; /* borrowed */
    int handle;
    dev_t device;
};

struct swap_file {
    const char *path; /* of its directory, borrowed */
    int handle;
    uint64_t bytes;
    uint32_t alignment; /* of a transfer's offset, size and memory; 1 through the page cache */
    bool direct;        /* past the page cache */
    bool allocated;     /* its blocks are reserved */
    bool found;         /* kept by an earlier process, and as large */
};

/* A made directory is 0700; its parent must exist. A symbolic link is followed only if it is the user's or
 * root's. */
zero_status swap_directory_open(const char *path, struct swap_directory *out, struct zero_error *error);
void swap_directory_close(struct swap_directory *directory);

/* Bytes that this user may still write there. */
uint64_t swap_free_bytes(int handle);

/* Mode 0600 and full of zeros as read. `named`: as if the filesystem had no O_TMPFILE. ZERO_E_IO. */
zero_status swap_file_create(const struct swap_directory *directory, uint64_t bytes, bool named,
                             struct swap_file *out, struct zero_error *error);

/* The file of this name, as it is, or made, full of zeros; it stays. ZERO_E_IO; also where another process has it open,
 * where it has another size (unless `discard`: then it is made anew), or is not the user's alone. */
zero_status swap_file_keep(const struct swap_directory *directory, uint64_t bytes, const char *name,
                           bool discard, struct swap_file *out, struct zero_error *error);
/* `name` is there, and as large; NULL: it is not. */
bool swap_file_there(const struct swap_directory *directory, const char *name, uint64_t bytes);

void swap_file_close(struct swap_file *file);

struct swap_size {
    char chars[24];
};
struct swap_size swap_size(uint64_t bytes); /* "12.4 GiB" */

#endif
