#include "tools/gpt/cpu/phase.h"

#include "tools/gpt/activations.h"
#include "tools/gpt/math/matmul.h"

void phase_add(struct phase *phase, uint32_t count, parallel_fn task, void *context) {
    uint32_t first = phase->groups ? phase->group[phase->groups - 1].end : 0;
    phase->group[phase->groups].task = task;
    phase->group[phase->groups].context = context;
    phase->group[phase->groups].end = first + count;
    phase->groups++;
}

static void run_task(void *context, uint32_t index, uint32_t thread) {
    struct phase *phase = context;
    uint32_t g = 0;
    while (index >= phase->group[g].end) g++;
    phase->group[g].task(phase->group[g].context, index - (g ? phase->group[g - 1].end : 0), thread);
}

void phase_run(struct phase *phase, uint32_t threads) {
    parallel_run(threads, phase->group[phase->groups - 1].end, run_task, phase);
}

uint32_t weight_gradient_panels(const struct weight_gradient *w) {
    return w->view->grad ? (w->outer + PANEL_ROWS - 1) / PANEL_ROWS : 0; /* a frozen weight has no panels */
}

uint32_t weight_gradient_tiles(const struct weight_gradient *w) {
    return w->gpt->bf16 && w->view->grad ? (w->rows + TILE_ROWS_MAX - 1) / TILE_ROWS_MAX : 0;
}

void weight_gradient_round(void *context, uint32_t index, uint32_t thread) {
    const struct weight_gradient *w = context;
    uint32_t first = index * TILE_ROWS_MAX,
             rows = w->rows - first < TILE_ROWS_MAX ? w->rows - first : TILE_ROWS_MAX;
    uint64_t at = (uint64_t)first * w->inner;
    w->gpt->kernels->narrow(w->rounded + at, w->right + at, (size_t)rows * w->inner);
}

/* Rounds the columns first ... first + count - 1 of the left factor into a panel; each row of the panel is
 * contiguous. */
static const uint16_t *rounded_panel(const struct weight_gradient *w, uint32_t first, uint32_t count,
                                     uint32_t thread) {
    uint16_t *panel = w->gpt->activations.operands + thread * w->gpt->activations.operand_elements;
    for (uint32_t row = 0; row < w->rows; row++)
        w->gpt->kernels->narrow(panel + (uint64_t)row * count, w->left + row * w->left_ld + first, count);
    return panel;
}

void weight_gradient_panel(void *context, uint32_t index, uint32_t thread) {
    const struct weight_gradient *w = context;
    uint32_t first = index * PANEL_ROWS,
             count = w->outer - first < PANEL_ROWS ? w->outer - first : PANEL_ROWS;
    struct matrix left = transposed(w->left + first, w->left_ld), right = plain(w->right, w->inner);
    if (w->gpt->bf16) {
        left = narrowed(rounded_panel(w, first, count, thread), count, TRANSPOSED);
        right = narrowed(w->rounded, w->inner, PLAIN);
    }
    matmul(&w->gpt->failed, count, w->inner, w->rows, 1, left, right, w->add ? 1 : 0,
           w->view->grad + (uint64_t)first * w->inner, w->inner);
}
