/* What an earlier run left in the directory. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/steps.h"
#include "tools/run_directory/run_directory.h"

/* A device or a pipe with the file's name counts as an empty file. */
static bool has_steps(const char *directory) {
    char path[RUN_PATH_BYTES];
    struct stat found;
    snprintf(path, sizeof path, "%s/metrics.jsonl", directory);
    return stat(path, &found) == 0 && S_ISREG(found.st_mode) && found.st_size > 0;
}

static bool has_checkpoints(const char *directory) {
    static const char step[] = "step_";
    char path[RUN_PATH_BYTES];
    bool has = false;
    snprintf(path, sizeof path, "%s/checkpoints", directory);
    DIR *list = opendir(path);
    for (struct dirent *entry; list && !has && (entry = readdir(list));)
        has = strncmp(entry->d_name, step, sizeof step - 1) == 0;
    if (list) closedir(list);
    return has;
}

/* A failure other than ENOENT counts as a file, because it may hide one. */
static bool is_missing(const char *directory, const char *name) {
    char path[RUN_PATH_BYTES];
    snprintf(path, sizeof path, "%s/checkpoints%s", directory, name);
    return access(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

zero_status earlier_find(const char *directory, struct earlier *out, struct zero_error *error) {
    char path[RUN_PATH_BYTES];
    struct checkpoint checkpoint = {0};
    uint64_t *steps = NULL;
    uint32_t count = 0;
    struct zero_error why = ERROR_NONE;
    *out = (struct earlier){0};
    if (is_missing(directory, "")) return ZERO_OK;
    snprintf(path, sizeof path, "%s/checkpoints", directory);
    zero_status status = steps_list(storage_posix(), path, &steps, &count, &why);
    free(steps);
    if (!status && !count && is_missing(directory, "/latest") && is_missing(directory, "/manifest.json"))
        return ZERO_OK;
    if (!status) status = checkpoint_open(storage_posix(), path, &checkpoint, &why);
    if (!status) {
        const char *run = manifest_note(&checkpoint.manifest, "run");
        out->saved = true;
        steps_parse(strrchr(checkpoint.path, '/') + 1, &out->step);
        snprintf(out->run, sizeof out->run, "%s", run ? run : "");
    }
    checkpoint_close(&checkpoint);
    if (status)
        return error_set(error, status,
                         "%s; --resume STEP goes on from the checkpoint of a step, --overwrite begins anew",
                         why.message);
    return ZERO_OK;
}

zero_status earlier_check(const char *directory, bool shadow, struct zero_error *error) {
    bool saved = has_checkpoints(directory);
    if (!saved && !has_steps(directory)) return ZERO_OK;
    const char *way = saved ? "--resume" : shadow ? "--recover" : NULL;
    return error_set(
        error, ZERO_E_ARGUMENT,
        "%s holds an earlier run%s%s%s begin anew over it by --overwrite, or name another --run DIR",
        directory, way ? ": go on with it by " : ", which saved no checkpoint:", way ? way : "",
        way ? "," : "");
}
