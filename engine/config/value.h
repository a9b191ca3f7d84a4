/* Stores JSON values in the fields of a configuration. */
#pragma once

#include "engine/config/config.h"
#include "engine/config/key.h"
#include "engine/config/text/tree.h"

/* Checks type and range, then writes the field, the entry and, for an accepted key, the log line. */
zero_status config_store(struct config *config, const struct config_key *key,
                         const struct config_value *value, enum config_source source,
                         struct zero_error *error);

/* The same for JSON text: defaults and the command line. */
zero_status config_store_text(struct config *config, const struct config_key *key, const char *json,
                              enum config_source source, struct zero_error *error);

/* Replaces an entry's text by the resolved value. */
zero_status config_entry_set(struct config *config, const struct config_key *key, enum config_source source,
                             const char *text, struct zero_error *error);
/* Whether the value is that of the JSON text: numbers and booleans as numbers. */
zero_status config_value_same(const struct config_value *value, const char *text, bool *out_same,
                              struct zero_error *error);

/* Whether config_store leaves the range of the key's number to a later call of config_check_range, which refuses it. */
bool config_ranges_later(const struct config_key *key);
zero_status config_check_range(const struct config *config, const struct config_key *key,
                               struct zero_error *error);

struct config_entry *config_entry(const struct config *config, const char *path);

/* Whether two JSON texts have one value: 1000000 and 1e6, "adamw" and "AdamW". */
bool config_same(const char *a, const char *b);

/* The shortest decimal text that reads back as `number`; always with a decimal point, in every locale. */
const char *config_number_text(double number, char out[32]);

/* "8GiB", "512 MB", "1e9", "unlimited"; false: not a size. */
bool config_size_parse(const char *text, uint64_t *out_bytes);

/* ---- groups.c: the list param_groups, one object per group ---- */
/* `value` is a list. On success the old content of `out` is freed and replaced; on failure `out` does not change. */
zero_status config_groups_read(const struct config_value *value, const char *path, struct config_groups *out,
                               struct zero_error *error);
void config_groups_free(struct config_groups *groups);

/* ---- parse.c: parses the text that read.c gets ---- */
/* Stores every member of the object `text` (zero-terminated) as a key below `parent`; "" for the top. */
zero_status config_parse(struct config *config, const char *text, size_t length, const char *name,
                         const char *parent, enum config_source source, struct zero_error *error);
