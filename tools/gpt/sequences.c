#include "tools/gpt/sequences.h"

static bool begins(const struct gpt *gpt, const int32_t *targets, uint32_t row) {
    if (row % gpt->pass.length == 0) return true;
    return gpt->config.documents && targets && targets[row - 1] == GPT_NEXT_DOCUMENT;
}

static void find(const struct gpt *gpt, const int32_t *targets, struct sequences *s) {
    s->count = 0;
    for (uint32_t row = 0; row < gpt->pass.rows; row++) {
        if (begins(gpt, targets, row)) s->first[s->count++] = row;
        s->position[row] = row - s->first[s->count - 1];
    }
    s->first[s->count] = gpt->pass.rows;
}

void sequences_find(struct gpt *gpt) {
    const int32_t *targets = gpt->pass.targets;
    for (uint32_t m = 0; m < gpt->pass.micros; m++)
        find(gpt, targets ? targets + (uint64_t)m * gpt->pass.rows : NULL, &gpt->micro[m].sequences);
}
