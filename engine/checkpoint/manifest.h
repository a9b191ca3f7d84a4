/* manifest.json: what a checkpoint is and which files belong to it. It appears last: a directory with a
 * manifest is complete. FORMAT.md describes it byte by byte. Owns all it points to. */
#ifndef ZERO_ENGINE_CHECKPOINT_MANIFEST_H
#define ZERO_ENGINE_CHECKPOINT_MANIFEST_H

#include "engine/checkpoint/storage.h"

#define MANIFEST_NAME "manifest.json"

enum {
    MANIFEST_VERSION = 1,
    MANIFEST_BYTES_MAX = 64 << 20,
    MANIFEST_DIMS_MAX = 8,
    MANIFEST_STATES_MAX = 2,
    MANIFEST_RANKS_MAX = 65536,
    MANIFEST_NAME_BYTES = 128,
    MANIFEST_GROUPS_MAX = 8
};

struct manifest_param {
    char *name;
    uint32_t dims;
    uint64_t shape[MANIFEST_DIMS_MAX], count;
    bool frozen;    /* no optimizer state */
    uint32_t group; /* 1 + the index of the group whose lr it has; 0: the file does not say */
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
    uint64_t checksum;      /* of the text that it was read from */
    uint64_t step, skipped; /* optimizer updates done, steps skipped */
    double loss_scale;
    uint64_t loss_scale_allowed, loss_scale_stable; /* engine/loss_scale.h; 0 in files that lack them */
    uint64_t schedule_steps; /* that the learning-rate schedule has made; 0 in files that lack it */
    double lr[MANIFEST_GROUPS_MAX];
    uint32_t groups;
    uint32_t ranks, stage; /* of the run that saved it */
    char optimizer[32];    /* "": weights alone */
    char state[MANIFEST_STATES_MAX][32];
    uint32_t states;
    struct manifest_param *param;
    uint32_t params;
    struct manifest_file *file; /* one per rank */
    uint32_t files;
    struct manifest_entries notes;  /* the host program's: texts */
    struct manifest_entries config; /* "optimizer.params.lr": JSON text */
};

/* Appends; false: no memory. `name`, `key` and `value` are copied. */
bool manifest_add_param(struct manifest *manifest, const struct manifest_param *param);
bool manifest_add_entry(struct manifest_entries *entries, const char *key, const char *value);

bool manifest_copy_entries(const struct manifest_entries *from, struct manifest_entries *to);
void manifest_free_entries(struct manifest_entries *entries);

const char *manifest_note(const struct manifest *manifest, const char *key);   /* NULL: none */
const char *manifest_config(const struct manifest *manifest, const char *key); /* JSON text; NULL: none */

/* Kinds are 0, the weights, and 1 + i, state i: "param", "exp_avg", "exp_avg_sq". */
const char *manifest_kind(const struct manifest *manifest, uint32_t kind);
static inline uint32_t manifest_kinds(const struct manifest *m, const struct manifest_param *p) {
    return p->frozen ? 1 : 1 + m->states;
}

void manifest_file_name(uint32_t rank, char out[32]); /* "rank_00002.safetensors" */

/* The text, its checksum included; allocated. NULL: no memory. */
char *manifest_print(const struct manifest *manifest, size_t *out_bytes);

/* directory/manifest.json, durable but for its name. */
zero_status manifest_write(struct storage *storage, const char *directory, const struct manifest *manifest,
                           struct zero_error *error);

/* `text`: `bytes` of it, a zero behind them. ZERO_E_UNSUPPORTED: another version; ZERO_E_IO: damaged. */
zero_status manifest_parse(const char *text, size_t bytes, const char *path, struct manifest *out,
                           struct zero_error *error);
zero_status manifest_read(struct storage *storage, const char *path, struct manifest *out,
                          struct zero_error *error);
void manifest_free(struct manifest *manifest);

#endif
