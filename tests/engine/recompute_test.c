/* Recomputation: the same bytes as without, at every stage; no gather more than a segment needs, none where units are
 * recomputed one by one; the order of calls. The toy drops its activations, so that only a recomputation has them. */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"

static struct toy_result plain_run, again;

/* One setup with each way to recompute, against none. */
static void same_bytes(struct toy_setup s) {
    s.recompute = 0;
    toy_train(&s, &plain_run);
    CHECK_STRING(plain_run.error, "");
    for (s.recompute = 1; s.recompute <= TOY_BLOCKS; s.recompute++) {
        toy_train(&s, &again);
        int same = CHECK_STRING(again.error, "") & CHECK_STRING(again.hash, plain_run.hash) &
                   CHECK_BYTES(again.weights, plain_run.weights, sizeof again.weights) &
                   CHECK_BYTES(again.loss, plain_run.loss, sizeof again.loss);
        if (!same)
            fprintf(stderr, "in stage %u, ranks %u, depth %u, micro-steps %u, threshold %u, segments of %u\n",
                    s.stage, s.ranks, s.depth, s.micro_steps, s.threshold, s.recompute);
    }
}

static void stages(void) {
    struct toy_setup s = toy_setup_default();
    s.steps = 5;
    for (s.stage = 0; s.stage <= 3; s.stage++)
        for (s.depth = 0; s.depth <= 2; s.depth++)
            for (s.micro_steps = 1; s.micro_steps <= 2; s.micro_steps++) {
                s.threshold = s.depth == 1 ? 10 : 0;
                s.compute = s.micro_steps == 1 ? ZERO_F32 : ZERO_BF16;
                s.ranks = 1 + (s.depth + s.micro_steps) % 3;
                same_bytes(s);
            }
}

/* A micro-step that skips a block, be it a segment's first, middle or last. */
static void skips(void) {
    struct toy_setup s = toy_setup_default();
    s.steps = 4, s.threshold = 0, s.stage = 3, s.micro_steps = 2;
    for (s.depth = 0; s.depth <= 2; s.depth++)
        for (s.skip_unit = 1; s.skip_unit <= TOY_BLOCKS; s.skip_unit++) same_bytes(s);
}

static void whereabouts(void) {
    struct toy_setup s = toy_setup_default();
    s.steps = 5, s.threshold = 0;
    for (s.stage = 2; s.stage <= 3; s.stage++) {
        s.skip_unit = 2, s.micro_steps = 2; /* the first micro-step skips a block */
        same_bytes(s);
        s.skip_unit = -1, s.evaluate = 1;
        same_bytes(s);
        s.evaluate = 0, s.memory = s.stage == 3 ? TOY_GIVEN : TOY_SPANS;
        same_bytes(s);
        s.memory = TOY_SLOTS, s.micro_steps = 1;
    }
    s.stage = 3, s.tiers = "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}";
    for (s.depth = 0; s.depth <= 2; s.depth++) same_bytes(s);
}

/* Limits on elements also hold for recomputed units, and change no bit. Gathered units take no more memory at a time,
 * and less if no unit may be gathered ahead. */
static void bounds(void) {
    static const char *const keys[] = {"stage3_max_live_parameters", "stage3_prefetch_bucket_size"};
    struct toy_setup s = toy_setup_default();
    char tiers[128];
    s.steps = 3, s.threshold = 0, s.stage = 3, s.micro_steps = 2;
    for (int kept = 0; kept < 2; kept++)
        for (uint32_t bound = 0; bound <= 300; bound += 60) {
            uint64_t most[1 + TOY_BLOCKS];
            s.comm = kept ? ", \"reshard_after_forward\": false" : NULL;
            for (s.depth = 2, s.recompute = 1; s.recompute <= TOY_BLOCKS; s.recompute++)
                toy_train(&s, &again), most[s.recompute] = again.plan.gathered_bytes;
            s.tiers = tiers;
            snprintf(tiers, sizeof tiers, "\"%s\": %u", keys[!kept && bound % 120], bound);
            s.skip_unit = bound ? (int)(bound / 60) % (1 + TOY_BLOCKS) - 1 : -1;
            if (s.skip_unit == 0) s.skip_unit = -1;
            same_bytes(s);
            for (s.recompute = 1; s.recompute <= TOY_BLOCKS; s.recompute++) {
                toy_train(&s, &again);
                CHECK(again.plan.gathered_bytes <= most[s.recompute]);
                CHECK(bound || again.plan.gathered_bytes < most[s.recompute]);
                for (int t = 0; t < ZERO_TIERS; t++) CHECK_INT(again.measured[t], again.planned[t]);
            }
            s.tiers = NULL;
        }
}

