/* The content of one rank's memory and its users: the invariants of buffers, without any bytes. The ledger sees the
 * executor's operations start and end, and does not know why they start.
 *
 *   - two items in flight share no byte that one of them writes
 *   - a buffer that is read holds data that was written to it; no other buffer's write has overwritten that data
 *
 * Chunks in flight share no slot of the staging ring. Borrows the plan; owns its tables; one per rank. */
#pragma once

#include "engine/executor/executor.h"

enum { LEDGER_SLOT = BUFFER_KINDS }; /* one more kind than the planned buffers: a slot of the staging ring */

struct ledger_span { /* of a planned buffer */
    uint64_t begin, end;
    uint32_t tier;
};

struct ledger_plan { /* shared by all ranks */
    const struct plan *plan;
    struct ledger_span *span; /* per buffer */
    uint64_t *held;           /* per buffer: its content at first */
};

struct ledger_item { /* in flight; points into the executor's tables */
    const struct operation *op;
    const uint32_t *read, *write;
    uint32_t index;
};

struct ledger_part { /* of the memory in which gathered units take turns */
    uint32_t buffer;
    uint64_t by; /* the content of any other buffer there: HELD_OVERWRITTEN, and the operation that wrote */
};

struct ledger {
    const struct ledger_plan *plan;
    struct ledger_item *item;
    uint32_t items, capacity;
    uint64_t *held; /* per buffer: a value of the enum below, and the operation that wrote */
    struct ledger_part *part;
};

enum ledger_held { HELD_NOTHING, HELD_BEING_WRITTEN, HELD_RELEASED, HELD_WRITTEN, HELD_OVERWRITTEN };

/* A broken invariant, for a message. */
struct ledger_fault {
    const struct operation *with; /* the other item in flight; NULL: the buffer's state is wrong */
    struct buffer_ref ref;        /* the buffer that is read, or that both items use */
    enum ledger_held held;
    enum operation_kind by; /* HELD_OVERWRITTEN: the operation that wrote there, */
    uint32_t by_region;     /* and its region */
};

const char *ledger_buffer_text(uint32_t kind); /* "the gathered parameters" */

zero_status ledger_plan_make(struct ledger_plan *out, const struct plan *plan, struct zero_error *error);
void ledger_plan_free(struct ledger_plan *plan);

zero_status ledger_open(struct ledger *ledger, const struct ledger_plan *plan, struct zero_error *error);
void ledger_close(struct ledger *ledger);

/* False: the item must not start; *out says why. */
bool ledger_start(struct ledger *ledger, const struct ledger_item *item, struct ledger_fault *out);
void ledger_done(struct ledger *ledger, const struct operation *op, uint32_t index);
