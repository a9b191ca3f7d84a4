#include "tests/comm/conformance.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/comm/shape.h"
#include "engine/device/device.h"
#include "tests/check.h"

static const uint64_t counts[] = {0, 1, 7, 4096, 4097, 10007};
enum { COUNTS = sizeof counts / sizeof *counts, SOURCE_SEED = 17, MEMBERS_MAX = 64 };

/* ---- data ---- */

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Finite numbers of many magnitudes, so that another order of additions gives other bits. */
static uint32_t element(enum dtype dtype, uint32_t rank, uint64_t i) {
    uint32_t random = (uint32_t)mix(mix((uint64_t)rank << 8 | dtype) ^ i);
    switch (dtype) {
    case DTYPE_F32:
        return (random & 0x807fffff) | (120 + (random >> 23 & 15)) << 23;
    case DTYPE_BF16:
        return (random & 0x807f) | (120 + (random >> 16 & 15)) << 7;
    case DTYPE_F16:
        return (random & 0x83ff) | (random >> 16 & 15) << 10; /* denormals included */
    default:
        return random & 0xff;
    }
}

static void put(void *buffer, enum dtype dtype, uint64_t i, uint32_t bits) {
    if (dtype == DTYPE_F32)
        ((uint32_t *)buffer)[i] = bits;
    else if (dtype == DTYPE_U8)
        ((uint8_t *)buffer)[i] = (uint8_t)bits;
    else
        ((uint16_t *)buffer)[i] = (uint16_t)bits;
}

static uint32_t get(const void *buffer, enum dtype dtype, uint64_t i) {
    return dtype == DTYPE_F32 ? ((const uint32_t *)buffer)[i] : ((const uint16_t *)buffer)[i];
}

static void fill(void *buffer, enum dtype dtype, uint32_t rank, uint64_t first, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) put(buffer, dtype, i, element(dtype, rank, first + i));
}

static void *make(uint64_t count, enum dtype dtype) {
    void *buffer = malloc(count * dtype_bytes(dtype) + 1);
    memset(buffer, 0x5a, count * dtype_bytes(dtype) + 1);
    return buffer;
}

/* ---- the scalar reference ---- */

static float widen(enum dtype dtype, uint32_t bits) {
    float value;
    if (dtype == DTYPE_F16) {
        int exponent = (int)(bits >> 10 & 31), mantissa = (int)(bits & 1023);
        double magnitude = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
        return (float)(bits & 0x8000 ? -magnitude : magnitude);
    }
    if (dtype == DTYPE_BF16) bits <<= 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t narrow_f16(float value) {
    double magnitude = fabs((double)value);
    uint32_t sign = signbit(value) ? 0x8000 : 0;
    int exponent;
    if (magnitude >= 65520) return sign | 0x7c00;
    frexp(magnitude, &exponent);
    if (exponent < -13) exponent = -13;
    double steps =
        nearbyint(ldexp(magnitude, 11 - exponent)); /* of 2^(exponent - 11): 1024 to 2048, or denormal */
    if (steps == 2048) steps = 1024, exponent++;
    if (steps < 1024) return sign | (uint32_t)steps;
    return sign | (uint32_t)(exponent + 14) << 10 | ((uint32_t)steps - 1024);
}

static uint32_t narrow(enum dtype dtype, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == DTYPE_F32) return bits;
    if (dtype == DTYPE_F16) return narrow_f16(value);
    return (bits >> 16) + ((bits & 0xffff) + (bits >> 16 & 1) > 0x8000);
}

static float sum_of(const uint32_t *ranks, uint32_t members, enum dtype dtype, uint64_t i) {
    volatile float sum = widen(dtype, element(dtype, ranks[0], i));
    for (uint32_t m = 1; m < members; m++) sum = sum + widen(dtype, element(dtype, ranks[m], i));
    return sum;
}

