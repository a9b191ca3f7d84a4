/* What one rank's memory holds, and who uses it: the invariants of buffers, without a byte of them. It watches the
 * executor's operations start and end, and knows nothing of what made it start them.
 *
 *   - two items in flight share no byte that one of them writes
 *   - a buffer that is read holds what was written to it: not nothing, not what another buffer's writer left there
 *
 * Chunks on their way share no slot of the staging ring. Borrows the plan; owns its tables; one per rank. */
#ifndef ZERO_TOOLS_SIM_LEDGER_H
#define ZERO_TOOLS_SIM_LEDGER_H

#include "engine/executor/executor.h"

enum { LEDGER_SLOT = BUFFER_KINDS }; /* beside the kinds of planned buffers: of the staging ring */

struct ledger_span { /* of a planned buffer */
    uint64_t begin, end;
    uint32_t tier;
};

struct ledger_plan { /* shared by all ranks */
    const struct plan *plan;
    struct ledger_span *span; /* per buffer */
    uint64_t *held;           /* per buffer: what it holds at first */
};

struct ledger_item { /* in flight; points into the executor's tables */
    const struct operation *op;
    const uint32_t *read, *write;
    uint32_t index;
    uint64_t since_ns;
};

struct ledger {
    const struct ledger_plan *plan;
    struct ledger_item *item;
    uint32_t items, capacity;
    uint64_t *held; /* per buffer: enum below, and by whom it was written over */
};

enum ledger_held { HELD_NOTHING, HELD_BEING_WRITTEN, HELD_RELEASED, HELD_WRITTEN, HELD_OVERWRITTEN };

/* What is wrong, for a sentence. */
struct ledger_fault {
    const struct operation *with; /* the one in flight; NULL: the buffer's state is */
    struct buffer_ref ref;        /* the buffer that is read, or that both use */
    enum ledger_held held;
    enum operation_kind by; /* HELD_OVERWRITTEN: what wrote there, */
    uint32_t by_region;     /* and for which region */
};

const char *ledger_buffer_text(uint32_t kind); /* "the gathered parameters" */

zero_status ledger_plan_make(struct ledger_plan *out, const struct plan *plan, struct zero_error *error);
void ledger_plan_free(struct ledger_plan *plan);

zero_status ledger_open(struct ledger *ledger, const struct ledger_plan *plan, struct zero_error *error);
void ledger_close(struct ledger *ledger);

/* False: it must not start; *out says why. */
bool ledger_start(struct ledger *ledger, const struct ledger_item *item, struct ledger_fault *out);
/* Returns since when it was in flight. */
uint64_t ledger_done(struct ledger *ledger, const struct operation *op, uint32_t index);

#endif
