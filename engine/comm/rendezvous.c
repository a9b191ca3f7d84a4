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
    CALLERS_MAX = 64,   /* connections that have not yet sent their rank */
    ADDRESSES_MAX = 16, /* of one host name */
    NAMED_MAX = 8,      /* missing ranks that one message names */
    NAMES_BYTES = 128,
    GRACE_NS = 2000000000,
    PATIENCE_NS = 200000000, /* for a silent caller while other callers wait */
};

static const uint64_t magic = 0x3276646e7a6f7265u; /* also the version of the messages below */

struct hello {
    uint64_t magic, key; /* key 0: the first call, to rank 0 */
    uint32_t rank, size, lane, port;
};

/* Rank 0 sends it to all ranks that came. On success, the `places` of all ranks follow. */
struct verdict {
    uint64_t magic, key;
    uint32_t code;
    char message[1000];
};

/* What gives this rank its place: messages name it. */
struct names {
    const char *rank, *size, *address, *port;
};

struct caller {
    int socket;
    uint32_t got; /* bytes of hello */
    uint64_t since_ns;
    struct hello hello;
};

struct meeting {
    const struct rendezvous *r;
    const struct names *names;
    struct lanes *peers;
    struct place *places; /* where the ranks listen */
    int listener;
    uint64_t key;
    struct patience patience;
    uint32_t strangers, caller_count;
    struct caller callers[CALLERS_MAX];
    struct zero_error *error;
};

static const struct names of_torchrun = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"},
                          of_runtime = {"zero_runtime.rank", "zero_runtime.size", "zero_runtime.address",
                                        "zero_runtime.port"};

/* ---- receiving connections ---- */

static void hang_up(struct meeting *m, uint32_t caller) {
    close(m->callers[caller].socket);
    m->callers[caller] = m->callers[--m->caller_count];
}

static void keep(struct meeting *m, uint32_t caller, uint32_t lane) {
    const struct hello *hello = &m->callers[caller].hello;
    m->peers[hello->rank].socket[lane] = m->callers[caller].socket;
    m->callers[caller] = m->callers[--m->caller_count];
}

/* Takes a rank's first connection to rank 0. Two processes with the same rank, or a different number of ranks, end the
 * rendezvous for all ranks. */
static zero_status take_first(struct meeting *m, uint32_t caller) {
    const struct hello *hello = &m->callers[caller].hello;
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
    m->places[hello->rank] = socket_peer(m->callers[caller].socket);
    m->places[hello->rank].port = (uint16_t)hello->port;
    keep(m, caller, 0);
    return ZERO_OK;
}

static zero_status take(struct meeting *m, uint32_t caller, bool first) {
    const struct hello *hello = &m->callers[caller].hello;
    bool known =
        hello->magic == magic && hello->key == (first ? 0 : m->key) && hello->lane < RENDEZVOUS_LANES;
    if (known && first) return take_first(m, caller);
    if (known && hello->rank > m->r->rank && hello->rank < m->r->size &&
        m->peers[hello->rank].socket[hello->lane] < 0) {
        keep(m, caller, hello->lane);
        return ZERO_OK;
    }
    m->strangers++;
    hang_up(m, caller);
    return ZERO_OK;
}

