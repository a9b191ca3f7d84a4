#include "tests/offload/tier_conformance.h"

#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/offload/faults.h"
#include "tests/seeds.h"

enum {
    PAGE = 4096,
    EXTENT = 1031 * PAGE, /* no multiple of a block */
    IN_FLIGHT = 16,       /* requests_max */
    ROUNDS = 300,
    REQUEST_PAGES_MAX = 90,
};

#define WAIT_NS UINT64_C(1000000000)

/* ---- helpers ---- */

static uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void *page_alloc(uint64_t bytes) {
    void *memory;
    if (posix_memalign(&memory, PAGE, bytes) != 0) abort();
    return memory;
}

void directory_make(char *out, size_t size, bool in_memory) {
    const char *parent = in_memory ? "/dev/shm" : getenv("TEST_TMPDIR");
    snprintf(out, size, "%s/zero-tier-XXXXXX", parent ? parent : "/tmp");
    if (!mkdtemp(out)) perror(out), abort();
}

static _Thread_local uint64_t entries;
static _Thread_local bool count_directories;

static int count_entry(const char *path, const struct stat *found, int kind, struct FTW *at) {
    if (at->level > 0 && (count_directories || kind != FTW_D)) entries++;
    return 0;
}

uint64_t directory_entries(const char *path, bool directories_too) {
    entries = 0;
    count_directories = directories_too;
    CHECK_INT(nftw(path, count_entry, 8, FTW_PHYS), 0);
    return entries;
}

static int remove_entry(const char *path, const struct stat *found, int kind, struct FTW *at) {
    return remove(path);
}

void directory_remove(const char *path) { nftw(path, remove_entry, 8, FTW_PHYS | FTW_DEPTH); }

zero_status tier_finish(struct tier *tier, struct tier_work *work, struct zero_error *error) {
    bool done = !work;
    zero_status status = ZERO_OK;
    while (!done) {
        tier->ops->wait(tier, WAIT_NS);
        status = tier->ops->test(tier, work, &done, error);
    }
    return status;
}

zero_status tier_perform(struct tier *tier, bool write, uint64_t offset, uint64_t bytes, void *memory,
                         struct zero_error *error) {
    struct tier_request request = {write, offset, bytes, memory};
    struct tier_work *work = NULL;
    zero_status status = tier->ops->post(tier, &request, &work, error);
    return status ? status : tier_finish(tier, work, error);
}

/* ---- one case, open ---- */

struct bench {
    const struct tier_case *c;
    struct tier *tier;
    char directory[PATHS_MAX][200];
    const char *paths[PATHS_MAX];
    struct device *device;
    uint8_t *staging;
    struct device_span span;
    uint64_t random;
};

static uint64_t staging_bytes(void) { return (uint64_t)IN_FLIGHT * REQUEST_PAGES_MAX * PAGE; }

static struct tier_options options_of(struct bench *b, uint64_t bytes) {
    const struct tier_case *c = b->c;
    b->span = (struct device_span){b->staging, staging_bytes()};
    return (struct tier_options){.bytes = bytes,
                                 .device = b->device,
                                 .requests_max = IN_FLIGHT,
                                 .hook = c->faults ? faults_hook(c->faults) : NULL,
                                 .nvme = {.paths = b->paths,
                                          .path_count = c->paths,
                                          .block_bytes = c->block_bytes,
                                          .queue_depth = c->queue_depth,
                                          .no_uring = c->no_uring,
                                          .named_files = c->named_files,
                                          .buffers = &b->span,
                                          .buffer_count = c->registered}};
}

static bool bench_open(struct bench *b, const struct tier_case *c, uint64_t seed) {
    struct zero_error error;
    error_clear(&error);
    *b = (struct bench){.c = c, .random = seed};
    b->staging = page_alloc(staging_bytes());
    CHECK_INT(device_table[DEVICE_HOST]->open(&(struct device_options){0}, &b->device, &error), ZERO_OK);
    for (uint32_t i = 0; i < c->paths; i++) {
        directory_make(b->directory[i], sizeof b->directory[i], c->in_memory);
        b->paths[i] = b->directory[i];
    }
    struct tier_options options = options_of(b, EXTENT);
    if (CHECK_INT(tier_open(c->tier, &options, &b->tier, &error), ZERO_OK)) return true;
    fprintf(stderr, "%s\n", error.message);
    return false;
}

static void bench_close(struct bench *b) {
    if (b->tier) b->tier->ops->close(b->tier);
    for (uint32_t i = 0; i < b->c->paths; i++) {
        CHECK_INT(directory_entries(b->directory[i], true), 0);
        directory_remove(b->directory[i]);
    }
    b->device->ops->close(b->device);
    free(b->staging);
}

/* ---- checks ---- */

static void check_ok(zero_status status, const struct zero_error *error) {
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", error->message);
}

