/* The tables that `zero config FILE` and `zero config --help` print. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/config.h"
#include "engine/config/key.h"
#include "engine/config/value.h"

static const char *source_name(enum config_source source) {
    static const char *const names[] = {[CONFIG_DEFAULT] = "default",
                                        [CONFIG_FILE] = "file",
                                        [CONFIG_AUTO] = "auto",
                                        [CONFIG_DERIVED] = "derived",
                                        [CONFIG_MODEL_FILE] = "model file",
                                        [CONFIG_COMMAND] = "command line"};
    return names[source];
}

/* A key that was not written is shown only if the engine uses it, because then its default matters. */
static bool shown(const struct config_key *key, const struct config_entry *entry, bool changed) {
    if (changed) return entry->source != CONFIG_DEFAULT && entry->source != CONFIG_DERIVED;
    return key->use == KEY_USED || entry->source != CONFIG_DEFAULT;
}

enum { KEY_WIDTH = 56, VALUE_WIDTH = 22, SOURCE_AT = KEY_WIDTH + 1 + VALUE_WIDTH + 1 };

/* Values are never cut: ranks compare this text, and an incomplete path is useless. After a long value, the rest of its
 * row is printed on the next line. */
static void print_entry(FILE *out, const struct config_key *key, const struct config_entry *entry) {
    static const char *const uses[] = {
        [KEY_USED] = "", [KEY_ACCEPTED] = "[accepted] ", [KEY_REFUSED] = "[off] "};
    const char *text = entry->text ? entry->text : "-";
    bool arrow = entry->source == CONFIG_AUTO && entry->text && strcmp(text, "\"auto\"") != 0;
    int at = fprintf(out, "%-*s %s%s", KEY_WIDTH, key->path, arrow ? "\"auto\" -> " : "", text);
    if (at >= SOURCE_AT) at = 0, fputc('\n', out);
    fprintf(out, "%*s%-12s %s%s\n", SOURCE_AT - at, "", source_name(entry->source), uses[key->use],
            key->use == KEY_ACCEPTED ? key->note : key->help);
}

static char *print(const struct config *config, bool changed) {
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (!out) return NULL;
    fprintf(out, "%-*s %-*s %-12s %s\n", KEY_WIDTH, "key", VALUE_WIDTH, "value", "source", "meaning");
    for (uint32_t i = 0; i < config_key_count(); i++) {
        if (shown(config_key_at(i), &config->entries[i], changed))
            print_entry(out, config_key_at(i), &config->entries[i]);
    }
    return fclose(out) == 0 ? text : (free(text), NULL);
}

char *config_print(const struct config *config) { return print(config, false); }
char *config_print_changed(const struct config *config) { return print(config, true); }

/* Prints the supported choices, or, with `refused`, the refused choices. */
static void help_choices(FILE *out, const struct config_key *key, bool refused) {
    struct key_choice c;
    const char *comma = "";
    for (uint32_t i = 0; config_key_choice_at(key, i, &c); i++)
        if (c.refused == refused) fprintf(out, "%s%.*s", comma, c.length, c.text), comma = ", ";
}

static void help_type(FILE *out, const struct config_key *key) {
    char min[32], max[32];
    if (key->type == KEY_CHOICE || key->type == KEY_SWITCH) {
        help_choices(out, key, false);
        return;
    }
    fputs(config_key_type_name(key->type), out);
    if (key->use == KEY_USED && (key->type == KEY_INT || key->type == KEY_REAL || key->type == KEY_STAGE))
        fprintf(out, " from %s to %s", config_number_text(key->min, min),
                config_number_text(config_key_max(key), max));
}

static void help_refused_choices(FILE *out, const struct config_key *key) {
    char reason[256];
    fputs(".\n    Refused: ", out);
    help_choices(out, key, true);
    fprintf(out, ": %s", config_key_reason(key, reason));
}

static void help_key(FILE *out, const struct config_key *key) {
    fprintf(out, "%s\n    %s.\n    ", key->path, key->help);
    help_type(out, key);
    if (key->fallback) fprintf(out, "; default %s", key->fallback);
    if (key->use == KEY_USED && key->automatic) fprintf(out, "; \"auto\" may be written");
    if (key->use == KEY_ACCEPTED) fprintf(out, ".\n    Accepted: %s", key->note);
    if (key->use == KEY_REFUSED) fprintf(out, ".\n    Refused unless it is the default: %s", key->note);
    if (key->use == KEY_USED && key->choices && strchr(key->choices, '!')) help_refused_choices(out, key);
    fputs(".\n", out);
}

char *config_help(void) {
    static const struct {
        enum key_use use;
        const char *title;
    } parts[] = {
        {KEY_USED, "Keys that this engine uses\n"
                   "\n"},
        {KEY_ACCEPTED, "\n"
                       "Keys of DeepSpeed and Hugging Face that this engine does not need: accepted, with a "
                       "line in the log\n"
                       "\n"},
        {KEY_REFUSED,
         "\n"
         "Keys that would change the result and that this engine does not support: refused, with the reason\n"
         "\n"},
    };
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (!out) return NULL;
    for (size_t part = 0; part < sizeof parts / sizeof parts[0]; part++) {
        fputs(parts[part].title, out);
        for (uint32_t i = 0; i < config_key_count(); i++) {
            if (config_key_at(i)->use == parts[part].use) help_key(out, config_key_at(i));
        }
    }
    return fclose(out) == 0 ? text : (free(text), NULL);
}
