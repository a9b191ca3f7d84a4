#include <ftw.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/engine/calls.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_model.h"
#include "tests/engine/toy_number.h"

enum { WINDOW = 64 /* elements that a call reads or writes */, NAN_EVERY = 24 };

typedef zero_status (*call_fn)(struct calls_host *h, const struct calls_call *c);

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* All NaNs are alike: which of two comes out of a sum is not defined. */
static void see(struct calls_host *h, const float *x, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        h->seen->digest = mix(h->seen->digest + (isnan(x[i]) ? 1 : bits_of(x[i])) + 1);
}

static void see_numbers(struct calls_host *h, const double *x, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bits = 1;
        if (!isnan(x[i])) memcpy(&bits, &x[i], sizeof bits);
        h->seen->digest = mix(h->seen->digest + bits + 1);
    }
}

static zero_handle *handle(struct calls_host *h, const struct calls_call *c) {
    return zero_unit_param(h->unit[c->unit], c->param);
}

/* ---- in a use ---- */

static void see_weights(struct calls_host *h, uint32_t unit) {
    for (uint32_t k = 0; k < h->model->params[unit]; k++) {
        zero_slot slot = calls_slot(h, unit, k);
        uint32_t count = h->model->param[unit][k].count;
        for (uint32_t i = 0; i < count; i++)
            h->values[k][i] = toy_load(calls_type(h, unit, k), slot.param, i);
        see(h, h->values[k], count);
    }
}

/* In a slot the host adds, and in spans the engine: both add rounded gradients. */
static void write_gradients(struct calls_host *h, uint32_t unit, const struct calls_call *c) {
    bool spoils = h->model->nans && h->rank == h->model->ranks - 1 && c->number % NAN_EVERY == 0;
    for (uint32_t k = 0; k < h->model->params[unit]; k++) {
        zero_slot slot = calls_slot(h, unit, k);
        zero_dtype type = calls_type(h, unit, k);
        for (uint32_t i = 0; i < h->model->param[unit][k].count && slot.grad; i++) {
            float g = plain_gradient(toy_load(type, slot.param, i), i, h->rank, c->number % 7 + unit);
            g = spoils && i == 0 ? NAN : toy_round(type, g * zero_engine_loss_scale(h->engine));
            toy_store(type, slot.grad, i, slot.add ? toy_load(type, slot.grad, i) + g : g);
        }
    }
}

static zero_status use(struct calls_host *h, const struct calls_call *c, zero_status status) {
    if (status) return status;
    see_weights(h, c->unit);
    if (h->backward[c->unit]) write_gradients(h, c->unit, c);
    if (h->model->held < 0 || h->model->held == (int32_t)c->unit) return ZERO_OK;
    see_weights(h, (uint32_t)h->model->held);
    if (h->backward[c->unit]) write_gradients(h, (uint32_t)h->model->held, c);
    return ZERO_OK;
}

static zero_status begin(struct calls_host *h, const struct calls_call *c, bool backward,
                         zero_status status) {
    if (!status) h->backward[c->unit] = backward;
    return use(h, c, status);
}

static zero_status call_forward_begin(struct calls_host *h, const struct calls_call *c) {
    return begin(h, c, false, zero_forward_begin(h->unit[c->unit]));
}

static zero_status call_backward_begin(struct calls_host *h, const struct calls_call *c) {
    return begin(h, c, true, zero_backward_begin(h->unit[c->unit]));
}

static zero_status call_next_micro(struct calls_host *h, const struct calls_call *c) {
    return use(h, c, zero_unit_next_micro(h->unit[c->unit]));
}

static zero_status call_forward_end(struct calls_host *h, const struct calls_call *c) {
    return zero_forward_end(h->unit[c->unit]);
}

static zero_status call_backward_end(struct calls_host *h, const struct calls_call *c) {
    return zero_backward_end(h->unit[c->unit]);
}

/* Gradients that were computed elsewhere, in the parameters' types. */
static const void *elsewhere(struct calls_host *h, const struct calls_call *c, uint32_t param) {
    zero_dtype type = calls_type(h, c->unit, param);
    for (uint32_t i = 0; i < h->model->param[c->unit][param].count; i++)
        toy_store(type, h->values[param], i,
                  plain_gradient(0.3f, i, h->rank, c->number % 7) * zero_engine_loss_scale(h->engine));
    return h->values[param];
}

static zero_status call_give(struct calls_host *h, const struct calls_call *c) {
    return zero_param_give_grad(handle(h, c), elsewhere(h, c, c->param));
}

static zero_status call_give_all(struct calls_host *h, const struct calls_call *c) {
    const void *grads[CALLS_PARAMS_MAX];
    for (uint32_t k = 0; k < h->model->params[c->unit]; k++)
        grads[k] = c->number >> k & 1 ? elsewhere(h, c, k) : NULL;
    return zero_unit_give_grads(h->unit[c->unit], grads);
}

/* ---- passes and steps ---- */

static zero_status call_train(struct calls_host *h, const struct calls_call *c) {
    return zero_micro_begin(h->engine, ZERO_TRAIN);
}

