#include "engine/comm/rendezvous.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/comm/socket.h"

enum {
    CALLERS_MAX = 256,  /* connections that have not yet proved that they are a rank's */
    ADDRESSES_MAX = 16, /* of one host name */
    NAMED_MAX = 8,      /* missing ranks that one message names */
    NAMES_BYTES = 128,
    NOTICE_S = 10,
    GRACE_NS = 2000000000,
    SILENT_NS = 200000000,   /* for a caller without a hello while other callers wait */
    UNPROVEN_NS = 2000000000 /* for a caller without a proof while other callers wait */
};

/* Rank 0 sends it to all ranks that came, and its tag. On success, the `places` of all ranks follow, and their tag. */
struct verdict {
    uint64_t key;
    uint32_t code;
    char message[1004];
};

/* The variable or option that gives this rank its place. Messages name it. */
struct names {
    const char *rank, *size, *address, *port;
};

struct caller {
    struct answer answer;
    struct seals seals; /* once it is known */
    bool known;
};

struct meeting {
    const struct rendezvous *r;
    const struct names *names;
    struct lanes *peers;
    struct place *places; /* where the ranks listen */
    int listener;
    uint64_t key;
    struct patience patience;
    uint64_t called_ns; /* when this rank last began to connect to another one */
    uint64_t notice_ns; /* the time at which this rank logs that it waits; 0: it has */
    /* Connections that were closed; of these, the ones that sent a hello and the proof of another secret. */
    uint32_t strangers, impostors;
    bool no_sockets; /* the last try to accept a connection found that this process has no more */
    uint32_t caller_count;
    struct caller callers[CALLERS_MAX];
    struct zero_error *error;
};

static const struct names of_torchrun = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"},
                          of_runtime = {"zero_runtime.rank", "zero_runtime.size", "zero_runtime.address",
                                        "zero_runtime.port"};

/* ---- receiving connections ---- */

static void hang_up(struct meeting *m, uint32_t caller) {
    close(m->callers[caller].answer.socket);
    m->callers[caller] = m->callers[--m->caller_count];
}

static void keep(struct meeting *m, uint32_t caller, uint32_t lane) {
    const struct caller *c = &m->callers[caller];
    struct lanes *peer = &m->peers[c->answer.hello.rank];
    peer->socket[lane] = c->answer.socket;
    peer->seals[lane] = c->seals;
    m->callers[caller] = m->callers[--m->caller_count];
}

/* Takes a rank's first connection to rank 0. Two processes with the same rank, or a different number of ranks, end the
 * rendezvous for all ranks. */
static zero_status take_first(struct meeting *m, uint32_t caller) {
    const struct hello *hello = &m->callers[caller].answer.hello;
    if (hello->size != m->r->size || hello->rank >= m->r->size)
        return error_set(
            m->error, ZERO_E_ARGUMENT,
            "rendezvous: rank %u says that there are %u ranks, where rank 0 says %u: start all with the "
            "same %s",
            hello->rank, hello->size, m->r->size, m->names->size);
    if (hello->rank == 0 || m->peers[hello->rank].socket[0] >= 0)
        return error_set(m->error, ZERO_E_ARGUMENT,
                         "rendezvous: two processes are rank %u of %u at %s:%u: give each process its own "
                         "%s, and each job its own %s",
                         hello->rank, m->r->size, m->r->host, m->r->port, m->names->rank, m->names->port);
    m->places[hello->rank] = socket_peer(m->callers[caller].answer.socket);
    m->places[hello->rank].port = hello->port;
    keep(m, caller, 0);
    return ZERO_OK;
}

static void dismiss(struct meeting *m, uint32_t caller) {
    m->strangers++;
    hang_up(m, caller);
}

/* A caller that knows the secret. It is a stranger, too, if it belongs to an earlier job with the same secret, or calls another
 * rank: a network between the ranks could else exchange their connections. */
