#include "tools/data/decoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/checkpoint/json.h"
#include "engine/checkpoint/storage.h"

enum { FILE_BYTES_MAX = 256 << 20, TOKENS_MAX = 1 << 24 };

struct token {
    size_t at, count; /* in the text of all tokens */
    bool special;
};

struct decoder {
    char *text;
    struct token *token;
    uint32_t tokens;
    bool strips;
};

/* ---- spellings ---- */

/* The first code point of a text; *at goes to the next one. */
static uint32_t code_point(const char **at) {
    const unsigned char *p = (const unsigned char *)*at;
    int more = *p < 0x80 ? 0 : *p < 0xE0 ? 1 : *p < 0xF0 ? 2 : 3;
    uint32_t code = more ? *p & (0x3Fu >> more) : *p;
    int i = 1;
    for (; i <= more && p[i]; i++) code = code << 6 | (p[i] & 0x3Fu);
    *at += i;
    return code;
}

/* Bytes that stand for themselves in GPT-2's spelling; the others are the code points from 256 on, in their order. */
static bool stands_for_itself(uint32_t byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
}

/* The byte of a code point; -1: none. */
static int byte_of(uint32_t code) {
    if (code < 256) return stands_for_itself(code) ? (int)code : -1;
    uint32_t left = code - 256;
    for (int byte = 0; byte < 256; byte++)
        if (!stands_for_itself((uint32_t)byte) && left-- == 0) return byte;
    return -1;
}

/* Radford et al. 2019: each byte is a printable character. A text with another character is meant as it is. */
static void spell_bytes(FILE *out, const char *token) {
    for (const char *at = token; *at;)
        if (byte_of(code_point(&at)) < 0) {
            fputs(token, out);
            return;
        }
    while (*token) fputc(byte_of(code_point(&token)), out);
}

static const char space[] = "\xE2\x96\x81"; /* SentencePiece's U+2581 */

/* "<0x0A>" is a byte. */
static bool is_byte(const char *token, unsigned *out) {
    int end = 0;
    return sscanf(token, "<0x%2X>%n", out, &end) == 1 && end == 6 && !token[end];
}

static void spell_spaces(FILE *out, const char *token) {
    unsigned byte;
    if (is_byte(token, &byte)) {
        fputc((int)byte, out);
        return;
    }
    for (const char *found; (found = strstr(token, space)); token = found + sizeof space - 1)
        fprintf(out, "%.*s ", (int)(found - token), token);
    fputs(token, out);
}

typedef void (*spell_fn)(FILE *out, const char *token);

/* The parts of a "decoder" that say how tokens are spelled; `strips`: the first space of a text is none. */
static const struct kind {
    const char *type;
    spell_fn spell;
    bool strips;
} kinds[] = {{"ByteLevel", spell_bytes, false},
             {"Metaspace", spell_spaces, true},
             {"Replace", spell_spaces, false},
             {"ByteFallback", spell_spaces, false},
             {"Strip", NULL, true},
             {"Fuse", NULL, false}};

static const struct kind *kind_of(const struct json *part) {
    const char *type = json_string(json_get(part, "type"));
    for (size_t i = 0; type && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(type, kinds[i].type) == 0) return &kinds[i];
    return NULL;
}

/* Metaspace may say that it adds no space; a Replace may be of something else. */
static bool is_as_usual(const struct json *part, bool *strips) {
    const char *scheme = json_string(json_get(part, "prepend_scheme"));
    const char *mark = json_string(json_get(part, "replacement"));
    const struct json *pattern = json_get(part, "pattern");
    const char *from = json_string(json_get(pattern, "String")), *to = json_string(json_get(part, "content"));
    if (scheme && strcmp(scheme, "never") == 0) *strips = false;
    if (mark && strcmp(mark, space) != 0) return false;
    return !pattern || (from && to && strcmp(from, space) == 0 && strcmp(to, " ") == 0);
}

static bool read_part(const struct json *part, struct decoder *d, spell_fn *spell) {
    const struct kind *kind = kind_of(part);
    bool strips = kind && kind->strips;
    if (!kind || !is_as_usual(part, &strips)) return false;
    d->strips |= strips;
    if (kind->spell) *spell = kind->spell;
    return true;
}

static zero_status read_kind(const struct json *document, const char *path, struct decoder *d,
                             spell_fn *spell, struct zero_error *error) {
    const struct json *part = json_get(document, "decoder"), *list = json_get(part, "decoders");
    bool good = json_is_list(list) || read_part(part, d, spell);
    for (uint64_t i = 0; json_is_list(list) && i < json_count(list); i++)
        good = good && read_part(json_at(list, i), d, spell);
    if (good && *spell) return ZERO_OK;
    return error_set(error, ZERO_E_UNSUPPORTED,
                     "%s: its decoder is neither byte-level nor SentencePiece's: the numbers of tokens can "
                     "be printed without it",
                     path);
}

/* ---- tokens ---- */

