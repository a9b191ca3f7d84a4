/* tcp_fault_test FAULT [TIMEOUT_S]: two or three ranks over TCP, as threads, while something happens to their
 * connections. No wait may outlive its deadline, and an outage that is shorter than the limit may end no run.
 *
 * An outage is a filter on the ranks' own sockets: while it is attached the kernel drops every packet that comes in
 * before TCP sees it, so that nothing is acknowledged, as where a cable is out. */
#include <errno.h>
#include <linux/filter.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/comm/tcp/socket.h"
#include "engine/comm/tcp/tcp.h"
#include "tests/check.h"

enum { RANKS_AT_MOST = 3, COUNT = 3000, HANGS_AFTER_S = 120, TIMEOUT_S = 60, SOON_S = 40 };

struct run;

struct rank {
    pthread_t thread;
    struct run *run;
    struct comm_options options;
    struct comm *comm;
    struct comm_group *group;
    int data[RANKS_AT_MOST], control[RANKS_AT_MOST]; /* the sockets to each rank */
    float buffers[(RANKS_AT_MOST + 1) * COUNT], staging[(RANKS_AT_MOST + 1) * COUNT];
    zero_status status;
    struct zero_error error;
    uint64_t failed_ns, closed_ns;
    atomic_uint calls, errors; /* errors: logged while closing */
};

struct run {
    uint32_t ranks;
    void (*body)(struct rank *rank);
    pthread_barrier_t together;
    atomic_bool over; /* the ranks may end well */
    atomic_bool left; /* the last rank has closed */
    struct rank rank[RANKS_AT_MOST];
};

static void nap(double seconds) {
    nanosleep(&(struct timespec){(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)}, NULL);
}

static double seconds_between(uint64_t from_ns, uint64_t to_ns) {
    return (double)(int64_t)(to_ns - from_ns) * 1e-9;
}

static struct comm_call call_of(struct rank *rank, enum comm_kind kind) {
    return (struct comm_call){.kind = kind,
                              .target_dtype = DTYPE_F32,
                              .count = COUNT,
                              .what = "h.3",
                              .source = kind == COMM_REDUCE_SCATTER ? rank->buffers + COUNT : rank->buffers,
                              .target = kind == COMM_REDUCE_SCATTER ? rank->buffers : rank->buffers + COUNT,
                              .staging = rank->staging};
}

/* ---- ranks ---- */

static void note_failure(struct rank *rank) {
    rank->failed_ns = clock_now_ns();
    rank->error = *comm_error(rank->comm);
}

/* Gathers until something fails, or the test is over: whether it is, the ranks agree in the gathered numbers. */
static void gathers(struct rank *rank) {
    bool over = false;
    while (!over && rank->status == ZERO_OK) {
        struct comm_call call = call_of(rank, COMM_ALL_GATHER);
        rank->buffers[0] = atomic_load(&rank->run->over);
        rank->status = comm_run(rank->group, &call);
        over = true;
        for (uint32_t r = 0; r < rank->run->ranks; r++) over = over && rank->buffers[(1 + r) * COUNT] != 0;
        atomic_fetch_add(&rank->calls, 1);
        nap(0.001);
    }
    if (rank->status) note_failure(rank);
}

static void note_error(void *user, zero_log_level level, const char *line) {
    struct rank *rank = user;
    fprintf(stderr, "rank %u logs: %s\n", rank->options.rank, line);
    atomic_fetch_add(&rank->errors, level == ZERO_LOG_ERROR);
}

static void *run_rank(void *user) {
    struct rank *rank = user;
    static const uint32_t all[RANKS_AT_MOST] = {0, 1, 2};
    error_clear(&rank->error);
    if (CHECK_INT(comm_open(&comm_tcp_ops, &rank->options, &rank->comm, &rank->error), ZERO_OK) &&
        CHECK_INT(comm_group_open(rank->comm, all, rank->run->ranks, &rank->group), ZERO_OK)) {
        const struct tcp_comm *tcp = (const struct tcp_comm *)rank->comm;
        for (uint32_t q = 0; q < rank->run->ranks; q++)
            rank->data[q] = tcp->peers[q].socket[1], rank->control[q] = tcp->peers[q].socket[0];
        pthread_barrier_wait(&rank->run->together);
        rank->run->body(rank);
        comm_group_close(rank->group);
    } else {
        fprintf(stderr, "%s\n", rank->error.message);
        exit(1);
    }
    comm_close(rank->comm);
    rank->closed_ns = clock_now_ns();
    if (rank->options.rank == rank->run->ranks - 1) atomic_store(&rank->run->left, true);
    return NULL;
}

