#include "engine/comm/tcp/rendezvous.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>

#include "engine/base/clock.h"
#include "engine/comm/tcp/callers.h"
#include "engine/comm/tcp/socket.h"
#include "engine/comm/tcp/verdict.h"

enum {
    ADDRESSES_MAX = 16, /* of one host name */
    NOTICE_S = 10,
    WORD_MS = 500 /* for a verdict of rank 0 that may be on its way */
};

static const struct names of_torchrun = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"},
                          of_runtime = {"zero_runtime.rank", "zero_runtime.size", "zero_runtime.address",
                                        "zero_runtime.port"};

/* Ranks start at different times. Each step has the full time limit, counted from the time at which rank 0 and this rank are both
 * in it. So rank 0's limit passes first, and its message says most. */
static void begin_step(struct meeting *m) {
    m->patience.deadline_ns = clock_now_ns() + (uint64_t)(m->r->timeout_s * 1e9);
}

/* Sends the places of all ranks to a rank below this one in the tree. A rank that died in the meantime is found later. */
static void send_places(struct meeting *m, uint32_t child) {
    struct patience soon = {.deadline_ns = clock_now_ns() + VERDICT_GRACE_NS};
    sealed_send(m->peers[child].socket[0], &m->peers[child].seals[0].out, m->places,
                m->r->size * sizeof *m->places, soon);
}

/* ---- rank 0 ---- */

/* Sends the verdict to every rank that came, also to ranks whose first message was wrong. `first`: the verdict of
 * step 3; if all ranks came, the place of the rank's parent follows it, or from rank 0 itself the places of all ranks. */
static void tell_all(struct meeting *m, zero_status status, bool first) {
    struct verdict verdict = verdict_make(m->key, status, m->error);
    for (uint32_t q = 1; q < m->r->size; q++) {
        struct lanes *peer = &m->peers[q];
        struct patience soon = {.deadline_ns = clock_now_ns() + VERDICT_GRACE_NS};
        if (peer->socket[0] < 0 || !verdict_send(peer->socket[0], &peer->seals[0], &verdict)) continue;
        if (status || !first) continue;
        uint32_t parent = rendezvous_parent(q);
        if (parent == 0)
            send_places(m, q);
        else
            sealed_send(peer->socket[0], &peer->seals[0].out, &m->places[parent], sizeof *m->places, soon);
    }
    for (uint32_t i = 0; i < m->caller_count && status; i++)
        if (m->callers[i].known) verdict_send(m->callers[i].answer.socket, &m->callers[i].seals, &verdict);
}

/* The addresses of rank 0's host. */
static zero_status find_leader(struct meeting *m, struct place found[ADDRESSES_MAX], uint32_t *out_count) {
    const char *why;
    *out_count = socket_resolve(m->r->host, (uint16_t)m->r->port, found, ADDRESSES_MAX, &why);
    if (*out_count) return ZERO_OK;
    return error_set(m->error, ZERO_E_ARGUMENT, "rendezvous: %s is \"%s\", which has no address: %s",
                     m->names->address, m->r->host, why);
}

/* True if rank 0's address is a loopback address on every host, so that all ranks are on this host. */
static bool all_here(const struct meeting *m, const struct place *place) {
    return socket_loops_back(place) &&
           (socket_is_address(m->r->host) || strcmp(m->r->host, "localhost") == 0);
}

/* On Debian a host's own name has the address 127.0.1.1 on that host, and another address on other hosts. */
static int listen_as_leader(const struct meeting *m, const struct place *found, uint32_t count,
                            uint32_t port) {
    bool one = count == 1 && !socket_loops_back(found);
    for (uint32_t i = 0; i < count; i++) {
        if (!one && !all_here(m, &found[i])) continue;
        int fd = socket_listen(&found[i], (uint16_t)port);
        if (fd >= 0 || errno == EADDRINUSE) return fd;
    }
    return socket_listen(NULL, (uint16_t)port);
}

