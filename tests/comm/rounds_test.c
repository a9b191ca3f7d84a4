/* How many half round trips a call of transport tcp takes: two ranks in one thread, whose connections are in memory and deliver
 * what was sent only when the test says so. The linker leads the ranks' calls of the system to the functions of the first part
 * (BUILD). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "engine/comm/tcp/tcp.h"
#include "tests/check.h"

enum { RANKS = 2, GROUPS = 2, FIRST_SOCKET = 1000, LINE_BYTES = 1 << 22, KEY = 7, MANY = 4 };

/* ---- connections ---- */

/* What a rank has sent: bytes from `begin` to `there` have come, and the others are under way. */
static struct line {
    char bytes[LINE_BYTES];
    size_t begin, there, end;
} lines[RANKS];

int __wrap_epoll_create1(int flags);
int __wrap_epoll_ctl(int set, int what, int socket, struct epoll_event *event);
int __wrap_epoll_wait(int set, struct epoll_event *events, int most, int at_most_ms);
int __wrap_close(int socket);
ssize_t __wrap_recv(int socket, void *bytes, size_t count, int flags);
ssize_t __wrap_recvmsg(int socket, struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int socket, const struct msghdr *message, int flags);

static struct line *line_to(int socket) { return &lines[1 - (socket - FIRST_SOCKET)]; }

/* A rank has one connection for data, whose set is opened after that of its control channel. */
static struct {
    int set;
    uint32_t events, number; /* of the member of union epoll_data that is set: the others' bytes are not defined */
} waits[RANKS];
static int sets;

int __wrap_epoll_create1(int flags) { return sets++; }

int __wrap_epoll_ctl(int set, int what, int socket, struct epoll_event *event) {
    int rank = socket - FIRST_SOCKET;
    waits[rank].set = set, waits[rank].events = event->events, waits[rank].number = event->data.u32;
    return 0;
}

int __wrap_epoll_wait(int set, struct epoll_event *events, int most, int at_most_ms) {
    int ready = 0;
    for (int i = 0; i < RANKS; i++) {
        const struct line *line = line_to(FIRST_SOCKET + i);
        uint32_t now = waits[i].events & (EPOLLOUT | (line->begin < line->there ? EPOLLIN : 0));
        if (now && waits[i].set == set)
            events[ready++] = (struct epoll_event){.events = now, .data.u32 = waits[i].number};
    }
    return ready;
}

int __wrap_close(int socket) { return 0; }

ssize_t __wrap_recv(int socket, void *bytes, size_t count, int flags) {
    struct line *line = line_to(socket);
    size_t left = line->there - line->begin, got = count < left ? count : left;
    if (got == 0) return errno = EAGAIN, -1;
    memcpy(bytes, line->bytes + line->begin, got);
    line->begin += got;
    return (ssize_t)got;
}

ssize_t __wrap_recvmsg(int socket, struct msghdr *message, int flags) {
    ssize_t all = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        const struct iovec *part = &message->msg_iov[i];
        ssize_t got = part->iov_len ? __wrap_recv(socket, part->iov_base, part->iov_len, flags) : 0;
        if (got < 0) return all ? all : got;
        all += got;
        if ((size_t)got < part->iov_len) break;
    }
    return all;
}

ssize_t __wrap_sendmsg(int socket, const struct msghdr *message, int flags) {
    struct line *line = &lines[socket - FIRST_SOCKET];
    ssize_t all = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        const struct iovec *part = &message->msg_iov[i];
        if (!CHECK(line->end + part->iov_len <= LINE_BYTES)) abort();
        if (part->iov_len) memcpy(line->bytes + line->end, part->iov_base, part->iov_len);
        line->end += part->iov_len, all += (ssize_t)part->iov_len;
    }
    return all;
}

/* Half a round trip. */
static void deliver(void) {
    for (int r = 0; r < RANKS; r++) {
        if (lines[r].begin == lines[r].end) lines[r].begin = lines[r].end = 0;
        lines[r].there = lines[r].end;
    }
}

/* ---- ranks ---- */

struct rank {
    struct tcp_comm tcp;
    struct lanes peers[RANKS];
    struct wire wires[RANKS];
    struct control_port port;
    struct comm_group *group[GROUPS];
};

