/* One run of `zero train` as all ranks of this process see it: constant once they start. */
#ifndef ZERO_TOOLS_COMMAND_JOB_H
#define ZERO_TOOLS_COMMAND_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/config/config.h"
#include "tools/gpt/gpt.h"
#include "tools/command/feed.h"
#include "tools/command/run_lock.h"

struct job {
    const char *config_path;
    const char *model_path; /* NULL: the file's model block */
    struct config config;   /* resolved for `ranks` */
    struct gpt_config model;
    struct dataset dataset;
    struct zero_error
        data_error;    /* why the dataset could not be opened: the ranks agree on it before they train */
    uint64_t data_contents;       /* a hash: tools/data/contents.h */
    struct run_lock *lock;        /* this process's; rank 0 alone takes it */
    struct zero_error lock_error; /* why it could not: the ranks agree on it too */
    zero_local *local; /* NULL: this process is one rank */
    uint32_t ranks;
    uint64_t steps;      /* 0: one pass over the training samples */
    uint64_t eval_every; /* 0: the held-out loss is not measured */
    uint64_t sample;     /* tokens to generate at the end */
    const char *prompt;  /* NULL: none is given */
    uint64_t save_every; /* steps; 0: nothing is saved */
    uint64_t keep;       /* checkpoints; 0: all */
    bool resume, recover; /* from a checkpoint; from what the drive keeps */
    bool discard_shadow;  /* another run's, on the drive */
    const char *recover_id; /* of the run whose shadow it is; "any"; NULL: this directory's */
    uint64_t resume_step; /* 0: the latest */
    const char *run;      /* directory */
    bool run_is_new;      /* it is named by the date, and no other run may share it */
    bool is_text;         /* tokens are bytes */
    bool quiet;
    bool live; /* a live line on a terminal; not under mpirun, whose terminal is not where its output goes */
};

#endif
