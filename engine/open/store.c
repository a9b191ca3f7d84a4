#include "engine/open/store.h"

#include <inttypes.h>
#include <stdlib.h>

#include "engine/base/integer.h"
#include "engine/base/limits.h"
#include "engine/open/start.h"
#include "kernels/checksum.h"

enum { WAIT_NS = 200 * 1000 };

static uint64_t pieces_of(const struct store *s) { return (s->bytes + s->piece_bytes - 1) / s->piece_bytes; }

/* ---- open and close ---- */

struct store_need store_need(const struct store *s, enum tier_kind tier) {
    struct store_need need = {{0}};
    need.bytes[tier] = s->bytes;
    if (tier == TIER_NVME && s->bytes) need.bytes[TIER_CPU] = STORE_SLOTS * s->piece_bytes;
    return need;
}

/* All slots together are not larger than zero_optimization.piece_bytes. */
zero_status store_prepare(struct store *s, struct running *run, const struct blueprint *b,
                          struct zero_error *error) {
    uint64_t bytes = 0;
    *s = (struct store){.run = run, .piece_bytes = b->terms.piece_bytes / STORE_SLOTS};
    s->piece_bytes = s->piece_bytes / CHUNK_ALIGN_BYTES * CHUNK_ALIGN_BYTES;
    s->range = calloc(b->plan.buffers, sizeof *s->range);
    if (!s->range) return error_set(error, ZERO_E_MEMORY, "no memory for a list of buffers");
    s->ranges = plan_rest(&b->plan, TIER_DEVICE, s->range);
    for (uint32_t i = 0; i < s->ranges; i++) bytes += s->range[i].bytes;
    s->bytes = round_up(bytes, CHUNK_ALIGN_BYTES);
    return ZERO_OK;
}

static zero_status open_memory(struct store *s, const struct config *c, uint64_t bytes, struct tier **out,
                               struct zero_error *error) {
    struct tier_options options = {.bytes = bytes, .device = s->run->device};
    return tier_open(config_tier(c, TIER_CPU), &options, out, error);
}

static zero_status open_drive(struct store *s, const struct config *c, struct zero_error *error) {
    uint64_t staged = store_need(s, TIER_NVME).bytes[TIER_CPU];
    TRY(open_memory(s, c, staged, &s->staging, error));
    struct device_span buffer = {s->staging->ops->address(s->staging), staged};
    struct tier_options options = start_drive_options(s->run, c, config_park_paths(c));
    options.bytes = s->bytes;
    options.requests_max = STORE_SLOTS;
    options.nvme.buffers = &buffer;
    options.nvme.buffer_count = staged > 0 && !s->run->device->pinned_by_driver;
    s->check = calloc(pieces_of(s) + 1, sizeof *s->check);
    if (!s->check) return error_set(error, ZERO_E_MEMORY, "no memory for the checksums of a parked state");
    return tier_open(config_tier(c, TIER_NVME), &options, &s->tier, error);
}

zero_status store_open(struct store *s, enum tier_kind tier, const struct config *c,
                       struct zero_error *error) {
    return tier == TIER_NVME ? open_drive(s, c, error) : open_memory(s, c, s->bytes, &s->tier, error);
}

/* The drive first: it has the staging memory registered. */
void store_close(struct store *s) {
    if (s->tier) s->tier->ops->close(s->tier);
    if (s->staging) s->staging->ops->close(s->staging);
    free(s->check);
    free(s->range);
    *s = (struct store){0};
}

/* ---- pieces ---- */

struct move {
    struct store *store;
    uint8_t *extent;
    bool out; /* of the device */
    struct zero_error *error;
};

static uint64_t piece_end(const struct store *s, uint64_t piece) {
    return min64((piece + 1) * s->piece_bytes, s->bytes);
}

/* Copies those bytes of the ranges that are in the piece. */
static zero_status copy_piece(const struct move *m, uint64_t piece, uint8_t *memory) {
    struct store *s = m->store;
    uint64_t begin = piece * s->piece_bytes, end = piece_end(s, piece),
             first = 0; /* of the range, in the stream */
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < s->ranges && !status && first < end; first += s->range[i++].bytes) {
        uint64_t from = first > begin ? first : begin, to = first + s->range[i].bytes;
        if (to > end) to = end;
        if (from >= to) continue;
        uint8_t *device = m->extent + s->range[i].offset + (from - first), *host = memory + (from - begin);
        status = device_fetch(s->run, m->out ? host : device, m->out ? device : host, to - from, m->error);
    }
    return status;
}