static void open_rank(struct rank *rank, uint32_t number) {
    static const uint32_t members[] = {0, 1};
    const struct seals seals = {.out = {.key = {{(uint8_t)(1 + number)}}},
                                .in = {.key = {{(uint8_t)(2 - number)}}}};
    struct comm *comm = &rank->tcp.base;
    *rank = (struct rank){.tcp = {.peers = rank->peers, .wires = rank->wires}};
    comm->ops = &comm_tcp_ops, comm->rank = number, comm->size = RANKS, comm->timeout_s = 60;
    comm->failure = &rank->tcp.failure;
    comm_failure_init(comm->failure);
    for (uint32_t q = 0; q < RANKS; q++) {
        int socket = q == number ? -1 : FIRST_SOCKET + (int)number;
        rank->peers[q] = (struct lanes){.socket = {-1, socket}, .seals = {seals, seals}};
        atomic_init(&rank->peers[q].made[LANE_DATA], socket >= 0);
    }
    CHECK_INT(tcp_open_wires(&rank->tcp, AHEAD_BYTES_MAX), ZERO_OK);
    CHECK_INT(tcp_link_open(&rank->tcp.link, comm, KEY, rank->peers, NULL), ZERO_OK);
    rank->port = tcp_link_watched(&rank->tcp.link).port;
    comm->control = control_create(comm, &rank->port);
    for (int g = 0; g < GROUPS; g++)
        CHECK_INT(comm_group_open(comm, members, RANKS, &rank->group[g]), ZERO_OK);
}

static void close_rank(struct rank *rank) {
    struct comm *comm = &rank->tcp.base;
    for (int g = 0; g < GROUPS; g++) comm_group_close(rank->group[g]);
    control_destroy(comm->control);
    free(comm->opened);
    free(rank->tcp.link.lanes);
    tcp_set_close(&rank->tcp.link.set);
    tcp_set_close(&rank->tcp.set);
    free(rank->tcp.room);
    free(rank->tcp.pending);
    for (uint32_t q = 0; q < RANKS; q++) free(rank->wires[q].queue);
    comm_failure_destroy(comm->failure);
}

static struct rank ranks[RANKS];

static void open_ranks(void) {
    for (int r = 0; r < RANKS; r++) lines[r].begin = lines[r].there = lines[r].end = 0;
    for (uint32_t r = 0; r < RANKS; r++) open_rank(&ranks[r], r);
}

static void close_ranks(void) {
    for (int r = 0; r < RANKS; r++) close_rank(&ranks[r]);
}

/* ---- calls ---- */

/* A call of one rank, and its memory. */
struct part {
    float *source, *target;
    void *staging;
    struct comm_work *work;
};

static void post(struct part *part, uint32_t rank, uint32_t group, enum comm_kind kind, uint64_t count) {
    struct comm_call call = {
        .kind = kind, .dtype = DTYPE_F32, .target_dtype = DTYPE_F32, .count = count, .what = "h.3"};
    struct comm_group *in = ranks[rank].group[group];
    part->source = malloc((RANKS * count + 1) * sizeof(float));
    part->target = calloc(RANKS * count + 1, sizeof(float));
    part->staging = malloc(comm_staging_bytes(in, &call) + 1);
    for (uint64_t i = 0; i < RANKS * count; i++) part->source[i] = (float)(rank + 1);
    call.source = part->source, call.target = part->target, call.staging = part->staging;
    CHECK_INT(comm_post(in, &call, &part->work), ZERO_OK);
}

static bool is_done(struct part *part) {
    bool done = !part->work;
    for (int i = 0; i < MANY && !done; i++) CHECK_INT(comm_test(part->work, &done), ZERO_OK);
    if (done) part->work = NULL;
    return done;
}

static void free_part(struct part *part) { free(part->source), free(part->target), free(part->staging); }

