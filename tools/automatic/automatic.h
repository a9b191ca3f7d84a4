/* Chooses the values that a configuration leaves to the planner by "auto" (config_unchosen): it takes the fastest row of the
 * planner's table that fits. `zero train` and `zero plan` use the same search. */
#pragma once

#include "engine/config/config.h"
#include "tools/plan/machine/machine.h"
#include "tools/plan/shapes.h"
#include "tools/plan/space.h"

struct automatic {
    /* descriptions of the machine; both NULL: this machine, which is measured once */
    const char *gpu, *hardware;
    const char *run; /* the directory of the run that goes on, whose choice stays; NULL: the run begins */
    const char *transport; /* of ranks that are processes; NULL: they are threads of this one */
    uint32_t ranks;
    bool quiet;
};

/* The ranks that know of a failure. */
enum automatic_stage {
    AUTOMATIC_ALONE, /* other ranks may wait for this one */
    AUTOMATIC_LOST,  /* the ranks did not meet */
    AUTOMATIC_SHARED /* all ranks have the same failure, or none */
};

/* `config`: of `text`, after config_read and config_read_model. *out_text: the text with the choice written out, the same on all
 * ranks; the caller frees it. Rank 0 logs the choice, and why the alternatives were not chosen. Collective over the processes of
 * the job. */
zero_status automatic_choose(const struct automatic *automatic, struct config *config, const char *text,
                             char **out_text, enum automatic_stage *out_stage, struct zero_error *error);

/* For `zero plan`: this machine, for so many ranks that are threads; and the threads of a rank, if *threads is 0. `config`: resolved
 * by space_of. */
zero_status automatic_machine(const struct automatic *automatic, const struct config *config,
                              const struct shapes *shapes, uint64_t *threads, struct machine *out,
                              struct zero_error *error);

/* What was measured of this machine for such a job, if it was. `config`: resolved. */
bool automatic_known(const struct config *config, const struct shapes *shapes, const char *transport,
                     uint32_t node_ranks, uint32_t threads, struct machine *out);

/* The changes with which edit_run writes out a row of an open space. */
struct edit_changes automatic_changes(const struct space *space, uint32_t ranks);
