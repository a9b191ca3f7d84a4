#include "kernels/average.h"

#define AVERAGE_LOOP(isa, attribute)                                                                         \
    attribute static void move_##isa(float *restrict average, const float *restrict weight, float share,     \
                                     uint64_t count) {                                                       \
        for (uint64_t i = 0; i < count; i++) average[i] = average_of(average[i], weight[i], share);          \
    }

ISA_EACH(AVERAGE_LOOP)

static void (*const moves[KERNEL_ISAS])(float *, const float *, float, uint64_t) = ISA_TABLE(move);

void average_move_isa(enum kernel_isa isa, float *average, const float *weight, float share, uint64_t count) {
    moves[isa](average, weight, share, count);
}
