/* Sums over tiles, in the order of tiles. */
#include <string.h>

#include "tools/gpt/model.h"

void partial_clear(const struct gpt *gpt, uint32_t tile, uint64_t count) {
    memset(tile_partial(gpt, tile), 0, count * sizeof(float));
}

void partial_finish(const struct gpt *gpt, const struct partial *partials, uint32_t count) {
    for (uint32_t p = 0; p < count; p++) {
        const struct view *view = partials[p].view;
        if (!view->grad) continue; /* frozen */
        for (uint32_t tile = 0; tile < gpt->pass.tiles; tile++)
            gpt->kernels->scale_add(view->grad, tile_partial(gpt, tile) + partials[p].first,
                                    view->add || tile > 0 ? 1.f : 0.f, partials[p].count);
    }
}
