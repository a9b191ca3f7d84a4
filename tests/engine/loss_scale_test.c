/* The loss scale after each step, by hand from DeepSpeed's rules: with a window of 2 the scale doubles at the
 * third step without overflow in a row, and then at every second one. */
#include "engine/state/loss_scale.h"
#include "tests/check.h"

enum { STEPS_MAX = 12 };

/* Each step: '.' no overflow, 'X' overflow. 0 ends the scales: there the minimum had been reached. */
static const struct sequence {
    const char *name, *steps;
    struct loss_scale start;
    double after[STEPS_MAX];
} sequences[] = {
    {"never",
     ".......",
     {.value = 16, .min = 1, .window = 2, .hysteresis = 2},
     {16, 16, 32, 32, 64, 64, 128}},
    {"never, in DeepSpeed's window",
     "....",
     {.value = 65536, .min = 1, .window = 1000, .hysteresis = 2},
     {65536, 65536, 65536, 65536}},
    {"once", ".X.....", {.value = 16, .min = 1, .window = 2, .hysteresis = 1}, {16, 8, 8, 8, 16, 16, 32}},
    /* The first overflow is allowed; it starts the window anew. */
    {"once, hysteresis 2",
     ".X.....",
     {.value = 16, .min = 1, .window = 2, .hysteresis = 2},
     {16, 16, 16, 16, 32, 32, 64}},
    /* Allowed once; steps between do not restore that: 16 / 2 at step 4, and so on, until 1 at step 10. */
    {"alternate, hysteresis 2",
     ".X.X.X.X.X.X",
     {.value = 16, .min = 1, .window = 2, .hysteresis = 2},
     {16, 16, 16, 8, 8, 4, 4, 2, 2, 1, 1, 0}},
    {"alternate, consecutive",
     ".X.X.X.X",
     {.value = 16, .min = 1, .window = 2, .hysteresis = 2, .consecutive = true},
     {16, 16, 16, 16, 16, 16, 16, 16}},
    /* A window of 1 needs two steps: none of these alone raises the scale. */
    {"alternate, window 1",
     ".X.X..",
     {.value = 16, .min = 1, .window = 1, .hysteresis = 1},
     {16, 8, 8, 4, 4, 8}},
    {"two in a row, consecutive",
     "XX.XX",
     {.value = 16, .min = 1, .window = 9, .hysteresis = 2, .consecutive = true},
     {16, 8, 8, 8, 4}},
    {"always", "XXXXXX", {.value = 16, .min = 1, .window = 2, .hysteresis = 2}, {16, 8, 4, 2, 1, 0}},
    {"always, hysteresis 3",
     "XXXXX",
     {.value = 16, .min = 4, .window = 2, .hysteresis = 3},
     {16, 16, 8, 4, 0}},
    {"always, an odd minimum", "XXXX", {.value = 16, .min = 3, .window = 2, .hysteresis = 1}, {8, 4, 3, 0}},
    /* Doubling restores the allowance: step 5 is allowed, step 6 is not. */
    {"restored by doubling",
     "X...XX",
     {.value = 16, .min = 1, .window = 2, .hysteresis = 2},
     {16, 16, 16, 32, 32, 16}},
    {"not restored by a step", "X.X", {.value = 16, .min = 1, .window = 2, .hysteresis = 2}, {16, 16, 8}},
    {"at most what fp32 holds",
     "..",
     {.value = 0x1p126, .min = 1, .window = 1, .hysteresis = 1},
     {0x1p126, 0x1p127, 0x1p127}},
};

static void follow(const struct sequence *s) {
    struct loss_scale scale = s->start;
    scale.dynamic = true;
    scale.allowed = scale.hysteresis;
    for (size_t i = 0; s->steps[i]; i++) {
        bool lasts = loss_scale_update(&scale, s->steps[i] == 'X');
        if (!CHECK_DOUBLE(lasts ? scale.value : 0, s->after[i], 0))
            fprintf(stderr, "in \"%s\", step %zu\n", s->name, i + 1);
    }
}

static void a_static_scale_stays(void) {
    struct loss_scale scale = {.value = 128, .min = 128, .window = 1, .hysteresis = 1};
    for (int i = 0; i < 6; i++) CHECK(loss_scale_update(&scale, i % 2));
    CHECK_DOUBLE(scale.value, 128, 0);
}

int main(void) {
    for (size_t i = 0; i < sizeof sequences / sizeof *sequences; i++) follow(&sequences[i]);
    a_static_scale_stays();
    return check_end();
}