static void expect_sum(void *expected, const struct comm_call *call, const uint32_t *ranks, uint32_t members,
                       uint64_t first, uint64_t count, uint32_t me) {
    for (uint64_t i = 0; i < count; i++) {
        float sum = sum_of(ranks, members, call->dtype, first + i);
        if (call->add) sum = widen(DTYPE_F32, element(DTYPE_F32, ranks[me] + 1000, i)) + sum;
        put(expected, call->target_dtype, i, narrow(call->target_dtype, sum));
    }
}

/* ---- running calls ---- */

struct ring {
    struct comm_group *group;
    uint32_t ranks[MEMBERS_MAX], members, me;
};

static void ring_open(struct conformance *c, struct ring *ring, uint32_t first, uint32_t step, uint32_t end) {
    ring->members = 0;
    for (uint32_t rank = first; rank < end; rank += step) ring->ranks[ring->members++] = rank;
    if (!CHECK_INT(comm_group_open(c->comm, ring->ranks, ring->members, &ring->group), ZERO_OK)) {
        fprintf(stderr, "%s\n", comm_error(c->comm)->message);
        exit(1);
    }
    ring->me = comm_group_index(ring->group);
    CHECK_INT(comm_group_size(ring->group), ring->members);
    CHECK_INT(ring->ranks[ring->me], comm_rank(c->comm));
}

/* A transport's own order of additions rounds at other places; narrow types round at each addition, by half of the last
 * place of a partial sum. */
static void check_near(const struct ring *ring, const void *target, const void *expected,
                       const struct comm_call *call, uint64_t count) {
    static const double most[] = {[DTYPE_F32] = 512, [DTYPE_BF16] = 512, [DTYPE_F16] = 2}; /* of an element */
    static const int places[] = {[DTYPE_F32] = 24, [DTYPE_BF16] = 8, [DTYPE_F16] = 11};
    double tolerance = ring->members * ldexp(ring->members * most[call->dtype], -places[call->dtype]);
    for (uint64_t i = 0; i < count; i++)
        if (!CHECK_DOUBLE(widen(call->target_dtype, get(target, call->target_dtype, i)),
                          widen(call->target_dtype, get(expected, call->target_dtype, i)), tolerance))
            return;
}

/* A host buffer of a call, and its place in the device's memory meanwhile. */
struct shadow {
    char *host, *place;
    uint64_t bytes;
};

struct pending {
    struct comm_work *work;
    void *staging;
    struct shadow shadow[2]; /* source and target, or both in one */
};

static void require(struct conformance *c, zero_status status) {
    if (CHECK_INT(status, ZERO_OK)) return;
    fprintf(stderr, "rank %u: %s\n", comm_rank(c->comm), comm_error(c->comm)->message);
    exit(1);
}

/* ---- buffers that are a device's ---- */

static void copy_over(struct conformance *c, void *target, const void *source, uint64_t bytes) {
    struct zero_error error;
    uint64_t ticket;
    error_clear(&error);
    CHECK_INT(c->device->ops->copy(c->device, DEVICE_IN, target, source, bytes, &ticket, &error), ZERO_OK);
    if (!CHECK_INT(device_finish(c->device, ticket, &error), ZERO_OK)) fprintf(stderr, "%s\n", error.message);
}

static void *allocate(struct conformance *c, uint64_t bytes) {
    enum { ALIGN = 512 };
    if (!c->device) return malloc(bytes);
    if (!c->memory) c->memory = c->device->ops->allocate(c->device, CONFORMANCE_DEVICE_BYTES, DEVICE_MEMORY);
    if (!c->memory_users++) c->memory_used = 0;
    char *memory = c->memory + c->memory_used;
    c->memory_used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    CHECK(c->memory && c->memory_used <= CONFORMANCE_DEVICE_BYTES);
    return memory;
}

static void release(struct conformance *c, void *memory) {
    if (c->device)
        c->memory_users--;
    else
        free(memory);
}

static void lend(struct conformance *c, struct shadow *shadow, const void *host, uint64_t bytes) {
    if (!bytes) return;
    *shadow = (struct shadow){(char *)(uintptr_t)host, allocate(c, bytes), bytes};
    copy_over(c, shadow->place, shadow->host, bytes);
}

