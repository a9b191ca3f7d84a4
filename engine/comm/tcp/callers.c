#include "engine/comm/tcp/callers.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/comm/tcp/verdict.h"

enum {
    NAMED_MAX = 8, /* missing ranks that one message names */
    NAMES_BYTES = 128,
    UNPROVEN_NS = 2000000000 /* for a caller without a proof while other callers wait */
};

const char *callers_where(const struct meeting *m, uint32_t rank, char text[WHERE_BYTES]) {
    if (rank) return socket_place_text(&m->places[rank], text);
    snprintf(text, WHERE_BYTES, "%.255s:%u", m->r->host, m->r->port);
    return text;
}

/* ---- callers ---- */

static void hang_up(struct meeting *m, uint32_t caller) {
    socket_close(m->callers[caller].answer.socket);
    m->callers[caller] = m->callers[--m->caller_count];
}

static void keep(struct meeting *m, uint32_t caller, uint32_t lane) {
    const struct caller *c = &m->callers[caller];
    struct lanes *peer = &m->peers[c->answer.hello.rank];
    peer->socket[lane] = c->answer.socket;
    peer->seals[lane] = c->seals;
    atomic_store(&peer->made[lane], true);
    atomic_fetch_add(&m->made, 1);
    m->callers[caller] = m->callers[--m->caller_count];
}

/* ---- ranks that rank 0 has taken ---- */

/* A rank's place is free again: a launcher may start its process a second time. */
static void forget(struct meeting *m, uint32_t q) {
    socket_close(m->peers[q].socket[0]);
    m->peers[q].socket[0] = -1;
    atomic_store(&m->peers[q].made[0], false);
    if (m->r->log)
        log_line(m->r->log, ZERO_LOG_WARN,
                 "rank %u of %u ended before all ranks had come: rank 0 waits for it again", q, m->r->size);
}

static zero_status hear_taken(struct meeting *m, uint32_t q, bool first) {
    struct lanes *peer = &m->peers[q];
    struct patience soon = {.deadline_ns = clock_now_ns() + VERDICT_GRACE_NS};
    struct verdict verdict;
    if (peer->socket[0] < 0 || !verdict_ends(peer->socket[0])) return ZERO_OK;
    if (verdict_receive(peer->socket[0], &peer->seals[0], m->r->size, &verdict, soon) && verdict.code)
        return verdict_take(&verdict, m->error);
    if (first) return forget(m, q), ZERO_OK;
    m->error->rank = (int32_t)q;
    return error_set(m->error, ZERO_E_PEER,
                     "rendezvous: rank %u of %u ended before all ranks had met: see its log", q, m->r->size);
}

/* Takes a rank's first connection to rank 0. Two processes with the same rank, or a different number of ranks, end the
 * rendezvous for all ranks. */
