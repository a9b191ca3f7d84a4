/* The data connections of transport tcp: sends frames, receives frames, and places their bytes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "engine/base/clock.h"
#include "engine/comm/tcp/tcp.h"
#include "kernels/checksum.h"

/* `why`: errno, or 0 if the peer closed the connection. */
static void break_off(struct tcp_comm *tcp, uint32_t peer, int why) {
    struct wire *wire = &tcp->wires[peer];
    tcp_set_drop(&tcp->set, peer);
    wire->broken_ns = clock_now_ns(), wire->why = why;
}

/* Waits a short time before it reports a broken connection: the control channel may soon report the peer's failure and
 * its cause, or the end of the peer's process. The wait ends when the control thread has read its messages after that
 * time. */
static zero_status report_broken(struct tcp_comm *tcp) {
    uint64_t heard_ns = control_ticked_ns(tcp->base.control);
    for (uint32_t i = 0; i < tcp->set.count; i++) {
        uint32_t peer = tcp->set.peer[i];
        const struct wire *wire = &tcp->wires[peer];
        if (!wire->broken_ns || heard_ns < wire->broken_ns + 2 * (uint64_t)TCP_PATIENCE_NS) continue;
        if (tcp_link_left(&tcp->link, peer)) continue; /* a call that needs the peer reports the failure */
        return comm_raise(&tcp->base, ZERO_E_PEER, (int32_t)peer, true,
                          "the data connection between rank %u and rank %u broke: %s (the process of rank %u "
                          "ended, or the network cut the connection)",
                          tcp->base.rank, peer, wire->why ? strerror(wire->why) : "end of file", peer);
    }
    return ZERO_OK;
}

/* ---- seals ---- */

/* Data is checked block by block, each while it is in the cache: just before it is sent, and just after it has come. */
enum { BLOCK_BYTES = 512 << 10 };

static uint64_t block_end(uint64_t at, uint64_t bytes) {
    uint64_t end = (at / BLOCK_BYTES + 1) * BLOCK_BYTES;
    return end < bytes ? end : bytes;
}

/* The checksum of what came before, and of this block. Never 0. */
static uint64_t check_on(uint64_t before, const void *block, uint64_t bytes) {
    uint64_t check = checksum_seeded(block, bytes, before);
    return check + (check == 0);
}

/* The bytes that a frame's tag covers. */
static void parts_of(const struct frame *frame, const struct frame_seal *seal, const void *data,
                     struct text out[3]) {
    out[0] = (struct text){frame, sizeof *frame};
    out[1] = (struct text){&seal->check, sizeof seal->check};
    out[2] = (struct text){data, frame->kind == FRAME_READY ? frame->bytes : 0};
}

/* ---- sending ---- */

/* Checks the next block once all before it is sent, and makes the seal once all blocks are checked. */
static void seal_more(const struct tcp_comm *tcp, struct wire *wire, const struct outgoing *out) {
    uint64_t bytes = out->frame.bytes, head = sizeof out->frame, at = wire->out_checked;
    struct text parts[3];
    if (wire->out_sealed || (at && wire->out_done < head + at)) return;
    if (at == 0) wire->out_seal.check = 0;
    wire->out_checked = tcp->unchecked ? bytes : block_end(at, bytes);
    if (at < wire->out_checked && !tcp->unchecked)
        wire->out_seal.check =
            check_on(wire->out_seal.check, (const char *)out->data + at, wire->out_checked - at);
    if (wire->out_checked < bytes) return;
    parts_of(&out->frame, &wire->out_seal, out->data, parts);
    wire->out_seal.tag = seal_next(&wire->seals.out, parts, 3);
    wire->out_sealed = true;
}

