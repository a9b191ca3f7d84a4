#include "tools/gpt/cpu/projection.h"

#include "tools/gpt/math/matmul.h"

/* One of a projection's layers. Its first column of the projection's output is `at`. */
struct layer {
    const struct view *view;
    uint32_t inputs, outputs, at;
};

static const struct projection *projection_of(const struct block *b, enum projection_index index) {
    return &b->gpt->architecture->projection[index];
}

static struct layer layer_of(const struct block *b, enum projection_index index, uint32_t i) {
    struct layer layer = {.at = 0};
    for (uint32_t k = 0; k <= i; k++) {
        layer.at += layer.outputs;
        layer.view = &b->unit->view[projection_of(b, index)->weight[k]];
        bool outputs_first = b->gpt->architecture->outputs_first;
        layer.inputs = outputs_first ? layer.view->columns : layer.view->rows;
        layer.outputs = outputs_first ? layer.view->rows : layer.view->columns;
    }
    return layer;
}

static uint32_t outputs_of(const struct block *b, enum projection_index index) {
    struct layer last = layer_of(b, index, projection_of(b, index)->layers - 1u);
    return last.at + last.outputs;
}

/* ---- transposing ---- */

/* Not for the few rows of a pass that continues a known sequence: to transpose the weights would take longer than they. */
static bool is_turned(const struct gpt *gpt, bool backward) {
    return !gpt->bf16 && !gpt->pass.known && gpt->architecture->outputs_first != backward;
}

/* Rows of a layer's weight, which become columns of the transposed matrix from `at` on. */
struct turn {
    const struct kernels *kernels;
    float *to;
    const float *from;
    uint32_t rows, columns, at, width, panel; /* width: columns of the transposed matrix; panel: of one */
};

enum {
    TURN_ROWS = 64,
    PANEL_COLUMNS = 512, /* at most; the last panel has what is left */
    PANELS = 4,          /* or a multiple, for threads to share */
    STREAMED = 1 << 20,  /* elements: a matrix so large leaves the caches before it is used */
};

/* Columns of a panel, of a result with `columns`. The panels of a narrow model would be too small. */
static uint32_t panel_columns(const struct gpt *gpt, uint32_t columns) {
    if (gpt->config.width < CUT_WIDTH) return PANEL_COLUMNS;
    uint32_t most = PANELS * PANEL_COLUMNS, panels = PANELS * ((columns + most - 1) / most);
    return ((columns + panels - 1) / panels + 15) / 16 * 16; /* whole lines of the cache */
}

/* Of the panel that begins at column `first`. */
static uint32_t panel_width(uint32_t panel, uint32_t columns, uint32_t first) {
    return columns - first < panel ? columns - first : panel;
}

static void turn_rows(void *context, uint32_t index, uint32_t thread) {
    const struct turn *t = context;
    uint32_t row = index * TURN_ROWS, end = t->rows - row < TURN_ROWS ? t->rows : row + TURN_ROWS;
    bool streamed = (uint64_t)t->width * t->columns >= STREAMED;
    while (row < end) {
        uint32_t column = t->at + row, offset = column % t->panel, first = column - offset;
        uint32_t width = panel_width(t->panel, t->width, first),
                 rows = end - row < width - offset ? end - row : width - offset;
        t->kernels->transpose(t->to + (uint64_t)first * t->columns + offset, width,
                              t->from + (uint64_t)row * t->columns, t->columns, rows, t->columns, streamed);
        row += rows;
    }
}

/* Transposes layers that stand side by side into one matrix [inputs][outputs of all layers]. */
static struct turn turn_of(const struct block *b, enum projection_index index, uint32_t i) {
    struct layer layer = layer_of(b, index, i);
    bool outputs_first = b->gpt->architecture->outputs_first;
    uint32_t width = outputs_first ? outputs_of(b, index) : layer.view->rows;
    return (struct turn){.kernels = b->gpt->kernels,
                         .to = b->gpt->activations.turned[index],
                         .from = layer.view->param,
                         .rows = layer.view->rows,
                         .columns = layer.view->columns,
                         .at = layer.at,
                         .width = width,
                         .panel = panel_columns(b->gpt, width)};
}

void projection_turn(struct block *b, bool backward) {
    struct turn turns[PHASE_GROUPS_MAX];
    struct phase phase = {.groups = 0};
    /* All micro-steps of a use have the same weights. */
    if (!is_turned(b->gpt, backward) || b->gpt->pass.micro) return;
    for (uint32_t index = 0; index < PROJECTIONS; index++)
        for (uint32_t i = 0; i < projection_of(b, index)->layers; i++) {
            struct turn *turn = &turns[phase.groups];
            *turn = turn_of(b, index, i);
            phase_add(&phase, (turn->rows + TURN_ROWS - 1) / TURN_ROWS, turn_rows, turn);
        }
    phase_run(&phase, b->gpt->threads);
}

/* ---- products ---- */

/* A product with a projection in one direction: y[rows][to] = beta y + x[rows][from] times the weights. */
struct direction {
    uint32_t from, to;
    bool backward;
};

static struct direction direction_of(const struct block *b, enum projection_index index, bool backward) {
    uint32_t outputs = outputs_of(b, index), inputs = layer_of(b, index, 0).inputs;
    return (struct direction){backward ? outputs : inputs, backward ? inputs : outputs, backward};
}

