/* One GPU with its host: what was measured is planned within 15 %, and in the measured bytes; vertical order has room on small cards; and the
 * largest model of a machine is bound by what the machine has least of. */
#include "tools/plan/print/one_gpu.h"

#include <math.h>
#include <string.h>

#include "tests/check.h"

static struct zero_error error;

static struct price plan(const struct one_gpu_row *row) {
    struct price p = {.parameters = 0};
    error_clear(&error);
    if (!CHECK_INT(one_gpu_plan(row, &p, &error), ZERO_OK)) fprintf(stderr, "%s\n", error.message);
    return p;
}

static void what_was_measured_is_planned(void) {
    const struct one_gpu_row *row;
    uint32_t measured = 0;
    for (uint32_t i = 0; (row = one_gpu_at(i)); i++) {
        struct price p = plan(row);
        CHECK(p.tokens_per_s > 0 && p.flops_share < 1);
        if (strncmp(row->source, "RESULTS.md", 10) != 0) continue;
        measured++;
        if (!CHECK(fabs(p.tokens_per_s / row->per_s - 1) < 0.15))
            fprintf(stderr, "%s: %.0f tokens/s, measured %.0f\n", row->model, p.tokens_per_s, row->per_s);
        CHECK_DOUBLE((double)p.tier_bytes[ZERO_DEVICE] * 1e-9, row->device_gb, 0.01);
        CHECK_DOUBLE((double)p.tier_bytes[ZERO_CPU] * 1e-9, row->host_gb, 0.1);
    }
    CHECK_INT(measured, 2);
}

/* The card's memory does not grow with the micro-batches of a step; the host's does, by the streams that wait. */
static void vertical_order_fits_small_cards(void) {
    struct one_gpu_row row = {.model = "llama-3-8b",
                              .device = "rtx4090",
                              .host = "workstation",
                              .sequence = 4096,
                              .micro_batch = 1,
                              .micro_steps = 16,
                              .clips = true};
    struct price few = plan(&row);
    row.micro_steps = 128;
    struct price many = plan(&row);
    CHECK_DOUBLE(many.tokens, 524288, 0);
    uint64_t device = few.tier_bytes[ZERO_DEVICE] - few.spare_bytes, streams = 33ull * 4096 * 4096 * 2 * 112;
    CHECK(device < 8000000000);
    CHECK_INT(many.tier_bytes[ZERO_DEVICE] - many.spare_bytes, device);
    uint64_t more = many.tier_bytes[ZERO_CPU] - few.tier_bytes[ZERO_CPU];
    CHECK(more >= streams && more < streams / 33 * 36);
}

/* With 65 k tokens a step computing hides the update. The ratio grows with the tokens. Where updates need not wait for a norm they hide
 * at 16 k, too; else a part of the state on the H200 makes the update short enough. */
static void long_steps_hide_the_update(void) {
    static const struct one_gpu_machine machines[] = {{"h200", "16-cores", 0, false},
                                                      {"rtx4090", "desktop-128g", 0, false}};
    static const char *const models[] = {"llama-3.2-3b", "mistral-7b", "llama-3-8b"};
    for (int i = 0; i < 6; i++) {
        struct one_gpu_pair p[4];
        double ratio[4];
        error_clear(&error);
        for (int k = 0; k < 4; k++) {
            CHECK_INT(one_gpu_pair(&machines[i / 3], models[i % 3], k % 3 ? 16 : 4, k < 2, &p[k], &error),
                      ZERO_OK);
            ratio[k] = p[k].host.tokens_per_s / p[k].card.tokens_per_s;
            CHECK(ratio[k] < 1);
        }
        double filled = p[0].filled.tokens_per_s / p[0].card.tokens_per_s;
        CHECK(filled > ratio[0] && filled >= 0.6);
        if (!CHECK(ratio[1] >= 0.93 && ratio[0] < ratio[1] && ratio[2] > ratio[1] - 0.001 && ratio[3] >= 0.8))
            fprintf(stderr, "%s on %s: %.3f, %.3f, %.3f, %.3f\n", models[i % 3], machines[i / 3].device,
                    ratio[0], ratio[1], ratio[2], ratio[3]);
    }
}

static void the_least_memory_binds(void) {
    const struct one_gpu_machine machine = {"rtx4090", "desktop", 64, false};
    struct one_gpu_most most;
    error_clear(&error);
    if (!CHECK_INT(one_gpu_most(&machine, &most, &error), ZERO_OK)) fprintf(stderr, "%s\n", error.message);
    CHECK(most.largest.found && most.largest.bounded);
    CHECK_INT(most.largest.binds, SHORT_CPU);
    uint64_t layers = most.largest.shapes.layers;
    CHECK(layers > 16 && layers < 64);
    CHECK_INT(most.largest.next.layers, layers + 1);
    CHECK(most.shorter.fits && most.longer.fits);
    CHECK_INT(most.longer.cell.optimizer, ZERO_CPU);
    CHECK((double)most.longer.tier_bytes[ZERO_CPU] < 0.96 * 64 * 1073741824);
    CHECK(most.longer.tokens_per_s >= most.shorter.tokens_per_s);
}

int main(void) {
    what_was_measured_is_planned();
    vertical_order_fits_small_cards();
    long_steps_hide_the_update();
    the_least_memory_binds();
    return check_end();
}
