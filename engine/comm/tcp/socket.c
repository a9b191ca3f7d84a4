#include "engine/comm/tcp/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <linux/sockios.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

/* ---- what a forked child closes ---- */

enum { WORD_BITS = 64, TRACKED = 1 << 16 }; /* a descriptor above that stays open in children */
static _Atomic uint64_t open_sockets[TRACKED / WORD_BITS];

/* Without this, a connection would live on in a child of its rank after the rank's death, which the other ranks would learn late. */
static void close_in_child(void) {
    for (int fd = 0; fd < TRACKED; fd++)
        if (atomic_load(&open_sockets[fd / WORD_BITS]) >> fd % WORD_BITS & 1) socket_close(fd);
}

static void prepare_forks(void) { pthread_atfork(NULL, NULL, close_in_child); }

static int track(int fd) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare_forks);
    if (fd >= 0 && fd < TRACKED) atomic_fetch_or(&open_sockets[fd / WORD_BITS], 1ull << fd % WORD_BITS);
    return fd;
}

void socket_close(int fd) {
    if (fd >= 0 && fd < TRACKED) atomic_fetch_and(&open_sockets[fd / WORD_BITS], ~(1ull << fd % WORD_BITS));
    close(fd);
}

/* ---- listen, accept, call ---- */

static int fail(int socket) {
    int why = errno;
    socket_close(socket);
    errno = why;
    return -1;
}

static int open_socket(int family) {
    int one = 1, fd = track(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static int listen_on(union address *address, socklen_t bytes) {
    int one = 1, off = 0, fd = open_socket(address->any.sa_family);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (address->any.sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, &address->any, bytes) || listen(fd, SOMAXCONN)) return fail(fd);
    return fd;
}

/* A kernel without IPv6 refuses the family or the address; then IPv4 is tried. Any other error is the same for both. */
static int listen_everywhere(uint16_t port) {
    union address address = {
        .v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any}};
    int fd = listen_on(&address, sizeof address.v6);
    if (fd >= 0 || (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL)) return fd;
    address = (union address){.v4 = {.sin_family = AF_INET, .sin_port = htons(port)}};
    return listen_on(&address, sizeof address.v4);
}

uint16_t socket_port(int socket) { return socket_own(socket).port; }

int socket_accept(int listener) {
    int one = 1, fd = track(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/* By default TCP doubles its wait after each retry: after an outage of 30 s it may wait 30 s more. TCP_USER_TIMEOUT
 * replaces the limit on the number of retries: with one retry per second, that limit ends a connection after 15 s. With
 * TCP_THIN_LINEAR_TIMEOUTS, the first six retries of a stream of few packets come without a longer wait. */
double socket_endure(int socket, double outage_s, double give_up_s) {
    enum { TRY_MS = 1000 };
    const double first_try_s = 0.25, linear_s = 1.2;
    unsigned give_up_ms = give_up_s < 1e6 ? (unsigned)(give_up_s * 1e3) : 1000000000u;
    int one = 1, try_ms = TRY_MS;
    setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &give_up_ms, sizeof give_up_ms);
    setsockopt(socket, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &one, sizeof one);
    if (outage_s <= linear_s) return first_try_s;
    bool limited = setsockopt(socket, IPPROTO_TCP, TCP_RTO_MAX_MS, &try_ms, sizeof try_ms) == 0;
    return limited ? TRY_MS * 1e-3 + 0.1 : outage_s + first_try_s;
}

uint32_t socket_unacknowledged(int socket) {
    int bytes = 0;
    return ioctl(socket, SIOCOUTQ, &bytes) ? 0 : (uint32_t)bytes;
}

bool socket_ended(int socket) {
    struct pollfd poll_fd = {.fd = socket};
    return poll(&poll_fd, 1, 0) > 0 && poll_fd.revents & (POLLERR | POLLHUP);
}

static struct place place_of(const union address *address) {
    struct place place = {.family = 6};
    if (address->any.sa_family == AF_INET) {
        place.family = 4, place.port = ntohs(address->v4.sin_port);
        memcpy(place.address, &address->v4.sin_addr, sizeof address->v4.sin_addr);
        return place;
    }
    place.port = ntohs(address->v6.sin6_port);
    memcpy(place.address, &address->v6.sin6_addr, sizeof place.address);
    if (!IN6_IS_ADDR_V4MAPPED(&address->v6.sin6_addr)) return place;
    memmove(place.address, place.address + 12, 4);
    place.family = 4;
    return place;
}

static socklen_t address_of(const struct place *place, union address *out) {
    if (place->family == 4) {
        out->v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(place->port)};
        memcpy(&out->v4.sin_addr, place->address, sizeof out->v4.sin_addr);
        return sizeof out->v4;
    }
    out->v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(place->port)};
    memcpy(&out->v6.sin6_addr, place->address, sizeof place->address);
    return sizeof out->v6;
}

int socket_listen(const struct place *at, uint16_t port) {
    if (!at) return listen_everywhere(port);
    struct place place = *at;
    union address address = {0};
    place.port = port;
    socklen_t bytes = address_of(&place, &address);
    return listen_on(&address, bytes);
}

const char *socket_place_text(const struct place *place, char text[PLACE_TEXT_BYTES]) {
    char address[INET6_ADDRSTRLEN] = "?";
    bool v4 = place->family == 4;
    inet_ntop(v4 ? AF_INET : AF_INET6, place->address, address, sizeof address);
    snprintf(text, PLACE_TEXT_BYTES, v4 ? "%s:%u" : "[%s]:%u", address, place->port);
    return text;
}

