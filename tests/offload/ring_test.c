/* A ring whose system calls fail. liburing's own submit stands behind the one here, which refuses on demand. */
#include <dlfcn.h>
#include <errno.h>
#include <liburing.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "offload/lane.h"
#include "tests/check.h"

enum { BLOCK = 4096, DEPTH = 2 };

/* ---- the system call that fails ---- */

enum refusal {
    WORKS,
    FAILS_TAKEN,   /* the kernel takes what was submitted, the wait fails */
    FAILS_UNTAKEN, /* it takes nothing, and the call fails */
    AGAIN,         /* it takes nothing now */
    AGAIN_A_WHILE, /* it takes nothing in the first AGAIN_MAX calls */
};
enum { AGAIN_MAX = 200 };

static _Atomic enum refusal refusal;
static atomic_uint enters;
static atomic_bool taken; /* by a call that FAILS_TAKEN */

int io_uring_submit_and_wait(struct io_uring *ring, unsigned count) {
    static int (*real)(struct io_uring *, unsigned);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "io_uring_submit_and_wait");
    bool again = atomic_fetch_add(&enters, 1) < AGAIN_MAX;
    switch (atomic_load(&refusal)) {
    case FAILS_TAKEN:
        if (io_uring_sq_ready(ring) < 2) return real(ring, count); /* the wake's poll alone */
        real(ring, 0);
        atomic_store(&taken, true);
        return -EINVAL;
    case FAILS_UNTAKEN:
        return -EINVAL;
    case AGAIN:
        return -EAGAIN;
    case AGAIN_A_WHILE:
        return again ? -EAGAIN : real(ring, count);
    default:
        return real(ring, count);
    }
}

/* ---- a lane that reads from a pipe ---- */

struct bench {
    int pipe[2];
    struct swap_file file;
    struct lane *lane;
    struct lane_work work[2];
    uint8_t memory[2][BLOCK], bytes[BLOCK];
    atomic_uint finished;
};

static void count_finished(void *user) { atomic_fetch_add((atomic_uint *)user, 1); }

static void sleep_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

/* A ring counts against the memlock limit of the user. Other tests may have used it up, and give it back soon. */
static zero_status open_ring(const struct io_options *options, struct io **out_io, struct zero_error *error) {
    zero_status status = io_ring.open(options, out_io, error);
    for (int ms = 0; ms < 60000 && status && strstr(error->message, "memlock limit"); ms += 100) {
        sleep_ms(100);
        error_clear(error);
        status = io_ring.open(options, out_io, error);
    }
    return status;
}

static bool open_bench(struct bench *b, enum refusal first) {
    struct zero_error error;
    memset(b, 0, sizeof *b);
    error_clear(&error);
    atomic_store(&refusal, first);
    atomic_store(&enters, 0);
    atomic_store(&taken, false);
    if (!CHECK_INT(pipe(b->pipe), 0)) return false;
    for (int i = 0; i < BLOCK; i++) b->bytes[i] = (uint8_t)(i * 7 + 1);
    b->file = (struct swap_file){.path = "a pipe", .handle = b->pipe[0], .bytes = BLOCK, .alignment = 1};
    struct io_options io = {.file = b->file.handle, .depth = DEPTH, .alignment = 1};
    struct lane_options lane = {.file = &b->file,
                                .count = 1,
                                .block_bytes = BLOCK,
                                .depth = DEPTH,
                                .requests_max = 2,
                                .finished = count_finished,
                                .user = &b->finished};
    zero_status status = open_ring(&io, &lane.io, &error);
    if (!status) status = lane_open(&lane, &b->lane, &error);
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", error.message);
    return status == ZERO_OK;
}

/* A read that is still under way then ends, and the lane with it. */
static void close_bench(struct bench *b) {
    close(b->pipe[1]);
    lane_close(b->lane);
    close(b->pipe[0]);
}