static void give_back(struct conformance *c, struct shadow *shadow) {
    if (!shadow->bytes) return;
    copy_over(c, shadow->host, shadow->place, shadow->bytes);
    release(c, shadow->place);
}

/* Moves a call's buffers to the device. In place, one lies in the other. */
static void lend_buffers(struct conformance *c, struct pending *pending, struct comm_call *call,
                         uint32_t members) {
    const char *source = call->source, *target = call->target;
    uint64_t source_bytes = shape_source_bytes(call, members),
             target_bytes = shape_target_bytes(call, members);
    bool in_source = source_bytes && source <= target && target + target_bytes <= source + source_bytes,
         in_target =
             source_bytes && !in_source && target <= source && source + source_bytes <= target + target_bytes;
    if (!in_target) lend(c, &pending->shadow[0], source, source_bytes);
    if (!in_source) lend(c, &pending->shadow[1], target, target_bytes);
    const struct shadow *of_source = &pending->shadow[in_target], *of_target = &pending->shadow[!in_source];
    if (source_bytes) call->source = of_source->place + (source - of_source->host);
    if (target_bytes) call->target = of_target->place + (target - of_target->host);
    call->written = NULL; /* is the host's */
}

static struct pending post(struct conformance *c, struct comm_group *group, struct comm_call call) {
    struct pending pending = {0};
    uint64_t staging_bytes = comm_staging_bytes(group, &call);
    if (c->device) lend_buffers(c, &pending, &call, comm_group_size(group));
    call.staging = pending.staging = allocate(c, staging_bytes + 1);
    require(c, comm_post(group, &call, &pending.work));
    return pending;
}

static void finish(struct conformance *c, struct pending *pending) {
    bool done = false;
    for (;;) {
        require(c, comm_test(pending->work, &done));
        if (done) break;
        c->pause(c);
    }
    release(c, pending->staging);
    for (int i = 0; i < 2; i++) give_back(c, &pending->shadow[i]);
}

static void run(struct conformance *c, struct comm_group *group, struct comm_call call) {
    struct pending pending = post(c, group, call);
    finish(c, &pending);
}

static void take(struct conformance *c, const void *actual, const void *expected, uint64_t bytes,
                 const char *what) {
    if (!CHECK_BYTES(actual, expected, bytes))
        fprintf(stderr, "in %s of rank %u\n", what, comm_rank(c->comm));
    for (uint64_t i = 0; i < bytes; i++) c->hash = mix(c->hash ^ ((const uint8_t *)actual)[i]);
}

/* ---- the calls one by one ---- */

static void all_gather(struct conformance *c, struct ring *ring, enum dtype dtype, uint64_t count,
                       bool in_place) {
    uint64_t total = ring->members * count, bytes = dtype_bytes(dtype);
    char *source = make(count, dtype), *target = make(total, dtype), *expected = make(total, dtype);
    char *own = target + ring->me * count * bytes;
    fill(in_place ? own : source, dtype, comm_rank(c->comm), 0, count);
    for (uint32_t m = 0; m < ring->members; m++)
        fill(expected + m * count * bytes, dtype, ring->ranks[m], 0, count);
    run(c, ring->group,
        (struct comm_call){.kind = COMM_ALL_GATHER,
                           .dtype = dtype,
                           .count = count,
                           .tag = 1,
                           .what = "gathered",
                           .source = in_place ? own : source,
                           .target = target});
    take(c, target, expected, total * bytes, "all-gather");
    free(source), free(target), free(expected);
}

static void all_to_all(struct conformance *c, struct ring *ring, enum dtype dtype, uint64_t count) {
    uint64_t total = ring->members * count, bytes = dtype_bytes(dtype);
    char *source = make(total, dtype), *target = make(total, dtype), *expected = make(total, dtype);
    fill(source, dtype, comm_rank(c->comm), 0, total);
    for (uint32_t m = 0; m < ring->members; m++)
        fill(expected + m * count * bytes, dtype, ring->ranks[m], ring->me * count, count);
    run(c, ring->group,
        (struct comm_call){.kind = COMM_ALL_TO_ALL,
                           .dtype = dtype,
                           .count = count,
                           .what = "exchanged",
                           .source = source,
                           .target = target});
    take(c, target, expected, total * bytes, "all-to-all");
    free(source), free(target), free(expected);
}

