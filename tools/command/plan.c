/* `zero plan`: which models fit, how fast they train, and the cost, before the user rents a machine. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/limits.h"
#include "engine/comm/launch.h"
#include "engine/config/value.h"
#include "tools/automatic/automatic.h"
#include "tools/command/command.h"
#include "tools/plan/choice.h"
#include "tools/plan/measure/measure.h"
#include "tools/plan/print/one_gpu.h"
#include "tools/plan/print/figure.h"
#include "tools/plan/print/largest.h"
#include "tools/plan/print/literature.h"
#include "tools/plan/print/print.h"
#include "tools/plan/throughput.h"
#include "tools/weights/weights.h"

enum { LARGEST_SEQUENCE = 4096, SEQUENCE_MAX = 1 << 24, THREADS_MAX = 4096 };

struct arguments {
    const char *config, *model, *gpu, *host, *hardware, *net, *link, *nvme, *price;
    uint64_t ranks, nodes, micro_batch, accumulate, seq, threads;
    uint64_t measure_link;
    const char *drive, *out, *host_memory, *write_config;
    bool all, json, literature, machines, models, measure, largest;
};

static const struct option options[] = {
    {"--model", "NAME",
     "a model by name (--models lists them), or a Hugging Face config.json or its directory; by default "
     "the model block's",
     TEXT(model)},
    {"--gpu", "NAME", "the device: h100-80g, a100-80g, cpu, or one of --hardware's", TEXT(gpu)},
    {"--host", "NAME",
     "the host of the device: 16-cores, desktop-128g, or one of --hardware's (the device's)", TEXT(host)},
    {"--ranks", "N", "ranks, one per device (those of one node)", COUNT(ranks)},
    {"--nodes", "N", "nodes that the ranks fill evenly (as few as hold them)", COUNT(nodes)},
    {"--net", "SPEED", "the network of one rank, as 400Gb, or of a node's ranks together, as 3200Gb/node",
     TEXT(net)},
    {"--link", "NAME", "the link between the ranks of a node: its name, or a speed", TEXT(link)},
    {"--nvme", "SPEED", "a node's drives together, as 7GB/s, or 7GB/s,5GB/s to read and write, or none",
     TEXT(nvme)},
    {"--hardware", "FILE", "adds descriptions, or overrides values, in the form of configs/hardware.json",
     TEXT(hardware)},
    {"--micro-batch", "N", "sequences per rank in one forward and backward (the configuration's, or 1)",
     COUNT(micro_batch)},
    {"--accumulate", "N", "micro-steps per optimizer step (the configuration's, or 1)", COUNT(accumulate)},
    {"--seq", "N", "tokens of a sequence (the model's most)", COUNT(seq)},
    {"--threads", "N", "CPU threads of a rank that computes on the host (1)", COUNT(threads)},
    {"--price", "N", "the price of one device for an hour: rows then say what a billion tokens cost",
     TEXT(price)},
    {"--measure", NULL,
     "describes this machine for --hardware: --ranks of --threads each, with the model's blocks",
     FLAG(measure)},
    {"--out", "FILE", "where --measure writes it (stdout)", TEXT(out)},
    {"--drive", "DIR", "measures the drive of this directory, too", TEXT(drive)},
    {"--host-memory", "SIZE", "the memory of a node, as 512GiB (the description's)", TEXT(host_memory)},
    {"--largest", NULL,
     "the largest model that fits, and what binds: of Llama's shape, or with --model the most layers of that "
     "model",
     FLAG(largest)},
    {"--write-config", "FILE", "writes the row with the arrow as a configuration for `zero train FILE`",
     TEXT(write_config)},
    {"--all", NULL, "shows rows with and without recomputation, not the better of the two", FLAG(all)},
    {"--json", NULL, "prints one JSON object, with all rows", FLAG(json)},
    {"--models", NULL, "lists the models that have names", FLAG(models)},
    {"--literature", NULL, "prints papers' bytes and published tokens/s beside what would be planned here",
     FLAG(literature)},
    {"--machines", NULL, "prints which models one GPU trains, by its memory, its host's, and a drive",
     FLAG(machines)},
    {0},
};

/* Options of the processes that --measure starts by mpirun; the help does not show them. */
static const struct option link_options[] = {{"--measure-link", "BYTES", NULL, COUNT(measure_link)}, {0}};

