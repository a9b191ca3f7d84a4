/* `zero sim`: runs the engine's executor and stages on virtual ranks, in virtual time. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/limits.h"
#include "tools/command/command.h"
#include "tools/plan/machine/hardware.h"
#include "tools/sim/case.h"
#include "tools/sim/scaling.h"

enum { TRACE_RANKS_DEFAULT = 8, STEPS_DEFAULT = 5, SEQUENCE_MAX = 1 << 24 };

struct arguments {
    struct job_choice job;
    const char *params, *faults, *trace, *csv, *svg;
    uint64_t ranks, shard, steps, seed, trace_ranks, check;
    bool data;
};

static const struct option options[] = {
    {"--ranks", "N", "virtual ranks, one per device (8); with --csv or --svg the largest number (1024)",
     COUNT(ranks)},
    {"--shard", "N",
     "ranks that share one copy of the model; other groups have their own copies (as the configuration says)",
     COUNT(shard)},
    {"--steps", "N", "optimizer steps (5)", COUNT(steps)},
    {"--seed", "S",
     "decides the order of simultaneous events, and faults: the same seed gives the same events (1)",
     COUNT(seed)},
    {"--faults", "LIST",
     "some of straggler, lost, slow, delay, reorder, drive, stuck, node, separated by commas", TEXT(faults)},
    {"--model", "NAME",
     "a model by name (zero plan --models), or a config.json; by default the model block's", TEXT(job.model)},
    {"--units", "N", "instead of a model: the number of equal units", COUNT(job.units)},
    {"--params", "N", "the parameters of all these units, as 7e9 (200e6 per unit)", TEXT(params)},
    {"--micro-batch", "N", "sequences per rank in one forward and backward (the configuration's, or 1)",
     COUNT(job.micro_batch)},
    {"--seq", "N", "tokens of a sequence (the model's most, or 2048)", COUNT(job.seq)},
    {"--gpu", "NAME", "the device, of configs/hardware.json (the only one of --hardware, else h100-80g)",
     TEXT(job.gpu)},
    {"--link", "NAME", "the link between the ranks of a node: its name, or a speed", TEXT(job.link)},
    {"--net", "SPEED", "the network of one rank, as 400Gb, or of a node's ranks together, as 3200Gb/node",
     TEXT(job.net)},
    {"--nvme", "SPEED", "a node's drives together, as 7GB/s, or 7GB/s,5GB/s to read and write",
     TEXT(job.nvme)},
    {"--hardware", "FILE", "adds descriptions, or overrides values, in the form of configs/hardware.json",
     TEXT(job.hardware)},
    {"--data", NULL,
     "computes with data, on a small model in fp32: the weights must equal serial training's, bit for bit",
     FLAG(data)},
    {"--check", "N",
     "instead of a configuration: runs N small simulations, drawn from the seeds from --seed on",
     COUNT(check)},
    {"--trace", "FILE", "writes the timeline of the first ranks, for ui.perfetto.dev", TEXT(trace)},
    {"--trace-ranks", "N", "the number of ranks in the timeline (8)", COUNT(trace_ranks)},
    {"--csv", "FILE", "writes weak scaling from 8 ranks on, fully sharded and hybrid, as a table", TEXT(csv)},
    {"--svg", "FILE", "draws this table as a chart", TEXT(svg)},
    {0},
};

static int fail(const struct zero_error *error) {
    fprintf(stderr, "zero sim: %s\n", error->message);
    bool usage =
        error->code == ZERO_E_ARGUMENT || error->code == ZERO_E_CONFIG || error->code == ZERO_E_UNSUPPORTED;
    return usage ? EXIT_USAGE : EXIT_FAILED;
}

static zero_status read_arguments(struct arguments *a, uint32_t *out_faults, struct zero_error *error) {
    char *end = NULL;
    double params = a->params ? strtod(a->params, &end) : 0;
    *out_faults = 0;
    if (a->params && (end == a->params || *end || !(params >= 1) || params > 1e15))
        return error_set(error, ZERO_E_ARGUMENT, "--params needs a number of 1 to 1e15, as 7e9, not \"%s\"",
                         a->params);
    if (a->params && !a->job.units)
        return error_set(error, ZERO_E_ARGUMENT,
                         "--params goes with --units N: say how many units they are in");
    if (a->ranks > RANKS_MAX || a->shard > RANKS_MAX)
        return error_set(error, ZERO_E_ARGUMENT, "--ranks and --shard are at most %d", (int)RANKS_MAX);
    if (a->job.seq > SEQUENCE_MAX)
        return error_set(error, ZERO_E_ARGUMENT, "--seq is at most %d", (int)SEQUENCE_MAX);
    if (a->job.units > UINT16_MAX / 8)
        return error_set(error, ZERO_E_ARGUMENT, "--units %" PRIu64 " are more than %d", a->job.units,
                         UINT16_MAX / 8);
    if (a->steps > 100000) return error_set(error, ZERO_E_ARGUMENT, "--steps is at most 100000");
    if ((a->csv || a->svg) && (a->faults || a->trace || a->shard))
        return error_set(
            error, ZERO_E_ARGUMENT,
            "--csv and --svg run many simulations: --faults, --trace and --shard go without them");
    a->job.params = (uint64_t)llround(params);
    return a->faults ? sim_faults_parse(a->faults, out_faults, error) : ZERO_OK;
}

static zero_status open_file(const char *path, FILE **out, struct zero_error *error) {
    *out = path ? fopen(path, "w") : NULL;
    if (*out || !path) return ZERO_OK;
    return error_set(error, ZERO_E_IO, "%s cannot be written: %s", path, strerror(errno));
}

static zero_status close_file(FILE *file, const char *path, struct zero_error *error) {
    if (!file) return ZERO_OK;
    bool bad = ferror(file);
    if (fclose(file) == 0 && !bad) return ZERO_OK;
    return error_set(error, ZERO_E_IO, "%s: not all could be written: %s", path, strerror(errno));
}

/* ---- one simulation ---- */