/* Sends what it can of the first entry: its frame, its data as far as they are checked, and then its seal. */
static ssize_t send_some(const struct tcp_comm *tcp, uint32_t peer, const struct outgoing *out) {
    struct wire *wire = &tcp->wires[peer];
    seal_more(tcp, wire, out);
    struct iovec parts[3] = {{(void *)(uintptr_t)&out->frame, sizeof out->frame},
                             {(void *)(uintptr_t)out->data, wire->out_checked},
                             {&wire->out_seal, wire->out_sealed ? sizeof wire->out_seal : 0}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    for (uint64_t skip = wire->out_done, i = 0; i < 3; i++) {
        uint64_t done = skip < parts[i].iov_len ? skip : parts[i].iov_len;
        parts[i].iov_base = (char *)parts[i].iov_base + done, parts[i].iov_len -= done, skip -= done;
    }
    /* Entries that are queued behind this one travel in the same packet: a ready frame and the slice that goes ahead. */
    return sendmsg(tcp->set.socket[peer], &message, MSG_NOSIGNAL | (wire->count > 1 ? MSG_MORE : 0));
}

static void await_room(struct tcp_comm *tcp, uint32_t peer, bool awaits) {
    if (tcp->wires[peer].blocked != awaits) tcp_set_writes(&tcp->set, peer, awaits);
    tcp->wires[peer].blocked = awaits;
}

static zero_status write_wire(struct tcp_comm *tcp, uint32_t peer) {
    struct wire *wire = &tcp->wires[peer];
    while (wire->count && tcp->set.socket[peer] >= 0) {
        struct outgoing *out = &wire->queue[wire->first];
        ssize_t sent = send_some(tcp, peer, out);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) return await_room(tcp, peer, true), ZERO_OK;
        if (sent < 0) return break_off(tcp, peer, errno), ZERO_OK;
        wire->out_done += (uint64_t)sent;
        if (wire->out_done < sizeof out->frame + out->frame.bytes + sizeof wire->out_seal) continue;
        struct comm_work *work = out->work;
        wire->out_done = wire->out_checked = 0, wire->out_sealed = false;
        wire->first = (wire->first + 1) % tcp->queue_capacity, wire->count--;
        mine_of(work)->unsent--;
        TRY(tcp_advance(work));
    }
    if (wire->blocked && tcp->set.socket[peer] >= 0) await_room(tcp, peer, false);
    return ZERO_OK;
}

static zero_status write_pending(struct tcp_comm *tcp) {
    while (tcp->pending_count) {
        uint32_t peer = tcp->pending[--tcp->pending_count];
        tcp->wires[peer].listed = false;
        if (!tcp->wires[peer].blocked) TRY(write_wire(tcp, peer));
    }
    return ZERO_OK;
}

static struct comm_group *find_group(const struct tcp_comm *tcp, uint64_t key) {
    struct comm_group *group = tcp->base.groups;
    while (group && group->key != key) group = group->next;
    return group;
}

/* The work of a call that is posted and not done; else NULL. */
static struct comm_work *find_work(struct comm_group *group, uint64_t sequence) {
    struct comm_work *work = &group->works[sequence % COMM_CALLS_MAX];
    return work->busy && work->record.sequence == sequence ? work : NULL;
}

/* A member announces the phases of a call in their order, and its calls in theirs. */
static bool ready_fits(const struct comm_group *group, uint32_t from, const struct frame *frame,
                       const struct comm_record *record) {
    const struct heard *heard = heard_of(group, frame->sequence, member_of(group, from));
    if (frame->phase != EXCHANGING)
        return heard->ready == frame->phase && heard->record.sequence == frame->sequence;
    return record->sequence == frame->sequence && (!heard->ready || heard->record.sequence < frame->sequence);
}

zero_status tcp_hear_ready(struct comm_group *group, uint32_t from, const struct frame *frame,
                           const struct comm_record *record) {
    struct heard *heard = heard_of(group, frame->sequence, member_of(group, from));
    if (frame->phase == EXCHANGING) heard->record = *record, heard->answered = heard->taken = 0;
    heard->ready = frame->phase + 1;
    struct comm_work *work = find_work(group, frame->sequence);
    return work ? tcp_answer(work, member_of(group, from)) : ZERO_OK;
}

/* ---- what comes before this rank's own call ---- */

static zero_status keep_early(struct tcp_comm *tcp, uint32_t from, struct wire *wire) {
    const struct frame *in = &wire->in;
    enum { EARLY_MAX = 64 * COMM_CALLS_MAX }; /* a rank that is this far ahead has left this one behind */
    struct early *early = malloc(sizeof *early);
    if (++wire->early > EARLY_MAX) {
        free(early);
        return tcp_refuse(tcp, from, in);
    }
    if (!early)
        return comm_raise(&tcp->base, ZERO_E_MEMORY, (int32_t)tcp->base.rank, false,
                          "comm tcp: rank %u: no memory for a message", tcp->base.rank);
    *early = (struct early){tcp->early, from, wire->in, wire->in_record};
    tcp->early = early;
    return ZERO_OK;
}

