/* Transport tcp: ranks are processes that only an address connects; buffers are host memory. For hosts without MPI,
 * started as torchrun starts programs: see rendezvous.h.
 *
 * A call is one phase in which every member sends every other one a slice, all-reduce two:
 *
 *     ready p     a member says that its targets of phase p may be written; with p = 0 goes its record of the call
 *     data p      the answer to a ready: this member's slice, be it 0 bytes long
 *
 * Hence data never comes before there is a place for it, calls of several groups do not wait for each other, and
 * ranks that diverge are found before a byte of data has moved. A phase is over when a slice has come from all and
 * all of this member's are sent: then its sources may change.
 *
 * There is no own order of additions: `native` reductions are `ordered` ones.
 *
 * Threads: data moves in the owner's comm_test and comm_idle; the control channel has a thread and connections of
 * its own. A data connection that breaks is not reported here: the ring finds the silent rank, and names it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "engine/comm/rendezvous.h"
#include "engine/comm/shape.h"
#include "engine/comm/staged.h"
#include "engine/comm/tcp_link.h"

enum lane { LANE_CONTROL, LANE_DATA };
enum frame_kind { FRAME_READY, FRAME_DATA };
enum phase { EXCHANGING, GATHERING, PHASES };

struct frame {
    uint32_t kind, phase;
    uint64_t key, sequence, bytes; /* of the group; of the call; that follow */
};

struct tcp_work {
    uint32_t phase; /* PHASES: the call is done */
    uint32_t arrived, unsent;
    const void *source; /* of the slices of EXCHANGING */
};

struct outgoing {
    struct frame frame;
    const void *data;
    struct comm_work *work;
};

/* The data connection to one rank. */
struct wire {
    struct outgoing *queue; /* a ring of queue_capacity */
    uint32_t first, count;
    uint64_t out_done; /* bytes of the first one that are sent, its frame included */
    struct frame in;
    uint64_t in_done;
    char *in_target;
    struct comm_work *in_work;
    struct comm_record in_record;
};

/* Heard before this rank has opened the group. */
struct early {
    struct early *next;
    uint32_t from;
    struct frame frame;
    struct comm_record record;
};

struct tcp_comm {
    struct comm base;
    struct failure failure;
    struct lanes *peers;
    struct tcp_link link;
    struct watch watch;
    struct wire *wires;
    struct pollfd *polls;
    uint32_t queue_capacity;
    struct early *early;
};

struct heard { /* of one member's call */
    struct comm_record record;
    uint32_t ready, answered; /* phases; the record's sequence says of which call */
};

struct tcp_group {
    struct comm_group base;
    struct control_group *ring;
    const void **inputs;
    struct heard *heard; /* [COMM_CALLS_MAX][count] */
    struct tcp_work works[COMM_CALLS_MAX];
};

static struct tcp_comm *tcp_of(const struct comm_group *group) { return (struct tcp_comm *)group->comm; }

static struct tcp_work *mine_of(const struct comm_work *work) {
    return &((struct tcp_group *)work->group)->works[work_slot(work)];
}

static struct heard *heard_of(const struct comm_group *group, uint64_t sequence, uint32_t member) {
    return &((const struct tcp_group *)group)->heard[sequence % COMM_CALLS_MAX * group->count + member];
}

/* ---- slices ---- */

static bool has_phase(const struct comm_work *work, uint32_t phase) {
    return phase == EXCHANGING || (phase == GATHERING && work->call.kind == COMM_ALL_REDUCE);
}

static uint64_t slice_bytes(const struct comm_work *work, uint32_t phase, uint32_t from) {
    const struct comm_call *call = &work->call;
    if (call->kind == COMM_BARRIER || (call->kind == COMM_BROADCAST && from != call->root)) return 0;
    return shape_share(call, work->group->count) *
           dtype_bytes(phase == GATHERING ? call->target_dtype : call->dtype);
}

