/* The machine that a step runs on, with every value set. The user chooses it by the names of descriptions, or by a
 * speed. Pure. */
#pragma once

#include "tools/plan/machine/hardware.h"
#include "tools/plan/machine/speeds.h"

/* The rates include the achieved fractions; defaults are set. */
struct machine {
    struct hardware_device device;
    struct hardware_host host;
    struct hardware_link inside, between; /* of a node; between nodes */
    struct hardware_drive drive;          /* of a node, shared by its ranks; name "": no drive */
    uint32_t node_ranks;                  /* the most ranks of a node */
};

/* Names; NULL: the usual part of the device, and its host. A link or a drive may also be a speed: "400Gb" (bits) or "50GB/s" of one
 * rank, "3200Gb/node" of all ranks of a node; for a drive "7GB/s", or "7GB/s,5GB/s" to read and write; "none": there is no drive. */
struct hardware_choice {
    const char *device, *inside, *between, *drive, *host;
};
zero_status hardware_choose(const struct hardware *hardware, const struct hardware_choice *choice,
                            struct machine *out, struct zero_error *error);

/* Chooses from the built-in descriptions and those of a file; NULL: no file. Without a device in the choice: the only
 * one in the file. */
zero_status hardware_machine(const char *file, const struct hardware_choice *choice, struct machine *out,
                             struct zero_error *error);

/* Says that the rate of products is an assumption. False: a file gives it. */
bool machine_assumes(const struct machine *machine, enum dtype compute, char *out, size_t capacity);

/* "400Gb", "50 GB/s", "7GiB/s", "3.5e9": bytes per second; *out_rest: the text after the speed. */
bool hardware_parse_speed(const char *text, double *out_per_s, const char **out_rest);

/* The speeds of one rank if `node_ranks` share a node. The rank computes in `compute`, a type that the device
 * multiplies. */
struct speeds machine_speeds(const struct machine *machine, double node_ranks, enum dtype compute);
