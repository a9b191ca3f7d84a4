/* Random programs of public calls. A seed gives a model and a list of calls, right ones and wrong ones. The list is plain data: it is
 * played alike on engines of different stages and tiers, on ranks that are threads, and every engine must answer alike. */
#ifndef ZERO_TESTS_ENGINE_CALLS_H
#define ZERO_TESTS_ENGINE_CALLS_H

#include <stdbool.h>
#include <stdio.h>

#include "engine/zero.h"

enum {
    CALLS_UNITS_MAX = 5,
    CALLS_PARAMS_MAX = 3, /* of a unit */
    CALLS_COUNT_MAX = 500,
    CALLS_RANKS_MAX = 4,
    CALLS_DRAWN = 160,
    CALLS_MAX = CALLS_DRAWN + 8 /* those that end all that is open, and read the hash */
};

/* ---- the model, and the ways to train it: calls_model.c ---- */

struct calls_param {
    uint32_t count, flags;
    bool tied; /* to the first parameter of all */
};

struct calls_model {
    uint64_t seed;
    uint32_t ranks, units, params[CALLS_UNITS_MAX], micro_steps, threshold;
    struct calls_param param[CALLS_UNITS_MAX][CALLS_PARAMS_MAX];
    bool every, vertical, updates, shadow, averages, background, spans, nans;
    bool free_order;
    zero_dtype type;
    uint32_t bound;             /* of free order; 0: none */
    int32_t held, first, last;  /* a unit; those of a segment; -1: none */
    uint32_t ways;              /* bit w: way w trains it */
    double clip;
    const char *optimizer;
};

enum calls_spans { CALLS_SLOTS, CALLS_WHOLE, CALLS_PIECES };
enum { CALLS_WAYS = 12 };

/* The calls are those of one rank: its engine, and what it has in memory. */
struct calls_host {
    const struct calls_model *model;
    zero_engine *engine;
    uint32_t rank;
    enum calls_spans spans;
    zero_unit *unit[CALLS_UNITS_MAX];
    bool backward[CALLS_UNITS_MAX]; /* in its last use */
    zero_slot slot[CALLS_UNITS_MAX][CALLS_PARAMS_MAX];
    float own[CALLS_UNITS_MAX][CALLS_PARAMS_MAX][CALLS_COUNT_MAX];
    float own_grad[CALLS_UNITS_MAX][CALLS_PARAMS_MAX][CALLS_COUNT_MAX];
    float values[CALLS_PARAMS_MAX][CALLS_COUNT_MAX];
    struct calls_seen *seen; /* by the call under way */
};

void calls_model_draw(uint64_t seed, struct calls_model *out);
void calls_model_print(const struct calls_model *model, FILE *file);
const char *calls_way_name(uint32_t way);
void calls_way_config(const struct calls_model *model, uint32_t way, char *out, size_t capacity);
/* Declares, and commits. */
zero_status calls_open(struct calls_host *host, uint32_t way);
/* The slot of a parameter; for one with spans, of the host's own memory. */
zero_slot calls_slot(const struct calls_host *host, uint32_t unit, uint32_t param);
zero_dtype calls_type(const struct calls_host *host, uint32_t unit, uint32_t param);
uint32_t calls_pick(uint64_t *state, uint32_t n);

/* ---- a list of calls, and what it gave: calls_play.c ---- */

#define CALLS(X)                                                                                             \
    X(train) X(eval) X(resume) X(cancel) X(forward_begin) X(forward_end) X(backward_begin) X(backward_end)   \
    X(next_micro) X(step) X(flush) X(get) X(put) X(hash) X(sum) X(set_lr) X(fill) X(ema_begin) X(ema_end)    \
    X(park) X(unpark) X(save) X(save_wait) X(load) X(load_weights) X(load_ema) X(prune) X(give) X(give_all)  \
    X(get_owned) X(put_owned) X(written) X(set_note)

enum calls_kind {
#define CALLS_KIND(name) CALL_##name,
    CALLS(CALLS_KIND) CALLS_KINDS
#undef CALLS_KIND
};

struct calls_call {
    enum calls_kind kind;
    uint32_t unit, param;
    uint32_t number; /* which values, range, kind of state: as the call takes it */
};

struct calls_list {
    uint32_t count;
    struct calls_call call[CALLS_MAX];
};

struct calls_seen {
    zero_status status;
    uint64_t digest; /* of all that the call gave: weights in a use, gradients, sums */
    char text[200];  /* refused: why; else a hash or a norm */
};

struct calls_result {
    zero_status opened;
    char why[200];
    struct calls_seen seen[CALLS_MAX];
};

/* One result for each rank. */
void calls_play(const struct calls_model *model, uint32_t way, const struct calls_list *list,
                struct calls_result *out);
/* Draws the list while one rank plays it. */
void calls_draw(const struct calls_model *model, uint32_t way, struct calls_list *out);
void calls_clean(void); /* removes what a play leaves in the current directory */
void calls_call_print(const struct calls_call *call, FILE *file);

/* ---- the next call: calls_draw.c ---- */

/* What a program would know of its engine, nearly: a wrong guess draws a wrong call. */
struct calls_guess {
    const struct calls_model *model;
    uint64_t state;
    bool filled, parked, lent, open, training, interrupted;
    bool backward;      /* in this training pass one has begun */
    bool wild;          /* the call was drawn from all */
    uint32_t passes;    /* begun in this step */
    uint32_t place;     /* forwards of all units in order, then backwards */
    uint32_t forwarded; /* bit u: unit u had its forward in this training pass */
    uint32_t depth;     /* uses, one inside the other */
    struct calls_use {
        uint32_t unit, micros;
        bool backward;
    } use[CALLS_UNITS_MAX];
    int32_t again; /* the next unit to recompute; -1: none */
    enum calls_kind next; /* if it is not CALLS_KINDS */
};

void calls_guess_begin(struct calls_guess *guess, const struct calls_model *model);
struct calls_call calls_guess_draw(struct calls_guess *guess);
void calls_guess_learn(struct calls_guess *guess, const struct calls_call *call, zero_status status);

#endif
