/* From JSON to descriptions, and from names to a machine: one table of keys says what may be in an entry. */
#include "tools/plan/hardware.h"

#include <errno.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/scan.h"
#include "engine/config/suggest.h"

extern const char hardware_builtin[]; /* configs/hardware.json, by the build */

/* ---- what an entry may hold ---- */

enum value_type { NUMBER, FRACTION, BOOL, NAME, TEXT };

struct key {
    const char *name;
    enum value_type type;
    size_t offset;
    bool required;
    const char *unit; /* for what to do */
};

#define DEVICE(field) offsetof(struct hardware_device, field)
#define HOST(field) offsetof(struct hardware_host, field)
#define LINK(field) offsetof(struct hardware_link, field)
#define DRIVE(field) offsetof(struct hardware_drive, field)

static const struct key device_keys[] = {
    {"memory", NUMBER, DEVICE(memory_bytes), true, "bytes, as 80e9"},
    {"memory_per_s", NUMBER, DEVICE(memory_per_s), true, "bytes per second, as 3.35e12"},
    {"memory_achieved", FRACTION, DEVICE(memory_achieved), false, NULL},
    {"fp32_flops", NUMBER, DEVICE(flops[DTYPE_F32]), true, "dense FLOP per second, as 67e12"},
    {"bf16_flops", NUMBER, DEVICE(flops[DTYPE_BF16]), false, "dense FLOP per second, as 989e12"},
    {"fp16_flops", NUMBER, DEVICE(flops[DTYPE_F16]), false, "dense FLOP per second, as 989e12"},
    {"fp32_achieved", FRACTION, DEVICE(flops_achieved[DTYPE_F32]), false, NULL},
    {"bf16_achieved", FRACTION, DEVICE(flops_achieved[DTYPE_BF16]), false, NULL},
    {"fp16_achieved", FRACTION, DEVICE(flops_achieved[DTYPE_F16]), false, NULL},
    {"price_per_hour", NUMBER, DEVICE(price_per_hour), false, "the price of one device for an hour, as 2.5"},
    {"is_host", BOOL, DEVICE(is_host), false, NULL},
    {"shares_cores", BOOL, DEVICE(shares_cores), false, NULL},
    {"host", NAME, DEVICE(host), true, "the name of an entry of hosts"},
    {"inside", NAME, DEVICE(inside), true, "the name of an entry of links"},
    {"between", NAME, DEVICE(between), false, "the name of an entry of links"},
    {"drive", NAME, DEVICE(drive), false, "the name of an entry of drives"},
    {"source", TEXT, 0, false, NULL},
    {0}};

static const struct key host_keys[] = {
    {"memory", NUMBER, HOST(memory_bytes), true, "bytes of a node, as 2e12"},
    {"memory_per_s", NUMBER, HOST(memory_per_s), true, "bytes per second of a node, as 400e9"},
    {"memory_achieved", FRACTION, HOST(memory_achieved), false, NULL},
    {"devices", NUMBER, HOST(devices), true, "devices in a node, as 8"},
    {"device_per_s", NUMBER, HOST(device_per_s), true, "bytes per second to and from one device, as 25e9"},
    {"source", TEXT, 0, false, NULL},
    {0}};

static const struct key link_keys[] = {
    {"per_s", NUMBER, LINK(per_s), true, "bytes per second of one rank, each way, as 50e9"},
    {"reduce_per_s", NUMBER, LINK(reduce_per_s), false, "bytes per second of one rank that reduces, as 25e9"},
    {"latency_s", NUMBER, LINK(latency_s), true, "seconds of one message, as 15e-6"},
    {"achieved", FRACTION, LINK(achieved), false, NULL},
    {"source", TEXT, 0, false, NULL},
    {0}};

