/* Errors that a GPU does not tolerate but a CPU does. Kernels are compiled with the compiler's checks (CHECKS of
 * emulated.bzl); a failed check calls these functions, by the names that gcc and clang use. Each gets a record that
 * begins with a place in the source. */
#include <stdint.h>

#include "tests/cuda/emulator.h"

struct place {
    const char *file;
    uint32_t line, column;
};

struct address {
    struct place place;
    const void *type;
    unsigned char alignment_log2;
};

#define CHECK_OF(name) __attribute__((noreturn)) void __ubsan_handle_##name##_abort

CHECK_OF(type_mismatch_v1)(const struct address *at, const void *pointer);
CHECK_OF(type_mismatch_v1)(const struct address *at, const void *pointer) {
    emulator_fail("%s:%u: address %p is no multiple of %u", at->place.file, at->place.line, pointer,
                  1u << at->alignment_log2);
}

CHECK_OF(out_of_bounds)(const struct place *at, uintptr_t index);
CHECK_OF(out_of_bounds)(const struct place *at, uintptr_t index) {
    emulator_fail("%s:%u: index %lld is outside of the array", at->file, at->line, (long long)index);
}

CHECK_OF(shift_out_of_bounds)(const struct place *at, uintptr_t left, uintptr_t by);
CHECK_OF(shift_out_of_bounds)(const struct place *at, uintptr_t left, uintptr_t by) {
    emulator_fail("%s:%u: a shift by %lld bits", at->file, at->line, (long long)by);
}

CHECK_OF(float_cast_overflow)(const struct place *at, uintptr_t from);
CHECK_OF(float_cast_overflow)(const struct place *at, uintptr_t from) {
    emulator_fail("%s:%u: a float becomes an integer that cannot hold it", at->file, at->line);
}