static void post_read(struct bench *b, int i) {
    b->work[i] = (struct lane_work){.bytes = BLOCK, .memory = b->memory[i]};
    atomic_store(&b->work[i].pending, 1);
    lane_post(b->lane, &b->work[i]);
}

static bool ends_within(const struct bench *b, int i, int ms) {
    for (; ms > 0 && atomic_load(&b->work[i].pending); ms--) sleep_ms(1);
    return !atomic_load(&b->work[i].pending);
}

static void write_block(const struct bench *b) { CHECK_INT(write(b->pipe[1], b->bytes, BLOCK), BLOCK); }

static void succeeds(struct bench *b, int i) {
    struct zero_error error = {0};
    if (atomic_load(&b->work[i].failed)) lane_failure(&b->work[i], &error);
    CHECK_STRING(error.message, "");
}

static void fails_with(struct bench *b, int i, const char *text) {
    struct zero_error error;
    error_clear(&error);
    if (!CHECK(atomic_load(&b->work[i].failed))) return;
    CHECK_INT(lane_failure(&b->work[i], &error), ZERO_E_IO);
    CHECK_CONTAINS(error.message, text);
}

/* The kernel writes to the transfer's memory until it reports the end; until then the poster may not use that memory
 * again. */
static void a_transfer_that_the_kernel_has_is_not_given_up(void) {
    struct bench b;
    if (!open_bench(&b, FAILS_TAKEN)) return;
    post_read(&b, 0);
    for (int ms = 0; ms < 60000 && !atomic_load(&taken); ms++) sleep_ms(1);
    CHECK(!ends_within(&b, 0, 100));
    post_read(&b, 1); /* while the first one's tag is the kernel's */
    CHECK(ends_within(&b, 1, 60000));
    fails_with(&b, 1, "Invalid argument");
    CHECK_INT(atomic_load(&b.work[0].pending), 1);
    write_block(&b);
    CHECK(ends_within(&b, 0, 60000));
    succeeds(&b, 0);
    CHECK_BYTES(b.memory[0], b.bytes, BLOCK);
    CHECK_INT(b.memory[1][1], 0);
    close_bench(&b);
}

static void a_transfer_that_the_kernel_never_took_fails_at_once(void) {
    struct bench b;
    if (!open_bench(&b, FAILS_UNTAKEN)) return;
    for (int i = 0; i < 2; i++) {
        post_read(&b, i);
        CHECK(ends_within(&b, i, 60000));
        fails_with(&b, i, "Invalid argument");
    }
    write_block(&b);
    sleep_ms(20);
    CHECK_INT(b.memory[0][1] + b.memory[1][1], 0);
    close_bench(&b);
}

static void a_refusal_for_now_is_waited_for(void) {
    struct bench b;
    uint64_t since_ns = clock_now_ns();
    if (!open_bench(&b, AGAIN_A_WHILE)) return;
    write_block(&b);
    post_read(&b, 0);
    CHECK(ends_within(&b, 0, 60000));
    uint64_t ms = (clock_now_ns() - since_ns) / 1000000;
    if (!CHECK(ms >= AGAIN_MAX / 5)) fprintf(stderr, "%d system calls in %u ms\n", AGAIN_MAX, (unsigned)ms);
    succeeds(&b, 0);
    CHECK_BYTES(b.memory[0], b.bytes, BLOCK);
    close_bench(&b);
}

static void a_refusal_that_lasts_is_an_error(void) {
    struct bench b;
    if (!open_bench(&b, AGAIN)) return;
    post_read(&b, 0);
    if (CHECK(ends_within(&b, 0, 60000))) fails_with(&b, 0, "Resource temporarily unavailable");
    atomic_store(&refusal, WORKS);
    close_bench(&b);
}

int main(void) {
    a_transfer_that_the_kernel_has_is_not_given_up();
    a_transfer_that_the_kernel_never_took_fails_at_once();
    a_refusal_for_now_is_waited_for();
    a_refusal_that_lasts_is_an_error();
    return check_end();
}
