/* The list param_groups: one object per group. */
#ifndef ZERO_ENGINE_CONFIG_GROUPS_H
#define ZERO_ENGINE_CONFIG_GROUPS_H

#include "engine/config/value.h"

/* `value` is a list. On success the old content of `out` is freed and replaced; on failure `out` does not change. */
zero_status config_groups_read(const struct config_value *value, const char *path, struct config_groups *out,
                               struct zero_error *error);
void config_groups_free(struct config_groups *groups);

#endif
