/* TCP sockets with deadlines: all of them non-blocking, closed on exec, without Nagle's delay. -1 or false: errno
 * says why, ETIMEDOUT where the deadline passed. Deadlines are times of clock_now_ns. Threads: any. */
#ifndef ZERO_ENGINE_COMM_SOCKET_H
#define ZERO_ENGINE_COMM_SOCKET_H

#include <stdbool.h>
#include <stdint.h>

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

/* Until somebody listens there. */
int socket_call(const struct place *place, uint64_t deadline_ns);

struct place socket_peer(int socket);
bool socket_loops_back(const struct place *place);

/* The addresses of a host by its name, at most `most`; 0: *out_why says why there is none. */
uint32_t socket_resolve(const char *host, uint16_t port, struct place *out, uint32_t most,
                        const char **out_why);

bool socket_send(int socket, const void *data, uint64_t bytes, uint64_t deadline_ns);
bool socket_receive(int socket, void *data, uint64_t bytes,
                    uint64_t deadline_ns); /* ECONNRESET: hung up before */

#endif