/* Per step and rank: the last of a segment's n units stays for its backward, and as many units before it as gathers
 * look ahead; the others are gathered once more. The bytes read from the drive equal the plan. */
static void traffic(void) {
    struct toy_setup s = toy_setup_default();
    s.stage = 3, s.threshold = 0, s.steps = 4;
    for (s.depth = 0; s.depth <= 2; s.depth++) {
        uint64_t calls = 0, gathered = 0;
        for (s.recompute = 0; s.recompute <= TOY_BLOCKS; s.recompute++) {
            toy_train(&s, &again);
            CHECK_STRING(again.error, "");
            if (!s.recompute) calls = again.last.gather_calls, gathered = again.plan.gathered_bytes;
            uint64_t stay = 1 + s.depth, more = s.recompute > stay ? s.recompute - stay : 0;
            CHECK_INT(again.last.gather_calls, calls + more * s.steps);
            if (s.recompute == 1) CHECK_INT(again.plan.gathered_bytes, gathered);
        }
    }
    s.depth = 1, s.flush = 1, s.tiers = "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}";
    for (s.recompute = 0; s.recompute <= TOY_BLOCKS; s.recompute++) {
        toy_train(&s, &again);
        CHECK_STRING(again.error, "");
        CHECK_INT(again.last.drive_read_bytes - again.first.drive_read_bytes,
                  (s.steps - 1) * again.plan.drive_read_bytes);
    }
}

/* ---- the order of calls ---- */

static const struct plain_param params[] = {{"a", "a.w", 64, 0, NULL},
                                            {"b", "b.w", 64, 0, NULL},
                                            {"c", "c.w", 64, 0, NULL},
                                            {"d", "d.w", 64, 0, NULL}};

static void refused(zero_status got, zero_status expected, const char *part1, const char *part2) {
    CHECK_INT(got, expected);
    CHECK_CONTAINS(zero_last_error(), part1);
    CHECK_CONTAINS(zero_last_error(), part2);
}

/* A segment's last unit alone: the others have no room beside it. */
static void last_first(struct plain *p) {
    CHECK_INT(zero_micro_begin(p->engine, ZERO_TRAIN), ZERO_OK);
    for (uint32_t u = 0; u < 4; u++) CHECK_INT(plain_forward(p, u), ZERO_OK);
    CHECK_INT(plain_backward(p, 3, 0), ZERO_OK);
    CHECK_INT(plain_forward(p, 2), ZERO_OK);
    for (uint32_t u = 0; u < 2; u++)
        refused(zero_forward_begin(p->unit[u]), ZERO_E_ORDER, p->param[u].unit, "\"c\" has been recomputed");
    CHECK_INT(plain_backward(p, 2, 0), ZERO_OK);
    CHECK_INT(plain_forward(p, 1), ZERO_OK);
    CHECK_INT(plain_backward(p, 1, 0), ZERO_OK);
    CHECK_INT(plain_backward(p, 0, 0), ZERO_OK);
    CHECK_INT(zero_engine_step(p->engine, NULL), ZERO_OK);
}

