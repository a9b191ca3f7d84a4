/* State in fewer bytes: split masters are the masters that are kept, bit for bit; stochastic rounding goes to a neighbour, the
 * right one often enough, and depends on key and element alone. */
#include "kernels/state_format.h"

#include <math.h>

#include "engine/base/numbers/convert.h"
#include "tests/check.h"
#include "tests/kernels/optimizer_run.h"

enum { COUNT = 5000, NUMBERS = 1 << 22 };

static void every_master_comes_back(enum kernel_isa isa) {
    static float master[COUNT], back[COUNT];
    static uint16_t weight[COUNT], low[COUNT], cast_out[COUNT];
    uint64_t seed = 5;
    for (int round = 0; round < NUMBERS / COUNT; round++) {
        for (int i = 0; i < COUNT; i++) master[i] = canonical(float_of((uint32_t)random_u64(&seed)));
        /* What is halfway, the largest number and infinity, on both sides of zero. */
        static const uint32_t edges[] = {0x3f808000, 0x3f807fff, 0x3f808001, 0x7f7fffff, 0x7f800000,
                                         0xff7fffff, 0xff800000, 0x80000000, 0x00000001, 0x80008000,
                                         0x7f7f8000, 0x00008000, 0x007fffff, 0x7fc00000};
        for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) master[i] = float_of(edges[i]);
        master_split_isa(isa, weight, low, master, COUNT);
        master_join_isa(isa, back, weight, low, COUNT);
        cast(cast_out, DTYPE_BF16, master, DTYPE_F32, COUNT);
        master_keep_isa(isa, master, COUNT);
        if (!CHECK_BYTES(back, master, sizeof back) || !CHECK_BYTES(weight, cast_out, sizeof weight)) return;
    }
}

/* Of two neighboring weights' masters one moves, by one unit of fp32 towards zero, and rounds to the same weight. */
static void one_of_131072_moves(enum kernel_isa isa) {
    static float master[131072], kept[131072];
    static uint16_t weight[131072], same[131072];
    static const uint32_t firsts[] = {0x00000000, 0x3f800000, 0x7f7e0000, 0x80000000, 0xc1220000, 0x80fe0000};
    for (size_t f = 0; f < sizeof firsts / sizeof *firsts; f++) {
        uint32_t moved = 0;
        for (uint32_t i = 0; i < 131072; i++) kept[i] = master[i] = float_of(firsts[f] + i);
        master_keep_isa(isa, kept, 131072);
        cast(weight, DTYPE_BF16, master, DTYPE_F32, 131072);
        cast(same, DTYPE_BF16, kept, DTYPE_F32, 131072);
        for (uint32_t i = 0; i < 131072; i++) {
            moved += bits_of(kept[i]) != bits_of(master[i]);
            CHECK(bits_of(kept[i]) == bits_of(master[i]) || bits_of(kept[i]) == firsts[f] + 0x7fff);
        }
        CHECK_INT(moved, 1);
        CHECK_INT(bits_of(kept[0x8000]), firsts[f] + 0x7fff);
        CHECK_BYTES(same, weight, sizeof weight);
    }
}

/* Divided, every number comes back, what is halfway too; masters are divided as they are split. */
static void any_number_comes_back(void) {
    static float any[131072], back[131072];
    static uint16_t weight[131072], low[131072], alone[131072], split_weight[131072], split_low[131072];
    static const uint32_t firsts[] = {0x00000000, 0x3f800000, 0x7f7e0000, 0x80000000, 0xc1220000, 0x80fe0000};
    for (size_t f = 0; f < sizeof firsts / sizeof *firsts; f++) {
        for (uint32_t i = 0; i < 131072; i++) any[i] = float_of(firsts[f] + i);
        master_divide(weight, low, any, 131072);
        master_divide(alone, NULL, any, 131072);
        master_join(back, weight, low, 131072);
        CHECK_BYTES(back, any, sizeof back);
        CHECK_BYTES(alone, weight, sizeof weight);
        CHECK_INT(weight[0x8000], (firsts[f] >> 16) + 1);
        master_keep(any, 131072);
        master_divide(weight, low, any, 131072);
        master_split(split_weight, split_low, any, 131072);
        CHECK_BYTES(weight, split_weight, sizeof weight);
        CHECK_BYTES(low, split_low, sizeof low);
    }
}

