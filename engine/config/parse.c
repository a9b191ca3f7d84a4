/* Stores a document in the configuration: every member is either a key, which is stored, or an object of keys. */
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/config/value.h"
#include "engine/config/suggest.h"
#include "engine/config/text/scan.h"

enum { PATH_MAX_BYTES = 256 };

#define ZERO_BLOCK "zero_optimization"
#define PREFIX "stage3_"

struct walk {
    struct config *config;
    enum config_source source;
    struct zero_error *error;
};

struct member {
    struct walk *walk;
    const struct config_key *key;
};

/* A document writes a key twice only by two names. */
static zero_status check_twice(struct member *m, const struct config_value *value) {
    const struct config_entry *entry = config_entry(m->walk->config, m->key->path);
    bool same = true, twice = entry->source == m->walk->source || entry->source == CONFIG_AUTO;
    zero_status status = ZERO_OK;
    if (twice && value->kind != VALUE_NULL)
        status = config_value_same(value, entry->text, &same, m->walk->error);
    if (status || same) return status;
    return error_set(
        m->walk->error, ZERO_E_CONFIG,
        "%s: it is written with and without \"" PREFIX "\", as %.*s and as %.*s: remove one of them",
        m->key->path, utf8_fit(entry->text, 60), entry->text, utf8_fit(value->text, 60), value->text);
}

static zero_status store_member(void *user, const struct config_value *value) {
    struct member *m = user;
    zero_status status = check_twice(m, value);
    return status ? status : config_store(m->walk->config, m->key, value, m->walk->source, m->walk->error);
}

static zero_status walk_object(struct walk *walk, struct json_object *object, const char *parent);

static zero_status unknown_key(struct walk *walk, const char *parent, const char *leaf) {
    char hint[400], shown[64];
    size_t length = strlen(leaf), most = length;
    if (strchr(leaf, '.'))
        snprintf(hint, sizeof hint, "a key may not contain a point: write nested objects");
    else
        suggest_key(parent, leaf, hint, sizeof hint);
    if (most > 60) most = 60;
    while (most > 0 && most < length && ((unsigned char)leaf[most] & 0xC0) == 0x80) most--;
    snprintf(shown, sizeof shown, "%.*s", (int)most, leaf);
    for (char *c = shown; *c; c++) {
        if ((unsigned char)*c < 0x20) *c = '?';
    }
    return error_set(walk->error, ZERO_E_CONFIG, "%s%s%s: unknown key: %s", parent, *parent ? "." : "", shown,
                     hint);
}

/* NULL: there is no such key. DeepSpeed knows the keys of stage 3 without their prefix, too. */
static const struct config_key *find_key(const char *parent, const char *leaf, const char *path) {
    char prefixed[PATH_MAX_BYTES + sizeof PREFIX];
    const struct config_key *key = config_key_find(path);
    if (key || strcmp(parent, ZERO_BLOCK)) return key;
    snprintf(prefixed, sizeof prefixed, "%s." PREFIX "%s", parent, leaf);
    return config_key_find(prefixed);
}

/* The key of the block's device, for which "auto" in place of a block stands. NULL: the block has no device that may
 * be "auto". */
static const struct config_key *automatic_device(const char *block) {
    char path[PATH_MAX_BYTES + sizeof ".device"];
    snprintf(path, sizeof path, "%s.device", block);
    const struct config_key *key = config_key_find(path);
    return key && config_key_takes_auto(key) ? key : NULL;
}

/* The key that a value in place of a block stands for: "auto" for a device's, true and false for the first stage and none. */
static const struct config_key *key_in_place(const char *block, const char *text) {
    if (!strcmp(text, "\"auto\"")) return automatic_device(block);
    bool boolean = !strcmp(text, "true") || !strcmp(text, "false");
    return boolean && !strcmp(block, ZERO_BLOCK) ? config_key_find(ZERO_BLOCK ".stage") : NULL;
}

/* A note of the writer. At the top DeepSpeed reads no key that it does not know. */
static bool is_note(const char *parent, const char *leaf) {
    bool marked = *leaf == '_' || *leaf == '#' || !strncmp(leaf, "//", 2);
    return !strncmp(leaf, "_comment", 8) || (marked && !*parent);
}