static void broadcast(struct conformance *c, struct ring *ring, enum dtype dtype, uint64_t count,
                      uint32_t root) {
    char *target = make(count, dtype), *expected = make(count, dtype);
    if (ring->me == root) fill(target, dtype, ring->ranks[root], 0, count);
    fill(expected, dtype, ring->ranks[root], 0, count);
    run(c, ring->group,
        (struct comm_call){
            .kind = COMM_BROADCAST, .dtype = dtype, .count = count, .root = root, .target = target});
    take(c, target, expected, count * dtype_bytes(dtype), "broadcast");
    free(target), free(expected);
}

struct seen {
    const char *target;
    uint64_t end, bytes;
};

static void written(void *user, const void *block, uint64_t first, uint64_t count) {
    struct seen *seen = user;
    CHECK_INT(first, seen->end);
    CHECK_INT(first % 4096, 0);
    CHECK_INT((const char *)block - seen->target, first * seen->bytes);
    CHECK(count > 0 && count <= 4096);
    seen->end += count;
}

enum form { OUT_OF_PLACE, IN_PLACE, ADD, FORMS };

static void reduce_scatter(struct conformance *c, struct ring *ring, enum dtype dtype,
                           enum dtype target_dtype, uint64_t count, enum form form, bool native) {
    uint64_t total = ring->members * count, first = ring->me * count, bytes = dtype_bytes(target_dtype);
    char *source = make(total, dtype), *separate = make(count, target_dtype),
         *expected = make(count, target_dtype);
    char *target = form == IN_PLACE ? source + first * bytes : separate;
    struct seen seen = {target, 0, bytes};
    struct comm_call call = {.kind = COMM_REDUCE_SCATTER,
                             .dtype = dtype,
                             .target_dtype = target_dtype,
                             .count = count,
                             .what = "reduced",
                             .source = source,
                             .target = target,
                             .add = form == ADD,
                             .native = native,
                             .written = written,
                             .written_user = &seen};
    fill(source, dtype, comm_rank(c->comm), 0, total);
    if (form == ADD) fill(target, DTYPE_F32, comm_rank(c->comm) + 1000, 0, count);
    expect_sum(expected, &call, ring->ranks, ring->members, first, count, ring->me);
    run(c, ring->group, call);
    if (!c->device) CHECK_INT(seen.end, count);
    if (!native) take(c, target, expected, count * bytes, "reduce-scatter");
    if (native) check_near(ring, target, expected, &call, count);
    free(source), free(separate), free(expected);
}

static void all_reduce(struct conformance *c, struct ring *ring, enum dtype dtype, enum dtype target_dtype,
                       uint64_t count, enum form form, bool native) {
    uint64_t bytes = dtype_bytes(target_dtype);
    char *source = make(count, dtype), *separate = make(count, target_dtype),
         *expected = make(count, target_dtype);
    char *target = form == IN_PLACE ? source : separate;
    struct comm_call call = {.kind = COMM_ALL_REDUCE,
                             .dtype = dtype,
                             .target_dtype = target_dtype,
                             .count = count,
                             .what = "reduced",
                             .source = source,
                             .target = target,
                             .add = form == ADD,
                             .native = native};
    fill(source, dtype, comm_rank(c->comm), 0, count);
    if (form == ADD) fill(target, DTYPE_F32, comm_rank(c->comm) + 1000, 0, count);
    expect_sum(expected, &call, ring->ranks, ring->members, 0, count, ring->me);
    run(c, ring->group, call);
    if (!native) take(c, target, expected, count * bytes, "all-reduce");
    if (native) check_near(ring, target, expected, &call, count);
    free(source), free(separate), free(expected);
}