static zero_status take(struct meeting *m, uint32_t caller, bool first) {
    const struct hello *hello = &m->callers[caller].answer.hello;
    bool mine = hello->meeting == (first ? 0 : m->key) && hello->to == m->r->rank &&
                hello->lane < RENDEZVOUS_LANES && hello->port;
    if (mine && first) return take_first(m, caller);
    if (mine && hello->rank > m->r->rank && hello->rank < m->r->size &&
        m->peers[hello->rank].socket[hello->lane] < 0)
        keep(m, caller, hello->lane);
    else
        dismiss(m, caller);
    return ZERO_OK;
}

/* Reads the bytes that this caller has sent so far. */
static zero_status hear(struct meeting *m, uint32_t caller, bool first) {
    struct caller *c = &m->callers[caller];
    enum handshake_state heard = handshake_hear(&c->answer, &m->r->secret, &c->seals);
    c->known = heard == HEARD_ALL;
    if (c->known) return take(m, caller, first);
    m->impostors += heard == HEARD_WRONG_SECRET;
    if (heard != HEARD_PART) dismiss(m, caller);
    return ZERO_OK;
}

static uint32_t missing(const struct meeting *m, uint32_t lanes) {
    uint32_t count = 0;
    for (uint32_t q = m->r->rank + 1; q < m->r->size; q++)
        for (uint32_t lane = 0; lane < lanes; lane++) count += m->peers[q].socket[lane] < 0;
    return count;
}

/* "ranks 2, 4" */
static void name_missing(const struct meeting *m, uint32_t lanes, char names[NAMES_BYTES]) {
    uint32_t absent = 0, count = 0;
    for (uint32_t q = m->r->rank + 1; q < m->r->size; q++) count += m->peers[q].socket[lanes - 1] < 0;
    size_t used = (size_t)snprintf(names, NAMES_BYTES, count > 1 ? "ranks " : "rank ");
    for (uint32_t q = m->r->rank + 1; q < m->r->size; q++) {
        if (m->peers[q].socket[lanes - 1] >= 0) continue;
        if (absent++ < NAMED_MAX)
            used += (size_t)snprintf(names + used, NAMES_BYTES - used, "%s%u", absent > 1 ? ", " : "", q);
    }
    if (absent > NAMED_MAX) snprintf(names + used, NAMES_BYTES - used, " and %u more", absent - NAMED_MAX);
}

/* Once: a rank that waits in silence looks as if it hung. */
static void tell_waiting(struct meeting *m) {
    char names[NAMES_BYTES] = "rank 0";
    bool leads = m->r->rank == 0;
    if (!m->r->log || !m->notice_ns || clock_now_ns() < m->notice_ns) return;
    if (leads ? !missing(m, 1) : m->peers[0].socket[0] >= 0) return;
    m->notice_ns = 0;
    if (leads) name_missing(m, 1, names);
    log_line(m->r->log, ZERO_LOG_WARN, "rank %u waits for %s of %u%s (%s:%u), for %g s at most", m->r->rank,
             names, m->r->size, leads ? " to connect" : " to answer", m->r->host, m->r->port,
             m->r->timeout_s);
}

static bool look(void *user) {
    struct meeting *m = user;
    tell_waiting(m);
    return m->r->interrupted && m->r->interrupted(m->r->interrupted_user);
}

static zero_status report_missing(struct meeting *m, uint32_t lanes) {
    char names[NAMES_BYTES], strangers[160] = "";
    name_missing(m, lanes, names);
    if (m->strangers)
        snprintf(strangers, sizeof strangers, "; %u other connections were not from ranks", m->strangers);
    if (m->impostors)
        snprintf(strangers, sizeof strangers,
                 "; %u of %u other connections had another ZERO_JOB_SECRET, or none", m->impostors,
                 m->strangers);
    error_set(m->error, ZERO_E_PEER,
              "rendezvous: %s of %u did not connect to rank %u (%s:%u) within %g s%s: see their logs, and "
              "whether their hosts can reach this one",
              names, m->r->size, m->r->rank, m->r->host, m->r->port, m->r->timeout_s, strangers);
    for (uint32_t q = m->r->size; q-- > m->r->rank + 1;)
        if (m->peers[q].socket[lanes - 1] < 0) m->error->rank = (int32_t)q;
    return ZERO_E_PEER;
}