static zero_status take_first(struct meeting *m, uint32_t caller) {
    const struct hello *hello = &m->callers[caller].answer.hello;
    if (hello->size != m->r->size || hello->rank >= m->r->size)
        return error_set(m->error, ZERO_E_ARGUMENT,
                         "rendezvous: rank %u says that there are %u ranks, where rank 0 says %u: start all "
                         "with the same %s",
                         hello->rank, hello->size, m->r->size, m->names->size);
    TRY(hello->rank ? hear_taken(m, hello->rank, true) : ZERO_OK);
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

/* A caller that knows the secret. A caller of an earlier job with the same secret, or one that meant another rank, also counts
 * as a stranger. Otherwise an attacker in the network could swap connections of ranks. */
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

/* Rank q is awaited, and has not made all its connections. */
static bool lacks(const struct meeting *m, uint32_t q, enum await what) {
    uint32_t me = m->r->rank, last = what == AWAIT_ALL ? RENDEZVOUS_LANES : 1;
    if (what == AWAIT_CHILDREN && rendezvous_parent(q) != me) return false;
    if (what == AWAIT_ALL && me && !rendezvous_neighbours(m->r->size, me, q)) return false;
    for (uint32_t lane = 0; lane < last; lane++)
        if (m->peers[q].socket[lane] < 0) return true;
    return false;
}

static uint32_t missing(const struct meeting *m, enum await what) {
    uint32_t count = 0;
    for (uint32_t q = m->r->rank + 1; q < m->r->size; q++) count += lacks(m, q, what);
    return count;
}

/* From time to time, and when no rank is missing, rank 0 looks for ranks that have ended: these do not count. */
static zero_status hear_all_taken(struct meeting *m, enum await what) {
    uint64_t now_ns = clock_now_ns();
    bool soon = now_ns - m->heard_ns < SOCKET_LOOK_MS * 1000000ull;
    if (m->r->rank || (soon && missing(m, what))) return ZERO_OK;
    m->heard_ns = now_ns;
    for (uint32_t q = 1; q < m->r->size; q++) TRY(hear_taken(m, q, what == AWAIT_FIRST));
    return ZERO_OK;
}

/* "ranks 2, 4" */
static void name_missing(const struct meeting *m, enum await what, char names[NAMES_BYTES]) {
    uint32_t absent = 0, count = missing(m, what);
    size_t used = (size_t)snprintf(names, NAMES_BYTES, count > 1 ? "ranks " : "rank ");
    for (uint32_t q = m->r->rank + 1; q < m->r->size; q++) {
        if (!lacks(m, q, what)) continue;
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
    if (leads ? !missing(m, AWAIT_FIRST) : m->peers[0].socket[0] >= 0) return;
    m->notice_ns = 0;
    if (leads) name_missing(m, AWAIT_FIRST, names);
    log_line(m->r->log, ZERO_LOG_WARN, "rank %u waits for %s of %u%s (%s:%u), for %g s at most", m->r->rank,
             names, m->r->size, leads ? " to connect" : " to answer", m->r->host, m->r->port,
             m->r->timeout_s);
}

bool callers_look(void *user) {
    struct meeting *m = user;
    tell_waiting(m);
    return m->r->interrupted && m->r->interrupted(m->r->interrupted_user);
}

static zero_status report_missing(struct meeting *m, enum await what) {
    char names[NAMES_BYTES], where[WHERE_BYTES], strangers[160] = "";
    name_missing(m, what, names);
    if (m->strangers)
        snprintf(strangers, sizeof strangers, "; %u other connections were not from ranks", m->strangers);
    if (m->impostors)
        snprintf(strangers, sizeof strangers,
                 "; %u of %u other connections had another ZERO_JOB_SECRET, or none", m->impostors,
                 m->strangers);
    error_set(m->error, ZERO_E_PEER,
              "rendezvous: %s of %u did not connect to rank %u (%s) within %g s%s: see their logs, and "
              "whether their hosts can reach this one",
              names, m->r->size, m->r->rank, callers_where(m, m->r->rank, where), m->r->timeout_s, strangers);
    for (uint32_t q = m->r->size; q-- > m->r->rank + 1;)
        if (lacks(m, q, what)) m->error->rank = (int32_t)q;
    return ZERO_E_PEER;
}

zero_status callers_interrupted(struct meeting *m, const char *awaited, uint32_t at) {
    char where[WHERE_BYTES];
    return error_set(m->error, ZERO_E_INTERRUPTED,
                     "rendezvous: interrupted while rank %u waited for %s of %u (%s)", m->r->rank, awaited,
                     m->r->size, callers_where(m, at, where));
}

/* Without sockets accept fails also if there is no connection. */
static bool somebody_waits(const struct meeting *m) {
    return poll(&(struct pollfd){.fd = m->listener, .events = POLLIN}, 1, 0) == 1;
}

/* Accepts connections up to CALLERS_MAX; the other connections wait. If the process has no more sockets, connections wait until
 * present callers have proved themselves or are dismissed. So strangers alone cannot end the job. */
static zero_status admit(struct meeting *m) {
    while (m->caller_count < CALLERS_MAX) {
        int fd = socket_accept(m->listener);
        int why = errno;
        m->no_sockets = fd < 0 && (why == EMFILE || why == ENFILE);
        if (m->no_sockets && m->caller_count == 0 && somebody_waits(m))
            return error_set(
                m->error, ZERO_E_IO,
                "rendezvous: rank %u: no more sockets: %s: %u ranks need %u each: raise ulimit -n",
                m->r->rank, strerror(why), m->r->size, RENDEZVOUS_LANES * m->r->size);
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

/* Waits at most `at_most_ms` for bytes of callers, and for new ones. */
static zero_status hear_callers(struct meeting *m, bool first, int at_most_ms) {
    struct pollfd polls[CALLERS_MAX + 1];
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < m->caller_count; i++)
        polls[i] = (struct pollfd){.fd = m->callers[i].answer.socket, .events = POLLIN};
    polls[m->caller_count] = (struct pollfd){.fd = crowded(m) ? -1 : m->listener, .events = POLLIN};
    int ready = poll(polls, m->caller_count + 1, at_most_ms);
    if (ready <= 0 && m->caller_count == 0 && !m->no_sockets) return ZERO_OK;
    for (uint32_t i = m->caller_count; i-- > 0 && status == ZERO_OK;) status = hear(m, i, first);
    dismiss_slow(m);
    return status ? status : admit(m);
}

zero_status callers_await(struct meeting *m, enum await what) {
    /* a rank that could not connect to another one knows more than rank 0, and tells it */
    const bool first = what == AWAIT_FIRST;
    const uint64_t grace_ns = m->r->rank == 0 && !first ? VERDICT_GRACE_NS : 0,
                   deadline_ns = m->patience.deadline_ns + grace_ns;
    while (missing(m, what)) {
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= deadline_ns) return report_missing(m, what);
        if (patience_ends(&m->patience)) {
            char names[NAMES_BYTES];
            name_missing(m, what, names);
            return callers_interrupted(m, names, m->r->rank);
        }
        uint64_t left_ms = (deadline_ns - now_ns) / 1000000 + 1;
        TRY(hear_callers(m, first, left_ms > SOCKET_LOOK_MS ? SOCKET_LOOK_MS : (int)left_ms));
        TRY(hear_all_taken(m, what));
    }
    return ZERO_OK;
}

zero_status callers_serve(struct meeting *m) { return hear_callers(m, false, 0); }

void callers_listen_later(struct meeting *m) {
    socket_close(m->listener);
    m->listener = m->later_listener, m->later_listener = -1;
}

void callers_close(struct meeting *m) {
    callers_listen_later(m);
    if (m->listener >= 0) socket_close(m->listener);
    while (m->caller_count) hang_up(m, 0);
}