static bool without_checksums;

static struct run *start(uint32_t ranks, double timeout_s, void (*body)(struct rank *)) {
    static struct run run;
    int listener = socket_listen(NULL, 0);
    uint32_t port = socket_port(listener);
    close(listener);
    memset(&run, 0, sizeof run);
    run.ranks = ranks, run.body = body;
    pthread_barrier_init(&run.together, NULL, ranks + 1);
    for (uint32_t r = 0; r < ranks; r++) {
        struct rank *rank = &run.rank[r];
        rank->run = &run;
        rank->options = (struct comm_options){.rank = r,
                                              .size = ranks,
                                              .timeout_s = timeout_s,
                                              .master = "127.0.0.1",
                                              .master_port = port,
                                              .unchecked = without_checksums,
                                              .log = {.write = note_error, .user = rank}};
        pthread_create(&rank->thread, NULL, run_rank, rank);
    }
    pthread_barrier_wait(&run.together);
    return &run;
}

/* A rank that hangs would keep the test: it ends the process, and is a failure. */
static void finish(struct run *run) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += HANGS_AFTER_S;
    for (uint32_t r = 0; r < run->ranks; r++)
        if (pthread_timedjoin_np(run->rank[r].thread, NULL, &until)) {
            fprintf(stderr, "rank %u hangs\n", r);
            exit(1);
        }
    for (uint32_t r = 0; r < run->ranks; r++)
        printf("rank %u: %s: %s\n", r, zero_status_name(run->rank[r].error.code), run->rank[r].error.message);
    pthread_barrier_destroy(&run->together);
}

/* Waits until every rank has done `more` further calls. */
static void await_calls(struct run *run, uint32_t more) {
    uint32_t before[RANKS_AT_MOST];
    uint64_t begin_ns = clock_now_ns();
    for (uint32_t r = 0; r < run->ranks; r++) before[r] = atomic_load(&run->rank[r].calls);
    for (uint32_t r = 0; r < run->ranks; r++)
        while (atomic_load(&run->rank[r].calls) < before[r] + more) {
            if (seconds_between(begin_ns, clock_now_ns()) > HANGS_AFTER_S) {
                fprintf(stderr, "rank %u does not go on\n", r);
                exit(1);
            }
            nap(0.001);
        }
}

static void check_failed(struct rank *rank, uint64_t since_ns, double within_s, const char *part) {
    CHECK_INT(rank->status, ZERO_E_PEER);
    CHECK_CONTAINS(rank->error.message, part);
    CHECK_CONTAINS(rank->error.message, "all-gather of h.3");
    double failed_s = seconds_between(since_ns, rank->failed_ns);
    printf("rank %u heard of it after %.2f s\n", rank->options.rank, failed_s);
    CHECK(failed_s < within_s);
    CHECK(seconds_between(rank->failed_ns, rank->closed_ns) < SOON_S);
}

/* ---- what happens to connections ---- */

/* False: this kernel has no filters, or this process may have none. */
static bool cut(int socket) {
    static struct sock_filter none[] = {{BPF_RET | BPF_K, 0, 0, 0}};
    struct sock_fprog program = {1, none};
    return setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

static void mend(int socket) {
    int none = 0;
    CHECK_INT(setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none), 0);
}

static void reset(int socket) {
    struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    CHECK_INT(connect(socket, &nowhere, sizeof nowhere), 0);
}

static bool cut_pair(struct run *run) {
    struct rank *a = &run->rank[0], *b = &run->rank[1];
    bool good = cut(a->data[1]) && cut(b->data[0]) && cut(a->control[1]) && cut(b->control[0]);
    if (!good) printf("left out: socket filters are not permitted: %s\n", strerror(errno));
    return good;
}

