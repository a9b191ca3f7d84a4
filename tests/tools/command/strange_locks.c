/* A library for LD_PRELOAD. STRANGE_LOCKS=none: the file system has no locks, syncs no
 * directories and exchanges none. STRANGE_LOCKS=names: it renames no directories. STRANGE_LOCKS=FILE: that file is replaced by
 * a new one just before the process locks the first time, as if another had deleted the run's directory. STRANGE_LOCKS=stop: the
 * process stops (SIGSTOP) before it makes its first directory. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void replace(const char *path) {
    unlink(path);
    int handle = open(path, O_WRONLY | O_CREAT, 0644);
    if (handle >= 0) close(handle);
}

int flock(int handle, int operation) {
    static int (*real)(int, int);
    static int calls;
    if (!real) real = (int (*)(int, int))(uintptr_t)dlsym(RTLD_NEXT, "flock");
    const char *how = getenv("STRANGE_LOCKS");
    if (how && strcmp(how, "none") == 0) {
        errno = ENOLCK;
        return -1;
    }
    if (how && strcmp(how, "stop") && strcmp(how, "names") && !calls++) replace(how);
    return real(handle, operation);
}

int fsync(int handle) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))(uintptr_t)dlsym(RTLD_NEXT, "fsync");
    const char *how = getenv("STRANGE_LOCKS");
    struct stat found;
    bool refuses = how && strcmp(how, "none") == 0 && fstat(handle, &found) == 0 && S_ISDIR(found.st_mode);
    if (!refuses) return real(handle);
    errno = EINVAL;
    return -1;
}

int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned flags) {
    const char *how = getenv("STRANGE_LOCKS");
    if (!how || strcmp(how, "none"))
        return (int)syscall(SYS_renameat2, from_directory, from, to_directory, to, flags);
    errno = EINVAL;
    return -1;
}

int rename(const char *from, const char *to) {
    const char *how = getenv("STRANGE_LOCKS");
    struct stat found;
    bool refuses = how && strcmp(how, "names") == 0 && stat(from, &found) == 0 && S_ISDIR(found.st_mode);
    if (!refuses) return renameat(AT_FDCWD, from, AT_FDCWD, to);
    errno = EOPNOTSUPP;
    return -1;
}

int mkdir(const char *path, mode_t mode) {
    static int (*real)(const char *, mode_t);
    static int calls;
    if (!real) real = (int (*)(const char *, mode_t))(uintptr_t)dlsym(RTLD_NEXT, "mkdir");
    const char *how = getenv("STRANGE_LOCKS");
    if (how && strcmp(how, "stop") == 0 && !calls++) raise(SIGSTOP);
    return real(path, mode);
}
