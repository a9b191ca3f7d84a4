/* What the rules between keys share: whether a key was written, and showing what follows for one that was not. */
#ifndef ZERO_ENGINE_CONFIG_RULE_H
#define ZERO_ENGINE_CONFIG_RULE_H

#include <stdio.h>

#include "engine/config/config.h"
#include "engine/config/key.h"
#include "engine/config/value.h"

/* A value was written, not "auto". */
static inline bool written(const struct config *config, const char *path) {
    enum config_source source = config_entry(config, path)->source;
    return source == CONFIG_FILE || source == CONFIG_MODEL_FILE || source == CONFIG_COMMAND;
}

static inline bool automatic(const struct config *config, const char *path) {
    return config_entry(config, path)->source == CONFIG_AUTO;
}

/* Shows what was resolved; "auto" stays visible as the source. */
static inline zero_status derived(struct config *config, const char *path, const char *text,
                                  struct zero_error *error) {
    enum config_source source = automatic(config, path) ? CONFIG_AUTO : CONFIG_DERIVED;
    return config_entry_set(config, config_key_find(path), source, text, error);
}

static inline zero_status derived_int(struct config *config, const char *path, uint64_t number,
                                      struct zero_error *error) {
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)number);
    return written(config, path) ? ZERO_OK : derived(config, path, text, error);
}

/* Which ranks share (mesh.c): sets shard_ranks and reshard. */
zero_status config_resolve_mesh(struct config *config, uint32_t ranks, struct zero_error *error);

#endif
