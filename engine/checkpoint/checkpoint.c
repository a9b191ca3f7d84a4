#include "engine/checkpoint/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>

#include "engine/checkpoint/steps.h"

zero_status checkpoint_open(struct storage *storage, const char *path, struct checkpoint *out,
                            struct zero_error *error) {
    char manifest[STORAGE_PATH_BYTES];
    *out = (struct checkpoint){.storage = storage};
    zero_status status = steps_find(storage, path, out->path, error);
    if (!status) status = storage_join(out->path, MANIFEST_NAME, manifest, error);
    return status ? status : manifest_read(storage, manifest, &out->manifest, error);
}

void checkpoint_close(struct checkpoint *c) { manifest_free(&c->manifest); }

/* ---- walking ---- */

enum { KINDS = 1 + MANIFEST_STATES_MAX };

/* For every tensor, the first element that no piece has covered yet. */
struct cover {
    const struct checkpoint *checkpoint;
    uint64_t (*next)[KINDS]; /* indexed by parameter and kind */
};

static zero_status cover_piece(struct cover *c, const struct shard *s, const struct piece *p,
                               struct zero_error *error) {
    const struct manifest *m = &c->checkpoint->manifest;
    uint64_t *next = &c->next[p->param - m->param][p->kind];
    const char *kind = manifest_kind(m, p->kind);
    if (p->kind >= manifest_kinds(m, p->param))
        return error_set(error, ZERO_E_IO, "%s: \"%s\" is frozen, and yet has %s here; the file is damaged",
                         s->file.path, p->param->name, kind);
    if (p->first != *next)
        return error_set(
            error, ZERO_E_IO,
            "%s: elements %" PRIu64 " to %" PRIu64 " of \"%s\" (%s) are %s; the checkpoint is damaged",
            s->file.path, p->first < *next ? p->first : *next, p->first < *next ? *next : p->first,
            p->param->name, kind, p->first < *next ? "there twice" : "missing");
    *next += p->count;
    return ZERO_OK;
}

static zero_status check_covered(const struct cover *c, struct zero_error *error) {
    const struct manifest *m = &c->checkpoint->manifest;
    for (uint32_t i = 0; i < m->params; i++)
        for (uint32_t kind = 0; kind < manifest_kinds(m, &m->param[i]); kind++)
            if (c->next[i][kind] != m->param[i].count)
                return error_set(error, ZERO_E_IO,
                                 "%s: elements %" PRIu64 " to %" PRIu64 " of \"%s\" (%s) are missing; the "
                                 "checkpoint is damaged",
                                 c->checkpoint->path, c->next[i][kind], m->param[i].count, m->param[i].name,
                                 manifest_kind(m, kind));
    return ZERO_OK;
}

struct visitor {
    piece_visit piece; /* or NULL */
    shard_visit shard; /* or NULL */
    void *user;
};

static zero_status walk_shard(struct cover *c, uint32_t rank, const struct visitor *v,
                              struct zero_error *error) {
    struct shard shard;
    const struct checkpoint *cp = c->checkpoint;
    zero_status status = shard_open(cp->storage, cp->path, rank, &cp->manifest, &shard, error);
    for (uint32_t i = 0; !status && i < shard.count; i++) {
        status = cover_piece(c, &shard, &shard.piece[i], error);
        if (!status && v->piece) status = v->piece(v->user, &shard, i, error);
    }
    if (!status && v->shard) status = v->shard(v->user, &shard, error);
    shard_close(&shard);
    return status;
}

static zero_status walk(struct checkpoint *cp, const struct visitor *visitor, struct zero_error *error) {
    struct cover cover = {.checkpoint = cp};
    cover.next = calloc(cp->manifest.params + 1, sizeof *cover.next);
    if (!cover.next) return error_set(error, ZERO_E_MEMORY, "no memory to check %s", cp->path);
    zero_status status = ZERO_OK;
    for (uint32_t rank = 0; rank < cp->manifest.files && !status; rank++)
        status = walk_shard(&cover, rank, visitor, error);
    if (!status) status = check_covered(&cover, error);
    free(cover.next);
    return status;
}

zero_status checkpoint_walk(struct checkpoint *cp, piece_visit visit, void *user, struct zero_error *error) {
    return walk(cp, &(struct visitor){.piece = visit, .user = user}, error);
}

zero_status checkpoint_walk_files(struct checkpoint *cp, shard_visit visit, void *user,
                                  struct zero_error *error) {
    return walk(cp, &(struct visitor){.shard = visit, .user = user}, error);
}

/* ---- verifying ---- */

static zero_status drop(void *user, const struct piece *piece, uint64_t first, uint64_t count,
                        const float *in, struct zero_error *error) {
    return ZERO_OK;
}

static zero_status read_whole(void *user, struct shard *shard, uint32_t index, struct zero_error *error) {
    const struct piece *p = &shard->piece[index];
    return shard_read(shard, index, p->first, p->count, user, drop, NULL, error);
}

zero_status checkpoint_verify(struct checkpoint *cp, float *block, struct zero_error *error) {
    return checkpoint_walk(cp, read_whole, block, error);
}
