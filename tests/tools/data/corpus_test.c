/* Files become one stream in the order of their paths, through a bounded number of open files; what is wrong
 * with a file is said in one sentence that names it. */
#include "tools/data/corpus.h"

#include <fcntl.h>

#include "tools/data/order.h"
#include "tools/data/reader.h"

#include "tests/check.h"
#include "tests/tools/data/files.h"

static struct corpus *open_paths(const char *const *paths, uint32_t count) {
    struct zero_error error;
    error_clear(&error);
    struct corpus *corpus = NULL;
    if (!CHECK_INT(corpus_open(paths, count, &error, &corpus), ZERO_OK))
        fprintf(stderr, "%s\n", error.message);
    return corpus;
}

static void expect_error(const char *path, zero_status code, const char *part) {
    struct zero_error error;
    error_clear(&error);
    struct corpus *corpus = NULL;
    CHECK_INT(corpus_open(&path, 1, &error, &corpus), code);
    CHECK_CONTAINS(error.message, part);
    CHECK_CONTAINS(error.message, path);
    corpus_close(corpus);
}

static void expect_stream(const struct corpus *corpus, const char *text) {
    struct zero_error error;
    error_clear(&error);
    struct reader *reader = NULL;
    int32_t tokens[64];
    CHECK_INT(corpus->tokens, strlen(text));
    CHECK_INT(reader_open(corpus, 256, &error, &reader), ZERO_OK);
    CHECK_INT(reader_read(reader, 0, corpus->tokens, tokens, &error), ZERO_OK);
    for (uint64_t i = 0; i < corpus->tokens; i++) CHECK_INT(tokens[i], text[i]);
    reader_close(reader);
}

static void files_are_sorted_by_path(void) {
    mkdir("tree", 0700), mkdir("tree/b", 0700), mkdir("tree/b-", 0700);
    files_text("tree/z", "4"), files_text("tree/b/x", "23"), files_text("tree/b-/x", "1");
    files_text("tree/a", "0"), files_text("tree/empty", "");
    CHECK_INT(symlink("tree", "tree/loop"), 0);
    struct corpus *corpus = open_paths((const char *[]){"tree"}, 1);
    CHECK_INT(corpus->file_count, 4);
    expect_stream(corpus,
                  "01234"); /* '-' comes before '/': whole paths are compared, not names level by level */
    corpus_close(corpus);
    corpus = open_paths((const char *[]){"tree/z", "tree/b", "tree/z"}, 3);
    expect_stream(corpus, "234"); /* sorted over all paths given, each file once */
    corpus_close(corpus);
}

static void hidden_directories_are_left_out(void) {
    mkdir("src", 0700), mkdir("src/.git", 0700), mkdir(".dot", 0700);
    files_text("src/a", "0"), files_text("src/.b", "1"), files_text("src/.git/c", "no"),
        files_text(".dot/d", "2");
    struct corpus *corpus = open_paths((const char *[]){"src"}, 1);
    expect_stream(corpus, "10");
    corpus_close(corpus);
    corpus = open_paths((const char *[]){".dot"}, 1); /* asked for by name */
    expect_stream(corpus, "2");
    corpus_close(corpus);
}

static void the_hash_covers_paths_and_sizes(void) {
    static const char *const names[] = {"same/a", "same/b", "same/b"}, *const texts[] = {"12", "12", "123"};
    uint64_t hashes[3];
    mkdir("same", 0700);
    for (int i = 0; i < 3; i++) {
        files_text(names[i], texts[i]);
        struct corpus *corpus = open_paths(&names[i], 1);
        hashes[i] = corpus_hash(corpus, 1);
        CHECK(corpus_hash(corpus, 1) == hashes[i]);
        CHECK(corpus_hash(corpus, 2) != hashes[i]);
        corpus_close(corpus);
    }
    CHECK(hashes[0] != hashes[1]);
    CHECK(hashes[1] != hashes[2]);
}

static void any_range_can_be_read(void) {
    enum { FILES = 40, BYTES = 100 };
    mkdir("many", 0700);
    for (int i = 0; i < FILES; i++) { /* more files than windows */
        char path[32], text[BYTES];
        snprintf(path, sizeof path, "many/%03d", i);
        memset(text, i, sizeof text);
        files_write(path, text, sizeof text);
    }
    struct zero_error error;
    error_clear(&error);
    struct corpus *corpus = open_paths((const char *[]){"many"}, 1);
    struct reader *reader = NULL;
    int32_t tokens[FILES * BYTES];
    CHECK_INT(reader_open(corpus, 256, &error, &reader), ZERO_OK);
    for (uint64_t first = 0; first < FILES * BYTES; first += 37) {
        uint64_t count = (first * 7) % (FILES * BYTES - first) + 1;
        CHECK_INT(reader_read(reader, first, count, tokens, &error), ZERO_OK);
        CHECK_INT(tokens[0], first / BYTES);
        CHECK_INT(tokens[count - 1], (first + count - 1) / BYTES);
    }
    CHECK_INT(reader_read(reader, FILES * BYTES, 1, tokens, &error), ZERO_E_ARGUMENT);
    reader_close(reader);
    corpus_close(corpus);
}