/* Data that is written to the socket is accepted and lost. Nothing closes: the connection stays open. */
static void swallow(int socket) {
    int pair[2];
    CHECK(dup(socket) >= 0);
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    CHECK_INT(dup2(pair[0], socket), socket);
}

/* ---- the faults ---- */

static void data_reset(void) {
    struct run *run = start(2, TIMEOUT_S, gathers);
    await_calls(run, 20);
    uint64_t since_ns = clock_now_ns();
    reset(run->rank[0].data[1]);
    finish(run);
    check_failed(&run->rank[0], since_ns, SOON_S, "the data connection between rank");
    check_failed(&run->rank[1], since_ns, SOON_S, "the data connection between rank");
}

static void control_reset(void) {
    struct run *run = start(3, TIMEOUT_S, gathers);
    await_calls(run, 20);
    uint64_t since_ns = clock_now_ns();
    reset(run->rank[2].control[1]);
    finish(run);
    for (uint32_t r = 0; r < 3; r++) check_failed(&run->rank[r], since_ns, SOON_S, "rank ");
}

/* A letter without the right tag: rank 0 believes nothing that comes after it. */
static void forged_letter(void) {
    static const char closing[sizeof(uint32_t) + TAG_BYTES]; /* of 0 bytes: the rank closes */
    struct run *run = start(2, TIMEOUT_S, gathers);
    await_calls(run, 20);
    CHECK_INT(send(run->rank[1].control[0], closing, sizeof closing, MSG_NOSIGNAL), sizeof closing);
    uint64_t since_ns = clock_now_ns();
    finish(run);
    check_failed(&run->rank[0], since_ns, SOON_S,
                 "a control message that rank 1 sent to rank 0 came damaged");
}

/* A rank that already got its data is in the next call, which the other rank has not posted; it reports that. */
static void data_swallowed(void) {
    const double timeout_s = 3;
    struct run *run = start(2, timeout_s, gathers);
    await_calls(run, 20);
    uint64_t since_ns = clock_now_ns();
    swallow(run->rank[0].data[1]);
    finish(run);
    for (uint32_t r = 0; r < 2; r++) check_failed(&run->rank[r], since_ns, 12 * timeout_s + SOON_S, "rank ");
}

/* One that is a little shorter than what a run survives, of both connections. TCP alone would go on after 25.4 s. */
static double outage_timeout_s = 24;

static void outage(void) {
    struct run *run = start(2, outage_timeout_s, gathers);
    await_calls(run, 20);
    if (cut_pair(run)) {
        nap(0.79 * outage_timeout_s);
        for (uint32_t r = 0; r < 2; r++) mend(run->rank[r].data[1 - r]), mend(run->rank[r].control[1 - r]);
        uint64_t mended_ns = clock_now_ns();
        await_calls(run, 20);
        printf("goes on %.2f s after the outage\n", seconds_between(mended_ns, clock_now_ns()));
    }
    atomic_store(&run->over, true);
    finish(run);
    for (uint32_t r = 0; r < 2; r++) CHECK_INT(run->rank[r].status, ZERO_OK);
}

/* The last rank posts a call and closes; the others, which are late, wait in it and go on. */
static void leaves_in_a_call(struct rank *rank) {
    struct comm_work *work;
    struct comm_call call = call_of(rank, COMM_REDUCE_SCATTER);
    if (rank->options.rank == rank->run->ranks - 1) {
        rank->status = comm_post(rank->group, &call, &work);
        rank->failed_ns = clock_now_ns();
        return;
    }
    nap(rank->options.rank ? 0 : 0.3);
    rank->status = comm_run(rank->group, &call);
    if (rank->status)
        note_failure(rank);
    else
        gathers(rank);
}

/* The last rank waits for no other one: rank 0 calls when it has left, and when rank 0's control thread has heard so. */
static void never_comes(struct rank *rank) {
    struct comm_work *work;
    struct comm_call call = call_of(rank, COMM_REDUCE_SCATTER);
    if (rank->options.rank == rank->run->ranks - 1) {
        rank->status = comm_post(rank->group, &call, &work);
        rank->failed_ns = clock_now_ns();
        return;
    }
    for (double s = 0; s < SOON_S && !atomic_load(&rank->run->left); s += 0.001) nap(0.001);
    CHECK(atomic_load(&rank->run->left));
    for (double s = 0; s < SOON_S && !comm_failure_raised(rank->comm->failure); s += 0.001) nap(0.001);
    call = call_of(rank, COMM_ALL_GATHER);
    rank->status = comm_run(rank->group, &call);
    note_failure(rank);
}

