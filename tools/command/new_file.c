#include "tools/command/new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int write_all(int file, const char *bytes, size_t count, size_t *out_written) {
    for (*out_written = 0; *out_written < count;) {
        ssize_t put = write(file, bytes + *out_written, count - *out_written);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return put < 0 ? errno : ENOSPC;
        *out_written += (size_t)put;
    }
    return 0;
}

/* Runs before the rename: else after a power loss the name could stand for an empty file. */
static int make_durable(int handle) {
    int number = fsync(handle) == 0 ? 0 : errno;
    bool has_no_such_call = number == EINVAL || number == ENOSYS || number == EOPNOTSUPP;
    return has_no_such_call ? 0 : number;
}

static zero_status write_with(const char *path, const char *text, const char *suffix, mode_t mode,
                              struct zero_error *error) {
    char fresh[4096 + 64];
    int length = snprintf(fresh, sizeof fresh, "%s%s", path, suffix), number = 0;
    if (length >= (int)sizeof fresh)
        return error_set(error, ZERO_E_ARGUMENT, "the path %s is too long", path);
    unlink(fresh); /* left by a run that was killed here */
    int handle = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (handle < 0) return error_set(error, ZERO_E_IO, "cannot write %s: %s", fresh, strerror(errno));
    number = write_all(handle, text, strlen(text), &(size_t){0});
    if (!number) number = make_durable(handle);
    if (close(handle) != 0 && !number) number = errno;
    if (!number && rename(fresh, path) != 0) number = errno;
    if (!number) return ZERO_OK;
    unlink(fresh);
    return error_set(error, ZERO_E_IO, "cannot write %s: %s", path, strerror(number));
}

zero_status new_file_write(const char *path, const char *text, struct zero_error *error) {
    return write_with(path, text, ".new", 0666, error);
}

zero_status new_file_write_private(const char *path, const char *text, struct zero_error *error) {
    char suffix[32];
    snprintf(suffix, sizeof suffix, ".%ld.new", (long)getpid());
    return write_with(path, text, suffix, 0600, error);
}