/* A place for a small slice of a call, or a phase, that this rank has not begun. */
static zero_status place_ahead(struct tcp_comm *tcp, uint32_t from) {
    struct wire *wire = &tcp->wires[from];
    const struct frame *in = &wire->in;
    for (uint32_t i = 0; i < AHEAD_SLICES && in->bytes <= tcp->ahead_bytes; i++) {
        struct kept *kept = &wire->kept[i];
        if (kept->used) continue;
        kept->used = true, kept->whole = false, kept->frame = *in;
        wire->in_kept = kept;
        wire->in_target = kept->bytes;
        return ZERO_OK;
    }
    return tcp_refuse(tcp, from, in);
}

/* ---- receiving ---- */

/* Checks a received frame header, and finds the place for the bytes that follow it. */
static zero_status place_frame(struct tcp_comm *tcp, uint32_t from) {
    struct wire *wire = &tcp->wires[from];
    const struct frame *in = &wire->in;
    struct comm_group *group = find_group(tcp, in->key);
    uint32_t member = group ? member_of(group, from) : 0;
    wire->in_work = NULL;
    wire->in_kept = NULL;
    wire->in_target = (char *)&wire->in_record;
    if (in->phase >= PHASES || (group && member == group->count)) return tcp_refuse(tcp, from, in);
    if (in->kind == FRAME_READY)
        return in->bytes == (in->phase == EXCHANGING ? sizeof wire->in_record : 0)
                   ? ZERO_OK
                   : tcp_refuse(tcp, from, in);
    if (in->kind != FRAME_DATA || (group && !tcp_announced(group, member, in)))
        return tcp_refuse(tcp, from, in);
    struct comm_work *work = group ? find_work(group, in->sequence) : NULL;
    if (!work || in->phase > mine_of(work)->phase) return place_ahead(tcp, from);
    if (!tcp_data_fits(work, member, in)) return tcp_refuse(tcp, from, in);
    wire->in_work = work;
    wire->in_target = tcp_slice_from(wire->in_work, in->phase, member);
    return ZERO_OK;
}

/* The bytes of a frame and its seal have come. */
static zero_status check_frame(struct tcp_comm *tcp, uint32_t from) {
    struct wire *wire = &tcp->wires[from];
    bool damaged = !tcp->unchecked && wire->in_seal.check && wire->in_seal.check != wire->in_check;
    struct text parts[3];
    parts_of(&wire->in, &wire->in_seal, wire->in_target, parts);
    if (seal_fits(&wire->seals.in, parts, 3, &wire->in_seal.tag) && !damaged) return ZERO_OK;
    return comm_raise(
        &tcp->base, ZERO_E_PEER, (int32_t)from, false,
        "comm tcp: what rank %u sent to rank %u came damaged (%llu bytes%s%s, call %llu): a network or a "
        "memory changes bytes, or another program writes into the connection; go on from the last checkpoint",
        from, tcp->base.rank, (unsigned long long)wire->in.bytes, wire->in_work ? " of " : "",
        wire->in_work ? wire->in_work->record.what : "", (unsigned long long)wire->in.sequence);
}

static zero_status take_data(struct comm_work *work, uint32_t member) {
    tcp_take_slice(work, member);
    return tcp_advance(work);
}

/* The call may have been posted, and the phase begun, while the bytes came. */
static zero_status take_ahead(struct wire *wire, struct comm_group *group, uint32_t from) {
    struct comm_work *work = group ? find_work(group, wire->in.sequence) : NULL;
    wire->in_kept->whole = true;
    zero_status status = work ? tcp_take_kept(work, member_of(group, from)) : ZERO_OK;
    return status || !work ? status : tcp_advance(work);
}

