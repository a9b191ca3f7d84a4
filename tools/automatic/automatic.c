#include "tools/automatic/automatic.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/resolve/resolve.h"
#include "tools/automatic/meeting.h"
#include "tools/automatic/this_machine.h"
#include "tools/plan/choice.h"
#include "tools/plan/measure/measure.h"
#include "tools/plan/print/figure.h"
#include "tools/plan/print/table.h"
#include "tools/text/output.h"

/* The message of rank 0 to the others. */
struct word {
    zero_status code;
    char message[sizeof((struct zero_error *)0)->message];
    bool measures; /* all ranks are needed: their link is measured */
    struct cell cell;
};

struct search {
    const struct automatic *a;
    const struct config *config; /* resolved with one of the rows */
    const char *text;            /* without what is "auto" */
    struct shapes shapes;
    struct space space;
    struct meeting meeting;
    uint32_t threads; /* of a rank */
    struct this_machine here;
    struct machine machine;
    char description
        [THIS_MACHINE_TEXT_BYTES]; /* of this machine; "": another one is described, or none is needed */
    struct word word;
};

static void say(const struct search *s, const char *column, const char *text) {
    if (!s->a->quiet) line_print("%-9s %s", column, text);
}

struct edit_changes automatic_changes(const struct space *space, uint32_t ranks) {
    return (struct edit_changes){
        .recompute = space->recompute ? EDIT_RECOMPUTE_INTERVAL : EDIT_RECOMPUTE_KEPT, .ranks = ranks};
}

/* ---- the machine ---- */

static uint32_t node_ranks(const struct search *s) {
    return s->a->transport ? s->meeting.node_ranks : s->a->ranks;
}

/* As the engine divides them. */
static uint32_t threads_of(const struct search *s) {
    uint32_t threads = s->meeting.threads, ranks = s->a->ranks;
    if (s->a->transport || s->config->threads) return threads;
    return threads > ranks ? threads / ranks : 1;
}

static zero_status meet(struct search *s, struct zero_error *error) {
    zero_status status = meeting_open(s->config, !s->a->transport, &s->meeting, error);
    if (!status) s->threads = threads_of(s);
    return status;
}

/* The paths of the offload, or of the activation checkpoints alone. */
static const struct config_paths *drive_paths(const struct config *c) {
    if (c->optimizer_paths.count) return &c->optimizer_paths;
    return c->param_paths.count || !c->recompute.on_drive ? &c->param_paths : &c->recompute.paths;
}

static void ask_here(struct search *s) {
    const struct config *c = s->config;
    const struct config_paths *paths = drive_paths(c);
    s->here = (struct this_machine){.ranks = node_ranks(s),
                                    .threads = s->threads,
                                    .width = s->shapes.width,
                                    .dtype = (enum dtype)c->compute_dtype,
                                    .drive = paths->count ? paths->items[0] : NULL,
                                    .drive_block = c->aio_block_bytes,
                                    .drive_depth = c->aio_queue_depth,
                                    .transport = s->a->transport,
                                    .host_bytes = s->meeting.host_bytes};
}

bool automatic_known(const struct config *config, const struct shapes *shapes, const char *transport,
                     uint32_t node_ranks, uint32_t threads, struct machine *out) {
    struct automatic a = {.transport = transport, .ranks = node_ranks};
    struct search *s = calloc(1, sizeof *s);
    struct zero_error unused = ERROR_NONE;
    if (!s) return false;
    s->a = &a, s->config = (struct config *)config, s->shapes = *shapes, s->threads = threads;
    s->meeting.node_ranks = node_ranks, s->meeting.host_bytes = UINT64_MAX;
    ask_here(s);
    bool known = this_machine_find(&s->here, s->description) &&
                 this_machine_machine(&s->here, s->description, out, &unused) == ZERO_OK;
    free(s);
    return known;
}

/* The ranks may be able to take less memory than the description says. */
static zero_status describe(struct search *s, struct zero_error *error) {
    struct hardware_choice choice = {.device = s->a->gpu};
    struct machine *m = &s->machine;
    TRY(hardware_machine(s->a->hardware, &choice, m, error));
    if (m->device.is_host == s->meeting.on_gpu)
        return error_set(
            error, ZERO_E_ARGUMENT,
            "%s is %s, and this run computes on %s: describe the device that it has, or set device.type",
            m->device.name, m->device.is_host ? "a CPU" : "a GPU", s->meeting.on_gpu ? "a GPU" : "the CPU");
    char assumption[200];
    if (machine_assumes(m, (enum dtype)s->config->compute_dtype, assumption, sizeof assumption))
        say(s, "machine", assumption);
    double most = s->meeting.host_bytes == UINT64_MAX ? m->host.memory_bytes : (double)s->meeting.host_bytes;
    if (m->host.memory_bytes > most) m->host.memory_bytes = most;
    if (m->device.is_host && m->device.memory_bytes > most / node_ranks(s))
        m->device.memory_bytes = most / node_ranks(s);
    return ZERO_OK;
}

