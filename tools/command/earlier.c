#include "tools/command/earlier.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/checkpoint/steps.h"

enum { PATH_BYTES = 4096 + 32 };

/* A device or a pipe in the place of the file holds nothing. */
static bool has_steps(const char *directory) {
    char path[PATH_BYTES];
    struct stat found;
    snprintf(path, sizeof path, "%s/metrics.jsonl", directory);
    return stat(path, &found) == 0 && S_ISREG(found.st_mode) && found.st_size > 0;
}

static bool has_checkpoints(const char *directory) {
    static const char step[] = "step_";
    char path[PATH_BYTES];
    bool has = false;
    snprintf(path, sizeof path, "%s/checkpoints", directory);
    DIR *list = opendir(path);
    for (struct dirent *entry; list && !has && (entry = readdir(list));)
        has = strncmp(entry->d_name, step, sizeof step - 1) == 0;
    if (list) closedir(list);
    return has;
}

bool earlier_saved(const char *directory) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/checkpoints/latest", directory);
    return access(path, F_OK) == 0;
}

uint64_t earlier_step(const char *directory) {
    char path[PATH_BYTES], found[STORAGE_PATH_BYTES];
    uint64_t step = 0;
    struct zero_error unused;
    error_clear(&unused);
    snprintf(path, sizeof path, "%s/checkpoints", directory);
    if (steps_find(storage_posix(), path, found, &unused)) return 0;
    const char *name = strrchr(found, '/');
    return name && steps_parse(name + 1, &step) ? step : 0;
}

zero_status earlier_check(const char *directory, bool shadow, struct zero_error *error) {
    bool saved = has_checkpoints(directory);
    if (!saved && !has_steps(directory)) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT,
                     "%s holds an earlier run%s: %s%s%sbegin anew over it by --overwrite, "
                     "or name another --run DIR",
                     directory, saved || shadow ? "" : ", which saved no checkpoint",
                     saved || shadow ? "go on with it by " : "",
                     saved    ? "--resume"
                     : shadow ? "--recover"
                              : "",
                     saved || shadow ? ", " : "");
}
