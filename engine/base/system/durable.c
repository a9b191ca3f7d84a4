#include "engine/base/system/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int durable(int handle) {
    int number = fsync(handle) == 0 ? 0 : errno;
    bool has_no_such_call = number == EINVAL || number == ENOSYS || number == EOPNOTSUPP;
    return has_no_such_call ? 0 : number;
}

int durable_names(const char *directory) {
    int handle = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (handle < 0) return errno == EACCES ? 0 : errno;
    int number = durable(handle);
    close(handle);
    return number;
}

int durable_name(const char *path) {
    char parent[PATH_MAX];
    size_t length = strlen(path);
    while (length && path[length - 1] == '/') length--;
    while (length && path[length - 1] != '/') length--;
    if (length >= sizeof parent) return ENAMETOOLONG;
    memcpy(parent, length ? path : ".", length ? length : 1);
    parent[length ? length : 1] = 0;
    return durable_names(parent);
}

int durable_directory(const char *path, mode_t mode) {
    if (mkdir(path, mode) == 0) return durable_name(path);
    int number = errno;
    struct stat found; /* a read-only file system may have it */
    return stat(path, &found) == 0 ? EEXIST : number;
}

int durable_parents(char *path, mode_t mode) {
    for (char *at = path + (*path != 0); (at = strchr(at, '/')) && at[1]; at++) {
        *at = 0;
        int number = durable_directory(path, mode);
        if (number && number != EEXIST) return number;
        *at = '/';
    }
    return 0;
}
