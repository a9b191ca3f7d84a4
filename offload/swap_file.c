#include "offload/swap_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/system/durable.h"

enum { ALIGNMENT_DEFAULT = 4096, NAME_TRIES_MAX = 100, TRIES_MAX = 200, TRY_SLEEP_NS = 10 * 1000 * 1000 };

struct swap_size swap_size(uint64_t bytes) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    struct swap_size size;
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024; unit++) value /= 1024;
    snprintf(size.chars, sizeof size.chars, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return size;
}

static zero_status fail(struct zero_error *error, const char *what, const char *path, int number) {
    return error_set(error, ZERO_E_IO, "tier nvme: cannot %s %s: %s", what, path, strerror(number));
}

bool swap_try_again(uint32_t *tries) {
    if (++*tries >= TRIES_MAX) return false;
    nanosleep(&(struct timespec){.tv_nsec = TRY_SLEEP_NS}, NULL);
    return true;
}

/* Creates the file in a directory of its own, so that nobody else can reach the file while it has a name, and then
 * removes both names. A kill between these few calls leaves an empty directory, or a directory with an empty file. */
static int create_named(int directory) {
    char name[40];
    int handle = -1, tries = 0, made;
    do {
        snprintf(name, sizeof name, "zero-swap-%ld-%d", (long)getpid(), tries++);
        made = mkdirat(directory, name, 0700);
    } while (made != 0 && errno == EEXIST && tries < NAME_TRIES_MAX);
    if (made != 0) return -1;
    int own = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), number = errno;
    if (own >= 0) {
        handle = openat(own, "state", O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        number = errno;
        if (handle >= 0) unlinkat(own, "state", 0);
        close(own);
    }
    unlinkat(directory, name, AT_REMOVEDIR);
    errno = number;
    return handle;
}

static int create_nameless(int directory) {
    return openat(directory, ".", O_RDWR | O_TMPFILE | O_EXCL | O_CLOEXEC, 0600);
}

static bool lacks_nameless(int number) {
    return number == EOPNOTSUPP || number == EISDIR || number == EINVAL || number == ENOENT;
}

/* Asks the kernel for the alignment of direct transfers. False: no answer. */
static bool ask_alignment(int handle, uint32_t *out_alignment) {
#ifdef STATX_DIOALIGN
    struct statx found;
    if (statx(handle, "", AT_EMPTY_PATH, STATX_DIOALIGN, &found) != 0 || !(found.stx_mask & STATX_DIOALIGN))
        return false;
    *out_alignment = found.stx_dio_mem_align > found.stx_dio_offset_align ? found.stx_dio_mem_align
                                                                          : found.stx_dio_offset_align;
    return true;
#else
    return false;
#endif
}

/* Newer kernels accept O_DIRECT on tmpfs, but tmpfs is the page cache itself. */
static bool in_page_cache(int handle) {
    struct statfs found;
    return fstatfs(handle, &found) == 0 && (found.f_type == TMPFS_MAGIC || found.f_type == RAMFS_MAGIC);
}

static void make_direct(struct swap_file *file) {
    uint32_t alignment = ALIGNMENT_DEFAULT;
    file->alignment = 1;
    if (in_page_cache(file->handle)) return;
    bool asked = ask_alignment(file->handle, &alignment);
    if (asked && (!alignment || alignment > ALIGNMENT_DEFAULT))
        return; /* chunks are aligned to ALIGNMENT_DEFAULT only */
    if (fcntl(file->handle, F_SETFL, O_DIRECT) != 0) return;
    file->direct = true;
    file->alignment = alignment;
}

/* A write past the limit would raise a signal that kills the process. */
static zero_status check_limit(const struct swap_file *file, struct zero_error *error) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || file->bytes <= limit.rlim_cur) return ZERO_OK;
    return error_set(error, ZERO_E_IO,
                     "tier nvme: a file of %s in %s is over this process's limit of %s for files (ulimit -f)",
                     swap_size(file->bytes).chars, file->path, swap_size(limit.rlim_cur).chars);
}

uint64_t swap_file_held(const struct swap_file *file) {
    struct stat found;
    return fstat(file->handle, &found) == 0 ? (uint64_t)found.st_blocks * 512 : 0;
}

zero_status swap_file_empty(struct swap_file *file, struct zero_error *error) {
    if (ftruncate(file->handle, 0) != 0) return fail(error, "empty the kept file in", file->path, errno);
    file->kept_bytes = 0;
    return ZERO_OK;
}

zero_status swap_file_take(struct swap_file *file, struct zero_error *error) {
    TRY(check_limit(file, error));
    bool kept = file->kept_bytes == file->bytes; /* or no block of the extent is in this file */
    file->allocated = kept && swap_file_held(file) >= file->bytes;
    if (file->allocated) return ZERO_OK;
    uint32_t tries = 0;
    int result;
    bool full;
    do {
        result = fallocate(file->handle, 0, 0, (off_t)file->bytes);
        full = result != 0 && (errno == ENOSPC || errno == EDQUOT);
    } while ((result != 0 && errno == EINTR) || (full && swap_try_again(&tries)));
    file->allocated = result == 0;
    /* The filesystem cannot reserve space, or it counts the space that the kept file already has. Then only the size
     * is set, and the caller writes the whole file. */
    if (result != 0 && (errno == EOPNOTSUPP || kept)) result = ftruncate(file->handle, (off_t)file->bytes);
    if (result == 0) return ZERO_OK;
    return error_set(error, ZERO_E_IO,
                     "tier nvme: cannot take the space for a file in %s: %s; needs %s, %s free", file->path,
                     strerror(errno), swap_size(file->bytes).chars,
                     swap_size(swap_free_bytes(file->handle)).chars);
}

