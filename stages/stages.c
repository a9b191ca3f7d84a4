/* All stages. A new stage is one file, and one row here. A program that defines this table itself is linked with its own. */
#include "stages/stage.h"

const struct stage *const stages[] = {&stage_zero0,      &stage_zero1, &stage_zero2, &stage_zero3,
                                      &stage_zero3_keep, &stage_hpz,   NULL};
