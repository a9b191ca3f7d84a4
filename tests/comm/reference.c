#include "tests/comm/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Finite numbers of many magnitudes, so that another order of additions gives other bits. */
static uint32_t element(enum dtype dtype, uint32_t rank, uint64_t i) {
    uint32_t random = (uint32_t)reference_mix(reference_mix((uint64_t)rank << 8 | dtype) ^ i);
    switch (dtype) {
    case DTYPE_F32:
        return (random & 0x807fffff) | (120 + (random >> 23 & 15)) << 23;
    case DTYPE_BF16:
        return (random & 0x807f) | (120 + (random >> 16 & 15)) << 7;
    case DTYPE_F16:
        return (random & 0x83ff) | (random >> 16 & 15) << 10; /* denormals included */
    default:
        return random & 0xff;
    }
}

static void put(void *buffer, enum dtype dtype, uint64_t i, uint32_t bits) {
    if (dtype == DTYPE_F32)
        ((uint32_t *)buffer)[i] = bits;
    else if (dtype == DTYPE_U8)
        ((uint8_t *)buffer)[i] = (uint8_t)bits;
    else
        ((uint16_t *)buffer)[i] = (uint16_t)bits;
}

uint32_t reference_get(const void *buffer, enum dtype dtype, uint64_t i) {
    return dtype == DTYPE_F32 ? ((const uint32_t *)buffer)[i] : ((const uint16_t *)buffer)[i];
}

void reference_fill(void *buffer, enum dtype dtype, uint32_t rank, uint64_t first, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) put(buffer, dtype, i, element(dtype, rank, first + i));
}

void *reference_make(uint64_t count, enum dtype dtype) {
    void *buffer = malloc(count * dtype_bytes(dtype) + 1);
    memset(buffer, 0x5a, count * dtype_bytes(dtype) + 1);
    return buffer;
}

float reference_widen(enum dtype dtype, uint32_t bits) {
    float value;
    if (dtype == DTYPE_F16) {
        int exponent = (int)(bits >> 10 & 31), mantissa = (int)(bits & 1023);
        double magnitude = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
        return (float)(bits & 0x8000 ? -magnitude : magnitude);
    }
    if (dtype == DTYPE_BF16) bits <<= 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t narrow_f16(float value) {
    double magnitude = fabs((double)value);
    uint32_t sign = signbit(value) ? 0x8000 : 0;
    int exponent;
    if (magnitude >= 65520) return sign | 0x7c00;
    frexp(magnitude, &exponent);
    if (exponent < -13) exponent = -13;
    double steps =
        nearbyint(ldexp(magnitude, 11 - exponent)); /* of 2^(exponent - 11): 1024 to 2048, or denormal */
    if (steps == 2048) steps = 1024, exponent++;
    if (steps < 1024) return sign | (uint32_t)steps;
    return sign | (uint32_t)(exponent + 14) << 10 | ((uint32_t)steps - 1024);
}

static uint32_t narrow(enum dtype dtype, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == DTYPE_F32) return bits;
    if (dtype == DTYPE_F16) return narrow_f16(value);
    return (bits >> 16) + ((bits & 0xffff) + (bits >> 16 & 1) > 0x8000);
}

static float sum_of(const uint32_t *ranks, uint32_t members, enum dtype dtype, uint64_t i) {
    volatile float sum = reference_widen(dtype, element(dtype, ranks[0], i));
    for (uint32_t m = 1; m < members; m++) sum = sum + reference_widen(dtype, element(dtype, ranks[m], i));
    return sum;
}

void reference_sum(void *expected, const struct comm_call *call, const struct comm_group *group,
                   uint64_t first, uint64_t count) {
    const uint32_t *ranks = comm_group_ranks(group);
    uint32_t of_node = comm_group_node_members(group), members = comm_group_size(group);
    for (uint64_t i = 0; i < count; i++) {
        volatile float all = sum_of(ranks, of_node, call->dtype, first + i);
        for (uint32_t m = of_node; m < members; m += of_node)
            all = all + sum_of(ranks + m, of_node, call->dtype, first + i);
        float sum = all;
        if (call->add)
            sum = reference_widen(call->target_dtype,
                                  element(call->target_dtype, ranks[comm_group_index(group)] + 1000, i)) +
                  sum;
        put(expected, call->target_dtype, i, narrow(call->target_dtype, sum));
    }
}