static zero_status report_interrupted(struct meeting *m, const char *awaited) {
    return error_set(m->error, ZERO_E_INTERRUPTED,
                     "rendezvous: interrupted while rank %u waited for %s of %u (%s:%u)", m->r->rank, awaited,
                     m->r->size, m->r->host, m->r->port);
}

/* Accepts connections up to CALLERS_MAX; the other connections wait. Also those for which there are no more sockets wait, until
 * the callers here have proved themselves or are dismissed: strangers alone cannot end the job. */
static zero_status admit(struct meeting *m) {
    while (m->caller_count < CALLERS_MAX) {
        int fd = socket_accept(m->listener);
        m->no_sockets = fd < 0 && (errno == EMFILE || errno == ENFILE);
        if (m->no_sockets && m->caller_count == 0)
            return error_set(
                m->error, ZERO_E_IO,
                "rendezvous: rank %u: no more sockets: %s: %u ranks need %u each: raise ulimit -n",
                m->r->rank, strerror(errno), m->r->size, RENDEZVOUS_LANES * m->r->size);
        if (fd < 0) return ZERO_OK;
        m->callers[m->caller_count++] = (struct caller){.answer = {.socket = fd, .since_ns = clock_now_ns()}};
    }
    return ZERO_OK;
}

static bool crowded(const struct meeting *m) { return m->caller_count == CALLERS_MAX || m->no_sockets; }

/* Closes connections that take too long: a rank sends its hello at once, and its proof after one round trip. */
static void dismiss_slow(struct meeting *m) {
    bool others_wait = crowded(m);
    uint64_t now_ns = clock_now_ns();
    for (uint32_t i = m->caller_count; i-- > 0;) {
        const struct answer *answer = &m->callers[i].answer;
        uint64_t limit_ns = HANDSHAKE_S * 1000000000ull;
        if (others_wait) limit_ns = handshake_has_hello(answer) ? UNPROVEN_NS : SILENT_NS;
        if (now_ns - answer->since_ns >= limit_ns) dismiss(m, i);
    }
}

/* Waits until all ranks above this rank have connected, on `lanes` lanes. */
static zero_status await_callers(struct meeting *m, uint32_t lanes, bool first) {
    const uint64_t deadline_ns = m->patience.deadline_ns;
    zero_status status = ZERO_OK;
    while (status == ZERO_OK && missing(m, lanes)) {
        struct pollfd polls[CALLERS_MAX + 1];
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= deadline_ns) return report_missing(m, lanes);
        if (patience_ends(&m->patience)) {
            char names[NAMES_BYTES];
            name_missing(m, lanes, names);
            return report_interrupted(m, names);
        }
        uint64_t left_ms = (deadline_ns - now_ns) / 1000000 + 1;
        for (uint32_t i = 0; i < m->caller_count; i++)
            polls[i] = (struct pollfd){.fd = m->callers[i].answer.socket, .events = POLLIN};
        polls[m->caller_count] = (struct pollfd){.fd = crowded(m) ? -1 : m->listener, .events = POLLIN};
        poll(polls, m->caller_count + 1, left_ms > SOCKET_LOOK_MS ? SOCKET_LOOK_MS : (int)left_ms);
        for (uint32_t i = m->caller_count; i-- > 0 && status == ZERO_OK;) status = hear(m, i, first);
        dismiss_slow(m);
        if (status == ZERO_OK) status = admit(m);
    }
    return status;
}

/* ---- rank 0 ---- */

static bool send_sealed(int socket, struct seal *seal, const void *data, size_t bytes,
                        struct patience patience) {
    struct tag tag = seal_next(seal, &(struct text){data, bytes}, 1);
    return socket_send(socket, data, bytes, patience) && socket_send(socket, &tag, sizeof tag, patience);
}

