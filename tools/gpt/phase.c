#include "tools/gpt/phase.h"

#include "tools/gpt/activations.h"
#include "tools/gpt/matmul.h"

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
    return (w->inputs + PANEL_ROWS - 1) / PANEL_ROWS;
}

void weight_gradient_panel(void *context, uint32_t index, uint32_t thread) {
    const struct weight_gradient *w = context;
    uint32_t first = index * PANEL_ROWS,
             rows = w->inputs - first < PANEL_ROWS ? w->inputs - first : PANEL_ROWS;
    matmul(w->failed, rows, w->outputs, w->rows, 1, transposed(w->input + first, w->inputs),
           plain(w->output_gradient, w->outputs), w->add ? 1 : 0,
           (float *)w->slot->grad + (uint64_t)first * w->outputs, w->outputs);
}