static void reads_join(void) {
    enum { TOKENS = 2 * READER_BYTES }; /* of two bytes: four reads */
    uint16_t *tokens = malloc(2 * TOKENS);
    int32_t *read = malloc(4 * TOKENS);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (uint16_t)(i * 2654435761u >> 16);
    files_tokens("big.bin", TOKEN_FILE_MAGIC, 1, TOKENS, tokens, TOKENS);
    struct zero_error error;
    error_clear(&error);
    struct corpus *corpus = open_paths((const char *[]){"big.bin"}, 1);
    struct reader *reader = NULL;
    CHECK_INT(corpus->tokens, TOKENS);
    CHECK_INT(reader_open(corpus, 65536, &error, &reader), ZERO_OK);
    CHECK_INT(reader_read(reader, 0, TOKENS, read, &error), ZERO_OK);
    int wrong = 0;
    for (int i = 0; i < TOKENS; i++) wrong += read[i] != tokens[i];
    CHECK_INT(wrong, 0);
    reader_close(reader);
    corpus_close(corpus);
    free(tokens), free(read);
}

static void bad_files_are_named(void) {
    uint16_t tokens[4] = {1, 2, 300, 4};
    expect_error("missing", ZERO_E_IO, "No such file");
    files_text("nothing", "");
    expect_error("nothing", ZERO_E_ARGUMENT, "no tokens");
    files_text("short.bin", "abc");
    expect_error("short.bin", ZERO_E_IO, "shorter than the 1024 bytes");
    files_tokens("magic.bin", 7, 1, 4, tokens, 4);
    expect_error("magic.bin", ZERO_E_IO, "magic number is 7");
    files_tokens("version.bin", TOKEN_FILE_MAGIC, 3, 4, tokens, 4);
    expect_error("version.bin", ZERO_E_IO, "version 3, expected 1");
    files_tokens("cut.bin", TOKEN_FILE_MAGIC, 1, 9, tokens, 4);
    expect_error("cut.bin", ZERO_E_IO, "truncated: its header says 9 tokens, the file holds 4");
    files_tokens("long.bin", TOKEN_FILE_MAGIC, 1, 3, tokens, 4);
    expect_error("long.bin", ZERO_E_IO,
                 "has 1032 bytes, and its header says 3 tokens, which end at byte 1030");
    files_tokens("odd.bin", TOKEN_FILE_MAGIC, 1, 3, tokens, 4);
    CHECK_INT(truncate("odd.bin", 1031), 0);
    expect_error("odd.bin", ZERO_E_IO, "has 1031 bytes");
    mkdir("mixed", 0700);
    files_tokens("mixed/a.bin", TOKEN_FILE_MAGIC, 1, 4, tokens, 4), files_text("mixed/b", "text");
    expect_error("mixed", ZERO_E_ARGUMENT, "do not mix");
    if (geteuid() != 0) { /* root reads everything */
        files_text("closed", "text"), chmod("closed", 0);
        expect_error("closed", ZERO_E_IO, "Permission denied");
    }
}

static void tokens_outside_the_vocabulary_are_refused(void) {
    uint16_t tokens[4] = {1, 2, 300, 4};
    files_tokens("four.bin", TOKEN_FILE_MAGIC, 1, 4, tokens, 4);
    struct zero_error error;
    error_clear(&error);
    struct corpus *corpus = open_paths((const char *[]){"four.bin"}, 1);
    struct reader *reader = NULL;
    int32_t out[4];
    CHECK_INT(reader_open(corpus, 256, &error, &reader), ZERO_OK);
    CHECK_INT(reader_read(reader, 0, 4, out, &error), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "token 2 of four.bin is 300, but the model's vocab_size is 256");
    reader_close(reader);
    corpus_close(corpus);
}

static uint64_t contents_of(const char *path) {
    struct zero_error error;
    uint64_t contents = 0;
    struct corpus *corpus = open_paths(&path, 1);
    CHECK_INT(corpus_contents(corpus, 1, &contents, &error), ZERO_OK);
    corpus_close(corpus);
    return contents;
}