static void reductions(struct conformance *c, struct ring *ring, uint64_t count) {
    for (int dtype = DTYPE_F32; dtype <= DTYPE_F16; dtype++)
        for (int wide = 0; wide <= (dtype != DTYPE_F32); wide++)
            for (int form = 0; form < FORMS; form++) {
                enum dtype source = (enum dtype)dtype, target = wide ? DTYPE_F32 : source;
                if ((form == IN_PLACE && target != source) || (form == ADD && target != DTYPE_F32)) continue;
                reduce_scatter(c, ring, source, target, count, (enum form)form, false);
                all_reduce(c, ring, source, target, count, (enum form)form, false);
                if (source != DTYPE_F32 && !strcmp(comm_name(c->comm), "mpi")) continue; /* refused */
                reduce_scatter(c, ring, source, target, count, (enum form)form, true);
                all_reduce(c, ring, source, target, count, (enum form)form, true);
            }
}

static void every_call(struct conformance *c, struct ring *ring) {
    for (int i = 0; i < COUNTS; i += c->light ? 2 : 1) {
        for (int dtype = 0; dtype < DTYPES; dtype++) {
            all_gather(c, ring, (enum dtype)dtype, counts[i], false);
            all_gather(c, ring, (enum dtype)dtype, counts[i], true);
            all_to_all(c, ring, (enum dtype)dtype, counts[i]);
        }
        for (uint32_t root = 0; root < ring->members; root++) broadcast(c, ring, DTYPE_BF16, counts[i], root);
        reductions(c, ring, counts[i]);
        run(c, ring->group, (struct comm_call){.kind = COMM_BARRIER, .what = "the end of a size"});
    }
}

static void large(struct conformance *c, struct ring *ring) {
    uint64_t count = c->light ? 20003 : 1000003;
    all_gather(c, ring, DTYPE_F32, count, true);
    reduce_scatter(c, ring, DTYPE_BF16, DTYPE_F32, count, OUT_OF_PLACE, false);
    all_reduce(c, ring, DTYPE_F32, DTYPE_F32, count, IN_PLACE, false);
}

/* ---- many calls at once ---- */

enum { FLIGHT = 12, FLIGHT_COUNT = 5003 };

struct flight {
    struct pending pending;
    struct comm_call call;
    struct ring *ring;
    char *source, *target, *expected;
    uint64_t target_bytes;
    bool done;
};

/* In turn an all-reduce, an all-gather, a reduce-scatter: all-reduces have two halves, which must keep their
 * order. */
static void flight_post(struct conformance *c, struct flight *flight, struct ring *ring, uint32_t i) {
    static const enum comm_kind kinds[] = {COMM_ALL_REDUCE, COMM_ALL_GATHER, COMM_ALL_REDUCE,
                                           COMM_REDUCE_SCATTER};
    enum comm_kind kind = kinds[i % 4];
    uint64_t count = (c->light ? FLIGHT_COUNT / 10 : FLIGHT_COUNT) + i, total = ring->members * count;
    *flight = (struct flight){.ring = ring};
    flight->source = make(total, DTYPE_F32), flight->target = make(total, DTYPE_F32);
    flight->expected = make(total, DTYPE_F32);
    flight->call = (struct comm_call){.kind = kind,
                                      .count = count,
                                      .tag = i,
                                      .what = "flight",
                                      .source = flight->source,
                                      .target = flight->target};
    fill(flight->source, DTYPE_F32, comm_rank(c->comm), 0, total);
    flight->target_bytes = (kind == COMM_ALL_GATHER ? total : count) * 4;
    if (kind == COMM_ALL_GATHER)
        for (uint32_t m = 0; m < ring->members; m++)
            fill(flight->expected + m * count * 4, DTYPE_F32, ring->ranks[m], 0, count);
    else
        expect_sum(flight->expected, &flight->call, ring->ranks, ring->members,
                   kind == COMM_REDUCE_SCATTER ? ring->me * count : 0, count, ring->me);
    flight->pending = post(c, ring->group, flight->call);
}

static void flight_finish(struct conformance *c, struct flight *flight) {
    finish(c, &flight->pending);
    flight->done = true;
}

static void flight_check(struct conformance *c, struct flight *flight) {
    take(c, flight->target, flight->expected, flight->target_bytes, "a call in flight");
    free(flight->source), free(flight->target), free(flight->expected);
}

