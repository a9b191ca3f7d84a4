/* The options and inputs of one `zero train`, shared by all ranks of this process; constant once the ranks start. */
#ifndef ZERO_TOOLS_COMMAND_JOB_H
#define ZERO_TOOLS_COMMAND_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/config/config.h"
#include "tools/command/choose.h"
#include "tools/command/feed.h"
#include "tools/command/pretrained.h"
#include "tools/command/run_lock.h"
#include "tools/data/decoder.h"
#include "tools/gpt/gpt.h"

/* How text is generated. */
struct sampling {
    struct choosing choosing;
    const struct decoder *decoder; /* NULL: numbers of tokens are printed */
    const int32_t *prompt;         /* in place of a text */
    uint64_t prompt_count;
    const int32_t *ends; /* tokens that end a text */
    uint32_t end_count;
    int32_t begin; /* the token before a text, if there is no prompt */
    bool has_begin;
    bool no_cache; /* compute all tokens again for each */
};

struct job {
    const char *config_path;
    const char *config_json; /* the text of that file, with the settings of the command line and what the planner chose */
    bool chosen;             /* the text has what the planner chose: the run keeps it in its directory */
    const char *model_path; /* NULL: the file's model block */
    struct config config;   /* resolved for `ranks` */
    struct gpt_config model;
    struct pretrained pretrained; /* the first weights of a run that begins anew */
    struct dataset dataset;
    /* Why the first weights or the dataset could not be opened: the ranks agree on it before they train. */
    struct zero_error data_error;
    uint64_t data_contents; /* a hash: tools/data/contents.h */
    struct run_lock *lock;  /* of this process; only rank 0 takes it */
    struct zero_error lock_error; /* why the lock could not be taken: the ranks agree on it too */
    zero_local *local;            /* NULL: this process is one rank */
    uint32_t ranks;
    uint64_t steps;       /* 0: one pass over the training samples */
    uint64_t eval_every;  /* 0: the held-out loss is not measured */
    bool eval_average;    /* then that of the averaged weights, too */
    uint64_t sample;      /* tokens to generate at the end */
    const char *prompt;   /* NULL: no prompt */
    struct sampling sampling;
    uint64_t save_every;  /* steps; 0: nothing is saved */
    uint64_t keep;        /* checkpoints; 0: all */
    bool resume, recover; /* from a checkpoint; from what the drive keeps */
    bool overwrite;       /* begin anew over an earlier run in the directory */
    bool again;           /* --continue: rank 0 chooses by what the directory holds; settings must be the same */
    bool discard_shadow;  /* discard another run's shadow on the drive */
    /* The id of the run that left the shadow; "any"; NULL: the id of this directory. */
    const char *recover_id;
    uint64_t resume_step; /* 0: the latest */
    const char *run;      /* the run's directory */
    bool run_is_new;      /* the directory is named by the date, and no other run may share it */
    bool is_text;         /* tokens are bytes */
    bool quiet;
    bool live; /* show a live line on a terminal; not under mpirun, whose output may go elsewhere */
};

#endif