/* One of the two bf16 numbers around x, itself where it is one. */
static int is_neighbour(float x, uint16_t got) {
    uint32_t u = bits_of(x);
    return got == u >> 16 || (u & 0xffff && got == (u >> 16) + 1);
}

static void rounding_goes_to_a_neighbour(enum kernel_isa isa) {
    static float source[COUNT];
    static uint16_t target[COUNT], again[COUNT];
    uint64_t seed = 9;
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < COUNT; i++) source[i] = float_of((uint32_t)random_u64(&seed));
        source[0] = INFINITY, source[1] = -INFINITY, source[2] = NAN, source[3] = 0, source[4] = -0.0f;
        bf16_stochastic_isa(isa, target, source, COUNT, 77 + (uint64_t)round, 123);
        bf16_stochastic_isa(KERNEL_SCALAR, again, source, COUNT, 77 + (uint64_t)round, 123);
        CHECK_BYTES(target, again, sizeof target);
        for (int i = 0; i < COUNT; i++) {
            bool fine =
                isnan(source[i]) ? isnan(f32_from_bf16(target[i])) : is_neighbour(source[i], target[i]);
            if (!CHECK(fine)) return;
        }
    }
}

/* The mean of many roundings is the number: within 6 standard deviations of the mean of COUNT coin tosses. */
static void rounding_is_fair(void) {
    static float source[COUNT];
    static uint16_t target[COUNT];
    for (uint32_t low = 0x1000; low < 0x10000; low += 0x3000) {
        uint32_t up = 0;
        for (int i = 0; i < COUNT; i++) source[i] = float_of(0x3f800000 | low);
        for (uint64_t key = 1; key <= 20; key++) {
            bf16_stochastic_isa(kernel_isa(), target, source, COUNT, key << 33, 0);
            for (int i = 0; i < COUNT; i++) up += target[i] == 0x3f81;
        }
        double p = low / 65536.0, mean = (double)up / (20 * COUNT);
        CHECK(fabs(mean - p) < 6 * sqrt(p * (1 - p) / (20 * COUNT)));
    }
}

/* Elements keep their random bits wherever a call begins, also past 2^32 elements. */
static void cuts_do_not_matter(void) {
    static float source[COUNT];
    static uint16_t whole[COUNT], pieces[COUNT], other[COUNT];
    static const uint64_t firsts[] = {0, 12345, (UINT64_C(1) << 32) - 1000, UINT64_C(5) << 32};
    uint64_t seed = 3;
    for (int i = 0; i < COUNT; i++) source[i] = random_uniform(&seed);
    for (int f = 0; f < 4; f++) {
        bf16_stochastic_isa(kernel_isa(), whole, source, COUNT, 42, firsts[f]);
        bf16_stochastic_isa(kernel_isa(), pieces, source, 1777, 42, firsts[f]);
        bf16_stochastic_isa(kernel_isa(), pieces + 1777, source + 1777, COUNT - 1777, 42, firsts[f] + 1777);
        bf16_stochastic_isa(kernel_isa(), other, source, COUNT, 43, firsts[f]);
        CHECK_BYTES(pieces, whole, sizeof whole);
        CHECK(memcmp(other, whole, sizeof whole) != 0);
    }
}

static struct optimizer_args args_of(const struct shard *s, const struct optimizer *optimizer,
                                     const struct optimizer_scalars *scalars, uint32_t threads) {
    return (struct optimizer_args){.count = s->count,
                                   .master = s->master,
                                   .state = {s->state[0], optimizer->state_count > 1 ? s->state[1] : NULL},
                                   .gradient = s->gradient,
                                   .gradient_dtype = DTYPE_BF16,
                                   .gradient_scale = 0.37f,
                                   .out = s->out,
                                   .out_dtype = DTYPE_BF16,
                                   .scalars = scalars,
                                   .threads = threads};
}