zero_status swap_file_create(const struct swap_directory *directory, uint64_t bytes, bool named,
                             struct swap_file *out, struct zero_error *error) {
    struct swap_file file = {.path = directory->path, .bytes = bytes};
    file.handle = named ? -1 : create_nameless(directory->handle);
    if (named || (file.handle < 0 && lacks_nameless(errno))) file.handle = create_named(directory->handle);
    if (file.handle < 0) return fail(error, "create a file in", directory->path, errno);
    make_direct(&file);
    *out = file;
    return ZERO_OK;
}

/* 0, or errno. */
static int lock(int handle) {
    uint32_t tries = 0;
    int number;
    do number = flock(handle, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    while (number == EWOULDBLOCK && swap_try_again(&tries));
    return number;
}

/* The run that held the lock before may have removed the file. */
static bool is_there(const struct swap_directory *directory, const char *name, int handle) {
    struct stat own, named;
    return fstat(handle, &own) == 0 && fstatat(directory->handle, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           own.st_dev == named.st_dev && own.st_ino == named.st_ino;
}

static zero_status open_locked(const struct swap_directory *directory, const char *name, int *out,
                               struct zero_error *error) {
    for (int number;;) {
        *out = openat(directory->handle, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
        if (*out < 0) return fail(error, "open the kept file in", directory->path, errno);
        number = lock(*out);
        if (!number && is_there(directory, name, *out)) break;
        struct stat found;
        bool empty = number && number != EWOULDBLOCK && fstat(*out, &found) == 0 && !found.st_size;
        if (empty) swap_file_remove(directory, name);
        close(*out);
        if (number == EWOULDBLOCK)
            return error_set(error, ZERO_E_IO,
                             "tier nvme: %s in %s is in use by another run; give this one another nvme_path",
                             name, directory->path);
        if (number)
            return error_set(error, ZERO_E_IO,
                             "tier nvme: cannot lock %s in %s against other runs: %s; name an nvme_path on a "
                             "drive of this machine",
                             name, directory->path, strerror(number));
    }
    int number = durable(directory->handle);
    if (!number) return ZERO_OK;
    close(*out);
    return fail(error, "make durable the name of the kept file in", directory->path, number);
}

/* Checks a kept file, which may hold the only copy of a training. A file that others can reach is refused. */
static zero_status look_at_kept(struct swap_file *file, const struct swap_kept *kept,
                                struct zero_error *error) {
    const char *name = kept->name;
    char step[48] = "";
    struct stat found;
    if (fstat(file->handle, &found) != 0) return fail(error, "look at the kept file in", file->path, errno);
    if (!S_ISREG(found.st_mode) || found.st_uid != geteuid() || found.st_nlink != 1 || found.st_mode & 077)
        return error_set(
            error, ZERO_E_IO,
            "tier nvme: %s in %s is not private to this user; remove it, or name another nvme_path", name,
            file->path);
    file->kept_bytes = (uint64_t)found.st_size;
    file->blank = lseek(file->handle, 0, SEEK_DATA) < 0 && errno == ENXIO;
    if (file->blank || file->kept_bytes == file->bytes || kept->discard) return ZERO_OK;
    if (kept->step) snprintf(step, sizeof step, ", at step %" PRIu64, kept->step);
    return error_set(error, ZERO_E_IO,
                     "tier nvme: %s in %s has %s, of a run with another model or configuration%s, where this "
                     "one needs %s; use that run's configuration, or name another nvme_path, or discard the "
                     "file (zero_runtime.discard_shadow, zero train --discard-shadow)",
                     name, file->path, swap_size(file->kept_bytes).chars, step, swap_size(file->bytes).chars);
}

zero_status swap_file_keep(const struct swap_directory *directory, uint64_t bytes,
                           const struct swap_kept *kept, struct swap_file *out, struct zero_error *error) {
    struct swap_file file = {.path = directory->path, .bytes = bytes};
    TRY(open_locked(directory, kept->name, &file.handle, error));
    zero_status status = look_at_kept(&file, kept, error);
    make_direct(&file);
    if (status)
        close(file.handle);
    else
        *out = file;
    return status;
}

void swap_file_remove(const struct swap_directory *directory, const char *name) {
    unlinkat(directory->handle, name, 0);
}

/* A ring that registered the file may release it later, and a child process may have it open. So this function gives
 * back the lock and the space. */
void swap_file_close(struct swap_file *file) {
    struct stat found;
    bool nameless = fstat(file->handle, &found) == 0 && !found.st_nlink;
    if (nameless && ftruncate(file->handle, 0) != 0) {
    } /* then the last one that closes the file gives the space back */
    flock(file->handle, LOCK_UN);
    close(file->handle);
}