/* Every virtual rank has its own memory, so the sum over all ranks is limited. */
static zero_status check_data(const struct job_ranks *r, struct zero_error *error) {
    enum { ELEMENTS_MAX = 100000000 };
    uint64_t ranks = (uint64_t)r->setup.terms.mesh[AXIS_SHARD] * r->setup.terms.mesh[AXIS_REPLICATE];
    if (r->parameters <= ELEMENTS_MAX / ranks) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT,
                     "--data: %" PRIu64 " ranks of %" PRIu64
                     " parameters are too much for one process: give fewer, as --units 4 --params 10000",
                     ranks, r->parameters);
}

/* Prints the seed, which replays the failure, and then the shortest schedule that still fails. */
static int tell(const struct arguments *a, const struct sim_setup *setup, const struct zero_error *failure) {
    struct sim_shortest shortest;
    fprintf(stderr, "zero sim: seed %" PRIu64 ": %s\n", a->seed, failure->message);
    case_shorten(setup, a->data, &shortest);
    if (!shortest.result.status) return EXIT_FAILED;
    fputs("zero sim: the shortest schedule found: ", stderr);
    case_print(&shortest.setup, a->data, stderr);
    fprintf(stderr, "zero sim: there: %s\n", shortest.result.error.message);
    return EXIT_FAILED;
}

static int check(const struct arguments *a) {
    struct sim_tally tally = {0};
    uint64_t failed = case_check(a->seed, a->check, NULL, stdout, &tally);
    printf("%" PRIu64 " with data, %" PRIu64 " with recomputation, %" PRIu64 " in times by chance; faults:",
           tally.with_data, tally.recomputed, tally.chaotic);
    for (uint32_t f = 0; f < SIM_FAULT_KINDS; f++)
        printf(" %s %" PRIu64 "%s", sim_fault_word((enum sim_fault)f), tally.fault[f],
               f + 1 < SIM_FAULT_KINDS ? "," : "\n");
    printf("%" PRIu64 " simulations, %" PRIu64 " failed\n", a->check, failed);
    return failed ? EXIT_FAILED : EXIT_OK;
}