/* Three steps with split masters are three steps with whole ones. */
static void split_masters_train_alike(const struct optimizer *optimizer, enum kernel_isa isa, int any) {
    enum { ELEMENTS = 70001 };
    struct shard whole = shard_new(ELEMENTS, 0), split = shard_new(ELEMENTS, 0);
    shard_fill(&whole, 8, DTYPE_BF16, any), shard_fill(&split, 8, DTYPE_BF16, any);
    for (int i = 0; i < ELEMENTS; i++) whole.master[i] = split.master[i] = canonical(whole.master[i]);
    master_keep(whole.master, ELEMENTS);
    uint16_t *low = malloc(ELEMENTS * sizeof *low);
    master_split(split.out, low, split.master, ELEMENTS);
    for (uint64_t step = 1; step <= 3; step++) {
        struct optimizer_params params = params_of(optimizer, 1);
        struct optimizer_scalars scalars;
        optimizer_prepare(optimizer, &params, step, &scalars);
        struct optimizer_args a = args_of(&whole, optimizer, &scalars, 1),
                              b = args_of(&split, optimizer, &scalars, 2);
        b.master = NULL, b.master_low = low;
        optimizer_update_isa(optimizer, isa, &a);
        optimizer_update_isa(optimizer, isa, &b);
    }
    master_join(split.master, split.out, low, ELEMENTS);
    CHECK_BYTES(split.out, whole.out, ELEMENTS * 2);
    CHECK_BYTES(split.master, whole.master, ELEMENTS * 4);
    CHECK_BYTES(split.state[0], whole.state[0], ELEMENTS * 4);
    CHECK_BYTES(split.state[1], whole.state[1], ELEMENTS * 4);
    free(low);
    shard_free(&whole), shard_free(&split);
}

/* A step on bf16 moments is a step on them widened, rounded afterwards. */
static void narrow_moments(const struct optimizer *optimizer) {
    enum { ELEMENTS = 70001, FIRST = 999 };
    struct shard wide = shard_new(ELEMENTS, 0), narrow = shard_new(ELEMENTS, 0);
    static uint16_t moment[2][ELEMENTS], expected[ELEMENTS];
    shard_fill(&wide, 4, DTYPE_BF16, 0), shard_fill(&narrow, 4, DTYPE_BF16, 0);
    for (int k = 0; k < 2; k++) {
        cast(moment[k], DTYPE_BF16, wide.state[k], DTYPE_F32, ELEMENTS);
        cast(wide.state[k], DTYPE_F32, moment[k], DTYPE_BF16, ELEMENTS);
    }
    struct optimizer_params params = params_of(optimizer, 1);
    struct optimizer_scalars scalars;
    optimizer_prepare(optimizer, &params, 2, &scalars);
    struct optimizer_args a = args_of(&wide, optimizer, &scalars, 1),
                          b = args_of(&narrow, optimizer, &scalars, 2);
    b.state[0] = moment[0], b.state[1] = b.state[1] ? moment[1] : NULL;
    b.state_dtype = DTYPE_BF16, b.rounding_key = 1234, b.first = FIRST;
    optimizer_update(optimizer, &a);
    optimizer_update(optimizer, &b);
    CHECK_BYTES(narrow.master, wide.master, ELEMENTS * 4);
    for (uint32_t k = 0; k < optimizer->state_count; k++) {
        bf16_stochastic_isa(kernel_isa(), expected, wide.state[k], ELEMENTS, 1234 + k, FIRST);
        CHECK_BYTES(moment[k], expected, sizeof expected);
    }
    shard_free(&wide), shard_free(&narrow);
}

int main(void) {
    for (enum kernel_isa isa = 0; isa < KERNEL_ISAS; isa++) {
        if (!kernel_isa_present(isa)) continue;
        every_master_comes_back(isa);
        one_of_131072_moves(isa);
        rounding_goes_to_a_neighbour(isa);
        for (const struct optimizer *const *each = optimizers; *each; each++)
            for (int any = 0; any < 2; any++) split_masters_train_alike(*each, isa, any);
    }
    any_number_comes_back();
    rounding_is_fair();
    cuts_do_not_matter();
    for (const struct optimizer *const *each = optimizers; *each; each++) narrow_moments(*each);
    return check_end();
}
