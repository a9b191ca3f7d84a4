/* This machine as the planner sees it. It is measured once for each kind of question, and kept in a file of the user's cache
 * directory. The question names the sizes, the machine and the version of zero. The text is a description for hardware_read. */
#pragma once

#include "tools/plan/machine/machine.h"
#include "tools/plan/measure/measure.h"

struct this_machine {
    uint32_t ranks, threads; /* ranks of this host, threads of a rank */
    uint64_t width;          /* of the model's blocks; wide ones are measured as narrower ones */
    enum dtype dtype;        /* of compute */
    const char *drive;       /* a directory on the drive; NULL: none */
    uint64_t drive_block, drive_depth;
    const char *transport; /* of ranks that are processes; NULL: they are threads */
    /* host memory that all ranks of this host may take together; UINT64_MAX: unknown */
    uint64_t host_bytes;
};

enum { THIS_MACHINE_PATH_BYTES = 4096, THIS_MACHINE_TEXT_BYTES = 16384 };

/* Reads the kept description. False: there is none, so call this_machine_measure. */
bool this_machine_find(const struct this_machine *here, char out_text[THIS_MACHINE_TEXT_BYTES]);

/* Bytes of a collective for measure_comm: the parameters of a block. */
uint64_t this_machine_link_bytes(const struct this_machine *here);

/* Measures, which takes some seconds, and keeps the description. *out_note: one line that says where, or why it is not kept.
 * `link`: of ranks that are processes; else NULL. */
zero_status this_machine_measure(const struct this_machine *here, const struct measured_link *link,
                                 char out_text[THIS_MACHINE_TEXT_BYTES],
                                 char out_note[THIS_MACHINE_PATH_BYTES], struct zero_error *error);

/* A description as a machine, with the memory and the drive's space as they are now. */
zero_status this_machine_machine(const struct this_machine *here, const char *text, struct machine *out,
                                 struct zero_error *error);
