/* Any bytes as what rank 1 sends to rank 0 over TCP, on both connections: frames and letters that fit, changed in places, and bytes
 * that are neither, mostly under the right seal. Rank 0 ends its calls or fails with a message; it keeps a bounded number of
 * messages, and waits for nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/comm/tcp.h"

enum { CALLS = 3, SHARE = 16, KEY = 7, PAYLOAD_MAX = 4096, ROUND_NS = 50000000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *at, *end;
};

static uint32_t take(struct input *in) { return in->at < in->end ? *in->at++ : 0; }

static void take_bytes(struct input *in, void *out, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)out)[i] = (uint8_t)take(in);
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

/* ---- rank 0, and the other ends of its connections ---- */

struct pair {
    struct tcp_comm tcp;
    struct lanes peers[2];
    struct wire wires[2];
    struct pollfd polls[2];
    struct control_port port;
    struct control *control;
    struct comm_group *group;
    struct comm_work *works[CALLS];
    float *source[CALLS], *target[CALLS];
    void *staging[CALLS];
    int far[RENDEZVOUS_LANES];   /* rank 1's ends */
    struct seal letters, frames; /* rank 1's */
    uint64_t now_ns;
};

static void post(struct pair *p, uint32_t index, enum comm_kind kind) {
    uint64_t elements = 2 * SHARE;
    struct comm_call call = {
        .kind = kind, .dtype = DTYPE_F32, .target_dtype = DTYPE_F32, .count = SHARE, .what = "h.3"};
    p->source[index] = calloc(elements, sizeof(float));
    p->target[index] = calloc(elements, sizeof(float));
    p->staging[index] = malloc(comm_staging_bytes(p->group, &call) + 1);
    call.source = p->source[index], call.target = p->target[index], call.staging = p->staging[index];
    require(comm_post(p->group, &call, &p->works[index]) == ZERO_OK, "a call is posted");
}

static void open_pair(struct pair *p) {
    static const uint32_t members[] = {0, 1};
    struct seals seals = {.out = {.key = {{1}}}, .in = {.key = {{2}}}};
    *p = (struct pair){.letters = seals.in, .frames = seals.in, .now_ns = 1000000};
    for (int lane = 0; lane < RENDEZVOUS_LANES; lane++) {
        int ends[2];
        require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0, "sockets");
        p->peers[0].socket[lane] = -1, p->peers[1].socket[lane] = ends[0], p->far[lane] = ends[1];
        p->peers[1].seals[lane] = seals;
    }
    struct comm *comm = &p->tcp.base;
    comm->ops = &comm_tcp_ops, comm->size = 2, comm->timeout_s = 1e6, comm->failure = &p->tcp.failure;
    failure_init(&p->tcp.failure);
    p->tcp.peers = p->peers, p->tcp.wires = p->wires, p->tcp.polls = p->polls;
    for (int q = 0; q < 2; q++)
        p->polls[q].fd = p->peers[q].socket[LANE_DATA], p->wires[q].seals = p->peers[q].seals[LANE_DATA];
    require(tcp_link_open(&p->tcp.link, comm, KEY, p->peers) == ZERO_OK, "a link");
    p->port = tcp_link_watched(&p->tcp.link).port;
    p->control = comm->control = control_create(comm, &p->port);
    require(comm_group_open(comm, members, 2, &p->group) == ZERO_OK, "a group");
    post(p, 0, COMM_ALL_GATHER);
    post(p, 1, COMM_ALL_REDUCE);
    post(p, 2, COMM_REDUCE_SCATTER);
}

static void close_pair(struct pair *p) {
    struct comm *comm = &p->tcp.base;
    comm_raise(comm, ZERO_E_INTERRUPTED, 0, false, "the end");
    comm_group_close(p->group);
    control_destroy(p->control);
    free(comm->opened);
    free(p->tcp.link.lanes);
    free(p->tcp.link.polls);
    for (struct early *early = p->tcp.early, *next; early; early = next) next = early->next, free(early);
    for (int q = 0; q < 2; q++) free(p->wires[q].queue);
    for (int i = 0; i < CALLS; i++) free(p->source[i]), free(p->target[i]), free(p->staging[i]);
    for (int lane = 0; lane < RENDEZVOUS_LANES; lane++) close(p->far[lane]), close(p->peers[1].socket[lane]);
    failure_destroy(&p->tcp.failure);
}