static const char *slice_to(const struct comm_work *work, uint32_t phase, uint32_t member) {
    uint32_t me = work->group->index;
    uint64_t bytes = slice_bytes(work, phase, me);
    if (phase == GATHERING) return staged_sums(work) + me * bytes;
    bool one = work->call.kind == COMM_ALL_GATHER || work->call.kind == COMM_BROADCAST;
    return (const char *)mine_of(work)->source + (one ? 0 : member * bytes);
}

static char *slice_from(const struct comm_work *work, uint32_t phase, uint32_t member) {
    uint64_t bytes = slice_bytes(work, phase, member);
    if (phase == GATHERING) return staged_sums(work) + member * bytes;
    if (shape_reduces(&work->call)) return staged_received(work) + member * bytes;
    return (char *)work->call.target + (work->call.kind == COMM_BROADCAST ? 0 : member * bytes);
}

static void keep_own_slice(const struct comm_work *work) {
    uint32_t me = work->group->index;
    uint64_t bytes = slice_bytes(work, EXCHANGING, me);
    const char *from = slice_to(work, EXCHANGING, me);
    char *to = slice_from(work, EXCHANGING, me);
    if (bytes && from != to) memcpy(to, from, bytes);
}

/* ---- sending ---- */

static void enqueue(struct comm_work *work, uint32_t member, enum frame_kind kind, uint32_t phase,
                    const void *data, uint64_t bytes) {
    struct tcp_comm *tcp = tcp_of(work->group);
    struct wire *wire = &tcp->wires[work->group->ranks[member]];
    wire->queue[(wire->first + wire->count++) % tcp->queue_capacity] = (struct outgoing){
        .frame = {kind, phase, work->group->key, work->record.sequence, bytes}, .data = data, .work = work};
    mine_of(work)->unsent++;
}

static void say_ready(struct comm_work *work) {
    uint32_t phase = mine_of(work)->phase;
    for (uint32_t m = 0; m < work->group->count; m++)
        if (m != work->group->index)
            enqueue(work, m, FRAME_READY, phase, &work->record,
                    phase == EXCHANGING ? sizeof work->record : 0);
}

/* What a member is ready for and this rank has. */
static zero_status answer(struct comm_work *work, uint32_t member) {
    struct heard *heard = heard_of(work->group, work->record.sequence, member);
    if (!heard->ready || heard->record.sequence != work->record.sequence) return ZERO_OK;
    if (heard->record.hash != work->record.hash)
        return comm_raise_diverged(work->group->comm, work->group->ordinal, &work->record,
                                   work->group->ranks[member], &heard->record);
    for (; heard->answered < heard->ready && heard->answered <= mine_of(work)->phase; heard->answered++) {
        uint32_t phase = heard->answered;
        enqueue(work, member, FRAME_DATA, phase, slice_to(work, phase, member),
                slice_bytes(work, phase, work->group->index));
    }
    return ZERO_OK;
}

static zero_status answer_all(struct comm_work *work) {
    zero_status status = ZERO_OK;
    for (uint32_t m = 0; m < work->group->count && status == ZERO_OK; m++)
        if (m != work->group->index) status = answer(work, m);
    return status;
}

/* ---- phases ---- */

static zero_status end_phase(struct comm_work *work) {
    struct tcp_group *group = (struct tcp_group *)work->group;
    struct tcp_work *mine = mine_of(work);
    const struct comm_call *call = &work->call;
    uint64_t share = shape_share(call, group->base.count);
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
        control_done(group->ring, work->record.sequence);
        return ZERO_OK;
    }
    say_ready(work);
    return answer_all(work);
}

static zero_status advance(struct comm_work *work) {
    struct tcp_work *mine = mine_of(work);
    zero_status status = ZERO_OK;
    while (status == ZERO_OK && mine->phase < PHASES && mine->arrived == work->group->count - 1 &&
           mine->unsent == 0)
        status = end_phase(work);
    return status;
}

/* ---- the wires ---- */

static void break_off(struct tcp_comm *tcp, uint32_t peer) { tcp->polls[peer].fd = -1; }

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
        if (sent < 0) return break_off(tcp, peer), ZERO_OK;
        wire->out_done += (uint64_t)sent;
        if (wire->out_done < end) continue;
        struct comm_work *work = out->work;
        wire->out_done = 0, wire->first = (wire->first + 1) % tcp->queue_capacity, wire->count--;
        mine_of(work)->unsent--;
        zero_status status = advance(work);
        if (status) return status;
    }
    return ZERO_OK;
}

