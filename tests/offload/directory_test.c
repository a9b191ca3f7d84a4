/* What a text in nvme_path means, which levels are made, and where files with names lie. */
#include "offload/directory.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/synced.h"

static char root[200]; /* of this test */

static const char *in_root(const char *name) {
    static char path[4][PATH_MAX];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, PATH_MAX, "%s/%s", root, name);
    return out;
}

static zero_status path_of(const char *text, bool named, char *out, struct zero_error *error) {
    char *path = NULL;
    error_clear(error);
    zero_status status = swap_directory_path(text, named, &path, error);
    snprintf(out, PATH_MAX, "%s", status ? "" : path);
    free(path);
    return status;
}

/* ---- the text ---- */

static void set(const char *name, const char *value) {
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static void texts(void) {
    /* clang-format off */
    static const struct {
        const char *text, *path;
    } cases[] = {
        {"/a/b",                 "/a/b"},
        {"a",                    "a"},
        {"~",                    "/home/u"},
        {"~/x/y",                "/home/u/x/y"},
        {"~v/x",                 "~v/x"},
        {"/a/~",                 "/a/~"},
        {"$SCRATCH",             "/scratch/u"},
        {"$SCRATCH/$JOB.swap",   "/scratch/u/7.swap"},
        {"/x${JOB}y",            "/x7y"},
        {"/price/5$",            "/price/5$"},
        {"/a$/b",                "/a$/b"},
        {"/a${JOB",              "/a${JOB"},
        {"${}",                  "${}"},
    };
    /* clang-format on */
    char path[PATH_MAX];
    struct zero_error error;
    set("HOME", "/home/u"), set("SCRATCH", "/scratch/u"), set("JOB", "7");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_INT(path_of(cases[i].text, false, path, &error), ZERO_OK);
        CHECK_STRING(path, cases[i].path);
    }
}

static void variables_that_are_not_set(void) {
    static const struct {
        const char *text, *name;
    } cases[] = {
        {"$NO_SUCH/x", "NO_SUCH"}, {"/x/${NO_SUCH}", "NO_SUCH"}, {"$EMPTY", "EMPTY"}, {"~/x", "HOME"}};
    char path[PATH_MAX];
    struct zero_error error;
    set("HOME", NULL), set("NO_SUCH", NULL), set("EMPTY", "");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_INT(path_of(cases[i].text, false, path, &error), ZERO_E_CONFIG);
        CHECK_CONTAINS(error.message, cases[i].text), CHECK_CONTAINS(error.message, cases[i].name);
        CHECK_CONTAINS(error.message, "set it for every rank");
    }
}

static void the_swap_variable_has_a_value(void) {
    static const struct {
        const char *swap, *slurm, *path;
    } cases[] = {{NULL, NULL, "/var/tmp"},
                 {"", "", "/var/tmp"},
                 {NULL, "/local/7", "/local/7"},
                 {"/d", "/local/7", "/d"}};
    char path[PATH_MAX];
    struct zero_error error;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set("ZERO_SWAP", cases[i].swap), set("SLURM_TMPDIR", cases[i].slurm);
        CHECK_INT(path_of("$ZERO_SWAP", false, path, &error), ZERO_OK);
        CHECK_STRING(path, cases[i].path);
    }
}

static void a_text_that_grows_too_long(void) {
    static char value[PATH_MAX / 2 + 1];
    char path[PATH_MAX];
    struct zero_error error;
    memset(value, 'x', sizeof value - 1);
    set("LONG", value);
    CHECK_INT(path_of("$LONG", false, path, &error), ZERO_OK);
    CHECK_INT(path_of("$LONG$LONG", false, path, &error), ZERO_E_CONFIG);
}

/* ---- the directory ---- */

