/* The strict scanner: valid JSON passes; text that is almost JSON is refused, and the message names the place. */
#include "engine/config/text/scan.h"
#include "tests/check.h"

#include <stdlib.h>

static const char *const good[] = {
    "{}",
    " \t\r\n{ } \n",
    "{\"a\": [], \"b\": {}, \"c\": [[1], {\"a\": 2}]}",
    ("{\"a\": -0, \"b\": 0.5, \"c\": 1e9, \"d\": -1.25E-3, \"e\": 5e+8, \"f\": true, \"g\": false, \"h\": "
     "null}"),
    "{\"a\": {\"x\": 1}, \"b\": {\"x\": 1}}",
    "{\"\\u0061\": \"\\ud83d\\ude00 \\\\ \\\" \\/ \\b\\f\\n\\r\\t\"}",
    "{\"\xc3\xa9\": \"\xe2\x82\xac \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf\"}",
};

static const struct {
    const char *text, *message;
} bad[] = {
    {"", "t:1:1: the text is empty: a configuration is one JSON object"},
    {"[]", "t:1:1: a configuration is one JSON object: it starts with {"},
    {"{\"a\": 1,}", "t:1:9: a key is missing here; JSON has no trailing commas"},
    {"{\"a\": [1,]}", "t:1:10: a value is missing here; JSON has no trailing commas"},
    {"{\n  \"a\": NaN}", "t:2:8: NaN, Infinity and +1 are not JSON: write a finite number"},
    {"{\"a\": -Infinity}", "t:1:7: a number needs a digit here; NaN and Infinity are not JSON"},
    {"{'a': 1}", "t:1:2: strings stand in double quotes"},
    {"{\"a\": 'b'}", "t:1:7: strings stand in double quotes"},
    {"{a: 1}", "t:1:2: a key in double quotes is expected here; JSON has no comments"},
    {"{// no\n\"a\": 1}", "t:1:2: a key in double quotes is expected here; JSON has no comments"},
    {"{\"a\": 1 /* no */}", "t:1:9: a comma or } is expected here"},
    {"{\"a\": /* no */ 1}", "t:1:7: JSON has no comments: remove it"},
    {"{\"a\": 01}", "t:1:7: a number may not start with 0"},
    {"{\"a\": 1.}", "t:1:7: a number needs a digit after the point"},
    {"{\"a\": 1e}", "t:1:7: a number needs a digit in the exponent"},
    {"{\"a\": .5}",
     "t:1:7: a value is expected here: an object, a list, a string, a number, true, false or null"},
    {"{\"a\": True}", "t:1:7: true and false are written in lower case"},
    {"{\"a\": 1} x", "t:1:10: text after the end of the object: remove it"},
    {"{\"a\": 1", "t:1:8: a comma or } is expected here"},
    {"{\"a\": \"b", "t:1:7: a string has no end"},
    {"{\"a\": \"b\n\"}", "t:1:9: a control character in a string: write it as \\n, \\t or \\u00XX"},
    {"{\"a\": \"\\x\"}", "t:1:8: an unknown escape: write \\\\ for a backslash"},
    {"{\"a\": \"\\u12\"}", "t:1:8: \\u needs four hexadecimal digits"},
    {"{\"a\": \"\\u0000\"}", "t:1:8: \\u0000 cannot stand in a key or a path"},
    {"{\"a\": \"\\ud800\"}", "t:1:8: a high surrogate without its low surrogate"},
    {"{\"a\": \"\\ud800\\u0041\"}", "t:1:8: a high surrogate without its low surrogate"},
    {"{\"a\": \"\\udc00\"}", "t:1:8: a low surrogate without its high surrogate"},
    {"{\"a\": \"\xff\"}", "t:1:8: this is not UTF-8: save the file as UTF-8"},
    {"{\"a\": \"\xc0\xaf\"}", "t:1:8: this is not UTF-8: save the file as UTF-8"},
    {"{\"a\": \"\xe0\x80\xaf\"}", "t:1:8: this is not UTF-8: save the file as UTF-8"},
    {"{\"a\": \"\xed\xa0\x80\"}", "t:1:8: this is not UTF-8: save the file as UTF-8"},
    {"{\"a\": \"\xf4\x90\x80\x80\"}", "t:1:8: this is not UTF-8: save the file as UTF-8"},
    {"{\"a\": \"\xe2\x82\"}", "t:1:8: this is not UTF-8: save the file as UTF-8"},
    {"\xef\xbb\xbf{}", "t:1:1: a byte order mark: save the file as UTF-8 without one"},
    {"{\"a\": 1,\n \"a\": 2}", "t:2:2: key \"a\" stands twice in one object: remove one"},
    {"{\"a\": 1, \"b\": {\"a\": 1}, \"\\u0061\": 2}",
     "t:1:25: key \"a\" stands twice in one object: remove one"},
    {"{\"a\" 1}", "t:1:6: a colon is expected after the key"},
};

