/* Trains, from opening the engine to the hash of the weights. Every rank runs the same function; rank 0 also prints and writes files. */
#pragma once

#include "engine/zero.h"
#include "tools/metrics/metrics.h"
#include "tools/train/job.h"
#include "tools/train/interrupt.h"

/* ---- saves.c: a run's checkpoints: their directory, the trainer's notes in them, and how a run continues from one. All functions but
 * saves_open and saves_try are collective. ---- */
struct saves {
    char directory[4096 + 16]; /* RUN/checkpoints, the same text on all ranks */
    uint64_t number;           /* of the last save's directory: updates, without skipped steps */
    bool told;                 /* rank 0 reported that an old checkpoint could not be deleted */
};

/* How far a run is. Both numbers count from the beginning of the run and include resumed parts. */
struct position {
    uint64_t steps;   /* steps of the trainer, with skipped steps */
    uint64_t samples; /* samples taken from the endless sequence (tools/data/order.h) */
    uint64_t planned; /* the steps that the run was to train; 0: not known */
};

/* `run`: the run's directory, the same text on all ranks. */
void saves_open(const char *run, struct saves *out);

/* Whether saves will work there, before the first step: rank 0's. */
zero_status saves_try(const struct saves *saves, struct zero_error *error);

/* Loads from RUN/checkpoints the latest checkpoint, or that with the number `step` if `step` is not 0. A checkpoint that no trainer
 * wrote, for example an imported one, has position 0. */
zero_status saves_resume(zero_engine *engine, const char *run, uint64_t step, struct position *out);

/* Recovers from the shadow on the drive ("nvme": {"shadow": true}): zero_engine_recover. */
zero_status saves_recover(zero_engine *engine, zero_fill_fn fill, void *user, struct position *out);

/* Called after each step: notes the position for saves and shadows. Local. */
zero_status saves_note(zero_engine *engine, struct position position);

/* Begins a save. It may continue in the background ("checkpoint": {"async": true}) until saves_end, which also deletes
 * all checkpoints except the newest `keep`; 0 keeps all. If an old checkpoint cannot be deleted, the save does not
 * fail; rank 0 reports it on stderr, once. */
zero_status saves_begin(zero_engine *engine, struct saves *saves);
zero_status saves_end(zero_engine *engine, struct saves *saves, uint64_t keep);

/* ---- expected.c: what a step should be: the model's arithmetic beside what the devices can do at most, and the bytes that the planner
 * counts. For the step's line and for `zero report`. ---- */
struct expected {
    double flops;        /* of a step, all ranks: three times the forward's, without recomputation */
    double peak_flops;   /* per second, of all devices together; NaN: unknown */
    char source[160];    /* of the peak: "..." */
    uint64_t wire_bytes; /* that all ranks send in a step, from the second step on; 0: unknown, or none */
};

/* After commit, on rank 0. Fails in nothing: what cannot be found is unknown. The peak is stated (--gpu, --hardware, or the name of the
 * GPU in configs/hardware.json), or measured (zero plan --measure by --hardware; what was measured for "auto"). */
void expected_find(const struct job *job, zero_engine *engine, struct gpt *gpt, struct expected *out);

/* Runs the ranks of this process: those of job->local as threads, or the only one, `first`. Returns after all have ended. A rank that
 * knows the cause prints each failure to stderr once; the function returns that failure's code. ZERO_E_INTERRUPTED: all ranks stopped
 * after the same step. */
zero_status trainer_run(const struct job *job, uint32_t first);

/* ---- between the files: ranks.c calls end.c, which calls start.c and loop.c; all call trainer.c ---- */

struct trainer {
    const struct job *job;
    struct zero_error *error; /* the rank's first failure */
    uint32_t rank, ranks;
    bool prints;  /* rank 0 */
    bool lr_set;  /* a run that goes on has the configuration's learning rate */
    bool stops;   /* the ranks agreed to stop after a whole step: its state can be saved */
    bool stepped; /* this process has made a whole step */
    uint64_t steps;
    struct run_directory directory;
    struct position begin; /* where the interrupted run stopped that this run continues */
    uint64_t traced;       /* the last step that is traced */
    struct saves saves;
    uint64_t saving;              /* the step whose save has begun; 0: none */
    struct zero_error save_error; /* of the last save, if it failed */
    zero_engine *engine;
    struct gpt *gpt;
    double *loss; /* of each micro-step of a pass */
    struct feed feed;
    struct metrics metrics;
    struct monitor monitor[MONITORS];
    struct progress progress;
    zero_plan plan;
    struct expected expected; /* rank 0's */
    zero_counters counters;   /* as they were when the step began */
};

/* `error` holds this rank's failure; an empty message means that another rank reports the failure. */
zero_status trainer_run_rank(const struct job *job, uint32_t rank, struct zero_error *error);
zero_status trainer_start(struct trainer *trainer);
zero_status trainer_loop(struct trainer *trainer);

/* A call of the engine or of the model failed. */
zero_status trainer_failed(struct trainer *trainer, zero_status status);

/* Ranks of one process share its signals, so rank 0 reports their phase. */
void trainer_enter(const struct trainer *trainer, enum interrupt_phase phase, const char *doing);

zero_status trainer_sum(struct trainer *trainer, double *values, uint32_t count);
zero_status trainer_agree(struct trainer *trainer);

/* Sets the counters so that no step counts the traffic of opening or measuring. */
zero_status trainer_count(struct trainer *trainer);

/* Compares the command's options and the data. A rank that differs from rank 0 writes into `error` the option that
 * differs and both values; the caller lets the ranks agree on that failure. Returns the status of the engine's sum.
 * Collective, after commit. */
zero_status rank_check(zero_engine *engine, const struct job *job, struct zero_error *error);

/* Prints one block before the first step, on rank 0: the model, the ranks, the way they train, the data, and the memory per rank,
 * planned and measured. `anew`: the run goes on from nothing. */
void report_start(const struct job *job, bool anew, const zero_engine *engine, const struct gpt *gpt,
                  const struct expected *expected, const char *run, uint64_t steps);

/* The path of the timeline. `drops`: that of an earlier run goes. A failure to remove it shows when the new one is written. */
void trainer_trace(const struct trainer *trainer, bool drops, char out_path[RUN_PATH_BYTES]);

/* ---- step_sums.c: the values of a step that are summed over ranks: its loss, its traffic and its times ---- */
enum {
    LOSS = AGREED,
    RESIDENT,
    WIRE,
    GATHERS,
    GATHERED,
    REDUCES,
    REDUCED,
    DRIVE_READ,
    DRIVE_WRITTEN,
    COMPUTE_S,
    WAIT_S,
    UPDATE_S,
    SUMS
};

/* Sets all sums but LOSS: this rank's part of the step that began when `counters` were read. Reads `counters` anew.
 * `counts_process`: this rank counts the memory of its process. */
void step_sums_count(const zero_engine *engine, bool counts_process, zero_counters *counters,
                     double sums[SUMS]);

/* Sets the fields of the record that the sums over all ranks give. */
void step_sums_record(const double sums[SUMS], uint32_t ranks, double seconds, struct record *record);