static const struct key drive_keys[] = {
    {"bytes", NUMBER, DRIVE(bytes), true, "bytes of a node's drives together, as 4e12"},
    {"read_per_s", NUMBER, DRIVE(read_per_s), true, "bytes per second, as 7e9"},
    {"write_per_s", NUMBER, DRIVE(write_per_s), true, "bytes per second, as 5e9"},
    {"mixed_per_s", NUMBER, DRIVE(mixed_per_s), false, "bytes per second, read and written together, as 5e9"},
    {"endurance_tbw", NUMBER, DRIVE(endurance_tbw), false,
     "TB that may be written in the drives' life, as 1200"},
    {"source", TEXT, 0, false, NULL},
    {0}};

struct section {
    const char *name;
    const struct key *keys;
    size_t list, count, entry_bytes; /* offsets in struct hardware */
};

#define SECTION(title, keys, field, number)                                                                  \
    {                                                                                                        \
        title, keys, offsetof(struct hardware, field), offsetof(struct hardware, number),                    \
            sizeof((struct hardware *)0)->field[0]                                                           \
    }

enum { DEVICES, HOSTS, LINKS, DRIVES, SECTIONS };

static const struct section sections[SECTIONS] = {
    [DEVICES] = SECTION("devices", device_keys, device, devices),
    [HOSTS] = SECTION("hosts", host_keys, host, hosts),
    [LINKS] = SECTION("links", link_keys, link, links),
    [DRIVES] = SECTION("drives", drive_keys, drive, drives),
};

/* ---- entries; each begins with its name ---- */

static void *entry_at(const struct hardware *h, const struct section *s, uint32_t i) {
    return (char *)h + s->list + i * s->entry_bytes;
}

static uint32_t *entry_count(const struct hardware *h, const struct section *s) {
    return (uint32_t *)(void *)((char *)h + s->count);
}

static void *find_entry(const struct hardware *h, const struct section *s, const char *name) {
    for (uint32_t i = 0; i < *entry_count(h, s); i++)
        if (strcmp(entry_at(h, s, i), name) == 0) return entry_at(h, s, i);
    return NULL;
}

static double *number_at(const struct key *key, void *entry) {
    return (double *)(void *)((char *)entry + key->offset);
}

static void *add_entry(struct hardware *h, const struct section *s, const char *name) {
    void *entry = entry_at(h, s, (*entry_count(h, s))++);
    memset(entry, 0, s->entry_bytes);
    strcpy(entry, name);
    for (const struct key *key = s->keys; key->name; key++)
        if (key->type == NUMBER || key->type == FRACTION) *number_at(key, entry) = NAN;
    return entry;
}

/* ---- reading ---- */

struct reader {
    struct hardware *hardware;
    const char *file;
    struct zero_error *error;
};

/* A key of the file, cut to what a sentence has room for. */
struct shown {
    char chars[64];
};
static struct shown show(const char *text) {
    struct shown shown;
    snprintf(shown.chars, sizeof shown.chars, "%.60s", text);
    for (char *c = shown.chars; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e) *c = '?';
    return shown;
}

static zero_status wrong_value(struct reader *r, const char *path, json_object *json, const char *wanted) {
    return error_set(r->error, ZERO_E_CONFIG, "%s: %s: %s is not what belongs here: write %s", r->file, path,
                     show(json_object_to_json_string(json)).chars, wanted);
}

static zero_status read_number(struct reader *r, const struct key *key, const char *path, json_object *json,
                               void *entry) {
    bool number = json_object_is_type(json, json_type_double) || json_object_is_type(json, json_type_int);
    double value = number ? json_object_get_double(json) : 0;
    if (key->type == FRACTION && !(value > 0 && value <= 1))
        return wrong_value(r, path, json, "a fraction above 0 and at most 1");
    if (!(value > 0) || isinf(value) || value > 1e21) return wrong_value(r, path, json, key->unit);
    *number_at(key, entry) = value;
    return ZERO_OK;
}

