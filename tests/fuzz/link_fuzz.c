/* Any bytes as what rank 1 sends to rank 0 over TCP, on both connections: frames and letters that fit, changed in places, and bytes
 * that are neither, mostly under the right seal; for calls that rank 0 has posted, will post, or never posts. Rank 0 ends its calls
 * or fails with a message; it keeps a bounded number of messages, and waits for nothing.
 *
 * The connections are in memory: the linker leads rank 0's calls of the system to the functions of the first part (BUILD). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "engine/comm/tcp/tcp.h"

enum {
    AT_ONCE = 3, /* calls of the first group that rank 0 posts at the beginning */
    CALLS = 6,   /* of each group */
    GROUPS = 3,  /* rank 1 is no member of the last */
    SHARE = 16,
    AHEAD_BYTES = 64, /* the largest slices */
    KEY = 7,
    PAYLOAD_MAX = 4096,
    ROUND_NS = 20000000,
    AFTER_FAILURE = 4 /* messages that rank 0 still gets */
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *at, *end;
};

static uint32_t take(struct input *in) { return in->at < in->end ? *in->at++ : 0; }

static void take_bytes(struct input *in, void *out, size_t bytes) {
    size_t given = (size_t)(in->end - in->at) < bytes ? (size_t)(in->end - in->at) : bytes;
    if (given) memcpy(out, in->at, given);
    memset((uint8_t *)out + given, 0, bytes - given);
    in->at += given;
}

/* Changes at most three bytes. */
static void change(struct input *in, void *bytes, size_t count) {
    for (uint32_t left = take(in) % 4; left && count; left--) {
        size_t at = (take(in) << 8 | take(in)) % count;
        ((uint8_t *)bytes)[at] ^= (uint8_t)take(in);
    }
}

static void require(bool condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "%s\n", what);
    abort();
}

/* ---- connections ---- */

enum { FIRST_SOCKET = 1000, ROOM_BYTES = 1 << 16 };

/* What rank 1 has sent, and rank 0 has not received. What rank 0 sends is dropped. */
static struct connection {
    uint8_t bytes[ROOM_BYTES];
    size_t begin, end, most; /* most: bytes that one call receives or sends at most */
} connections[RENDEZVOUS_LANES];

int __wrap_epoll_create1(int flags);
int __wrap_epoll_ctl(int set, int what, int socket, struct epoll_event *event);
int __wrap_epoll_wait(int set, struct epoll_event *events, int most, int at_most_ms);
int __wrap_close(int socket);
ssize_t __wrap_recv(int socket, void *bytes, size_t count, int flags);
ssize_t __wrap_recvmsg(int socket, struct msghdr *message, int flags);
ssize_t __wrap_send(int socket, const void *bytes, size_t count, int flags);
ssize_t __wrap_sendmsg(int socket, const struct msghdr *message, int flags);
int __wrap_ioctl(int socket, unsigned long what, void *argument);

/* Each lane has a set of one connection: to rank 1. */
static struct epoll_event waits[RENDEZVOUS_LANES];
static int set_of[RENDEZVOUS_LANES], sets;

int __wrap_epoll_create1(int flags) { return sets++; }

int __wrap_epoll_ctl(int set, int what, int socket, struct epoll_event *event) {
    waits[socket - FIRST_SOCKET] = what == EPOLL_CTL_DEL ? (struct epoll_event){0} : *event;
    set_of[socket - FIRST_SOCKET] = set;
    return 0;
}

int __wrap_epoll_wait(int set, struct epoll_event *events, int most, int at_most_ms) {
    int ready = 0;
    for (int lane = 0; lane < RENDEZVOUS_LANES; lane++) {
        const struct connection *c = &connections[lane];
        uint32_t now = waits[lane].events & (EPOLLOUT | (c->begin < c->end ? EPOLLIN : 0));
        if (now && set_of[lane] == set)
            events[ready++] = (struct epoll_event){.events = now, .data = waits[lane].data};
    }
    return ready;
}

int __wrap_close(int socket) { return 0; }

ssize_t __wrap_recv(int socket, void *bytes, size_t count, int flags) {
    struct connection *c = &connections[socket - FIRST_SOCKET];
    size_t left = c->end - c->begin, got = count < left ? count : left;
    if (left == 0 && count) return errno = EAGAIN, -1;
    if (got > c->most) got = c->most;
    memcpy(bytes, c->bytes + c->begin, got);
    c->begin += got;
    return (ssize_t)got;
}