static void masks_leave_targets_out(void) {
    uint16_t tokens[4] = {1, 2, 3, 4};
    struct zero_error error;
    int32_t targets[7] = {9, 9, 9, 9, 9, 9, 9};
    static const int32_t expected[7] = {9, 9, 9, -1, 9, 9, -1};
    error_clear(&error);
    mkdir("masked", 0700);
    files_tokens("masked/a.bin", TOKEN_FILE_MAGIC, 1, 4, tokens, 4);
    files_tokens("masked/b.bin", TOKEN_FILE_MAGIC, 1, 4, tokens, 4);
    uint64_t without = contents_of("masked");
    files_write("masked/b.mask", "\0\1\1\0", 4); /* a.bin has none */
    uint64_t with = contents_of("masked");
    CHECK(with != without);
    struct corpus *corpus = open_paths((const char *[]){"masked"}, 1);
    struct reader *reader = NULL;
    CHECK_INT(corpus->file_count, 2);
    CHECK_INT(reader_open(corpus, 256, &error, &reader), ZERO_OK);
    CHECK_INT(reader_mask(reader, 1, 7, targets, &error), ZERO_OK);
    for (int i = 0; i < 7; i++) CHECK_INT(targets[i], expected[i]);
    reader_close(reader);
    corpus_close(corpus);
    files_write("masked/b.mask", "\0\1\1\1", 4);
    CHECK(contents_of("masked") != with);
}

/* The target after the end of a document begins another one; a mask may say that a token of that number ends none. */
static void ends_are_parted_from_tokens_inside(void) {
    uint16_t tokens[8] = {1, 5, 2, 5, 3, 5, 4, 4};
    int32_t read[7], targets[7];
    static const int32_t plain[7] = {5, -2, 5, -2, 5, -2, 4}, masked[7] = {-1, 2, 5, -2, 5, 4, 4};
    struct order order = {.samples = 1, .context = 7, .documents = true, .document_end = 5};
    struct zero_error error;
    error_clear(&error);
    files_tokens("ends.bin", TOKEN_FILE_MAGIC, 1, 8, tokens, 8);
    for (int with_mask = 0; with_mask < 2; with_mask++) {
        if (with_mask) files_write("ends.mask", "\1\2\1\1\1\3\1\1", 8);
        struct corpus *corpus = open_paths((const char *[]){"ends.bin"}, 1);
        struct reader *reader = NULL;
        CHECK_INT(reader_open(corpus, 256, &error, &reader), ZERO_OK);
        CHECK_INT(order_read(&order, reader, 0, 1, read, targets, &error), ZERO_OK);
        for (int i = 0; i < 7; i++) CHECK_INT(targets[i], with_mask ? masked[i] : plain[i]);
        reader_close(reader);
        corpus_close(corpus);
    }
}

static void bad_masks_are_named(void) {
    uint16_t tokens[4] = {1, 2, 3, 4};
    struct zero_error error;
    int32_t targets[4];
    error_clear(&error);
    files_tokens("part.bin", TOKEN_FILE_MAGIC, 1, 4, tokens, 4);
    files_write("part.mask", "\1\1\1", 3);
    expect_error("part.bin", ZERO_E_IO, "part.mask has 3 bytes, and part.bin 4 tokens");
    files_write("part.mask", "\1\1\7\1", 4);
    struct corpus *corpus = open_paths((const char *[]){"part.bin"}, 1);
    struct reader *reader = NULL;
    CHECK_INT(reader_open(corpus, 256, &error, &reader), ZERO_OK);
    CHECK_INT(reader_mask(reader, 0, 4, targets, &error), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "byte 2 of part.mask is 7: a loss mask has bytes 0 to 3 only");
    reader_close(reader);
    corpus_close(corpus);
}

static void a_file_that_changed_is_refused(void) {
    files_text("grows", "text");
    struct zero_error error;
    error_clear(&error);
    struct corpus *corpus = open_paths((const char *[]){"grows"}, 1);
    files_text("grows", "te");
    struct reader *reader = NULL;
    int32_t out[4];
    CHECK_INT(reader_open(corpus, 256, &error, &reader), ZERO_OK);
    CHECK_INT(reader_read(reader, 0, 4, out, &error), ZERO_E_IO);
    CHECK_CONTAINS(error.message, "had 4 bytes at the start and has 2 now");
    reader_close(reader);
    corpus_close(corpus);
}

