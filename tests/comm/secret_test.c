/* The job's secret, where it comes from, and what its keys and tags prove. */
#include "engine/comm/tcp/secret.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/check.h"

static const char *value, *file;

static const char *get(void *user, const char *name) {
    if (strcmp(name, "ZERO_JOB_SECRET") == 0) return value;
    return strcmp(name, "ZERO_JOB_SECRET_FILE") == 0 ? file : NULL;
}

static void found(const char *text, zero_status status, const char *part, struct secret *out) {
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(secret_find(text, get, NULL, out, &error), status);
    if (status) CHECK_CONTAINS(error.message, part);
}

static bool same(const struct secret *a, const struct secret *b) {
    return memcmp(&a->key, &b->key, sizeof a->key) == 0;
}

static void write_file(const char *path, const char *text, mode_t mode) {
    FILE *out = fopen(path, "w");
    if (!CHECK(out != NULL)) return;
    fputs(text, out);
    fclose(out);
    CHECK_INT(chmod(path, mode), 0);
}

static void where_it_comes_from(void) {
    static const char text[] = "0123456789abcdef";
    struct secret given, other, none;
    char path[256], most[SECRET_BYTES_MAX + 2];
    snprintf(path, sizeof path, "%s/secret", getenv("TEST_TMPDIR"));
    found(NULL, ZERO_OK, "", &none);
    CHECK(!none.given);
    found(text, ZERO_OK, "", &given);
    CHECK(given.given && !same(&given, &none));
    value = text;
    found(NULL, ZERO_OK, "", &other);
    CHECK(other.given && same(&given, &other));
    found("another secret, given by the host", ZERO_OK, "", &other); /* wins over the environment */
    CHECK(!same(&given, &other));
    file = path;
    found(NULL, ZERO_E_ARGUMENT, "are both set", &other);
    value = NULL;
    found(NULL, ZERO_E_ARGUMENT, "No such file", &other);
    write_file(path, "0123456789abcdef\n", 0600);
    found(NULL, ZERO_OK, "", &other);
    CHECK(same(&given, &other));
    write_file(path, "0123456789abcdef\n", 0640);
    found(NULL, ZERO_E_ARGUMENT, "other users can read it: chmod 600", &other);
    write_file(path, "short\n", 0600);
    found(NULL, ZERO_E_ARGUMENT, "has 5 bytes: a job's secret has 16 to 4096", &other);
    memset(most, 'x', sizeof most - 1), most[sizeof most - 1] = 0;
    found(most, ZERO_E_ARGUMENT, "zero_runtime.secret has 4097 bytes", &other);
    most[SECRET_BYTES_MAX] = 0;
    found(most, ZERO_OK, "", &other);
    file = getenv("TEST_TMPDIR");
    found(NULL, ZERO_E_ARGUMENT, "it is not a file", &other);
}

static void keys_differ_by_purpose(void) {
    struct key key = {{1}}, other = {{2}};
    struct text message = {"message", 7}, longer = {"xmessage", 8};
    struct key one = key_derive(&key, "a", message), two = key_derive(&key, "b", message),
               three = key_derive(&other, "a", message);
    struct key four = key_derive(&key, "a", longer), five = key_derive(&key, "ax", message),
               again = key_derive(&key, "a", message);
    const struct key *const all[] = {&one, &two, &three, &four, &five};
    for (size_t i = 0; i < 5; i++)
        for (size_t j = 0; j < i; j++) CHECK(memcmp(all[i], all[j], sizeof one) != 0);
    CHECK_INT(memcmp(&one, &again, sizeof one), 0);
    struct tag a = key_tag(&key, "a"), b = key_tag(&key, "b");
    CHECK(!tag_same(&a, &b));
}

static void seals_hold(void) {
    uint8_t message[3] = {1, 2, 3};
    struct text parts[2] = {{message, 1}, {message + 1, 2}};
    struct seal out = {.key = {{7}}}, in = out, stale = out;
    struct tag first = seal_next(&out, parts, 2), second = seal_next(&out, parts, 2);
    CHECK(!tag_same(&first, &second));
    CHECK(seal_fits(&in, parts, 2, &first));
    CHECK(!seal_fits(&in, parts, 2, &first));     /* the same message again */
    CHECK(!seal_fits(&stale, parts, 2, &second)); /* the first was left out */
    for (uint32_t bit = 0; bit < 8 * (sizeof message + sizeof first); bit++) {
        struct seal fresh = {.key = {{7}}};
        struct tag tag = first;
        uint8_t *byte = bit / 8 < sizeof message ? message + bit / 8 : tag.byte + bit / 8 - sizeof message;
        *byte ^= (uint8_t)(1 << bit % 8);
        CHECK(!seal_fits(&fresh, parts, 2, &tag));
        *byte ^= (uint8_t)(1 << bit % 8);
        fresh.count = 0;
        CHECK(seal_fits(&fresh, parts, 2, &first));
    }
    struct seal other = {.key = {{8}}};
    CHECK(!seal_fits(&other, parts, 2, &first));
}

int main(void) {
    where_it_comes_from();
    keys_differ_by_purpose();
    seals_hold();
    return check_end();
}
