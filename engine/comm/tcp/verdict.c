#include "engine/comm/tcp/verdict.h"

#include <errno.h>
#include <sys/socket.h>

#include "engine/base/clock.h"
#include "engine/base/utf8.h"

bool sealed_send(int socket, struct seal *seal, const void *data, size_t bytes, struct patience patience) {
    struct tag tag = seal_next(seal, &(struct text){data, bytes}, 1);
    return socket_send(socket, data, bytes, patience) && socket_send(socket, &tag, sizeof tag, patience);
}

bool sealed_receive(int socket, struct seal *seal, void *data, size_t bytes, struct patience patience) {
    struct tag tag;
    if (!socket_receive(socket, data, bytes, patience) || !socket_receive(socket, &tag, sizeof tag, patience))
        return false;
    errno = EPROTO;
    return seal_fits(seal, &(struct text){data, bytes}, 1, &tag);
}

struct verdict verdict_make(uint64_t key, zero_status status, const struct zero_error *error) {
    struct verdict verdict = {.key = key, .code = (uint32_t)status, .rank = error->rank};
    if (status) utf8_copy(verdict.message, sizeof verdict.message, error->message);
    return verdict;
}

bool verdict_send(int socket, struct seals *seals, const struct verdict *verdict) {
    struct patience soon = {.deadline_ns = clock_now_ns() + VERDICT_GRACE_NS};
    return sealed_send(socket, &seals->out, verdict, sizeof *verdict, soon);
}

bool verdict_receive(int socket, struct seals *seals, uint32_t size, struct verdict *out,
                     struct patience patience) {
    if (!sealed_receive(socket, &seals->in, out, sizeof *out, patience)) return false;
    out->message[sizeof out->message - 1] = 0;
    if (out->rank < 0 || (uint32_t)out->rank >= size) out->rank = -1;
    errno = EPROTO;
    return error_code_known(out->code);
}

zero_status verdict_take(const struct verdict *verdict, struct zero_error *error) {
    error_clear(error);
    error->rank = verdict->rank;
    return error_set(error, (zero_status)verdict->code, "%s", verdict->message);
}

bool verdict_ends(int socket) {
    struct verdict head;
    const size_t bytes = offsetof(struct verdict, rank);
    ssize_t got = recv(socket, &head, bytes, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0) return errno != EAGAIN && errno != EINTR;
    return got == 0 || (got == (ssize_t)bytes && head.code != ZERO_OK);
}