/* By as many bytes. */
static void a_file_that_is_written_anew_is_refused(void) {
    struct timespec later[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 2000000000}};
    struct zero_error error;
    error_clear(&error);
    files_text("anew", "text");
    struct corpus *corpus = open_paths((const char *[]){"anew"}, 1);
    struct reader *reader = NULL;
    int32_t out[4];
    CHECK_INT(reader_open(corpus, 256, &error, &reader), ZERO_OK);
    CHECK_INT(reader_read(reader, 0, 4, out, &error), ZERO_OK);
    files_text("anew", "TEXT");
    CHECK_INT(utimensat(AT_FDCWD, "anew", later, 0), 0); /* a clock of 4 ms would leave the time as it was */
    CHECK_INT(reader_read(reader, 0, 4, out, &error), ZERO_E_IO);
    CHECK_CONTAINS(error.message, "anew was written since the start of the run");
    reader_close(reader);
    corpus_close(corpus);
}

/* Between two reads; a mapping would end the process by SIGBUS. */
static void a_file_that_shrinks_is_refused(void) {
    enum { BYTES = 3 * READER_BYTES };
    char *text = malloc(BYTES + 1);
    int32_t *out = malloc(BYTES * sizeof *out);
    memset(text, 'x', BYTES), text[BYTES] = 0;
    files_text("shrinks", text);
    struct zero_error error;
    error_clear(&error);
    struct corpus *corpus = open_paths((const char *[]){"shrinks"}, 1);
    struct reader *reader = NULL;
    CHECK_INT(reader_open(corpus, 256, &error, &reader), ZERO_OK);
    CHECK_INT(reader_read(reader, 0, 1, out, &error), ZERO_OK);
    CHECK_INT(truncate("shrinks", 10), 0);
    CHECK_INT(reader_read(reader, 1, BYTES - 1, out, &error), ZERO_E_IO);
    CHECK_CONTAINS(error.message, "has 10 now: it must not change during a run");
    reader_close(reader);
    corpus_close(corpus);
    free(text), free(out);
}

/* A vocabulary above 65,536: Llama 3's files of llm.c. */
static void tokens_of_32_bits(void) {
    struct {
        int32_t header[256];
        uint32_t tokens[4];
    } file = {{TOKEN_FILE_WIDE_MAGIC, TOKEN_FILE_WIDE_VERSION, 4}, {1, 65536, 151935, 7}};
    struct zero_error error;
    struct reader *reader = NULL;
    int32_t tokens[4];
    error_clear(&error);
    files_write("wide.bin", &file, sizeof file);
    struct corpus *corpus = open_paths((const char *[]){"wide.bin"}, 1);
    CHECK_INT(corpus->tokens, 4);
    CHECK_INT(reader_open(corpus, 151936, &error, &reader), ZERO_OK);
    CHECK_INT(reader_read(reader, 1, 3, tokens, &error), ZERO_OK);
    CHECK_INT(tokens[0], 65536), CHECK_INT(tokens[1], 151935), CHECK_INT(tokens[2], 7);
    reader_close(reader);
    CHECK_INT(reader_open(corpus, 65537, &error, &reader), ZERO_OK);
    CHECK_INT(reader_read(reader, 0, 4, tokens, &error), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "token 2 of wide.bin is 151935");
    reader_close(reader);
    corpus_close(corpus);
    files_tokens("narrow.bin", TOKEN_FILE_MAGIC, TOKEN_FILE_VERSION, 2, (const uint16_t[]){1, 2}, 2);
    error_clear(&error);
    CHECK_INT(corpus_open((const char *[]){"narrow.bin", "wide.bin"}, 2, &error, &corpus), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "their tokens have 2 and 4 bytes");
    file.header[1] = 1;
    files_write("odd.bin", &file, sizeof file);
    error_clear(&error);
    CHECK_INT(corpus_open((const char *[]){"odd.bin"}, 1, &error, &corpus), ZERO_E_IO);
    CHECK_CONTAINS(error.message, "odd.bin has token file version 1, expected 7");
}

int main(void) {
    files_enter();
    files_are_sorted_by_path();
    hidden_directories_are_left_out();
    the_hash_covers_paths_and_sizes();
    any_range_can_be_read();
    reads_join();
    bad_files_are_named();
    tokens_outside_the_vocabulary_are_refused();
    masks_leave_targets_out();
    ends_are_parted_from_tokens_inside();
    bad_masks_are_named();
    a_file_that_changed_is_refused();
    a_file_that_is_written_anew_is_refused();
    a_file_that_shrinks_is_refused();
    tokens_of_32_bits();
    return check_end();
}
