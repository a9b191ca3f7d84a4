#include "tools/plan/machine/entries.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/config/suggest.h"

/* ---- the values of an entry ---- */

#define DEVICE(field) offsetof(struct hardware_device, field)
#define HOST(field) offsetof(struct hardware_host, field)
#define LINK(field) offsetof(struct hardware_link, field)
#define DRIVE(field) offsetof(struct hardware_drive, field)

static const struct entry_key device_keys[] = {
    {"memory", ENTRY_NUMBER, DEVICE(memory_bytes), true, "bytes, as 80e9"},
    {"memory_per_s", ENTRY_NUMBER, DEVICE(memory_per_s), true, "bytes per second, as 3.35e12"},
    {"memory_achieved", ENTRY_FRACTION, DEVICE(memory_achieved), false, NULL},
    {"fp32_flops", ENTRY_NUMBER, DEVICE(flops[DTYPE_F32]), true, "dense FLOP per second, as 67e12"},
    {"bf16_flops", ENTRY_NUMBER, DEVICE(flops[DTYPE_BF16]), false, "dense FLOP per second, as 989e12"},
    {"fp16_flops", ENTRY_NUMBER, DEVICE(flops[DTYPE_F16]), false, "dense FLOP per second, as 989e12"},
    {"fp32_achieved", ENTRY_FRACTION, DEVICE(flops_achieved[DTYPE_F32]), false, NULL},
    {"bf16_achieved", ENTRY_FRACTION, DEVICE(flops_achieved[DTYPE_BF16]), false, NULL},
    {"fp16_achieved", ENTRY_FRACTION, DEVICE(flops_achieved[DTYPE_F16]), false, NULL},
    {"attention_flops", ENTRY_NUMBER, DEVICE(attention_flops), false,
     "FLOP per second that flash attention reaches, as 335e12"},
    {"price_per_hour", ENTRY_NUMBER, DEVICE(price_per_hour), false,
     "the price of one device for an hour, as 2.5"},
    {"is_host", ENTRY_BOOL, DEVICE(is_host), false, NULL},
    {"shares_cores", ENTRY_BOOL, DEVICE(shares_cores), false, NULL},
    {"host", ENTRY_NAME, DEVICE(host), true, "the name of an entry of hosts"},
    {"inside", ENTRY_NAME, DEVICE(inside), true, "the name of an entry of links"},
    {"between", ENTRY_NAME, DEVICE(between), false, "the name of an entry of links"},
    {"drive", ENTRY_NAME, DEVICE(drive), false, "the name of an entry of drives"},
    {"source", ENTRY_TEXT, 0, false, NULL},
    {0}};

static const struct entry_key host_keys[] = {
    {"memory", ENTRY_NUMBER, HOST(memory_bytes), true, "bytes of a node, as 2e12"},
    {"memory_per_s", ENTRY_NUMBER, HOST(memory_per_s), true, "bytes per second of a node, as 400e9"},
    {"memory_achieved", ENTRY_FRACTION, HOST(memory_achieved), false, NULL},
    {"devices", ENTRY_NUMBER, HOST(devices), true, "devices in a node, as 8"},
    {"device_per_s", ENTRY_NUMBER, HOST(device_per_s), true,
     "bytes per second to and from one device, as 25e9"},
    {"update_per_s", ENTRY_NUMBER, HOST(update_per_s), false,
     "bytes per second that one device's update moves, as 92e9"},
    {"source", ENTRY_TEXT, 0, false, NULL},
    {0}};

static const struct entry_key link_keys[] = {
    {"per_s", ENTRY_NUMBER, LINK(per_s), true, "bytes per second of one rank, each way, as 50e9"},
    {"reduce_per_s", ENTRY_NUMBER, LINK(reduce_per_s), false,
     "bytes per second of one rank that reduces, as 25e9"},
    {"latency_s", ENTRY_NUMBER, LINK(latency_s), true, "seconds of one message, as 15e-6"},
    {"achieved", ENTRY_FRACTION, LINK(achieved), false, NULL},
    {"source", ENTRY_TEXT, 0, false, NULL},
    {0}};

static const struct entry_key drive_keys[] = {
    {"bytes", ENTRY_NUMBER, DRIVE(bytes), true, "bytes of a node's drives together, as 4e12"},
    {"read_per_s", ENTRY_NUMBER, DRIVE(read_per_s), true, "bytes per second, as 7e9"},
    {"write_per_s", ENTRY_NUMBER, DRIVE(write_per_s), true, "bytes per second, as 5e9"},
    {"mixed_per_s", ENTRY_NUMBER, DRIVE(mixed_per_s), false,
     "bytes per second, read and written together, as 5e9"},
    {"endurance_tbw", ENTRY_NUMBER, DRIVE(endurance_tbw), false,
     "TB that may be written in the drives' life, as 1200"},
    {"source", ENTRY_TEXT, 0, false, NULL},
    {0}};

#define SECTION(title, keys, field, number)                                                                  \
    {                                                                                                        \
        title, keys, offsetof(struct hardware, field), offsetof(struct hardware, number),                    \
            sizeof((struct hardware *)0)->field[0]                                                           \
    }

const struct entry_section entry_sections[SECTIONS] = {
    [SECTION_DEVICES] = SECTION("devices", device_keys, device, devices),
    [SECTION_HOSTS] = SECTION("hosts", host_keys, host, hosts),
    [SECTION_LINKS] = SECTION("links", link_keys, link, links),
    [SECTION_DRIVES] = SECTION("drives", drive_keys, drive, drives),
};

/* ---- entries in struct hardware ---- */

void *entry_at(const struct hardware *h, const struct entry_section *s, uint32_t i) {
    return (char *)h + s->list + i * s->entry_bytes;
}

uint32_t *entry_count(const struct hardware *h, const struct entry_section *s) {
    return (uint32_t *)(void *)((char *)h + s->count);
}

void *entry_find(const struct hardware *h, const struct entry_section *s, const char *name) {
    for (uint32_t i = 0; i < *entry_count(h, s); i++)
        if (strcmp(entry_at(h, s, i), name) == 0) return entry_at(h, s, i);
    return NULL;
}

double *entry_number(const struct entry_key *key, void *entry) {
    return (double *)(void *)((char *)entry + key->offset);
}

void *entry_add(struct hardware *h, const struct entry_section *s, const char *name) {
    void *entry = entry_at(h, s, (*entry_count(h, s))++);
    memset(entry, 0, s->entry_bytes);
    strcpy(entry, name);
    for (const struct entry_key *key = s->keys; key->name; key++)
        if (key->type == ENTRY_NUMBER || key->type == ENTRY_FRACTION) *entry_number(key, entry) = NAN;
    return entry;
}

/* ---- names in messages ---- */

struct entry_shown entry_show(const char *text) {
    struct entry_shown shown;
    snprintf(shown.chars, sizeof shown.chars, "%.60s", text);
    for (char *c = shown.chars; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e) *c = '?';
    return shown;
}

const char *entry_nearest(const char *word, const char *const *names, uint32_t count) {
    enum { FAR = 3 };
    const char *best = NULL;
    size_t least = FAR, length = strlen(word);
    for (uint32_t i = 0; i < count && length >= FAR; i++) /* "h100" for "h100-80g" */
        if (strncmp(names[i], word, length) == 0) return names[i];
    for (uint32_t i = 0; i < count; i++) {
        size_t distance = suggest_distance(word, names[i], FAR);
        if (distance < least) least = distance, best = names[i];
    }
    return best;
}