static zero_status call_eval(struct calls_host *h, const struct calls_call *c) {
    return zero_micro_begin(h->engine, ZERO_EVAL);
}

static zero_status call_resume(struct calls_host *h, const struct calls_call *c) {
    return zero_micro_resume(h->engine);
}

static zero_status call_cancel(struct calls_host *h, const struct calls_call *c) {
    return zero_micro_cancel(h->engine);
}

static zero_status call_step(struct calls_host *h, const struct calls_call *c) {
    zero_step_info info = {.struct_size = sizeof info};
    zero_status status = zero_engine_step(h->engine, &info);
    if (status) return status;
    see_numbers(h, (double[]){info.grad_norm, info.lr, (double)info.step, info.skipped, info.repeated}, 5);
    snprintf(h->seen->text, sizeof h->seen->text, "step %llu, norm %.9g%s%s", (unsigned long long)info.step,
             info.grad_norm, info.skipped ? ", skipped" : "", info.repeated ? ", repeated" : "");
    return ZERO_OK;
}

static zero_status call_set_lr(struct calls_host *h, const struct calls_call *c) {
    return zero_engine_set_lr(h->engine, 0, 0.001 * (1 + c->number % 50));
}

static zero_status call_sum(struct calls_host *h, const struct calls_call *c) {
    double numbers[2] = {1 + h->rank, 0.1 * c->number};
    zero_status status = zero_engine_sum(h->engine, numbers, 2);
    if (!status) see_numbers(h, numbers, 2);
    return status;
}

/* ---- between steps ---- */

static zero_kind kind_of(const struct calls_call *c) { return (zero_kind)(c->number % (ZERO_EMA + 1)); }

static uint64_t first_of(const struct calls_host *h, const struct calls_call *c) {
    return c->number / 8 % h->model->param[c->unit][c->param].count;
}

static uint64_t window(uint64_t count) { return count < WINDOW ? count : WINDOW; }

static uint64_t count_of(const struct calls_host *h, const struct calls_call *c) {
    return window(h->model->param[c->unit][c->param].count - first_of(h, c));
}

/* Second moments are not negative. */
static const float *values(struct calls_host *h, const struct calls_call *c) {
    for (uint32_t i = 0; i < WINDOW; i++) h->values[0][i] = (float)((c->number + 31 * i) % 97) / 97;
    return h->values[0];
}

static zero_status call_get(struct calls_host *h, const struct calls_call *c) {
    uint64_t count = count_of(h, c);
    zero_status status = zero_param_get(handle(h, c), kind_of(c), h->values[0], first_of(h, c), count);
    if (!status) see(h, h->values[0], count);
    return status;
}

static zero_status call_put(struct calls_host *h, const struct calls_call *c) {
    return zero_param_put(handle(h, c), kind_of(c), values(h, c), first_of(h, c), count_of(h, c));
}

static zero_status call_get_owned(struct calls_host *h, const struct calls_call *c) {
    uint64_t first, count;
    zero_status status = zero_param_owned(handle(h, c), kind_of(c), &first, &count);
    if (!status) status = zero_param_get_owned(handle(h, c), kind_of(c), h->values[0], first, window(count));
    if (!status) see(h, h->values[0], window(count));
    return status;
}

static zero_status call_put_owned(struct calls_host *h, const struct calls_call *c) {
    return zero_param_put_owned(handle(h, c), kind_of(c), values(h, c), first_of(h, c), count_of(h, c));
}

static zero_status call_written(struct calls_host *h, const struct calls_call *c) {
    return zero_engine_written(h->engine);
}

static zero_status call_flush(struct calls_host *h, const struct calls_call *c) {
    return zero_engine_flush(h->engine);
}

static zero_status call_hash(struct calls_host *h, const struct calls_call *c) {
    return zero_engine_hash(h->engine, h->seen->text);
}

static zero_status call_set_note(struct calls_host *h, const struct calls_call *c) {
    char text[16];
    snprintf(text, sizeof text, "%u", c->number);
    return zero_engine_set_note(h->engine, "note", c->number % 4 ? text : NULL);
}

static zero_status call_fill(struct calls_host *h, const struct calls_call *c) {
    return zero_engine_fill(h->engine, toy_fill, NULL);
}

static zero_status call_ema_begin(struct calls_host *h, const struct calls_call *c) {
    return zero_engine_ema_begin(h->engine);
}

static zero_status call_ema_end(struct calls_host *h, const struct calls_call *c) {
    return zero_engine_ema_end(h->engine);
}

static zero_status call_park(struct calls_host *h, const struct calls_call *c) {
    return zero_engine_park(h->engine, c->number % 8 ? ZERO_CPU : ZERO_DEVICE);
}

static zero_status call_unpark(struct calls_host *h, const struct calls_call *c) {
    return zero_engine_unpark(h->engine);
}

/* ---- checkpoints ---- */

static zero_status call_save(struct calls_host *h, const struct calls_call *c) {
    return zero_engine_save(h->engine, "saved");
}

static zero_status call_save_wait(struct calls_host *h, const struct calls_call *c) {
    return zero_engine_save_wait(h->engine);
}

