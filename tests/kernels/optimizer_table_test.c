/* The table: names, defaults, states; what the formulas say in special cases. optimizer_table_test [ROWS] */
#include "kernels/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static const char *fallback(const struct optimizer *optimizer, const char *key) {
    for (int i = 0; i < OPTIMIZER_KEYS_MAX && optimizer->keys[i].name; i++)
        if (strcmp(optimizer->keys[i].name, key) == 0) return optimizer->keys[i].fallback;
    return "0";
}

/* What a configuration leaves out means the same as in a program without one. */
static void defaults_are_those_of_the_keys(void) {
    for (const struct optimizer *const *each = optimizers; *each; each++) {
        const struct optimizer_params *p = &(*each)->defaults;
        double beta1 = 0, beta2 = 0;
        sscanf(fallback(*each, "betas"), "[%lf, %lf]", &beta1, &beta2);
        int same = CHECK_DOUBLE(p->lr, atof(fallback(*each, "lr")), 0);
        same &= CHECK_DOUBLE(p->beta1, beta1, 0) && CHECK_DOUBLE(p->beta2, beta2, 0);
        same &= CHECK_DOUBLE(p->eps, atof(fallback(*each, "eps")), 0);
        same &= CHECK_DOUBLE(p->weight_decay, atof(fallback(*each, "weight_decay")), 0);
        same &= CHECK_DOUBLE(p->momentum, atof(fallback(*each, "momentum")), 0);
        same &= CHECK_DOUBLE(p->dampening, atof(fallback(*each, "dampening")), 0);
        same &= CHECK_DOUBLE(p->lr_decay, atof(fallback(*each, "lr_decay")), 0);
        same &= CHECK_DOUBLE(p->max_coeff, atof(fallback(*each, "max_coeff")), 0);
        same &= CHECK_DOUBLE(p->min_coeff, atof(fallback(*each, "min_coeff")), 0);
        same &= CHECK_INT(p->nesterov, strcmp(fallback(*each, "nesterov"), "true") == 0);
        same &= CHECK_INT(p->bias_correction, strcmp(fallback(*each, "bias_correction"), "true") == 0);
        if (!same) fprintf(stderr, "in %s\n", (*each)->title);
    }
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
    CHECK_INT(names_are_found(), argc > 1 ? atoi(argv[1]) : 7);
    defaults_are_those_of_the_keys();
    plain_sgd_has_no_state();
    lion_takes_the_sign();
    late_steps_are_finite();
    return check_end();
}
