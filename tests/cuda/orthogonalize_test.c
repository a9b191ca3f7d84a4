/* The steps of a whole matrix on a GPU: after each of them the host's bits; and the host's function does the same.
 *   orthogonalize_test [SIDE]    with a side, one square matrix of it alone (on a real GPU: 1000) */
#include "kernels/orthogonalize.h"

#include <stdlib.h>

#include "tests/check.h"
#include "tests/cuda/gpu.h"

#include "kernels/device_work.h"
#include "kernels/matrix_step.h"
#include "tests/kernels/random.h"

enum { ORDINARY, TINY, ANY, FILLS };

static void fill(const struct pair *p, int how, uint64_t *seed) {
    float *x = (float *)(void *)p->host;
    if (how == ANY) {
        pair_fill(p, DTYPE_F32, seed);
        return;
    }
    /* tiny: products are denormal, and sums begin with zeros of both signs */
    for (uint64_t i = 0; i < p->bytes / sizeof *x; i++)
        x[i] = random_uniform(seed) * (how == TINY && i % 3 ? 1e-30f : 1);
    pair_upload(p);
}

static bool step_of(uint32_t i, const struct pair *m, const struct pair *scratch, enum side side,
                    uint64_t rows, uint64_t columns, const struct orthogonalize_options *o,
                    struct matrix_step *out) {
    return orthogonalize_step(i, at(m, side), rows, columns, o, at(scratch, side), out);
}

static void compare(uint64_t rows, uint64_t columns, bool bf16, uint64_t skip, int how) {
    struct orthogonalize_options o = {
        .steps = 1 + (uint32_t)(rows + columns) % 3, .eps = 1e-7f, .scale = 0.7f, .bf16 = bf16};
    uint64_t seed = rows * 1000 + columns + skip, floats = orthogonalize_scratch(rows, columns),
             bytes = rows * columns * sizeof(float);
    struct pair m = pair_new(bytes, skip * sizeof(float)), scratch = pair_new(floats * sizeof(float), 0);
    float *alone = malloc(bytes), *own = aligned_alloc(64, floats * sizeof(float));
    struct matrix_step step;
    int same = 1;
    check_seed(seed);
    fill(&m, how, &seed), fill(&scratch, ORDINARY, &seed);
    memcpy(alone, at(&m, ON_HOST), bytes);
    uint32_t i = 0;
    for (; same && step_of(i, &m, &scratch, ON_HOST, rows, columns, &o, &step); i++) {
        for (int side = ON_GPU; side >= ON_HOST; side--) {
            _Alignas(16) unsigned char argument[MATRIX_ARGUMENT_BYTES];
            step_of(i, &m, &scratch, (enum side)side, rows, columns, &o, &step);
            run_on((enum side)side, matrix_step_kernel(&step, argument), argument);
        }
        /* NaNs between two steps differ: the last step makes them one */
        same = how == ANY || pair_same(&scratch, "scratch memory");
    }
    same &= pair_same(&m, "the matrix") & CHECK(i > 3 + 4 * o.steps);
    orthogonalize(alone, rows, columns, &o, own, 2);
    same &= CHECK_BYTES(alone, at(&m, ON_HOST), bytes);
    if (!same)
        fprintf(stderr, "  %d x %d, bf16 %d, at %d, numbers %d, step %d\n", (int)rows, (int)columns, bf16,
                (int)skip, how, (int)i);
    pair_free(&m), pair_free(&scratch), free(alone), free(own);
}

int main(int argc, char **argv) {
    /* within a tile and across its edges, and of more than one block of the norm */
    static const uint64_t shapes[][2] = {{1, 1},   {1, 9},   {9, 1},    {7, 13},   {13, 7},  {16, 16},
                                         {64, 65}, {70, 33}, {33, 140}, {129, 64}, {64, 128}};
    uint64_t side = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    gpu_open();
    for (int bf16 = 0; bf16 < 2 && side; bf16++) compare(side, side, bf16, 0, ORDINARY);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes && !side; s++)
        for (int how = 0; how < FILLS; how++)
            compare(shapes[s][0], shapes[s][1], (s + (size_t)how) % 2, s % 3, how);
    gpu_close();
    return check_end();
}
