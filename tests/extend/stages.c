/* The table of stages with two more rows. */
#include "stages/stage.h"

extern const struct stage stage_zero4, stage_whole;

const struct stage *const stages[] = {&stage_zero0, &stage_zero1,      &stage_zero2,
                                      &stage_zero3, &stage_zero3_keep, &stage_hpz,
                                      &stage_zero4, &stage_whole,      NULL};
