/* TCP sockets with deadlines. All sockets are non-blocking, closed on exec and in forked children, and without Nagle's delay. A function that
 * returns -1 or false sets errno: ETIMEDOUT if the deadline passed, ECANCELED if the wait was interrupted. Deadlines
 * are times of clock_now_ns. Threads: any. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* How long a call waits. */
struct patience {
    uint64_t deadline_ns;
    bool (*interrupted)(void *user); /* called at least every SOCKET_LOOK_MS: true ends the wait; or NULL */
    void *user;
};
enum { SOCKET_LOOK_MS = 50 };

static inline bool patience_ends(const struct patience *patience) {
    return patience->interrupted && patience->interrupted(patience->user);
}

/* The address at which a process listens, in a form that ranks send to each other. */
struct place {
    uint8_t address[16];
    uint16_t family; /* 4 or 6 */
    uint16_t port;
};

/* Listens at the address of `at`; NULL: at all addresses of this host, IPv4 and IPv6. Port 0: any free port. */
int socket_listen(const struct place *at, uint16_t port);
uint16_t socket_port(int socket);

int socket_accept(int listener); /* -1 with EAGAIN: no connection waits */
void socket_close(int socket);   /* in place of close, for every socket of this file */

/* Connects to `place`; tries again until a process listens there. The socket does not prevent another process from
 * listening on the socket's own port. The socket never connects to itself: without this check, TCP can connect a socket
 * to itself if no process listens on a port that the kernel may choose for the caller. */
int socket_call(const struct place *place, struct patience patience);

/* Prepares a connection for a long life in which network outages of up to `outage_s` may happen. The kernel gives up
 * a dead connection after `give_up_s`. Returns the longest time, in seconds, from the end of an outage until the kernel
 * sends again. Before Linux 6.15 the kernel's tries become rarer and rarer, and this time is longer. */
double socket_endure(int socket, double outage_s, double give_up_s);
/* Sent bytes that the peer has not acknowledged. If the connection has ended, it never does, and the number stays. */
uint32_t socket_unacknowledged(int socket);
bool socket_ended(int socket); /* in both directions */

enum { PLACE_TEXT_BYTES = 64 };
/* "10.0.0.2:29500" or "[fd00::2]:29500". Returns `text`. */
const char *socket_place_text(const struct place *place, char text[PLACE_TEXT_BYTES]);

struct place socket_own(int socket);
struct place socket_peer(int socket);
bool socket_loops_back(const struct place *place);

/* Looks up at most `most` addresses of a host by its name. Returns their number; 0: *out_why says why. */
uint32_t socket_resolve(const char *host, uint16_t port, struct place *out, uint32_t most,
                        const char **out_why);

bool socket_is_address(const char *host); /* and not a name */

bool socket_send(int socket, const void *data, uint64_t bytes, struct patience patience);
bool socket_receive(int socket, void *data, uint64_t bytes,
                    struct patience patience); /* ECONNRESET: the peer closed the connection first */
