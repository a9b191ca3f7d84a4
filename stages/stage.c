#include "stages/stage.h"

uint32_t stage_count(void) {
    uint32_t count = 0;
    while (stages[count]) count++;
    return count;
}

const struct accumulation_name accumulations[ACCUMULATIONS] = {
    [ACCUMULATE_LAST] = {"last", "in the last micro-step"},
    [ACCUMULATE_EVERY] = {"every", "in every micro-step"},
};

const struct stage *stage_find(uint32_t number, enum reshard reshard) {
    for (int i = 0; stages[i]; i++)
        if (stages[i]->number == number && stages[i]->reshard == reshard) return stages[i];
    return NULL;
}

uint32_t stage_first(bool (*shards)(const struct stage *stage)) {
    uint32_t i = 0;
    while (stages[i + 1] && !shards(stages[i])) i++;
    return stages[i]->number;
}

uint32_t stage_number_max(void) {
    uint32_t max = 0;
    for (int i = 0; stages[i]; i++)
        if (stages[i]->number > max) max = stages[i]->number;
    return max;
}
