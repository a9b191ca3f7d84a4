/* The first failure is kept; names and meanings exist for every code. */
#include "engine/base/error.h"
#include "engine/base/status.h"

#include <string.h>

#include "tests/check.h"

static void first_failure_is_kept(void) {
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(error_set(&error, ZERO_E_IO, "write of %d bytes failed", 3), ZERO_E_IO);
    CHECK_INT(error_set(&error, ZERO_E_PEER, "later"), ZERO_E_PEER);
    CHECK_INT(error.code, ZERO_E_IO);
    CHECK_STRING(error.message, "write of 3 bytes failed");
    struct zero_error copy;
    error_clear(&copy);
    CHECK_INT(error_pass(&copy, &error), ZERO_E_IO);
    CHECK_STRING(copy.message, "write of 3 bytes failed");
    CHECK_INT(error_set(NULL, ZERO_E_ARGUMENT, "no place to write"), ZERO_E_ARGUMENT);
    CHECK_INT(error_pass(NULL, &error), ZERO_E_IO);
}

static void every_code_has_a_name(void) {
    CHECK_STRING(zero_status_name(ZERO_E_PEER), "ZERO_E_PEER");
    CHECK_STRING(zero_status_meaning(ZERO_OK), "success");
    CHECK_STRING(zero_status_name((zero_status)999), "unknown");
}

/* What failed and what to do stay readable, whatever name is between. */
static void a_long_name_is_cut(void) {
    struct zero_error error;
    char name[5000] = "";
    memset(name, 'n', sizeof name - 1);
    error_clear(&error);
    error_set(&error, ZERO_E_ARGUMENT, "no file \"%s\": give another", name);
    CHECK_INT(strncmp(error.message, "no file \"nnn", 12), 0);
    CHECK_CONTAINS(error.message, "n ... n");
    CHECK_CONTAINS(error.message, "nnn\": give another");
    CHECK(strlen(error.message) > sizeof error.message - 12);
}

static void a_message_is_one_line(void) {
    struct zero_error error;
    error_clear(&error);
    error_set(&error, ZERO_E_IO, "no tensor \"%s\"", "\x1b[31m\nr\xc2\x9bot\x7f gr\xc3\xbcn");
    CHECK_STRING(error.message, "no tensor \"?[31m?r??ot? gr\xc3\xbcn\"");
}

int main(void) {
    a_message_is_one_line();
    a_long_name_is_cut();
    first_failure_is_kept();
    every_code_has_a_name();
    return check_end();
}