static void zeroed_at_open(struct bench *b) {
    struct zero_error error;
    error_clear(&error);
    uint8_t *memory = page_alloc(EXTENT), *zeros = calloc(1, EXTENT);
    memset(memory, 0xa5, EXTENT);
    check_ok(tier_perform(b->tier, false, 0, EXTENT, memory, &error), &error);
    CHECK_BYTES(memory, zeros, EXTENT);
    free(zeros);
    free(memory);
}

static void whole_at_once(struct bench *b, uint8_t *image) {
    struct zero_error error;
    error_clear(&error);
    uint8_t *memory = page_alloc(EXTENT);
    for (uint64_t i = 0; i < EXTENT; i += 8) {
        uint64_t word = next_random(&b->random);
        memcpy(image + i, &word, 8);
    }
    memcpy(memory, image, EXTENT);
    uint64_t written = b->tier->written_bytes, read = b->tier->read_bytes;
    check_ok(tier_perform(b->tier, true, 0, EXTENT, memory, &error), &error);
    memset(memory, 0, EXTENT);
    check_ok(tier_perform(b->tier, false, 0, EXTENT, memory, &error), &error);
    CHECK_BYTES(memory, image, EXTENT);
    CHECK_INT(b->tier->written_bytes - written, EXTENT);
    CHECK_INT(b->tier->read_bytes - read, EXTENT);
    free(memory);
}

/* Random requests, as many in flight as there may be, that do not overlap unless both read. */
struct flight {
    bool active;
    struct tier_request request;
    struct tier_work *work;
};

static bool clashes(const struct flight *flights, const struct tier_request *r) {
    for (int i = 0; i < IN_FLIGHT; i++) {
        const struct tier_request *other = &flights[i].request;
        if (flights[i].active && (r->write || other->write) && r->offset < other->offset + other->bytes &&
            other->offset < r->offset + r->bytes)
            return true;
    }
    return false;
}

static void post_random(struct bench *b, struct flight *flights, int index, uint8_t *image) {
    struct zero_error error;
    error_clear(&error);
    struct flight *flight = &flights[index];
    struct tier_request *r = &flight->request;
    uint64_t pages = 1 + next_random(&b->random) % REQUEST_PAGES_MAX;
    *r = (struct tier_request){.write = next_random(&b->random) % 2,
                               .offset = next_random(&b->random) % (EXTENT / PAGE - pages + 1) * PAGE,
                               .bytes = pages * PAGE,
                               .memory = b->staging + (uint64_t)index * REQUEST_PAGES_MAX * PAGE};
    if (clashes(flights, r)) return;
    if (r->write) {
        memset(r->memory, (int)next_random(&b->random), r->bytes);
        for (uint64_t at = 0; at < r->bytes; at += PAGE) {
            uint64_t word = next_random(&b->random);
            memcpy((uint8_t *)r->memory + at + word % (PAGE - 8), &word, 8);
        }
        memcpy(image + r->offset, r->memory, r->bytes);
    } else {
        memset(r->memory, 0xa5, r->bytes);
    }
    zero_status status = b->tier->ops->post(b->tier, r, &flight->work, &error);
    check_ok(status, &error);
    flight->active = !status;
}

/* False: not done yet. */
static bool end_one(struct bench *b, struct flight *flight, const uint8_t *image) {
    struct zero_error error;
    error_clear(&error);
    bool done = true;
    if (flight->work) check_ok(b->tier->ops->test(b->tier, flight->work, &done, &error), &error);
    if (!done) return false;
    flight->active = false;
    if (!flight->request.write)
        CHECK_BYTES(flight->request.memory, image + flight->request.offset, flight->request.bytes);
    return true;
}

static void many_in_flight(struct bench *b, uint8_t *image) {
    struct flight flights[IN_FLIGHT] = {0};
    uint64_t rounds = seeds_count(ROUNDS);
    for (uint64_t round = 0; round < rounds; round++) {
        for (int i = 0; i < IN_FLIGHT; i++)
            if (!flights[i].active) post_random(b, flights, i, image);
        bool any = false;
        for (int i = 0; i < IN_FLIGHT; i++)
            if (flights[i].active) any |= end_one(b, &flights[i], image);
        if (!any) b->tier->ops->wait(b->tier, WAIT_NS);
    }
    for (int i = 0; i < IN_FLIGHT; i++)
        while (flights[i].active && !end_one(b, &flights[i], image)) b->tier->ops->wait(b->tier, WAIT_NS);
}

static void refused(struct bench *b, uint64_t offset, uint64_t bytes, void *memory, const char *says) {
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(tier_perform(b->tier, false, offset, bytes, memory, &error), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, says);
}

