#include "engine/base/name_index.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"

enum { FIRST_CAPACITY = 64 }; /* a power of two, as all are; at most half of the slots are used */

/* The slot of the name, or the empty one where it belongs. */
static uint32_t *slot_of(const struct name_index *index, const char *name, name_of_fn name_of,
                         const void *list) {
    uint32_t mask = index->capacity - 1, at = (uint32_t)(hash_string(HASH_START, name) >> 32) & mask;
    while (index->slot[at] && strcmp(name_of(list, index->slot[at] - 1), name) != 0) at = (at + 1) & mask;
    return &index->slot[at];
}

uint32_t name_index_find(const struct name_index *index, const char *name, name_of_fn name_of,
                         const void *list) {
    return index->capacity ? *slot_of(index, name, name_of, list) - 1 : UINT32_MAX;
}

static bool grow(struct name_index *index, name_of_fn name_of, const void *list) {
    struct name_index larger = {.capacity = index->capacity ? 2 * index->capacity : FIRST_CAPACITY,
                                .count = index->count};
    larger.slot = calloc(larger.capacity, sizeof *larger.slot);
    if (!larger.slot) return false;
    for (uint32_t i = 0; i < index->capacity; i++)
        if (index->slot[i])
            *slot_of(&larger, name_of(list, index->slot[i] - 1), name_of, list) = index->slot[i];
    free(index->slot);
    *index = larger;
    return true;
}

bool name_index_add(struct name_index *index, uint32_t item, name_of_fn name_of, const void *list) {
    if (2 * index->count >= index->capacity && !grow(index, name_of, list)) return false;
    *slot_of(index, name_of(list, item), name_of, list) = 1 + item;
    index->count++;
    return true;
}

void name_index_free(struct name_index *index) {
    free(index->slot);
    *index = (struct name_index){0};
}
