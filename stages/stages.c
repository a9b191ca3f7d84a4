/* All stages. A new stage is one file and one row here. */
#include "stages/stage.h"

const struct stage *const stages[STAGES] = {
    [STAGE_ZERO0] = &stage_zero0, [STAGE_ZERO1] = &stage_zero1,           [STAGE_ZERO2] = &stage_zero2,
    [STAGE_ZERO3] = &stage_zero3, [STAGE_ZERO3_KEEP] = &stage_zero3_keep, [STAGE_HPZ] = &stage_hpz,
};

const struct stage *stage_find(uint32_t number, enum reshard reshard) {
    for (int i = 0; i < STAGES; i++)
        if (stages[i]->number == number && stages[i]->reshard == reshard) return stages[i];
    return NULL;
}