static struct comm_group *find_group(const struct tcp_comm *tcp, uint64_t key) {
    struct comm_group *group = tcp->base.groups;
    while (group && group->key != key) group = group->next;
    return group;
}

static uint32_t member_of(const struct comm_group *group, uint32_t rank) {
    uint32_t m = 0;
    while (m < group->count && group->ranks[m] != rank) m++;
    return m;
}

/* The call, if it is posted and not done. */
static struct comm_work *find_work(struct comm_group *group, uint64_t sequence) {
    struct comm_work *work = &group->works[sequence % COMM_CALLS_MAX];
    return work->busy && work->record.sequence == sequence ? work : NULL;
}

static zero_status hear_ready(struct comm_group *group, uint32_t from, const struct frame *frame,
                              const struct comm_record *record) {
    struct heard *heard = heard_of(group, frame->sequence, member_of(group, from));
    if (frame->phase == EXCHANGING) *heard = (struct heard){.record = *record};
    heard->ready = frame->phase + 1;
    struct comm_work *work = find_work(group, frame->sequence);
    return work ? answer(work, member_of(group, from)) : ZERO_OK;
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

/* A frame is here: where do its bytes go? */
static zero_status place_frame(struct tcp_comm *tcp, uint32_t from) {
    struct wire *wire = &tcp->wires[from];
    const struct frame *in = &wire->in;
    struct comm_group *group = find_group(tcp, in->key);
    uint32_t member = group ? member_of(group, from) : 0;
    wire->in_work = NULL;
    wire->in_target = (char *)&wire->in_record;
    if (in->phase >= PHASES || (group && member == group->count)) return refuse(tcp, from);
    if (in->kind == FRAME_READY)
        return in->bytes == (in->phase == EXCHANGING ? sizeof wire->in_record : 0) ? ZERO_OK
                                                                                   : refuse(tcp, from);
    wire->in_work = group ? find_work(group, in->sequence) : NULL;
    if (in->kind != FRAME_DATA || !wire->in_work || mine_of(wire->in_work)->phase != in->phase ||
        in->bytes != slice_bytes(wire->in_work, in->phase, member))
        return refuse(tcp, from);
    wire->in_target = slice_from(wire->in_work, in->phase, member);
    return ZERO_OK;
}

static zero_status take_frame(struct tcp_comm *tcp, uint32_t from) {
    struct wire *wire = &tcp->wires[from];
    struct comm_group *group = find_group(tcp, wire->in.key);
    if (wire->in.kind == FRAME_READY)
        return group ? hear_ready(group, from, &wire->in, &wire->in_record) : keep_early(tcp, from, wire);
    mine_of(wire->in_work)->arrived++;
    return advance(wire->in_work);
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
        if (got <= 0) return break_off(tcp, peer), ZERO_OK;
        wire->in_done += (uint64_t)got;
        if (wire->in_done < end) continue;
        if (head) status = place_frame(tcp, peer);
        if (status != ZERO_OK || (head && wire->in.bytes)) continue;
        wire->in_done = 0;
        status = take_frame(tcp, peer);
    }
    return status;
}

/* Moves what can be moved, after at most `at_most_ms` of waiting for that. */
static zero_status pump(struct tcp_comm *tcp, int at_most_ms) {
    zero_status status = ZERO_OK;
    for (uint32_t q = 0; q < tcp->base.size; q++)
        tcp->polls[q].events = (short)(POLLIN | (tcp->wires[q].count ? POLLOUT : 0));
    if (poll(tcp->polls, tcp->base.size, at_most_ms) <= 0) return ZERO_OK;
    for (uint32_t q = 0; q < tcp->base.size && status == ZERO_OK; q++) {
        if (tcp->polls[q].fd >= 0 && tcp->polls[q].revents & ~POLLOUT) status = read_wire(tcp, q);
        if (status == ZERO_OK && tcp->polls[q].fd >= 0) status = write_wire(tcp, q);
    }
    return status;
}