/* Sets the machine, unless it has to be measured. */
static zero_status find_machine(struct search *s, struct zero_error *error) {
    if (s->a->gpu || s->a->hardware) return describe(s, error);
    if (s->meeting.on_gpu)
        return error_set(
            error, ZERO_E_ARGUMENT,
            "what is \"auto\" is chosen for a described machine here, because only CPUs are measured: give "
            "--gpu NAME (one of configs/hardware.json, as h100-80g), or --hardware FILE");
    ask_here(s);
    s->word.measures = !this_machine_find(&s->here, s->description);
    return s->word.measures ? ZERO_OK : this_machine_machine(&s->here, s->description, &s->machine, error);
}

static zero_status measure_here(struct search *s, const struct measured_link *link,
                                struct zero_error *error) {
    char note[THIS_MACHINE_PATH_BYTES];
    say(s, "machine", "measuring this machine once, for what is \"auto\": it takes some seconds");
    TRY(this_machine_measure(&s->here, link, s->description, note, error));
    say(s, "", note);
    return this_machine_machine(&s->here, s->description, &s->machine, error);
}

/* ---- rank 0 ---- */

/* The choice of an earlier start of this run, on as many ranks. */
static bool find_earlier(struct search *s) {
    struct zero_error unused = ERROR_NONE;
    struct config earlier = {0};
    char *text = s->a->run ? choice_text_in(s->a->run) : NULL, line[160];
    uint32_t ranks = text ? edit_ranks(text) : 0;
    bool same = ranks == s->a->ranks && config_read(text, &earlier, &unused) == ZERO_OK &&
                config_resolve(&earlier, ranks, &unused) == ZERO_OK;
    struct cell cell = space_cell_of(&earlier);
    if (!s->space.recompute)
        cell.recompute = s->space.fixed.recompute; /* this may need the layers of --model */
    bool found = same && space_find(&s->space, &cell, &s->word.cell);
    if (ranks && ranks != s->a->ranks)
        snprintf(line, sizeof line, "anew: the earlier part of this run was on %" PRIu32 " ranks", ranks);
    else
        snprintf(line, sizeof line, "%s", "anew: the earlier part of this run had other settings");
    if (ranks && !found) say(s, "chosen", line);
    config_free(&earlier);
    free(text);
    return found;
}

static void say_row(const struct search *s, const struct table *t) {
    const struct price *best = &t->row[t->best];
    char name[TABLE_NAME_BYTES], why[TABLE_NAME_BYTES], line[3 * TABLE_NAME_BYTES];
    uint32_t others[TABLE_OTHERS], count = table_others(t, others);
    table_name(best, name);
    snprintf(line, sizeof line,
             "%s: %s a step as planned, the best of %" PRIu32 " rows on %" PRIu32 " rank%s of %s", name,
             figure_seconds(best->step.seconds).chars, t->rows, s->a->ranks, s->a->ranks == 1 ? "" : "s",
             s->machine.device.name);
    say(s, "chosen", line);
    for (uint32_t i = 0; i < count; i++) {
        table_name(&t->row[others[i]], name);
        table_reason(t, others[i], why);
        snprintf(line, sizeof line, "not %s: %s", name, why);
        say(s, "", line);
    }
}

static void set_scenario(const struct search *s, struct scenario *out) {
    uint32_t on_node = node_ranks(s), ranks = s->a->ranks;
    while (ranks % on_node) on_node--;
    *out = (struct scenario){.machine = s->machine,
                             .shapes = s->shapes,
                             .config = s->text,
                             .ranks = ranks,
                             .nodes = ranks / on_node,
                             .threads = s->threads,
                             .space = &s->space,
                             .traced = true,
                             .checkpoints = choice_checkpoints(s->config),
                             .outputs = (enum gpt_outputs)s->config->device_outputs,
                             .processes = s->a->transport && s->machine.device.is_host};
}

static zero_status find_best(struct search *s, struct zero_error *error) {
    struct scenario scenario;
    struct table table;
    set_scenario(s, &scenario);
    zero_status status = table_make(&scenario, &table, error);
    if (!status && !table.row[table.best].fits)
        status = error_set(error, ZERO_E_BUDGET, "\"auto\": %s", table.advice);
    if (!status) s->word.cell = table.row[table.best].cell;
    if (!status) say_row(s, &table);
    table_free(&table);
    return status;
}

