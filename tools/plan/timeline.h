/* One rank's step in virtual time: the engine's own executor runs the very operations of the policy, and in place of
 * doing them takes the time that a machine needs: so waits, places in flight and prefetching are the executor's, and
 * what overlaps is what would. All ranks are alike.
 *
 * What takes turns: collectives on the links; updates on the memory where state lives; copies between a device and its
 * host on each way of the bus; fetches and stores on the drive, of which a node's ranks have equal parts; on a machine that shares cores, all of these with the host's computing, as
 * they are copies and additions there. */
#ifndef ZERO_TOOLS_PLAN_TIMELINE_H
#define ZERO_TOOLS_PLAN_TIMELINE_H

#include "engine/inside.h"
#include "tools/plan/machine.h"
#include "tools/plan/pass.h"

enum resource { RESOURCE_COMPUTE, RESOURCE_LINK, RESOURCE_UPDATE, RESOURCE_DRIVE, RESOURCE_BUS, RESOURCES };
const char *resource_name(enum resource resource); /* "compute" */

struct timeline_options {
    const struct machine *machine;
    struct blueprint *blueprint; /* its policy runs here */
    uint32_t nodes;
    const struct pass *pass; /* of a micro-step */
};

struct step_price {
    double seconds;           /* from one step's end to the next one's, in a steady state */
    double busy_s[RESOURCES]; /* of the step; of the bus, its longer way */
    uint64_t wire_bytes;      /* as zero_counters counts them, per rank and step, as are: */
    uint64_t gather_calls, reduce_calls;
    uint64_t drive_read_bytes, drive_write_bytes;
};

zero_status timeline_step(const struct timeline_options *options, struct step_price *out,
                          struct zero_error *error);

#endif
