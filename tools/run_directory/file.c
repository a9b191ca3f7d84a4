#include "tools/run_directory/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/system/durable.h"

int write_all(int file, const char *bytes, size_t count, size_t *out_written) {
    for (*out_written = 0; *out_written < count;) {
        ssize_t put = write(file, bytes + *out_written, count - *out_written);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return put < 0 ? errno : ENOSPC;
        *out_written += (size_t)put;
    }
    return 0;
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
    if (!number)
        number = durable(handle); /* else after a power loss the name could stand for an empty file */
    if (close(handle) != 0 && !number) number = errno;
    if (!number && rename(fresh, path) != 0) number = errno;
    if (!number) number = durable_name(path);
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

/* ---- files that a run made ---- */

enum { BEGINNING_BYTES_MAX = 32 };

static const char *kind_problem(const struct stat *found) {
    if (S_ISLNK(found->st_mode)) return "is a symbolic link: remove it";
    if (S_ISDIR(found->st_mode)) return "is a directory: move it away";
    if (!S_ISREG(found->st_mode)) return "is not a regular file: remove it";
    return found->st_nlink > 1 ? "has a second name (a hard link): remove it" : NULL;
}

static bool begins_with(int handle, const char *beginning) {
    char text[BEGINNING_BYTES_MAX];
    size_t length = strlen(beginning);
    return length <= sizeof text && pread(handle, text, length, 0) == (ssize_t)length &&
           memcmp(text, beginning, length) == 0;
}

const char *own_file_problem(const char *path, const char *beginning, size_t bytes_max) {
    struct stat found;
    if (lstat(path, &found) != 0) return NULL;
    const char *problem = kind_problem(&found);
    if (problem || !found.st_size) return problem;
    int handle = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (handle < 0) return "cannot be read: change its permissions";
    bool is_own = (size_t)found.st_size <= bytes_max && begins_with(handle, beginning);
    close(handle);
    return is_own ? NULL : "has contents that no run writes there: move it away";
}