static void tables(void) {
    struct zero_error error;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        error_clear(&error);
        if (!CHECK_INT(config_scan(good[i], strlen(good[i]), "t", &error), ZERO_OK))
            fprintf(stderr, "%s\n", good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        error_clear(&error);
        CHECK_INT(config_scan(bad[i].text, strlen(bad[i].text), "t", &error), ZERO_E_CONFIG);
        CHECK_STRING(error.message, bad[i].message);
    }
}

/* JSON that people edit, and the strict JSON that it becomes. Strict JSON stays as it is. */
static const struct {
    const char *text, *strict;
} edited[] = {
    {"{ \"a\": [1, {}] ,\n \"b\" : 'c' }", "{ \"a\": [1, {}] ,\n \"b\" : \"c\" }"},
    {"\xef\xbb\xbf// first\n{\"a\": 1} # last", " \n{\"a\": 1}  "},
    {"{\"a\": 1, # one\n \"b\": [1, /* two */ 2, ], // three\n}", "{\"a\": 1,  \n \"b\": [1,   2 ]  \n}"},
    {"{\"a\": [1 /**/ , /* , */ ] /***/ }", "{\"a\": [1      ]   }"},
    {"{a: 1, zero_2$: {'b-c.d': 2,},}", "{\"a\": 1, \"zero_2$\": {\"b-c.d\": 2}}"},
    {"{'a\\'\"b\\\"': \"it\\'s # no 'comment'\"}", "{\"a'\\\"b\\\"\": \"it's # no 'comment'\"}"},
    {"{\"a\": Infinity, \"b\": [-Infinity]}", "{\"a\": 1e999, \"b\": [-1e999]}"},
    {"{\"path\": \"/* no comment */ // nor this\"}", "{\"path\": \"/* no comment */ // nor this\"}"},
};

static const struct {
    const char *text, *message;
} not_edited[] = {
    {"{\"a\": 1 /* one }", "t:1:9: a comment has no end: close it with */"},
    {"/*/ {}", "t:1:1: a comment has no end: close it with */"},
    {"# {}", "t:1:5: the text is empty: a configuration is one JSON object"},
    {"{\"a\": 1,, }", "t:1:9: a key is expected here"},
    {"{,}", "t:1:2: a key is expected here"},
    {"{\"a\": [,]}", "t:1:8: a value is missing here"},
    {"{\"a\": }", "t:1:7: a value is missing here"},
    {"{\"a\": b}",
     "t:1:7: a value is expected here: an object, a list, a string, a number, true, false or null"},
    {"{a b: 1}", "t:1:4: a colon is expected after the key"},
    {"{\"a\": 1\n \"b\": 2}", "t:2:2: a comma or } is expected here"},
    {"{'a\": 1}", "t:1:2: a string has no end"},
    {"{a: 1, // one\n  'a': 2}", "t:2:3: key \"a\" stands twice in one object: remove one"},
    {"{\"a\": '''b'''}", "t:1:9: a comma or } is expected here"},
    {"\xef\xbb\xbf{\"a\": NaN}", "t:1:7: NaN, Infinity and +1 are not JSON: write a finite number"},
    {"{\"a\": Infinite}", "t:1:7: NaN, Infinity and +1 are not JSON: write a finite number"},
    {"{\"a\": True,}", "t:1:7: true and false are written in lower case"},
    {"{\"a\": \"b\xff\"}", "t:1:9: this is not UTF-8: save the file as UTF-8"},
    {"{a\xc3\xa9: 1}", "t:1:3: a colon is expected after the key"},
};

