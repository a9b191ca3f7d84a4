/* The slices of a call of transport tcp: where they are, and those that come. */
#include <string.h>

#include "engine/comm/shape.h"
#include "engine/comm/staged.h"
#include "engine/comm/tcp/tcp.h"

uint64_t tcp_slice_bytes(const struct comm_work *work, uint32_t phase, uint32_t from) {
    const struct comm_call *call = &work->call;
    if (call->kind == COMM_BARRIER || (call->kind == COMM_BROADCAST && from != call->root)) return 0;
    return shape_share(call, work->group->count) *
           dtype_bytes(phase == GATHERING ? call->target_dtype : call->dtype);
}

const char *tcp_slice_to(const struct comm_work *work, uint32_t phase, uint32_t member) {
    uint32_t me = work->group->index;
    uint64_t bytes = tcp_slice_bytes(work, phase, me);
    if (phase == GATHERING) return staged_sums(work) + me * bytes;
    bool one = work->call.kind == COMM_ALL_GATHER || work->call.kind == COMM_BROADCAST;
    uint64_t step = work->call.kind == COMM_REDUCE_SCATTER
                        ? shape_stride(&work->call) * dtype_bytes(work->call.dtype)
                        : bytes;
    return (const char *)mine_of(work)->source + (one ? 0 : member * step);
}

char *tcp_slice_from(const struct comm_work *work, uint32_t phase, uint32_t member) {
    uint64_t bytes = tcp_slice_bytes(work, phase, member);
    if (phase == GATHERING) return staged_sums(work) + member * bytes;
    if (shape_reduces(&work->call)) return staged_received(work) + member * bytes;
    uint64_t step = work->call.kind == COMM_ALL_GATHER
                        ? shape_stride(&work->call) * dtype_bytes(work->call.dtype)
                        : bytes;
    return (char *)work->call.target + (work->call.kind == COMM_BROADCAST ? 0 : member * step);
}

void tcp_keep_own_slice(const struct comm_work *work) {
    uint32_t me = work->group->index;
    uint64_t bytes = tcp_slice_bytes(work, EXCHANGING, me);
    const char *from = tcp_slice_to(work, EXCHANGING, me);
    char *to = tcp_slice_from(work, EXCHANGING, me);
    if (bytes && from != to) memcpy(to, from, bytes);
}

/* ---- slices that come ---- */

/* A member sends its slice of a phase once, after it has announced the phase. */
bool tcp_announced(const struct comm_group *group, uint32_t member, const struct frame *frame) {
    const struct heard *heard = heard_of(group, frame->sequence, member);
    return heard->record.sequence == frame->sequence && heard->ready > frame->phase &&
           heard->taken <= frame->phase;
}

bool tcp_data_fits(const struct comm_work *work, uint32_t member, const struct frame *frame) {
    return mine_of(work)->phase == frame->phase && tcp_announced(work->group, member, frame) &&
           frame->bytes == tcp_slice_bytes(work, frame->phase, member);
}

void tcp_take_slice(struct comm_work *work, uint32_t member) {
    uint32_t phase = mine_of(work)->phase;
    mine_of(work)->arrived++;
    heard_of(work->group, work->record.sequence, member)->taken = phase + 1;
}

zero_status tcp_refuse(struct tcp_comm *tcp, uint32_t from, const struct frame *in) {
    return comm_raise(&tcp->base, ZERO_E_INTERNAL, (int32_t)from, false,
                      "comm tcp: rank %u sent rank %u a message that fits no call (kind %u, phase %u, call "
                      "%llu, %llu bytes): all ranks must run the same build",
                      from, tcp->base.rank, in->kind, in->phase, (unsigned long long)in->sequence,
                      (unsigned long long)in->bytes);
}

zero_status tcp_take_kept(struct comm_work *work, uint32_t member) {
    struct comm_group *group = work->group;
    uint32_t from = group->ranks[member];
    for (uint32_t i = 0; i < AHEAD_SLICES; i++) {
        struct kept *kept = &tcp_of(group)->wires[from].kept[i];
        const struct frame *in = &kept->frame;
        if (!kept->used || !kept->whole || in->key != group->key || in->sequence != work->record.sequence ||
            in->phase != mine_of(work)->phase)
            continue;
        if (!tcp_data_fits(work, member, in)) return tcp_refuse(tcp_of(group), from, in);
        if (in->bytes) memcpy(tcp_slice_from(work, in->phase, member), kept->bytes, in->bytes);
        kept->used = false;
        tcp_take_slice(work, member);
    }
    return ZERO_OK;
}