static int simulate(const struct arguments *a, const struct job *job, uint32_t faults,
                    struct zero_error *error) {
    struct job_ranks r;
    struct sim_result result = {0};
    uint32_t ranks = a->ranks ? (uint32_t)a->ranks : 8;
    zero_status status = job_place(job, ranks, (uint32_t)a->shard, &r, error);
    if (status) return fail(error);
    char assumption[200];
    if (machine_assumes(&job->machine, r.setup.terms.precision.compute, assumption, sizeof assumption))
        fprintf(stderr, "zero sim: %s\n", assumption);
    r.setup.steps = (uint32_t)a->steps;
    r.setup.seed = a->seed;
    r.setup.faults = faults;
    r.setup.trace_ranks = (uint32_t)a->trace_ranks;
    status = open_file(a->trace, &r.setup.trace, error);
    if (!status && a->data) status = check_data(&r, error);
    if (!status) status = case_run(&r.setup, a->data, &result, error);
    if (!status) report_print(job, &r, &result, stdout);
    if (result.untraced)
        fprintf(stderr,
                "zero sim: %s has no room for %" PRIu64 " operations: lower --trace-ranks or --steps\n",
                a->trace, result.untraced);
    zero_status closed = close_file(r.setup.trace, a->trace, error);
    if (!status) status = closed;
    r.setup.trace = NULL;
    int exit = status ? fail(error) : result.status ? tell(a, &r.setup, &result.error) : EXIT_OK;
    job_release(&r);
    return exit;
}

/* ---- scaling ---- */

static int scale(const struct arguments *a, const struct job *job, struct zero_error *error) {
    struct scaling *scaling = malloc(sizeof *scaling);
    if (!scaling) return error_set(error, ZERO_E_MEMORY, "no memory for curves"), fail(error);
    FILE *csv = NULL, *svg = NULL;
    zero_status status = open_file(a->csv, &csv, error);
    if (!status) status = open_file(a->svg, &svg, error);
    if (!status)
        status = scaling_run(job, a->ranks ? (uint32_t)a->ranks : 1024, (uint32_t)a->steps, a->seed, stderr,
                             scaling, error);
    if (!status && csv) scaling_csv(scaling, csv);
    if (!status && svg) scaling_svg(scaling, job, svg);
    zero_status closed = close_file(csv, a->csv, error);
    if (!closed) closed = close_file(svg, a->svg, error);
    if (!status) status = closed;
    if (!status && !csv) scaling_csv(scaling, stdout);
    free(scaling);
    return status ? fail(error) : EXIT_OK;
}

static int run(int argc, char **argv) {
    struct zero_error error = ERROR_NONE;
    struct arguments a = {.steps = STEPS_DEFAULT, .seed = 1, .trace_ranks = TRACE_RANKS_DEFAULT};
    uint32_t faults;
    if (options_parse(options, argc, argv, &a, &a.job.config, &error) != ZERO_OK)
        return command_usage_error("sim", "%s", error.message);
    if (a.check && a.job.config)
        return command_usage_error("sim", "--check draws its own configurations: give no CONFIG.json");
    if (a.check) return check(&a);
    if (!a.job.config) return command_usage_error("sim", "CONFIG.json is missing");
    if (read_arguments(&a, &faults, &error)) return command_usage_error("sim", "%s", error.message);
    struct job job;
    if (job_open(&a.job, &job, &error)) return fail(&error), EXIT_USAGE;
    int status = a.csv || a.svg ? scale(&a, &job, &error) : simulate(&a, &job, faults, &error);
    job_close(&job);
    return status;
}

const struct command command_sim = {
    .name = "sim",
    .arguments = "CONFIG.json [OPTIONS] | --check N",
    .summary = "runs the engine's own policy on thousands of virtual ranks, with faults, from a seed",
    .description =
        "The engine's stages and executor run on virtual ranks, in one thread and in virtual time.\n"
        "Transport, device and drive are virtual too: they have the speeds of configs/hardware.json, and\n"
        "hold no data. The simulation emits, orders, plans and waits for the same operations as a real\n"
        "run. At every event it checks that ranks post the same collectives, that no buffer is touched\n"
        "while an operation uses it or read before it was written, that shards partition every unit,\n"
        "that at least one rank can go on, and that a fault ends all ranks in time with an error that\n"
        "names its cause.",
    .options = options,
    .run = run,
};
