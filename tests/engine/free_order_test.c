/* Passes in free order. Where the declared order can express the program, the bits are those of the declared order. A program that
 * it cannot express, with forwards and backwards that run twice, has the same weights at every stage. */
#include "tests/check.h"
#include "tests/engine/toy_trainer.h"

static struct toy_result got, first, declared;

static const char *const types[] = {"fp32", "bf16"};

static void describe(const struct toy_setup *s) {
    fprintf(stderr, "stage %u, %u ranks, %u micro-steps, mode %s, memory %d, %s\n", s->stage, s->ranks,
            s->micro_steps, s->mode, s->memory, types[s->compute]);
}

static void plan_equals_memory(void) {
    for (int t = 0; t < ZERO_TIERS; t++) CHECK_INT(got.measured[t], got.planned[t]);
}

static void the_declared_order(void) {
    struct toy_setup s = toy_setup_default();
    s.free_order = 1;
    s.steps = 8;
    for (s.stage = 0; s.stage <= 3; s.stage++)
        for (s.ranks = 1; s.ranks <= 3; s.ranks++)
            for (s.micro_steps = 1; s.micro_steps <= 2; s.micro_steps++) {
                s.mode = s.ranks == 2 ? "every" : "last";
                s.memory = s.ranks == 3 ? TOY_ADDS : TOY_SLOTS;
                s.compute = s.ranks == 3 ? ZERO_BF16 : ZERO_F32;
                s.offload = s.micro_steps == 2 ? "cpu" : "none";
                s.evaluate = s.ranks == 1;
                s.recompute = s.stage % 3;
                if (s.stage < 3 && s.ranks == 2) s.memory = TOY_SPANS_ADD;
                toy_train(&s, &got);
                toy_oracle(&s, &declared);
                plan_equals_memory();
                if (!(CHECK_STRING(got.error, "") &
                      CHECK_BYTES(got.weights, declared.weights, sizeof got.weights)))
                    describe(&s);
            }
}

/* Twice the gradient has twice the norm, and is clipped to the same. */
static void near_the_declared_order(struct toy_setup s) {
    s.free_order = s.twice = 0;
    toy_train(&s, &declared);
    CHECK_DOUBLE(first.norm[0], 2 * declared.norm[0], 1e-5);
    CHECK_DOUBLE(first.loss[s.steps - 1], declared.loss[s.steps - 1], 1e-4);
}

static void every_stage_has_the_same_weights(void) {
    struct toy_setup s = toy_setup_default();
    s.free_order = s.twice = 1;
    s.steps = 8;
    s.clip = 0.001;
    for (s.micro_steps = 1; s.micro_steps <= 2; s.micro_steps++)
        for (s.stage = 0; s.stage <= 3; s.stage++) {
            s.mode = "last";
            toy_train(&s, &got);
            if (!s.stage) first = got;
            if (!s.stage) near_the_declared_order(s);
            plan_equals_memory();
            if (!(CHECK_STRING(got.error, "") & CHECK_STRING(got.hash, first.hash))) describe(&s);
        }
}

int main(void) {
    the_declared_order();
    every_stage_has_the_same_weights();
    return check_end();
}
