/* Finds items of a list by name: a hash table of their numbers, so that 100,000 parameters are declared and loaded in moments. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct name_index {
    uint32_t *slot; /* 1 + an item's number; 0: empty */
    uint32_t capacity, count;
};

/* The name of an item of `list`. */
typedef const char *(*name_of_fn)(const void *list, uint32_t item);

/* UINT32_MAX: there is none. */
uint32_t name_index_find(const struct name_index *index, const char *name, name_of_fn name_of,
                         const void *list);

/* The item is in the list already, under a name that is new. False: no memory, and nothing changed. */
bool name_index_add(struct name_index *index, uint32_t item, name_of_fn name_of, const void *list);

void name_index_free(struct name_index *index);
