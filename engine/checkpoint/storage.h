/* The operations that a checkpoint needs from a file system. They are a small table, so that tests can record, fail,
 * kill and replay them. storage_posix is the real file system. The functions on a struct storage_file use the table.
 * They finish short transfers, and their errors say which operation failed, on which path, and why.
 *
 * A file whose sync failed is broken: its bytes may be lost, even if a second fsync would succeed. So every later
 * write and sync on the file fails, and the file is never synced again.
 *
 * Threads: any number may use storage_posix; one at a time may use a struct storage_file. */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

enum { STORAGE_PATH_BYTES = 4096 };

struct storage;

typedef intptr_t storage_handle; /* an open file; 0 or more */

/* Memory for bytes that were written and have not reached the drive yet: at least 1 MiB, aligned to a page. It must
 * live as long as the file is open. */
struct storage_staging {
    void *memory;
    uint64_t bytes;
    struct tier_hook *hook; /* of tests, see offload/io.h; or NULL */
};

typedef void (*storage_name_fn)(void *user, const char *name);

/* Results: 0 or more, or -errno. */
struct storage_ops {
    int (*make_directory)(struct storage *storage, const char *path);
    /* must be empty */
    int (*remove_directory)(struct storage *storage, const char *path);
    /* without "." and ".." */
    int (*list)(struct storage *storage, const char *path, storage_name_fn fn, void *user);
    int (*sync_directory)(struct storage *storage, const char *path); /* makes its entries durable */
    int (*rename)(struct storage *storage, const char *from, const char *to);
    int (*exchange)(struct storage *storage, const char *a, const char *b); /* both must exist; atomic */
    int (*remove)(struct storage *storage, const char *path);               /* a file */
    /* For deleting the files of a directory. -ELOOP: the directory or the file is a symbolic link. -EPERM: the
     * directory belongs to another user. check_owned says whether remove_owned is likely to work; posix.c lists its
     * results. */
    int (*list_owned)(struct storage *storage, const char *path, storage_name_fn fn, void *user);
    int (*check_owned)(struct storage *storage, const char *directory, const char *name);
    int (*remove_owned)(struct storage *storage, const char *directory, const char *name);
    int64_t (*free_bytes)(struct storage *storage, const char *path);

    /* Opens a new file for writing; -EEXIST if the file exists. `bytes`: the final size if it is known, else 0. With
     * a size, the space is reserved now, and the caller must write all of it. `staging`: NULL: the storage has its
     * own. */
    storage_handle (*create)(struct storage *storage, const char *path, uint64_t bytes,
                             const struct storage_staging *staging);
    storage_handle (*open)(struct storage *storage, const char *path); /* for reading; returns a handle */
    int64_t (*size)(struct storage *storage, storage_handle handle);
    int64_t (*read)(struct storage *storage, storage_handle handle, void *to, size_t bytes, uint64_t offset);
    /* A failure may be returned later: by the next write, or by sync. */
    int64_t (*write)(struct storage *storage, storage_handle handle, const void *from, size_t bytes,
                     uint64_t offset);
    /* makes its bytes durable, but not its name */
    int (*sync)(struct storage *storage, storage_handle handle);
    void (*close)(struct storage *storage, storage_handle handle);
};

struct storage { /* the head of every implementation's own struct */
    const struct storage_ops *ops;
};

struct storage *storage_posix(void);

struct storage_file {
    struct storage *storage;
    storage_handle handle;
    bool broken;
    char path[STORAGE_PATH_BYTES];
};

/* The error of a path that leads to a FIFO, a socket or a device. */
enum { STORAGE_NO_FILE = ENOSTR }; /* which no file system returns */

/* If `result` is negative: ZERO_E_IO, with a message that `what` ("make the directory") failed on `path`. */
zero_status storage_check(int64_t result, const char *what, const char *path, struct zero_error *error);

/* Writes directory/name to `out`; ZERO_E_ARGUMENT if it is too long. */
zero_status storage_join(const char *directory, const char *name, char out[STORAGE_PATH_BYTES],
                         struct zero_error *error);

zero_status storage_create(struct storage *storage, const char *path, uint64_t bytes,
                           const struct storage_staging *staging, struct storage_file *out,
                           struct zero_error *error);
zero_status storage_open(struct storage *storage, const char *path, struct storage_file *out,
                         struct zero_error *error);
void storage_close(struct storage_file *file); /* a zeroed struct is allowed */

zero_status storage_size(struct storage_file *file, uint64_t *out_bytes, struct zero_error *error);
/* Reads exactly `bytes`, or returns an error. */
zero_status storage_read(struct storage_file *file, void *to, size_t bytes, uint64_t offset,
                         struct zero_error *error);
zero_status storage_write(struct storage_file *file, const void *from, size_t bytes, uint64_t offset,
                          struct zero_error *error);
zero_status storage_sync(struct storage_file *file, struct zero_error *error);

/* Read and write a small file as a whole. A text that was read ends with a zero byte; the caller frees it. A file
 * larger than `bytes_max` is refused. Writing makes a new file; its content is durable, its name is not yet. */
zero_status storage_read_text(struct storage *storage, const char *path, size_t bytes_max, char **out,
                              size_t *out_bytes, struct zero_error *error);
zero_status storage_write_text(struct storage *storage, const char *path, const char *text, size_t bytes,
                               struct zero_error *error);

/* Makes the name of a file or directory durable. */
zero_status storage_sync_name(struct storage *storage, const char *path, struct zero_error *error);

/* Makes the directories above `path` that do not exist yet. Their names are durable. */
zero_status storage_make_parents(struct storage *storage, const char *path, struct zero_error *error);
