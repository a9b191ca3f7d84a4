#include "tools/command/run_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { TRIES_MAX = 30, TRY_NS = 10 * 1000 * 1000, HOLDER_BYTES = 320 };

/* The kernel takes a moment to end a process that was killed. */
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
    int bytes = snprintf(text, sizeof text, "process %ld on host %s\n", (long)getpid(), host);
    if (ftruncate(handle, 0) != 0 || pwrite(handle, text, (size_t)bytes, 0) != bytes) {
        /* a full disk: the lock holds all the same */
    }
}

static zero_status in_use(int handle, const char *directory, struct zero_error *error) {
    char holder[HOLDER_BYTES] = "";
    ssize_t got = pread(handle, holder, sizeof holder - 1, 0);
    holder[got < 0 ? 0 : got] = 0;
    holder[strcspn(holder, "\n")] = 0;
    return error_set(
        error, ZERO_E_IO,
        "another run is at work in %s (%s holds %s/lock): wait until it has ended, end it, or name "
        "another directory",
        directory, *holder ? holder : "a process", directory);
}

static bool no_directory(int number) { return number == ENOENT || number == ENOTDIR; }

zero_status run_lock_take(struct run_lock *lock, const char *directory, struct zero_error *error) {
    char path[4096 + 32];
    if (lock->held) return ZERO_OK;
    int length = snprintf(path, sizeof path, "%s/lock", directory);
    if (!*directory || length >= (int)sizeof path) return ZERO_OK; /* whoever makes the directory says so */
    int handle = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (handle < 0 && no_directory(errno)) return ZERO_OK;
    if (handle < 0) return error_set(error, ZERO_E_IO, "cannot lock the run: %s: %s", path, strerror(errno));
    int number = take(handle);
    if (number == EWOULDBLOCK) {
        zero_status status = in_use(handle, directory, error);
        close(handle);
        return status;
    }
    if (number)
        fprintf(stderr, "zero train: cannot lock %s: %s; let no other run use %s meanwhile\n", path,
                strerror(number), directory);
    write_holder(handle);
    *lock = (struct run_lock){.held = true, .handle = handle};
    return ZERO_OK;
}

void run_lock_release(struct run_lock *lock) {
    if (!lock->held) return;
    if (ftruncate(lock->handle, 0) != 0) { /* an old holder stays there, and holds nothing */
    }
    close(lock->handle);
    lock->held = false;
}