/* Reads the bytes that this caller has sent so far. */
static zero_status hear(struct meeting *m, uint32_t caller, bool first) {
    struct caller *c = &m->callers[caller];
    ssize_t got = read(c->socket, (char *)&c->hello + c->got, sizeof c->hello - c->got);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return ZERO_OK;
    if (got > 0) c->got += (uint32_t)got;
    /* a caller whose first bytes are not `magic` is a stranger: the rest of its bytes is not needed */
    bool stranger = got <= 0 || (c->got >= sizeof c->hello.magic && c->hello.magic != magic);
    if (stranger) {
        m->strangers++;
        hang_up(m, caller);
        return ZERO_OK;
    }
    return c->got == sizeof c->hello ? take(m, caller, first) : ZERO_OK;
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

static zero_status report_missing(struct meeting *m, uint32_t lanes) {
    char names[NAMES_BYTES], strangers[96] = "";
    name_missing(m, lanes, names);
    if (m->strangers)
        snprintf(strangers, sizeof strangers, "; %u other connections were not from ranks", m->strangers);
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

/* Accepts connections up to CALLERS_MAX; the other connections wait. */
static zero_status admit(struct meeting *m) {
    while (m->caller_count < CALLERS_MAX) {
        int fd = socket_accept(m->listener);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE))
            return error_set(
                m->error, ZERO_E_IO,
                "rendezvous: rank %u: no more sockets: %s: %u ranks need %u each: raise ulimit -n",
                m->r->rank, strerror(errno), m->r->size, RENDEZVOUS_LANES * m->r->size);
        if (fd < 0) return ZERO_OK;
        m->callers[m->caller_count++] = (struct caller){.socket = fd, .since_ns = clock_now_ns()};
    }
    return ZERO_OK;
}

/* Closes connections that have been silent for PATIENCE_NS: a rank sends its first message at once. */
static void dismiss_silent(struct meeting *m) {
    uint64_t now_ns = clock_now_ns();
    for (uint32_t i = m->caller_count; i-- > 0;) {
        if (now_ns - m->callers[i].since_ns < PATIENCE_NS) continue;
        m->strangers++;
        hang_up(m, i);
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
        bool full = m->caller_count == CALLERS_MAX;
        for (uint32_t i = 0; i < m->caller_count; i++)
            polls[i] = (struct pollfd){.fd = m->callers[i].socket, .events = POLLIN};
        polls[m->caller_count] = (struct pollfd){.fd = full ? -1 : m->listener, .events = POLLIN};
        poll(polls, m->caller_count + 1, left_ms > SOCKET_LOOK_MS ? SOCKET_LOOK_MS : (int)left_ms);
        for (uint32_t i = m->caller_count; i-- > 0 && status == ZERO_OK;) status = hear(m, i, first);
        if (m->caller_count == CALLERS_MAX) dismiss_silent(m);
        if (status == ZERO_OK) status = admit(m);
    }
    return status;
}

/* ---- rank 0 ---- */

static void tell(const struct meeting *m, int socket, const struct verdict *verdict) {
    struct patience brief = {.deadline_ns = clock_now_ns() + GRACE_NS};
    if (socket_send(socket, verdict, sizeof *verdict, brief) && verdict->code == ZERO_OK)
        socket_send(socket, m->places, m->r->size * sizeof *m->places, brief);
}

/* Tells every rank that came, also the ranks whose first message was wrong. A rank that died in the meantime is found
 * later. */
static void tell_all(struct meeting *m, zero_status status) {
    struct verdict verdict = {.magic = magic, .key = m->key, .code = (uint32_t)status};
    if (status) snprintf(verdict.message, sizeof verdict.message, "%.990s", m->error->message);
    for (uint32_t q = 1; q < m->r->size; q++)
        if (m->peers[q].socket[0] >= 0) tell(m, m->peers[q].socket[0], &verdict);
    for (uint32_t i = 0; i < m->caller_count && status; i++)
        if (m->callers[i].got == sizeof m->callers[i].hello) tell(m, m->callers[i].socket, &verdict);
}

static zero_status lead(struct meeting *m) {
    m->listener = socket_listen((uint16_t)m->r->port);
    if (m->listener < 0)
        return error_set(
            m->error, ZERO_E_IO,
            "rendezvous: rank 0 cannot listen on port %u: %s: set %s to a port that is free on this host",
            m->r->port, strerror(errno), m->names->port);
    if (getrandom(&m->key, sizeof m->key, 0) != sizeof m->key) m->key = clock_now_ns();
    m->key |= 1; /* never 0 */
    zero_status status = await_callers(m, 1, true);
    tell_all(m, status);
    return status ? status : await_callers(m, RENDEZVOUS_LANES, false);
}

