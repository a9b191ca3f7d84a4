/* This machine as the planner sees it. It is measured once for each kind of question, and kept in a file of the user's cache
 * directory (kept.h). The question names the sizes, the machine and the version of zero. The text is a description for
 * hardware_read. */
#ifndef ZERO_TOOLS_COMMAND_HERE_H
#define ZERO_TOOLS_COMMAND_HERE_H

#include "tools/plan/machine.h"
#include "tools/plan/measure.h"

struct here {
    uint32_t ranks, threads; /* ranks of this host, threads of a rank */
    uint64_t width;          /* of the model's blocks; wide ones are measured as narrower ones */
    enum dtype dtype;        /* of compute */
    const char *drive;       /* a directory on the drive; NULL: none */
    uint64_t drive_block, drive_depth;
    const char *transport; /* of ranks that are processes; NULL: they are threads */
    /* host memory that all ranks of this host may take together; UINT64_MAX: unknown */
    uint64_t host_bytes;
};

enum { HERE_PATH_BYTES = 4096, HERE_TEXT_BYTES = 16384 };

/* Reads the kept description. False: there is none, so call here_measure. */
bool here_find(const struct here *here, char out_text[HERE_TEXT_BYTES]);

/* Bytes of a collective for measure_comm: the parameters of a block. */
uint64_t here_link_bytes(const struct here *here);

/* Measures, which takes some seconds, and keeps the description. *out_note: one line that says where, or why it is not kept.
 * `link`: of ranks that are processes; else NULL. */
zero_status here_measure(const struct here *here, const struct measured_link *link,
                         char out_text[HERE_TEXT_BYTES], char out_note[HERE_PATH_BYTES],
                         struct zero_error *error);

/* A description as a machine, with the memory and the drive's space as they are now. */
zero_status here_machine(const struct here *here, const char *text, struct machine *out,
                         struct zero_error *error);

#endif
