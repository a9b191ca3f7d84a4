/* How two ranks that connect prove to each other that they know the job's secret:
 *
 *   caller   hello       who it is, and a random number
 *   callee   challenge   another random number
 *   caller   proof       a tag of both, under the secret
 *   callee   proof       another tag; all zero: the caller's does not fit
 *
 * The callee proves itself last, so that strangers learn nothing from it by which they could guess the secret. Until the caller's
 * proof has come, it costs the callee a slot, sizeof(struct answer) bytes and HANDSHAKE_S at most. From the proof on, each
 * direction of the connection has a key of its own.
 *
 * Threads: any. */
#pragma once

#include "engine/comm/tcp/secret.h"
#include "engine/comm/tcp/socket.h"

enum { HANDSHAKE_S = 5 };

struct hello {
    uint64_t magic, meeting; /* meeting 0: the first call, to rank 0 */
    uint32_t rank, to, size; /* to: the rank that is called. A network may lead the call to another one */
    uint16_t lane, port;
    uint8_t nonce[NONCE_BYTES];
};

struct challenge {
    uint64_t magic;
    uint8_t nonce[NONCE_BYTES];
};

/* The seals of a connection: one for the messages that this rank sends, one for those that it receives. */
struct seals {
    struct seal out, in;
};

/* ---- the caller: blocks ---- */

enum greeted { GREETED, GREETED_LOST, GREETED_REFUSED }; /* LOST: errno; EPROTO: the other end is no rank */

/* Fills in hello's magic and nonce. REFUSED: the two ends do not know the same secret. */
enum greeted handshake_call(int socket, const struct secret *secret, struct hello *hello,
                            struct patience patience, struct seals *out);

/* ---- the callee: never blocks ---- */

struct answer {
    int socket;
    uint32_t got; /* bytes of hello and proof */
    uint64_t since_ns;
    struct hello hello;
    struct tag proof;
    struct challenge challenge;
};

enum handshake_state { HEARD_PART, HEARD_ALL, HEARD_STRANGER, HEARD_WRONG_SECRET };

/* Reads the bytes that have come. ALL: the caller is a rank, and has been told so; `out` is set. */
enum handshake_state handshake_hear(struct answer *answer, const struct secret *secret, struct seals *out);
bool handshake_has_hello(const struct answer *answer);
