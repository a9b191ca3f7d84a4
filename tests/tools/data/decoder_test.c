/* The text of tokens: byte-level and SentencePiece's spelling, special tokens, and tokenizers that are refused. */
#include "tools/data/decoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/check.h"

#define BYTES                                                                                                \
    "{\"added_tokens\": [{\"id\": 6, \"content\": \"<|end|>\", \"special\": true}, "                         \
    "{\"id\": 7, \"content\": \"<think> x\", \"special\": false}], \"decoder\": {\"type\": \"ByteLevel\"}, " \
    "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"\u0120b\": 1, \"\u010a\": 2, \"\u00c3\": 3, "    \
    "\"\u00a9\": 4, \"\u0100\": 5, \"<|end|>\": 6}}}"
#define SPACES(decoder, vocab)                                                                               \
    "{\"decoder\": " decoder ", \"model\": {\"vocab\": " vocab                                               \
    "}, \"added_tokens\": [{\"id\": 0, \"content\": "                                                        \
    "\"<s>\", \"special\": true}]}"
#define LLAMA                                                                                                \
    "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": "             \
    "\"\u2581\"}, "                                                                                          \
    "\"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, {\"type\": \"Strip\", "        \
    "\"content\": \" \", \"start\": 1, \"stop\": 0}]}"
#define WORDS                                                                                                \
    "{\"<s>\": 0, \"\u2581Hello\": 1, \"\u2581\": 2, \"<0x0A>\": 3, \"wor\": 4, \"ld\u2581x\": 5, "          \
    "\"<0xC3>\": 6, \"<0xA9>\": 7}"
#define UNIGRAM "[[\"<s>\", 0], [\"\u2581Hello\", -1.5], [\"\u2581\", -2], [\"wor\", -3]]"

static const char *write(const char *name, const char *text) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("TEST_TMPDIR"), name);
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
    return path;
}

static void spells(const char *json, const char *digits, const char *expected, size_t bytes) {
    struct decoder *decoder = NULL;
    struct zero_error error;
    char text[256];
    size_t count = 0;
    error_clear(&error);
    if (!CHECK_INT(decoder_open(write("t.json", json), &decoder, &error), ZERO_OK)) {
        fprintf(stderr, "%s\n", error.message);
        return;
    }
    for (size_t i = 0; digits[i]; i++) {
        struct spelling s = decoder_spell(decoder, (uint32_t)(digits[i] - '0'), i == 0);
        memcpy(text + count, s.bytes, s.count);
        count += s.count;
    }
    if (!CHECK_INT(count, bytes) || !CHECK_BYTES(text, expected, bytes)) fprintf(stderr, "of %s\n", digits);
    decoder_close(decoder);
}

#define SPELLS(json, digits, expected) spells(json, digits, expected, sizeof expected - 1)

static void refused(const char *json, zero_status status, const char *says) {
    struct decoder *decoder = NULL;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(decoder_open(write("t.json", json), &decoder, &error), status);
    CHECK_CONTAINS(error.message, says);
    CHECK(decoder == NULL);
}

static void of_a_directory(void) {
    char directory[4096];
    struct decoder *decoder = NULL;
    struct zero_error error;
    error_clear(&error);
    snprintf(directory, sizeof directory, "%s/model", getenv("TEST_TMPDIR"));
    mkdir(directory, 0700);
    CHECK_INT(decoder_open(directory, &decoder, &error), ZERO_E_IO);
    CHECK_CONTAINS(error.message, "model/tokenizer.json");
    write("model/tokenizer.json", BYTES);
    error_clear(&error);
    CHECK_INT(decoder_open(directory, &decoder, &error), ZERO_OK);
    decoder_close(decoder);
}

/* 2.5 million empty objects, which json-c would keep in 2 GB. */
static void a_file_of_too_many_values(void) {
    enum { OBJECTS = 2500000 };
    char *json = malloc(3 * OBJECTS + 2), *at = json;
    for (int i = 0; i < OBJECTS; i++, at += 3) memcpy(at, i ? ",{}" : "[{}", 3);
    strcpy(at, "]");
    refused(json, ZERO_E_IO, "t.json has more values than any file that is read here");
    free(json);
}

int main(void) {
    a_file_of_too_many_values();
    SPELLS(BYTES, "01210", "a b\n ba");
    SPELLS(BYTES, "34", "\xC3\xA9");       /* a character of two tokens */
    SPELLS(BYTES, "0567", "a\0<think> x"); /* byte 0; a special token is no text; an added one is as it is */
    SPELLS(BYTES, "089", "a");             /* tokens that the tokenizer does not have */
    SPELLS(SPACES(LLAMA, WORDS), "145", "Helloworld x");
    SPELLS(SPACES(LLAMA, WORDS), "1", "Hello");
    SPELLS(SPACES(LLAMA, WORDS), "1214", "Hello  Hellowor");
    SPELLS(SPACES(LLAMA, WORDS), "4367", "wor\n\xC3\xA9");
    SPELLS(SPACES("{\"type\": \"Metaspace\", \"replacement\": \"\u2581\", \"prepend_scheme\": \"always\"}",
                  UNIGRAM),
           "113", "Hello Hellowor");
    SPELLS(SPACES("{\"type\": \"Metaspace\", \"replacement\": \"\u2581\", \"prepend_scheme\": \"never\"}",
                  UNIGRAM),
           "13", " Hellowor");
    refused(SPACES("{\"type\": \"WordPiece\"}", WORDS), ZERO_E_UNSUPPORTED,
            "neither byte-level nor SentencePiece's");
    refused(SPACES("null", WORDS), ZERO_E_UNSUPPORTED, "neither byte-level");
    refused(SPACES(LLAMA, "{\"a\": -1}"), ZERO_E_IO, "is damaged");
    refused(SPACES(LLAMA, "{\"a\": 99999999999}"), ZERO_E_IO, "is damaged");
    refused(SPACES(LLAMA, "[3]"), ZERO_E_IO, "is damaged");
    refused(SPACES(LLAMA, "7"), ZERO_E_IO, "is damaged");
    refused("[", ZERO_E_IO, "t.json");
    of_a_directory();
    return check_end();
}
