/* The identity of a run: a random number that the run keeps when it is resumed or recovered, and the values that
 * determine its result (configuration and data). The identity is stored in the run's directory (RUN/identity), in the
 * notes of the run's checkpoints, and on a drive that keeps a shadow. */
#ifndef ZERO_TOOLS_COMMAND_IDENTITY_H
#define ZERO_TOOLS_COMMAND_IDENTITY_H

#include <stdbool.h>

#include "engine/config/config.h"
#include "engine/zero.h"

enum { IDENTITY_DIGITS = 32, IDENTITY_SETTINGS_BYTES = 1000 };

struct identity {
    char id[IDENTITY_DIGITS + 1]; /* hexadecimal; "": none */
    char begun[32];               /* date and time */
    char directory[256];          /* of the run; "" if the name is longer, or not UTF-8 */
    char data[17];                /* hash of the data's contents */
    char settings[IDENTITY_SETTINGS_BYTES];
    bool ended; /* all steps of the run are done */
};

/* Creates a new run's id and time, on rank 0. */
void identity_begin(struct identity *identity);

/* Lists the values that are not the default and change the result: "seed=3 train_batch_size=8 ...". Leaves out the keys
 * that only say how the work is done: ranks, stage, tiers, micro-batch, buffers. `products`: which algorithms products use, as
 * a value of device.products: PRODUCTS_TIMED "SHAPES-CHOICE", two hashes of 16 digits; "": the first ones. */
#define PRODUCTS_TIMED "timed-"
void identity_describe(struct identity *identity, const struct config *config, uint64_t data_contents,
                       const char *products);

/* Writes into `out` the values of `earlier` that differ from this configuration and this data. False: none differs. */
bool identity_differs(const struct identity *earlier, const struct identity *own, const struct config *config,
                      char *out, size_t size);

/* The file RUN/identity. identity_read gives an empty id where there is no file. identity_check fails if the file may
 * not be replaced, because no run made it. identity_write makes the same check. */
void identity_read(const char *run, struct identity *out);
zero_status identity_check(const char *run, struct zero_error *error);
zero_status identity_write(const char *run, const struct identity *identity, struct zero_error *error);

/* Set the notes that the next step and the next checkpoint store. Local. */
zero_status identity_note(zero_engine *engine, const struct identity *identity);
zero_status identity_note_end(zero_engine *engine, bool ended);

/* Reads an identity from notes. `note` is zero_engine_note or zero_engine_shadow_note. */
void identity_noted(const zero_engine *engine, const char *(*note)(const zero_engine *, const char *),
                    struct identity *out);

#endif
