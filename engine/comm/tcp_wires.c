/* The data connections of transport tcp: sends frames, receives frames, and places their bytes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "engine/base/clock.h"
#include "engine/comm/tcp.h"

/* `why`: errno, or 0 if the peer closed the connection. */
static void break_off(struct tcp_comm *tcp, uint32_t peer, int why) {
    struct wire *wire = &tcp->wires[peer];
    tcp->polls[peer].fd = -1;
    wire->broken_ns = clock_now_ns(), wire->why = why;
}

/* Waits a short time before it reports a broken connection: the control channel may soon report the peer's failure and
 * its cause, or the end of the peer's process. */
static zero_status report_broken(struct tcp_comm *tcp) {
    for (uint32_t peer = 0; peer < tcp->base.size; peer++) {
        const struct wire *wire = &tcp->wires[peer];
        if (tcp_link_left(&tcp->link, peer)) continue; /* a call that needs the peer says so */
        if (!wire->broken_ns || clock_now_ns() - wire->broken_ns < 2 * (uint64_t)TCP_PATIENCE_NS) continue;
        return comm_raise(&tcp->base, ZERO_E_PEER, (int32_t)peer, true,
                          "the data connection between rank %u and rank %u broke: %s (the process of rank %u "
                          "ended, or the network cut the connection)",
                          tcp->base.rank, peer, wire->why ? strerror(wire->why) : "end of file", peer);
    }
    return ZERO_OK;
}