/* Counts that a plan computes with: their products and sums fit in 64 bits, and each fits in 32. */
static zero_status check_counts(const struct arguments *a, struct zero_error *error) {
    const struct {
        const char *option;
        uint64_t value, most;
    } counts[] = {{"--ranks", a->ranks, RANKS_MAX},
                  {"--nodes", a->nodes, RANKS_MAX},
                  {"--threads", a->threads, THREADS_MAX},
                  {"--seq", a->seq, SEQUENCE_MAX}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i].value > counts[i].most)
            return error_set(error, ZERO_E_ARGUMENT,
                             "%s %" PRIu64 " is more than a plan takes: give at most %" PRIu64,
                             counts[i].option, counts[i].value, counts[i].most);
    return ZERO_OK;
}

/* ---- the machine ---- */

static zero_status read_price(const char *text, double *out, struct zero_error *error) {
    char *end;
    double price = text ? strtod(text, &end) : *out;
    if (text && (end == text || *end || !(price > 0) || isinf(price)))
        return error_set(error, ZERO_E_ARGUMENT, "--price needs a number above 0, as 2.5, not \"%s\"", text);
    *out = price;
    return ZERO_OK;
}

static zero_status read_memory(const char *text, double *out, struct zero_error *error) {
    uint64_t bytes;
    if (!text) return ZERO_OK;
    if (!config_size_parse(text, &bytes) || bytes == CONFIG_BYTES_UNLIMITED || !bytes)
        return error_set(error, ZERO_E_ARGUMENT, "--host-memory needs a size, as 512GiB, not \"%s\"", text);
    *out = (double)bytes;
    return ZERO_OK;
}

static zero_status find_machine(const struct arguments *a, struct machine *out, struct zero_error *error) {
    struct hardware_choice choice = {a->gpu, a->link, a->net, a->nvme, a->host};
    TRY(hardware_machine(a->hardware, &choice, out, error));
    TRY(read_price(a->price, &out->device.price_per_hour, error));
    return read_memory(a->host_memory, &out->host.memory_bytes, error);
}

static zero_status place_ranks(const struct arguments *a, struct scenario *s, struct zero_error *error) {
    uint64_t per_node = s->machine.node_ranks;
    uint64_t ranks = a->ranks ? a->ranks : per_node * (a->nodes ? a->nodes : 1);
    uint64_t nodes = a->nodes ? a->nodes : (ranks + per_node - 1) / per_node;
    while (!a->nodes && ranks % nodes) nodes++;
    if (ranks > RANKS_MAX)
        return error_set(error, ZERO_E_ARGUMENT,
                         "--ranks %" PRIu64 " is more than the %d ranks that can train together", ranks,
                         (int)RANKS_MAX);
    if (ranks % nodes)
        return error_set(error, ZERO_E_ARGUMENT,
                         "--ranks %" PRIu64 " do not fill %" PRIu64
                         " nodes evenly: choose a multiple of %" PRIu64,
                         ranks, nodes, nodes);
    if (nodes > 1 && !s->machine.between.name[0])
        return error_set(error, ZERO_E_ARGUMENT,
                         "%" PRIu64 " nodes need a network, and %s has none: give --net SPEED", nodes,
                         s->machine.device.name);
    s->ranks = (uint32_t)ranks, s->nodes = (uint32_t)nodes;
    s->processes = nodes > 1 && s->machine.device.is_host;
    return ZERO_OK;
}

/* ---- the configuration ---- */

static enum dtype default_type(const struct machine *m) {
    if (m->device.is_host) return DTYPE_F32;
    return m->device.flops[DTYPE_BF16] > 0  ? DTYPE_BF16
           : m->device.flops[DTYPE_F16] > 0 ? DTYPE_F16
                                            : DTYPE_F32;
}

/* Reads the file strictly, so that errors name the file's keys as in other commands. */
static zero_status read_config(const struct arguments *a, struct config *config, char **out_text,
                               struct zero_error *error) {
    if (!a->config) return ZERO_OK;
    zero_status status = config_read(a->config, config, error);
    if (!status) *out_text = choice_text(a->config);
    return status || *out_text ? status : error_set(error, ZERO_E_IO, "%s cannot be read", a->config);
}

/* Each cell of the table changes the text. `given`: of the file; NULL: there is none. */
static zero_status edit_config(const struct arguments *a, const struct machine *m, const char *given,
                               struct config *config, char **out_text, struct zero_error *error) {
    char *own = given ? NULL : edit_default(1, default_type(m));
    zero_status status = own ? config_read(own, config, error) : ZERO_OK;
    const char *text = given ? given : own;
    if (!status && text) *out_text = edit_batch(text, a->micro_batch, a->accumulate);
    free(own);
    if (status || *out_text) return status;
    return error_set(error, ZERO_E_MEMORY, "no memory for the configuration");
}

