#include "engine/checkpoint/owned.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

int directory_list(int handle, storage_name_fn fn, void *user) {
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

int owned_list(const char *path, storage_name_fn fn, void *user) {
    int handle = open_owned(path);
    return handle < 0 ? handle : directory_list(handle, fn, user);
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

int owned_check(const char *path, const char *name) {
    if (strchr(name, '/')) return -EINVAL;
    int directory = open_owned(path);
    if (directory < 0) return directory;
    int result = check_entry(directory, name);
    close(directory);
    return result;
}

int owned_remove(const char *path, const char *name) {
    if (strchr(name, '/')) return -EINVAL;
    int directory = open_owned(path);
    if (directory < 0) return directory;
    int result = is_link(directory, name) ? -ELOOP : 0;
    if (!result && unlinkat(directory, name, 0) != 0) result = -errno;
    close(directory);
    return result;
}
