/* Which run this is: a random number that it keeps as long as it lives, resumed or recovered, and what decides its
 * result: the values of the configuration, and the data. It stands in the run's directory (RUN/identity), and as notes
 * in the run's checkpoints and on a drive that keeps a shadow. */
#ifndef ZERO_TOOLS_COMMAND_IDENTITY_H
#define ZERO_TOOLS_COMMAND_IDENTITY_H

#include <stdbool.h>

#include "engine/config/config.h"
#include "engine/zero.h"

enum { IDENTITY_DIGITS = 32, IDENTITY_SETTINGS_BYTES = 1000 };

struct identity {
    char id[IDENTITY_DIGITS + 1]; /* hexadecimal; "": none */
    char begun[32];               /* the day and time */
    char directory[256];          /* of the run; "": of a longer name */
    char data[17];                /* the hash of the data's contents */
    char settings[IDENTITY_SETTINGS_BYTES];
    bool ended; /* all steps of the run are done */
};

/* A new run's id and time, on rank 0. */
void identity_begin(struct identity *identity);

/* The values that change the result, which are not the default: "seed=3 train_batch_size=8 ...". Left out is how the
 * work is done: ranks, stage, tiers, micro-batch, buffers. */
void identity_describe(struct identity *identity, const struct config *config, uint64_t data_contents);

/* What `earlier` had otherwise than this configuration and these data; false: nothing. */
bool identity_differs(const struct identity *earlier, const struct identity *own, const struct config *config,
                      char *out, size_t size);

/* RUN/identity. Reading: an empty id where there is none. Checking: whether it may be replaced, or is none that a run
 * made; writing checks that, too. */
void identity_read(const char *run, struct identity *out);
zero_status identity_check(const char *run, struct zero_error *error);
zero_status identity_write(const char *run, const struct identity *identity, struct zero_error *error);

/* The notes of the next step and the next checkpoint. Local. */
zero_status identity_note(zero_engine *engine, const struct identity *identity);
zero_status identity_note_end(zero_engine *engine, bool ended);

/* From notes: `note` is zero_engine_note or zero_engine_shadow_note. */
void identity_noted(const zero_engine *engine, const char *(*note)(const zero_engine *, const char *),
                    struct identity *out);

#endif
