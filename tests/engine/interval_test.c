/* The layout of the arena: intervals that overlap in time have distinct bytes, all intervals of a buffer have one offset, and
 * that seldom costs memory: never more than the largest buffer, over placing every interval by itself. */
#include "engine/plan/interval.h"

#include <stdlib.h>

#include "tests/check.h"
#include "tests/seeds.h"

enum { UNITS_MAX = 12, CAPACITY = 16 * UNITS_MAX };

static uint32_t pick(uint64_t *seed, uint32_t end) {
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*seed >> 33) % end);
}

struct program {
    struct intervals intervals;
    uint32_t units, depth, tick;
    uint64_t bytes[UNITS_MAX];
    bool open[UNITS_MAX];
};

static void gather(struct program *p, uint32_t unit) {
    if (p->open[unit]) return;
    interval_begin(&p->intervals, (struct buffer_ref){BUFFER_PARAM_FULL, (uint16_t)unit}, UINT32_MAX,
                   p->bytes[unit], p->tick);
    p->open[unit] = true;
}

static void release(struct program *p, uint32_t unit) {
    interval_end(&p->intervals, (struct buffer_ref){BUFFER_PARAM_FULL, (uint16_t)unit}, p->tick);
    p->open[unit] = false;
}

static void forward(struct program *p) {
    for (uint32_t u = 0; u < p->units; u++, p->tick++) {
        for (uint32_t k = u; k < p->units && k <= u + p->depth; k++) gather(p, k);
        p->tick++;
        if (u + 1 < p->units) release(p, u); /* the last unit stays for its backward */
    }
}

static void backward(struct program *p) {
    for (uint32_t u = p->units; u-- > 0; p->tick++) {
        struct buffer_ref gradient = {BUFFER_GRAD_FULL, (uint16_t)u};
        for (uint32_t k = 0; k <= p->depth && k <= u; k++) gather(p, u - k);
        interval_begin(&p->intervals, gradient, UINT32_MAX, p->bytes[u], p->tick);
        p->tick++;
        interval_end(&p->intervals, gradient, p->tick + (p->depth ? 2 : 0));
        release(p, u);
    }
}

/* Two micro-steps and an evaluation. */
static void run(struct program *p) {
    for (int micro = 0; micro < 2; micro++) forward(p), backward(p);
    forward(p);
    release(p, p->units - 1);
}

static bool meet(const struct interval *a, const struct interval *b) {
    return a->begin < b->end && b->begin < a->end && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

static bool same(const struct interval *a, const struct interval *b) {
    return a->ref.kind == b->ref.kind && a->ref.region == b->ref.region;
}

static void check_layout(const struct intervals *s, uint64_t top) {
    for (uint32_t i = 0; i < s->count; i++) {
        CHECK(s->item[i].offset + s->item[i].bytes <= top);
        for (uint32_t k = 0; k < i; k++) {
            CHECK(!meet(&s->item[i], &s->item[k]));
            if (same(&s->item[i], &s->item[k])) CHECK_INT(s->item[i].offset, s->item[k].offset);
        }
    }
}

/* The most memory of buffers that have room together is between that of any set of them and that of the best set and one more. */
static void most_at_once(uint64_t seed) {
    enum { BUFFERS = 7 };
    struct apart buffer[BUFFERS];
    uint64_t room = pick(&seed, 40), largest = 0, best = 0;
    for (int i = 0; i < BUFFERS; i++) {
        buffer[i].room = 1 + pick(&seed, 12);
        buffer[i].pages = (buffer[i].room + 3) / 4 * 4;
        if (buffer[i].pages > largest) largest = buffer[i].pages;
    }
    for (unsigned set = 0; set < 1u << BUFFERS; set++) {
        uint64_t taken = 0, pages = 0;
        for (int i = 0; i < BUFFERS; i++)
            if (set & 1u << i) taken += buffer[i].room, pages += buffer[i].pages;
        if (taken <= room && pages > best) best = pages;
    }
    uint64_t most = intervals_most_at_once(buffer, BUFFERS, room);
    if (!(CHECK(most >= best) & CHECK(most - best < largest)))
        fprintf(stderr, "%d instead of %d\n", (int)most, (int)best);
}

int main(void) {
    uint32_t grown = 0, runs = (uint32_t)seeds_count(4000);
    for (uint32_t k = 0; k < runs; k++) {
        uint64_t seed = 1 + k;
        most_at_once(seed);
        struct program p = {.units = 1 + pick(&seed, UNITS_MAX), .depth = pick(&seed, 5)};
        bool equal = pick(&seed, 3) == 0;
        for (uint32_t u = 0; u < p.units; u++) p.bytes[u] = 64 * (1 + (equal ? 9 : pick(&seed, 20)));
        if (pick(&seed, 2)) p.bytes[0] *= 7; /* an embedding */
        struct zero_error error;
        error_clear(&error);
        CHECK_INT(intervals_open(&p.intervals, CAPACITY, UNITS_MAX, 64, &error), ZERO_OK);
        run(&p);
        uint64_t more, top = intervals_lay_out(&p.intervals, &more);
        check_layout(&p.intervals, top);
        uint64_t largest = 0;
        for (uint32_t i = 0; i < p.intervals.count; i++)
            if (p.intervals.item[i].bytes > largest) largest = p.intervals.item[i].bytes;
        CHECK(more <= largest);
        grown += more > 0;
        intervals_close(&p.intervals);
    }
    CHECK(grown <= runs / 5); /* 579 of 4000 */
    return check_end();
}
