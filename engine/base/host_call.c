#include "engine/base/host_call.h"

#include <string.h>

#include "engine/base/host_catch.h"

/* The innermost host_call of this thread, by value: after a jump its frame is gone. */
static _Thread_local struct {
    const struct host_fault *fault;
    const char *function;
    uintptr_t frame;
} present;

static void set(struct host_fault *fault, const char *function, const char *said, bool jumped) {
    int none = 0;
    if (!fault || !atomic_compare_exchange_strong(&fault->state, &none, 1)) return;
    fault->function = function;
    fault->jumped = jumped;
    strcpy(fault->said, said);
    atomic_store_explicit(&fault->state, 2, memory_order_release);
}

bool host_call(struct host_fault *fault, const char *function, void (*make)(void *), void *call) {
    char said[HOST_FAULT_BYTES] = "";
    if (fault && atomic_load_explicit(&fault->state, memory_order_relaxed)) return false;
    __typeof__(present) outer = present;
    present.fault = fault, present.function = function;
    present.frame = (uintptr_t)__builtin_frame_address(0);
    bool returned = host_catch(make, call, said, sizeof said);
    present = outer;
    if (!returned) set(fault, function, said, false);
    return returned;
}

/* Stacks grow downwards. */
bool host_call_jumped(struct host_fault *fault, bool inside) {
    if (present.fault != fault || (inside && (uintptr_t)__builtin_frame_address(0) < present.frame))
        return false;
    set(fault, present.function, "", true);
    present.fault = NULL;
    return true;
}

zero_status host_fault_error(const struct host_fault *fault, struct zero_error *error) {
    return error_set(error, ZERO_E_ARGUMENT,
                     "%s: the program's function %s%s%s: the engine was in the middle of its work, so this "
                     "run has ended: let the function catch what it throws, and return",
                     fault->function, fault->jumped ? "left by a jump (longjmp)" : "threw an exception",
                     fault->said[0] ? ": " : "", fault->said);
}