static zero_status copy_all(const struct move *m) {
    uint8_t *memory = m->store->tier->ops->address(m->store->tier);
    for (uint64_t i = 0; i < pieces_of(m->store); i++)
        TRY(copy_piece(m, i, memory + i * m->store->piece_bytes));
    return ZERO_OK;
}

/* ---- to and from a drive ---- */

struct slot {
    uint64_t piece;
    uint8_t *memory;
    struct tier_work *work;
    bool full; /* the piece is on its way */
};

static uint64_t checksum_piece(const struct store *s, const struct slot *slot) {
    return checksum(slot->memory, piece_end(s, slot->piece) - slot->piece * s->piece_bytes);
}

static zero_status start(const struct move *m, struct slot *slot, uint64_t piece) {
    struct store *s = m->store;
    slot->piece = piece;
    zero_status status = m->out ? copy_piece(m, piece, slot->memory) : ZERO_OK;
    if (!status && m->out) s->check[piece] = checksum_piece(s, slot);
    struct tier_request request = {m->out, piece * s->piece_bytes,
                                   piece_end(s, piece) - piece * s->piece_bytes, slot->memory};
    if (!status) status = s->tier->ops->post(s->tier, &request, &slot->work, m->error);
    slot->full = !status;
    return status;
}

static zero_status verify(const struct move *m, const struct slot *slot) {
    char where[256];
    const struct store *s = m->store;
    uint64_t found = checksum_piece(s, slot), expected = s->check[slot->piece];
    if (found == expected) return ZERO_OK;
    s->tier->ops->where(s->tier, slot->piece * s->piece_bytes, where, sizeof where);
    return error_set(
        m->error, ZERO_E_IO,
        "piece %" PRIu64 " of the parked state came back damaged from %s: expected checksum %016" PRIx64
        ", found %016" PRIx64 "; if it stays so, go on from the last checkpoint on another drive",
        slot->piece, where, expected, found);
}

/* Waits for the slot's request. `before`: an earlier failure, after which nothing more is copied. */
static zero_status finish(const struct move *m, struct slot *slot, zero_status before) {
    struct tier *tier = m->store->tier;
    zero_status status = ZERO_OK;
    if (!slot->full) return before;
    for (bool done = slot->work == NULL; !done && !status;) {
        status = tier->ops->test(tier, slot->work, &done, m->error);
        if (!done && !status) tier->ops->wait(tier, WAIT_NS);
    }
    slot->full = false;
    slot->work = NULL;
    if (before || status || m->out) return before ? before : status;
    status = verify(m, slot);
    return status ? status : copy_piece(m, slot->piece, slot->memory);
}

/* Piece i is started in slot i modulo their number, once the piece before it there has ended. */
static zero_status stream(const struct move *m) {
    struct store *s = m->store;
    struct slot slots[STORE_SLOTS] = {{0}};
    uint64_t pieces = pieces_of(s);
    zero_status status = ZERO_OK;
    uint8_t *memory = s->staging->ops->address(s->staging);
    for (uint32_t i = 0; i < STORE_SLOTS && pieces; i++) slots[i].memory = memory + i * s->piece_bytes;
    for (uint64_t i = 0; i < pieces + STORE_SLOTS; i++) {
        struct slot *slot = &slots[i % STORE_SLOTS];
        status = finish(m, slot, status);
        if (!status && i < pieces) status = start(m, slot, i);
    }
    return status;
}

static zero_status move_all(struct move m) {
    return m.store->tier->ops->address(m.store->tier) ? copy_all(&m) : stream(&m);
}

zero_status store_take(struct store *s, const uint8_t *extent, struct zero_error *error) {
    return s->bytes ? move_all((struct move){s, (uint8_t *)extent, true, error}) : ZERO_OK;
}

zero_status store_give(struct store *s, uint8_t *extent, struct zero_error *error) {
    return s->bytes ? move_all((struct move){s, extent, false, error}) : ZERO_OK;
}