static bool receive_sealed(int socket, struct seal *seal, void *data, size_t bytes,
                           struct patience patience) {
    struct tag tag;
    if (!socket_receive(socket, data, bytes, patience) || !socket_receive(socket, &tag, sizeof tag, patience))
        return false;
    errno = EPROTO;
    return seal_fits(seal, &(struct text){data, bytes}, 1, &tag);
}

static void tell(const struct meeting *m, int socket, struct seals *seals, const struct verdict *verdict) {
    struct patience brief = {.deadline_ns = clock_now_ns() + GRACE_NS};
    if (send_sealed(socket, &seals->out, verdict, sizeof *verdict, brief) && verdict->code == ZERO_OK)
        send_sealed(socket, &seals->out, m->places, m->r->size * sizeof *m->places, brief);
}

/* Tells every rank that came, also the ranks whose first message was wrong. A rank that died in the meantime is found
 * later. */
static void tell_all(struct meeting *m, zero_status status) {
    struct verdict verdict = {.key = m->key, .code = (uint32_t)status};
    if (status) snprintf(verdict.message, sizeof verdict.message, "%.990s", m->error->message);
    for (uint32_t q = 1; q < m->r->size; q++)
        if (m->peers[q].socket[0] >= 0) tell(m, m->peers[q].socket[0], &m->peers[q].seals[0], &verdict);
    for (uint32_t i = 0; i < m->caller_count && status; i++)
        if (m->callers[i].known) tell(m, m->callers[i].answer.socket, &m->callers[i].seals, &verdict);
}

/* The addresses of rank 0's host. */
static zero_status find_leader(struct meeting *m, struct place found[ADDRESSES_MAX], uint32_t *out_count) {
    const char *why;
    *out_count = socket_resolve(m->r->host, (uint16_t)m->r->port, found, ADDRESSES_MAX, &why);
    if (*out_count) return ZERO_OK;
    return error_set(m->error, ZERO_E_ARGUMENT, "rendezvous: %s is \"%s\", which has no address: %s",
                     m->names->address, m->r->host, why);
}

/* All ranks are on this host: the host's name leads nowhere else, from wherever one asks. */
static bool all_here(const struct meeting *m, const struct place *place) {
    return socket_loops_back(place) &&
           (socket_is_address(m->r->host) || strcmp(m->r->host, "localhost") == 0);
}

/* Debian gives a host's own name the address 127.0.1.1 on that host: the other hosts find another one. */
static int listen_as_leader(const struct meeting *m, const struct place *found, uint32_t count) {
    bool one = count == 1 && !socket_loops_back(found);
    for (uint32_t i = 0; i < count; i++) {
        if (!one && !all_here(m, &found[i])) continue;
        int fd = socket_listen(&found[i], (uint16_t)m->r->port);
        if (fd >= 0 || errno == EADDRINUSE) return fd;
    }
    return socket_listen(NULL, (uint16_t)m->r->port);
}

static zero_status lead(struct meeting *m) {
    struct place found[ADDRESSES_MAX];
    uint32_t count;
    zero_status status = find_leader(m, found, &count);
    if (status) return status;
    m->listener = listen_as_leader(m, found, count);
    if (m->listener < 0)
        return error_set(
            m->error, ZERO_E_IO,
            "rendezvous: rank 0 cannot listen on port %u: %s: set %s to a port that is free on this host",
            m->r->port, strerror(errno), m->names->port);
    if (getrandom(&m->key, sizeof m->key, 0) != sizeof m->key) m->key = clock_now_ns();
    m->key |= 1; /* never 0 */
    status = await_callers(m, 1, true);
    tell_all(m, status);
    return status ? status : await_callers(m, RENDEZVOUS_LANES, false);
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

static int call(struct meeting *m, const struct place *place, struct patience patience) {
    m->called_ns = clock_now_ns();
    return socket_call(place, patience);
}

/* The other end closed the connection, and this rank may have been slow: see dismiss_slow. */
static bool dismissed(const struct meeting *m, enum greeted greeted) {
    bool closed = greeted == GREETED_LOST && (errno == ECONNRESET || errno == EPIPE);
    return closed && clock_now_ns() - m->called_ns >= SILENT_NS;
}

/* Greets rank `to` over the connection of this lane. A rank that gets no CPU time for a while is dismissed as a stranger is; it calls
 * again, but not for long: rank `to` listens, unless its process has ended. */
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
        struct patience brief = m->patience;
        uint64_t soon_ns = clock_now_ns() + HANDSHAKE_S * 1000000000ull;
        if (soon_ns < brief.deadline_ns) brief.deadline_ns = soon_ns;
        close(peer->socket[lane]);
        peer->socket[lane] = call(m, &m->places[to], brief);
    }
    return GREETED_LOST;
}

