#include "engine/comm/tcp/tcp_link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/comm/tcp/socket.h"

enum { HEAD_BYTES = offsetof(struct tcp_letter, message) };

static const uint32_t GOODBYE = UINT32_MAX;

static uint32_t text_bytes(const struct tcp_letter *letter) {
    return letter->bytes == GOODBYE ? 0 : letter->bytes;
}
static uint32_t letter_bytes(const struct tcp_letter *letter) { return HEAD_BYTES + text_bytes(letter); }
static bool in_use(const struct tcp_lane *lane) { return lane->out_done < letter_bytes(&lane->out); }

/* The bytes that the tag covers. */
static void parts_of(const struct tcp_letter *letter, struct text out[2]) {
    out[0] = (struct text){&letter->bytes, sizeof letter->bytes};
    out[1] = (struct text){letter->message, text_bytes(letter)};
}

static void write_letter(struct tcp_lane *lane, uint32_t length, const void *message) {
    struct text parts[2];
    lane->out.bytes = length;
    lane->out_done = 0;
    memcpy(lane->out.message, message, text_bytes(&lane->out));
    parts_of(&lane->out, parts);
    lane->out.tag = seal_next(&lane->seals.out, parts, 2);
}

static bool letter_fits(struct tcp_lane *lane) {
    struct text parts[2];
    parts_of(&lane->in, parts);
    return seal_fits(&lane->seals.in, parts, 2, &lane->in.tag);
}

/* ---- the connections of a lane ---- */

zero_status tcp_set_open(struct tcp_set *set, uint32_t size) {
    *set = (struct tcp_set){.socket = malloc(size * sizeof *set->socket),
                            .peer = malloc(size * sizeof *set->peer),
                            .epoll = epoll_create1(EPOLL_CLOEXEC)};
    if (!set->socket || !set->peer || set->epoll < 0) return tcp_set_close(set), ZERO_E_MEMORY;
    for (uint32_t q = 0; q < size; q++) set->socket[q] = -1;
    return ZERO_OK;
}

bool tcp_set_add(struct tcp_set *set, uint32_t peer, int socket) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = peer};
    if (epoll_ctl(set->epoll, EPOLL_CTL_ADD, socket, &event)) return false;
    set->socket[peer] = socket;
    set->peer[set->count++] = peer;
    return true;
}

void tcp_set_writes(struct tcp_set *set, uint32_t peer, bool writes) {
    struct epoll_event event = {.events = EPOLLIN | (writes ? EPOLLOUT : 0), .data.u32 = peer};
    epoll_ctl(set->epoll, EPOLL_CTL_MOD, set->socket[peer], &event);
}

void tcp_set_drop(struct tcp_set *set, uint32_t peer) {
    epoll_ctl(set->epoll, EPOLL_CTL_DEL, set->socket[peer], &(struct epoll_event){0});
    set->socket[peer] = -1;
}

uint32_t tcp_set_wait(struct tcp_set *set, int at_most_ms) {
    int ready = epoll_wait(set->epoll, set->ready, TCP_READY, at_most_ms);
    return ready < 0 ? 0 : (uint32_t)ready;
}

void tcp_set_close(struct tcp_set *set) {
    if (set->epoll >= 0 && set->socket) close(set->epoll);
    free(set->socket);
    free(set->peer);
    *set = (struct tcp_set){.epoll = -1};
}

/* ---- messages ---- */

/* `why`: errno, or 0 if the peer closed the connection. */
static void lose(struct tcp_link *link, uint32_t peer, int why) {
    struct tcp_lane *lane = &link->lanes[peer];
    tcp_set_drop(&link->set, peer);
    lane->lost_ns = clock_now_ns();
    lane->why = why;
}