static zero_status read_value(struct reader *r, const struct key *key, const char *path, json_object *json,
                              void *entry) {
    switch (key->type) {
    case NUMBER:
    case FRACTION:
        return read_number(r, key, path, json, entry);
    case BOOL:
        if (!json_object_is_type(json, json_type_boolean)) return wrong_value(r, path, json, "true or false");
        *(bool *)((char *)entry + key->offset) = json_object_get_boolean(json);
        return ZERO_OK;
    case NAME:
        if (!json_object_is_type(json, json_type_string) ||
            strlen(json_object_get_string(json)) >= HARDWARE_NAME_BYTES)
            return wrong_value(r, path, json, key->unit);
        strcpy((char *)entry + key->offset, json_object_get_string(json));
        return ZERO_OK;
    case TEXT:
        return json_object_is_type(json, json_type_string) ? ZERO_OK : wrong_value(r, path, json, "a text");
    }
    return ZERO_OK;
}

/* " : did you mean "x"?", or what there is. */
static const char *nearest(const char *word, const char *const *names, uint32_t count) {
    enum { FAR = 3 };
    const char *best = NULL;
    size_t least = FAR;
    for (uint32_t i = 0; i < count; i++) {
        size_t distance = suggest_distance(word, names[i], FAR);
        if (distance < least) least = distance, best = names[i];
    }
    return best;
}