/* Rank 0 has connections to all ranks for a short time, and each rank in calls of all ranks. */
static void allow_sockets(uint32_t size) {
    enum { OTHERS = 256 };
    struct rlimit limit;
    rlim_t needed = (rlim_t)RENDEZVOUS_LANES * size + OTHERS;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= needed) return;
    limit.rlim_cur = needed < limit.rlim_max ? needed : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static zero_status lead(struct meeting *m) {
    struct place found[ADDRESSES_MAX];
    uint32_t count;
    TRY(find_leader(m, found, &count));
    m->listener = listen_as_leader(m, found, count, m->r->port);
    if (m->r->size > RENDEZVOUS_MESH && m->listener >= 0)
        m->later_listener = listen_as_leader(m, found, count, 0);
    if (m->listener < 0 || (m->r->size > RENDEZVOUS_MESH && m->later_listener < 0))
        return error_set(
            m->error, ZERO_E_IO,
            "rendezvous: rank 0 cannot listen on port %u: %s: set %s to a port that is free on this host",
            m->r->port, strerror(errno), m->names->port);
    if (getrandom(&m->key, sizeof m->key, 0) != sizeof m->key) m->key = clock_now_ns();
    m->key |= 1; /* never 0 */
    if (m->later_listener >= 0) m->places[0].port = socket_port(m->later_listener);
    zero_status status = callers_await(m, AWAIT_FIRST);
    tell_all(m, status, true);
    if (status) return status;
    begin_step(m);
    status = callers_await(m, AWAIT_ALL);
    if (status == ZERO_OK) callers_listen_later(m);
    tell_all(m, status, false);
    return status;
}

/* ---- the other ranks ---- */

static zero_status report_no_leader(struct meeting *m) {
    error_set(m->error, ZERO_E_PEER,
              "rendezvous: rank %u: the program that listens at %s:%u does not answer as rank 0 does: %s: "
              "rank 0 ended, or another program uses that port: if so, set %s to a free one",
              m->r->rank, m->r->host, m->r->port, strerror(errno), m->names->port);
    m->error->rank = 0;
    return ZERO_E_PEER;
}

/* After rank 0 has taken this rank: no other program is at that port. */
static zero_status report_leader_gone(struct meeting *m) {
    char where[WHERE_BYTES];
    error_set(m->error, ZERO_E_PEER,
              "rendezvous: rank %u: rank 0 (%s) ended, or does not answer: %s: see its log", m->r->rank,
              callers_where(m, 0, where), strerror(errno));
    m->error->rank = 0;
    return ZERO_E_PEER;
}

static int call(struct meeting *m, const struct place *place, struct patience patience) {
    m->called_ns = clock_now_ns();
    return socket_call(place, patience);
}

/* The other end closed the connection, and this rank may have been slow: see dismiss_slow. */
static bool dismissed(const struct meeting *m, enum greeted greeted) {
    bool closed = greeted == GREETED_LOST && (errno == ECONNRESET || errno == EPIPE);
    return closed && clock_now_ns() - m->called_ns >= SILENT_NS;
}

/* Greets rank `to` over the connection of this lane. Rank `to` dismisses a rank that gets no CPU time for a while, as it dismisses
 * a stranger. The dismissed rank calls again, a few times: rank `to` still listens, unless its process has ended. */
static enum greeted greet(struct meeting *m, uint32_t to, uint32_t lane) {
    enum { CALLS = 5 };
    struct hello hello = {
        .meeting = m->key, .rank = m->r->rank, .to = to, .size = m->r->size, .lane = (uint16_t)lane};
    struct lanes *peer = &m->peers[to];
    for (int calls = 1; peer->socket[lane] >= 0; calls++) {
        hello.port = socket_port(m->listener);
        enum greeted greeted =
            handshake_call(peer->socket[lane], &m->r->secret, &hello, m->patience, &peer->seals[lane]);
        if (calls == CALLS || !dismissed(m, greeted)) return greeted;
        struct patience soon = m->patience;
        uint64_t soon_ns = clock_now_ns() + HANDSHAKE_S * 1000000000ull;
        if (soon_ns < soon.deadline_ns) soon.deadline_ns = soon_ns;
        socket_close(peer->socket[lane]);
        peer->socket[lane] = call(m, &m->places[to], soon);
    }
    return GREETED_LOST;
}

/* Ranks above 0 listen at ports that the kernel chooses: no variable says where. */
static zero_status report_unreached(struct meeting *m, uint32_t to) {
    char where[WHERE_BYTES], hint[160] = "", *why = strerror(errno);
    if (to == 0)
        snprintf(hint, sizeof hint, ", whether %s and %s say where rank 0 listens", m->names->address,
                 m->names->port);
    error_set(m->error, ZERO_E_PEER,
              "rendezvous: rank %u of %u cannot reach rank %u (%s) within %g s: %s: see whether that rank "
              "runs%s, and whether a firewall between them closes %s",
              m->r->rank, m->r->size, to, callers_where(m, to, where), m->r->timeout_s, why, hint,
              to ? "ports: ranks above 0 listen at any free port" : "that port");
    m->error->rank = (int32_t)to;
    return ZERO_E_PEER;
}

