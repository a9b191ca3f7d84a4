/* One rank's step in virtual time. The engine's own executor runs the real operations of the policy; instead of doing
 * its work, each operation takes the time that the machine needs. Waits, slots and prefetching are therefore the
 * executor's, and operations overlap as in a real step. All ranks are alike.
 *
 * These operations take turns: collectives on the links; updates on the memory that holds the state; copies between a
 * device and its host on each direction of the bus; fetches and stores on the drive, of which a node's ranks have equal
 * parts. On a machine that shares cores, all of these also take turns with the host's computing, because they are
 * copies and additions on its cores.
 *
 * Copies between a device and its host also take the host's memory, of which the host's update has the rest (speeds_pass). */
#pragma once

#include "engine/api/inside.h"
#include "tools/plan/machine/machine.h"
#include "tools/plan/pass.h"

enum resource { RESOURCE_COMPUTE, RESOURCE_LINK, RESOURCE_UPDATE, RESOURCE_DRIVE, RESOURCE_BUS, RESOURCES };
const char *resource_name(enum resource resource); /* "compute" */

struct timeline_options {
    const struct machine *machine;
    struct blueprint *blueprint; /* its policy runs here */
    uint32_t nodes;
    const struct pass *pass;   /* of a micro-step */
    uint64_t checkpoint_bytes; /* that its uses store and fetch each */
    uint64_t stream_bytes;     /* of a micro-batch's stream, which enters and leaves uses */
};

struct step_price {
    double seconds;           /* from the end of one step to the end of the next, in a steady state */
    double busy_s[RESOURCES]; /* of the step; of the bus: its busier direction */
    uint64_t wire_bytes;      /* as zero_counters counts them, per rank and step, as are: */
    uint64_t gather_calls, reduce_calls;
    uint64_t drive_read_bytes, drive_write_bytes;
    /* the additional bytes of a step whose updates are repeated */
    uint64_t repeat_read_bytes, repeat_write_bytes;
    double repeated_seconds; /* if every step's updates are repeated; 0: updates cannot be repeated */
};

zero_status timeline_step(const struct timeline_options *options, struct step_price *out,
                          struct zero_error *error);
