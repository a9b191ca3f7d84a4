/* A decorator of the tier table that makes the silent errors of a drive: a bit flips, a block goes to another place,
 * a write is lost. It also starts and reports requests in another order. It reports none of this as an error: the
 * checksums of the caller must find it.
 *
 *   post -> WAITING (started only after some tests) -> STARTED -> DONE (reported later than another) -> reported
 *                                                               \-----------------------------------------^ */
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "offload/tier.h"
#include "tests/offload/faults.h"

enum {
    TESTS_MAX = 16,      /* the most tests that a request waits, unless it waits for ever */
    NAP_NS = 1000 * 1000 /* the longest sleep beside stuck requests */
};
static const uint32_t FOREVER = UINT32_MAX;

enum state { WAITING, STARTED, DONE };

struct tier_work {
    enum state state;
    struct tier_request request;
    struct tier_work *inner; /* in STARTED; NULL: the request completed at once */
    bool flip, hold;
    uint32_t tests_left; /* in WAITING: tests before the start; in DONE: before the report */
    zero_status status;  /* in DONE, as is `error` */
    struct zero_error error;
    struct tier_work *next_free;
};

struct faulty {
    struct tier base;
    struct tier *inner;
    struct fault_stream stream;
    struct tier_work *works, *free_works;
    uint32_t posted;
    uint32_t withheld; /* requests with tests left */
    uint32_t stuck;    /* requests that wait for ever */
};

static void *faulty_address(struct tier *tier) { return NULL; }

/* ---- data ---- */

static void misplace(struct faulty *f, struct tier_request *r) {
    uint64_t unit = f->inner->alignment, places = (f->inner->bytes - r->bytes) / unit;
    uint64_t shift = unit * (1 + fault_below(&f->stream, places));
    if (!places) {
        fault_undo(&f->stream, FAULT_MISPLACED);
        return;
    }
    uint64_t place = r->offset + shift;
    r->offset = place <= f->inner->bytes - r->bytes ? place : place - (places + 1) * unit;
}

/* Loses the end of a write, or, just as often, all of it. A wholly lost write leaves an old block that is intact. */
static void lose_end(struct faulty *f, struct tier_request *r) {
    uint64_t unit = f->inner->alignment;
    bool part = fault_below(&f->stream, 2);
    r->bytes = part ? unit * fault_below(&f->stream, r->bytes / unit) : 0;
}

static void flip_bit(struct faulty *f, const struct tier_request *r) {
    uint64_t bit = fault_below(&f->stream, r->bytes * 8);
    ((uint8_t *)r->memory)[bit / 8] ^= (uint8_t)(1 << bit % 8);
}

/* ---- states ---- */

static void start(struct faulty *f, struct tier_work *work) {
    struct tier_request r = work->request;
    if (r.write && r.bytes && fault_fires(&f->stream, FAULT_MISPLACED)) misplace(f, &r);
    if (r.write && r.bytes && fault_fires(&f->stream, FAULT_STALE)) lose_end(f, &r);
    work->flip = !r.write && r.bytes && fault_fires(&f->stream, FAULT_FLIPPED);
    error_clear(&work->error);
    work->inner = NULL;
    work->status = f->inner->ops->post(f->inner, &r, &work->inner, &work->error);
    work->state = STARTED;
}

/* True if the inner request is done. */
static bool end(struct faulty *f, struct tier_work *work) {
    bool done = true;
    if (work->inner) work->status = f->inner->ops->test(f->inner, work->inner, &done, &work->error);
    if (!done) return false;
    if (work->flip && !work->status) flip_bit(f, &work->request);
    work->state = DONE;
    work->tests_left = 0;
    if (f->posted > 1 && fault_fires(&f->stream, FAULT_REORDERED)) {
        work->tests_left = 1 + (uint32_t)fault_below(&f->stream, TESTS_MAX);
        f->withheld++;
    }
    return true;
}

