/* What a step runs on, complete: chosen from descriptions by name, or by a speed. Pure. */
#ifndef ZERO_TOOLS_PLAN_MACHINE_H
#define ZERO_TOOLS_PLAN_MACHINE_H

#include "tools/plan/hardware.h"
#include "tools/plan/speeds.h"

/* Fractions are in the rates, defaults are filled in. */
struct machine {
    struct hardware_device device;
    struct hardware_host host;
    struct hardware_link inside, between; /* of a node; between nodes */
    struct hardware_drive drive;          /* of a node, shared by its ranks; name "": there is none */
    uint32_t node_ranks;                  /* at most so many ranks share a node */
};

/* Names, or NULL for what the device usually has. A link or a drive may also be a speed: "400Gb" (bits) or "50GB/s"
 * of one rank, "3200Gb/node" of all ranks of a node; for a drive "7GB/s", or "7GB/s,5GB/s" to read and write. */
struct hardware_choice {
    const char *device, *inside, *between, *drive;
};
zero_status hardware_choose(const struct hardware *hardware, const struct hardware_choice *choice,
                            struct machine *out, struct zero_error *error);

/* "400Gb", "50 GB/s", "7GiB/s", "3.5e9": bytes per second; *out_rest: what stands behind it. */
bool hardware_parse_speed(const char *text, double *out_per_s, const char **out_rest);

/* Of one rank, where `node_ranks` share a node; it computes in `compute`, which the device multiplies. */
struct speeds machine_speeds(const struct machine *machine, double node_ranks, enum dtype compute);

#endif
