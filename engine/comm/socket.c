#include "engine/comm/socket.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static int fail(int socket) {
    int why = errno;
    close(socket);
    errno = why;
    return -1;
}

static int open_socket(int family) {
    int one = 1, fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
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

/* A kernel without IPv6 refuses the family or the address; a port in use is in use for both. */
int socket_listen(uint16_t port) {
    union address address = {
        .v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any}};
    int fd = listen_on(&address, sizeof address.v6);
    if (fd >= 0 || (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL)) return fd;
    address = (union address){.v4 = {.sin_family = AF_INET, .sin_port = htons(port)}};
    return listen_on(&address, sizeof address.v4);
}

uint16_t socket_port(int socket) {
    union address address = {0};
    socklen_t bytes = sizeof address;
    getsockname(socket, &address.any, &bytes);
    return ntohs(address.any.sa_family == AF_INET ? address.v4.sin_port : address.v6.sin6_port);
}

int socket_accept(int listener) {
    int one = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
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

/* Whether the socket is ready for `events` by then. */
static bool await(int socket, short events, uint64_t deadline_ns) {
    for (;;) {
        uint64_t now_ns = clock_now_ns(),
                 left_ms = deadline_ns > now_ns ? (deadline_ns - now_ns) / 1000000 + 1 : 0;
        struct pollfd poll_fd = {.fd = socket, .events = events};
        int ready = poll(&poll_fd, 1, left_ms > 60000 ? 60000 : (int)left_ms);
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) return false;
        if (left_ms == 0) return errno = ETIMEDOUT, false;
    }
}

static int call_once(const struct place *place, uint64_t deadline_ns) {
    union address address = {0};
    bool v4 = place->family == 4;
    if (v4) {
        address.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(place->port)};
        memcpy(&address.v4.sin_addr, place->address, sizeof address.v4.sin_addr);
    } else {
        address.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(place->port)};
        memcpy(&address.v6.sin6_addr, place->address, sizeof place->address);
    }
    int code = 0, fd = open_socket(v4 ? AF_INET : AF_INET6);
    socklen_t bytes = sizeof code;
    if (fd < 0) return -1;
    if (connect(fd, &address.any, v4 ? sizeof address.v4 : sizeof address.v6) == 0) return fd;
    if (errno != EINPROGRESS || !await(fd, POLLOUT, deadline_ns)) return fail(fd);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &bytes);
    errno = code;
    return code ? fail(fd) : fd;
}

int socket_call(const struct place *place, uint64_t deadline_ns) {
    enum { PAUSE_MS = 20 };
    for (;;) {
        int fd = call_once(place, deadline_ns);
        if (fd >= 0 || clock_now_ns() >= deadline_ns) return fd;
        if (errno != ECONNREFUSED && errno != EHOSTUNREACH && errno != ENETUNREACH && errno != ECONNRESET)
            return -1;
        int why = errno;
        poll(NULL, 0, PAUSE_MS);
        errno = why;
    }
}

bool socket_send(int socket, const void *data, uint64_t bytes, uint64_t deadline_ns) {
    for (const char *at = data; bytes;) {
        ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL);
        if (sent > 0) {
            at += sent, bytes -= (uint64_t)sent;
        } else if (errno == EAGAIN) {
            if (!await(socket, POLLOUT, deadline_ns)) return false;
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

bool socket_receive(int socket, void *data, uint64_t bytes, uint64_t deadline_ns) {
    for (char *at = data; bytes;) {
        ssize_t got = recv(socket, at, bytes, 0);
        if (got > 0) {
            at += got, bytes -= (uint64_t)got;
        } else if (got == 0) {
            return errno = ECONNRESET, false;
        } else if (errno == EAGAIN) {
            if (!await(socket, POLLIN, deadline_ns)) return false;
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}
