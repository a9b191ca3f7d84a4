/* The hash of a corpus' contents: of a small one every byte counts, of a large one its sizes, the ends of its files and
 * the blocks that are read; the paths do not. */
#include <fcntl.h>

#include "engine/base/hash.h"
#include "tests/check.h"
#include "tests/tools/data/files.h"
#include "tools/data/corpus.h"

static zero_status hash_of(const char *path, uint64_t *out, struct zero_error *error) {
    struct corpus *corpus = NULL;
    error_clear(error);
    if (!CHECK_INT(corpus_open(&path, 1, error, &corpus), ZERO_OK)) return error->code;
    zero_status status = corpus_contents(corpus, HASH_START, out, error);
    corpus_close(corpus);
    return status;
}

static uint64_t hash(const char *path) {
    struct zero_error error;
    uint64_t found = 0;
    CHECK_INT(hash_of(path, &found, &error), ZERO_OK);
    return found;
}

/* Writes one byte there, says whether that changed the hash of `root`, and writes it back. */
static bool counts(const char *root, const char *path, off_t at) {
    uint64_t before = hash(root);
    char byte = 0;
    int handle = open(path, O_RDWR);
    CHECK(handle >= 0 && pread(handle, &byte, 1, at) == 1);
    byte ^= 1;
    CHECK_INT(pwrite(handle, &byte, 1, at), 1);
    bool changed = hash(root) != before;
    byte ^= 1;
    CHECK_INT(pwrite(handle, &byte, 1, at), 1);
    close(handle);
    CHECK(hash(root) == before);
    return changed;
}

static void every_byte_of_a_small_corpus(void) {
    enum { BYTES = CONTENTS_SPREAD_BYTES + 100 };
    static char text[BYTES];
    mkdir("small", 0700), mkdir("moved", 0700);
    files_write("small/a", text, BYTES), files_text("small/b", "text");
    files_write("moved/c", text, BYTES), files_text("moved/d", "text");
    CHECK(hash("small") == hash("moved"));
    for (off_t at = 0; at < BYTES; at += 9001) CHECK(counts("small", "small/a", at));
    CHECK(counts("small", "small/a", BYTES - 1));
    CHECK(counts("small", "small/b", 3));
    files_text("moved/d", "tex"), files_write("moved/c", text, BYTES - 1);
    CHECK(hash("small") != hash("moved"));
    files_text("moved/d", "extt"), files_write("moved/c", text, BYTES); /* the same bytes in another order */
    CHECK(hash("small") != hash("moved"));
}

/* Sparse files: larger than what is read. */
static void a_sample_of_a_large_corpus(void) {
    enum { FILES = 3 };
    static const off_t bytes[FILES] = {40 << 20, 5, 3 * (40 << 20) + 1};
    mkdir("large", 0700);
    uint64_t total = 0, first[FILES] = {0};
    for (int i = 0; i < FILES; i++) {
        char path[32];
        snprintf(path, sizeof path, "large/%d", i);
        files_text(path, "");
        CHECK_INT(truncate(path, bytes[i]), 0);
        first[i] = total, total += (uint64_t)bytes[i];
    }
    for (int i = 0; i < FILES; i++) {
        char path[32];
        snprintf(path, sizeof path, "large/%d", i);
        CHECK(counts("large", path, 0));
        CHECK(counts("large", path, bytes[i] - 1));
    }
    for (uint64_t k = 0; k < CONTENTS_SPREAD; k += 127) {
        uint64_t at = total / CONTENTS_SPREAD * k + 77;
        bool last = at >= first[2];
        CHECK(counts("large", last ? "large/2" : "large/0", (off_t)(at - first[last ? 2 : 0])));
    }
    CHECK(!counts("large", "large/0", CONTENTS_SPREAD_BYTES + 5000)); /* the price of a bounded sample */
    uint64_t before = hash("large");
    CHECK_INT(truncate("large/0", bytes[0] + 1), 0);
    CHECK(hash("large") != before);
}

static void more_files_than_are_read(void) {
    mkdir("many", 0700);
    char path[32];
    for (int i = 0; i < 3 * CONTENTS_FILES + 1; i++) {
        snprintf(path, sizeof path, "many/%05d", i);
        files_text(path, "");
        CHECK_INT(truncate(path, i ? 10 : CONTENTS_BYTES), 0);
    }
    CHECK(hash("many") != hash("large"));
}

static void what_cannot_be_read_is_named(void) {
    const char *path = "gone";
    struct corpus *corpus = NULL;
    struct zero_error error;
    uint64_t found = 7;
    error_clear(&error);
    files_text(path, "text");
    CHECK_INT(corpus_open(&path, 1, &error, &corpus), ZERO_OK);
    CHECK_INT(truncate(path, 2), 0);
    CHECK_INT(corpus_contents(corpus, HASH_START, &found, &error), ZERO_E_IO);
    CHECK_CONTAINS(error.message, "gone had 4 bytes and has fewer now");
    unlink(path);
    error_clear(&error);
    CHECK_INT(corpus_contents(corpus, HASH_START, &found, &error), ZERO_E_IO);
    CHECK_CONTAINS(error.message, "cannot read gone: No such file");
    CHECK_INT(found, 7);
    corpus_close(corpus);
}

int main(void) {
    files_enter();
    every_byte_of_a_small_corpus();
    a_sample_of_a_large_corpus();
    more_files_than_are_read();
    what_cannot_be_read_is_named();
    return check_end();
}