static zero_status take_frame(struct tcp_comm *tcp, uint32_t from) {
    struct wire *wire = &tcp->wires[from];
    const struct frame *in = &wire->in;
    struct comm_group *group = find_group(tcp, in->key);
    bool ready = in->kind == FRAME_READY;
    TRY(check_frame(tcp, from));
    /* The group may have been opened since the frame came. */
    if (group && member_of(group, from) == group->count) return tcp_refuse(tcp, from, in);
    if (ready && wire->in.phase == EXCHANGING && !record_readable(&wire->in_record))
        return tcp_refuse(tcp, from, in);
    if (ready && !group) return keep_early(tcp, from, wire);
    if (ready)
        return ready_fits(group, from, in, &wire->in_record)
                   ? tcp_hear_ready(group, from, in, &wire->in_record)
                   : tcp_refuse(tcp, from, in);
    return wire->in_kept ? take_ahead(wire, group, from) : take_data(wire->in_work, member_of(group, from));
}

/* Receives more of a frame, or of the block of its data that comes next and, after the last one, of its seal. */
static ssize_t receive_some(const struct tcp_comm *tcp, uint32_t peer, uint64_t *out_end) {
    struct wire *wire = &tcp->wires[peer];
    const uint64_t head = sizeof wire->in;
    if (wire->in_done < head) {
        *out_end = head;
        return recv(tcp->set.socket[peer], (char *)&wire->in + wire->in_done, head - wire->in_done, 0);
    }
    uint64_t at = wire->in_done - head, bytes = wire->in.bytes,
             end = at < bytes ? block_end(at, bytes) : bytes;
    uint64_t sealed = at > bytes ? at - bytes : 0;
    struct iovec parts[2] = {{wire->in_target + at, end > at ? end - at : 0},
                             {(char *)&wire->in_seal + sealed, sizeof wire->in_seal - sealed}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = end == bytes ? 2 : 1};
    *out_end = head + end;
    return recvmsg(tcp->set.socket[peer], &message, 0);
}

/* Checks the block whose last byte has come. `from`: how many bytes of the frame there were before. */
static void check_arrived(struct wire *wire, uint64_t from, uint64_t end) {
    const uint64_t head = sizeof wire->in;
    if (end == head || from >= end || wire->in_done < end) return;
    uint64_t last = end - head, first = (last - 1) / BLOCK_BYTES * BLOCK_BYTES;
    wire->in_check = check_on(first ? wire->in_check : 0, wire->in_target + first, last - first);
}

static zero_status read_wire(struct tcp_comm *tcp, uint32_t peer) {
    struct wire *wire = &tcp->wires[peer];
    zero_status status = ZERO_OK;
    while (status == ZERO_OK) {
        uint64_t from = wire->in_done, end;
        ssize_t got = receive_some(tcp, peer, &end);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return ZERO_OK;
        if (got <= 0) return break_off(tcp, peer, got < 0 ? errno : 0), ZERO_OK;
        wire->in_done += (uint64_t)got;
        if (from < sizeof wire->in && wire->in_done == sizeof wire->in) status = place_frame(tcp, peer);
        if (!tcp->unchecked) check_arrived(wire, from, end);
        if (status != ZERO_OK || wire->in_done < sizeof wire->in + wire->in.bytes + sizeof wire->in_seal)
            continue;
        wire->in_done = 0;
        status = take_frame(tcp, peer);
    }
    return status;
}

zero_status tcp_pump(struct tcp_comm *tcp, int at_most_ms) {
    struct tcp_set *set = &tcp->set;
    if (!tcp->in_flight && at_most_ms == 0) return ZERO_OK;
    zero_status status = report_broken(tcp);
    if (status == ZERO_OK && tcp->meeting && rendezvous_made(tcp->meeting) != tcp->made)
        status = tcp_adopt(tcp);
    if (status == ZERO_OK) status = write_pending(tcp);
    uint32_t ready = status == ZERO_OK ? tcp_set_wait(set, at_most_ms) : 0;
    for (uint32_t i = 0; i < ready && status == ZERO_OK; i++) {
        uint32_t q = set->ready[i].data.u32;
        if (set->socket[q] >= 0 && set->ready[i].events & ~(uint32_t)EPOLLOUT) status = read_wire(tcp, q);
        if (status == ZERO_OK && set->ready[i].events & EPOLLOUT) status = write_wire(tcp, q);
    }
    return status == ZERO_OK ? write_pending(tcp) : status;
}
