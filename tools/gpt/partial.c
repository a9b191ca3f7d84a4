/* Adds the sums of tiles, in tile order. */
#include <string.h>

#include "tools/gpt/model.h"

void partial_clear(const struct gpt *gpt, const struct unit *unit, uint32_t tile) {
    memset(tile_partial(gpt, tile), 0, unit->sums * sizeof(float));
}

static void finish(const struct gpt *gpt, const struct view *view) {
    if (!view->grad) return; /* frozen */
    for (uint32_t tile = 0; tile < gpt->pass.tiles; tile++)
        gpt->kernels->scale_add(view->grad, tile_partial(gpt, tile) + view->sums_at,
                                view->add || tile > 0 ? 1.f : 0.f, view->count);
}

void partial_finish(const struct gpt *gpt, const struct unit *unit) {
    for (uint32_t i = 0; i < UNIT_PARAMS_MAX; i++)
        if (unit->view[i].count && !unit->view[i].matrix) finish(gpt, &unit->view[i]);
}
