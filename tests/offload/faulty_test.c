/* Every class of fault: it occurs, and ends as it must: with right bytes, with a message, or with wrong bytes that only
 * a checksum finds. */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/offload/faults.h"
#include "tests/offload/tier_conformance.h"

enum { PAGE = 4096, BLOCK = 16 * PAGE, PAGES = 64, EXTENT = PAGES * PAGE };

struct bench {
    struct faults faults;
    struct tier *tier;
    char directory[200];
    uint8_t *memory, *expected;
};

static void open_with(struct bench *b, enum fault fault, double probability, bool in_memory, bool no_uring) {
    struct zero_error error;
    error_clear(&error);
    memset(b, 0, sizeof *b);
    b->faults.seed = 11;
    b->faults.probability[fault] = probability;
    directory_make(b->directory, sizeof b->directory, in_memory);
    const char *path = b->directory;
    struct tier_options options = {
        .bytes = EXTENT,
        .hook = faults_hook(&b->faults),
        .nvme = {
            .paths = &path, .path_count = 1, .block_bytes = BLOCK, .queue_depth = 4, .no_uring = no_uring}};
    if (!CHECK_INT(tier_open(&tier_nvme, &options, &b->tier, &error), ZERO_OK)) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    b->memory = page_alloc(EXTENT);
    b->expected = page_alloc(EXTENT);
    for (int i = 0; i < EXTENT; i++) b->expected[i] = (uint8_t)((uint32_t)(i + 1) * 2654435761u >> 23);
}

static void done_with(struct bench *b) {
    b->tier->ops->close(b->tier);
    CHECK_INT(directory_entries(b->directory, true), 0);
    directory_remove(b->directory);
    free(b->expected);
    free(b->memory);
}

static uint64_t fired(struct bench *b, enum fault fault) { return atomic_load(&b->faults.fired[fault]); }

static zero_status transfer(struct bench *b, bool write, bool faults, uint64_t offset, uint64_t bytes,
                            struct zero_error *error) {
    error_clear(error);
    atomic_store(&b->faults.armed, faults);
    if (write)
        memcpy(b->memory + offset, b->expected + offset, bytes);
    else
        memset(b->memory + offset, 0xee, bytes);
    return tier_perform(b->tier, write, offset, bytes, b->memory + offset, error);
}

/* The request fails with these words; the next request, without faults, works normally. */
static void ends_in_words(enum fault fault, bool write, bool no_uring, const char *says,
                          const char *says_too) {
    struct bench b;
    struct zero_error error;
    open_with(&b, fault, 1, false, no_uring);
    CHECK_INT(transfer(&b, write, true, BLOCK, EXTENT - BLOCK, &error), ZERO_E_IO);
    CHECK_CONTAINS(error.message, write ? "tier nvme: write of 65536 bytes at offset "
                                        : "tier nvme: read of 65536 bytes at offset ");
    CHECK_CONTAINS(error.message, b.directory);
    CHECK_CONTAINS(error.message, says);
    CHECK_CONTAINS(error.message, says_too);
    CHECK(fired(&b, fault) > 0);
    CHECK_INT(b.tier->read_bytes + b.tier->written_bytes, 0);
    CHECK_INT(transfer(&b, true, false, 0, EXTENT, &error), ZERO_OK);
    CHECK_INT(transfer(&b, false, false, 0, EXTENT, &error), ZERO_OK);
    CHECK_BYTES(b.memory, b.expected, EXTENT);
    done_with(&b);
}

static void errors(bool no_uring) {
    ends_in_words(FAULT_EIO, true, no_uring, "got 0: Input/output error", "");
    ends_in_words(FAULT_EIO, false, no_uring, "got 0: Input/output error", "");
    ends_in_words(FAULT_ENOSPC, true, no_uring, "got 0: No space left on device; needs 256.0 KiB, ", " free");
    ends_in_words(FAULT_EINTR, true, no_uring, "Interrupted system call", ""); /* again and again */
    ends_in_words(FAULT_EAGAIN, false, no_uring, "Resource temporarily unavailable", "");
    ends_in_words(FAULT_ONE_BYTE, false, no_uring, "got 0: the drive transferred no more bytes", "");
}

/* Right bytes, whatever happens below. */
static void ends_well(enum fault fault, double probability, bool in_memory) {
    struct bench b;
    struct zero_error error;
    open_with(&b, fault, probability, in_memory, false);
    for (int i = 0; i < 20; i++) {
        b.expected[i * PAGE + i] ^= 0x5a;
        CHECK_INT(transfer(&b, true, true, 0, EXTENT, &error), ZERO_OK);
        CHECK_INT(transfer(&b, false, true, 0, EXTENT, &error), ZERO_OK);
        CHECK_BYTES(b.memory, b.expected, EXTENT);
    }
    if (!CHECK(fired(&b, fault) > 0)) fprintf(stderr, "  %s never fired\n", fault_names[fault]);
    done_with(&b);
}