static zero_status walk_member(struct walk *walk, const char *parent, const char *leaf,
                               struct json_object *json) {
    char path[PATH_MAX_BYTES];
    if (is_note(parent, leaf)) return ZERO_OK;
    int length = snprintf(path, sizeof path, "%s%s%s", parent, *parent ? "." : "", leaf);
    bool pointed = strchr(leaf, '.') && strcmp(leaf, "transformers.js_config") != 0;
    if (length >= PATH_MAX_BYTES || pointed) return unknown_key(walk, parent, leaf);
    const struct config_key *key = find_key(parent, leaf, path);
    struct member member = {walk, key};
    if (key) return config_tree_value(json, store_member, &member, walk->error);
    if (!config_key_is_object(path)) return unknown_key(walk, parent, leaf);
    if (!json) return ZERO_OK; /* null: the block is not given */
    if (config_tree_is_object(json)) return walk_object(walk, json, path);
    const char *text = config_tree_text(json);
    if (!text) return error_set(walk->error, ZERO_E_MEMORY, "%s: no memory for its value", path);
    member.key = key_in_place(path, text);
    if (member.key) return config_tree_value(json, store_member, &member, walk->error);
    bool block = !strncmp(path, ZERO_BLOCK ".", sizeof ZERO_BLOCK);
    if (block && !strcmp(text, "\"auto\"")) return ZERO_OK; /* as not given */
    return error_set(walk->error, ZERO_E_CONFIG,
                     "%s: %.*s stands where an object%s is expected: see zero config --help", path,
                     utf8_fit(text, 60), text,
                     automatic_device(path)     ? " or \"auto\""
                     : strcmp(path, ZERO_BLOCK) ? ""
                                                : ", true or false");
}

/* Members that decide the meaning of other members are stored first. Then the error names an unsupported choice, and
 * not a consequence of it. */
static bool selects(const char *leaf) {
    static const char *const names[] = {"type", "model_type", "rope_type", "enabled"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(leaf, names[i]) == 0) return true;
    return false;
}

struct walked {
    struct walk *walk;
    const char *parent;
    bool selecting;
};

/* A later error follows the first one in its message, while there is room. */
static void add_error(struct zero_error *all, const struct zero_error *one) {
    enum { ROOM = 760 }; /* read.c puts the file's name before it */
    static const char also[] = "; also: ";
    size_t at = strlen(all->message), length = strlen(one->message);
    if (!all->code) {
        *all = *one;
    } else if (at + length + sizeof also < ROOM) {
        memcpy(all->message + at, also, sizeof also - 1);
        memcpy(all->message + at + sizeof also - 1, one->message, length + 1);
    }
}

/* Goes on after a wrong member, so that one message names several. A wrong choice ends its block: the other members
 * depend on it. */
static zero_status walk_one(void *user, const char *leaf, struct json_object *json) {
    struct walked *w = user;
    struct zero_error error;
    struct walk one = {w->walk->config, w->walk->source, &error};
    if (selects(leaf) != w->selecting) return ZERO_OK;
    error_clear(&error);
    zero_status status = walk_member(&one, w->parent, leaf, json);
    if (status) add_error(w->walk->error, &error);
    return w->selecting || status == ZERO_E_MEMORY ? status : ZERO_OK;
}

static zero_status walk_object(struct walk *walk, struct json_object *object, const char *parent) {
    if (strcmp(parent, "model") == 0) walk->config->model.given = true;
    zero_status status = config_tree_members(object, walk_one, &(struct walked){walk, parent, true});
    if (!status) status = config_tree_members(object, walk_one, &(struct walked){walk, parent, false});
    return status ? status : walk->error->code;
}

zero_status config_parse(struct config *config, const char *text, size_t length, const char *name,
                         const char *parent, enum config_source source, struct zero_error *error) {
    struct json_object *object = NULL;
    struct walk walk = {config, source, error};
    zero_status status = config_scan(text, length, name, error);
    if (status == ZERO_OK) status = config_tree_parse(text, length, ZERO_E_INTERNAL, &object, error);
    if (status == ZERO_OK) status = walk_object(&walk, object, parent);
    config_tree_free(object);
    return status;
}
