/* The entries of struct hardware as tables: the values of each section, and their offsets. For hardware.c, which reads
 * entries from files, and machine.c, which chooses among them. */
#pragma once

#include "tools/plan/machine/hardware.h"

enum entry_type { ENTRY_NUMBER, ENTRY_FRACTION, ENTRY_BOOL, ENTRY_NAME, ENTRY_TEXT };

struct entry_key {
    const char *name;
    enum entry_type type;
    size_t offset;
    bool required;
    const char *unit; /* for error messages */
};

struct entry_section {
    const char *name;
    const struct entry_key *keys;
    size_t list, count, entry_bytes; /* offsets in struct hardware */
};

enum { SECTION_DEVICES, SECTION_HOSTS, SECTION_LINKS, SECTION_DRIVES, SECTIONS };
extern const struct entry_section entry_sections[SECTIONS];

/* Each entry begins with its name. entry_find: NULL if there is none. entry_add: sets all numbers to NaN; the section
 * must have room. */
void *entry_at(const struct hardware *hardware, const struct entry_section *section, uint32_t index);
uint32_t *entry_count(const struct hardware *hardware, const struct entry_section *section);
void *entry_find(const struct hardware *hardware, const struct entry_section *section, const char *name);
void *entry_add(struct hardware *hardware, const struct entry_section *section, const char *name);
double *entry_number(const struct entry_key *key, void *entry);

/* A user's text, cut to the room that a message has. */
struct entry_shown {
    char chars[64];
};
struct entry_shown entry_show(const char *text);

/* The name that begins with `word`, or whose spelling is near; NULL: none. */
const char *entry_nearest(const char *word, const char *const *names, uint32_t count);
