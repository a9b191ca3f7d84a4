/* A run's directory: the lock that keeps other runs out, the identity of the run, how the run begins, and the files that it keeps.
 *
 *   run_directory_lock   the process, before its ranks
 *   run_directory_find   all ranks, after commit and before there are weights
 *   run_directory_make   rank 0, before the first weights of a run that begins anew; else after they are loaded
 *   run_directory_write  rank 0, once its other files are open
 *   run_directory_share  all ranks
 *   run_lock_held        rank 0, before each save
 *   run_directory_end    when all steps are done
 *   run_lock_release     the process */
#pragma once

#include "engine/config/config.h"
#include "engine/zero.h"
#include "tools/gpt/gpt.h"

/* ---- identity.c: the identity of a run: a random number that the run keeps when it is resumed or recovered, and the values that
 * determine its result (configuration and data). It is stored in the run's directory (RUN/identity), in the notes of the run's
 * checkpoints, and on a drive that keeps a shadow. ---- */
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
 * that only say how the work is done: ranks, stage, tiers, micro-batch, buffers. */
void identity_describe(struct identity *identity, const struct config *config, uint64_t data_contents);

/* Writes into `out` the values of `earlier` that differ from this configuration and this data. False: none differs. */
bool identity_differs(const struct identity *earlier, const struct identity *own, const struct config *config,
                      char *out, size_t size);

/* The file RUN/identity. identity_read gives an empty id where there is no file. identity_check fails if the file may
 * not be replaced, because no run made it. identity_write makes the same check. */
void identity_read(const char *run, struct identity *out);
zero_status identity_check(const char *run, struct zero_error *error);
zero_status identity_write(const char *run, const struct identity *identity, struct zero_error *error);

/* Copies rank 0's id, time and directory to all ranks. identity_describe sets the rest on each rank. Collective. */
zero_status identity_share(zero_engine *engine, struct identity *identity);

/* Set the notes that the next step and the next checkpoint store. Local. */
zero_status identity_note(zero_engine *engine, struct identity *identity);
zero_status identity_note_end(zero_engine *engine, bool ended);

/* Reads an identity from notes. `note` is zero_engine_note or zero_engine_shadow_note. */
void identity_noted(const zero_engine *engine, const char *(*note)(const zero_engine *, const char *),
                    struct identity *out);

enum { RUN_NAME_BYTES = 4096, RUN_PATH_BYTES = RUN_NAME_BYTES + 32 };

/* A lock on the file RUN/lock, which names the process and its host. The kernel releases the lock however the process ends, so a file
 * that stays behind locks nothing. The lock belongs to the file, not to its name: if a user deletes or replaces the directory, the
 * lock is lost. The holder therefore checks again before it writes there. */
struct run_lock {
    const char *command; /* "train": the command that the warnings name */
    bool held;
    int handle;    /* of the lock file */
    int directory; /* a handle: while it is open, no other directory gets the same inode number; below 0: none */
    char path[RUN_PATH_BYTES];
};

/* Does nothing if the lock is held already, or if the directory does not exist yet. ZERO_E_IO: another process holds the lock (the
 * message names it), or no run made the file, which stays as it is. On a file system without locks it prints a warning to stderr. */
zero_status run_lock_take(struct run_lock *lock, const char *directory, struct zero_error *error);

/* True if the file of that name is still the one that was locked. If the file was deleted, the call makes and locks it
 * again, but only in the same directory and only if no other run made its own lock there. */
bool run_lock_held(struct run_lock *lock);
void run_lock_release(struct run_lock *lock);

/* What the command line and the configuration say. */
struct run_request {
    const char *path;
    bool is_new;           /* the directory is named by the date, and no other run may share it */
    struct run_lock *lock; /* of this process; only rank 0 takes it */
    bool resume, recover;  /* from a checkpoint; from what the drive keeps */
    bool overwrite;        /* begin anew over an earlier run in the directory */
    bool again; /* --continue: rank 0 chooses by what the directory holds; settings must be the same */
    bool discard_shadow;         /* discard another run's shadow on the drive */
    const char *recover_id;      /* of the run that left the shadow; "any"; NULL: the id of this directory */
    uint64_t resume_step;        /* 0: the latest */
    bool quiet;                  /* print nothing */
    const struct config *config; /* resolved */
    uint64_t data_contents;      /* a hash: tools/data/corpus.h */
    const char *config_path;
    /* the text of that file, with the settings of the command line and what the planner chose */
    const char *config_json;
    bool chosen;              /* the text has what the planner chose */
    const char *model_path;   /* --model; NULL: the file's model block */
    const char *tokenizer;    /* the directory with whose weights the run begins; NULL: none */
    struct json_object *kept; /* with what the run goes on, for run.json; NULL: nothing */
};

