/* The real file system. Writes are handed to the drive as they come (sync_file_range), so that it works while
 * the next ones are made, and the final fsync finds little to do. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/checkpoint/storage.h"

static int result_of(int returned) { return returned < 0 ? -errno : returned; }

static int make_directory(struct storage *s, const char *path) { return result_of(mkdir(path, 0777)); }
static int remove_directory(struct storage *s, const char *path) { return result_of(rmdir(path)); }
static int remove_file(struct storage *s, const char *path) { return result_of(unlink(path)); }

static int list(struct storage *s, const char *path, storage_name_fn fn, void *user) {
    DIR *directory = opendir(path);
    if (!directory) return -errno;
    struct dirent *entry;
    errno = 0;
    for (; (entry = readdir(directory)); errno = 0)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) fn(user, entry->d_name);
    int failed = errno;
    closedir(directory);
    return -failed;
}

static int sync_directory(struct storage *s, const char *path) {
    int handle = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (handle < 0) return -errno;
    int result = result_of(fsync(handle));
    close(handle);
    return result;
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

static int create(struct storage *s, const char *path) {
    return result_of(open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
}

static int open_file(struct storage *s, const char *path) {
    int handle = open(path, O_RDONLY | O_CLOEXEC);
    if (handle < 0) return -errno;
    posix_fadvise(handle, 0, 0, POSIX_FADV_SEQUENTIAL);
    return handle;
}

static int64_t size(struct storage *s, int handle) {
    struct stat found;
    if (fstat(handle, &found) != 0) return -errno;
    return S_ISREG(found.st_mode) ? (int64_t)found.st_size : -EINVAL;
}

static int64_t read_file(struct storage *s, int handle, void *to, size_t bytes, uint64_t offset) {
    ssize_t got = pread(handle, to, bytes, (off_t)offset);
    return got < 0 ? -errno : got;
}

static int64_t write_file(struct storage *s, int handle, const void *from, size_t bytes, uint64_t offset) {
    ssize_t put = pwrite(handle, from, bytes, (off_t)offset);
    if (put < 0) return -errno;
    sync_file_range(handle, (off_t)offset, put, SYNC_FILE_RANGE_WRITE); /* a hint: its failure is fsync's */
    return put;
}

static int sync_file(struct storage *s, int handle) { return result_of(fsync(handle)); }
static void close_file(struct storage *s, int handle) { close(handle); }

static const struct storage_ops posix_ops = {
    .make_directory = make_directory,
    .remove_directory = remove_directory,
    .list = list,
    .sync_directory = sync_directory,
    .rename = rename_entry,
    .exchange = exchange,
    .remove = remove_file,
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
    static struct storage posix = {&posix_ops}; /* has no state */
    return &posix;
}