static zero_status unknown_key(struct reader *r, const char *path, const char *leaf, const char *const *names,
                               uint32_t count) {
    const char *near = nearest(leaf, names, count);
    char all[400] = "";
    for (uint32_t i = 0; i < count && !near; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", names[i]);
    return error_set(r->error, ZERO_E_CONFIG, "%s: %s%s%s: unknown key: %s %s", r->file, path,
                     *path ? "." : "", show(leaf).chars, near ? "did you mean" : "there are",
                     near ? near : all);
}

static zero_status read_entry(struct reader *r, const struct section *s, const char *path, json_object *json,
                              void *entry) {
    json_object_object_foreach(json, leaf, value) {
        const struct key *key = s->keys;
        const char *names[24];
        uint32_t count = 0;
        for (; key->name && strcmp(key->name, leaf) != 0; key++) names[count++] = key->name;
        if (!key->name) return unknown_key(r, path, leaf, names, count);
        char below[256];
        snprintf(below, sizeof below, "%s.%s", path, leaf);
        zero_status status = read_value(r, key, below, value, entry);
        if (status) return status;
    }
    return ZERO_OK;
}

static zero_status read_section(struct reader *r, const struct section *s, json_object *json) {
    json_object_object_foreach(json, name, value) {
        char path[160];
        snprintf(path, sizeof path, "%s.%s", s->name, show(name).chars);
        if (!*name || strlen(name) >= HARDWARE_NAME_BYTES)
            return error_set(r->error, ZERO_E_CONFIG, "%s: %s: a name has 1 to %d bytes: choose another",
                             r->file, path, HARDWARE_NAME_BYTES - 1);
        if (!json_object_is_type(value, json_type_object))
            return wrong_value(r, path, value, "an object with the entry's values");
        void *entry = find_entry(r->hardware, s, name);
        if (!entry && *entry_count(r->hardware, s) == HARDWARE_ENTRIES_MAX)
            return error_set(r->error, ZERO_E_CONFIG, "%s: %s: more than %d entries of %s: leave some out",
                             r->file, path, HARDWARE_ENTRIES_MAX, s->name);
        if (!entry) entry = add_entry(r->hardware, s, name);
        zero_status status = read_entry(r, s, path, value, entry);
        if (status) return status;
    }
    return ZERO_OK;
}

static zero_status read_tree(struct reader *r, json_object *json) {
    static const char *const names[SECTIONS] = {"devices", "hosts", "links", "drives"};
    json_object_object_foreach(json, name, value) {
        int i = 0;
        while (i < SECTIONS && strcmp(sections[i].name, name) != 0) i++;
        if (i == SECTIONS) return unknown_key(r, "", name, names, SECTIONS);
        if (!json_object_is_type(value, json_type_object))
            return wrong_value(r, name, value, "an object with an entry per name");
        zero_status status = read_section(r, &sections[i], value);
        if (status) return status;
    }
    return ZERO_OK;
}

/* The scanner has passed the text before json-c sees it, which takes more than JSON. */
zero_status hardware_read_text(struct hardware *hardware, const char *text, size_t length, const char *name,
                               struct zero_error *error) {
    struct reader reader = {hardware, name, error};
    zero_status status = config_scan(text, length, name, error);
    if (status) return status;
    json_tokener *tokener = json_tokener_new_ex(SCAN_DEPTH_MAX + 2);
    if (!tokener) return error_set(error, ZERO_E_MEMORY, "%s: no memory to parse it", name);
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
    json_object *json = json_tokener_parse_ex(tokener, text, (int)length);
    enum json_tokener_error code = json_tokener_get_error(tokener);
    json_tokener_free(tokener);
    if (code == json_tokener_success)
        status = read_tree(&reader, json);
    else
        status = error_set(error, ZERO_E_INTERNAL, "%s: the JSON parser refuses it: %s", name,
                           json_tokener_error_desc(code));
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

/* ---- choosing ---- */

static zero_status no_entry(const struct hardware *h, const struct section *s, const char *name,
                            struct zero_error *error) {
    const char *names[HARDWARE_ENTRIES_MAX];
    uint32_t count = *entry_count(h, s);
    char all[600] = "";
    for (uint32_t i = 0; i < count; i++) {
        names[i] = entry_at(h, s, i);
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", names[i]);
    }
    const char *near = nearest(name, names, count);
    return error_set(error, ZERO_E_ARGUMENT,
                     "\"%s\" is none of the %s: %s%s%s; describe it in a file of your own (--hardware)",
                     show(name).chars, s->name, near ? "did you mean " : "", near ? near : all,
                     near ? "?" : "");
}

static zero_status take(const struct hardware *h, int section, const char *name, void *out,
                        struct zero_error *error) {
    const struct section *s = &sections[section];
    const char *found = find_entry(h, s, name);
    if (!found) return no_entry(h, s, name, error);
    memcpy(out, found, s->entry_bytes);
    for (const struct key *key = s->keys; key->name; key++) {
        bool missing =
            key->type == NAME ? !found[key->offset] : key->type == NUMBER && isnan(*number_at(key, out));
        if (key->required && missing)
            return error_set(error, ZERO_E_CONFIG, "%s.%s.%s is missing: write %s", s->name, name, key->name,
                             key->unit);
        if (key->type == FRACTION && isnan(*number_at(key, out))) *number_at(key, out) = 1;
    }
    return ZERO_OK;
}

static const char *skip_blanks(const char *text) {
    while (*text == ' ') text++;
    return text;
}

bool hardware_parse_speed(const char *text, double *out_per_s, const char **out_rest) {
    static const char letters[] = "kMGTP";
    char *end;
    double value = strtod(text, &end), base = 1000, factor = 1;
    if (end == text || !(value > 0) || value > 1e18) return false;
    const char *at = skip_blanks(end);
    const char *letter = *at ? strchr(letters, *at) : NULL;
    if (letter) at++;
    if (letter && *at == 'i') base = 1024, at++;
    for (long i = letter ? letter - letters : -1; i >= 0; i--) factor *= base;
    if (*at == 'b')
        factor /= 8, at++;
    else if (*at == 'B')
        at++;
    else if (letter)
        return false; /* bits or bytes? */
    if (strncmp(at, "it", 2) == 0) at += 2;
    if (strncmp(at, "ps", 2) == 0 || (at[0] == '/' && at[1] == 's')) at += 2;
    *out_per_s = value * factor;
    *out_rest = at;
    return true;
}

static zero_status choose_link(const struct hardware *h, const char *text, double node_ranks,
                               struct hardware_link *link, struct zero_error *error) {
    double per_s;
    const char *rest;
    bool speed = !find_entry(h, &sections[LINKS], text) && hardware_parse_speed(text, &per_s, &rest);
    bool per_node = speed && strcmp(rest, "/node") == 0;
    if (!speed || (*rest && !per_node)) return take(h, LINKS, text, link, error);
    *link = (struct hardware_link){.per_s = per_node ? per_s / node_ranks : per_s,
                                   .reduce_per_s = NAN,
                                   .latency_s = 15e-6, /* as the built-in networks */
                                   .achieved = 0.85};
    snprintf(link->name, sizeof link->name, "%.40s", text);
    return ZERO_OK;
}

static zero_status choose_drive(const struct hardware *h, const char *text, const char *usual,
                                struct hardware_drive *drive, struct zero_error *error) {
    double read, write;
    const char *rest;
    bool speed = !find_entry(h, &sections[DRIVES], text) && hardware_parse_speed(text, &read, &rest);
    write = speed ? read : 0;
    if (speed && *rest == ',') speed = hardware_parse_speed(rest + 1, &write, &rest);
    if (!speed || *rest) return take(h, DRIVES, text, drive, error);
    zero_status status = ZERO_OK; /* how large, and how long it lasts, as usual */
    *drive = (struct hardware_drive){.bytes = INFINITY, .endurance_tbw = NAN};
    if (*usual) status = take(h, DRIVES, usual, drive, error);
    drive->read_per_s = read, drive->write_per_s = write, drive->mixed_per_s = NAN;
    snprintf(drive->name, sizeof drive->name, "%.40s", text);
    return status;
}

static void apply_achieved(struct machine *m) {
    m->device.memory_per_s *= m->device.memory_achieved;
    m->host.memory_per_s *= m->host.memory_achieved;
    for (int t = 0; t < HARDWARE_TYPES; t++) m->device.flops[t] *= m->device.flops_achieved[t];
    struct hardware_link *links[] = {&m->inside, &m->between};
    for (int i = 0; i < 2; i++) {
        if (isnan(links[i]->reduce_per_s)) links[i]->reduce_per_s = links[i]->per_s;
        links[i]->per_s *= links[i]->achieved;
        links[i]->reduce_per_s *= links[i]->achieved;
    }
    if (isnan(m->drive.mixed_per_s)) m->drive.mixed_per_s = fmin(m->drive.read_per_s, m->drive.write_per_s);
}

zero_status hardware_choose(const struct hardware *h, const struct hardware_choice *choice,
                            struct machine *out, struct zero_error *error) {
    struct machine m = {0};
    zero_status status = take(h, DEVICES, choice->device, &m.device, error);
    if (!status) status = take(h, HOSTS, m.device.host, &m.host, error);
    if (status) return status;
    const char *between = choice->between ? choice->between : m.device.between,
               *drive = choice->drive ? choice->drive : m.device.drive;
    status =
        choose_link(h, choice->inside ? choice->inside : m.device.inside, m.host.devices, &m.inside, error);
    if (!status && *between) status = choose_link(h, between, m.host.devices, &m.between, error);
    if (!status && *drive) status = choose_drive(h, drive, m.device.drive, &m.drive, error);
    if (status) return status;
    apply_achieved(&m);
    m.node_ranks = (uint32_t)fmax(1, fmin(m.host.devices, 1e6));
    *out = m;
    return ZERO_OK;
}

/* ---- collectives ---- */

double machine_collective_s(const struct machine *m, uint32_t ranks, uint32_t nodes, bool reduces,
                            double bytes) {
    if (ranks < 2) return 0;
    double in_node = ranks / (double)nodes;
    double inside = reduces ? m->inside.reduce_per_s : m->inside.per_s;
    double across = (reduces ? m->between.reduce_per_s : m->between.per_s) * in_node;
    if (nodes == 1) return m->inside.latency_s * ceil(log2(ranks)) + bytes / inside;
    double slower = in_node > 1 ? fmin(inside, across) : across;
    return m->inside.latency_s * ceil(log2(in_node)) + m->between.latency_s * ceil(log2(nodes)) +
           bytes / slower;
}