static void missing_levels_are_made(void) {
    struct swap_directory d;
    struct zero_error error;
    struct stat found;
    error_clear(&error);
    set("DEEP", in_root("a"));
    CHECK_INT(swap_directory_open("$DEEP/b//c/", false, &d, &error), ZERO_OK);
    CHECK_STRING(d.path, in_root("a/b//c/"));
    CHECK_INT(stat(in_root("a/b"), &found), 0), CHECK_INT(found.st_mode & 0777, 0700);
    CHECK_INT(stat(in_root("a/b/c"), &found), 0), CHECK_INT(found.st_mode & 0777, 0700);
    CHECK(was_synced(root) && was_synced(in_root("a")) && was_synced(in_root("a/b")));
    swap_directory_close(&d);
    CHECK_INT(creat(in_root("file"), 0600) >= 0, 1);
    CHECK_INT(swap_directory_open(in_root("file/x"), false, &d, &error), ZERO_E_IO);
    CHECK_CONTAINS(error.message, in_root("file/x"));
}

/* As /var/tmp is. */
static const char *a_shared_directory(const char *name) {
    const char *shared = in_root(name);
    CHECK_INT(mkdir(shared, 0700), 0), CHECK_INT(chmod(shared, 01777), 0);
    return shared;
}

static void named_files_lie_in_a_directory_of_their_own(void) {
    struct swap_directory d;
    struct zero_error error;
    struct stat found;
    char path[PATH_MAX], own[PATH_MAX];
    const char *shared = a_shared_directory("shared");
    error_clear(&error);
    snprintf(own, sizeof own, "%s/zero-%ld", shared, (long)geteuid());
    CHECK_INT(path_of(shared, true, path, &error), ZERO_OK), CHECK_STRING(path, own);
    CHECK_INT(path_of(shared, false, path, &error), ZERO_OK), CHECK_STRING(path, shared);
    for (int again = 0; again < 2; again++) {
        CHECK_INT(swap_directory_open(shared, true, &d, &error), ZERO_OK);
        CHECK_STRING(d.path, own);
        CHECK(was_synced(shared));
        CHECK_INT(stat(own, &found), 0), CHECK_INT(found.st_mode & 0777, 0700), swap_directory_close(&d);
    }
    CHECK_INT(chmod(own, 0755), 0);
    CHECK_INT(swap_directory_open(shared, true, &d, &error), ZERO_E_IO);
    CHECK_CONTAINS(error.message, own), CHECK_CONTAINS(error.message, "not private");
    CHECK_INT(swap_directory_open(shared, false, &d, &error), ZERO_OK); /* nameless files need no directory */
    CHECK_STRING(d.path, shared);
    swap_directory_close(&d);

    error_clear(&error);
    const char *planted = a_shared_directory("planted");
    snprintf(own, sizeof own, "%s/zero-%ld", planted, (long)geteuid());
    CHECK_INT(symlink(in_root("a"), own), 0);
    CHECK_INT(swap_directory_open(planted, true, &d, &error), ZERO_E_IO);
    CHECK_CONTAINS(error.message, own);

    CHECK_INT(mkdir(in_root("private"), 0755), 0);
    CHECK_INT(path_of(in_root("private"), true, path, &error), ZERO_OK),
        CHECK_STRING(path, in_root("private"));
}

static void filesystems_that_are_no_drive(void) {
    struct swap_directory d;
    struct zero_error error;
    char name[64];
    error_clear(&error);
    snprintf(name, sizeof name, "/dev/shm/zero-directory-test-%ld", (long)getpid());
    CHECK_INT(swap_directory_open(name, false, &d, &error), ZERO_OK);
    CHECK_CONTAINS(d.caution, "is on tmpfs: its files take memory");
    swap_directory_close(&d);
    CHECK_INT(rmdir(name), 0);
}

int main(void) {
    snprintf(root, sizeof root, "%s/directory-XXXXXX",
             getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    if (!CHECK(mkdtemp(root) != NULL)) return check_end();
    texts();
    variables_that_are_not_set();
    the_swap_variable_has_a_value();
    a_text_that_grows_too_long();
    missing_levels_are_made();
    named_files_lie_in_a_directory_of_their_own();
    filesystems_that_are_no_drive();
    return check_end();
}