static zero_status faulty_post(struct tier *tier, const struct tier_request *r, struct tier_work **out_work,
                               struct zero_error *error) {
    struct faulty *f = (struct faulty *)tier;
    zero_status status = tier_check(f->inner, r, error);
    if (status) return status;
    struct tier_work *work = f->free_works;
    if (!work)
        return error_set(error, ZERO_E_ORDER,
                         "tier %s: %" PRIu32 " requests are in flight, the most it was opened for",
                         f->inner->ops->name, f->posted);
    f->free_works = work->next_free;
    f->posted++;
    work->request = *r;
    work->state = WAITING;
    work->tests_left = 0;
    if (fault_fires(&f->stream, FAULT_STUCK)) {
        work->tests_left = FOREVER;
        f->stuck++;
    } else if (fault_fires(&f->stream, FAULT_DELAYED)) {
        work->tests_left = 1 + (uint32_t)fault_below(&f->stream, TESTS_MAX);
        f->withheld++;
    } else {
        start(f, work);
    }
    *out_work = work;
    return ZERO_OK;
}

/* Counts a test of a withheld request. True if the request may go on. */
static bool let_go(struct faulty *f, struct tier_work *work) {
    if (work->tests_left) {
        if (work->tests_left == FOREVER || --work->tests_left) return false;
        f->withheld--;
    }
    return true;
}

static zero_status faulty_test(struct tier *tier, struct tier_work *work, bool *out_done,
                               struct zero_error *error) {
    struct faulty *f = (struct faulty *)tier;
    *out_done = false;
    if (work->state == WAITING) {
        if (!let_go(f, work)) return ZERO_OK;
        start(f, work);
    }
    if (work->state == STARTED && !end(f, work)) return ZERO_OK;
    if (!let_go(f, work)) return ZERO_OK;
    *out_done = true;
    if (work->status)
        error_pass(error, &work->error);
    else
        *(work->request.write ? &tier->written_bytes : &tier->read_bytes) += work->request.bytes;
    work->next_free = f->free_works;
    f->free_works = work;
    f->posted--;
    return work->status;
}

/* A withheld request goes on when it is tested, so wait must not sleep. The inner tier does not know of stuck requests: if there are
 * no others, its wait would return at once, and the caller would poll without a pause. */
static void faulty_wait(struct tier *tier, uint64_t timeout_ns) {
    struct faulty *f = (struct faulty *)tier;
    if (f->withheld) return;
    if (f->posted > f->stuck)
        f->inner->ops->wait(f->inner, timeout_ns);
    else if (f->stuck)
        nanosleep(&(struct timespec){.tv_nsec = timeout_ns < NAP_NS ? (long)timeout_ns : NAP_NS}, NULL);
}

static zero_status faulty_sync(struct tier *tier, struct zero_error *error) {
    struct tier *inner = ((struct faulty *)tier)->inner;
    return inner->ops->sync(inner, error);
}

static void faulty_where(const struct tier *tier, uint64_t offset, char *out, uint32_t capacity) {
    const struct tier *inner = ((const struct faulty *)tier)->inner;
    inner->ops->where(inner, offset, out, capacity);
}

static void faulty_close(struct tier *tier) {
    struct faulty *f = (struct faulty *)tier;
    f->inner->ops->close(f->inner);
    free(f->works);
    free(f);
}

static const struct tier_ops tier_faulty = {.name = "faulty",
                                            .close = faulty_close,
                                            .address = faulty_address,
                                            .post = faulty_post,
                                            .test = faulty_test,
                                            .wait = faulty_wait,
                                            .sync = faulty_sync,
                                            .where = faulty_where};

zero_status faulty_tier_open(struct tier_hook *hook, const struct tier_ops *ops,
                             const struct tier_options *options, struct tier **out_tier,
                             struct zero_error *error) {
    struct faults *faults = (struct faults *)hook;
    uint32_t count = options->requests_max ? options->requests_max : TIER_REQUESTS_DEFAULT;
    struct tier *inner;
    atomic_store(&faults->armed, false);
    zero_status status = ops->open(options, &inner, error);
    if (status) return status;
    struct faulty *f = calloc(1, sizeof *f);
    struct tier_work *works = calloc(count, sizeof *works);
    *f = (struct faulty){.base = {.ops = &tier_faulty,
                                  .bytes = inner->bytes,
                                  .allocated = inner->allocated,
                                  .space = inner->space,
                                  .space_bytes = inner->space_bytes,
                                  .found = inner->found,
                                  .alignment = inner->alignment},
                         .inner = inner,
                         .stream = fault_stream_make(faults, TIER_PATHS_MAX),
                         .works = works};
    for (uint32_t i = count; i-- > 0;) {
        works[i].next_free = f->free_works;
        f->free_works = &works[i];
    }
    atomic_store(&faults->armed, true);
    *out_tier = &f->base;
    return ZERO_OK;
}
