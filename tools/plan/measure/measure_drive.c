/* Measures the speed of a drive for ranks that offload to it. The nvme tier's probe measures reads or writes alone. The
 * engine's own refresh measures both together, because it moves chunks in a different pattern than any probe, and on
 * some drives faster. It runs under a forward that computes: as in a training, the thread that posts requests must wait
 * for its core. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/checkpoint/json.h"
#include "offload/directory.h"
#include "offload/io_probe.h"
#include "tools/plan/measure/measure.h"

enum {
    UNITS = 16,
    UNIT_ELEMENTS = 1 << 20,
    STEPS = 5,
    PROBE_BYTES = 256 << 20,
    BRIEF_PROBE_BYTES = 64 << 20,
    BRIEF_CELL_MS = 10
};

struct drive_rank {
    double read_per_s, write_per_s, mixed_per_s;
    zero_status status;
    struct zero_error error;
};

struct drive_task {
    const struct measure_options *o;
    struct drive_rank *rank;
};

/* The probe's cell with aio's block size and depth, else the cell that the probe suggests. */
static const struct io_probe_cell *find_cell(const struct io_probe *probe, const struct measure_options *o) {
    for (uint32_t i = 0; i < IO_PROBE_CELLS; i++)
        if (probe->cells[i].block_bytes == o->drive_block && probe->cells[i].queue_depth == o->drive_depth)
            return &probe->cells[i];
    return &probe->cells[probe->suggested];
}

static void probe_rank(struct measure_team *team, uint32_t rank, void *user) {
    struct drive_task *t = user;
    struct drive_rank *r = &t->rank[rank];
    struct io_probe probe;
    measure_together(team);
    struct io_probe_options options = {.path = t->o->drive, .file_bytes = PROBE_BYTES};
    if (t->o->brief) options.file_bytes = BRIEF_PROBE_BYTES, options.cell_ms = BRIEF_CELL_MS;
    r->status = io_probe(&options, &probe, &r->error);
    if (r->status) return;
    r->read_per_s = find_cell(&probe, t->o)->read;
    r->write_per_s = find_cell(&probe, t->o)->write;
}

/* ---- the engine's refresh: a model whose forward only takes time, and whose gradients stay zero ---- */

/* `slot`: all parameters share it and no code reads it. Each rank has its own slot, because ranks are threads. */
static zero_status declare(zero_engine *engine, zero_unit *unit[UNITS], zero_slot *slot) {
    zero_status status = ZERO_OK;
    for (int u = 0; u < UNITS && !status; u++) {
        char name[16];
        snprintf(name, sizeof name, "u%d", u);
        status = zero_engine_add_unit(engine, name, &unit[u]);
        zero_param param = {
            .struct_size = sizeof param, .name = name, .dims = 1, .shape = {UNIT_ELEMENTS}, .slot = slot};
        if (!status) status = zero_unit_add_param(unit[u], &param);
    }
    return status ? status : zero_engine_commit(engine, NULL);
}

static void fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    memset(out, 0, count * sizeof *out);
}

/* Keeps a core busy for this time. */
static void be_busy(uint64_t ns) {
    volatile double x = 1;
    for (uint64_t began = clock_now_ns(); clock_now_ns() - began < ns;)
        for (int i = 0; i < 1000; i++) x = x * 1.0000001 + 1e-9;
}

static zero_status step(zero_engine *engine, zero_unit *const unit[UNITS], uint64_t forward_ns) {
    zero_status status = zero_micro_begin(engine, ZERO_TRAIN);
    for (int u = 0; u < UNITS && !status; u++) {
        status = zero_forward_begin(unit[u]);
        be_busy(forward_ns);
        if (!status) status = zero_forward_end(unit[u]);
    }
    for (int u = UNITS; u-- > 0 && !status;) {
        status = zero_backward_begin(unit[u]);
        if (!status) status = zero_backward_end(unit[u]);
    }
    return status ? status : zero_engine_step(engine, NULL);
}

static uint64_t moved(const zero_engine *engine) {
    zero_counters c = {.struct_size = sizeof c};
    zero_engine_counters(engine, &c);
    return c.drive_read_bytes + c.drive_write_bytes;
}