ssize_t __wrap_recvmsg(int socket, struct msghdr *message, int flags) {
    ssize_t all = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        const struct iovec *part = &message->msg_iov[i];
        ssize_t got = part->iov_len ? __wrap_recv(socket, part->iov_base, part->iov_len, flags) : 0;
        if (got < 0) return all ? all : got;
        all += got;
        if ((size_t)got < part->iov_len) return all;
    }
    return all;
}

ssize_t __wrap_send(int socket, const void *bytes, size_t count, int flags) {
    const struct connection *c = &connections[socket - FIRST_SOCKET];
    return (ssize_t)(count < c->most ? count : c->most);
}

ssize_t __wrap_sendmsg(int socket, const struct msghdr *message, int flags) {
    size_t all = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++) all += message->msg_iov[i].iov_len;
    return __wrap_send(socket, NULL, all, flags);
}

int __wrap_ioctl(int socket, unsigned long what, void *argument) {
    *(int *)argument = 0; /* SIOCOUTQ */
    return 0;
}

static void send_on(enum lane lane, const void *bytes, size_t count) {
    struct connection *c = &connections[lane];
    if (c->begin == c->end) c->begin = c->end = 0;
    if (c->end + count > sizeof c->bytes) return; /* rank 0 has given the connection up */
    memcpy(c->bytes + c->end, bytes, count);
    c->end += count;
}

/* ---- rank 0 ---- */

struct pair {
    struct tcp_comm tcp;
    struct lanes peers[2];
    struct wire wires[2];
    struct control_port port;
    struct control *control;
    struct comm_group *group[GROUPS];
    uint64_t key[GROUPS];
    struct comm_record record[GROUPS][CALLS];
    struct comm_work *works[GROUPS][CALLS];
    uint32_t posted[GROUPS];
    float source[GROUPS][CALLS][2 * SHARE], target[GROUPS][CALLS][2 * SHARE],
        staging[GROUPS][CALLS][8 * SHARE];
    struct seal letters, frames; /* rank 1's */
    uint64_t now_ns;
};

static struct comm_call call_of(struct pair *p, uint32_t group, uint32_t index) {
    static const enum comm_kind kinds[CALLS] = {COMM_ALL_GATHER, COMM_ALL_REDUCE, COMM_REDUCE_SCATTER,
                                                COMM_BARRIER,    COMM_BROADCAST,  COMM_ALL_REDUCE};
    return (struct comm_call){.kind = kinds[index],
                              .dtype = DTYPE_F32,
                              .target_dtype = DTYPE_F32,
                              .count = SHARE,
                              .root = kinds[index] == COMM_BROADCAST,
                              .what = "h.3",
                              .source = p->source[group][index],
                              .target = p->target[group][index],
                              .staging = p->staging[group][index]};
}

static void post(struct pair *p, uint32_t group, uint32_t index) {
    struct comm_call call = call_of(p, group, index);
    require(comm_staging_bytes(p->group[group], &call) <= sizeof p->staging[group][index], "staging");
    zero_status status = comm_post(p->group[group], &call, &p->works[group][index]);
    p->posted[group]++;
    if (status) p->works[group][index] = NULL;
    require(status == ZERO_OK || comm_failure_raised(&p->tcp.failure), "a call is posted");
    require(status || p->works[group][index]->record.hash == p->record[group][index].hash,
            "rank 1's records");
}

/* Rank 1 knows the groups' keys and its own calls before rank 0 has them. */
static void describe(struct pair *p) {
    const uint64_t both = hash_add(hash_add(hash_add(0, 2), 0), 1), alone = hash_add(hash_add(0, 1), 0);
    for (uint32_t g = 0; g < GROUPS; g++) {
        p->key[g] = g < GROUPS - 1 ? hash_add(both, g) : hash_add(alone, 0);
        for (uint32_t i = 0; i < CALLS; i++) {
            struct comm_call call = call_of(p, g, i);
            record_make(&call, i, i ? p->record[g][i - 1].hash : 0, &p->record[g][i]);
        }
    }
}

static void open_next_group(struct pair *p, uint32_t g) {
    static const uint32_t members[] = {0, 1};
    uint32_t count = g < GROUPS - 1 ? 2 : 1;
    zero_status status = comm_group_open(&p->tcp.base, members, count, &p->group[g]);
    require(status == ZERO_OK || comm_failure_raised(&p->tcp.failure), "a group");
    require(status || p->group[g]->key == p->key[g], "rank 1's keys");
}

