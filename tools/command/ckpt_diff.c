/* Reads checkpoint a piece by piece and looks each range up in checkpoint b. All files of b stay open. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checkpoint.h"
#include "tools/command/command.h"
#include "tools/text/format.h"

enum { KINDS = 1 + MANIFEST_STATES_MAX };

struct difference {
    uint64_t elements;
    double largest;
};

struct comparison {
    struct checkpoint a, b;
    struct shard *shard; /* b's files */
    uint32_t shards;
    uint32_t *in_b;                         /* index: a's parameter; value: b's parameter, or UINT32_MAX */
    struct difference (*difference)[KINDS]; /* index: a's parameter */
    /* a's values; b's values as read; the range of b that a's block covers */
    float *block, *other_block, *other;
    uint64_t first; /* the first element in `other` */
};

/* ---- reading checkpoint b ---- */

static zero_status keep(void *user, const struct piece *piece, uint64_t first, uint64_t count,
                        const float *in, struct zero_error *error) {
    struct comparison *c = user;
    memcpy(c->other + (first - c->first), in, count * sizeof *in);
    return ZERO_OK;
}

static zero_status read_piece(struct comparison *c, struct shard *s, uint32_t index, uint64_t first,
                              uint64_t count, struct zero_error *error) {
    const struct piece *p = &s->piece[index];
    uint64_t begin = p->first > first ? p->first : first, end = p->first + p->count, stop = first + count;
    if (end > stop) end = stop;
    if (begin >= end) return ZERO_OK;
    return shard_read(s, index, begin, end - begin, c->other_block, keep, c, error);
}

static zero_status read_other(struct comparison *c, uint32_t param, uint32_t kind, uint64_t first,
                              uint64_t count, struct zero_error *error) {
    c->first = first;
    for (uint32_t i = 0; i < c->shards; i++)
        for (uint32_t k = 0; k < c->shard[i].count; k++) {
            const struct piece *p = &c->shard[i].piece[k];
            bool wanted = p->kind == kind && p->param == &c->b.manifest.param[param];
            if (wanted) TRY(read_piece(c, &c->shard[i], k, first, count, error));
        }
    return ZERO_OK;
}

/* ---- comparing ---- */

static zero_status compare_block(void *user, const struct piece *piece, uint64_t first, uint64_t count,
                                 const float *in, struct zero_error *error) {
    struct comparison *c = user;
    uint64_t i = (uint64_t)(piece->param - c->a.manifest.param);
    struct difference *d = &c->difference[i][piece->kind];
    zero_status status = read_other(c, c->in_b[i], piece->kind, first, count, error);
    if (status) return status;
    for (uint64_t e = 0; e < count; e++) {
        if (memcmp(&in[e], &c->other[e], sizeof *in) == 0) continue;
        double by = fabs((double)in[e] - (double)c->other[e]);
        d->elements++;
        if (!(by <= d->largest)) d->largest = by; /* NaN counts as largest */
    }
    return status;
}

static zero_status compare_piece(void *user, struct shard *shard, uint32_t index, struct zero_error *error) {
    struct comparison *c = user;
    const struct piece *p = &shard->piece[index];
    uint32_t other = c->in_b[p->param - c->a.manifest.param];
    if (other == UINT32_MAX || p->kind >= manifest_kinds(&c->b.manifest, &c->b.manifest.param[other]) ||
        strcmp(manifest_kind(&c->a.manifest, p->kind), manifest_kind(&c->b.manifest, p->kind)) != 0)
        return ZERO_OK;
    return shard_read(shard, index, p->first, p->count, c->block, compare_block, c, error);
}

/* ---- opening ---- */

static zero_status pair_params(struct comparison *c, bool *out_same, struct zero_error *error) {
    const struct manifest *a = &c->a.manifest, *b = &c->b.manifest;
    c->in_b = malloc((a->params + 1) * sizeof *c->in_b);
    c->difference = calloc(a->params + 1, sizeof *c->difference);
    c->shard = calloc(b->files + 1, sizeof *c->shard);
    c->block = malloc(BLOCK_BYTES);
    c->other_block = malloc(BLOCK_BYTES);
    c->other = malloc(BLOCK_BYTES);
    if (!c->in_b || !c->difference || !c->shard || !c->block || !c->other_block || !c->other)
        return error_set(error, ZERO_E_MEMORY, "no memory to compare %" PRIu32 " parameters", a->params);
    uint32_t paired = 0;
    for (uint32_t i = 0; i < a->params; i++) {
        uint32_t k = 0;
        while (k < b->params && strcmp(a->param[i].name, b->param[k].name) != 0) k++;
        bool fits = k < b->params && a->param[i].count == b->param[k].count;
        c->in_b[i] = fits ? k : UINT32_MAX;
        paired += fits;
        if (!fits) printf("%s: not in the other, or of another size\n", format_name(a->param[i].name).chars);
    }
    if (paired < b->params) printf("%" PRIu32 " parameters are in the second alone\n", b->params - paired);
    *out_same = paired == a->params && paired == b->params && a->states == b->states;
    if (a->states != b->states)
        printf("the first has %" PRIu32 " optimizer states, the second %" PRIu32 "\n", a->states, b->states);
    return ZERO_OK;
}

static zero_status open_both(struct comparison *c, const char *a, const char *b, bool *out_same,
                             struct zero_error *error) {
    zero_status status = checkpoint_open(storage_posix(), a, &c->a, error);
    if (!status) status = checkpoint_open(storage_posix(), b, &c->b, error);
    if (!status) status = pair_params(c, out_same, error);
    if (!status) status = checkpoint_walk(&c->b, NULL, NULL, error);
    for (; !status && c->shards < c->b.manifest.files; c->shards += !status)
        status =
            shard_open(storage_posix(), c->b.path, c->shards, &c->b.manifest, &c->shard[c->shards], error);
    return status;
}

static void print_differences(const struct comparison *c, bool *same) {
    const struct manifest *m = &c->a.manifest;
    for (uint32_t i = 0; i < m->params; i++)
        for (uint32_t kind = 0; kind < KINDS; kind++) {
            const struct difference *d = &c->difference[i][kind];
            if (!d->elements) continue;
            *same = false;
            printf("%s/%s: %" PRIu64 " of %" PRIu64 " elements differ, by at most %g\n",
                   manifest_kind(m, kind), format_name(m->param[i].name).chars, d->elements,
                   m->param[i].count, d->largest);
        }
}

zero_status ckpt_diff(const char *a, const char *b, bool *out_same, struct zero_error *error) {
    struct comparison c = {0};
    zero_status status = open_both(&c, a, b, out_same, error);
    if (!status) status = checkpoint_walk(&c.a, compare_piece, &c, error);
    if (!status) print_differences(&c, out_same);
    for (uint32_t i = 0; i < c.shards; i++) shard_close(&c.shard[i]);
    checkpoint_close(&c.a);
    checkpoint_close(&c.b);
    free(c.in_b);
    free(c.difference);
    free(c.shard);
    free(c.block);
    free(c.other_block);
    free(c.other);
    return status;
}
