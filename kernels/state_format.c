#include "kernels/state_format.h"

#include "kernels/state_element.h"

#define FORMAT_LOOPS(isa, attribute)                                                                         \
    attribute static void keep_##isa(float *master, uint64_t count) {                                        \
        for (uint64_t i = 0; i < count; i++) master[i] = kept_master(master[i]);                             \
    }                                                                                                        \
    attribute static void join_##isa(float *restrict master, const uint16_t *restrict weight,                \
                                     const uint16_t *restrict low, uint64_t count) {                         \
        for (uint64_t i = 0; i < count; i++) master[i] = master_of(weight[i], low[i]);                       \
    }                                                                                                        \
    attribute static void split_##isa(uint16_t *restrict weight, uint16_t *restrict low,                     \
                                      const float *restrict master, uint64_t count) {                        \
        for (uint64_t i = 0; i < count; i++) {                                                               \
            float kept = kept_master(master[i]);                                                             \
            uint16_t w = bf16_from_f32(kept);                                                                \
            weight[i] = w;                                                                                   \
            low[i] = low_of(kept, w);                                                                        \
        }                                                                                                    \
    }                                                                                                        \
    attribute static void stochastic_##isa(uint16_t *restrict target, const float *restrict source,          \
                                           uint32_t count, uint32_t key, uint32_t first) {                   \
        for (uint32_t i = 0; i < count; i++)                                                                 \
            target[i] = bf16_stochastic_of(source[i], mix_bits((first + i) ^ key));                          \
    }

ISA_EACH(FORMAT_LOOPS)

static void (*const keeps[KERNEL_ISAS])(float *, uint64_t) = ISA_TABLE(keep);
static void (*const joins[KERNEL_ISAS])(float *, const uint16_t *, const uint16_t *,
                                        uint64_t) = ISA_TABLE(join);
static void (*const splits[KERNEL_ISAS])(uint16_t *, uint16_t *, const float *, uint64_t) = ISA_TABLE(split);
static void (*const stochastics[KERNEL_ISAS])(uint16_t *, const float *, uint32_t, uint32_t,
                                              uint32_t) = ISA_TABLE(stochastic);

void master_keep_isa(enum kernel_isa isa, float *master, uint64_t count) { keeps[isa](master, count); }

void master_join_isa(enum kernel_isa isa, float *master, const uint16_t *weight, const uint16_t *low,
                     uint64_t count) {
    joins[isa](master, weight, low, count);
}

void master_split_isa(enum kernel_isa isa, uint16_t *weight, uint16_t *low, const float *master,
                      uint64_t count) {
    splits[isa](weight, low, master, count);
}

void bf16_stochastic_isa(enum kernel_isa isa, uint16_t *target, const float *source, uint64_t count,
                         uint64_t key, uint64_t first) {
    for (uint64_t i = 0; i < count;) {
        uint64_t at = first + i, left = (UINT64_C(1) << 32) - (at & UINT32_MAX), n = count - i;
        if (n > left) n = left;
        if (n > UINT32_MAX / 2) n = UINT32_MAX / 2;
        stochastics[isa](target + i, source + i, (uint32_t)n, block_key(key, at >> 32), (uint32_t)at);
        i += n;
    }
}

void master_keep(float *master, uint64_t count) { master_keep_isa(kernel_isa(), master, count); }

void master_join(float *master, const uint16_t *weight, const uint16_t *low, uint64_t count) {
    master_join_isa(kernel_isa(), master, weight, low, count);
}

void master_split(uint16_t *weight, uint16_t *low, const float *master, uint64_t count) {
    master_split_isa(kernel_isa(), weight, low, master, count);
}

void master_divide(uint16_t *weight, uint16_t *low, const float *any, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        uint32_t u = bits_of(any[i]);
        uint16_t w = (uint16_t)((u + 0x8000) >> 16);
        weight[i] = w;
        if (low) low[i] = low_of(any[i], w);
    }
}
