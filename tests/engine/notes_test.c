/* Notes, without an engine: set, replace, remove, pack; a text that the notes themselves handed out; and memory that runs out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/state/notes.h"
#include "tests/check.h"

/* ---- memory that runs out: the linker wraps what the notes allocate with ---- */

static int left = -1; /* allocations until one fails; below 0: none fails */

static int fails(void) { return left >= 0 && left-- == 0; }

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text) { return fails() ? NULL : __real_strdup(text); }
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes) { return fails() ? NULL : __real_realloc(memory, bytes); }

static struct zero_error error;

static zero_status set(struct manifest_entries *notes, const char *key, const char *value) {
    error_clear(&error);
    return notes_set(notes, key, value, false, &error);
}

static void a_note_is_replaced_and_removed(void) {
    struct manifest_entries notes = {0};
    CHECK_INT(set(&notes, "a", "1"), ZERO_OK);
    CHECK_INT(set(&notes, "b", "2"), ZERO_OK);
    CHECK_INT(set(&notes, "a", "3"), ZERO_OK);
    CHECK_INT(notes.count, 2);
    CHECK_STRING(notes_find(&notes, "a"), "3");
    CHECK_INT(set(&notes, "a", NULL), ZERO_OK);
    CHECK_INT(set(&notes, "a", NULL), ZERO_OK); /* there is none */
    CHECK(!notes_find(&notes, "a") && !notes_find(&notes, NULL));
    CHECK_STRING(notes_find(&notes, "b"), "2");
    manifest_free_entries(&notes);
}

/* The address sanitizer saw the old text being read after it was freed. */
static void a_note_is_set_from_itself(void) {
    struct manifest_entries notes = {0};
    CHECK_INT(set(&notes, "state", "some text that is longer than a pointer"), ZERO_OK);
    const char *text = notes_find(&notes, "state");
    CHECK_INT(set(&notes, "state", text), ZERO_OK);
    CHECK_STRING(notes_find(&notes, "state"), "some text that is longer than a pointer");
    CHECK_INT(set(&notes, "state", notes_find(&notes, "state") + 5), ZERO_OK);
    CHECK_STRING(notes_find(&notes, "state"), "text that is longer than a pointer");
    CHECK_INT(notes.count, 1);
    manifest_free_entries(&notes);
}

/* A checkpoint could not keep the bytes. */
static void a_note_is_utf8(void) {
    struct manifest_entries notes = {0};
    CHECK_INT(set(&notes, "caf\xe9", "1"), ZERO_E_ARGUMENT);
    CHECK_INT(set(&notes, "place", "caf\xe9"), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "must be UTF-8");
    CHECK_INT(notes.count, 0);
    CHECK_INT(set(&notes, "caf\xc3\xa9", "\xe2\x82\xac 2"), ZERO_OK);
    manifest_free_entries(&notes);
}

static void nothing_changes_without_memory(void) {
    struct manifest_entries notes = {0};
    set(&notes, "a", "1");
    for (int which = 0; which < 3; which++) {
        for (const char *key = "ab"; *key; key++) {
            char name[2] = {*key};
            left = which;
            CHECK_INT(set(&notes, name, "2"), ZERO_E_MEMORY);
            CHECK_CONTAINS(error.message, "no memory");
            left = -1;
            CHECK_INT(notes.count, 1);
            CHECK_STRING(notes_find(&notes, "a"), "1");
        }
    }
    manifest_free_entries(&notes);
}

static void notes_survive_packing(void) {
    struct manifest_entries notes = {0}, back = {0};
    char packed[NOTES_PACKED_BYTES], name[8], long_text[NOTES_PACKED_BYTES];
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "k%d", i);
        CHECK_INT(set(&notes, name, i % 2 ? "" : "a text"), ZERO_OK);
    }
    notes_pack(&notes, packed);
    CHECK(notes_unpack(packed, &back));
    CHECK_INT(back.count, notes.count);
    for (uint32_t i = 0; i < back.count; i++) {
        CHECK_STRING(back.entry[i].key, notes.entry[i].key);
        CHECK_STRING(back.entry[i].value, notes.entry[i].value);
    }
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    error_clear(&error);
    CHECK_INT(notes_set(&notes, "long", long_text, true, &error), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "a shadow keeps 2048 bytes");
    manifest_free_entries(&notes);
    manifest_free_entries(&back);
}

int main(void) {
    a_note_is_replaced_and_removed();
    a_note_is_set_from_itself();
    a_note_is_utf8();
    nothing_changes_without_memory();
    notes_survive_packing();
    return check_end();
}
