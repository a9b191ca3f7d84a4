#include "engine/state/commit_page.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/hash.h"
#include "offload/directory.h"

static const uint64_t commit_magic = 0x3474696d6d6f637aULL; /* "zcommit4" */

_Static_assert(sizeof(struct commit) <= CHUNK_ALIGN_BYTES, "a page holds it");

static uint64_t checksum_of(const struct commit *c) {
    return hash_bytes(HASH_START, c, offsetof(struct commit, checksum));
}

void commit_write(struct commit *commit, void *page) {
    commit->magic = commit_magic;
    commit->checksum = checksum_of(commit);
    memset(page, 0, CHUNK_ALIGN_BYTES);
    memcpy(page, commit, sizeof *commit);
}

static bool all_zero(const unsigned char *page) {
    return !page[0] && memcmp(page, page + 1, CHUNK_ALIGN_BYTES - 1) == 0;
}

enum commit_state commit_read(const void *page, struct commit *out) {
    struct commit c;
    memcpy(&c, page, sizeof c);
    if (all_zero(page)) return COMMIT_NONE;
    if (c.magic != commit_magic || c.checksum != checksum_of(&c) || !c.epoch) return COMMIT_DAMAGED;
    *out = c;
    return COMMIT_WHOLE;
}

struct commit_file commit_file(uint32_t rank, uint32_t ranks) {
    struct commit_file file;
    snprintf(file.name, sizeof file.name, "zero-shadow-%05" PRIu32 "-of-%05" PRIu32, rank, ranks);
    return file;
}

/* With blocks of one page and several paths the second page of this file is not a commit page, because the second commit is in
 * the second path. Pages that are no commit are skipped. */
static void read_file(int directory, const char *name, struct commit *out) {
    unsigned char pages[2 * CHUNK_ALIGN_BYTES];
    struct stat found;
    int file = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) return;
    bool regular = fstat(file, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == geteuid();
    ssize_t bytes = regular ? pread(file, pages, sizeof pages, 0) : 0;
    for (ssize_t at = 0; at + CHUNK_ALIGN_BYTES <= bytes; at += CHUNK_ALIGN_BYTES) {
        struct commit c;
        if (commit_read(pages + at, &c) == COMMIT_WHOLE && c.epoch > out->epoch) *out = c;
    }
    close(file);
}

static void search_directory(const char *text, uint32_t ranks, bool same, struct commit *out) {
    struct zero_error ignored; /* the tier that opens the directory reports it */
    char *path;
    error_clear(&ignored);
    if (swap_directory_path(text, true, &path, &ignored)) return;
    DIR *directory = opendir(path);
    free(path);
    if (!directory) return;
    for (struct dirent *entry; (entry = readdir(directory));) {
        uint32_t rank, of;
        if (sscanf(entry->d_name, "zero-shadow-%" SCNu32 "-of-%" SCNu32, &rank, &of) != 2 ||
            (of == ranks) != same)
            continue;
        if (strcmp(entry->d_name, commit_file(rank, of).name) == 0)
            read_file(dirfd(directory), entry->d_name, out);
    }
    closedir(directory);
}

void commit_search(const struct config_paths *paths, uint32_t ranks, bool same, struct commit *out) {
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < (size_t)paths->count; i++) search_directory(paths->items[i], ranks, same, out);
}