/* Greets rank `to` over `fd`; without a connection, reports why there is none. */
static zero_status say(struct meeting *m, uint32_t to, uint32_t lane, int fd) {
    char where[WHERE_BYTES], awaited[32];
    m->peers[to].socket[lane] = fd;
    enum greeted greeted = greet(m, to, lane);
    fd = m->peers[to].socket[lane];
    if (greeted == GREETED) return ZERO_OK;
    if (greeted == GREETED_REFUSED)
        return error_set(m->error, ZERO_E_ARGUMENT,
                         "rendezvous: rank %u %s, and rank %u, which listens at %s, has another or none: "
                         "give all ranks of a job the same ZERO_JOB_SECRET, and each job its own %s",
                         m->r->rank, m->r->secret.given ? "has a job secret" : "has no job secret", to,
                         callers_where(m, to, where), m->names->port);
    if (fd >= 0 && to == 0 && lane == 0 && errno != ECANCELED) return report_no_leader(m);
    if (errno != ECANCELED) return report_unreached(m, to);
    snprintf(awaited, sizeof awaited, "rank %u", to);
    return callers_interrupted(m, awaited, to);
}

/* Connects to the first address of rank 0's host that answers. Other addresses may belong to interfaces that are
 * down. */
static zero_status call_leader(struct meeting *m, int *out_socket) {
    enum { TRY_NS = 200000000 };
    struct place found[ADDRESSES_MAX];
    uint32_t count;
    TRY(find_leader(m, found, &count));
    *out_socket = -1;
    for (uint32_t i = 0; *out_socket < 0; i = (i + 1) % count) {
        uint64_t now_ns = clock_now_ns();
        struct patience soon = m->patience;
        if (count > 1 && now_ns + TRY_NS < soon.deadline_ns) soon.deadline_ns = now_ns + TRY_NS;
        m->places[0] = found[i];
        *out_socket = call(m, &found[i], soon);
        if (*out_socket < 0 && (count == 1 || errno == ECANCELED)) return ZERO_OK;
        if (now_ns >= m->patience.deadline_ns) return ZERO_OK;
    }
    return ZERO_OK;
}

/* A rank on rank 0's own host may have connected over the loopback address. Other ranks reach it at rank 0's
 * address. */
static void correct_place(struct place *place, const struct place *leader) {
    uint16_t port = place->port;
    if (socket_loops_back(place)) *place = *leader, place->port = port;
}

/* `first`: the verdict whether all ranks have come. Else: whether all ranks have all connections. */
static zero_status hear_verdict(struct meeting *m, bool first) {
    struct verdict verdict;
    struct lanes *peer = &m->peers[0];
    struct patience patience = m->patience;
    patience.interrupted = callers_look;
    patience.deadline_ns +=
        2 * VERDICT_GRACE_NS; /* rank 0's own limit ends first, and its message says more */
    bool heard = verdict_receive(peer->socket[0], &peer->seals[0], m->r->size, &verdict, patience);
    if (heard && verdict.code) return verdict_take(&verdict, m->error);
    uint32_t parent = rendezvous_parent(m->r->rank);
    if (heard && first) {
        m->key = verdict.key;
        heard = parent == 0 || sealed_receive(peer->socket[0], &peer->seals[0].in, &m->places[parent],
                                              sizeof *m->places, patience);
        if (parent) correct_place(&m->places[parent], &m->places[0]);
    }
    if (heard) return ZERO_OK;
    if (errno == ECANCELED) return callers_interrupted(m, "rank 0", 0);
    return errno == EPROTO ? report_no_leader(m) : report_leader_gone(m);
}

/* True if rank 0's last verdict has arrived, and says that all ranks have met. An interruption then comes too late. */
static bool has_met(struct meeting *m) {
    struct verdict verdict;
    struct lanes *leader = &m->peers[0];
    struct patience soon = {.deadline_ns = clock_now_ns() + WORD_MS * 1000000ull};
    struct pollfd word = {.fd = leader->socket[0], .events = POLLIN};
    return poll(&word, 1, 0) == 1 && !verdict_ends(leader->socket[0]) &&
           verdict_receive(leader->socket[0], &leader->seals[0], m->r->size, &verdict, soon);
}