static void leaves(void) {
    for (uint32_t ranks = 2; ranks <= 3; ranks++) {
        uint64_t since_ns = clock_now_ns();
        struct run *run = start(ranks, TIMEOUT_S, leaves_in_a_call);
        finish(run);
        for (uint32_t r = 0; r + 1 < ranks; r++) {
            CHECK_INT(run->rank[r].status, ZERO_E_PEER);
            CHECK_CONTAINS(run->rank[r].error.message, ranks == 2 ? "rank 1 closed" : "rank 2 closed");
        }
        for (uint32_t r = 0; r < ranks; r++)
            CHECK(seconds_between(since_ns, run->rank[r].closed_ns) < SOON_S);
    }
    struct run *run = start(2, TIMEOUT_S, never_comes);
    finish(run);
    CHECK_INT(run->rank[0].status, ZERO_E_PEER);
    CHECK_CONTAINS(run->rank[0].error.message, "rank 1 closed");
    CHECK(seconds_between(run->rank[0].failed_ns, run->rank[0].closed_ns) < SOON_S);
}

/* All ranks leave after the same call: that is no error. A rank's first test sends its part, and then the ranks leave. */
static void posts_and_leaves(struct rank *rank) {
    struct comm_work *work;
    struct comm_call call = call_of(rank, COMM_REDUCE_SCATTER);
    bool done;
    for (int i = 0; i < RANKS_AT_MOST * COUNT; i++) rank->buffers[COUNT + i] = 1;
    nap(0.1 * rank->options.rank);
    rank->status = comm_post(rank->group, &call, &work);
    if (!rank->status) rank->status = comm_test(work, &done);
    pthread_barrier_wait(&rank->run->together);
}

static void all_leave(void) {
    uint64_t since_ns = clock_now_ns();
    struct run *run = start(3, TIMEOUT_S, posts_and_leaves);
    pthread_barrier_wait(&run->together);
    finish(run);
    for (uint32_t r = 0; r < 3; r++) {
        CHECK_INT(run->rank[r].status, ZERO_OK);
        CHECK_INT(atomic_load(&run->rank[r].errors), 0);
        CHECK_INT((int)run->rank[r].buffers[COUNT - 1], 3); /* the close ended the call */
        CHECK(seconds_between(since_ns, run->rank[r].closed_ns) < SOON_S);
    }
}

/* Rank 1 gets no CPU time while it leaves, and tests its call once after that. Then it waits until rank 0 has sent its part. */
static atomic_uint looks;
static atomic_bool sent;

static bool starve(void *user) {
    uint32_t look = atomic_fetch_add(&looks, 1);
    if (look == 0) nap(1.5);
    while (look == 1 && !atomic_load(&sent)) nap(0.001);
    return false;
}

static void leaves_starved(struct rank *rank) {
    struct comm_work *work;
    struct comm_call call = call_of(rank, COMM_REDUCE_SCATTER);
    bool done = false;
    if (rank->options.rank == 1) {
        rank->comm->interrupted = starve;
        rank->status = comm_post(rank->group, &call, &work);
        return;
    }
    while (atomic_load(&looks) < 2 && !comm_failure_raised(rank->comm->failure)) nap(0.001);
    rank->status = comm_post(rank->group, &call, &work);
    while (!rank->status && !done) {
        rank->status = comm_test(work, &done);
        atomic_store(&sent, true);
        comm_idle(rank->comm, 1000000);
    }
    if (rank->status) note_failure(rank);
}

static void starved_leaver(void) {
    struct run *run = start(2, TIMEOUT_S, leaves_starved);
    finish(run);
    CHECK(atomic_load(&looks) >= 2);
    for (uint32_t r = 0; r < 2; r++) {
        CHECK_INT(run->rank[r].status, ZERO_OK);
        CHECK_INT(atomic_load(&run->rank[r].errors), 0);
    }
}

