/* The slices of a call of transport tcp: where they are, and those that come. */
#include <string.h>

#include "engine/comm/shape.h"
#include "engine/comm/staged.h"
#include "engine/comm/tcp/tcp.h"

/* ---- spread calls ----
 *
 * A spread call goes in ceil(log2(members)) steps, after Bruck et al. 1997. In the step of distance d = 1, 2, 4, ... member i
 * sends to member i - d what it has, and receives from i + d what that one has, all numbers modulo the members:
 *
 *   all-gather   the shares of members i ... i + d - 1. In the target, the shares begin with this rank's until the call ends.
 *   broadcast    the whole, where this member has it and the other one does not.
 *   barrier      nothing.
 *
 * Two members have a step in common, or one for each direction. So they exchange one slice each; the slice of a member
 * that has nothing to send has 0 bytes. A slice is sent once those of shorter distances have come.
 *
 * A member that does not drive its calls holds up others than its neighbours, and they look late. So the calls that a rank posts
 * ahead are not spread. */

/* From a member to the one that gets its slice; 0: none does. */
static uint32_t distance(const struct comm_group *group, uint32_t from, uint32_t to) {
    uint32_t back = (from + group->count - to) % group->count;
    return back & (back - 1) ? 0 : back;
}

bool tcp_spreads(const struct comm_group *group, const struct comm_call *call) {
    if (group->count <= SPREAD_MEMBERS) return false;
    if (call->kind == COMM_ALL_GATHER)
        return call->passes && call->count * dtype_bytes(call->dtype) <= SPREAD_BYTES;
    return call->kind == COMM_BROADCAST || call->kind == COMM_BARRIER;
}

void tcp_find_near(struct tcp_group *group) {
    uint32_t me = group->base.index, count = group->base.count;
    for (uint32_t m = 0; m < count && count > SPREAD_MEMBERS; m++)
        if (distance(&group->base, me, m) || distance(&group->base, m, me))
            group->near[group->near_count++] = m;
}

bool tcp_has_slice(const struct comm_work *work, uint32_t member) {
    const struct comm_group *group = work->group;
    uint32_t mine = mine_of(work)->spread ? distance(group, group->index, member) : 0;
    for (uint32_t d = 1; d < mine; d *= 2) {
        const struct heard *heard = heard_of(group, work->record.sequence, (group->index + d) % group->count);
        if (heard->record.sequence != work->record.sequence || !heard->taken) return false;
    }
    return true;
}

static uint64_t spread_bytes(const struct comm_work *work, uint32_t from, uint32_t to) {
    const struct comm_group *group = work->group;
    const struct comm_call *call = &work->call;
    uint32_t d = distance(group, from, to), count = group->count, shares = d;
    if (d == 0 || call->kind == COMM_BARRIER) return 0;
    if (call->kind == COMM_BROADCAST) {
        uint32_t behind = (call->root + count - from) % count;
        shares = behind < d && behind + d < count;
    } else if (shares > count - d) {
        shares = count - d;
    }
    return shares * call->count * dtype_bytes(call->dtype);
}

static void reverse(unsigned char *bytes, uint64_t count) {
    for (uint64_t i = 0, j = count; i + 1 < j; i++) {
        unsigned char byte = bytes[i];
        bytes[i] = bytes[--j], bytes[j] = byte;
    }
}

/* The target holds the shares of members me, me + 1, ...: turns it. */
void tcp_end_spread(const struct comm_work *work) {
    const struct comm_call *call = &work->call;
    uint64_t share = call->count * dtype_bytes(call->dtype), all = share * work->group->count,
             head = share * work->group->index;
    unsigned char *target = call->target;
    if (call->kind != COMM_ALL_GATHER || !share) return;
    reverse(target, all);
    reverse(target, head);
    reverse(target + head, all - head);
}

/* ---- where slices are ---- */

uint64_t tcp_slice_bytes(const struct comm_work *work, uint32_t phase, uint32_t from, uint32_t to) {
    const struct comm_call *call = &work->call;
    if (mine_of(work)->spread) return spread_bytes(work, from, to);
    if (call->kind == COMM_BARRIER || (call->kind == COMM_BROADCAST && from != call->root)) return 0;
    return shape_share(call, work->group->count) *
           dtype_bytes(phase == GATHERING ? call->target_dtype : call->dtype);
}

const char *tcp_slice_to(const struct comm_work *work, uint32_t phase, uint32_t member) {
    uint32_t me = work->group->index;
    uint64_t bytes = tcp_slice_bytes(work, phase, me, member);
    if (mine_of(work)->spread) return work->call.target;
    if (phase == GATHERING) return staged_sums(work) + me * bytes;
    bool one = work->call.kind == COMM_ALL_GATHER || work->call.kind == COMM_BROADCAST;
    uint64_t step = work->call.kind == COMM_REDUCE_SCATTER
                        ? shape_stride(&work->call) * dtype_bytes(work->call.dtype)
                        : bytes;
    return (const char *)mine_of(work)->source + (one ? 0 : member * step);
}

char *tcp_slice_from(const struct comm_work *work, uint32_t phase, uint32_t member) {
    uint64_t bytes = tcp_slice_bytes(work, phase, member, work->group->index);
    if (mine_of(work)->spread)
        return (char *)work->call.target + (work->call.kind == COMM_ALL_GATHER
                                                ? distance(work->group, member, work->group->index) *
                                                      work->call.count * dtype_bytes(work->call.dtype)
                                                : 0);
    if (phase == GATHERING) return staged_sums(work) + member * bytes;
    if (shape_reduces(&work->call)) return staged_received(work) + member * bytes;
    uint64_t step = work->call.kind == COMM_ALL_GATHER
                        ? shape_stride(&work->call) * dtype_bytes(work->call.dtype)
                        : bytes;
    return (char *)work->call.target + (work->call.kind == COMM_BROADCAST ? 0 : member * step);
}

void tcp_keep_own_slice(const struct comm_work *work) {
    uint32_t me = work->group->index;
    uint64_t bytes = tcp_slice_bytes(work, EXCHANGING, me, me);
    const struct comm_call *call = &work->call;
    if (mine_of(work)->spread) {
        if (call->kind == COMM_ALL_GATHER && call->count)
            memmove(call->target, call->source, call->count * dtype_bytes(call->dtype));
        return;
    }
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
           frame->bytes == tcp_slice_bytes(work, frame->phase, member, work->group->index);
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