/* Greets rank `to` over `fd`; without a connection, reports why there is none. */
static zero_status say(struct meeting *m, uint32_t to, uint32_t lane, int fd) {
    m->peers[to].socket[lane] = fd;
    enum greeted greeted = greet(m, to, lane);
    fd = m->peers[to].socket[lane];
    if (greeted == GREETED) return ZERO_OK;
    if (greeted == GREETED_REFUSED)
        return error_set(m->error, ZERO_E_ARGUMENT,
                         "rendezvous: rank %u %s, and rank %u, which listens at %s:%u, has another or none: "
                         "give all ranks of a job "
                         "the same ZERO_JOB_SECRET, and each job its own %s",
                         m->r->rank, m->r->secret.given ? "has a job secret" : "has no job secret", to,
                         m->r->host, m->r->port, m->names->port);
    if (fd >= 0 && to == 0 && lane == 0 && errno != ECANCELED) return report_no_leader(m);
    if (errno == ECANCELED) {
        char awaited[32];
        snprintf(awaited, sizeof awaited, "rank %u", to);
        return report_interrupted(m, awaited);
    }
    error_set(
        m->error, ZERO_E_PEER,
        "rendezvous: rank %u of %u cannot reach rank %u (%s:%u) within %g s: %s: see whether that rank runs, "
        "whether %s and %s say where rank 0 listens, and whether a firewall is between them",
        m->r->rank, m->r->size, to, m->r->host, m->r->port, m->r->timeout_s, strerror(errno),
        m->names->address, m->names->port);
    m->error->rank = (int32_t)to;
    return ZERO_E_PEER;
}

/* Connects to the first address of rank 0's host that answers. Other addresses may belong to interfaces that are
 * down. */
static zero_status call_leader(struct meeting *m, int *out_socket) {
    enum { TRY_NS = 200000000 };
    struct place found[ADDRESSES_MAX];
    uint32_t count;
    zero_status status = find_leader(m, found, &count);
    if (status) return status;
    *out_socket = -1;
    for (uint32_t i = 0; *out_socket < 0; i = (i + 1) % count) {
        uint64_t now_ns = clock_now_ns();
        struct patience brief = m->patience;
        if (count > 1 && now_ns + TRY_NS < brief.deadline_ns) brief.deadline_ns = now_ns + TRY_NS;
        m->places[0] = found[i];
        *out_socket = call(m, &found[i], brief);
        if (*out_socket < 0 && (count == 1 || errno == ECANCELED)) return ZERO_OK;
        if (now_ns >= m->patience.deadline_ns) return ZERO_OK;
    }
    return ZERO_OK;
}

/* A rank on rank 0's own host may have connected over the loopback address. Other ranks reach it at rank 0's
 * address. */
static void place_neighbours(struct meeting *m, struct place leader) {
    for (uint32_t q = 1; q < m->r->size; q++) {
        uint16_t port = m->places[q].port;
        if (socket_loops_back(&m->places[q])) m->places[q] = leader, m->places[q].port = port;
    }
    m->places[0] = leader;
}