static void benign(void) {
    static const enum fault classes[] = {
        FAULT_EINTR,           FAULT_EAGAIN, FAULT_SHORT, FAULT_ONE_BYTE, FAULT_TRANSFER_REORDERED,
        FAULT_TRANSFER_DELAYED};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        for (int in_memory = 0; in_memory < 2; in_memory++) ends_well(classes[i], 0.3, in_memory);
    ends_well(FAULT_SHORT, 1, false); /* each moves something */
    ends_well(FAULT_DELAYED, 1, false);
}

/* A byte at a time still arrives where bytes can be moved one by one. */
static void byte_by_byte(void) {
    struct bench b;
    struct zero_error error;
    open_with(&b, FAULT_ONE_BYTE, 1, true, false);
    CHECK_INT(transfer(&b, true, true, 0, PAGE, &error), ZERO_OK);
    CHECK_INT(transfer(&b, false, true, 0, PAGE, &error), ZERO_OK);
    CHECK_BYTES(b.memory, b.expected, PAGE);
    CHECK_INT(fired(&b, FAULT_ONE_BYTE), 2 * PAGE);
    done_with(&b);
}

static int bits_that_differ(const struct bench *b) {
    int count = 0;
    for (int i = 0; i < EXTENT; i++) count += __builtin_popcount(b->memory[i] ^ b->expected[i]);
    return count;
}

static void flipped(void) {
    struct bench b;
    struct zero_error error;
    open_with(&b, FAULT_FLIPPED, 1, false, false);
    CHECK_INT(transfer(&b, true, true, 0, EXTENT, &error), ZERO_OK);
    CHECK_INT(transfer(&b, false, true, 0, EXTENT, &error), ZERO_OK);
    CHECK_INT(bits_that_differ(&b), 1);
    CHECK_INT(fired(&b, FAULT_FLIPPED), 1);
    done_with(&b);
}

/* At how many places the expected content of a page is found. */
static int places_of(const struct bench *b, uint64_t page) {
    int count = 0;
    for (uint64_t at = 0; at + PAGE <= EXTENT; at += b->tier->alignment)
        count += memcmp(b->memory + at, b->expected + page * PAGE, PAGE) == 0;
    return count;
}

static void misplaced(void) {
    struct bench b;
    struct zero_error error;
    open_with(&b, FAULT_MISPLACED, 1, false, false);
    for (uint64_t page = 0; page < PAGES; page += 9) {
        CHECK_INT(transfer(&b, true, true, page * PAGE, PAGE, &error), ZERO_OK);
        CHECK_INT(transfer(&b, false, false, 0, EXTENT, &error), ZERO_OK);
        CHECK(memcmp(b.memory + page * PAGE, b.expected + page * PAGE, PAGE) != 0);
        CHECK_INT(places_of(&b, page), 1);
    }
    CHECK_INT(fired(&b, FAULT_MISPLACED), 8);
    CHECK_INT(transfer(&b, true, true, 0, EXTENT, &error), ZERO_OK); /* there is no other place */
    CHECK_INT(fired(&b, FAULT_MISPLACED), 8);
    done_with(&b);
}

static void stale(void) {
    struct bench b;
    struct zero_error error;
    open_with(&b, FAULT_STALE, 1, false, false);
    CHECK_INT(transfer(&b, true, false, 0, EXTENT, &error), ZERO_OK);
    uint8_t *old = page_alloc(EXTENT);
    memcpy(old, b.expected, EXTENT);
    for (int i = 0; i < EXTENT; i++) b.expected[i] ^= 0xff;
    CHECK_INT(transfer(&b, true, true, 0, EXTENT, &error), ZERO_OK);
    CHECK_INT(transfer(&b, false, false, 0, EXTENT, &error), ZERO_OK);
    CHECK_BYTES(b.memory + EXTENT - PAGE, old + EXTENT - PAGE, PAGE);
    CHECK_INT(fired(&b, FAULT_STALE), 1);
    free(old);
    done_with(&b);
}

/* All at once, from many seeds: each request ends, in right bytes or in words. */
static void storm(uint64_t seed) {
    struct bench b;
    struct zero_error error;
    check_seed(seed);
    open_with(&b, FAULT_EIO, 0.02, false, seed % 2);
    b.faults.probability[FAULT_ENOSPC] = 0.02;
    for (int f = FAULT_EINTR; f <= FAULT_REORDERED; f++) b.faults.probability[f] = 0.1;
    bool written[PAGES] = {0};
    uint64_t random = seed;
    int failures = 0;
    for (int i = 0; i < 60; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t first = (random >> 33) % PAGES, count = 1 + (random >> 40) % (PAGES - first);
        bool write = random >> 60 & 1;
        zero_status status = transfer(&b, write, true, first * PAGE, count * PAGE, &error);
        failures += status != ZERO_OK;
        if (status) CHECK_CONTAINS(error.message, "tier nvme: ");
        for (uint64_t p = first; p < first + count; p++) {
            if (write)
                written[p] = status == ZERO_OK;
            else if (!status && written[p])
                CHECK_BYTES(b.memory + p * PAGE, b.expected + p * PAGE, PAGE);
        }
    }
    CHECK(failures > 0);
    done_with(&b);
}

int main(void) {
    errors(false);
    errors(true);
    benign();
    byte_by_byte();
    flipped();
    misplaced();
    stale();
    for (uint64_t seed = 1; seed <= 20; seed++) storm(seed);
    return check_end();
}
