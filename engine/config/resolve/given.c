#include "engine/config/resolve/resolve.h"

#include <stdio.h>
#include <string.h>

#include "engine/config/key.h"
#include "engine/config/value.h"

bool config_written(const struct config *config, const char *path) {
    enum config_source source = config_entry(config, path)->source;
    return source == CONFIG_FILE || source == CONFIG_MODEL_FILE || source == CONFIG_COMMAND;
}

zero_status config_leave_out(struct config *config, const struct config_key *key, struct zero_error *error) {
    static const size_t bytes[KEY_TYPES] = {
        [KEY_BOOL] = sizeof(bool),   [KEY_INT] = sizeof(uint64_t),     [KEY_LIMIT] = sizeof(uint64_t),
        [KEY_REAL] = sizeof(double), [KEY_BETAS] = 2 * sizeof(double), [KEY_CHOICE] = sizeof(int)};
    memset((char *)config + key->offset, 0, bytes[key->type]);
    return config_entry_set(config, key, CONFIG_DEFAULT, NULL, error);
}

bool config_automatic(const struct config *config, const char *path) {
    return config_entry(config, path)->source == CONFIG_AUTO;
}

zero_status config_derived(struct config *config, const char *path, const char *text,
                           struct zero_error *error) {
    enum config_source source = config_automatic(config, path) ? CONFIG_AUTO : CONFIG_DERIVED;
    return config_entry_set(config, config_key_find(path), source, text, error);
}

zero_status config_derived_int(struct config *config, const char *path, uint64_t number,
                               struct zero_error *error) {
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)number);
    return config_written(config, path) ? ZERO_OK : config_derived(config, path, text, error);
}