/* True if rank 0 has sent a failure, or has ended. A call of this rank may have failed because another rank received that failure
 * first, and closed its connections. */
static bool leader_tells(const struct meeting *m, zero_status status) {
    struct pollfd word = {.fd = m->peers[0].socket[0], .events = POLLIN};
    if (status && status != ZERO_E_INTERRUPTED) poll(&word, 1, WORD_MS);
    return verdict_ends(m->peers[0].socket[0]);
}

/* Listens at the address from which this rank reaches rank 0: the other ranks learn that one. A rank on rank 0's host that
 * reached it over the loopback interface listens at all its addresses: see place_neighbours. */
static int listen_beside(const struct meeting *m, int leader) {
    struct place own = socket_own(leader);
    int fd = socket_loops_back(&own) && !all_here(m, &own) ? -1 : socket_listen(&own, 0);
    return fd >= 0 ? fd : socket_listen(NULL, 0);
}

/* For patience.interrupted, while a rank waits for other ranks than rank 0. */
static bool look_at_leader(void *user) {
    const struct meeting *m = user;
    return verdict_ends(m->peers[0].socket[0]) || callers_look(user);
}

/* Receives the places of all ranks from this rank's parent, and passes them on. */
static zero_status pass_places(struct meeting *m) {
    uint32_t parent = rendezvous_parent(m->r->rank);
    struct lanes *peer = &m->peers[parent];
    struct place leader = m->places[0];
    if (parent) TRY(say(m, parent, 0, call(m, &m->places[parent], m->patience)));
    if (!sealed_receive(peer->socket[0], &peer->seals[0].in, m->places, m->r->size * sizeof *m->places,
                        m->patience))
        return parent ? report_unreached(m, parent) : report_leader_gone(m);
    zero_status status = callers_await(m, AWAIT_CHILDREN);
    for (uint32_t q = m->r->rank + 1; q < m->r->size && status == ZERO_OK; q++)
        if (rendezvous_parent(q) == m->r->rank) send_places(m, q);
    for (uint32_t q = 1; q < m->r->size; q++) correct_place(&m->places[q], &leader);
    m->later_port = m->places[0].port;
    m->places[0] = leader;
    return status;
}

/* The other connections to rank 0 come last: they tell rank 0 that this rank has all others. */
static zero_status connect_all(struct meeting *m) {
    m->patience.interrupted = look_at_leader;
    zero_status status = pass_places(m);
    for (uint32_t q = 1; q < m->r->rank; q++)
        for (uint32_t lane = 0; lane < RENDEZVOUS_LANES && status == ZERO_OK; lane++)
            if (m->peers[q].socket[lane] < 0 && rendezvous_neighbours(m->r->size, m->r->rank, q))
                status = say(m, q, lane, call(m, &m->places[q], m->patience));
    if (status == ZERO_OK) status = callers_await(m, AWAIT_ALL);
    for (uint32_t lane = 1; lane < RENDEZVOUS_LANES && status == ZERO_OK; lane++)
        status = say(m, 0, lane, call(m, &m->places[0], m->patience));
    return status;
}

/* Call it once rank 0 has taken this rank. */
static zero_status meet(struct meeting *m) {
    struct lanes *leader = &m->peers[0];
    zero_status status = hear_verdict(m, true);
    bool all_came = m->key != 0;
    if (status == ZERO_OK) {
        begin_step(m);
        status = connect_all(m);
        bool connected = status == ZERO_OK, told = leader_tells(m, status);
        /* rank 0's verdict counts, not the failures that followed from it here */
        if (told) error_clear(m->error);
        if (told || status == ZERO_OK) status = hear_verdict(m, false);
        if (status == ZERO_E_INTERRUPTED && connected && has_met(m)) error_clear(m->error), status = ZERO_OK;
    }
    if (status == ZERO_E_INTERRUPTED || (status && all_came)) {
        struct verdict verdict = verdict_make(m->key, status, m->error);
        verdict_send(leader->socket[0], &leader->seals[0], &verdict);
    }
    return status;
}

