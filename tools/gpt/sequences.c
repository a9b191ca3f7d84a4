#include "tools/gpt/sequences.h"

static bool begins(const struct gpt *gpt, const int32_t *tokens, uint32_t row) {
    if (row % gpt->pass.length == 0) return true;
    return gpt->config.documents && gpt->pass.targets && tokens[row - 1] == gpt->config.document_end;
}

static void find(const struct gpt *gpt, const int32_t *tokens, struct sequences *s) {
    s->count = 0;
    for (uint32_t row = 0; row < gpt->pass.rows; row++) {
        if (begins(gpt, tokens, row)) s->first[s->count++] = row;
        s->position[row] = row - s->first[s->count - 1];
    }
    s->first[s->count] = gpt->pass.rows;
}

void sequences_find(struct gpt *gpt) {
    for (uint32_t m = 0; m < gpt->pass.micros; m++)
        find(gpt, gpt->pass.tokens + (uint64_t)m * gpt->pass.rows, &gpt->micro[m].sequences);
}
