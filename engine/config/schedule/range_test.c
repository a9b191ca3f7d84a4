/* LRRangeTest (Smith 2018, "A disciplined approach to neural network hyper-parameters"): lr grows from range_min_lr
 * without limit, linearly or in stairs, to find the lr at which training diverges. */
#include <math.h>

#include "engine/config/schedule/lr_schedule.h"

static struct lr_setting at(const struct lr_schedule_params *p, uint32_t group, int64_t iteration,
                            struct lr_setting given) {
    double interval = (double)(iteration + 1) / (double)p->range_step_size;
    if (p->range_staircase) interval = floor(interval);
    given.lr = lr_number(&p->range_min_lr, group) * (1 + p->range_step_rate * interval);
    return given;
}

const struct lr_schedule lr_range_test = {.name = "LRRangeTest",
                                          .keys = {{"last_batch_iteration", "-1"},
                                                   {"lr_range_test_min_lr", "0.001"},
                                                   {"lr_range_test_step_size", "2000"},
                                                   {"lr_range_test_step_rate", "1"},
                                                   {"lr_range_test_staircase", "false"}},
                                          .at = at};