/* ---- the command ---- */

static int print_models(void) {
    printf("%-14s%12s%8s%8s%7s%9s%9s  %s\n", "model", "parameters", "layers", "width", "heads", "tokens",
           "vocab", "shapes from");
    for (uint32_t i = 0; shapes_at(i); i++) {
        const struct shapes *s = shapes_at(i);
        printf("%-14s%12s%8" PRIu64 "%8" PRIu64 "%7" PRIu64 "%9" PRIu64 "%9" PRIu64 "  %s\n", s->name,
               figure_count((double)shapes_parameters(s)).chars, s->layers, s->width, s->heads, s->context,
               s->vocab, s->source);
    }
    return EXIT_OK;
}

static int fail(const struct zero_error *error) {
    fprintf(stderr, "zero plan: %s\n", error->message);
    return error->code == ZERO_E_MEMORY || error->code == ZERO_E_INTERNAL ? EXIT_FAILED : EXIT_USAGE;
}

/* Without a model, --largest chooses its own. */
static zero_status find_model(const struct arguments *a, struct config *config, struct scenario *s,
                              struct zero_error *error) {
    bool own = a->model || config->model.given;
    if (!a->largest || own) return choice_model(a->model, a->seq, config, &s->shapes, error);
    s->shapes = (struct shapes){.context = a->seq ? a->seq : LARGEST_SEQUENCE};
    return ZERO_OK;
}

static void take_recompute(const struct config *config, struct scenario *s) {
    uint32_t recompute = choice_recompute(config, s->shapes.layers);
    s->recompute = recompute ? recompute : 1;
    s->segments = (uint32_t)config->recompute.checkpoints;
    s->checkpoints = choice_checkpoints(config);
    s->outputs = (enum gpt_outputs)config->device_outputs;
}

static zero_status find_largest(const struct arguments *a, const struct config *config, struct scenario *s,
                                struct zero_error *error) {
    struct largest largest;
    bool own = a->model || config->model.given;
    TRY(largest_find(s, own ? LARGEST_DEEPER : LARGEST_LLAMA, &largest, error));
    s->shapes = largest.shapes;
    take_recompute(config, s);
    if (!a->json) print_largest(&largest, stdout);
    return ZERO_OK;
}

/* ---- keys that are "auto" ---- */

static zero_status check_open(const struct arguments *a, const char *path, struct zero_error *error) {
    const char *option = a->largest       ? "--largest"
                         : a->micro_batch ? "--micro-batch"
                         : a->accumulate  ? "--accumulate"
                                          : NULL;
    if (!option) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT,
                     "%s plans a configuration without \"auto\", and %s is \"auto\" in %s", option, path,
                     a->config);
}

/* For a configuration that leaves keys to the planner: the rows are those that `zero train` searches. Without a named device, the
 * machine is this one. */
static zero_status open_space(struct arguments *a, const char *text, struct config *config,
                              struct scenario *s, struct space *space, char **out_text,
                              struct zero_error *error) {
    bool described = a->gpu || a->hardware;
    zero_status status = described ? place_ranks(a, s, error) : ZERO_OK;
    if (!described) s->ranks = a->ranks ? (uint32_t)a->ranks : 1;
    if (!status) status = find_model(a, config, s, error);
    if (!status) status = space_of(config, text, s->ranks, space, out_text, error);
    if (status) return status;
    s->space = space;
    s->traced = true;
    const struct automatic automatic = {.ranks = s->ranks, .quiet = a->json};
    a->ranks = s->ranks;
    if (!described)
        status = automatic_machine(&automatic, config, &s->shapes, &a->threads, &s->machine, error);
    return status;
}

/* Reads the configuration, the machine, the model and the rows. */
static zero_status open_scenario(struct arguments *a, struct config *config, struct scenario *s,
                                 struct space *space, char **out_text, struct zero_error *error) {
    char *given = NULL;
    zero_status status = read_config(a, config, &given, error);
    const char *path = given && !status ? config_unchosen(config) : NULL;
    if (path) status = check_open(a, path, error);
    if (!status && (!path || a->gpu || a->hardware)) status = find_machine(a, &s->machine, error);
    if (!status && path) status = open_space(a, given, config, s, space, out_text, error);
    if (!status && !path) status = edit_config(a, &s->machine, given, config, out_text, error);
    if (!status && !path) status = find_model(a, config, s, error);
    if (!status) status = place_ranks(a, s, error);
    free(given);
    return status;
}