struct reading {
    struct decoder *decoder;
    FILE *text;
    size_t at;
    spell_fn spell;
    const char *path;
};

static zero_status damaged(const struct reading *r, struct zero_error *error) {
    return error_set(error, ZERO_E_IO, "%s is damaged: a token has no text, or no number below %d", r->path,
                     TOKENS_MAX);
}

static zero_status make_room(struct reading *r, uint64_t token, struct zero_error *error) {
    struct decoder *d = r->decoder;
    if (token < d->tokens) return ZERO_OK;
    uint32_t more = (uint32_t)(token + 1) + d->tokens / 2;
    struct token *list = realloc(d->token, more * sizeof *list);
    if (!list) return error_set(error, ZERO_E_MEMORY, "no memory for the tokens of %s", r->path);
    memset(list + d->tokens, 0, (more - d->tokens) * sizeof *list);
    d->token = list, d->tokens = more;
    return ZERO_OK;
}

static zero_status add(struct reading *r, const char *text, uint64_t token, bool special,
                       struct zero_error *error) {
    if (!text || token >= TOKENS_MAX) return damaged(r, error);
    TRY(make_room(r, token, error));
    r->spell(r->text, text);
    size_t end = (size_t)ftell(r->text);
    r->decoder->token[token] = (struct token){r->at, end - r->at, special};
    r->at = end;
    return ZERO_OK;
}

static zero_status add_member(void *user, const char *text, const struct json *number,
                              struct zero_error *error) {
    uint64_t token = TOKENS_MAX;
    json_integer(number, &token);
    return add(user, text, token, false, error);
}

/* {"text": number}, or Unigram's [["text", score]]. */
static zero_status read_vocabulary(struct reading *r, const struct json *document, struct zero_error *error) {
    const struct json *vocabulary = json_get(json_get(document, "model"), "vocab");
    if (json_is_object(vocabulary)) return json_each(vocabulary, add_member, r, error);
    if (!json_is_list(vocabulary)) return damaged(r, error);
    for (uint64_t i = 0; i < json_count(vocabulary); i++) {
        const struct json *row = json_at(vocabulary, i);
        TRY(add(r, json_is_list(row) && json_count(row) ? json_string(json_at(row, 0)) : NULL, i, false,
                error));
    }
    return ZERO_OK;
}

static zero_status read_added(struct reading *r, const struct json *document, struct zero_error *error) {
    const struct json *list = json_get(document, "added_tokens");
    for (uint64_t i = 0; json_is_list(list) && i < json_count(list); i++) {
        const struct json *row = json_at(list, i);
        uint64_t token = TOKENS_MAX;
        bool special = false;
        json_integer(json_get(row, "id"), &token);
        json_flag(json_get(row, "special"), &special);
        TRY(add(r, json_string(json_get(row, "content")), token, special, error));
    }
    return ZERO_OK;
}

static zero_status read_tokens(struct decoder *d, const struct json *document, const char *path,
                               struct zero_error *error) {
    size_t bytes;
    struct reading r = {.decoder = d, .path = path};
    TRY(read_kind(document, path, d, &r.spell, error));
    r.text = open_memstream(&d->text, &bytes);
    if (!r.text) return error_set(error, ZERO_E_MEMORY, "no memory for the tokens of %s", path);
    zero_status status = read_vocabulary(&r, document, error);
    if (!status) status = read_added(&r, document, error);
    if (fclose(r.text) && !status)
        status = error_set(error, ZERO_E_MEMORY, "no memory for the tokens of %s", path);
    return status;
}

/* ---- interface ---- */

zero_status decoder_open(const char *path, struct decoder **out, struct zero_error *error) {
    char file[STORAGE_PATH_BYTES], *text;
    size_t bytes;
    struct stat found;
    struct json *document = NULL;
    bool directory = stat(path, &found) == 0 && S_ISDIR(found.st_mode);
    snprintf(file, sizeof file, "%s%s", path, directory ? "/tokenizer.json" : "");
    TRY(storage_read_text(storage_posix(), file, FILE_BYTES_MAX, &text, &bytes, error));
    zero_status status = json_parse(text, bytes, file, &document, error);
    free(text);
    if (status) return status;
    struct decoder *d = calloc(1, sizeof *d);
    status = d ? read_tokens(d, document, file, error)
               : error_set(error, ZERO_E_MEMORY, "no memory to read %s", file);
    json_free(document);
    if (status)
        decoder_close(d);
    else
        *out = d;
    return status;
}

void decoder_close(struct decoder *d) {
    if (!d) return;
    free(d->text);
    free(d->token);
    free(d);
}

struct spelling decoder_spell(const struct decoder *d, uint32_t token, bool first) {
    if (token >= d->tokens || d->token[token].special) return (struct spelling){"", 0};
    struct spelling s = {d->text + d->token[token].at, d->token[token].count};
    if (first && d->strips && s.count && *s.bytes == ' ') s.bytes++, s.count--;
    return s;
}