/* Rank 0 posts its next call, or opens another group. */
static void go_on(struct pair *p, struct input *in) {
    uint32_t g = take(in) % GROUPS;
    if (comm_failure_raised(&p->tcp.failure)) return;
    if (!p->group[g])
        open_next_group(p, g);
    else if (p->posted[g] < CALLS)
        post(p, g, p->posted[g]);
}

static void open_pair(struct pair *p) {
    struct seals seals = {.out = {.key = {{1}}}, .in = {.key = {{2}}}};
    *p = (struct pair){.letters = seals.in, .frames = seals.in, .now_ns = 1000000};
    for (int lane = 0; lane < RENDEZVOUS_LANES; lane++) {
        connections[lane].begin = connections[lane].end = 0;
        p->peers[0].socket[lane] = -1, p->peers[1].socket[lane] = FIRST_SOCKET + lane;
        p->peers[1].seals[lane] = seals;
        atomic_init(&p->peers[1].made[lane], true);
    }
    struct comm *comm = &p->tcp.base;
    comm->ops = &comm_tcp_ops, comm->size = 2, comm->timeout_s = 1e6, comm->failure = &p->tcp.failure;
    comm_failure_init(&p->tcp.failure);
    p->tcp.peers = p->peers, p->tcp.wires = p->wires;
    require(tcp_open_wires(&p->tcp, AHEAD_BYTES) == ZERO_OK, "room");
    require(tcp_link_open(&p->tcp.link, comm, KEY, p->peers, NULL) == ZERO_OK, "a link");
    p->port = tcp_link_watched(&p->tcp.link).port;
    p->control = comm->control = control_create(comm, &p->port);
    describe(p);
    open_next_group(p, 0);
    for (uint32_t i = 0; i < AT_ONCE; i++) post(p, 0, i);
}

static void close_pair(struct pair *p) {
    struct comm *comm = &p->tcp.base;
    comm_raise(comm, ZERO_E_INTERRUPTED, 0, false, "the end");
    for (uint32_t g = 0; g < GROUPS; g++) comm_group_close(p->group[g]);
    control_destroy(p->control);
    free(comm->opened);
    free(p->tcp.link.lanes);
    tcp_set_close(&p->tcp.link.set);
    tcp_set_close(&p->tcp.set);
    free(p->tcp.room);
    free(p->tcp.pending);
    for (struct early *early = p->tcp.early, *next; early; early = next) next = early->next, free(early);
    for (int q = 0; q < 2; q++) free(p->wires[q].queue);
    comm_failure_destroy(&p->tcp.failure);
}

/* False: rank 0 has failed. */
static bool work(struct pair *p) {
    bool done;
    for (uint32_t g = 0; g < GROUPS; g++) /* a test drives all calls */
        for (uint32_t i = 0; i < CALLS; i++) {
            if (!p->works[g][i]) continue;
            if (comm_test(p->works[g][i], &done) || !done) break;
            p->works[g][i] = NULL;
        }
    p->now_ns += ROUND_NS;
    control_tick(p->control, p->now_ns);
    bool failed = comm_failure_raised(&p->tcp.failure);
    require(failed == (p->tcp.failure.error.message[0] != 0), "a failure and a message go together");
    require(p->wires[1].early <= 64 * COMM_CALLS_MAX + 1, "a bounded number of messages is kept");
    require(p->wires[1].ahead <= AHEAD_SLICES, "a bounded number of slices goes ahead");
    return !failed;
}

/* ---- what rank 1 sends ---- */

static void send_frame(struct pair *p, struct input *in, struct frame frame, const void *payload,
                       size_t count) {
    struct {
        struct frame frame;
        uint8_t payload[PAYLOAD_MAX];
    } out = {.frame = frame};
    struct frame_seal seal = {0};
    bool sealed = take(in) % 8;
    memcpy(out.payload, payload, count);
    change(in, &out, sizeof frame + count);
    struct text parts[3] = {{&out.frame, sizeof out.frame},
                            {&seal.check, sizeof seal.check},
                            {out.payload, out.frame.kind == FRAME_READY ? count : 0}};
    seal.tag = seal_next(&p->frames, parts, 3);
    seal.tag.byte[0] ^= !sealed;
    send_on(LANE_DATA, &out, sizeof frame + count);
    send_on(LANE_DATA, &seal, sizeof seal);
}

