#include "tools/run_directory/run_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tools/run_directory/file.h"
#include "tools/text/format.h"

enum { TRIES_MAX = 30, TRY_NS = 10 * 1000 * 1000, HOLDER_BYTES = 320 };
#define HOLDER "process "

/* Tries again for a while, because the kernel takes a moment to end a process that was killed. */
static int take(int handle) {
    int number = EWOULDBLOCK;
    for (int tries = 0; number == EWOULDBLOCK && tries < TRIES_MAX; tries++) {
        if (tries) nanosleep(&(struct timespec){.tv_nsec = TRY_NS}, NULL);
        number = flock(handle, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    }
    return number;
}

static void write_holder(int handle) {
    char host[256] = "", text[HOLDER_BYTES];
    gethostname(host, sizeof host - 1);
    int bytes = snprintf(text, sizeof text, HOLDER "%ld on host %s\n", (long)getpid(), host);
    if (ftruncate(handle, 0) != 0 || pwrite(handle, text, (size_t)bytes, 0) != bytes) {
        /* A failure means a full disk; the lock is held all the same. */
    }
}

static zero_status in_use(int handle, const char *directory, struct zero_error *error) {
    char holder[HOLDER_BYTES] = "";
    ssize_t got = pread(handle, holder, sizeof holder - 1, 0);
    holder[got < 0 ? 0 : got] = 0;
    holder[strcspn(holder, "\n")] = 0;
    return error_set(error, ZERO_E_IO,
                     "another run is at work in %s (%s holds %s/lock): wait until it has ended, end it, or "
                     "name another directory",
                     directory, *holder ? holder : "a process", directory);
}

static bool is_at(int handle, const char *path) {
    struct stat own, named;
    return handle >= 0 && fstat(handle, &own) == 0 && stat(path, &named) == 0 && own.st_dev == named.st_dev &&
           own.st_ino == named.st_ino;
}

/* *out is below 0 where the directory does not exist. If another process replaces the file between open and flock, the lock protects
 * nothing; the loop then tries again. */
static zero_status open_and_take(const char *path, const char *directory, int *out, int *out_number,
                                 struct zero_error *error) {
    for (int tries = 0; tries < TRIES_MAX; tries++) {
        const char *problem = own_file_problem(path, HOLDER, HOLDER_BYTES);
        if (problem)
            return error_set(error, ZERO_E_IO, "cannot lock the run: %s %s or name another --run DIR", path,
                             problem);
        *out = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
        if (*out < 0 && (errno == ENOENT || errno == ENOTDIR)) return ZERO_OK;
        if (*out < 0)
            return error_set(
                error, ZERO_E_IO,
                "cannot lock the run: cannot write %s: %s: change that or name another --run DIR", path,
                strerror(errno));
        *out_number = take(*out);
        if (*out_number == EWOULDBLOCK) in_use(*out, directory, error);
        if (*out_number != EWOULDBLOCK && is_at(*out, path)) return ZERO_OK;
        close(*out);
        if (*out_number == EWOULDBLOCK) return error->code;
    }
    return error_set(error, ZERO_E_IO,
                     "cannot lock the run: %s is replaced again and again: find the program that does it, or "
                     "name another --run DIR",
                     path);
}

zero_status run_lock_take(struct run_lock *lock, const char *directory, struct zero_error *error) {
    int handle = -1, number = 0;
    if (lock->held) return ZERO_OK;
    int length = snprintf(lock->path, sizeof lock->path, "%s/lock", directory);
    if (!*directory || length >= (int)sizeof lock->path)
        return ZERO_OK; /* the code that makes the directory reports the error */
    zero_status status = open_and_take(lock->path, directory, &handle, &number, error);
    if (status != ZERO_OK || handle < 0) return status;
    if (number)
        format_line(stderr, "zero %s: cannot lock %s: %s; let no other run use %s meanwhile", lock->command,
                    lock->path, strerror(number), directory);
    write_holder(handle);
    lock->held = true;
    lock->handle = handle;
    lock->directory = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return ZERO_OK;
}

/* ---- while the lock is held ---- */

static bool is_in_place(const struct run_lock *lock) {
    char directory[sizeof lock->path];
    strcpy(directory, lock->path);
    *strrchr(directory, '/') = 0;
    return is_at(lock->directory, directory);
}

/* Locks a new file if the file is gone and the directory is still the same. */
static bool take_again(struct run_lock *lock) {
    if (access(lock->path, F_OK) == 0 || !is_in_place(lock)) return false;
    int handle = openat(lock->directory, "lock", O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (handle < 0) return false;
    if (take(handle) == EWOULDBLOCK || !is_at(handle, lock->path)) {
        close(handle);
        return false;
    }
    write_holder(handle);
    close(lock->handle);
    lock->handle = handle;
    return true;
}

bool run_lock_held(struct run_lock *lock) {
    return lock->held && (is_at(lock->handle, lock->path) || take_again(lock));
}

void run_lock_release(struct run_lock *lock) {
    if (!lock->held) return;
    if (ftruncate(lock->handle, 0) != 0) {
        /* the old holder's name stays in the file; the lock is free all the same */
    }
    close(lock->handle);
    if (lock->directory >= 0) close(lock->directory);
    lock->held = false;
}