/* Seconds of a step: the median of several, because drives vary. */
static zero_status time_steps(zero_engine *engine, zero_unit *const unit[UNITS], uint64_t forward_ns,
                              double *out_s) {
    zero_status status = step(engine, unit, forward_ns);
    double seconds[STEPS];
    for (int i = 0; i < STEPS && !status; i++) {
        uint64_t began = clock_now_ns();
        status = step(engine, unit, forward_ns);
        seconds[i] = (double)(clock_now_ns() - began) * 1e-9;
    }
    *out_s = measure_median(seconds, STEPS);
    return status;
}

/* Measures a step with idle cores first. Then the cores compute for half of that time, so that the drive still limits
 * the step. */
static zero_status measure_refresh(zero_engine *engine, zero_unit *const unit[UNITS], double *out_per_s) {
    double idle_s, busy_s;
    zero_status status = step(engine, unit, 0); /* chunks that were never stored are not read */
    if (!status) status = zero_engine_flush(engine);
    uint64_t before = moved(engine);
    if (!status) status = step(engine, unit, 0);
    if (!status) status = zero_engine_flush(engine);
    uint64_t bytes = moved(engine) - before;
    if (!status) status = time_steps(engine, unit, 0, &idle_s);
    if (!status) status = time_steps(engine, unit, (uint64_t)(idle_s * 1e9 / (2 * UNITS)), &busy_s);
    if (!status) status = zero_engine_flush(engine);
    if (!status) *out_per_s = (double)bytes / busy_s;
    return status;
}

/* The engine's configuration, which the caller frees; NULL: no memory. */
static char *config_text(const struct measure_options *o) {
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    if (!file) return NULL;
    fputs("{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 0, "
          "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": ",
          file);
    json_write_string(file, o->drive);
    fprintf(file, "}}, \"aio\": {\"block_size\": %u, \"queue_depth\": %u}}", (unsigned)o->drive_block,
            (unsigned)o->drive_depth);
    return fclose(file) == 0 ? text : (free(text), NULL);
}

static void refresh_rank(struct measure_team *team, uint32_t rank, void *user) {
    struct drive_task *t = user;
    struct drive_rank *r = &t->rank[rank];
    char *json = config_text(t->o);
    zero_local *alone = zero_local_create(1);
    zero_runtime runtime = {.struct_size = sizeof runtime, .threads = t->o->threads, .local = alone};
    zero_engine *engine = alone && json ? zero_engine_init_with(json, &runtime) : NULL;
    zero_unit *unit[UNITS];
    zero_slot slot;
    zero_status status = engine ? declare(engine, unit, &slot) : ZERO_E_INTERNAL;
    if (!status) status = zero_engine_fill(engine, fill, NULL);
    measure_together(team);
    if (!status) status = measure_refresh(engine, unit, &r->mixed_per_s);
    if (status) r->status = error_set(&r->error, status, "%s", zero_last_error());
    zero_engine_destroy(engine);
    if (alone) zero_local_destroy(alone);
    free(json);
}

/* ---- alone and together ---- */

static zero_status first_failure(const struct drive_task *t, struct zero_error *error) {
    for (uint32_t r = 0; r < t->o->ranks; r++)
        if (t->rank[r].status) return error_pass(error, &t->rank[r].error);
    return ZERO_OK;
}

/* Every rank has its own files, as in a training: together the ranks may get more of a drive than one rank does. */
zero_status measure_drive(const struct measure_options *o, struct hardware_drive *out,
                          struct zero_error *error) {
    struct drive_task task = {o, calloc(o->ranks, sizeof(struct drive_rank))};
    if (!task.rank) return error_set(error, ZERO_E_MEMORY, "no memory to measure with");
    zero_status status = measure_run(o->ranks, probe_rank, &task, error);
    if (!status) status = first_failure(&task, error);
    if (!status) status = measure_run(o->ranks, refresh_rank, &task, error);
    if (!status) status = first_failure(&task, error);
    struct swap_directory directory;
    if (!status) status = swap_directory_open(o->drive, false, &directory, error);
    if (!status) {
        *out =
            (struct hardware_drive){.bytes = (double)swap_free_bytes(directory.handle), .endurance_tbw = NAN};
        swap_directory_close(&directory);
    }
    for (uint32_t r = 0; r < o->ranks && !status; r++) {
        out->read_per_s += task.rank[r].read_per_s;
        out->write_per_s += task.rank[r].write_per_s;
        out->mixed_per_s += task.rank[r].mixed_per_s;
    }
    free(task.rank);
    return status;
}
