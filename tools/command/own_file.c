#include "tools/command/own_file.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
