/* What json_write_string writes: text unchanged, and each character that JSON or UTF-8 does not allow escaped. What json_parse reads
 * and refuses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/json.h"
#include "tests/check.h"

static const struct {
    const char *text, *written;
} cases[] = {
    {"", "\"\""},
    {"block.0/w", "\"block.0/w\""},
    {"\"", "\"\\\"\""},
    {"a\"b\\c", "\"a\\\"b\\\\c\""},
    {"\\\\", "\"\\\\\\\\\""},
    {"\x01 line\n\ttab\x1f\x7f", "\"\\u0001 line\\u000a\\u0009tab\\u001f\x7f\""},
    {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\""},
    {"caf\xe9.json", "\"caf\\ufffd.json\""},
    {"\xe2\x82", "\"\\ufffd\\ufffd\""},
    {"\xc0\xaf\xff", "\"\\ufffd\\ufffd\\ufffd\""},
};

static const struct {
    const char *text;
    bool read;
} documents[] = {
    {"{}", true},
    {" [1, -2.5e+3, true, false, null, \"f\xc3\xbcr, ] } NaN // '\"]\n ", true},
    {"{\"\xe2\x82\xac\": \"\xf0\x9f\x98\x80\\n\\u00e4\"}", true},
    {"{\"a\": 1} 2", false},
    {"{\"a\": 1}}", false},
    {"[1, ]", false},
    {"{\"a\": 1,\n}", false},
    {"{'a': 1}", false},
    {"[NaN]", false},
    {"[Infinity]", false},
    {"[True]", false},
    {"[1] // one", false},
    {"/* one */ [1]", false},
    {"[\"a\tb\"]", false},
    {"[\"a\\\tb\"]", false},
    {"[\"a]", false},
    {"[\"\xe9\"]", false},
    {"[1 2]", false},
    {"", false},
};

static void reads(void) {
    for (size_t i = 0; i < sizeof documents / sizeof *documents; i++) {
        struct json *read = NULL;
        struct zero_error error;
        error_clear(&error);
        zero_status status = json_parse(documents[i].text, strlen(documents[i].text), "it", &read, &error);
        if (!CHECK_INT(status, documents[i].read ? ZERO_OK : ZERO_E_IO))
            printf("  document: %s\n", documents[i].text);
        json_free(read);
    }
}

int main(void) {
    reads();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *written;
        size_t bytes;
        struct json *read = NULL;
        struct zero_error error;
        FILE *file = open_memstream(&written, &bytes);
        json_write_string(file, cases[i].text);
        fclose(file);
        CHECK_STRING(written, cases[i].written);
        error_clear(&error);
        CHECK_INT(json_parse(written, bytes, "it", &read, &error), ZERO_OK);
        if (CHECK(json_string(read)) && !strstr(written, "\\ufffd"))
            CHECK_STRING(json_string(read), cases[i].text);
        json_free(read);
        free(written);
    }
    return check_end();
}
