#include "tools/gpt/cpu/steps.h"

struct run {
    struct block *block;
    const struct step *step;
    uint32_t count;  /* steps of a tile */
    uint32_t panels; /* of a product that is cut */
};

static void run_tile(void *context, uint32_t index, uint32_t thread) {
    const struct run *r = context;
    struct block *b = r->block;
    for (const struct step *s = r->step; s < r->step + r->count; s++)
        if (s->rows)
            s->rows(b, index, thread);
        else
            projection_product(b, s->index, s->backward, thread, tile_rows(b->gpt, index),
                               s->factors(b, tile_first(b->gpt, index), block_scratch(b, index, thread)),
                               ALL_PANELS);
}

static void run_panel(void *context, uint32_t index, uint32_t thread) {
    const struct run *r = context;
    const struct block *b = r->block;
    uint32_t first = index / r->panels * PRODUCT_ROWS, left = b->gpt->pass.rows - first;
    projection_product(b, r->step->index, r->step->backward, thread,
                       left < PRODUCT_ROWS ? left : PRODUCT_ROWS, r->step->factors(b, first, first),
                       (int32_t)(index % r->panels));
}

static void add_step(struct phase *phase, struct run *r) {
    const struct pass *pass = &r->block->gpt->pass;
    if (r->step->rows) {
        phase_add(phase, pass->tiles, run_tile, r);
        return;
    }
    r->panels = projection_panels(r->block, r->step->index, r->step->backward);
    phase_add(phase, (pass->rows + PRODUCT_ROWS - 1) / PRODUCT_ROWS * r->panels, run_panel, r);
}

void steps_run(struct block *b, const struct step *steps, uint32_t count, struct phase *beside) {
    struct phase none = {.groups = 0}, *phase = beside ? beside : &none;
    struct run run = {.block = b, .step = steps, .count = b->cut ? 1 : count};
    if (!b->cut) {
        phase_add(phase, b->gpt->pass.tiles, run_tile, &run);
        phase_run(phase, b->gpt->threads);
        return;
    }
    for (; run.step < steps + count; run.step++, phase = &none) {
        none.groups = 0;
        add_step(phase, &run);
        phase_run(phase, b->gpt->threads);
    }
}