static zero_status call_load(struct calls_host *h, const struct calls_call *c) {
    return zero_engine_load(h->engine, "saved");
}

static zero_status call_load_weights(struct calls_host *h, const struct calls_call *c) {
    return zero_engine_load_weights(h->engine, "saved");
}

static zero_status call_load_ema(struct calls_host *h, const struct calls_call *c) {
    return zero_engine_load_ema(h->engine, "saved");
}

static zero_status call_prune(struct calls_host *h, const struct calls_call *c) {
    return zero_engine_prune(h->engine, "saved", 1 + c->number % 3);
}

/* ---- a list ---- */

static const struct {
    const char *name;
    call_fn fn;
} calls[CALLS_KINDS] = {
#define CALL_ROW(name) [CALL_##name] = {#name, call_##name},
    CALLS(CALL_ROW)
#undef CALL_ROW
};

static void make(struct calls_host *h, const struct calls_call *c, struct calls_seen *out) {
    *out = (struct calls_seen){.digest = 0};
    h->seen = out;
    out->status = calls[c->kind].fn(h, c);
    if (out->status) snprintf(out->text, sizeof out->text, "%s", zero_last_error());
    const char *note = zero_engine_note(h->engine, "note");
    see_numbers(h, (double[]){(double)zero_engine_steps(h->engine), note ? strtod(note, NULL) : -1}, 2);
}

struct play {
    const struct calls_model *model;
    uint32_t way;
    const struct calls_list *list;
    struct calls_list *drawn; /* or NULL: the list is played */
    struct calls_result *out;
};

static void play_drawn(struct calls_host *h, struct calls_list *list) {
    static const enum calls_kind ends[] = {CALL_unpark,  CALL_cancel, CALL_cancel, CALL_cancel,
                                           CALL_ema_end, CALL_flush,  CALL_hash,   CALL_step};
    struct calls_guess guess;
    struct calls_seen seen;
    calls_guess_begin(&guess, h->model);
    for (list->count = 0; list->count < CALLS_DRAWN; list->count++) {
        struct calls_call *call = &list->call[list->count];
        *call = calls_guess_draw(&guess);
        make(h, call, &seen);
        calls_guess_learn(&guess, call, seen.status);
    }
    for (uint32_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        list->call[list->count++] = (struct calls_call){.kind = ends[i]};
}

static void play_rank(zero_engine *engine, uint32_t rank, void *user) {
    const struct play *p = user;
    struct calls_result *out = &p->out[rank];
    struct calls_host *h = calloc(1, sizeof *h);
    *h = (struct calls_host){.model = p->model, .engine = engine, .rank = rank};
    memset(out, 0, sizeof *out);
    out->opened = engine ? calls_open(h, p->way) : ZERO_E_CONFIG;
    if (!out->opened && p->model->shadow) out->opened = zero_engine_discard_shadow(engine);
    if (out->opened)
        snprintf(out->why, sizeof out->why, "%s", zero_last_error());
    else if (p->drawn)
        play_drawn(h, p->drawn);
    else
        for (uint32_t i = 0; i < p->list->count; i++) make(h, &p->list->call[i], &out->seen[i]);
    free(h);
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *at) {
    return remove(path);
}

void calls_clean(void) {
    nftw("saved", remove_entry, 8, FTW_PHYS | FTW_DEPTH);
    nftw("state", remove_entry, 8, FTW_PHYS | FTW_DEPTH);
}

static void run(uint32_t ranks, struct play *play) {
    static char json[4096];
    calls_clean();
    mkdir("state", 0700);
    calls_way_config(play->model, play->way, json, sizeof json);
    ranks_run(ranks, json, play_rank, play);
}

void calls_play(const struct calls_model *model, uint32_t way, const struct calls_list *list,
                struct calls_result *out) {
    run(model->ranks, &(struct play){.model = model, .way = way, .list = list, .out = out});
}

void calls_draw(const struct calls_model *model, uint32_t way, struct calls_list *out) {
    static struct calls_result result;
    struct calls_model alone = *model;
    out->count = 0;
    run(1, &(struct play){.model = &alone, .way = way, .drawn = out, .out = &result});
}

static void print_range(const struct calls_call *c, FILE *file) {
    static const char *const kinds[] = {"weights", "gradient", "state 0", "state 1", "averages"};
    fprintf(file, " %s of p%u.%u, number %u", kinds[kind_of(c)], c->unit, c->param, c->number);
}

void calls_call_print(const struct calls_call *c, FILE *file) {
    fprintf(file, "%s", calls[c->kind].name);
    switch (c->kind) {
    case CALL_forward_begin:
    case CALL_forward_end:
    case CALL_backward_begin:
    case CALL_backward_end:
    case CALL_next_micro:
    case CALL_give_all:
        fprintf(file, " of u%u", c->unit);
        return;
    case CALL_give:
        fprintf(file, " of p%u.%u", c->unit, c->param);
        return;
    case CALL_get:
    case CALL_put:
    case CALL_get_owned:
    case CALL_put_owned:
        print_range(c, file);
        return;
    default:
        return;
    }
}