/* Rank 0 fails and leaves while the control thread of one rank gets no CPU time: rank 1 learns the cause all the same. */
static uint32_t starved_rank;
static atomic_bool rests;

int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);

/* The thread that rests; the linker leads every call of nanosleep here. */
static pthread_t starved_thread;
static atomic_bool starves;

int __wrap_nanosleep(const struct timespec *time, struct timespec *left) {
    int status = __real_nanosleep(time, left);
    if (!atomic_load(&starves) || !pthread_equal(pthread_self(), starved_thread)) return status;
    atomic_store(&starves, false), atomic_store(&rests, true);
    return __real_nanosleep(&(struct timespec){2, 0}, NULL);
}

static void fails_and_leaves(struct rank *rank) {
    struct comm_call call = call_of(rank, COMM_ALL_GATHER);
    struct zero_error gone = {.code = ZERO_E_IO, .message = "the drive is gone"};
    if (rank->options.rank == starved_rank) {
        starved_thread = ((struct tcp_comm *)rank->comm)->watch.thread;
        atomic_store(&starves, true);
    }
    while (!atomic_load(&rests)) nap(0.001);
    if (rank->options.rank == 0)
        comm_fail(rank->comm, &gone);
    else
        rank->status = comm_run(rank->group, &call);
    note_failure(rank);
}

static void starved_control(void) {
    for (starved_rank = 0; starved_rank < 2; starved_rank++) {
        atomic_store(&rests, false);
        struct run *run = start(2, TIMEOUT_S, fails_and_leaves);
        finish(run);
        CHECK_INT(run->rank[1].status, ZERO_E_PEER);
        CHECK_CONTAINS(run->rank[1].error.message, "rank 0 failed: the drive is gone");
    }
}

/* Rank 1 leaves while nothing comes to rank 0, which has no use for it any more. */
static void waits_for_the_other(struct rank *rank) {
    struct run *run = rank->run;
    rank->status = comm_run(rank->group, &(struct comm_call){.kind = COMM_BARRIER});
    if (rank->options.rank == 0) {
        bool cuts = cut_pair(run);
        atomic_store(&run->over, true);
        nap(2.5);
        if (cuts) CHECK(!atomic_load(&run->left));
        for (uint32_t r = 0; r < 2 && cuts; r++)
            mend(run->rank[r].data[1 - r]), mend(run->rank[r].control[1 - r]);
        while (!atomic_load(&run->left)) nap(0.001);
        nap(0.5); /* longer than a lost connection is not reported */
    }
    while (!atomic_load(&run->over)) nap(0.001);
}

static void leaves_in_an_outage(void) {
    struct run *run = start(2, TIMEOUT_S, waits_for_the_other);
    finish(run);
    for (uint32_t r = 0; r < 2; r++) {
        CHECK_INT(run->rank[r].status, ZERO_OK);
        CHECK_INT(atomic_load(&run->rank[r].errors), 0);
    }
}

/* ---- what another build or a stranger might send ---- */

struct forgery {
    struct frame frame;
    struct comm_record record;
    struct frame_seal seal;
};

/* Rank 1 sends it to rank 0 in place of what belongs there. */
static void send_forgery(struct rank *rank, struct forgery *forged, bool sealed) {
    struct wire *wire = &((struct tcp_comm *)rank->comm)->wires[0];
    struct text parts[3] = {{&forged->frame, sizeof forged->frame},
                            {&forged->seal.check, sizeof forged->seal.check},
                            {&forged->record, forged->frame.bytes}};
    forged->seal.tag = seal_next(&wire->seals.out, parts, 3);
    forged->seal.tag.byte[3] ^= !sealed;
    CHECK(socket_send(rank->data[0], &forged->frame, sizeof forged->frame,
                      (struct patience){.deadline_ns = UINT64_MAX}));
    CHECK(socket_send(rank->data[0], &forged->record, forged->frame.bytes,
                      (struct patience){.deadline_ns = UINT64_MAX}));
    CHECK(socket_send(rank->data[0], &forged->seal, sizeof forged->seal,
                      (struct patience){.deadline_ns = UINT64_MAX}));
}