static zero_status follow(struct meeting *m) {
    int leader;
    zero_status status = call_leader(m, &leader);
    if (status) return status;
    if (leader >= 0) m->listener = listen_beside(m, leader);
    if (leader >= 0 && m->listener < 0)
        status = error_set(m->error, ZERO_E_IO, "rendezvous: rank %u cannot listen on any port: %s",
                           m->r->rank, strerror(errno));
    if (status) socket_close(leader);
    if (status == ZERO_OK) status = say(m, 0, 0, leader);
    if (status) return status;
    begin_step(m);
    return meet(m);
}

/* ---- both ---- */

static void close_lane(struct lanes *peer, uint32_t lane) {
    if (peer->socket[lane] >= 0) socket_close(peer->socket[lane]);
    peer->socket[lane] = -1;
    atomic_store(&peer->made[lane], false);
}

static void close_lanes(struct lanes *peer) {
    for (uint32_t lane = 0; lane < RENDEZVOUS_LANES; lane++) close_lane(peer, lane);
}

void rendezvous_close(struct lanes *peers, uint32_t size) {
    for (uint32_t q = 0; q < size; q++) close_lanes(&peers[q]);
}

/* Only neighbours stay connected. */
static void part(struct meeting *m) {
    m->places[0].port = m->later_port;
    for (uint32_t q = 0; q < m->r->size; q++) {
        if (!rendezvous_neighbours(m->r->size, m->r->rank, q)) close_lanes(&m->peers[q]);
        for (uint32_t lane = 0; lane < RENDEZVOUS_LANES; lane++)
            atomic_store(&m->peers[q].made[lane], m->peers[q].socket[lane] >= 0);
    }
}

zero_status rendezvous(const struct rendezvous *r, struct lanes *out_peers, uint64_t *out_key,
                       struct meeting **out_meeting, struct zero_error *error) {
    struct meeting *m = calloc(1, sizeof *m);
    if (m) m->places = calloc(r->size, sizeof *m->places);
    if (!m || !m->places) {
        free(m);
        return error_set(error, ZERO_E_MEMORY, "rendezvous: no memory for %u ranks", r->size);
    }
    m->own = *r, m->r = &m->own;
    m->names = r->by_runtime ? &of_runtime : &of_torchrun;
    m->peers = out_peers;
    m->listener = m->later_listener = -1;
    if (r->size > RENDEZVOUS_MESH) allow_sockets(r->size);
    m->error = error;
    m->patience = (struct patience){.interrupted = callers_look, .user = m};
    begin_step(m);
    m->notice_ns = clock_now_ns() + (uint64_t)((r->notice_s > 0 ? r->notice_s : NOTICE_S) * 1e9);
    for (uint32_t q = 0; q < r->size; q++)
        for (uint32_t lane = 0; lane < RENDEZVOUS_LANES; lane++) out_peers[q].socket[lane] = -1;
    zero_status status = r->rank == 0 ? lead(m) : follow(m);
    if (status)
        rendezvous_close(out_peers, r->size);
    else
        part(m), *out_key = m->key;
    bool keeps = status == ZERO_OK && out_meeting && r->size > RENDEZVOUS_MESH;
    if (out_meeting) *out_meeting = keeps ? m : NULL;
    m->error = &m->later;
    if (!keeps) rendezvous_end(m);
    return status;
}

void rendezvous_end(struct meeting *m) {
    if (!m) return;
    callers_close(m);
    free(m->places);
    free(m);
}

/* ---- later connections ---- */

zero_status rendezvous_serve(struct meeting *m, struct zero_error *error) {
    zero_status status = callers_serve(m);
    if (status) *error = m->later, error->rank = (int32_t)m->r->rank;
    return status;
}

uint32_t rendezvous_made(const struct meeting *m) { return atomic_load(&m->made); }

bool rendezvous_reach(struct meeting *m, uint32_t rank, struct patience patience) {
    struct lanes *peer = &m->peers[rank];
    m->patience = patience;
    for (uint32_t lane = 0; lane < RENDEZVOUS_LANES && rank < m->r->rank; lane++) {
        if (atomic_load(&peer->made[lane])) continue;
        peer->socket[lane] = call(m, &m->places[rank], patience);
        if (peer->socket[lane] < 0) return false;
        enum greeted greeted = greet(m, rank, lane);
        if (greeted != GREETED) {
            int why = greeted == GREETED_REFUSED ? EACCES : errno;
            close_lane(peer, lane);
            return errno = why, false;
        }
        atomic_store(&peer->made[lane], true);
        atomic_fetch_add(&m->made, 1);
    }
    return true;
}
