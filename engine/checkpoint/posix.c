/* The real file system.
 *
 * Writes bypass the page cache if the file system allows it, with several writes in flight (direct.h). Else each
 * write starts its transfer to the drive at once (sync_file_range), so that the drive works while the next bytes are
 * made. Reads ask the kernel to read ahead. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/base/system/durable.h"
#include "engine/checkpoint/direct.h"
#include "engine/checkpoint/storage.h"

static int result_of(int returned) { return returned < 0 ? -errno : returned; }

static int make_directory(struct storage *s, const char *path) { return result_of(mkdir(path, 0777)); }
static int remove_directory(struct storage *s, const char *path) { return result_of(rmdir(path)); }
static int remove_file(struct storage *s, const char *path) { return result_of(unlink(path)); }

/* Lists the directory, and closes its handle. */
static int list_directory(int handle, storage_name_fn fn, void *user) {
    DIR *directory = fdopendir(handle);
    if (!directory) {
        close(handle);
        return -ENOMEM;
    }
    struct dirent *entry;
    errno = 0;
    for (; (entry = readdir(directory)); errno = 0)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) fn(user, entry->d_name);
    int failed = errno;
    closedir(directory);
    return -failed;
}

static int list(struct storage *s, const char *path, storage_name_fn fn, void *user) {
    int handle = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return handle < 0 ? -errno : list_directory(handle, fn, user);
}

static int sync_directory(struct storage *s, const char *path) { return -durable_names(path); }

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

/* ---- files that this user owns ----
 *
 * Deletes files in a directory that this user owns, and nowhere else. The directory is opened without following a
 * symbolic link in its place, and its entries are removed through the directory's handle. Symbolic links in the path
 * up to the directory's own name belong to the caller and are followed.
 *
 * Results: 0, or -errno: -ELOOP for a symbolic link, -EPERM for a directory of another user. */

/* Cuts the last name off `path`, which becomes the path of the parent. Returns the name; NULL: there is no name. */
static const char *cut_name(char *path) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') path[--length] = 0;
    char *slash = strrchr(path, '/');
    if (!slash || !slash[1]) return NULL;
    *slash = 0;
    return slash + 1;
}

static bool is_link(int parent, const char *name) {
    struct stat found;
    return fstatat(parent, name, &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(found.st_mode);
}

/* True if this user owns the directory, or if the directory has the owner of its parent: some file systems give the
 * files that root makes to another user. */
static bool is_owned(int parent, int directory) {
    struct stat outer, inner;
    if (fstat(parent, &outer) != 0 || fstat(directory, &inner) != 0) return false;
    return inner.st_uid == geteuid() || inner.st_uid == outer.st_uid;
}

/* Returns a handle or -errno. */
static int open_below(int parent, const char *name) {
    int directory = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0) {
        int number = errno;
        return is_link(parent, name) ? -ELOOP : -number;
    }
    if (is_owned(parent, directory)) return directory;
    close(directory);
    return -EPERM;
}

static int open_owned(const char *path) {
    char parent_path[STORAGE_PATH_BYTES + 2];
    if (snprintf(parent_path, sizeof parent_path, "%s%s", strchr(path, '/') ? "" : "./", path) >=
        (int)sizeof parent_path)
        return -ENAMETOOLONG;
    const char *name = cut_name(parent_path);
    if (!name) return -EPERM; /* the root of the file system */
    int parent = open(*parent_path ? parent_path : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0) return -errno;
    int directory = open_below(parent, name);
    close(parent);
    return directory;
}

static int list_owned(struct storage *s, const char *path, storage_name_fn fn, void *user) {
    int handle = open_owned(path);
    return handle < 0 ? handle : list_directory(handle, fn, user);
}

static int check_entry(int directory, const char *name) {
    struct stat outer, found;
    if (fstat(directory, &outer) != 0 || fstatat(directory, name, &found, AT_SYMLINK_NOFOLLOW) != 0)
        return -errno;
    if (S_ISLNK(found.st_mode)) return -ELOOP;
    if (S_ISDIR(found.st_mode)) return -EISDIR;
    if (!S_ISREG(found.st_mode)) return -EINVAL;
    if (found.st_uid != geteuid() && found.st_uid != outer.st_uid) return -EPERM;
    if (strncmp(name, ".nfs", 4) == 0) return -EBUSY;
    return faccessat(directory, ".", W_OK | X_OK, AT_EACCESS) == 0 ? 0 : -errno;
}

/* Says whether remove_owned is likely to remove this entry. So a caller can delete all entries of a directory or
 * none. 0: a regular file of this user or of the directory's owner, and it can be removed. Else -ELOOP: a symbolic
 * link; -EISDIR: a directory; -EINVAL: another kind of file; -EPERM: a file of another user; -EBUSY: a file that NFS
 * keeps for a process that has it open; -EACCES: no permission. */
static int check_owned(struct storage *s, const char *path, const char *name) {
    if (strchr(name, '/')) return -EINVAL;
    int directory = open_owned(path);
    if (directory < 0) return directory;
    int result = check_entry(directory, name);
    close(directory);
    return result;
}

/* Removes a file of the directory. Refuses a symbolic link, although its removal would leave its target alone: no
 * checkpoint has a link, so somebody else made it. */
static int remove_owned(struct storage *s, const char *path, const char *name) {
    if (strchr(name, '/')) return -EINVAL;
    int directory = open_owned(path);
    if (directory < 0) return directory;
    int result = is_link(directory, name) ? -ELOOP : 0;
    if (!result && unlinkat(directory, name, 0) != 0) result = -errno;
    close(directory);
    return result;
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
    return failed ? failed : -durable(file->handle);
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
