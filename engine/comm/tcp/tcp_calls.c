/* A call of transport tcp: the frames that it sends, and its phases. */
#include "engine/comm/shape.h"
#include "engine/comm/staged.h"
#include "engine/comm/tcp/tcp.h"

/* ---- sending ---- */

static void enqueue(struct comm_work *work, uint32_t member, enum frame_kind kind, uint32_t phase,
                    const void *data, uint64_t bytes) {
    struct tcp_comm *tcp = tcp_of(work->group);
    struct wire *wire = &tcp->wires[work->group->ranks[member]];
    wire->queue[(wire->first + wire->count++) % tcp->queue_capacity] = (struct outgoing){
        .frame = {kind, phase, work->group->key, work->record.sequence, bytes}, .data = data, .work = work};
    mine_of(work)->unsent++;
    tcp_list(tcp, work->group->ranks[member]);
}

static void say_ready(struct comm_work *work) {
    uint32_t phase = mine_of(work)->phase;
    for (uint32_t i = 0; i < tcp_peers(work); i++)
        enqueue(work, tcp_peer(work, i), FRAME_READY, phase, &work->record,
                phase == EXCHANGING ? sizeof work->record : 0);
}

static void send_slice(struct comm_work *work, uint32_t member, uint32_t phase) {
    enqueue(work, member, FRAME_DATA, phase, tcp_slice_to(work, phase, member),
            tcp_slice_bytes(work, phase, work->group->index, member));
}

static bool is_ready(const struct heard *heard, const struct comm_work *work, uint32_t phase) {
    return heard->ready > phase && heard->record.sequence == work->record.sequence;
}

static bool went_ahead(const struct heard *heard, const struct comm_work *work, uint32_t phase) {
    return heard->ahead_call == work->record.sequence + 1 && heard->ahead_phases >> phase & 1;
}

/* Sends small slices ahead to members that are not ready, while they have places for them. */
static void send_ahead(struct comm_work *work) {
    struct tcp_comm *tcp = tcp_of(work->group);
    uint32_t phase = mine_of(work)->phase;
    for (uint32_t i = 0; i < tcp_peers(work); i++) {
        uint32_t m = tcp_peer(work, i);
        struct heard *heard = heard_of(work->group, work->record.sequence, m);
        struct wire *wire = &tcp->wires[work->group->ranks[m]];
        if (is_ready(heard, work, phase) || went_ahead(heard, work, phase) || wire->ahead == AHEAD_SLICES ||
            !tcp_has_slice(work, m) || tcp_slice_bytes(work, phase, work->group->index, m) > tcp->ahead_bytes)
            continue;
        if (heard->ahead_call != work->record.sequence + 1) heard->ahead_phases = 0;
        heard->ahead_call = work->record.sequence + 1;
        heard->ahead_phases |= 1u << phase;
        wire->ahead++;
        send_slice(work, m, phase);
    }
}

/* Sends the slices for which the member is ready, if this rank has them. */
zero_status tcp_answer(struct comm_work *work, uint32_t member) {
    struct heard *heard = heard_of(work->group, work->record.sequence, member);
    if (mine_of(work)->phase == PHASES)
        return ZERO_OK; /* this rank has answered every phase; a correct member asks for no other */
    if (!heard->ready || heard->record.sequence != work->record.sequence) return ZERO_OK;
    if (heard->record.hash != work->record.hash)
        return comm_raise_diverged(work->group->comm, work->group->ordinal, &work->record,
                                   work->group->ranks[member], &heard->record);
    for (; heard->answered < heard->ready && heard->answered <= mine_of(work)->phase; heard->answered++) {
        if (!tcp_has_slice(work, member)) break;
        if (went_ahead(heard, work, heard->answered))
            tcp_of(work->group)->wires[work->group->ranks[member]].ahead--;
        else
            send_slice(work, member, heard->answered);
    }
    return ZERO_OK;
}

static zero_status answer_all(struct comm_work *work) {
    for (uint32_t i = 0; i < tcp_peers(work); i++) TRY(tcp_answer(work, tcp_peer(work, i)));
    return ZERO_OK;
}

/* ---- phases ---- */

zero_status tcp_begin_phase(struct comm_work *work) {
    say_ready(work);
    zero_status status = answer_all(work);
    if (status) return status;
    send_ahead(work);
    for (uint32_t i = 0; i < tcp_peers(work) && status == ZERO_OK; i++)
        status = tcp_take_kept(work, tcp_peer(work, i));
    return status;
}

static bool has_phase(const struct comm_work *work, uint32_t phase) {
    return phase == EXCHANGING || (phase == GATHERING && work->call.kind == COMM_ALL_REDUCE);
}

static zero_status end_phase(struct comm_work *work) {
    struct tcp_group *group = (struct tcp_group *)work->group;
    struct tcp_work *mine = mine_of(work);
    const struct comm_call *call = &work->call;
    uint64_t share = shape_share(call, group->base.count);
    if (mine->spread) tcp_end_spread(work);
    if (mine->phase == EXCHANGING && call->kind == COMM_REDUCE_SCATTER)
        staged_sum(work, group->inputs, call->target, share, call->add);
    if (mine->phase == EXCHANGING && call->kind == COMM_ALL_REDUCE)
        staged_sum(work, group->inputs,
                   staged_sums(work) + group->base.index * share * dtype_bytes(call->target_dtype), share,
                   false);
    if (mine->phase == GATHERING) staged_finish(work);
    mine->phase = has_phase(work, mine->phase + 1) ? mine->phase + 1 : PHASES;
    mine->arrived = 0;
    if (mine->phase == PHASES) {
        tcp_of(work->group)->in_flight--;
        control_done(group->ring, work->record.sequence);
        return ZERO_OK;
    }
    return tcp_begin_phase(work);
}

zero_status tcp_advance(struct comm_work *work) {
    struct tcp_work *mine = mine_of(work);
    if (mine->spread && mine->phase < PHASES) {
        TRY(answer_all(work)); /* what has come since goes on to others */
        send_ahead(work);
    }
    while (mine->phase < PHASES && mine->arrived == tcp_peers(work) && mine->unsent == 0)
        TRY(end_phase(work));
    return ZERO_OK;
}
