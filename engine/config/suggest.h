/* Suggestions for a misspelled or misplaced key. */
#pragma once

#include <stddef.h>

/* The number of insertions, deletions, substitutions and swaps of neighboring letters between two words, ignoring case;
 * at most `limit` + 1. */
size_t suggest_distance(const char *a, const char *b, size_t limit);

/* Writes a clause for the error message about the unknown key `leaf` in the object `parent` ("" for the top), without
 * a final period. */
void suggest_key(const char *parent, const char *leaf, char *out, size_t out_bytes);

struct config_key;

/* Writes the key's choice that is nearest to `text`; "auto" is one where the key takes it. "" if none is near. */
void suggest_choice(const struct config_key *key, const char *text, char *out, size_t out_bytes);