/* Posts alternate between the groups; each rank waits for them in an order of its own. */
static void in_flight(struct conformance *c, struct ring *const *rings, uint32_t ring_count) {
    struct flight flights[FLIGHT];
    uint64_t random = mix(c->seed ^ comm_rank(c->comm));
    for (uint32_t i = 0; i < FLIGHT; i++) flight_post(c, &flights[i], rings[i % ring_count], i);
    for (uint32_t left = FLIGHT; left; left--) {
        random = mix(random);
        uint32_t pick = (uint32_t)(random % FLIGHT);
        while (flights[pick].done) pick = (pick + 1) % FLIGHT;
        flight_finish(c, &flights[pick]);
    }
    for (uint32_t i = 0; i < FLIGHT; i++) flight_check(c, &flights[i]);
}

static void full_group(struct conformance *c, struct ring *ring) {
    struct pending pending[COMM_CALLS_MAX];
    for (int i = 0; i < COMM_CALLS_MAX; i++) {
        CHECK(!comm_group_full(ring->group));
        pending[i] = post(c, ring->group, (struct comm_call){.kind = COMM_BARRIER});
    }
    CHECK(comm_group_full(ring->group));
    for (int i = COMM_CALLS_MAX; i-- > 0;) finish(c, &pending[i]);
    CHECK(!comm_group_full(ring->group));
}

/* ---- accounts ---- */

static void counters(struct conformance *c, struct ring *ring) {
    struct comm_counters before, after;
    uint64_t n = ring->members, peers = n - 1;
    comm_counters_read(c->comm, &before);
    all_gather(c, ring, DTYPE_BF16, 1000, true);
    reduce_scatter(c, ring, DTYPE_BF16, DTYPE_F32, 1000, ADD, false);
    all_to_all(c, ring, DTYPE_F32, 10);
    all_reduce(c, ring, DTYPE_BF16, DTYPE_F32, 1001, OUT_OF_PLACE, false);
    broadcast(c, ring, DTYPE_BF16, 100, 0);
    comm_counters_read(c->comm, &after);
    uint64_t share = (1001 + n - 1) / n, sent = ring->me == 0 ? peers * 100 : 0;
    CHECK_INT(after.calls[COMM_ALL_GATHER] - before.calls[COMM_ALL_GATHER], 1);
    CHECK_INT(after.elements[COMM_ALL_GATHER] - before.elements[COMM_ALL_GATHER], peers * 1000);
    CHECK_INT(after.elements[COMM_REDUCE_SCATTER] - before.elements[COMM_REDUCE_SCATTER], peers * 1000);
    CHECK_INT(after.elements[COMM_ALL_TO_ALL] - before.elements[COMM_ALL_TO_ALL], peers * 10);
    CHECK_INT(after.elements[COMM_ALL_REDUCE] - before.elements[COMM_ALL_REDUCE], 2 * peers * share);
    CHECK_INT(after.elements[COMM_BROADCAST] - before.elements[COMM_BROADCAST], sent);
    CHECK_INT(after.bytes - before.bytes, peers * (2000 + 2000 + 40 + 6 * share) + 2 * sent);
}

static void fingerprints(struct conformance *c, struct ring *ring) {
    uint64_t mine = comm_fingerprint(c->comm), *all = make(2 * ring->members, DTYPE_F32);
    run(c, ring->group,
        (struct comm_call){.kind = COMM_ALL_GATHER,
                           .dtype = DTYPE_U8,
                           .count = sizeof mine,
                           .source = &mine,
                           .target = all});
    for (uint32_t m = 0; m < ring->members; m++) CHECK(all[m] == mine);
    CHECK(comm_fingerprint(c->comm) != mine);
    free(all);
}

void conformance_idle(struct conformance *conformance) { comm_idle(conformance->comm, 1000000); }

