/* The table: names, defaults, states; what the formulas say in special cases. optimizer_table_test [ROWS] */
#include "kernels/optimizer.h"

#include <math.h>
#include <stdlib.h>

#include "tests/check.h"

static int names_are_found(void) {
    CHECK_STRING(optimizer_find("AdamW")->name, "adamw");
    CHECK_STRING(optimizer_find("ADAGRAD")->title, "Adagrad");
    CHECK(optimizer_find("adamx") == NULL);
    CHECK(optimizer_find("") == NULL);
    CHECK(optimizer_find(NULL) == NULL);
    int count = 0;
    for (const struct optimizer *const *each = optimizers; *each; each++, count++) {
        CHECK(optimizer_find((*each)->title) == *each);
        CHECK((*each)->state_count <= OPTIMIZER_STATES_MAX);
        for (uint32_t s = 0; s < (*each)->state_count; s++) CHECK((*each)->state_names[s] != NULL);
        for (int isa = 0; isa < KERNEL_ISAS; isa++)
            CHECK(!kernel_isa_present((enum kernel_isa)isa) || (*each)->update[isa]);
    }
    return count;
}

static void plain_sgd_has_no_state(void) {
    const struct optimizer *sgd = optimizer_find("sgd");
    struct optimizer_params params = sgd->defaults;
    CHECK_INT(optimizer_states_used(sgd, &params), 0);
    params.momentum = 0.9;
    CHECK_INT(optimizer_states_used(sgd, &params), 1);
    CHECK_INT(optimizer_states_used(optimizer_find("adamw"), &params), 2);
    params.momentum = 0, params.lr = 0.5;
    struct optimizer_scalars scalars;
    optimizer_prepare(sgd, &params, 1, &scalars);
    float weight = 1, gradient = 0.5f;
    optimizer_update(sgd, &(struct optimizer_args){.count = 1,
                                                   .master = &weight,
                                                   .gradient = &gradient,
                                                   .gradient_scale = 1,
                                                   .scalars = &scalars,
                                                   .threads = 1});
    CHECK_DOUBLE(weight, 0.75, 0);
}

static void lion_takes_the_sign(void) {
    const struct optimizer *lion = optimizer_find("lion");
    struct optimizer_params params = lion->defaults;
    params.lr = 0.25;
    struct optimizer_scalars scalars;
    optimizer_prepare(lion, &params, 1, &scalars);
    float weight[4] = {1, 1, 1, 1}, m[4] = {0}, gradient[4] = {1e-30f, -3, 0, NAN};
    optimizer_update(lion, &(struct optimizer_args){.count = 4,
                                                    .master = weight,
                                                    .state = {m},
                                                    .gradient = gradient,
                                                    .gradient_scale = 1,
                                                    .scalars = &scalars,
                                                    .threads = 1});
    CHECK_DOUBLE(weight[0], 0.75, 0);
    CHECK_DOUBLE(weight[1], 1.25, 0);
    CHECK_DOUBLE(weight[2], 1, 0);
    CHECK(isnan(weight[3]));
}

/* After many steps both corrections are 1: the powers must not overflow or go negative. */
static void late_steps_are_finite(void) {
    const struct optimizer *adamw = optimizer_find("adamw");
    struct optimizer_scalars now, later;
    optimizer_prepare(adamw, &adamw->defaults, 1000000, &now);
    optimizer_prepare(adamw, &adamw->defaults, UINT64_MAX, &later);
    CHECK_BYTES(&now, &later, sizeof now);
}

int main(int argc, char **argv) {
    CHECK_INT(names_are_found(), argc > 1 ? atoi(argv[1]) : 5);
    plain_sgd_has_no_state();
    lion_takes_the_sign();
    late_steps_are_finite();
    return check_end();
}