static zero_status hear_verdict(struct meeting *m) {
    struct verdict verdict;
    struct patience patience = m->patience;
    patience.deadline_ns += GRACE_NS; /* rank 0's own limit ends first, and its message says more */
    int fd = m->peers[0].socket[0];
    struct seal *seal = &m->peers[0].seals[0].in;
    bool heard = receive_sealed(fd, seal, &verdict, sizeof verdict, patience);
    if (heard && verdict.code && error_code_known(verdict.code)) {
        verdict.message[sizeof verdict.message - 1] = 0;
        return error_set(m->error, (zero_status)verdict.code, "%s", verdict.message);
    }
    if (heard) errno = EPROTO;
    if (heard && verdict.code == ZERO_OK) {
        struct place leader = m->places[0];
        m->key = verdict.key;
        heard = receive_sealed(fd, seal, m->places, m->r->size * sizeof *m->places, patience);
        place_neighbours(m, leader);
        if (heard) return ZERO_OK;
    }
    return errno == ECANCELED ? report_interrupted(m, "rank 0") : report_no_leader(m);
}

/* Listens at the address from which this rank reaches rank 0: the other ranks learn that one. A rank on rank 0's host that
 * reached it over the loopback interface listens at all its addresses: see place_neighbours. */
static int listen_beside(const struct meeting *m, int leader) {
    struct place own = socket_own(leader);
    int fd = socket_loops_back(&own) && !all_here(m, &own) ? -1 : socket_listen(&own, 0);
    return fd >= 0 ? fd : socket_listen(NULL, 0);
}

static zero_status follow(struct meeting *m) {
    int leader;
    zero_status status = call_leader(m, &leader);
    if (status) return status;
    if (leader >= 0) m->listener = listen_beside(m, leader);
    if (leader >= 0 && m->listener < 0)
        status = error_set(m->error, ZERO_E_IO, "rendezvous: rank %u cannot listen on any port: %s",
                           m->r->rank, strerror(errno));
    if (status) close(leader);
    if (status == ZERO_OK) status = say(m, 0, 0, leader);
    if (status == ZERO_OK) status = hear_verdict(m);
    for (uint32_t q = 0; q < m->r->rank; q++)
        for (uint32_t lane = q == 0; lane < RENDEZVOUS_LANES && status == ZERO_OK; lane++)
            status = say(m, q, lane, call(m, &m->places[q], m->patience));
    return status ? status : await_callers(m, RENDEZVOUS_LANES, false);
}

/* ---- both ---- */

void rendezvous_close(struct lanes *peers, uint32_t size) {
    for (uint32_t q = 0; q < size; q++)
        for (uint32_t lane = 0; lane < RENDEZVOUS_LANES; lane++) {
            if (peers[q].socket[lane] >= 0) close(peers[q].socket[lane]);
            peers[q].socket[lane] = -1;
        }
}

zero_status rendezvous(const struct rendezvous *r, struct lanes *out_peers, uint64_t *out_key,
                       struct zero_error *error) {
    struct meeting *m = calloc(1, sizeof *m);
    struct place *places = calloc(r->size, sizeof *places);
    zero_status status = ZERO_OK;
    if (!m || !places) {
        status = error_set(error, ZERO_E_MEMORY, "rendezvous: no memory for %u ranks", r->size);
        goto release;
    }
    *m = (struct meeting){.r = r,
                          .names = r->by_runtime ? &of_runtime : &of_torchrun,
                          .peers = out_peers,
                          .places = places,
                          .listener = -1,
                          .error = error};
    m->patience = (struct patience){
        .deadline_ns = clock_now_ns() + (uint64_t)(r->timeout_s * 1e9), .interrupted = look, .user = m};
    m->notice_ns = clock_now_ns() + (uint64_t)((r->notice_s > 0 ? r->notice_s : NOTICE_S) * 1e9);
    for (uint32_t q = 0; q < r->size; q++)
        for (uint32_t lane = 0; lane < RENDEZVOUS_LANES; lane++) out_peers[q].socket[lane] = -1;
    status = r->rank == 0 ? lead(m) : follow(m);
    if (m->listener >= 0) close(m->listener);
    while (m->caller_count) hang_up(m, 0);
    if (status)
        rendezvous_close(out_peers, r->size);
    else
        *out_key = m->key;
release:
    free(m);
    free(places);
    return status;
}