/* The configuration of the row with the arrow. A model by name, or one that --largest found, has only sizes; any other model
 * keeps its block. */
static char *row_config(const struct arguments *a, const struct config *config, const struct scenario *s,
                        const struct price *row) {
    bool file = a->model && config->model.given && !shapes_find(a->model);
    char *given = s->space    ? strdup(s->config)
                  : a->config ? choice_text(a->config)
                              : edit_default(1, default_type(&s->machine));
    char *block = file ? choice_block(a->model) : NULL, *text = NULL;
    struct edit_changes changes = {0};
    if (s->space) changes = automatic_changes(s->space, s->ranks);
    changes.micro_batch = a->micro_batch;
    changes.accumulate = a->accumulate;
    changes.block = block;
    changes.sizes = a->model ? !file : !config->model.given;
    changes.layers = a->largest;
    changes.context = a->seq > 0;
    if (given && (block || !file)) text = edit_run(given, &row->cell, &s->shapes, &changes);
    free(given);
    free(block);
    return text;
}

static zero_status write_config(const struct arguments *a, const struct config *config,
                                const struct scenario *s, const struct table *t, struct zero_error *error) {
    const struct price *row = &t->row[t->best];
    if (!row->fits) return error_set(error, ZERO_E_CONFIG, "--write-config: no row fits: %s", t->advice);
    char *text = row_config(a, config, s, row);
    if (!text) return error_set(error, ZERO_E_MEMORY, "no memory for the configuration");
    FILE *out = fopen(a->write_config, "wx");
    bool failed = !out || fprintf(out, "%s\n", text) < 0;
    failed |= out && fclose(out) != 0;
    free(text);
    if (!out && errno == EEXIST)
        return error_set(error, ZERO_E_IO,
                         "--write-config %s is there already: give a new name, or remove it",
                         a->write_config);
    if (failed)
        return error_set(error, ZERO_E_IO, "--write-config %s cannot be written: %s", a->write_config,
                         strerror(errno));
    if (!a->json) printf("\nWritten to %s: zero train %s --data PATH\n", a->write_config, a->write_config);
    return ZERO_OK;
}

static zero_status plan(struct arguments *a, struct config *config, struct zero_error *error) {
    struct scenario s = {0};
    struct space space;
    char *text = NULL;
    struct table table = {0};
    zero_status status = open_scenario(a, config, &s, &space, &text, error);
    s.threads = a->threads ? (uint32_t)a->threads : 1;
    if (!status && a->host_memory && s.machine.device.is_host) /* its ranks share it */
        s.machine.device.memory_bytes = s.machine.host.memory_bytes * s.nodes / s.ranks;
    take_recompute(config, &s);
    s.config = text;
    if (!status && a->largest) status = find_largest(a, config, &s, error);
    if (!status) status = table_make(&s, &table, error);
    if (!status && a->json) print_json(&s, &table, stdout);
    if (!status && !a->json) print_table(&s, &table, a->all, stdout);
    if (!status && a->write_config) status = write_config(a, config, &s, &table, error);
    free(text);
    table_free(&table);
    return status;
}

/* ---- measuring ---- */

static int measure_link(uint64_t bytes) {
    struct zero_error error = ERROR_NONE;
    struct launch launch;
    struct measured_link link = {0};
    if (launch_read_environment(&launch, &error) || measure_mpi(bytes, &link, &error)) return fail(&error);
    if (launch.rank == 0) printf("link %g %g %g\n", link.per_s, link.reduce_per_s, link.latency_s);
    return EXIT_OK;
}

/* The configuration's model, else the demo's model. */
static struct gpt_config measured_model(const struct config *config) {
    struct gpt_config model = {.layers = 1,
                               .width = 384,
                               .heads = 6,
                               .context = 256,
                               .vocab = 256,
                               .tied = true,
                               .layer_norm_epsilon = 1e-5,
                               .initializer_range = 0.02};
    if (config->model.given) model = weights_model(&config->model);
    return model;
}

static zero_status write_measured(const struct arguments *a, const struct measure_options *o,
                                  const struct measured *m, struct zero_error *error) {
    FILE *out = a->out ? fopen(a->out, "w") : stdout;
    if (!out) return error_set(error, ZERO_E_IO, "--out %s cannot be written: %s", a->out, strerror(errno));
    measure_print(o, m, out);
    if (!a->out) return ZERO_OK; /* main checks stdout */
    bool failed = ferror(out);
    failed |= fclose(out) != 0;
    return failed ? error_set(error, ZERO_E_IO, "--out %s cannot be written", a->out) : ZERO_OK;
}