static void work(struct pair *p) {
    char sent[1 << 14];
    bool done;
    for (uint32_t i = 0; i < CALLS; i++)
        if (p->works[i] && comm_test(p->works[i], &done) == ZERO_OK && done) p->works[i] = NULL;
    p->now_ns += ROUND_NS;
    control_tick(p->control, p->now_ns);
    for (int lane = 0; lane < RENDEZVOUS_LANES; lane++)
        while (recv(p->far[lane], sent, sizeof sent, 0) > 0) continue;
    bool failed = failure_raised(&p->tcp.failure);
    require(failed == (p->tcp.failure.error.message[0] != 0), "a failure and a message go together");
    require(p->wires[1].early <= 64 * COMM_CALLS_MAX + 1, "a bounded number of messages is kept");
}

/* ---- what rank 1 sends ---- */

static void send_on(struct pair *p, enum lane lane, const void *bytes, size_t count) {
    if (send(p->far[lane], bytes, count, MSG_NOSIGNAL) < 0) return; /* rank 0 has given the connection up */
}

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
    send_on(p, LANE_DATA, &out, sizeof frame + count);
    send_on(p, LANE_DATA, &seal, sizeof seal);
}

static void send_ready(struct pair *p, struct input *in) {
    uint32_t call = take(in) % CALLS, phase = take(in) % PHASES;
    const struct comm_record *record = &p->group->works[call].record;
    size_t count = phase == EXCHANGING ? sizeof *record : 0;
    send_frame(p, in, (struct frame){FRAME_READY, phase, p->group->key, call, count}, record, count);
}

static void send_data(struct pair *p, struct input *in) {
    static const uint8_t zeros[SHARE * sizeof(float)];
    uint32_t call = take(in) % CALLS, phase = take(in) % PHASES;
    send_frame(p, in, (struct frame){FRAME_DATA, phase, p->group->key, call, sizeof zeros}, zeros,
               sizeof zeros);
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
    static const uint32_t sizes[] = {
        16, 48 + 16 * sizeof(struct comm_record), 32, 1064, 0, 1, CONTROL_MESSAGE_BYTES};
    struct tcp_letter letter = {.bytes = sizes[take(in) % 7]};
    struct {
        uint32_t type, from;
        uint64_t opening, group;
    } head = {take(in) % 5, take(in) % 3, KEY, p->group->key};
    size_t given = take(in) << 3;
    bool sealed = take(in) % 8;
    memcpy(letter.message, &head, sizeof head);
    for (uint64_t i = 0; i < 16; i++)
        memcpy(letter.message + 48 + i * sizeof(struct comm_record), &p->group->works[i % CALLS].record,
               sizeof(struct comm_record));
    take_bytes(in, letter.message + 24, given < sizeof letter.message - 24 ? given : 0);
    change(in, &letter, sizeof letter);
    size_t bytes = letter.bytes <= CONTROL_MESSAGE_BYTES ? letter.bytes : 0;
    struct text parts[2] = {{&letter.bytes, sizeof letter.bytes}, {letter.message, bytes}};
    letter.tag = seal_next(&p->letters, parts, 2);
    letter.tag.byte[0] ^= !sealed;
    send_on(p, LANE_CONTROL, &letter, sizeof letter - CONTROL_MESSAGE_BYTES + bytes);
}

static void send_any_bytes(struct pair *p, struct input *in) {
    uint8_t bytes[256];
    enum lane lane = take(in) % 2;
    size_t count = take(in);
    take_bytes(in, bytes, count);
    send_on(p, lane, bytes, count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static void (*const kinds[])(struct pair *, struct input *) = {send_ready, send_data, send_letter,
                                                                   send_any_frame, send_any_bytes};
    static struct pair pair;
    struct input in = {data, data + size};
    open_pair(&pair);
    while (in.at < in.end) {
        kinds[take(&in) % 5](&pair, &in);
        work(&pair);
    }
    close_pair(&pair);
    return 0;
}