void conformance_run(struct conformance *c) {
    struct ring world, again, pair;
    uint32_t rank = comm_rank(c->comm), size = comm_size(c->comm), first = rank / 2 * 2;
    ring_open(c, &world, 0, 1, size);
    ring_open(c, &again, 0, 1, size);
    ring_open(c, &pair, first, 1, first + 2 < size ? first + 2 : size);
    every_call(c, &world);
    fingerprints(c, &world);
    if (size > 2) every_call(c, &pair);
    large(c, &world);
    in_flight(c, (struct ring *[]){&world}, 1);
    in_flight(c, (struct ring *[]){&world, &pair, &again}, 3);
    full_group(c, &again);
    counters(c, &world);
    if (size % 2 == 0) fingerprints(c, &world); /* else the last pair is one rank, and made fewer calls */
    CHECK_INT(comm_error(c->comm)->code, ZERO_OK);
    comm_group_close(again.group);
    ring_open(c, &again, 0, 1, size); /* of the same members as one that was closed */
    all_gather(c, &again, DTYPE_F32, 5, false);
    run(c, world.group, (struct comm_call){.kind = COMM_BARRIER, .what = "the end"});
    comm_group_close(again.group);
    comm_group_close(pair.group);
    comm_group_close(world.group);
}

/* ---- faults ---- */

const char *const conformance_fault_names[FAULTS] = {
    [FAULT_DIVERGED] = "diverged", [FAULT_FAILED] = "failed", [FAULT_CLOSED] = "closed",
    [FAULT_STUCK] = "stuck",       [FAULT_KILLED] = "killed", [FAULT_STOPPED] = "stopped",
    [FAULT_UNOPENED] = "unopened", [FAULT_EXITED] = "exited", [FAULT_UNCLOSED] = "unclosed"};

enum { FAULT_COUNT = 100 };

static zero_status run_start(struct conformance *c, struct comm_group *group);

/* Until the comm fails. Transport mpi may complete calls that do not match, when their sizes do: then it is
 * found by and by, many calls later, and still the first one that differed is named. */
static zero_status wait_for_failure(struct conformance *c, struct comm_group *group, struct comm_work *work) {
    bool done = false;
    zero_status status = ZERO_OK;
    while (status == ZERO_OK && !done) {
        status = comm_test(work, &done);
        if (status == ZERO_OK && !done) c->pause(c);
    }
    CHECK(!done || strcmp(comm_name(c->comm), "mpi") == 0);
    while (status == ZERO_OK) {
        struct timespec nap = {0, 500000};
        nanosleep(&nap, NULL);
        status = run_start(c, group);
    }
    return status;
}

static zero_status run_start(struct conformance *c, struct comm_group *group) {
    struct comm_work *work;
    bool done = false;
    zero_status status =
        comm_post(group, &(struct comm_call){.kind = COMM_BARRIER, .what = "the start"}, &work);
    while (status == ZERO_OK && !done) {
        status = comm_test(work, &done);
        if (status == ZERO_OK && !done) c->pause(c);
    }
    return status;
}

