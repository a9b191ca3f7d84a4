/* A new file is durable before it takes its name, and the name after it: this test's own fsync and rename say in which order they are called. */
#include "tools/run_directory/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"

static struct {
    char calls[64];
    long synced_bytes; /* of the file, at the last fsync */
    int failure;       /* what fsync fails with; 0: it does not */
    const char *other; /* what another process writes to the same path before the rename; NULL: none does */
} seen;

static void note(const char *call) {
    size_t length = strlen(seen.calls);
    snprintf(seen.calls + length, sizeof seen.calls - length, "%s ", call);
}

int fsync(int handle) {
    struct stat found;
    bool names = fstat(handle, &found) == 0 && S_ISDIR(found.st_mode);
    note(names ? "names" : "fsync");
    if (!names) seen.synced_bytes = (long)found.st_size;
    errno = seen.failure;
    return seen.failure ? -1 : 0;
}

/* True if another process could write the file. */
static bool write_elsewhere(const char *path, const char *text) {
    int status = 0;
    pid_t child = fork();
    struct zero_error error;
    error_clear(&error);
    if (child == 0) _exit(new_file_write_private(path, text, &error) != ZERO_OK);
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int rename(const char *from, const char *to) {
    const char *other = seen.other;
    seen.other = NULL;
    note("rename");
    if (other) CHECK(write_elsewhere(to, other));
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

static void read_file(const char *path, char out[64]) {
    FILE *file = fopen(path, "r");
    size_t got = file ? fread(out, 1, 63, file) : 0;
    out[got] = 0;
    if (file) fclose(file);
}

/* With an fsync that fails in this way. */
static zero_status write_with(int failure, const char *path, const char *text) {
    struct zero_error error;
    error_clear(&error);
    memset(&seen, 0, sizeof seen);
    seen.failure = failure;
    return new_file_write(path, text, &error);
}

/* Two processes write one file at once: both can, and the file is the last one's. */
static void two_at_once(const char *path) {
    struct zero_error error;
    struct stat found;
    char text[64];
    error_clear(&error);
    memset(&seen, 0, sizeof seen);
    seen.other = "theirs";
    CHECK_INT(new_file_write_private(path, "ours", &error), ZERO_OK);
    read_file(path, text);
    CHECK_STRING(text, "ours");
    CHECK_INT(stat(path, &found) || (found.st_mode & 0777) != 0600, 0);
}

int main(void) {
    char path[512], text[64];
    snprintf(path, sizeof path, "%s/file", getenv("TEST_TMPDIR"));
    CHECK_INT(write_with(0, path, "old"), ZERO_OK);
    CHECK_STRING(seen.calls, "fsync rename names ");
    CHECK_INT(seen.synced_bytes, 3);
    CHECK_INT(write_with(EIO, path, "new"), ZERO_E_IO);
    CHECK_STRING(seen.calls, "fsync ");
    read_file(path, text);
    CHECK_STRING(text, "old");
    CHECK_INT(write_with(EINVAL, path, "new"), ZERO_OK); /* a file system that has no such call */
    read_file(path, text);
    CHECK_STRING(text, "new");
    two_at_once(path);
    return check_end();
}