/* 0x80: a call that rank 0 does not post at the beginning; 0x60: of another group than the first. */
static void choose(struct input *in, uint32_t *group, uint32_t *call) {
    uint32_t byte = take(in);
    *group = (byte >> 5 & 3) % GROUPS;
    *call = byte % 3 + (byte & 0x80 ? AT_ONCE : 0);
}

static void send_ready(struct pair *p, struct input *in) {
    uint32_t group, call;
    choose(in, &group, &call);
    uint32_t phase = take(in) % PHASES;
    const struct comm_record *record = &p->record[group][call];
    size_t count = phase == EXCHANGING ? sizeof *record : 0;
    send_frame(p, in, (struct frame){FRAME_READY, phase, p->key[group], call, count}, record, count);
}

static void send_data(struct pair *p, struct input *in) {
    static const uint8_t zeros[SHARE * sizeof(float)];
    static const uint32_t bytes[CALLS] = {sizeof zeros, sizeof zeros / 2, sizeof zeros, 0,
                                          sizeof zeros, sizeof zeros / 2};
    uint32_t group, call;
    choose(in, &group, &call);
    uint32_t phase = take(in) % PHASES;
    send_frame(p, in, (struct frame){FRAME_DATA, phase, p->key[group], call, bytes[call]}, zeros,
               bytes[call]);
}

static void send_any_frame(struct pair *p, struct input *in) {
    struct frame frame;
    uint8_t payload[PAYLOAD_MAX];
    take_bytes(in, &frame, sizeof frame);
    if (take(in) % 2) frame.kind %= 3, frame.phase %= 3, frame.bytes %= PAYLOAD_MAX;
    size_t count = frame.bytes < PAYLOAD_MAX ? (size_t)frame.bytes : 0;
    take_bytes(in, payload, count);
    send_frame(p, in, frame, payload, count);
}

/* A letter begins as all messages of the control channel do: with its type, its sender and the opening. */
static void send_letter(struct pair *p, struct input *in) {
    static const uint32_t sizes[] = {16,
                                     48 + 16 * sizeof(struct comm_record) + sizeof(struct comm_block),
                                     32,
                                     1064,
                                     0,
                                     1,
                                     CONTROL_MESSAGE_BYTES};
    struct tcp_letter letter = {.bytes = sizes[take(in) % 7]};
    struct {
        uint32_t type, from;
        uint64_t opening, group;
    } head = {take(in) % 5, take(in) % 3, KEY, p->key[0]};
    size_t given = take(in) << 3;
    bool sealed = take(in) % 8;
    memcpy(letter.message, &head, sizeof head);
    for (uint64_t i = 0; i < 16; i++)
        memcpy(letter.message + 48 + i * sizeof(struct comm_record), &p->record[0][i % AT_ONCE],
               sizeof(struct comm_record));
    take_bytes(in, letter.message + 24, given < sizeof letter.message - 24 ? given : 0);
    change(in, &letter, sizeof letter);
    size_t bytes = letter.bytes <= CONTROL_MESSAGE_BYTES ? letter.bytes : 0;
    struct text parts[2] = {{&letter.bytes, sizeof letter.bytes}, {letter.message, bytes}};
    letter.tag = seal_next(&p->letters, parts, 2);
    letter.tag.byte[0] ^= !sealed;
    send_on(LANE_CONTROL, &letter, sizeof letter - CONTROL_MESSAGE_BYTES + bytes);
}

static void send_any_bytes(struct pair *p, struct input *in) {
    uint8_t bytes[256];
    enum lane lane = take(in) % 2;
    size_t count = take(in);
    take_bytes(in, bytes, count);
    send_on(lane, bytes, count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static void (*const kinds[])(struct pair *, struct input *) = {send_ready, send_data, send_letter,
                                                                   send_any_frame, send_any_bytes};
    static struct pair pair;
    static struct secret secret;
    struct input in = {data, data + size};
    struct zero_error error;
    /* Once: libsodium then hashes with this processor's instructions. */
    if (!secret.given)
        require(secret_find("0123456789abcdef", NULL, NULL, &secret, &error) == ZERO_OK, "a secret");
    open_pair(&pair);
    for (int left = AFTER_FAILURE; in.at < in.end && left;) {
        uint32_t kind = take(&in);
        connections[LANE_DATA].most = connections[LANE_CONTROL].most =
            kind & 0x40 ? 1 + kind % 64 : ROOM_BYTES;
        (kind < 0xf0 ? kinds[kind % 5] : go_on)(&pair, &in);
        left -= !work(&pair);
    }
    close_pair(&pair);
    return 0;
}
