#include "engine/checkpoint/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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

/* Runs of elements that pieces have covered so far: ascending, with gaps between them. Where files are in the order of
 * the elements there is one run. */
struct runs {
    struct run {
        uint64_t first, end;
    } * run;
    uint32_t count;
};

struct cover {
    const struct checkpoint *checkpoint;
    struct runs (*runs)[KINDS]; /* indexed by parameter and kind */
};

static zero_status wrong_elements(const char *path, const struct run *run, const char *name, const char *kind,
                                  const char *what, struct zero_error *error) {
    return error_set(error, ZERO_E_IO,
                     "%s: elements %" PRIu64 " to %" PRIu64
                     " of \"%s\" (%s) are %s; the checkpoint is damaged",
                     path, run->first, run->end, name, kind, what);
}

/* Puts `added` before the run `at`; it touches neither neighbour. false: no memory. */
static bool insert(struct runs *runs, uint32_t at, struct run added) {
    struct run *list = realloc(runs->run, (runs->count + 1) * sizeof *list);
    if (!list) return false;
    runs->run = list;
    memmove(list + at + 1, list + at, (runs->count++ - at) * sizeof *list);
    list[at] = added;
    return true;
}

/* Joins `added` with the runs that it touches, or becomes one. It overlaps none. */
static bool join(struct runs *runs, uint32_t at, struct run added) {
    bool before = at > 0 && runs->run[at - 1].end == added.first,
         after = at < runs->count && runs->run[at].first == added.end;
    if (!before && !after) return insert(runs, at, added);
    if (!before) return runs->run[at].first = added.first, true;
    runs->run[at - 1].end = after ? runs->run[at].end : added.end;
    if (after) memmove(runs->run + at, runs->run + at + 1, (--runs->count - at) * sizeof *runs->run);
    return true;
}

static zero_status cover_piece(struct cover *c, const struct shard *s, const struct piece *p,
                               struct zero_error *error) {
    const struct manifest *m = &c->checkpoint->manifest;
    struct runs *runs = &c->runs[p->param - m->param][p->kind];
    const char *kind = manifest_kind(m, p->kind);
    if (p->kind >= manifest_kinds(m, p->param))
        return error_set(error, ZERO_E_IO, "%s: \"%s\" is frozen, and yet has %s here; the file is damaged",
                         s->file.path, p->param->name, kind);
    struct run added = {p->first, p->first + p->count};
    uint32_t at = runs->count;
    while (at > 0 && runs->run[at - 1].end > added.first) at--;
    if (at < runs->count && runs->run[at].first < added.end) {
        const struct run *old = &runs->run[at];
        struct run both = {old->first > added.first ? old->first : added.first,
                           old->end < added.end ? old->end : added.end};
        return wrong_elements(s->file.path, &both, p->param->name, kind, "there twice", error);
    }
    if (join(runs, at, added)) return ZERO_OK;
    return error_set(error, ZERO_E_MEMORY, "no memory to check %s", c->checkpoint->path);
}

static zero_status check_tensor(const struct cover *c, const struct manifest_param *param, uint32_t kind,
                                struct zero_error *error) {
    const struct manifest *m = &c->checkpoint->manifest;
    const struct runs *runs = &c->runs[param - m->param][kind];
    struct run gap = {0, runs->count ? runs->run[0].first : param->count};
    if (runs->count && !gap.end) /* the first run begins where it should */
        gap = (struct run){runs->run[0].end, runs->count > 1 ? runs->run[1].first : param->count};
    if (gap.first == gap.end) return ZERO_OK;
    return wrong_elements(c->checkpoint->path, &gap, param->name, manifest_kind(m, kind), "missing", error);
}

static zero_status check_covered(const struct cover *c, struct zero_error *error) {
    const struct manifest *m = &c->checkpoint->manifest;
    for (uint32_t i = 0; i < m->params; i++)
        for (uint32_t kind = 0; kind < manifest_kinds(m, &m->param[i]); kind++)
            TRY(check_tensor(c, &m->param[i], kind, error));
    return ZERO_OK;
}

static void free_cover(struct cover *c) {
    for (uint32_t i = 0; c->runs && i < c->checkpoint->manifest.params; i++)
        for (uint32_t kind = 0; kind < KINDS; kind++) free(c->runs[i][kind].run);
    free(c->runs);
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
    cover.runs = calloc(cp->manifest.params + 1, sizeof *cover.runs);
    if (!cover.runs) return error_set(error, ZERO_E_MEMORY, "no memory to check %s", cp->path);
    zero_status status = ZERO_OK;
    for (uint32_t rank = 0; rank < cp->manifest.files && !status; rank++)
        status = walk_shard(&cover, rank, visitor, error);
    if (!status) status = check_covered(&cover, error);
    free_cover(&cover);
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