static void calls(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    const char *begin = "zero_forward_begin", *add = "zero_engine_add_segment";
    if (!CHECK(engine) || !CHECK_INT(plain_declare(&p, engine, params, 4), ZERO_OK)) return;
    refused(zero_engine_add_segment(p.unit[2], p.unit[1]), ZERO_E_ARGUMENT, add, "not added before");
    CHECK_INT(zero_engine_add_segment(p.unit[0], p.unit[2]), ZERO_OK);
    refused(zero_engine_add_segment(p.unit[2], p.unit[3]), ZERO_E_ARGUMENT, "\"c\"", "another segment");
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    refused(zero_engine_add_segment(p.unit[3], p.unit[3]), ZERO_E_ORDER, add, "committed");
    CHECK_INT(zero_engine_fill(engine, toy_fill, NULL), ZERO_OK);
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    for (uint32_t u = 0; u < 4; u++) CHECK_INT(plain_forward(&p, u), ZERO_OK);
    refused(zero_forward_begin(p.unit[0]), ZERO_E_ORDER, begin,
            "not declared as one segment"); /* the next backward is that of "d" */
    CHECK_INT(plain_forward(&p, 3), ZERO_OK);
    CHECK_INT(plain_backward(&p, 3, 0), ZERO_OK);
    refused(zero_forward_begin(p.unit[3]), ZERO_E_ORDER, begin, "its turn in this pass is over");
    CHECK_INT(plain_forward(&p, 0), ZERO_OK);
    refused(zero_forward_begin(p.unit[2]), ZERO_E_ORDER, begin, "expects unit \"b\"");
    refused(zero_backward_begin(p.unit[2]), ZERO_E_ORDER, "\"c\"", "expects unit \"b\"");
    CHECK_INT(plain_forward(&p, 1), ZERO_OK);
    CHECK_INT(zero_forward_begin(p.unit[2]), ZERO_OK);
    refused(zero_backward_begin(p.unit[2]), ZERO_E_ORDER, "\"c\"", "still in its forward");
    refused(zero_backward_end(p.unit[2]), ZERO_E_ORDER, "\"c\"", "has not been called");
    CHECK_INT(zero_forward_end(p.unit[2]), ZERO_OK);
    refused(zero_forward_begin(p.unit[0]), ZERO_E_ORDER, "\"a\"", "\"c\" has been recomputed");
    CHECK_INT(plain_forward(&p, 2), ZERO_OK); /* alone */
    CHECK_INT(plain_backward(&p, 2, 0), ZERO_OK);
    refused(zero_forward_begin(p.unit[0]), ZERO_E_ORDER, "\"a\"", "not declared as one segment");
    CHECK_INT(plain_forward(&p, 1), ZERO_OK); /* a second time, by itself */
    CHECK_INT(plain_backward(&p, 1, 0), ZERO_OK);
    CHECK_INT(plain_backward(&p, 0, 0), ZERO_OK); /* from what the segment left */
    refused(zero_forward_begin(p.unit[0]), ZERO_E_ORDER, begin, "its turn in this pass is over");
    CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
    last_first(&p);
}

/* One rank that declares otherwise. */
static void differs(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    if (!CHECK(engine) || !CHECK_INT(plain_declare(&p, engine, params, 4), ZERO_OK)) return;
    if (rank) CHECK_INT(zero_engine_add_segment(p.unit[0], p.unit[1]), ZERO_OK);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_E_DIVERGED);
}

int main(void) {
    char json[256];
    stages();
    skips();
    whereabouts();
    bounds();
    traffic();
    for (int stage = 0; stage <= 4; stage++) { /* 4: stage 3, and no gather ahead */
        snprintf(json, sizeof json,
                 "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": %d, "
                 "\"stage3_param_persistence_threshold\": 0}, \"comm\": {\"timeout_s\": 20, "
                 "\"prefetch_depth\": %d}}",
                 stage < 3 ? stage : 3, stage < 4);
        ranks_run(2, json, calls, NULL);
    }
    ranks_run(2, json, differs, NULL);
    return check_end();
}