static void nap(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

static struct comm_call fault_call(enum conformance_fault fault, bool culprit, float *buffers) {
    struct comm_call call = {.kind = COMM_ALL_GATHER,
                             .count = FAULT_COUNT,
                             .tag = 3,
                             .what = "h.3",
                             .source = buffers,
                             .target = buffers + FAULT_COUNT};
    if (fault == FAULT_DIVERGED && culprit)
        call.kind = COMM_REDUCE_SCATTER, call.what = "h.2", call.source = buffers + FAULT_COUNT,
        call.target = buffers;
    return call;
}

/* If a process ends, its sockets end, too. */
static bool ends_connections(const struct conformance *c, enum conformance_fault fault) {
    return (fault == FAULT_KILLED || fault == FAULT_EXITED) && strcmp(comm_name(c->comm), "tcp") == 0;
}

static void check_message(struct conformance *c, enum conformance_fault fault, bool culprit) {
    const struct zero_error *error = comm_error(c->comm);
    char name[32];
    snprintf(name, sizeof name, "rank %u", comm_size(c->comm) - 1);
    printf("rank %u: %s: %s\n", comm_rank(c->comm), zero_status_name(error->code), error->message);
    fflush(stdout);
    if (fault == FAULT_FAILED && culprit) {
        CHECK_STRING(error->message, "the drive is gone");
        return;
    }
    CHECK_CONTAINS(error->message, name);
    if (fault == FAULT_FAILED)
        CHECK_CONTAINS(error->message, "the drive is gone");
    else if (fault == FAULT_UNOPENED)
        CHECK_CONTAINS(error->message, "did not open a group of 3 ranks");
    else
        CHECK_CONTAINS(error->message, "all-gather of h.3 (100 x fp32, tag 3), call 1 of group 0");
    if (fault == FAULT_DIVERGED) CHECK_CONTAINS(error->message, "reduce-scatter of h.2 (100 x fp32, tag 3)");
    if (ends_connections(c, fault))
        CHECK_CONTAINS(error->message, "rank 2 is gone: its connection to rank ");
    else if (fault >= FAULT_KILLED)
        CHECK_CONTAINS(error->message, "rank 2 has been silent for 1.");
    if (fault != FAULT_DIVERGED) CHECK_INT(error->rank, comm_size(c->comm) - 1);
}

void conformance_run_fault(struct conformance *c, enum conformance_fault fault) {
    struct ring world;
    struct comm_work *work = NULL;
    uint32_t size = comm_size(c->comm);
    bool culprit = comm_rank(c->comm) == size - 1;
    /* A call that never finished keeps its buffers: peers may read them until all ranks have closed. */
    float *buffers = allocate(c, (size + 1) * FAULT_COUNT * sizeof *buffers);
    void *staging = allocate(c, (size + 1) * FAULT_COUNT * sizeof *buffers);
    c->kept[0] = buffers, c->kept[1] = staging;
    if (!c->device) memset(buffers, 0, (size + 1) * FAULT_COUNT * sizeof *buffers);
    ring_open(c, &world, 0, 1, size);
    zero_status started = run_start(c, world.group);
    struct comm_call call = fault_call(fault, culprit, buffers);
    call.staging = staging;
    if (started != ZERO_OK) { /* a peer was past the start, and failed, before this rank looked */
        check_message(c, fault, culprit);
    } else if (culprit && (fault == FAULT_KILLED || fault == FAULT_STOPPED)) {
        raise(fault == FAULT_KILLED ? SIGKILL : SIGSTOP);
    } else if (culprit && fault == FAULT_EXITED) {
        exit(0);
    } else if (fault == FAULT_UNOPENED) {
        struct comm_group *second;
        if (culprit) nap(14 * c->timeout_s + 1);
        CHECK_INT(comm_group_open(c->comm, world.ranks, size, &second), ZERO_E_PEER);
        check_message(c, fault, culprit);
    } else if (fault == FAULT_UNCLOSED) {
        if (culprit) nap(12 * c->timeout_s + 1);
    } else if (culprit && fault == FAULT_FAILED) {
        struct zero_error error = {.code = ZERO_E_IO, .rank = (int32_t)size - 1};
        snprintf(error.message, sizeof error.message, "the drive is gone");
        comm_fail(c->comm, &error);
        CHECK_INT(comm_post(world.group, &call, &work), ZERO_E_IO);
        check_message(c, fault, culprit);
    } else if (culprit && fault == FAULT_STUCK) {
        nap(12 * c->timeout_s + 1);
        zero_status status =
            comm_post(world.group, &call, &work); /* it hears of it, too, when it comes back */
        CHECK_INT(status, ZERO_E_PEER);
        check_message(c, fault, culprit);
    } else if (!(culprit && fault == FAULT_CLOSED)) {
        uint64_t begin_ns = clock_now_ns();
        zero_status status = comm_post(world.group, &call, &work);
        if (status == ZERO_OK) status = wait_for_failure(c, world.group, work);
        if (ends_connections(c, fault)) CHECK(clock_now_ns() - begin_ns < 2000000000);
        CHECK_INT(status, fault == FAULT_DIVERGED ? ZERO_E_DIVERGED : ZERO_E_PEER);
        CHECK_INT(comm_post(world.group, &call, &work), status); /* sticky */
        check_message(c, fault, culprit);
    }
    comm_group_close(world.group);
    comm_close(c->comm);
}
