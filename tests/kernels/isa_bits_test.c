/* Every optimizer gives the same bits with every instruction set, over numbers of every kind. */
#include "kernels/optimizer.h"

#include "tests/check.h"
#include "tests/kernels/optimizer_run.h"
#include "tests/seeds.h"

static const uint64_t counts[] = {1, 22, 64, 128, 1024, 5000, (1 << 20) + 1};
static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static int not_the_one_nan(const float *x, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        if (x[i] != x[i] && bits != 0x7fc00000) return 1;
    }
    return 0;
}

/* `leaves`: the row leaves the weights. */
static void compare(const struct optimizer *optimizer, enum kernel_isa isa, int form, uint64_t count,
                    uint64_t offset, enum dtype gradient, enum dtype out, int leaves) {
    struct optimizer_params params = params_of(optimizer, form);
    struct optimizer_scalars scalars;
    struct shard plain = shard_new(count, offset), fast = shard_new(count, offset);
    uint64_t seed = count * 31 + offset * 7 + (uint64_t)form;
    check_seed(seed);
    shard_fill(&plain, seed, gradient, 1);
    shard_fill(&fast, seed, gradient, 1);
    for (uint64_t step = 1; step <= 2; step++) {
        optimizer_prepare(optimizer, &params, step, &scalars);
        shard_update(&plain, optimizer, KERNEL_SCALAR, &scalars, gradient, out, 0, count, 1);
        shard_update(&fast, optimizer, isa, &scalars, gradient, out, 0, count, 1);
    }
    int same = CHECK_BYTES(fast.master + offset, plain.master + offset, count * 4) &
               CHECK_BYTES((char *)fast.out + offset * dtype_bytes(out),
                           (char *)plain.out + offset * dtype_bytes(out), count * dtype_bytes(out));
    /* the states of an optimizer of matrices or tensors are those of the row before */
    uint32_t states = optimizer->scope != SCOPE_ELEMENT ? 0 : optimizer_states_used(optimizer, &params);
    for (uint32_t s = 0; s < states; s++)
        same &= CHECK_BYTES(fast.state[s] + offset, plain.state[s] + offset, count * 4) &
                CHECK(!not_the_one_nan(fast.state[s] + offset, count));
    same &= leaves || CHECK(!not_the_one_nan(fast.master + offset, count));
    if (!same)
        fprintf(stderr, "  %s, %s, form %d, %d elements at %d, gradient %s, out %s\n", optimizer->name,
                kernel_isa_name(isa), form, (int)count, (int)offset, dtype_name(gradient), dtype_name(out));
    shard_free(&plain), shard_free(&fast);
}

/* Once per form; in a short run once. */
static bool takes_largest(int form, int g, uint64_t offset) {
    return g == form && offset == 1 && (form == 0 || seeds_divisor() == 1);
}

static void compare_all(const struct optimizer *optimizer, enum kernel_isa isa, int leaves) {
    for (int form = 0; form < PARAM_FORMS; form++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (int g = 0; g < 3; g++)
                for (uint64_t offset = 0; offset < 3; offset++)
                    if (counts[c] <= 5000 || takes_largest(form, g, offset))
                        compare(optimizer, isa, form, counts[c], offset, dtypes[g], dtypes[(g + offset) % 3],
                                leaves);
}

int main(int argc, char **argv) {
    for (int isa = KERNEL_SCALAR + 1; isa < KERNEL_ISAS; isa++) {
        if (!kernel_isa_present((enum kernel_isa)isa)) {
            fprintf(stderr, "%s: not on this CPU, skipped\n", kernel_isa_name((enum kernel_isa)isa));
            continue;
        }
        for (const struct optimizer *const *each = optimizers; *each; each++)
            if (argc == 1 || *each == optimizer_find(argv[1])) {
                int leaves = (*each)->scope == SCOPE_TENSOR;
                compare_all(*each, (enum kernel_isa)isa, 0);
                if ((*each)->before) compare_all((*each)->before, (enum kernel_isa)isa, leaves);
                if ((*each)->direction) compare_all((*each)->direction, (enum kernel_isa)isa, 0);
            }
    }
    return check_end();
}