static int measure_machine(const struct arguments *a) {
    struct zero_error error = ERROR_NONE;
    struct config config = {0};
    zero_status status = a->config ? config_read(a->config, &config, &error) : ZERO_OK;
    if (!status && a->model)
        status = error_set(&error, ZERO_E_ARGUMENT,
                           "--measure takes the model's shapes from CONFIG.json's model block");
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t ranks = a->ranks ? a->ranks : cpus > 1 ? (uint64_t)cpus : 2;
    if (!status && a->config) status = config_resolve(&config, (uint32_t)ranks, &error);
    struct measure_options o = {.ranks = (uint32_t)ranks,
                                .threads = a->threads ? (uint32_t)a->threads
                                                      : (uint32_t)fmax(1, (double)(cpus / (long)ranks)),
                                .model = measured_model(&config),
                                .batch = a->config ? (uint32_t)config.micro_batch : 8,
                                .drive = a->drive,
                                .drive_block = a->config ? config.aio_block_bytes : 1 << 20,
                                .drive_depth = a->config ? config.aio_queue_depth : 16,
                                .program = "/proc/self/exe"};
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    o.program = length > 0 ? (program[length] = 0, program) : NULL;
    if (a->micro_batch) o.batch = (uint32_t)a->micro_batch;
    o.bytes = 12ull * o.model.width * o.model.width * sizeof(float);
    struct measured measured;
    if (!status) status = measure(&o, &measured, &error);
    if (!status) status = write_measured(a, &o, &measured, &error);
    config_free(&config);
    return status ? fail(&error) : EXIT_OK;
}

static int run(int argc, char **argv) {
    struct zero_error error = ERROR_NONE;
    struct arguments arguments = {0};
    if (argc == 3 && strcmp(argv[1], link_options->name) == 0) {
        const char *none;
        if (options_parse(link_options, argc, argv, &arguments, &none, &error)) return fail(&error);
        return measure_link(arguments.measure_link);
    }
    if (options_parse(options, argc, argv, &arguments, &arguments.config, &error) ||
        check_counts(&arguments, &error))
        return command_usage_error("plan", "%s", error.message);
    if (arguments.models) return print_models();
    if (arguments.measure) return measure_machine(&arguments);
    if (arguments.machines) return one_gpu_machines_print(stdout, &error) ? fail(&error) : EXIT_OK;
    if (arguments.literature) {
        bool printed = !literature_print(stdout, &error) && !throughput_print(stdout, &error) &&
                       !one_gpu_print(stdout, &error);
        return printed ? EXIT_OK : fail(&error);
    }
    struct config config = {0};
    zero_status status = plan(&arguments, &config, &error);
    config_free(&config);
    return status ? fail(&error) : EXIT_OK;
}

const struct command command_plan = {
    .name = "plan",
    .arguments = "[CONFIG.json] --model NAME --gpu NAME [OPTIONS]",
    .summary = "says which stages fit, how fast they are and what they cost, before you rent a machine",
    .description =
        "Prices stages 0 to 3 x offloading x recomputation. The bytes of a rank come from the engine's\n"
        "plan, the bytes on the wire and the drive from the operations that a step emits, and the time\n"
        "from the engine's executor, which runs these operations in virtual time on a described machine\n"
        "(configs/hardware.json). `flight` is the gathered units and their gradients. The `busy` shares\n"
        "may add up to more than the step, because work overlaps.\n"
        "Assumptions: a GPU holds the activations that `zero train` needs there, and outputs that it\n"
        "keeps where there is room (device.keep_outputs); libraries take 5 % of its memory; its norms,\n"
        "activations, sums and loss take as long as the bytes that they move;\n"
        "the host updates offloaded state, and the ranks of a node share its memory, of which copies to and\n"
        "from devices take their part;\n"
        "gathers and NCCL's own sums are rings. MFU leaves recomputation out. `clipped` is a step that "
        "updates in the\n"
        "backward and then again, clipped, under the next forward, where all steps do. The stage and the "
        "offloading of\n"
        "CONFIG.json are replaced, but tiered state stays tiered; its other keys hold. If keys are \"auto\"\n"
        "that `zero train` chooses, these alone are searched, without --gpu and --hardware for this machine.",
    .options = options,
    .run = run,
};