static struct forgery forgery_of(struct rank *rank) {
    struct comm_call call = call_of(rank, COMM_ALL_GATHER);
    struct forgery forged = {.frame = {FRAME_READY, EXCHANGING, rank->group->key, 0, sizeof forged.record}};
    record_make(&call, 0, 0, &forged.record);
    return forged;
}

static void (*forge)(struct rank *rank);

static void forges(struct rank *rank) {
    struct comm_call call = call_of(rank, COMM_ALL_GATHER);
    if (rank->options.rank == 1) forge(rank);
    rank->status = comm_run(rank->group, &call);
    /* Rank 0 may have sent its slice before it received the forgery. */
    if (rank->options.rank == 1 && rank->status == ZERO_OK) rank->status = comm_run(rank->group, &call);
    note_failure(rank);
}

/* A record without an end of its text: rank 0 must not read on. */
static void endless_text(struct rank *rank) {
    struct forgery forged = forgery_of(rank);
    memset(forged.record.what, 'x', sizeof forged.record.what);
    send_forgery(rank, &forged, true);
}

static void unknown_type(struct rank *rank) {
    struct forgery forged = forgery_of(rank);
    forged.record.dtype = 200;
    send_forgery(rank, &forged, true);
}

static void unknown_phase(struct rank *rank) {
    struct forgery forged = forgery_of(rank);
    forged.frame.phase = PHASES;
    send_forgery(rank, &forged, true);
}

static void later_phase_first(struct rank *rank) {
    struct forgery forged = forgery_of(rank);
    forged.frame.phase = GATHERING, forged.frame.bytes = 0;
    send_forgery(rank, &forged, true);
}

static void record_of_another_call(struct rank *rank) {
    struct forgery forged = forgery_of(rank);
    forged.record.sequence = 5;
    send_forgery(rank, &forged, true);
}

static void too_many_bytes(struct rank *rank) {
    struct forgery forged = forgery_of(rank);
    forged.frame.bytes = 1ull << 60;
    CHECK(socket_send(rank->data[0], &forged.frame, sizeof forged.frame,
                      (struct patience){.deadline_ns = UINT64_MAX}));
}

/* Rank 0 keeps a number of messages for groups that it has not opened yet, but not any number. */
static void unknown_groups(struct rank *rank) {
    for (uint64_t key = 1; key <= 2000; key++) {
        struct forgery forged = forgery_of(rank);
        forged.frame.key = key;
        send_forgery(rank, &forged, true);
    }
}

static void unsealed(struct rank *rank) {
    struct forgery forged = forgery_of(rank);
    send_forgery(rank, &forged, false);
}

static void forged_record(void) {
    static const char unfit[] = "rank 1 sent rank 0 a message that fits no call";
    static const struct {
        void (*forge)(struct rank *rank);
        zero_status status;
        const char *part;
    } forgeries[] = {{endless_text, ZERO_E_INTERNAL, unfit},
                     {unknown_type, ZERO_E_INTERNAL, unfit},
                     {unknown_phase, ZERO_E_INTERNAL, unfit},
                     {later_phase_first, ZERO_E_INTERNAL, unfit},
                     {record_of_another_call, ZERO_E_INTERNAL, unfit},
                     {too_many_bytes, ZERO_E_INTERNAL, unfit},
                     {unknown_groups, ZERO_E_INTERNAL, unfit},
                     {unsealed, ZERO_E_PEER, "what rank 1 sent to rank 0 came damaged"}};
    for (size_t i = 0; i < sizeof forgeries / sizeof *forgeries; i++) {
        forge = forgeries[i].forge;
        struct run *run = start(2, TIMEOUT_S, forges);
        finish(run);
        CHECK_INT(run->rank[0].status, forgeries[i].status);
        CHECK_CONTAINS(run->rank[0].error.message, forgeries[i].part);
        CHECK(run->rank[1].status != ZERO_OK);
    }
}

/* ---- a network that changes a byte ---- */

enum { FLIPPED_BYTE = 150000 };

struct relay {
    pthread_t thread;
    int near, far;
};