static void flush(struct tcp_link *link, uint32_t peer) {
    struct tcp_lane *lane = &link->lanes[peer];
    while (in_use(lane) && link->set.socket[peer] >= 0 && !lane->deaf) {
        ssize_t sent = send(link->set.socket[peer], (const char *)&lane->out + lane->out_done,
                            letter_bytes(&lane->out) - lane->out_done, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (sent < 0) /* The connection stays open, because the peer's last messages may still be unread. */
            lane->deaf = true;
        else
            lane->out_done += (uint32_t)sent;
    }
}

static bool port_send(void *user, uint32_t to, const void *message, uint32_t bytes) {
    struct tcp_link *link = user;
    struct tcp_lane *lane = &link->lanes[to];
    flush(link, to);
    if (link->set.socket[to] < 0) return lane->lost_ns || tcp_link_left(link, to); /* else it comes later */
    if (lane->deaf) return true;                                                   /* lost */
    if (in_use(lane)) return false;
    write_letter(lane, bytes, message);
    flush(link, to);
    return true;
}

/* Rank + `step` is a child of this rank in the tree. */
static bool child(const struct tcp_link *link, uint32_t step) {
    return link->rank + step < link->size && rendezvous_parent(link->rank + step) == link->rank;
}

static bool tell_closing(struct tcp_link *link, uint32_t peer) {
    struct tcp_lane *lane = &link->lanes[peer];
    if (!lane->closing_sent) lane->closing_sent = port_send(link, peer, "", 0);
    return lane->closing_sent;
}

/* A rank tells its parent once it closes, and its children do. */
static void say_closing(struct tcp_link *link) {
    bool told = true;
    if (!atomic_load(&link->leaving) || link->closing_heard < link->closing_awaited) return;
    if (link->rank && !link->told_all) tell_closing(link, rendezvous_parent(link->rank));
    if (link->rank && !link->told_all) return;
    for (uint32_t step = 1; step < link->size; step *= 2)
        if (child(link, step)) told = tell_closing(link, link->rank + step) && told;
    if (told) atomic_store(&link->all_left, true);
}

static void hear_closing(struct tcp_link *link, uint32_t peer) {
    if (link->rank && peer == rendezvous_parent(link->rank))
        link->told_all = true;
    else
        link->closing_heard++;
}

/* Takes a message that has arrived. False: it is not for the control channel. */
static bool take_letter(struct tcp_link *link, uint32_t peer) {
    struct tcp_lane *lane = &link->lanes[peer];
    lane->in_done = 0;
    if (!letter_fits(lane)) return lose(link, peer, EBADMSG), false;
    if (lane->in.bytes != GOODBYE) return true;
    tcp_set_drop(&link->set, peer);
    atomic_store(&lane->left, true);
    return false;
}

/* True: a message for the control channel has arrived. */
static bool read_lane(struct tcp_link *link, uint32_t peer) {
    struct tcp_lane *lane = &link->lanes[peer];
    for (;;) {
        uint32_t end = lane->in_done < HEAD_BYTES ? HEAD_BYTES : letter_bytes(&lane->in);
        if (lane->in_done == end) return take_letter(link, peer);
        ssize_t got = recv(link->set.socket[peer], (char *)&lane->in + lane->in_done, end - lane->in_done, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        if (got <= 0) return lose(link, peer, got < 0 ? errno : 0), false;
        lane->in_done += (uint32_t)got;
        if (lane->in_done >= HEAD_BYTES && text_bytes(&lane->in) > CONTROL_MESSAGE_BYTES)
            return lose(link, peer, EPROTO), false;
    }
}

static zero_status raise_lost(const struct tcp_link *link, uint32_t peer) {
    int why = link->lanes[peer].why;
    if (why == EBADMSG || why == EPROTO)
        return comm_raise(link->comm, ZERO_E_PEER, (int32_t)peer, true,
                          "comm tcp: a control message that rank %u sent to rank %u came damaged (a network "
                          "or a memory changes bytes, or another program writes into the connection)",
                          peer, link->rank);
    return comm_raise(link->comm, ZERO_E_PEER, (int32_t)peer, true,
                      "rank %u is gone: its connection to rank %u ended, and it had not closed its "
                      "communicator: %s (its process ended or was killed, or the network cut the connection)",
                      peer, link->rank, why ? strerror(why) : "end of file");
}

/* Waits a moment: the peer may have told another rank why it failed, and that message says more. */
static void report_lost(struct tcp_link *link) {
    uint64_t now_ns = clock_now_ns();
    if (atomic_load(&link->all_left) || comm_failure_raised(link->comm->failure)) return;
    for (uint32_t i = 0; i < link->set.count; i++) {
        uint32_t peer = link->set.peer[i];
        const struct tcp_lane *lane = &link->lanes[peer];
        if (!lane->lost_ns || now_ns - lane->lost_ns < TCP_PATIENCE_NS) continue;
        raise_lost(link, peer);
        return;
    }
}

zero_status tcp_raise_no_room(struct comm *comm, uint32_t peer) {
    return comm_raise(comm, ZERO_E_MEMORY, (int32_t)comm->rank, false,
                      "comm tcp: rank %u: no memory for a connection to rank %u", comm->rank, peer);
}

/* Takes over the control connections that are made, and not lost. */
static void adopt(struct tcp_link *link) {
    for (uint32_t q = 0; q < link->size; q++) {
        const struct lanes *peer = &link->peers[q];
        struct tcp_lane *lane = &link->lanes[q];
        if (link->set.socket[q] >= 0 || !atomic_load(&peer->made[LANE_CONTROL])) continue;
        if (lane->lost_ns || tcp_link_left(link, q)) continue;
        lane->out_done = HEAD_BYTES;
        lane->seals = peer->seals[LANE_CONTROL];
        link->resume_s = tcp_endure(link->comm, peer->socket[LANE_CONTROL]);
        if (tcp_set_add(&link->set, q, peer->socket[LANE_CONTROL])) continue;
        lane->lost_ns = clock_now_ns();
        tcp_raise_no_room(link->comm, q);
    }
}

/* A connection for which there is no socket waits: it may be a stranger's, and another one may end. */
static void look_for_new(struct tcp_link *link) {
    struct zero_error error;
    if (!link->meeting) return;
    bool waits = rendezvous_serve(link->meeting, &error);
    if (waits && !link->told_waiting)
        log_line(&link->comm->log, ZERO_LOG_WARN, "%s; until then a connection waits", error.message);
    link->told_waiting = waits;
    uint32_t made = rendezvous_made(link->meeting);
    if (made == link->made) return;
    link->made = made;
    adopt(link);
}

static bool port_receive(void *user, void *message, uint32_t bytes_max, uint32_t *out_bytes) {
    struct tcp_link *link = user;
    look_for_new(link);
    say_closing(link);
    report_lost(link);
    uint32_t ready = tcp_set_wait(&link->set, 0);
    for (uint32_t i = 0; i < ready; i++) {
        uint32_t peer = link->set.ready[i].data.u32;
        struct tcp_lane *lane = &link->lanes[peer];
        if (link->set.socket[peer] < 0 || !read_lane(link, peer)) continue;
        if (lane->in.bytes == 0) {
            hear_closing(link, peer);
            continue;
        }
        *out_bytes = lane->in.bytes < bytes_max ? lane->in.bytes : bytes_max;
        memcpy(message, lane->in.message, *out_bytes);
        return true;
    }
    return false;
}

static bool port_under_way(void *user, uint32_t to) {
    const struct tcp_link *link = user;
    return link->set.socket[to] >= 0 && socket_unacknowledged(link->set.socket[to]) > 0;
}

bool tcp_link_left(const struct tcp_link *link, uint32_t rank) {
    return atomic_load(&link->lanes[rank].left);
}

static bool port_has_left(void *user, uint32_t rank) { return tcp_link_left(user, rank); }

/* A rank's parent tells it that all close; after the parent has left, nobody does. */
static bool link_meet(void *user, bool *out_all) {
    struct tcp_link *link = user;
    atomic_store(&link->leaving, true);
    *out_all =
        atomic_load(&link->all_left) || (link->rank && tcp_link_left(link, rendezvous_parent(link->rank)));
    return true;
}

/* The kernel gives up later than any limit of the engine, even for a peer that computes for a long time and does not
 * read. */
double tcp_endure(const struct comm *comm, int socket) {
    const double linux_s = 900; /* Linux's default limit */
    return socket_endure(socket, CONTROL_OUTAGE * comm->timeout_s, linux_s + 12 * comm->timeout_s);
}

zero_status tcp_link_open(struct tcp_link *link, struct comm *comm, uint64_t key, struct lanes *peers,
                          struct meeting *meeting) {
    uint32_t size = comm->size;
    *link = (struct tcp_link){.comm = comm, .rank = comm->rank, .size = size, .key = key};
    link->peers = peers, link->meeting = meeting;
    link->lanes = calloc(size, sizeof *link->lanes);
    if (!link->lanes || tcp_set_open(&link->set, size)) return free(link->lanes), ZERO_E_MEMORY;
    for (uint32_t step = 1; step < size; step *= 2) link->closing_awaited += child(link, step);
    adopt(link);
    return ZERO_OK;
}

struct watch_link tcp_link_watched(struct tcp_link *link) {
    return (struct watch_link){.port = {.user = link,
                                        .opening = link->key,
                                        .send = port_send,
                                        .receive = port_receive,
                                        .under_way = port_under_way,
                                        .has_left = port_has_left,
                                        .resume_s = link->resume_s},
                               .meet = link_meet,
                               .may_leave = true};
}

static bool send_rest(const struct tcp_lane *lane, int fd, struct patience patience) {
    return socket_send(fd, (const char *)&lane->out + lane->out_done,
                       letter_bytes(&lane->out) - lane->out_done, patience);
}

/* How long the other ranks' hosts may take to acknowledge GOODBYE: as long as an outage may last. */
static struct patience farewell(const struct tcp_link *link) {
    const struct comm *comm = link->comm;
    double outage_s = CONTROL_OUTAGE * comm->timeout_s + link->resume_s;
    return (struct patience){.deadline_ns = clock_now_ns() + (uint64_t)(outage_s * 1e9),
                             .interrupted = comm->interrupted,
                             .user = comm->interrupted_user};
}

static bool awaits_acknowledgement(struct tcp_link *link, uint32_t peer) {
    return port_under_way(link, peer) && !socket_ended(link->set.socket[peer]);
}

void tcp_link_close(struct tcp_link *link, bool in_order) {
    struct patience patience = {.deadline_ns = clock_now_ns() + WATCH_GRACE_NS};
    if (in_order) patience = farewell(link);
    for (uint32_t i = 0; i < link->set.count; i++) {
        uint32_t q = link->set.peer[i];
        struct tcp_lane *lane = &link->lanes[q];
        int fd = link->set.socket[q];
        bool hears = fd >= 0 && !lane->deaf;
        if (hears && in_use(lane)) hears = send_rest(lane, fd, patience);
        if (!hears || !in_order) continue;
        write_letter(lane, GOODBYE, "");
        send_rest(lane, fd, patience);
    }
    for (uint32_t i = 0; i < link->set.count && in_order; i++)
        while (awaits_acknowledgement(link, link->set.peer[i]) && clock_now_ns() < patience.deadline_ns &&
               !patience_ends(&patience))
            sleep_ns(1000000);
    free(link->lanes);
    tcp_set_close(&link->set);
}