/* ---- all ranks ---- */

/* Tells rank 0's outcome so far. */
static zero_status tell(struct search *s, zero_status status, enum automatic_stage *out_stage,
                        struct zero_error *error) {
    s->word.code = status;
    if (status) memcpy(s->word.message, error->message, sizeof s->word.message);
    error_clear(error);
    zero_status told = meeting_tell(&s->meeting, &s->word, sizeof s->word, error);
    if (told) return told;
    *out_stage = AUTOMATIC_SHARED;
    return s->word.code ? error_set(error, s->word.code, "%s", s->word.message) : ZERO_OK;
}

/* The link of processes is measured between them; all else on rank 0's machine. */
static zero_status measure_all(struct search *s, bool first, struct zero_error *error) {
    struct measured_link link = {0};
    zero_status status = ZERO_OK;
    if (s->a->transport && s->a->ranks > 1)
        status = measure_comm(s->meeting.comm, this_machine_link_bytes(&s->here), &link, error);
    return status || !first ? status : measure_here(s, link.per_s > 0 ? &link : NULL, error);
}

static zero_status choose(struct search *s, enum automatic_stage *out_stage, struct zero_error *error) {
    bool first = s->meeting.rank == 0, earlier = first && find_earlier(s);
    zero_status status = first && !earlier ? find_machine(s, error) : ZERO_OK;
    if (earlier) say(s, "chosen", "as in the earlier part of this run, by its config.json");
    if (!first) ask_here(s);
    status = tell(s, status, out_stage, error);
    if (status) return status;
    *out_stage = AUTOMATIC_LOST;
    if (s->word.measures) status = measure_all(s, first, error);
    if (first && !earlier && !status) status = find_best(s, error);
    return tell(s, status, out_stage, error);
}

/* Says which bits depend on the choice. */
static void say_bits(const struct search *s, const char *text) {
    struct config chosen = {0};
    struct zero_error unused = ERROR_NONE;
    bool resolved = !config_read(text, &chosen, &unused) && !config_resolve(&chosen, s->a->ranks, &unused);
    if (s->space.micro[0])
        say(s, "bits",
            "the weights' bits depend on the micro-batch, which is \"auto\"; not on stage and tiers");
    if (resolved && s->space.stage && chosen.accumulation_steps > 1 &&
        !config_written(&chosen, "gradient_accumulation_mode"))
        say(s, "bits",
            "with several micro-steps the stage decides gradient_accumulation_mode, which changes bits: "
            "write it");
    config_free(&chosen);
}

zero_status automatic_choose(const struct automatic *a, struct config *config, const char *text,
                             char **out_text, enum automatic_stage *out_stage, struct zero_error *error) {
    struct search *s = calloc(1, sizeof *s);
    char *opened = NULL;
    *out_text = NULL, *out_stage = AUTOMATIC_ALONE;
    if (!s) return error_set(error, ZERO_E_MEMORY, "no memory to choose what is \"auto\"");
    s->a = a, s->config = config;
    zero_status status = choice_model(NULL, 0, config, &s->shapes, error);
    if (!status) status = space_of(config, text, a->ranks, &s->space, &opened, error);
    s->text = opened;
    if (!status) *out_stage = AUTOMATIC_LOST, status = meet(s, error);
    if (!status) status = choose(s, out_stage, error);
    bool first = s->meeting.rank == 0;
    meeting_close(&s->meeting);
    struct edit_changes changes = automatic_changes(&s->space, a->ranks);
    if (!status) *out_text = edit_run(opened, &s->word.cell, &s->shapes, &changes);
    if (!status && !*out_text) status = error_set(error, ZERO_E_MEMORY, "no memory for the configuration");
    if (!status && first) say_bits(s, *out_text);
    free(opened);
    free(s);
    return status;
}

zero_status automatic_machine(const struct automatic *a, const struct config *config,
                              const struct shapes *shapes, uint64_t *threads, struct machine *out,
                              struct zero_error *error) {
    struct search *s = calloc(1, sizeof *s);
    if (!s) return error_set(error, ZERO_E_MEMORY, "no memory for this machine's description");
    s->a = a, s->config = config, s->shapes = *shapes;
    zero_status status = meet(s, error);
    if (*threads) s->threads = (uint32_t)*threads;
    if (!status) status = find_machine(s, error);
    if (!status && s->word.measures) status = measure_here(s, NULL, error);
    if (!status) *threads = s->threads, *out = s->machine;
    meeting_close(&s->meeting);
    free(s);
    return status;
}
