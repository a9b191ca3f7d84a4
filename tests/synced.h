/* The directories that a test's program has synced: its own fsync notes them, and does nothing else. For one thread. */
#ifndef ZERO_TESTS_SYNCED_H
#define ZERO_TESTS_SYNCED_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SYNCED_MAX = 1024 };

static struct stat synced[SYNCED_MAX];
static size_t synced_count;

int fsync(int handle) {
    struct stat found;
    if (fstat(handle, &found) == 0 && S_ISDIR(found.st_mode) && synced_count < SYNCED_MAX)
        synced[synced_count++] = found;
    return 0;
}

/* Whether the directory was synced, after its last change. */
static inline bool was_synced(const char *directory) {
    struct stat found;
    bool there = stat(directory, &found) == 0, is = false;
    for (size_t i = 0; there && i < synced_count && !is; i++)
        is = synced[i].st_dev == found.st_dev && synced[i].st_ino == found.st_ino &&
             synced[i].st_mtim.tv_sec == found.st_mtim.tv_sec &&
             synced[i].st_mtim.tv_nsec == found.st_mtim.tv_nsec;
    return is;
}

#endif
