/* What a checkpoint asks of a file system: one small table, so that tests can record, fail, kill and replay
 * it. storage_posix is the real one. Above the table, calls on files that finish short transfers and say in a
 * sentence what failed, on what, and why.
 *
 * A file whose sync failed is broken: what was written may be lost though a second fsync would succeed, so
 * every later call on it fails and it is never synced again.
 *
 * Threads: storage_posix may be used by any number; a struct storage_file by one at a time. */
#ifndef ZERO_ENGINE_CHECKPOINT_STORAGE_H
#define ZERO_ENGINE_CHECKPOINT_STORAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"

enum { STORAGE_PATH_BYTES = 4096 };

struct storage;

typedef intptr_t storage_handle; /* of an open file; 0 or more */

/* Memory for what is written and has not reached the drive yet: at least 1 MiB, aligned to a page, as long as the file
 * is open. */
struct storage_staging {
    void *memory;
    uint64_t bytes;
    struct faults *faults; /* tests: of the transfers; NULL: none */
};

typedef void (*storage_name_fn)(void *user, const char *name);

/* Results: 0 or more, or -errno. */
struct storage_ops {
    int (*make_directory)(struct storage *storage, const char *path);
    int (*remove_directory)(struct storage *storage, const char *path);                     /* empty */
    int (*list)(struct storage *storage, const char *path, storage_name_fn fn, void *user); /* "." not */
    int (*sync_directory)(struct storage *storage, const char *path); /* its entries are durable */
    int (*rename)(struct storage *storage, const char *from, const char *to);
    int (*exchange)(struct storage *storage, const char *a, const char *b); /* both are there; atomic */
    int (*remove)(struct storage *storage, const char *path);               /* a file */
    /* For deleting a directory's files: -ELOOP where the directory or the file is a symbolic link, -EPERM where the
     * directory is another user's. check_owned: whether remove_owned may work; for what it is not, owned.h. */
    int (*list_owned)(struct storage *storage, const char *path, storage_name_fn fn, void *user);
    int (*check_owned)(struct storage *storage, const char *directory, const char *name);
    int (*remove_owned)(struct storage *storage, const char *directory, const char *name);
    int64_t (*free_bytes)(struct storage *storage, const char *path);

    /* For writing. -EEXIST if it is there. `bytes`: what it will come to, where that is known, else 0: the space is
     * taken now, and all of it will be written. `staging`: NULL: its own. */
    storage_handle (*create)(struct storage *storage, const char *path, uint64_t bytes,
                             const struct storage_staging *staging);
    storage_handle (*open)(struct storage *storage, const char *path); /* for reading; a handle */
    int64_t (*size)(struct storage *storage, storage_handle handle);
    int64_t (*read)(struct storage *storage, storage_handle handle, void *to, size_t bytes, uint64_t offset);
    /* May fail later: with what is written next, or when it is synced. */
    int64_t (*write)(struct storage *storage, storage_handle handle, const void *from, size_t bytes,
                     uint64_t offset);
    int (*sync)(struct storage *storage, storage_handle handle); /* its bytes are durable; its name is not */
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

/* ZERO_E_IO, and which `what` ("make the directory") failed on `path`, if `result` is negative. */
zero_status storage_check(int64_t result, const char *what, const char *path, struct zero_error *error);

/* directory/name; ZERO_E_ARGUMENT where it is too long. */
zero_status storage_join(const char *directory, const char *name, char out[STORAGE_PATH_BYTES],
                         struct zero_error *error);

zero_status storage_create(struct storage *storage, const char *path, uint64_t bytes,
                           const struct storage_staging *staging, struct storage_file *out,
                           struct zero_error *error);
zero_status storage_open(struct storage *storage, const char *path, struct storage_file *out,
                         struct zero_error *error);
void storage_close(struct storage_file *file); /* a zeroed one, too */

zero_status storage_size(struct storage_file *file, uint64_t *out_bytes, struct zero_error *error);
/* Exactly `bytes`, or an error. */
zero_status storage_read(struct storage_file *file, void *to, size_t bytes, uint64_t offset,
                         struct zero_error *error);
zero_status storage_write(struct storage_file *file, const void *from, size_t bytes, uint64_t offset,
                          struct zero_error *error);
zero_status storage_sync(struct storage_file *file, struct zero_error *error);

/* Small files as a whole. Reading ends the text with a zero; the caller frees it. A file of more than
 * `bytes_max` is refused. Writing makes a new file, durable but for its name. */
zero_status storage_read_text(struct storage *storage, const char *path, size_t bytes_max, char **out,
                              size_t *out_bytes, struct zero_error *error);
zero_status storage_write_text(struct storage *storage, const char *path, const char *text, size_t bytes,
                               struct zero_error *error);

#endif
