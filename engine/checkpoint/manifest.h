/* manifest.json: says what a checkpoint contains, and lists its files. It is written last, so a directory with a
 * manifest is complete. FORMAT.md describes every byte. The struct owns all memory that it points to. */
#pragma once

#include "engine/checkpoint/storage.h"

#define MANIFEST_NAME "manifest.json"
#define MANIFEST_AVERAGE "ema" /* the last state where it has this name: the averaged weights */

enum {
    MANIFEST_VERSION = 1,
    MANIFEST_BYTES_MAX = 64 << 20,
    MANIFEST_DIMS_MAX = 8,
    MANIFEST_STATES_MAX = 3,
    MANIFEST_RANKS_MAX = 65536,
    MANIFEST_GROUPS_MAX = 8
};

struct manifest_param {
    char *name;
    uint32_t dims;
    uint64_t shape[MANIFEST_DIMS_MAX], count;
    bool frozen;    /* no optimizer state */
    uint32_t group; /* 1 + index of the parameter group, which has the lr; 0: the file does not say */
};

struct manifest_file {
    uint64_t bytes, header_checksum;
};

struct manifest_entry {
    char *key, *value;
};

struct manifest_entries {
    struct manifest_entry *entry;
    uint32_t count;
};

struct manifest {
    uint64_t checksum;      /* of the text of the file */
    uint64_t step, skipped; /* steps with an update; skipped steps */
    double loss_scale;
    /* engine/state/loss_scale.h; 0 if the file lacks them */
    uint64_t loss_scale_allowed, loss_scale_stable;
    uint64_t schedule_steps; /* steps that the learning-rate schedule has made; 0 if the file lacks them */
    double lr[MANIFEST_GROUPS_MAX];
    uint32_t groups;
    uint32_t ranks, stage;               /* of the run that saved the checkpoint */
    char optimizer[32];                  /* "": the checkpoint has only weights */
    char state[MANIFEST_STATES_MAX][32]; /* the optimizer's, then the averaged weights, if there are any */
    uint32_t states;
    struct manifest_param *param;
    uint32_t params;
    struct manifest_file *file; /* one per rank */
    uint32_t files;
    struct manifest_entries notes;  /* texts of the host program */
    struct manifest_entries config; /* keys like "optimizer.params.lr"; values are JSON text */
};

/* Appends a copy, also of `name`, `key` and `value`. false: no memory. */
bool manifest_add_param(struct manifest *manifest, const struct manifest_param *param);
bool manifest_add_entry(struct manifest_entries *entries, const char *key, const char *value);

bool manifest_copy_entries(const struct manifest_entries *from, struct manifest_entries *to);
void manifest_free_entries(struct manifest_entries *entries);

const char *manifest_note(const struct manifest *manifest, const char *key);   /* NULL: none */
const char *manifest_config(const struct manifest *manifest, const char *key); /* JSON text; NULL: none */

/* The name of a kind. Kind 0 is the weights, "param". Kind 1 + i is state i, such as "exp_avg" or "exp_avg_sq". */
const char *manifest_kind(const struct manifest *manifest, uint32_t kind);
/* The kind of the averaged weights; 0: there are none. */
uint32_t manifest_average(const struct manifest *manifest);
static inline uint32_t manifest_kinds(const struct manifest *m, const struct manifest_param *p) {
    return p->frozen ? 1 : 1 + m->states;
}

void manifest_file_name(uint32_t rank, char out[32]); /* "rank_00002.safetensors" */

/* The text of the manifest with its checksum; the caller frees it. NULL: no memory. */
char *manifest_print(const struct manifest *manifest, size_t *out_bytes);

/* Writes directory/manifest.json. The content is durable, the name is not yet. */
zero_status manifest_write(struct storage *storage, const char *directory, const struct manifest *manifest,
                           struct zero_error *error);

/* `text` has `bytes` bytes, followed by a zero byte. ZERO_E_UNSUPPORTED: another version; ZERO_E_IO: damaged. */
zero_status manifest_parse(const char *text, size_t bytes, const char *path, struct manifest *out,
                           struct zero_error *error);
zero_status manifest_read(struct storage *storage, const char *path, struct manifest *out,
                          struct zero_error *error);
void manifest_free(struct manifest *manifest);
