/* How a shard is cut into calls and threads does not change its bits. optimizer_split_test [OPTIMIZER] */
#include "kernels/optimizer.h"

#include "tests/check.h"
#include "tests/kernels/optimizer_run.h"

static void compare(const struct shard *got, const struct shard *whole) {
    CHECK_BYTES(got->master, whole->master, whole->count * 4);
    CHECK_BYTES(got->state[0], whole->state[0], whole->count * 4);
    CHECK_BYTES(got->state[1], whole->state[1], whole->count * 4);
    CHECK_BYTES(got->out, whole->out, whole->count * 2);
}

static void two_pieces_are_one(const struct optimizer *optimizer, const struct optimizer_scalars *scalars,
                               enum dtype gradient) {
    static const struct {
        uint64_t count, cut;
    } cases[] = {{22, 1}, {128, 64}, {1024, 1023}, {5000, 1}, {5000, 1024}, {5000, 4097}, {300001, 150001}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct shard whole = shard_new(cases[c].count, 0), pieces = shard_new(cases[c].count, 0);
        shard_fill(&whole, c, gradient, 0), shard_fill(&pieces, c, gradient, 0);
        shard_update(&whole, optimizer, kernel_isa(), scalars, gradient, DTYPE_BF16, 0, cases[c].count, 1);
        shard_update(&pieces, optimizer, kernel_isa(), scalars, gradient, DTYPE_BF16, cases[c].cut,
                     cases[c].count - cases[c].cut, 1);
        shard_update(&pieces, optimizer, kernel_isa(), scalars, gradient, DTYPE_BF16, 0, cases[c].cut, 1);
        compare(&pieces, &whole);
        shard_free(&whole), shard_free(&pieces);
    }
}

static void threads_do_not_matter(const struct optimizer *optimizer, const struct optimizer_scalars *scalars,
                                  enum dtype gradient) {
    enum { COUNT = 200 * 1024 + 1 }; /* enough for three threads */
    struct shard one = shard_new(COUNT, 0);
    shard_fill(&one, 3, gradient, 0);
    shard_update(&one, optimizer, kernel_isa(), scalars, gradient, DTYPE_F16, 0, COUNT, 1);
    for (uint32_t threads = 2; threads <= 3; threads++) {
        struct shard more = shard_new(COUNT, 0);
        shard_fill(&more, 3, gradient, 0);
        shard_update(&more, optimizer, kernel_isa(), scalars, gradient, DTYPE_F16, 0, COUNT, threads);
        compare(&more, &one);
        shard_free(&more);
    }
    shard_free(&one);
}

static void nothing_is_touched_without_elements(const struct optimizer *optimizer,
                                                const struct optimizer_scalars *scalars) {
    optimizer_update(optimizer, &(struct optimizer_args){.scalars = scalars, .threads = 4});
}

int main(int argc, char **argv) {
    static const enum dtype gradients[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (const struct optimizer *const *each = optimizers; *each; each++) {
        if (argc > 1 && *each != optimizer_find(argv[1])) continue;
        struct optimizer_params params = params_of(*each, 1);
        struct optimizer_scalars scalars;
        optimizer_prepare(*each, &params, 3, &scalars);
        for (int g = 0; g < 3; g++) {
            two_pieces_are_one(*each, &scalars, gradients[g]);
            threads_do_not_matter(*each, &scalars, gradients[g]);
        }
        nothing_is_touched_without_elements(*each, &scalars);
    }
    return check_end();
}
