#include "engine/comm/tcp/handshake.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

static const uint64_t magic = 0x3676646e7a6f7265u; /* also the version of all messages between ranks */

/* ---- the keys of a connection ---- */

struct session {
    struct tag caller, callee; /* the proofs */
    struct key from_caller, from_callee;
};

static struct session session_of(const struct secret *secret, const struct hello *hello,
                                 const struct challenge *challenge) {
    uint8_t both[sizeof *hello + sizeof *challenge];
    memcpy(both, hello, sizeof *hello);
    memcpy(both + sizeof *hello, challenge, sizeof *challenge);
    struct key key = key_derive(&secret->key, "connection", (struct text){both, sizeof both});
    return (struct session){key_tag(&key, "caller's proof"), key_tag(&key, "callee's proof"),
                            key_derive(&key, "from caller", (struct text){0}),
                            key_derive(&key, "from callee", (struct text){0})};
}

/* ---- the caller ---- */

enum greeted handshake_call(int fd, const struct secret *secret, struct hello *hello,
                            struct patience patience, struct seals *out) {
    struct challenge challenge;
    struct tag proof, none = {{0}};
    hello->magic = magic;
    if (!secret_nonce(hello->nonce) || !socket_send(fd, hello, sizeof *hello, patience) ||
        !socket_receive(fd, &challenge, sizeof challenge, patience))
        return GREETED_LOST;
    if (challenge.magic != magic) return errno = EPROTO, GREETED_LOST;
    struct session session = session_of(secret, hello, &challenge);
    if (!socket_send(fd, &session.caller, sizeof session.caller, patience) ||
        !socket_receive(fd, &proof, sizeof proof, patience))
        return GREETED_LOST;
    if (tag_same(&proof, &none) || !tag_same(&proof, &session.callee)) return GREETED_REFUSED;
    *out = (struct seals){.out = {.key = session.from_caller}, .in = {.key = session.from_callee}};
    return GREETED;
}

/* ---- the callee ---- */

bool handshake_has_hello(const struct answer *a) { return a->got >= sizeof a->hello; }

/* The connection is new: its buffer has room for these few bytes. */
static bool send_now(int fd, const void *data, size_t bytes) {
    return send(fd, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* Reads up to the end of `bytes` at `target`, of which `done` have come. False: the connection ended. */
static bool read_some(struct answer *a, void *target, uint32_t done, uint32_t bytes) {
    ssize_t got = recv(a->socket, (char *)target + done, bytes - done, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    a->got += (uint32_t)got;
    return got > 0;
}

static enum handshake_state hear_hello(struct answer *a) {
    if (!read_some(a, &a->hello, a->got, sizeof a->hello)) return HEARD_STRANGER;
    if (a->got >= sizeof a->hello.magic && a->hello.magic != magic) return HEARD_STRANGER;
    if (!handshake_has_hello(a)) return HEARD_PART;
    a->challenge.magic = magic;
    bool sent = secret_nonce(a->challenge.nonce) && send_now(a->socket, &a->challenge, sizeof a->challenge);
    return sent ? HEARD_PART : HEARD_STRANGER;
}

enum handshake_state handshake_hear(struct answer *a, const struct secret *secret, struct seals *out) {
    const struct tag none = {{0}};
    if (!handshake_has_hello(a)) return hear_hello(a);
    if (!read_some(a, &a->proof, a->got - (uint32_t)sizeof a->hello, sizeof a->proof)) return HEARD_STRANGER;
    if (a->got < sizeof a->hello + sizeof a->proof) return HEARD_PART;
    struct session session = session_of(secret, &a->hello, &a->challenge);
    bool known = tag_same(&a->proof, &session.caller);
    bool sent = send_now(a->socket, known ? &session.callee : &none, sizeof none);
    if (!known) return HEARD_WRONG_SECRET;
    *out = (struct seals){.out = {.key = session.from_callee}, .in = {.key = session.from_caller}};
    return sent ? HEARD_ALL : HEARD_STRANGER;
}