static void bad_requests(struct bench *b) {
    refused(b, 0, EXTENT + PAGE, b->staging, "of an extent of");
    refused(b, EXTENT, PAGE, b->staging, "of an extent of");
    refused(b, EXTENT + PAGE, 0, b->staging, "of an extent of");
    refused(b, UINT64_MAX - PAGE + 1, PAGE, b->staging, "of an extent of");
    refused(b, PAGE, UINT64_MAX - PAGE + 1, b->staging, "of an extent of");
    CHECK(b->tier->alignment >= 1 && b->tier->alignment <= PAGE);
    if (b->tier->alignment > 1) {
        uint32_t half = b->tier->alignment / 2;
        refused(b, half, PAGE, b->staging, "multiples of");
        refused(b, 0, PAGE + half, b->staging, "multiples of");
        refused(b, 0, PAGE, b->staging + half, "multiples of");
    }
    struct zero_error error;
    error_clear(&error);
    check_ok(tier_perform(b->tier, false, EXTENT, 0, b->staging, &error), &error);
}

/* One more than it was opened for is refused, and nothing is lost by it. */
static void full_queue(struct bench *b) {
    struct zero_error error;
    error_clear(&error);
    struct tier_work *works[IN_FLIGHT + 1] = {0};
    struct tier_request request = {.bytes = PAGE};
    for (int i = 0; i < IN_FLIGHT; i++) {
        request.memory = b->staging + (uint64_t)i * PAGE;
        check_ok(b->tier->ops->post(b->tier, &request, &works[i], &error), &error);
    }
    if (works[0]) {
        CHECK_INT(b->tier->ops->post(b->tier, &request, &works[IN_FLIGHT], &error), ZERO_E_ORDER);
        CHECK_CONTAINS(error.message, "16 requests are in flight");
    }
    error_clear(&error);
    for (int i = IN_FLIGHT; i-- > 0;) check_ok(tier_finish(b->tier, works[i], &error), &error);
}

static void addresses(struct bench *b) {
    bool memory = b->c->tier->kind != TIER_NVME && !b->c->faults;
    CHECK_INT(b->tier->ops->address(b->tier) != NULL, memory);
}

static void waits_end(struct bench *b) {
    b->tier->ops->wait(b->tier, UINT64_MAX); /* nothing is posted */
    struct zero_error error;
    error_clear(&error);
    struct tier_work *work = NULL;
    struct tier_request request = {.bytes = PAGE, .memory = b->staging};
    check_ok(b->tier->ops->post(b->tier, &request, &work, &error), &error);
    b->tier->ops->wait(b->tier, 0);
    check_ok(tier_finish(b->tier, work, &error), &error);
}

/* Close waits for what is in flight: the memory may go right after it. */
static void leave_in_flight(struct bench *b) {
    struct zero_error error;
    error_clear(&error);
    struct tier_work *work;
    for (int i = 0; i < IN_FLIGHT; i++) {
        struct tier_request request = {.write = i % 2,
                                       .offset = (uint64_t)i * REQUEST_PAGES_MAX / 2 * PAGE,
                                       .bytes = REQUEST_PAGES_MAX / 2 * PAGE,
                                       .memory = b->staging + (uint64_t)i * REQUEST_PAGES_MAX * PAGE};
        check_ok(b->tier->ops->post(b->tier, &request, &work, &error), &error);
    }
}

static void no_bytes(struct bench *b) {
    struct zero_error error;
    error_clear(&error);
    struct tier_options options = options_of(b, 0);
    options.hook = NULL;
    options.nvme.path_count = 0;
    struct tier *tier = NULL;
    check_ok(tier_open(b->c->tier, &options, &tier, &error), &error);
    CHECK_INT(tier->bytes, 0);
    tier->ops->wait(tier, UINT64_MAX);
    tier->ops->close(tier);
}

/* Fewer blocks than paths. */
static void one_page(struct bench *b) {
    struct zero_error error;
    error_clear(&error);
    struct tier_options options = options_of(b, PAGE);
    options.hook = NULL;
    struct tier *tier = NULL;
    zero_status status = tier_open(b->c->tier, &options, &tier, &error);
    check_ok(status, &error);
    if (status) return;
    uint8_t *out = b->staging, *in = b->staging + PAGE;
    memset(out, 0x3c, PAGE);
    check_ok(tier_perform(tier, true, 0, PAGE, out, &error), &error);
    check_ok(tier_perform(tier, false, 0, PAGE, in, &error), &error);
    CHECK_BYTES(in, out, PAGE);
    tier->ops->close(tier);
}

void tier_conformance(const struct tier_case *c, uint64_t seed) {
    struct bench b;
    check_seed(seed);
    uint8_t *image = page_alloc(EXTENT);
    if (bench_open(&b, c, seed)) {
        addresses(&b);
        zeroed_at_open(&b);
        whole_at_once(&b, image);
        bad_requests(&b);
        full_queue(&b);
        waits_end(&b);
        many_in_flight(&b, image);
        no_bytes(&b);
        one_page(&b);
        leave_in_flight(&b);
    }
    bench_close(&b);
    free(image);
}
