/* Calls of the host program's functions. A function that throws (C++), or is left by longjmp, would leave the engine in the middle of a
 * call, with its lock taken. So an exception ends here and becomes a fault, and a jump becomes one in the thread's next call of the
 * engine. A fault ends the run with a sentence.
 * Threads: any number may call at once, with one fault. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "engine/base/error.h"

enum { HOST_FAULT_BYTES = 200 };

struct host_fault {       /* of one engine; zero at first */
    atomic_int state;     /* 0: none; 2: the rest is set */
    const char *function; /* "zero_optimizer.update" */
    bool jumped;
    char said[HOST_FAULT_BYTES]; /* the exception's text; "": it has none */
};

/* Calls `make`, which calls the host's function. False: it has thrown, now or before; after a fault nothing is called. `fault` NULL: the
 * exception is dropped. */
bool host_call(struct host_fault *fault, const char *function, void (*make)(void *call), void *call);

/* True: this thread has left one of this engine's host_calls by a jump, and the fault is set. `inside`: a function of the host may
 * make the present call, too, so that an open host_call below it on the stack is no jump. */
bool host_call_jumped(struct host_fault *fault, bool inside);

static inline bool host_fault_is_set(struct host_fault *fault) {
    return atomic_load_explicit(&fault->state, memory_order_acquire) == 2;
}
zero_status host_fault_error(const struct host_fault *fault, struct zero_error *error);
