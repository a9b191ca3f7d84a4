/* The engine: its rooms, and nothing else. For the files of this folder, which are the public interface: they check what the
 * host may do now, then call a room; and for those above, which open and close an engine. */
#pragma once

#include <stdatomic.h>

#include "engine/base/status.h"
#include "engine/blueprint/blueprint.h"
#include "engine/loop/pass.h"
#include "engine/loop/step.h"
#include "engine/open/host.h"
#include "engine/open/park.h"
#include "engine/ranks/peers.h"
#include "engine/run/trace.h"
#include "engine/state/scratch.h"
#include "engine/zero.h"

struct zero_engine {
    struct config config;
    struct host host;   /* the host program, and the machine */
    struct ranks ranks; /* which rank this is, and how it reaches the others */
    struct model model; /* as declared */
    struct peers peers; /* what other model ranks declared; empty where the model is whole */
    struct reservations reservations;
    struct blueprint blueprint; /* mesh, policy and plan; made by plan or commit */
    struct training training;   /* steps, loss scale, optimizer, learning rates */
    struct running run;         /* device, tiers and executor */
    struct pass pass;           /* where the host is between begin and end */
    struct scratches scratches; /* the host program's data on the drive */
    struct state state;         /* what rests: weights, states, notes, saves */
    struct step step;           /* the settings and the result of a step */
    struct park park;           /* where the device's content rests while its memory is given back */
    struct trace_steps trace_steps;
    struct trace *trace;                              /* NULL: nothing is traced */
    struct comm_group *group[AXES_BOTH + 1][STREAMS]; /* of ranks.data: by axes and stream; those in use */
    atomic_bool typed; /* the host knows of types: it has asked for one, or declared one */
    bool stepped;      /* zero_engine_step has succeeded once */
    bool planned;      /* zero_engine_plan was called */
};

/* A function that is given an engine or a unit begins with one of these. `what` names the call. */

/* False: the pointer is NULL, and the call is refused with ZERO_E_ARGUMENT. */
bool engine_given(const zero_engine *engine, const char *what);
bool unit_given(const zero_unit *unit, const char *what);

/* The same, or the engine's sticky failure; or a refusal with ZERO_E_ORDER while it is parked. */
zero_status engine_check(zero_engine *engine, const char *what);

/* The same, or a refusal with ZERO_E_ORDER: once the engine is planned or committed; before commit and inside a
 * use; and also where the open pass would lose a forward (a save in the background is finished first), or between
 * micro-steps. */
zero_status engine_check_declaring(zero_engine *engine, const char *what);
zero_status engine_check_between(zero_engine *engine, const char *what);
zero_status engine_check_steps(zero_engine *engine, const char *what);

/* A refusal with ZERO_E_ORDER while a backward updates the weights, or has: they are those of no step. */
zero_status engine_check_updates(const zero_engine *engine, const char *what);

/* A refusal with ZERO_E_ORDER before the first fill, load or recover: there are no weights. */
zero_status engine_check_filled(const zero_engine *engine, const char *what);

/* A refusal with ZERO_E_ORDER if zero_param_put_owned was called and zero_engine_written was not. */
zero_status engine_check_written(const zero_engine *engine, const char *what);

/* The same between zero_engine_ema_begin and _end. _between and _steps check it, too. */
zero_status engine_check_own_weights(const zero_engine *engine, const char *what);

/* ---- sized_struct.c: structs that cross the public interface. The host's header may be older or newer than this library: struct_size
 * says how much of a struct the host knows, as in openat2(2). ---- */
/* Copies a struct that the host gives. `to`, zeroed, of `known` bytes, takes what both know. ZERO_E_ARGUMENT where `size` is 0, or where the
 * struct is larger than known and asks for something in its tail. `what`: "zero_runtime", for the sentence. */
zero_status sized_take(void *to, size_t known, const void *from, size_t size, const char *what);

/* Copies a struct to the host: `size` bytes at `to`, whose struct_size stays as it is. */
void sized_fill(void *to, size_t size, const void *from, size_t known);

/* ZERO_E_ARGUMENT where the size of a struct that the host wants filled is 0. */
zero_status sized_check(size_t size, const char *what);