/* With --continue, from checkpoint or shadow, whichever is later; or anew if there is neither. */
enum run_way { RUN_ANEW, RUN_RESUME, RUN_RECOVER };

/* Of one rank. */
struct run_directory {
    const struct run_request *request;
    zero_engine *engine;
    bool prints;               /* rank 0 */
    enum run_way way;          /* from run_directory_find on, the same on all ranks */
    char path[RUN_NAME_BYTES]; /* rank 0's, from run_directory_make on; on all ranks once it is shared */
    struct identity own;       /* of this configuration and this data */
    struct identity previous;  /* of the run that used this directory before; an empty id: none */
    bool same_run; /* it begins anew with the id of `previous`, whose shadow stays; only rank 0 sets it */
};

/* Locks a directory that is there. ZERO_E_ARGUMENT: it holds an earlier run, and the request does not say what to do with that;
 * ZERO_E_IO: a file that no run made has the name of one of the run's files. */
zero_status run_directory_lock(const struct run_request *request, struct zero_error *error);

/* Decides how the run begins, and whether it may take the shadow that an earlier run left on the drive ("nvme": {"shadow": true}):
 * continue from it, or overwrite it. A shadow of another run is refused unless the user named it or discarded it. All ranks call it
 * and then agree on their failures. */
zero_status run_directory_find(struct run_directory *run, struct zero_error *error);

/* Makes the directory and its parents, and locks it, if it was not there. ZERO_E_ARGUMENT: the run goes on by --continue, and the
 * checkpoint was made with other settings. */
zero_status run_directory_make(struct run_directory *run, struct zero_error *error);

/* The directory alone. `is_new`: if its name is taken, it gets -2, -3, ... */
zero_status run_directory_create(const char *name, bool is_new, char out_path[RUN_NAME_BYTES],
                                 struct zero_error *error);

/* For run.json. */
struct run_facts {
    const struct gpt_config *model;
    const zero_plan *plan;
    uint64_t steps, wire_bytes; /* 0 bytes: unknown */
    const char *peak;           /* "": unknown */
};

/* Gives the run its id, and writes RUN/identity and the files that it keeps:
 *
 *   config.json  the configuration, if the planner chose something; else one of an earlier run goes, if this one begins anew
 *   model.json   of --model: its config.json, with which the run goes on
 *   tokenizer/   the tokenizer's files of the model with whose weights the run begins
 *   run.json     the request and the plan, for `zero report`, and what the run needs to go on
 *
 * A foreign model.json or tokenizer/ stays, and then the run keeps none. A run that continues an earlier one keeps its id: of the
 * shadow, of the directory, or of the checkpoint. So does a run with `same_run`: ranks of another number may go on from its shadow. */
zero_status run_directory_write(struct run_directory *run, const struct run_facts *facts,
                                struct zero_error *error);

/* Copies rank 0's path and id to all ranks, and notes the identity in each checkpoint and shadow that is saved later. Collective. */
zero_status run_directory_share(struct run_directory *run, struct zero_error *error);

/* Marks the run as ended: the next run may overwrite the shadow. If the mark cannot be written (the disk is full), the next run
 * refuses the shadow until the user decides. */
void run_directory_end(struct run_directory *run);

/* The model.json that a run kept. False: none. */
bool run_directory_model(const char *directory, char out_path[RUN_PATH_BYTES]);

/* The latest checkpoint of `directory`. */
struct earlier {
    bool saved;                    /* there is one */
    uint64_t step;                 /* the number of its directory */
    char run[IDENTITY_DIGITS + 8]; /* the id of the run that saved it; "": none */
};

/* ZERO_E_IO: there are checkpoints, or there may be, and the latest one cannot be found. */
zero_status earlier_find(const char *directory, struct earlier *out, struct zero_error *error);

/* ---- between the files of this folder ---- */

/* ZERO_E_ARGUMENT: the directory holds the steps (metrics.jsonl) or the checkpoints of an earlier run; the message says how
 * to go on with that run or to overwrite it. `shadow`: the configuration keeps a shadow, from which a run may recover. */
zero_status earlier_check(const char *directory, bool shadow, struct zero_error *error);

/* ZERO_E_ARGUMENT: the run goes on by --continue, and `earlier` had other settings. */
zero_status run_directory_same(const struct run_directory *run, const struct identity *earlier,
                               struct zero_error *error);

/* The text of run.json, which the caller frees. NULL: no memory. */
char *run_json(const struct run_directory *run, const struct run_facts *facts);

/* share.c: the engine itself only shares sums. Copies rank 0's text, of less than `capacity` bytes, to all ranks. Collective. */
zero_status share_text(zero_engine *engine, char *text, size_t capacity);