/* ---- the other ranks ---- */

/* Sends this rank's hello to rank `to` over `fd`; without a connection, reports why there is none. */
static zero_status say(struct meeting *m, uint32_t to, uint32_t lane, int fd) {
    struct hello hello = {magic, m->key, m->r->rank, m->r->size, lane, socket_port(m->listener)};
    m->peers[to].socket[lane] = fd;
    if (fd >= 0 && socket_send(fd, &hello, sizeof hello, m->patience)) return ZERO_OK;
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
    const char *why;
    uint32_t count = socket_resolve(m->r->host, (uint16_t)m->r->port, found, ADDRESSES_MAX, &why);
    if (!count)
        return error_set(m->error, ZERO_E_ARGUMENT, "rendezvous: %s is \"%s\", which has no address: %s",
                         m->names->address, m->r->host, why);
    *out_socket = -1;
    for (uint32_t i = 0; *out_socket < 0; i = (i + 1) % count) {
        uint64_t now_ns = clock_now_ns();
        struct patience brief = m->patience;
        if (count > 1 && now_ns + TRY_NS < brief.deadline_ns) brief.deadline_ns = now_ns + TRY_NS;
        m->places[0] = found[i];
        *out_socket = socket_call(&found[i], brief);
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
    bool heard = socket_receive(fd, &verdict, sizeof verdict, patience);
    if (heard && verdict.magic == magic && verdict.code && error_code_known(verdict.code)) {
        verdict.message[sizeof verdict.message - 1] = 0;
        return error_set(m->error, (zero_status)verdict.code, "%s", verdict.message);
    }
    if (heard) errno = EPROTO;
    if (heard && verdict.magic == magic && verdict.code == ZERO_OK) {
        struct place leader = m->places[0];
        m->key = verdict.key;
        heard = socket_receive(fd, m->places, m->r->size * sizeof *m->places, patience);
        place_neighbours(m, leader);
        if (heard) return ZERO_OK;
    }
    if (errno == ECANCELED) return report_interrupted(m, "rank 0");
    error_set(m->error, ZERO_E_PEER,
              "rendezvous: rank %u: the program that listens at %s:%u does not answer as rank 0 does: %s: "
              "rank 0 ended, or another program uses that port: if so, set %s to a free one",
              m->r->rank, m->r->host, m->r->port, strerror(errno), m->names->port);
    m->error->rank = 0;
    return ZERO_E_PEER;
}

/* Listens on any port except rank 0's: rank 0 may be on this host, and may not listen yet. */
static int listen_elsewhere(uint32_t leader_port) {
    int first = socket_listen(0);
    if (first < 0 || socket_port(first) != leader_port) return first;
    int second = socket_listen(0);
    close(first);
    return second;
}

static zero_status follow(struct meeting *m) {
    m->listener = listen_elsewhere(m->r->port);
    if (m->listener < 0)
        return error_set(m->error, ZERO_E_IO, "rendezvous: rank %u cannot listen on any port: %s", m->r->rank,
                         strerror(errno));
    int leader;
    zero_status status = call_leader(m, &leader);
    if (status == ZERO_OK) status = say(m, 0, 0, leader);
    if (status == ZERO_OK) status = hear_verdict(m);
    for (uint32_t q = 0; q < m->r->rank; q++)
        for (uint32_t lane = q == 0; lane < RENDEZVOUS_LANES && status == ZERO_OK; lane++)
            status = say(m, q, lane, socket_call(&m->places[q], m->patience));
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
    m->patience = (struct patience){.deadline_ns = clock_now_ns() + (uint64_t)(r->timeout_s * 1e9),
                                    .interrupted = r->interrupted,
                                    .user = r->interrupted_user};
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