/* ---- opening ---- */

static zero_status connect_ranks(struct tcp_comm *tcp, const struct comm_options *options, uint64_t *out_key,
                                 struct zero_error *error) {
    struct rendezvous r = {.host = options->master,
                           .port = options->master_port,
                           .rank = tcp->base.rank,
                           .size = tcp->base.size,
                           .timeout_s = 10 * tcp->base.timeout_s};
    if (r.size == 1) {
        *out_key = 1;
        tcp->peers[0] = (struct lanes){.socket = {-1, -1}};
        return ZERO_OK;
    }
    if (!r.host || r.port == 0 || r.port > UINT16_MAX)
        return error_set(
            error, ZERO_E_ARGUMENT,
            "comm tcp: rank %u of %u ranks needs the address and port of rank 0: set MASTER_ADDR and "
            "MASTER_PORT",
            r.rank, r.size);
    return rendezvous(&r, tcp->peers, out_key, error);
}

static void release(struct tcp_comm *tcp) {
    for (uint32_t q = 0; q < tcp->base.size && tcp->wires; q++) free(tcp->wires[q].queue);
    for (struct early *early = tcp->early, *next; early; early = next) {
        next = early->next;
        free(early);
    }
    free(tcp->wires);
    free(tcp->polls);
    free(tcp->peers);
}

/* The watch and its link, over lane 0 of all peers. */
static zero_status start_watch(struct tcp_comm *tcp, uint64_t key) {
    uint32_t size = tcp->base.size;
    int *sockets = malloc(size * sizeof *sockets);
    if (!sockets) return ZERO_E_MEMORY;
    for (uint32_t q = 0; q < size; q++) sockets[q] = tcp->peers[q].socket[LANE_CONTROL];
    zero_status status = tcp_link_open(&tcp->link, tcp->base.rank, size, key, sockets);
    free(sockets);
    if (status) return status;
    struct watch_link watched = tcp_link_watched(&tcp->link);
    status = watch_start(&tcp->watch, &tcp->base, &watched);
    if (status) tcp_link_close(&tcp->link);
    return status;
}

static zero_status open_comm(struct comm *comm, const struct comm_options *options,
                             struct zero_error *error) {
    struct tcp_comm *tcp = (struct tcp_comm *)comm;
    uint64_t key;
    tcp->peers = calloc(comm->size, sizeof *tcp->peers);
    tcp->wires = calloc(comm->size, sizeof *tcp->wires);
    tcp->polls = calloc(comm->size, sizeof *tcp->polls);
    zero_status status = tcp->peers && tcp->wires && tcp->polls
                             ? connect_ranks(tcp, options, &key, error)
                             : error_set(error, ZERO_E_MEMORY, "comm tcp: rank %u: no memory for %u ranks",
                                         comm->rank, comm->size);
    if (status) {
        release(tcp);
        return status;
    }
    for (uint32_t q = 0; q < comm->size; q++) tcp->polls[q].fd = tcp->peers[q].socket[LANE_DATA];
    failure_init(&tcp->failure);
    comm->failure = &tcp->failure;
    status = start_watch(tcp, key);
    if (status == ZERO_OK) return ZERO_OK;
    failure_destroy(&tcp->failure);
    rendezvous_close(tcp->peers, comm->size);
    release(tcp);
    return error_set(error, status, "comm tcp: rank %u: no memory or no thread for the control channel",
                     comm->rank);
}

static void close_comm(struct comm *comm) {
    struct tcp_comm *tcp = (struct tcp_comm *)comm;
    watch_stop(&tcp->watch);
    tcp_link_close(&tcp->link);
    rendezvous_close(tcp->peers, comm->size);
    release(tcp);
    failure_destroy(&tcp->failure);
}

/* ---- groups ---- */