/* Posts `calls` such calls on both ranks and on `groups` groups. Returns the half round trips until all are done. */
static int half_trips(enum comm_kind kind, uint64_t count, uint32_t calls, uint32_t groups) {
    struct part parts[RANKS * GROUPS * COMM_CALLS_MAX];
    uint32_t all = 0, left = 1;
    int halves = 0;
    open_ranks();
    for (uint32_t c = 0; c < calls; c++)
        for (uint32_t g = 0; g < groups; g++)
            for (uint32_t r = 0; r < RANKS; r++) post(&parts[all++], r, g, kind, count);
    for (; left; halves += left != 0) {
        if (halves) deliver();
        left = 0;
        for (uint32_t i = 0; i < all; i++) left += !is_done(&parts[i]);
        if (halves > 100) break;
    }
    for (uint32_t i = 0; i < all; i++) {
        float sum = kind == COMM_ALL_REDUCE || kind == COMM_REDUCE_SCATTER ? 3 : 1;
        if (count && kind != COMM_BARRIER) CHECK_INT((int)parts[i].target[0], (int)sum);
        free_part(&parts[i]);
    }
    close_ranks();
    return halves;
}

static void small_slices_do_not_wait(void) {
    CHECK_INT(half_trips(COMM_BARRIER, 0, 1, 1), 1);
    CHECK_INT(half_trips(COMM_ALL_GATHER, 16, 1, 1), 1);
    CHECK_INT(half_trips(COMM_REDUCE_SCATTER, 16, 1, 1), 1);
    CHECK_INT(half_trips(COMM_ALL_REDUCE, 16, 1, 1), 2);
    CHECK_INT(half_trips(COMM_ALL_GATHER, AHEAD_BYTES_MAX / sizeof(float), 1, 1), 1);
    CHECK_INT(half_trips(COMM_ALL_GATHER, AHEAD_BYTES_MAX / sizeof(float) + 1, 1, 1), 2);
    CHECK_INT(half_trips(COMM_ALL_REDUCE, AHEAD_BYTES_MAX, 1, 1), 4);
    CHECK_INT(half_trips(COMM_ALL_GATHER, 16, COMM_CALLS_MAX, 1), 1);
    CHECK_INT(half_trips(COMM_ALL_GATHER, 16, COMM_CALLS_MAX, 2), 2); /* more than a rank keeps */
}

/* Rank 1 posts later: all that it needs has come. */
static void slices_are_kept(void) {
    struct part first[2], second[2];
    open_ranks();
    for (uint32_t c = 0; c < 2; c++) post(&first[c], 0, c, COMM_ALL_GATHER, 16);
    for (uint32_t c = 0; c < 2; c++) CHECK(!is_done(&first[c]));
    deliver();
    CHECK_INT(tcp_pump(&ranks[1].tcp, 1), ZERO_OK);
    for (uint32_t c = 2; c-- > 0;) post(&second[c], 1, c, COMM_ALL_GATHER, 16); /* in another order */
    for (uint32_t c = 0; c < 2; c++) CHECK(is_done(&second[c]));
    deliver();
    for (uint32_t c = 0; c < 2; c++) {
        CHECK(is_done(&first[c]));
        CHECK_BYTES(second[c].target, first[c].target, 2 * 16 * sizeof(float));
        CHECK_INT((int)second[c].target[0], 1);
        CHECK_INT((int)second[c].target[16], 2);
        free_part(&first[c]), free_part(&second[c]);
    }
    close_ranks();
}

/* A slice that came ahead for another call than this rank's is not used. */
static void another_call_is_found_first(void) {
    struct part first, second = {0};
    float target[RANKS * 16] = {0}, source[RANKS * 16] = {0}, none[RANKS * 16] = {0};
    struct comm_call call = {.kind = COMM_ALL_GATHER,
                             .dtype = DTYPE_F32,
                             .target_dtype = DTYPE_F32,
                             .count = 16,
                             .what = "h.4",
                             .source = source,
                             .target = target};
    open_ranks();
    post(&first, 0, 0, COMM_ALL_GATHER, 16);
    CHECK(!is_done(&first));
    deliver();
    CHECK_INT(tcp_pump(&ranks[1].tcp, 1), ZERO_OK);
    CHECK_INT(comm_post(ranks[1].group[0], &call, &second.work), ZERO_E_DIVERGED);
    CHECK_BYTES(target, none, sizeof none);
    struct zero_error over = {.code = ZERO_E_INTERRUPTED};
    comm_fail(&ranks[0].tcp.base, &over);
    free_part(&first);
    close_ranks();
}

int main(void) {
    small_slices_do_not_wait();
    slices_are_kept();
    another_call_is_found_first();
    return check_end();
}