static void edited_texts(void) {
    struct zero_error error;
    char *out;
    for (size_t i = 0; i < sizeof edited / sizeof edited[0]; i++) {
        error_clear(&error);
        if (!CHECK_INT(config_scan_edited(edited[i].text, strlen(edited[i].text), "t", &out, &error),
                       ZERO_OK))
            fprintf(stderr, "%s\n", error.message);
        if (CHECK(out)) CHECK_STRING(out, edited[i].strict);
        CHECK_INT(config_scan(edited[i].strict, strlen(edited[i].strict), "t", &error), ZERO_OK);
        CHECK(config_scan_is_text(edited[i].text));
        free(out);
    }
    for (size_t i = 0; i < sizeof not_edited / sizeof not_edited[0]; i++) {
        error_clear(&error);
        CHECK_INT(config_scan_edited(not_edited[i].text, strlen(not_edited[i].text), "t", &out, &error),
                  ZERO_E_CONFIG);
        CHECK_STRING(error.message, not_edited[i].message);
        CHECK(!out);
    }
    static const char *const paths[] = {"", "a.json", "//host/a.json", "#1.json", "./{a}", "/*", "'{}'"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (!CHECK(!config_scan_is_text(paths[i]))) fprintf(stderr, "%s\n", paths[i]);
}

static void limits(void) {
    struct zero_error error;
    char deep[256] = "{\"a\":";
    memset(deep + 5, '[', 40);
    error_clear(&error);
    CHECK_INT(config_scan(deep, strlen(deep), "t", &error), ZERO_E_CONFIG);
    CHECK_STRING(error.message, "t:1:37: objects and lists are nested more than 32 deep");
    char *out;
    error_clear(&error);
    CHECK_INT(config_scan_edited(deep, strlen(deep), "t", &out, &error), ZERO_E_CONFIG);
    CHECK_STRING(error.message, "t:1:37: objects and lists are nested more than 32 deep");

    size_t length = (16 << 20) + 1;
    char *large = malloc(length);
    if (!CHECK(large)) return;
    memset(large, ' ', length);
    error_clear(&error);
    CHECK_INT(config_scan(large, length, "t", &error), ZERO_E_CONFIG);
    CHECK_STRING(error.message, "t:1:1: the text is larger than 16 MiB: this is not a configuration");

    char *at = large;
    at += sprintf(at, "{");
    for (int i = 0; i < 1100; i++) at += sprintf(at, "%s\"k%d\": 1", i ? ", " : "", i);
    sprintf(at, "}");
    error_clear(&error);
    CHECK_INT(config_scan(large, strlen(large), "t", &error), ZERO_E_CONFIG);
    CHECK_CONTAINS(error.message, "more than 1024 keys");
    error_clear(&error);
    CHECK_INT(config_scan_edited(large, strlen(large), "t", &out, &error), ZERO_E_CONFIG);
    CHECK_CONTAINS(error.message, "more than 1024 keys");
    error_clear(&error);
    CHECK_INT(config_scan_edited("{\0}", 3, "t", &out, &error), ZERO_E_CONFIG);
    CHECK_STRING(error.message, "t:1:2: a NUL byte: this is not a JSON file");
    free(large);
}

int main(void) {
    tables();
    edited_texts();
    limits();
    return check_end();
}