/* With columns first ... first + count - 1 of the transposed matrix, which lie in one panel. */
static void turned_columns(const struct block *b, enum projection_index index, const struct direction *d,
                           uint32_t thread, uint32_t rows, struct factors f, uint32_t first, uint32_t count) {
    const float *panel = b->gpt->activations.turned[index] + (uint64_t)first * d->from;
    product(b->gpt, thread, rows, count, d->from, f.x, d->from, plain(panel, count), f.beta, f.y + first,
            d->to);
}

/* With columns first ... first + count - 1 of plain weights [from][to], the layers one below the other. */
static void plain_columns(const struct block *b, enum projection_index index, const struct direction *d,
                          uint32_t thread, uint32_t rows, struct factors f, uint32_t first, uint32_t count) {
    for (uint32_t i = 0; i < projection_of(b, index)->layers; i++) {
        struct layer layer = layer_of(b, index, i);
        struct matrix weight = plain((const float *)layer.view->param + first, layer.view->columns);
        product(b->gpt, thread, rows, count, layer.view->rows, f.x + layer.at, d->from, weight,
                i ? 1 : f.beta, f.y + first, d->to);
    }
}

/* With whole weights, of any type: forward the layers stand side by side, backward one below the other. */
static void whole_layers(const struct block *b, enum projection_index index, const struct direction *d,
                         uint32_t thread, uint32_t rows, struct factors f) {
    bool transpose = b->gpt->architecture->outputs_first != d->backward;
    for (uint32_t i = 0; i < projection_of(b, index)->layers; i++) {
        struct layer layer = layer_of(b, index, i);
        uint32_t from = d->backward ? layer.outputs : layer.inputs,
                 to = d->backward ? layer.inputs : layer.outputs;
        product(b->gpt, thread, rows, to, from, f.x + (d->backward ? layer.at : 0), d->from,
                weight_of(b->gpt, layer.view, transpose ? TRANSPOSED : PLAIN), d->backward && i ? 1 : f.beta,
                f.y + (d->backward ? 0 : layer.at), d->to);
    }
}

uint32_t projection_panels(const struct block *b, enum projection_index index, bool backward) {
    uint32_t columns = direction_of(b, index, backward).to, panel = panel_columns(b->gpt, columns);
    return (columns + panel - 1) / panel;
}

void projection_product(const struct block *b, enum projection_index index, bool backward, uint32_t thread,
                        uint32_t rows, struct factors f, int32_t panel) {
    struct direction d = direction_of(b, index, backward);
    bool turned = is_turned(b->gpt, backward);
    if (panel == ALL_PANELS && !turned) {
        whole_layers(b, index, &d, thread, rows, f);
        return;
    }
    uint32_t columns = panel_columns(b->gpt, d.to),
             first = panel == ALL_PANELS ? 0 : (uint32_t)panel * columns;
    uint32_t end = panel == ALL_PANELS || d.to - first < columns ? d.to : first + columns;
    for (; first < end; first += columns)
        (turned ? turned_columns : plain_columns)(b, index, &d, thread, rows, f, first,
                                                  panel_width(columns, d.to, first));
}

/* ---- gradients ---- */

struct projection_gradient projection_gradient(const struct block *b, enum projection_index index,
                                               const float *x, const float *dy) {
    uint32_t outputs = outputs_of(b, index);
    bool outputs_first = b->gpt->architecture->outputs_first;
    struct projection_gradient g = {.layers = projection_of(b, index)->layers};
    for (uint32_t i = 0; i < g.layers; i++) {
        struct layer layer = layer_of(b, index, i);
        g.layer[i] = (struct weight_gradient){.gpt = b->gpt,
                                              .view = layer.view,
                                              .add = layer.view->add,
                                              .left = outputs_first ? dy + layer.at : x,
                                              .left_ld = outputs_first ? outputs : layer.inputs,
                                              .right = outputs_first ? x : dy,
                                              .rows = b->gpt->pass.rows,
                                              .outer = layer.view->rows,
                                              .inner = layer.view->columns};
    }
    return g;
}

/* The layer that rounds the shared right factor for all layers: the first trained one. If none is trained: the first
 * layer, which then rounds nothing. */
static struct weight_gradient *rounding(struct projection_gradient *g) {
    for (uint32_t i = 0; i < g->layers; i++)
        if (g->layer[i].view->grad) return &g->layer[i];
    return &g->layer[0];
}

/* Layers side by side share one right factor, the input: only layers stored [outputs][inputs] stand side by side. */
void projection_round(const struct block *b, struct projection_gradient *const *list, uint32_t count) {
    struct phase phase = {.groups = 0};
    uint16_t *rounded = b->gpt->activations.rounded;
    for (uint32_t i = 0; i < count && b->gpt->bf16; i++) {
        struct weight_gradient *first = rounding(list[i]);
        for (uint32_t k = 0; k < list[i]->layers; k++) list[i]->layer[k].rounded = rounded;
        rounded += (uint64_t)first->rows * first->inner;
        phase_add(&phase, weight_gradient_tiles(first), weight_gradient_round, first);
    }
    if (phase.groups) phase_run(&phase, b->gpt->threads);
}

void projection_add(struct projection_gradient *g, struct phase *phase) {
    for (uint32_t i = 0; i < g->layers; i++)
        phase_add(phase, weight_gradient_panels(&g->layer[i]), weight_gradient_panel, &g->layer[i]);
}
