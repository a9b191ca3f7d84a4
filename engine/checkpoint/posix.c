/* The real file system.
 *
 * Writes bypass the page cache if the file system allows it, with several writes in flight (direct.h). Else each
 * write starts its transfer to the drive at once (sync_file_range), so that the drive works while the next bytes are
 * made. Reads ask the kernel to read ahead. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/checkpoint/direct.h"
#include "engine/checkpoint/owned.h"
#include "engine/checkpoint/storage.h"

static int result_of(int returned) { return returned < 0 ? -errno : returned; }

static int make_directory(struct storage *s, const char *path) { return result_of(mkdir(path, 0777)); }
static int remove_directory(struct storage *s, const char *path) { return result_of(rmdir(path)); }
static int remove_file(struct storage *s, const char *path) { return result_of(unlink(path)); }

static int list(struct storage *s, const char *path, storage_name_fn fn, void *user) {
    int handle = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return handle < 0 ? -errno : directory_list(handle, fn, user);
}

static int list_owned(struct storage *s, const char *path, storage_name_fn fn, void *user) {
    return owned_list(path, fn, user);
}

static int check_owned(struct storage *s, const char *directory, const char *name) {
    return owned_check(directory, name);
}

static int remove_owned(struct storage *s, const char *directory, const char *name) {
    return owned_remove(directory, name);
}

static int sync_directory(struct storage *s, const char *path) {
    int handle = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (handle < 0) return -errno;
    int result = result_of(fsync(handle));
    close(handle);
    bool has_no_such_call = result == -EINVAL || result == -ENOSYS || result == -EOPNOTSUPP;
    return has_no_such_call ? 0 : result; /* such a file system has nothing to make durable */
}

static int rename_entry(struct storage *s, const char *from, const char *to) {
    return result_of(rename(from, to));
}

static int exchange(struct storage *s, const char *a, const char *b) {
    return result_of(renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE));
}

static int64_t free_bytes(struct storage *s, const char *path) {
    struct statvfs found;
    if (statvfs(path, &found) != 0) return -errno;
    return (int64_t)found.f_bavail * (int64_t)found.f_frsize;
}

/* ---- files ---- */

enum { AHEAD_BYTES = 8 << 20, AHEAD_STEP_BYTES = 1 << 20, DIRECT_BYTES_MIN = 1 << 20 };

struct posix_file {
    int handle;
    struct direct *direct; /* NULL: the file is read, is small, or the file system refuses O_DIRECT */
};

static storage_handle wrap(int handle, struct direct *direct) {
    struct posix_file *file = handle < 0 ? NULL : malloc(sizeof *file);
    if (file) {
        *file = (struct posix_file){handle, direct};
        return (storage_handle)file;
    }
    int failed = handle < 0 ? -errno : -ENOMEM;
    direct_close(direct);
    if (handle >= 0) close(handle);
    return failed;
}

static struct posix_file *file_of(storage_handle handle) { return (struct posix_file *)handle; }

/* Reserves the space of a file. A file that grows would make each write wait for the write before. */
static int take_space(int handle, uint64_t bytes) {
    int result;
    do result = fallocate(handle, 0, 0, (off_t)bytes);
    while (result != 0 && errno == EINTR);
    return result == 0 || errno == EOPNOTSUPP ? 0 : -errno;
}

static storage_handle create(struct storage *s, const char *path, uint64_t bytes,
                             const struct storage_staging *staging) {
    int handle = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (handle < 0 || bytes < DIRECT_BYTES_MIN) return wrap(handle, NULL);
    int failed = take_space(handle, bytes);
    if (!failed) return wrap(handle, direct_open(path, handle, staging));
    close(handle);
    unlink(path);
    return failed;
}

static storage_handle open_file(struct storage *s, const char *path) {
    struct stat found;
    /* does not wait at a FIFO, which is refused later */
    int handle = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (handle >= 0 && fstat(handle, &found) == 0 && !S_ISREG(found.st_mode)) {
        close(handle);
        errno = S_ISDIR(found.st_mode) ? EISDIR : STORAGE_NO_FILE;
        handle = -1;
    }
    if (handle >= 0) posix_fadvise(handle, 0, 0, POSIX_FADV_SEQUENTIAL);
    return wrap(handle, NULL);
}

static int64_t size(struct storage *s, storage_handle handle) {
    struct stat found;
    if (fstat(file_of(handle)->handle, &found) != 0) return -errno;
    return S_ISREG(found.st_mode) ? (int64_t)found.st_size : -EINVAL;
}

/* Asks once per AHEAD_STEP_BYTES, so that the kernel always reads a few MiB ahead. */
static void read_ahead(int handle, uint64_t offset, size_t bytes) {
    uint64_t next = (offset + bytes) / AHEAD_STEP_BYTES;
    if (offset / AHEAD_STEP_BYTES == next) return;
    posix_fadvise(handle, (off_t)(next * AHEAD_STEP_BYTES), AHEAD_BYTES, POSIX_FADV_WILLNEED);
}

static int64_t read_file(struct storage *s, storage_handle handle, void *to, size_t bytes, uint64_t offset) {
    int number = file_of(handle)->handle;
    read_ahead(number, offset, bytes);
    ssize_t got = pread(number, to, bytes, (off_t)offset);
    return got < 0 ? -errno : got;
}

static int64_t write_through_cache(int handle, const void *from, size_t bytes, uint64_t offset) {
    ssize_t put = pwrite(handle, from, bytes, (off_t)offset);
    if (put < 0) return -errno;
    sync_file_range(handle, (off_t)offset, put, SYNC_FILE_RANGE_WRITE); /* a hint; fsync reports failures */
    return put;
}

static int64_t write_file(struct storage *s, storage_handle handle, const void *from, size_t bytes,
                          uint64_t offset) {
    struct posix_file *file = file_of(handle);
    if (!file->direct) return write_through_cache(file->handle, from, bytes, offset);
    int failed = direct_write(file->direct, from, bytes, offset);
    return failed ? failed : (int64_t)bytes;
}

static int sync_file(struct storage *s, storage_handle handle) {
    struct posix_file *file = file_of(handle);
    int failed = file->direct ? direct_flush(file->direct) : 0;
    return failed ? failed : result_of(fsync(file->handle));
}

static void close_file(struct storage *s, storage_handle handle) {
    struct posix_file *file = file_of(handle);
    direct_close(file->direct);
    close(file->handle);
    free(file);
}

static const struct storage_ops posix_ops = {
    .make_directory = make_directory,
    .remove_directory = remove_directory,
    .list = list,
    .sync_directory = sync_directory,
    .rename = rename_entry,
    .exchange = exchange,
    .remove = remove_file,
    .list_owned = list_owned,
    .check_owned = check_owned,
    .remove_owned = remove_owned,
    .free_bytes = free_bytes,
    .create = create,
    .open = open_file,
    .size = size,
    .read = read_file,
    .write = write_file,
    .sync = sync_file,
    .close = close_file,
};

struct storage *storage_posix(void) {
    static struct storage posix = {&posix_ops}; /* the table has no state */
    return &posix;
}
