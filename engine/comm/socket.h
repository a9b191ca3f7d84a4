/* TCP sockets with deadlines: all of them non-blocking, closed on exec, without Nagle's delay. -1 or false: errno
 * says why, ETIMEDOUT where the deadline passed, ECANCELED where the wait was interrupted. Deadlines are times of
 * clock_now_ns. Threads: any. */
#ifndef ZERO_ENGINE_COMM_SOCKET_H
#define ZERO_ENGINE_COMM_SOCKET_H

#include <stdbool.h>
#include <stdint.h>

/* How long a call waits. */
struct patience {
    uint64_t deadline_ns;
    bool (*interrupted)(void *user); /* asked every SOCKET_LOOK_MS at least: true ends the wait; or NULL */
    void *user;
};
enum { SOCKET_LOOK_MS = 50 };

static inline bool patience_ends(const struct patience *patience) {
    return patience->interrupted && patience->interrupted(patience->user);
}

/* Where a process listens, small enough to travel. */
struct place {
    uint8_t address[16];
    uint16_t family; /* 4 or 6 */
    uint16_t port;
};

/* On all addresses of this host, IPv4 and IPv6; port 0: any free one. */
int socket_listen(uint16_t port);
uint16_t socket_port(int socket);

int socket_accept(int listener); /* -1 with EAGAIN: nobody calls */

/* Until somebody listens there. The socket does not keep a listener from its own port, and is never its own peer: where
 * nobody listens on a port that the kernel may choose for callers, TCP can connect a socket to itself. */
int socket_call(const struct place *place, struct patience patience);

/* For a connection that carries messages for long, where outages of up to `outage_s` may happen. The kernel
 * gives a dead connection up after `give_up_s`. Returns how long after such an outage the kernel may take
 * until it sends again, in seconds: it tries ever more seldom, where it cannot be told otherwise (before Linux 6.15). */
double socket_endure(int socket, double outage_s, double give_up_s);
uint32_t socket_unacknowledged(int socket); /* bytes that were sent, and may be lost */

struct place socket_peer(int socket);
bool socket_loops_back(const struct place *place);

/* The addresses of a host by its name, at most `most`; 0: *out_why says why there is none. */
uint32_t socket_resolve(const char *host, uint16_t port, struct place *out, uint32_t most,
                        const char **out_why);

bool socket_send(int socket, const void *data, uint64_t bytes, struct patience patience);
bool socket_receive(int socket, void *data, uint64_t bytes,
                    struct patience patience); /* ECONNRESET: hung up before */

#endif