struct place socket_own(int socket) {
    union address address = {0};
    socklen_t bytes = sizeof address;
    getsockname(socket, &address.any, &bytes);
    return place_of(&address);
}

struct place socket_peer(int socket) {
    union address address = {0};
    socklen_t bytes = sizeof address;
    getpeername(socket, &address.any, &bytes);
    return place_of(&address);
}

bool socket_loops_back(const struct place *place) {
    static const uint8_t v6[16] = {[15] = 1};
    return place->family == 4 ? place->address[0] == 127 : memcmp(place->address, v6, sizeof v6) == 0;
}

uint32_t socket_resolve(const char *host, uint16_t port, struct place *out, uint32_t most,
                        const char **out_why) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found;
    char service[16];
    uint32_t count = 0;
    snprintf(service, sizeof service, "%u", port);
    int code = getaddrinfo(host, service, &hints, &found);
    *out_why = code == EAI_SYSTEM ? strerror(errno) : gai_strerror(code);
    if (code) return 0;
    for (const struct addrinfo *a = found; a && count < most; a = a->ai_next) {
        union address address = {0};
        if (a->ai_addrlen > sizeof address) continue;
        memcpy(&address, a->ai_addr, a->ai_addrlen);
        out[count++] = place_of(&address);
    }
    freeaddrinfo(found);
    return count;
}

bool socket_is_address(const char *host) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST},
                    *found;
    if (getaddrinfo(host, NULL, &hints, &found)) return false;
    freeaddrinfo(found);
    return true;
}

/* Waits until the socket is ready for `events`. False: the deadline passed, or the wait was interrupted or failed. */
static bool await(int socket, short events, const struct patience *patience) {
    const uint64_t look_ms = patience->interrupted ? SOCKET_LOOK_MS : 60000;
    for (;;) {
        uint64_t now_ns = clock_now_ns(), deadline_ns = patience->deadline_ns,
                 left_ms = deadline_ns > now_ns ? (deadline_ns - now_ns) / 1000000 + 1 : 0;
        struct pollfd poll_fd = {.fd = socket, .events = events};
        int ready = poll(&poll_fd, 1, (int)(left_ms > look_ms ? look_ms : left_ms));
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) return false;
        if (patience_ends(patience)) return errno = ECANCELED, false;
        if (left_ms == 0) return errno = ETIMEDOUT, false;
    }
}

/* Whether the socket connected to its own port, and so to itself. Without the linger option, its close would hold the
 * port for a minute. */
static bool is_its_own_peer(int socket) {
    struct linger at_once = {.l_onoff = 1};
    struct place peer = socket_peer(socket), own = socket_own(socket);
    if (own.port != peer.port || memcmp(own.address, peer.address, sizeof own.address)) return false;
    setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    return true;
}

static int call_once(const struct place *place, const struct patience *patience) {
    union address address = {0};
    socklen_t address_bytes = address_of(place, &address), bytes = sizeof(int);
    int one = 1, code = 0, fd = open_socket(address.any.sa_family);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one); /* lets a listener use the same port */
    if (connect(fd, &address.any, address_bytes)) {
        if (errno != EINPROGRESS || !await(fd, POLLOUT, patience)) return fail(fd);
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &bytes);
        errno = code;
        if (code) return fail(fd);
    }
    if (is_its_own_peer(fd)) return errno = ECONNREFUSED, fail(fd);
    return fd;
}

/* Whether a later try may succeed: no process listens yet, or no answer came. */
static bool may_change(int why) {
    return why == ECONNREFUSED || why == EHOSTUNREACH || why == ENETUNREACH || why == ECONNRESET ||
           why == ETIMEDOUT || why == EADDRNOTAVAIL;
}

/* The kernel waits longer and longer between the tries of one connect. Therefore this function starts a new connect
 * every 3 s. */
int socket_call(const struct place *place, struct patience patience) {
    enum { PAUSE_MS = 20 };
    const uint64_t TRY_NS = 3000000000;
    for (;;) {
        struct patience once = patience;
        if (clock_now_ns() + TRY_NS < patience.deadline_ns) once.deadline_ns = clock_now_ns() + TRY_NS;
        int fd = call_once(place, &once);
        if (fd >= 0 || clock_now_ns() >= patience.deadline_ns || !may_change(errno)) return fd;
        if (patience_ends(&patience)) return errno = ECANCELED, -1;
        int why = errno;
        poll(NULL, 0, PAUSE_MS);
        errno = why;
    }
}

bool socket_send(int socket, const void *data, uint64_t bytes, struct patience patience) {
    for (const char *at = data; bytes;) {
        ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL);
        if (sent > 0) {
            at += sent, bytes -= (uint64_t)sent;
        } else if (errno == EAGAIN) {
            if (!await(socket, POLLOUT, &patience)) return false;
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

bool socket_receive(int socket, void *data, uint64_t bytes, struct patience patience) {
    for (char *at = data; bytes;) {
        ssize_t got = recv(socket, at, bytes, 0);
        if (got > 0) {
            at += got, bytes -= (uint64_t)got;
        } else if (got == 0) {
            return errno = ECONNRESET, false;
        } else if (errno == EAGAIN) {
            if (!await(socket, POLLIN, &patience)) return false;
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}