/* Every call of a group has two messages in each phase to each of its members. */
static bool grow_queues(struct tcp_comm *tcp, const struct comm_group *group) {
    uint32_t capacity = tcp->queue_capacity + 2 * PHASES * COMM_CALLS_MAX;
    if (group->count == 1) return true;
    for (uint32_t q = 0; q < tcp->base.size; q++) {
        struct wire *wire = &tcp->wires[q];
        struct outgoing *queue = q == tcp->base.rank ? NULL : malloc(capacity * sizeof *queue);
        if (!queue && q != tcp->base.rank) return false;
        for (uint32_t i = 0; i < wire->count; i++)
            queue[i] = wire->queue[(wire->first + i) % tcp->queue_capacity];
        free(wire->queue);
        wire->queue = queue, wire->first = 0;
    }
    tcp->queue_capacity = capacity;
    return true;
}

/* The front lists the group once it is open: until then what was heard stays early. */
static void replay_early(struct tcp_comm *tcp, struct comm_group *group) {
    for (struct early **link = &tcp->early, *early; (early = *link);) {
        uint32_t member = member_of(group, early->from);
        if (early->frame.key != group->key || member == group->count) {
            link = &early->next;
            continue;
        }
        *link = early->next;
        hear_ready(group, early->from, &early->frame, &early->record);
        free(early);
    }
}

static zero_status group_open(struct comm_group *group) {
    struct tcp_comm *tcp = tcp_of(group);
    struct tcp_group *mine = (struct tcp_group *)group;
    mine->inputs = malloc(group->count * sizeof *mine->inputs);
    mine->heard = calloc((size_t)COMM_CALLS_MAX * group->count, sizeof *mine->heard);
    if (mine->inputs && mine->heard && grow_queues(tcp, group))
        mine->ring = control_group_open(group->comm->control, group);
    if (mine->ring) {
        replay_early(tcp, group);
        return ZERO_OK;
    }
    free(mine->inputs);
    free(mine->heard);
    return comm_raise(group->comm, ZERO_E_MEMORY, (int32_t)group->comm->rank, false,
                      "comm tcp: rank %u: no memory for a group of %u ranks", group->comm->rank,
                      group->count);
}

static void group_close(struct comm_group *group) {
    struct tcp_group *mine = (struct tcp_group *)group;
    free(mine->inputs);
    free(mine->heard);
}

/* ---- calls ---- */

static uint64_t staging_bytes(const struct comm_group *group, const struct comm_call *call) {
    struct comm_call ordered = *call;
    ordered.native = false;
    return staged_bytes(group, &ordered);
}

static zero_status post(struct comm_work *work) {
    struct tcp_work *mine = mine_of(work);
    work->call.native = false;
    *mine = (struct tcp_work){.phase = EXCHANGING};
    mine->source = shape_reduces(&work->call)          ? staged_source(work)
                   : work->call.kind == COMM_BROADCAST ? work->call.target
                                                       : work->call.source;
    control_posted(((struct tcp_group *)work->group)->ring, &work->record, work->posted_ns);
    keep_own_slice(work);
    say_ready(work);
    return answer_all(work);
}

static zero_status test(struct comm_work *work, bool *out_done) {
    zero_status status = pump(tcp_of(work->group), 0);
    if (status == ZERO_OK) status = advance(work);
    *out_done = status == ZERO_OK && mine_of(work)->phase == PHASES;
    return status;
}

static void progress(struct comm_group *group) {
    for (uint32_t slot = 0; slot < COMM_CALLS_MAX; slot++)
        if (group->works[slot].busy && advance(&group->works[slot]) != ZERO_OK) return;
}

static void idle(struct comm *comm, uint64_t at_most_ns) {
    enum { LONGEST_MS = 5 }; /* a failure that the control channel hears of wakes nobody */
    uint64_t ms = (at_most_ns + 999999) / 1000000;
    pump((struct tcp_comm *)comm, ms > LONGEST_MS ? LONGEST_MS : (int)ms);
}

const struct comm_ops comm_tcp_ops = {
    .name = "tcp",
    .comm_bytes = sizeof(struct tcp_comm),
    .group_bytes = sizeof(struct tcp_group),
    .open = open_comm,
    .close = close_comm,
    .group_open = group_open,
    .group_close = group_close,
    .staging_bytes = staging_bytes,
    .post = post,
    .test = test,
    .progress = progress,
    .idle = idle,
};
