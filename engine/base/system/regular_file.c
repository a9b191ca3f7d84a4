#include "engine/base/system/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

FILE *regular_file_open(const char *path) {
    struct stat found;
    int handle = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* does not wait for a pipe's writer */
    if (handle < 0) return NULL;
    FILE *file = NULL;
    errno = EINVAL;
    if (fstat(handle, &found) == 0 && S_ISREG(found.st_mode)) file = fdopen(handle, "r");
    int why = errno;
    if (!file) close(handle);
    errno = why;
    return file;
}

const char *regular_file_why(void) { return errno == EINVAL ? "it is not a regular file" : strerror(errno); }
