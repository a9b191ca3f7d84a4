/* Reads hardware descriptions from JSON. */
#include "tools/plan/machine/hardware.h"

#include <errno.h>
#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/text/scan.h"
#include "engine/config/text/tree.h"
#include "tools/plan/machine/entries.h"

extern const char hardware_builtin[]; /* configs/hardware.json, embedded by the build */

struct reader {
    struct hardware *hardware;
    const char *file;
    struct zero_error *error;
};

static zero_status wrong_value(struct reader *r, const char *path, json_object *json, const char *wanted) {
    return error_set(r->error, ZERO_E_CONFIG, "%s: %s: %s is not possible here: write %s", r->file, path,
                     entry_show(json_object_to_json_string(json)).chars, wanted);
}

static zero_status read_number(struct reader *r, const struct entry_key *key, const char *path,
                               json_object *json, void *entry) {
    bool number = json_object_is_type(json, json_type_double) || json_object_is_type(json, json_type_int);
    double value = number ? json_object_get_double(json) : 0;
    if (key->type == ENTRY_FRACTION && !(value > 0 && value <= 1))
        return wrong_value(r, path, json, "a fraction above 0 and at most 1");
    if (!(value > 0) || isinf(value) || value > 1e21) return wrong_value(r, path, json, key->unit);
    *entry_number(key, entry) = value;
    return ZERO_OK;
}

static zero_status read_value(struct reader *r, const struct entry_key *key, const char *path,
                              json_object *json, void *entry) {
    switch (key->type) {
    case ENTRY_NUMBER:
    case ENTRY_FRACTION:
        return read_number(r, key, path, json, entry);
    case ENTRY_BOOL:
        if (!json_object_is_type(json, json_type_boolean)) return wrong_value(r, path, json, "true or false");
        *(bool *)((char *)entry + key->offset) = json_object_get_boolean(json);
        return ZERO_OK;
    case ENTRY_NAME:
        if (!json_object_is_type(json, json_type_string) ||
            strlen(json_object_get_string(json)) >= HARDWARE_NAME_BYTES)
            return wrong_value(r, path, json, key->unit);
        strcpy((char *)entry + key->offset, json_object_get_string(json));
        return ZERO_OK;
    case ENTRY_TEXT:
        return json_object_is_type(json, json_type_string) ? ZERO_OK : wrong_value(r, path, json, "a text");
    }
    return ZERO_OK;
}

static zero_status unknown_key(struct reader *r, const char *path, const char *leaf, const char *const *names,
                               uint32_t count) {
    const char *near = entry_nearest(leaf, names, count);
    char all[400] = "";
    for (uint32_t i = 0; i < count && !near; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", names[i]);
    return error_set(r->error, ZERO_E_CONFIG, "%s: %s%s%s: unknown key: %s %s", r->file, path,
                     *path ? "." : "", entry_show(leaf).chars, near ? "did you mean" : "there are",
                     near ? near : all);
}

static zero_status read_entry(struct reader *r, const struct entry_section *s, const char *path,
                              json_object *json, void *entry) {
    json_object_object_foreach(json, leaf, value) {
        const struct entry_key *key = s->keys;
        const char *names[24];
        uint32_t count = 0;
        for (; key->name && strcmp(key->name, leaf) != 0; key++) names[count++] = key->name;
        if (!key->name) return unknown_key(r, path, leaf, names, count);
        char below[256];
        snprintf(below, sizeof below, "%s.%s", path, leaf);
        TRY(read_value(r, key, below, value, entry));
    }
    return ZERO_OK;
}

static zero_status read_section(struct reader *r, const struct entry_section *s, json_object *json) {
    json_object_object_foreach(json, name, value) {
        char path[160];
        snprintf(path, sizeof path, "%s.%s", s->name, entry_show(name).chars);
        if (!*name || strlen(name) >= HARDWARE_NAME_BYTES)
            return error_set(r->error, ZERO_E_CONFIG, "%s: %s: a name has 1 to %d bytes: choose another",
                             r->file, path, HARDWARE_NAME_BYTES - 1);
        if (!json_object_is_type(value, json_type_object))
            return wrong_value(r, path, value, "an object with the entry's values");
        void *entry = entry_find(r->hardware, s, name);
        if (!entry && *entry_count(r->hardware, s) == HARDWARE_ENTRIES_MAX)
            return error_set(r->error, ZERO_E_CONFIG, "%s: %s: more than %d entries of %s: leave some out",
                             r->file, path, HARDWARE_ENTRIES_MAX, s->name);
        if (!entry) entry = entry_add(r->hardware, s, name);
        TRY(read_entry(r, s, path, value, entry));
    }
    return ZERO_OK;
}

static zero_status read_tree(struct reader *r, json_object *json) {
    static const char *const names[SECTIONS] = {"devices", "hosts", "links", "drives"};
    json_object_object_foreach(json, name, value) {
        int i = 0;
        while (i < SECTIONS && strcmp(entry_sections[i].name, name) != 0) i++;
        if (i == SECTIONS) return unknown_key(r, "", name, names, SECTIONS);
        if (!json_object_is_type(value, json_type_object))
            return wrong_value(r, name, value, "an object with an entry per name");
        TRY(read_section(r, &entry_sections[i], value));
    }
    return ZERO_OK;
}

/* The scanner checks the text first, because json-c accepts more than JSON. */
zero_status hardware_read_text(struct hardware *hardware, const char *text, size_t length, const char *name,
                               struct zero_error *error) {
    struct reader reader = {hardware, name, error};
    TRY(config_scan(text, length, name, error));
    json_object *json;
    TRY(config_tree_parse(text, length, ZERO_E_INTERNAL, &json, error));
    zero_status status = read_tree(&reader, json);
    json_object_put(json);
    return status;
}

zero_status hardware_open(struct hardware *out, struct zero_error *error) {
    out->devices = out->hosts = out->links = out->drives = 0;
    return hardware_read_text(out, hardware_builtin, strlen(hardware_builtin), "configs/hardware.json",
                              error);
}

zero_status hardware_read(struct hardware *hardware, const char *path, struct zero_error *error) {
    FILE *file = fopen(path, "rb");
    if (!file) return error_set(error, ZERO_E_IO, "%s: cannot be opened: %s", path, strerror(errno));
    char *text = malloc(SCAN_BYTES_MAX + 1);
    size_t length = text ? fread(text, 1, SCAN_BYTES_MAX + 1, file) : 0;
    zero_status status = ZERO_OK;
    if (!text)
        status = error_set(error, ZERO_E_MEMORY, "%s: no memory to read it", path);
    else if (ferror(file))
        status = error_set(error, ZERO_E_IO, "%s: cannot be read: %s", path, strerror(errno));
    else
        status = hardware_read_text(hardware, text, length, path, error);
    free(text);
    fclose(file);
    return status;
}