static bool pass_on(int from, int to, uint64_t *passed, uint64_t flip) {
    uint8_t bytes[4096];
    ssize_t got = recv(from, bytes, sizeof bytes, 0);
    if (got < 0) return errno == EAGAIN;
    for (ssize_t i = 0; i < got; i++, (*passed)++) bytes[i] ^= *passed == flip;
    return got > 0 && socket_send(to, bytes, (uint64_t)got, (struct patience){.deadline_ns = UINT64_MAX});
}

static void *relay_run(void *user) {
    struct relay *relay = user;
    uint64_t there = 0, back = 0;
    while (pass_on(relay->near, relay->far, &there, FLIPPED_BYTE) &&
           pass_on(relay->far, relay->near, &back, UINT64_MAX))
        sched_yield();
    shutdown(relay->near, SHUT_RDWR), shutdown(relay->far, SHUT_RDWR);
    return NULL;
}

/* Puts a relay between the socket of a peer's data and its connection. */
static void put_relay(struct relay *relay, const struct tcp_set *set, uint32_t peer) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = peer};
    int pair[2], socket = set->socket[peer];
    CHECK_INT(epoll_ctl(set->epoll, EPOLL_CTL_DEL, socket, &event), 0);
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    relay->far = dup(socket), relay->near = pair[1];
    CHECK_INT(dup2(pair[0], socket), socket);
    CHECK_INT(epoll_ctl(set->epoll, EPOLL_CTL_ADD, socket, &event), 0);
    close(pair[0]);
    pthread_create(&relay->thread, NULL, relay_run, relay);
}

/* Rank 0 sends ones over a wire that flips a bit. */
static void gathers_ones(struct rank *rank) {
    struct relay relay;
    if (rank->options.rank == 0) put_relay(&relay, &((const struct tcp_comm *)rank->comm)->set, 1);
    for (int i = 0; i < COUNT; i++) rank->buffers[i] = 1;
    for (uint32_t call = 0; call < 40 && rank->status == ZERO_OK; call++) {
        struct comm_call gather = call_of(rank, COMM_ALL_GATHER);
        rank->status = comm_run(rank->group, &gather);
        for (int i = 0; i < COUNT && !rank->status; i++)
            if (rank->buffers[COUNT + i] != 1) atomic_fetch_add(&rank->calls, 1);
    }
    if (rank->status) note_failure(rank);
    if (rank->options.rank) return;
    shutdown(relay.near, SHUT_RDWR);
    pthread_join(relay.thread, NULL);
    close(relay.near), close(relay.far);
}

/* 150,000 bytes later than the relay begins, in the data of a call: the checksum finds it. Without, the weights are wrong. */
static void flipped_byte(void) {
    for (int unchecked = 0; unchecked < 2; unchecked++) {
        without_checksums = unchecked;
        struct run *run = start(2, 3, gathers_ones);
        finish(run);
        if (unchecked) {
            CHECK_INT(atomic_load(&run->rank[1].calls), 1);
            continue;
        }
        CHECK_INT(run->rank[1].status, ZERO_E_PEER);
        /* The unit follows, if rank 1 had begun the same call. */
        CHECK_CONTAINS(run->rank[1].error.message, "what rank 0 sent to rank 1 came damaged (12000 bytes");
        CHECK_INT(atomic_load(&run->rank[1].calls), 0);
    }
}

static const struct fault {
    const char *name;
    void (*run)(void);
} faults[] = {{"data_reset", data_reset},
              {"control_reset", control_reset},
              {"data_swallowed", data_swallowed},
              {"forged_letter", forged_letter},
              {"forged_record", forged_record},
              {"flipped_byte", flipped_byte},
              {"outage", outage},
              {"leaves", leaves},
              {"all_leave", all_leave},
              {"starved_leaver", starved_leaver},
              {"starved_control", starved_control},
              {"leaves_in_an_outage", leaves_in_an_outage}};

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof faults / sizeof *faults && argc > 1; i++) {
        if (strcmp(faults[i].name, argv[1])) continue;
        if (argc > 2) outage_timeout_s = atof(argv[2]);
        faults[i].run();
        return check_end();
    }
    return fprintf(stderr, "usage: tcp_fault_test FAULT [TIMEOUT_S]\n"), 2;
}