static zero_status write_wire(struct tcp_comm *tcp, uint32_t peer) {
    struct wire *wire = &tcp->wires[peer];
    while (wire->count) {
        struct outgoing *out = &wire->queue[wire->first];
        uint64_t end = sizeof out->frame + out->frame.bytes;
        struct iovec parts[2] = {{&out->frame, sizeof out->frame},
                                 {(void *)(uintptr_t)out->data, out->frame.bytes}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        for (uint64_t skip = wire->out_done, i = 0; i < 2; i++) {
            uint64_t done = skip < parts[i].iov_len ? skip : parts[i].iov_len;
            parts[i].iov_base = (char *)parts[i].iov_base + done, parts[i].iov_len -= done, skip -= done;
        }
        ssize_t sent = sendmsg(tcp->polls[peer].fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return ZERO_OK;
        if (sent < 0) return break_off(tcp, peer, errno), ZERO_OK;
        wire->out_done += (uint64_t)sent;
        if (wire->out_done < end) continue;
        struct comm_work *work = out->work;
        wire->out_done = 0, wire->first = (wire->first + 1) % tcp->queue_capacity, wire->count--;
        mine_of(work)->unsent--;
        zero_status status = tcp_advance(work);
        if (status) return status;
    }
    return ZERO_OK;
}

static struct comm_group *find_group(const struct tcp_comm *tcp, uint64_t key) {
    struct comm_group *group = tcp->base.groups;
    while (group && group->key != key) group = group->next;
    return group;
}

uint32_t tcp_member_of(const struct comm_group *group, uint32_t rank) {
    uint32_t m = 0;
    while (m < group->count && group->ranks[m] != rank) m++;
    return m;
}

/* The work of a call that is posted and not done; else NULL. */
static struct comm_work *find_work(struct comm_group *group, uint64_t sequence) {
    struct comm_work *work = &group->works[sequence % COMM_CALLS_MAX];
    return work->busy && work->record.sequence == sequence ? work : NULL;
}

zero_status tcp_hear_ready(struct comm_group *group, uint32_t from, const struct frame *frame,
                           const struct comm_record *record) {
    struct heard *heard = heard_of(group, frame->sequence, tcp_member_of(group, from));
    if (frame->phase == EXCHANGING) *heard = (struct heard){.record = *record};
    heard->ready = frame->phase + 1;
    struct comm_work *work = find_work(group, frame->sequence);
    return work ? tcp_answer(work, tcp_member_of(group, from)) : ZERO_OK;
}

static zero_status keep_early(struct tcp_comm *tcp, uint32_t from, const struct wire *wire) {
    struct early *early = malloc(sizeof *early);
    if (!early)
        return comm_raise(&tcp->base, ZERO_E_MEMORY, (int32_t)tcp->base.rank, false,
                          "comm tcp: rank %u: no memory for a message", tcp->base.rank);
    *early = (struct early){tcp->early, from, wire->in, wire->in_record};
    tcp->early = early;
    return ZERO_OK;
}

static zero_status refuse(struct tcp_comm *tcp, uint32_t from) {
    const struct frame *in = &tcp->wires[from].in;
    return comm_raise(
        &tcp->base, ZERO_E_INTERNAL, (int32_t)from, false,
        "comm tcp: rank %u sent rank %u a message that fits no call (kind %u, phase %u, call %llu, %llu "
        "bytes): all ranks must run the same build",
        from, tcp->base.rank, in->kind, in->phase, (unsigned long long)in->sequence,
        (unsigned long long)in->bytes);
}

/* Checks a received frame header, and finds the place for the bytes that follow it. */
static zero_status place_frame(struct tcp_comm *tcp, uint32_t from) {
    struct wire *wire = &tcp->wires[from];
    const struct frame *in = &wire->in;
    struct comm_group *group = find_group(tcp, in->key);
    uint32_t member = group ? tcp_member_of(group, from) : 0;
    wire->in_work = NULL;
    wire->in_target = (char *)&wire->in_record;
    if (in->phase >= PHASES || (group && member == group->count)) return refuse(tcp, from);
    if (in->kind == FRAME_READY)
        return in->bytes == (in->phase == EXCHANGING ? sizeof wire->in_record : 0) ? ZERO_OK
                                                                                   : refuse(tcp, from);
    wire->in_work = group ? find_work(group, in->sequence) : NULL;
    if (in->kind != FRAME_DATA || !wire->in_work || mine_of(wire->in_work)->phase != in->phase ||
        in->bytes != tcp_slice_bytes(wire->in_work, in->phase, member))
        return refuse(tcp, from);
    wire->in_target = tcp_slice_from(wire->in_work, in->phase, member);
    return ZERO_OK;
}

static zero_status take_frame(struct tcp_comm *tcp, uint32_t from) {
    struct wire *wire = &tcp->wires[from];
    struct comm_group *group = find_group(tcp, wire->in.key);
    bool carries = wire->in.kind == FRAME_READY && wire->in.phase == EXCHANGING;
    if (carries && !record_readable(&wire->in_record)) return refuse(tcp, from);
    if (wire->in.kind == FRAME_READY)
        return group ? tcp_hear_ready(group, from, &wire->in, &wire->in_record) : keep_early(tcp, from, wire);
    mine_of(wire->in_work)->arrived++;
    heard_of(group, wire->in.sequence, tcp_member_of(group, from))->taken = wire->in.phase + 1;
    return tcp_advance(wire->in_work);
}

static zero_status read_wire(struct tcp_comm *tcp, uint32_t peer) {
    struct wire *wire = &tcp->wires[peer];
    zero_status status = ZERO_OK;
    while (status == ZERO_OK) {
        bool head = wire->in_done < sizeof wire->in;
        uint64_t end = head ? sizeof wire->in : sizeof wire->in + wire->in.bytes;
        char *at =
            head ? (char *)&wire->in + wire->in_done : wire->in_target + (wire->in_done - sizeof wire->in);
        ssize_t got = recv(tcp->polls[peer].fd, at, end - wire->in_done, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return ZERO_OK;
        if (got <= 0) return break_off(tcp, peer, got < 0 ? errno : 0), ZERO_OK;
        wire->in_done += (uint64_t)got;
        if (wire->in_done < end) continue;
        if (head) status = place_frame(tcp, peer);
        if (status != ZERO_OK || (head && wire->in.bytes)) continue;
        wire->in_done = 0;
        status = take_frame(tcp, peer);
    }
    return status;
}

zero_status tcp_pump(struct tcp_comm *tcp, int at_most_ms) {
    zero_status status = report_broken(tcp);
    for (uint32_t q = 0; q < tcp->base.size; q++)
        tcp->polls[q].events = (short)(POLLIN | (tcp->wires[q].count ? POLLOUT : 0));
    if (status != ZERO_OK || poll(tcp->polls, tcp->base.size, at_most_ms) <= 0) return status;
    for (uint32_t q = 0; q < tcp->base.size && status == ZERO_OK; q++) {
        if (tcp->polls[q].fd >= 0 && tcp->polls[q].revents & ~POLLOUT) status = read_wire(tcp, q);
        if (status == ZERO_OK && tcp->polls[q].fd >= 0) status = write_wire(tcp, q);
    }
    return status;
}
