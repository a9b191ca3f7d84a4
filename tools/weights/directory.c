/* The weights that lie in a directory, by the names of its files: those that are read here, and those that are not. */
#include <errno.h>
#include <fnmatch.h>
#include <fts.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/weights/weights.h"

/* The first pattern that fits a file's name says why weights in the file are not read. */
static const struct kind {
    const char *pattern, *why;
} kinds[] = {
    {"*.@(metadata|lock)", NULL}, /* beside a download */
    {"*.@(incomplete|part|partial|crdownload|download|aria2)*", "a download that has not ended: finish it"},
    {"adapter_@(config.json|model.*)", "an adapter, which is not read here: merge it into its model "
                                       "(merge_and_unload in PEFT), save that, and give it"},
    {"model-*-of-*.safetensors",
     "which is read only with " WEIGHTS_INDEX ", and that is missing: get it too"},
    {"@(*model*.bin|*.pt|*.pth|*.ckpt|*.ckpt.*|*.ckpt-*|*.distcp|*.bin.index.json)",
     "a pickle, which can run any program: turn it into safetensors in Python (from transformers import "
     "AutoModelForCausalLM as M; M.from_pretrained(OLD).save_pretrained(NEW)) and give NEW"},
    {"*.@(safetensors|gguf|ggml|h5|keras|msgpack|npz|onnx|ot|nemo|tflite)@(|.*)",
     "which is not read here: give a directory that has model.safetensors"},
};

static const struct kind *kind_of(const char *name) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (fnmatch(kinds[i].pattern, name, FNM_EXTMATCH | FNM_CASEFOLD) == 0)
            return kinds[i].why ? &kinds[i] : NULL;
    return NULL;
}

static zero_status unread(const char *path, const char *file, const struct kind *kind,
                          struct zero_error *error) {
    return error_set(error, ZERO_E_UNSUPPORTED, "%s has weights in %s, %s", path, file, kind->why);
}

static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

/* Looks into the directories of the directory, but not below them, where checkpoints of a run may be; and into all of
 * .cache, where Hugging Face's downloads begin. */
static zero_status search(const char *path, FTS *tree, struct zero_error *error) {
    size_t root = strlen(path);
    for (FTSENT *at; (at = fts_read(tree));) {
        const char *below = at->fts_path + root + strspn(at->fts_path + root, "/");
        const struct kind *kind = at->fts_level > 0 ? kind_of(at->fts_name) : NULL;
        if (at->fts_info == FTS_DNR && at->fts_level == 0)
            return error_set(error, ZERO_E_IO, "%s cannot be listed: %s", path, strerror(at->fts_errno));
        if (at->fts_info == FTS_D && at->fts_level > 1 && strncmp(below, ".cache/", 7) != 0)
            fts_set(tree, at, FTS_SKIP);
        if (kind && at->fts_info != FTS_D && at->fts_info != FTS_DP) return unread(path, below, kind, error);
    }
    return ZERO_OK;
}

static bool has(const char *directory, const char *name) {
    char path[STORAGE_PATH_BYTES];
    struct stat found; /* a link that leads nowhere is a file that is missing, and opening says so */
    bool fits = snprintf(path, sizeof path, "%s/%s", directory, name) < (int)sizeof path;
    return fits && lstat(path, &found) == 0;
}

zero_status weights_in_directory(const char *path, const char **out, struct zero_error *error) {
    static const char *const adapter = "adapter_config.json", *const read[] = {"model.safetensors",
                                                                               WEIGHTS_INDEX};
    char *const paths[] = {(char *)path, NULL};
    *out = NULL;
    for (size_t i = 0; !*out && i < sizeof read / sizeof *read; i++)
        if (has(path, read[i])) *out = read[i];
    if (*out) return has(path, adapter) ? unread(path, adapter, kind_of(adapter), error) : ZERO_OK;
    FTS *tree = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, by_name);
    if (!tree) return error_set(error, ZERO_E_IO, "%s cannot be listed: %s", path, strerror(errno));
    zero_status status = search(path, tree, error);
    fts_close(tree);
    return status;
}
