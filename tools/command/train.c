/* `zero train`: reads the request, refuses errors before anything starts, then runs the ranks. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <json-c/json.h>

#include "engine/base/hash.h"
#include "engine/comm/launch.h"
#include "tools/automatic/automatic.h"
#include "tools/command/command.h"
#include "tools/command/subject.h"
#include "tools/data/corpus.h"
#include "tools/text/format.h"
#include "tools/text/output.h"
#include "tools/train/interrupt.h"
#include "tools/train/job.h"
#include "tools/train/trainer.h"
#include "tools/weights/weights.h"

enum { LOCAL_RANKS_MAX = 1024 }; /* threads of one process */
_Static_assert((int)CONFIG_OUTPUTS_AGAIN == (int)GPT_OUTPUTS_AGAIN &&
                   (int)CONFIG_OUTPUTS_KEPT == (int)GPT_OUTPUTS_KEPT &&
                   (int)CONFIG_OUTPUTS_FITTING == (int)GPT_OUTPUTS_FITTING,
               "outputs are numbered alike");

struct arguments {
    struct job job; /* some options are fields of it */
    const char *config, *model;
    uint64_t ranks;
    struct option_maybe resume;
    struct option_name recover;
    struct option_list data;
    struct option_each set;
    struct recalled recalled;       /* what the run keeps that goes on */
    const char *origin;             /* the --model with which it began */
    struct option_list origin_data; /* its data, for a configuration without data.path */
    char kept[RUN_PATH_BYTES];      /* the model that the run keeps, once it has a checkpoint */
    struct config_text text;        /* of the configuration, as it was read; without `json` */
    /* the configuration that the run keeps, or with what --set changes and the planner chose; NULL: the file as it is */
    char *json;
    char *given;    /* the configuration before the planner chose */
    bool automatic; /* the planner chose what was "auto", or failed at `stage` */
    enum automatic_stage stage;
    bool random;
};

static const struct option options[] = {
    {"--ranks", "N", "trains on N ranks, threads of this process (1); under mpirun each process is one rank",
     COUNT(ranks)},
    {"--data", "PATH...", "trains on these files and directories instead of data.path", LIST(data)},
    {"--model", "DIR",
     "the model of a Hugging Face directory in place of the model block; the run begins with the weights "
     "there (*.safetensors). A config.json: the model alone",
     TEXT(model)},
    {"--random", NULL, "begins with random weights, whatever lies in the directory of --model", FLAG(random)},
    {"--set", "KEY=VALUE",
     "takes this value for a key of the configuration, in place of the file's value or its \"auto\"; "
     "repeatable",
     EACH(set)},
    {"--gpu", "NAME",
     "what is \"auto\" is chosen for this device of configs/hardware.json, or of --hardware; by default for "
     "this machine, which is measured once. MFU is the share of its peak",
     TEXT(job.gpu)},
    {"--hardware", "FILE", "adds descriptions for --gpu, or overrides values; alone: its only device",
     TEXT(job.hardware)},
    {"--steps", "N", "optimizer steps (one pass over the training samples)", COUNT(job.steps)},
    {"--run", "DIR",
     "where metrics.jsonl and checkpoints go (a new one, runs/ and the date); one that holds an earlier run "
     "is refused without --overwrite, --resume, --continue or --recover",
     TEXT(job.run.path)},
    {"--overwrite", NULL,
     "begins anew over an earlier run in --run DIR; each of its checkpoints stays until one of the same step "
     "replaces it",
     FLAG(job.run.overwrite)},
    {"--eval-every", "K",
     "measures the loss of the held-out samples, of at most 256 spread evenly, every K steps and at the end",
     COUNT(job.eval_every)},
    {"--ema", NULL,
     "with --eval-every: also the loss of the averaged weights (ema.decay of the configuration)",
     FLAG(job.eval_average)},
    {"--save-every", "N",
     "saves a checkpoint in RUN/checkpoints every N steps, at the end and at Ctrl-C or SIGTERM",
     COUNT(job.save_every)},
    {"--keep", "K", "deletes all but the K newest checkpoints of this run after each save", COUNT(job.keep)},
    {"--resume", "[STEP]",
     "goes on with --run DIR from its latest checkpoint, or from checkpoints/step_STEP: the number counts "
     "updates, without skipped steps",
     MAYBE(resume)},
    {"--continue", NULL,
     "goes on with --run DIR from its latest checkpoint, on any number of ranks, with the same settings and "
     "batch; with nvme.shadow, on as many ranks as before, from the last whole step on the drive; begins it "
     "where there is neither yet. For launchers that start a run again",
     FLAG(job.run.again)},
    {"--recover", "[ID]",
     "goes on with --run DIR, however it ended, from the last whole step on the drive (nvme.shadow). With "
     "the ID that an error message names, or with any, it also goes on with another run's step, or with "
     "other settings",
     NAME(recover)},
    {"--discard-shadow", NULL,
     "overwrites the step that this run or another one, which has not ended, keeps on the drive "
     "(nvme.shadow)",
     FLAG(job.run.discard_shadow)},
    {"--sample", "N", "generates N tokens at the end", COUNT(job.sample)},
    {"--prompt", "TEXT", "the text that the sample continues; for text only", TEXT(job.prompt)},
    {"--quiet", NULL, "prints the sample and the weights' hash only", FLAG(job.run.quiet)},
    {0},
};

/* True if a launcher started several processes with one rank each. */
static bool started(const struct launch *launch) { return comm_of_processes(launch->transport); }

/* The text of the configuration. The file itself is read once, because it may change meanwhile. */
static const char *config_of(const struct arguments *arguments) {
    return arguments->json ? arguments->json : arguments->text.text;
}

static zero_status read_values(struct arguments *arguments, struct config *config, struct zero_error *error) {
    zero_status status = ZERO_OK;
    if (arguments->json) status = config_read(arguments->json, config, error);
    if (!arguments->json && !arguments->text.text)
        status = config_text_read(arguments->config, &arguments->text, error);
    if (!arguments->json && !status) status = config_text_parse(&arguments->text, config, error);
    if (status == ZERO_OK) settings_mark(config, &arguments->set);
    if (status == ZERO_OK && arguments->model) status = config_read_model(config, arguments->model, error);
    if (status == ZERO_OK && !config->data.paths.count && !arguments->data.count)
        arguments->data = arguments->origin_data;
    if (status == ZERO_OK && arguments->data.count)
        status = config_set_paths(config, "data.path", arguments->data.items, arguments->data.count, error);
    return status;
}

/* True if the run certainly goes on with a checkpoint, or with a step on the drive that is later. A checkpoint of another run, over
 * which this one began anew, is none. */
static bool has_checkpoint(const struct arguments *arguments) {
    struct earlier earlier;
    struct identity own;
    struct zero_error unused = ERROR_NONE;
    if (arguments->resume.given) return true;
    if (!arguments->job.run.again || earlier_find(arguments->job.run.path, &earlier, &unused) != ZERO_OK ||
        !earlier.saved)
        return false;
    identity_read(arguments->job.run.path, &own);
    return !*own.id || !*earlier.run || strcmp(own.id, earlier.run) == 0;
}

static bool freezes(const struct config *config) {
    bool any = false;
    for (uint32_t g = 0; g < config->groups.count; g++) any |= config->groups.item[g].frozen;
    return any;
}

/* A run that began with --model goes on with the same model. Its weights are read again where a shadow lacks them, because they are
 * frozen, and where the run may still have to begin. */
static zero_status recall_model(struct arguments *arguments, struct config *config,
                                struct zero_error *error) {
    struct stat found;
    if (config->model.given) return ZERO_OK;
    bool kept = run_directory_model(arguments->job.run.path ? arguments->job.run.path : "", arguments->kept),
         here = arguments->origin && stat(arguments->origin, &found) == 0;
    bool whole = has_checkpoint(arguments) || arguments->recover.given;
    if (kept && whole && (arguments->resume.given || !freezes(config)))
        arguments->model = arguments->kept;
    else if (here)
        arguments->model = arguments->origin;
    else if (arguments->origin)
        return error_set(error, ZERO_E_CONFIG,
                         "%s began with the weights of %s, which are not there any more: give --model DIR",
                         arguments->job.run.path, arguments->origin);
    else
        return ZERO_OK;
    config_free(config);
    return read_values(arguments, config, error);
}

/* Reads the configuration again, with what the planner chose. */
static zero_status choose_automatic(struct arguments *arguments, const struct launch *launch, uint32_t ranks,
                                    struct config *config, struct zero_error *error) {
    bool goes_on = arguments->resume.given || arguments->recover.given || arguments->job.run.again;
    const struct automatic automatic = {.gpu = arguments->job.gpu,
                                        .hardware = arguments->job.hardware,
                                        .run = goes_on ? arguments->job.run.path : NULL,
                                        .transport =
                                            started(launch) ? comm_transport_name(launch->transport) : NULL,
                                        .ranks = ranks,
                                        .quiet = arguments->job.run.quiet};
    char *text = NULL, *chosen = NULL;
    interrupt_enter(INTERRUPT_OPENING, "choosing what is \"auto\"");
    zero_status status = settings_text(config_of(arguments), &text, error);
    arguments->automatic = true;
    if (status == ZERO_OK)
        status = automatic_choose(&automatic, config, text, &chosen, &arguments->stage, error);
    free(text);
    if (status != ZERO_OK) return status;
    free(arguments->json);
    arguments->json = chosen;
    config_free(config);
    return read_values(arguments, config, error);
}

/* Nothing is chosen for it, but its peak is in the steps' MFU. */
static zero_status check_machine(const struct arguments *arguments, struct zero_error *error) {
    struct machine unused;
    return hardware_machine(arguments->job.hardware, &(struct hardware_choice){.device = arguments->job.gpu},
                            &unused, error);
}

static zero_status read_config(struct arguments *arguments, const struct launch *launch, uint32_t ranks,
                               struct config *config, struct zero_error *error) {
    char *changed = NULL;
    zero_status status =
        settings_apply(arguments->json ? arguments->json : arguments->config, &arguments->set,
                       arguments->model || arguments->origin, &changed, error);
    if (changed) free(arguments->json), arguments->json = changed;
    if (status == ZERO_OK) status = read_values(arguments, config, error);
    if (status == ZERO_OK) status = recall_model(arguments, config, error);
    if (status == ZERO_OK && !(arguments->given = strdup(config_of(arguments))))
        status = error_set(error, ZERO_E_MEMORY, "no memory for the configuration");
    bool open = status == ZERO_OK && config_unchosen(config);
    if (status == ZERO_OK && !open && (arguments->job.gpu || arguments->job.hardware))
        status = check_machine(arguments, error);
    if (status == ZERO_OK && config->model.given && open)
        status = choose_automatic(arguments, launch, ranks, config, error);
    if (status == ZERO_OK && config->model.given) status = config_resolve(config, ranks, error);
    if (status == ZERO_OK && !config->model.given)
        status = error_set(error, ZERO_E_CONFIG, "%s has no model block; add one, or give --model DIR",
                           arguments->config);
    return status;
}

/* A run that continues from a checkpoint has its weights already. A run with --continue may still have to begin, and
 * a shadow lacks frozen weights. */
static zero_status find_weights(const struct arguments *arguments, struct job *job,
                                struct zero_error *error) {
    if (!arguments->model || arguments->resume.given) return ZERO_OK;
    job->pretrained.directory = arguments->model;
    return arguments->random ? ZERO_OK : pretrained_open(&job->pretrained, &job->model, error);
}

/* Refuses a GPT or a batch that cannot work, before anything starts. */
static zero_status check_model(const struct config *config, const struct gpt_config *model, const char *path,
                               struct zero_error *error) {
    const char *problem = gpt_config_problem(model);
    if (problem) return error_set(error, ZERO_E_CONFIG, "%s: the model block: %s", path, problem);
    if (config->micro_batch > (uint64_t)INT32_MAX / model->context)
        return error_set(error, ZERO_E_CONFIG,
                         "%s: a micro-batch of %" PRIu64
                         " samples of %u tokens is more than 2147483647 tokens: choose a smaller "
                         "train_micro_batch_size_per_gpu, or more gradient_accumulation_steps",
                         path, config->micro_batch, model->context);
    return ZERO_OK;
}

static const char *default_run(char *out, size_t size) {
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    strftime(out, size, "runs/%Y%m%d-%H%M%S", &local);
    return out;
}

static int exit_status(zero_status status) {
    return status == ZERO_E_INTERRUPTED ? interrupt_exit_status() : status ? EXIT_FAILED : EXIT_OK;
}

/* Ranks that meet at an address have a command line each; mpirun gives the same command line to all ranks. */
static int usage_error(const struct launch *launch, const char *message) {
    if (launch->rank == 0) return command_usage_error("train", "%s", message);
    if (!launch->master) return command_leave_silently();
    return command_usage_error("train", "rank %u: %s", launch->rank, message);
}

/* Locks the run before any file in the directory is replaced. A directory named by the date belongs to this run
 * only. */
static zero_status lock_run(struct job *job, const struct launch *launch) {
    error_clear(&job->lock_error);
    if (launch->rank || job->run.is_new) return ZERO_OK;
    zero_status status = run_directory_lock(&job->run, &job->lock_error);
    if (status != ZERO_OK && !started(launch)) fprintf(stderr, "zero train: %s\n", job->lock_error.message);
    return status;
}

static zero_status open_data(struct job *job) {
    struct dataset *data = &job->dataset;
    TRY(dataset_open(&job->config, DATASET_TRAIN, &job->data_error, data));
    zero_status status = corpus_contents(data->train, HASH_START, &job->run.data_contents, &job->data_error);
    if (status == ZERO_OK && data->held_out)
        status = corpus_contents(data->held_out, job->run.data_contents, &job->run.data_contents,
                                 &job->data_error);
    return status;
}

/* Processes that mpirun started agree on a missing file through the engine: the file may be missing on one host
 * only. */
static int run_job(struct job *job, const struct launch *launch) {
    zero_status status = open_data(job);
    if (status != ZERO_OK && !started(launch)) return command_failed("train", job->data_error.message);
    job->is_text = status == ZERO_OK && job->dataset.train->token_bytes == 1;
    if (status == ZERO_OK && job->sample && job->prompt && !job->is_text) {
        dataset_close(&job->dataset);
        return usage_error(launch, "--prompt is text, but the data are token files (.bin), and there is no "
                                   "tokenizer here: leave --prompt out");
    }
    bool as_threads = !started(launch) && job->ranks > 1;
    job->local = as_threads ? zero_local_create(job->ranks) : NULL;
    if (as_threads && !job->local) return command_failed("train", zero_last_error());
    bool spells = job->sample && job->tokenizer && launch->rank == 0;
    struct decoder *decoder = spells ? subject_find_decoder(job->tokenizer, "train") : NULL;
    job->sampling.decoder = decoder;
    status = trainer_run(job, launch->rank);
    if (job->local) zero_local_destroy(job->local);
    dataset_close(&job->dataset);
    decoder_close(decoder);
    return exit_status(status);
}

/* Ranks that mpirun started wait for each other in the engine, where they learn which rank failed first. False: another
 * rank failed first and reports it. The engine finds the same error in the file, with the file's name. */
static bool failed_first(const struct arguments *arguments, const struct launch *launch,
                         const struct zero_error *error) {
    if (!started(launch)) return true;
    zero_runtime runtime = {.struct_size = sizeof runtime, .model = arguments->model};
    const char *config = arguments->json ? arguments->json : arguments->config;
    zero_engine *engine = zero_engine_init_with(config, &runtime);
    bool first = engine ? launch->rank == 0 : strcmp(zero_last_error(), error->message) == 0;
    zero_engine_destroy(engine);
    return first;
}

/* The engine knows nothing of this error; it only tells ranks that wait. */
static bool automatic_prints(const struct arguments *arguments, const struct launch *launch,
                             const struct zero_error *error) {
    if (arguments->stage == AUTOMATIC_LOST) return true;
    if (arguments->stage == AUTOMATIC_ALONE) failed_first(arguments, launch, error);
    return launch->rank == 0;
}

/* All processes find the same error in the same file, so the first process reports it. A missing file may be missing on
 * one host only, so every process reports it. */
static int config_failed(const struct arguments *arguments, const struct launch *launch,
                         const struct zero_error *error) {
    bool prints = arguments->automatic ? automatic_prints(arguments, launch, error)
                                       : failed_first(arguments, launch, error) || error->code == ZERO_E_IO;
    if (prints && launch->rank == 0)
        fprintf(stderr, "zero train: %s\n", error->message);
    else if (prints)
        fprintf(stderr, "zero train: rank %u: %s\n", launch->rank, error->message);
    return error->code == ZERO_E_BUDGET ? EXIT_FAILED : EXIT_USAGE;
}

/* Why these options do not go together; NULL: they do. */
static const char *conflict(const struct arguments *a) {
    int ways = a->job.run.overwrite + a->resume.given + a->recover.given + a->job.run.again;
    if (ways > 1)
        return "a run begins in one way: --overwrite begins anew, --resume and --continue go on from a "
               "checkpoint, --recover from the drive; drop one";
    if (ways && !a->job.run.overwrite && !a->job.run.path)
        return "--resume, --continue and --recover need --run DIR: the run to go on with";
    if (a->resume.given && a->random)
        return "--random makes new weights, and --resume goes on with those of a checkpoint; drop one";
    if (a->recover.given && a->job.run.discard_shadow)
        return "--recover goes on from the shadow that --discard-shadow overwrites; drop one";
    if (a->job.run.again && !a->job.save_every)
        return "--continue goes on from checkpoints; --save-every N makes them";
    if (a->job.keep && !a->job.save_every)
        return "--keep says how many checkpoints stay; --save-every N makes them";
    if (a->job.eval_average && !a->job.eval_every)
        return "--ema measures the averaged weights whenever --eval-every K measures the weights: add it";
    if (a->ranks > LOCAL_RANKS_MAX) return "--ranks makes at most 1024 threads; use mpirun for more";
    return NULL;
}

/* Takes what the run keeps: all that the command line does not give; with a configuration, only the model and, where that gives none,
 * the data. */
static zero_status take_kept(struct arguments *arguments, const struct launch *launch,
                             struct zero_error *error) {
    struct recalled *r = &arguments->recalled;
    struct arguments earlier = {0};
    const char *operand;
    bool goes_on = arguments->resume.given || arguments->recover.given || arguments->job.run.again;
    if (!arguments->job.run.path || !goes_on) return ZERO_OK;
    recall_read(arguments->job.run.path, r);
    if (!r->config) return ZERO_OK;
    if (r->version && launch->rank == 0 && !arguments->job.run.quiet)
        line_print("versions  the run had another: %s; from here on its bits may differ",
                   format_name(r->version).chars);
    zero_status status = options_parse(options, r->argc, r->argv, &earlier, &operand, error);
    if (status)
        return error_set(
            error, ZERO_E_ARGUMENT,
            "%s/run.json: options of another version of zero: name CONFIG.json and the options again",
            arguments->job.run.path);
    if (started(launch)) earlier.ranks = 0;
    if (arguments->resume.given) earlier.random = false;
    arguments->origin = arguments->model ? NULL : earlier.model, earlier.model = NULL;
    arguments->random |= !arguments->model && earlier.random;
    arguments->origin_data = earlier.data;
    if (arguments->config) return ZERO_OK;
    options_fill(options, &earlier, arguments);
    arguments->config = r->config;
    arguments->json = strdup(r->text);
    if (!arguments->json) return error_set(error, ZERO_E_MEMORY, "no memory for the configuration");
    if (launch->rank || arguments->job.run.quiet) return ZERO_OK;
    line_print("kept      by %s: the configuration of %s, and the options that are not given again",
               arguments->job.run.path, r->config);
    return ZERO_OK;
}

/* For run.json: what a start that goes on takes. */
static struct json_object *keep_options(const struct arguments *arguments, const struct config *config) {
    static const char *const passing[] = {"--run",     "--overwrite",      "--resume", "--continue",
                                          "--recover", "--discard-shadow", "--quiet",  NULL};
    struct arguments kept = *arguments;
    if (arguments->origin) kept.model = arguments->origin;
    kept.data = (struct option_list){(const char *const *)config->data.paths.items, config->data.paths.count};
    return arguments->given ? recall_keep(options, &kept, passing, arguments->given) : NULL;
}

static int train(struct arguments *arguments, const struct launch *launch) {
    struct zero_error error = ERROR_NONE;
    char run[64];
    struct run_lock lock = {.command = "train"};
    struct job *job = &arguments->job;
    struct run_request *request = &job->run;
    request->is_new = !request->path;
    if (!request->path) request->path = default_run(run, sizeof run);
    request->lock = &lock;
    request->resume = arguments->resume.given, request->resume_step = arguments->resume.count;
    request->recover = arguments->recover.given, request->recover_id = arguments->recover.text;
    request->config = &job->config, request->config_path = arguments->config;
    job->ranks = started(launch) ? launch->size : (uint32_t)arguments->ranks;
    job->transport = started(launch) ? comm_transport_name(launch->transport) : NULL;
    job->sampling.choosing = CHOOSING_DEFAULT;
    job->live = !started(launch) && isatty(STDOUT_FILENO);
    error_clear(&job->data_error);
    zero_status status = read_config(arguments, launch, job->ranks, &job->config, &error);
    request->config_json = config_of(arguments);
    request->model_path = arguments->model;
    job->tokenizer = arguments->origin ? arguments->origin : arguments->model;
    request->chosen = arguments->automatic;
    if (status == ZERO_OK && job->eval_every && !job->config.data.eval.paths.count &&
        job->config.data.eval.fraction <= 0)
        status = error_set(&error, ZERO_E_ARGUMENT,
                           "--eval-every needs held-out data: add \"eval\": 0.01, or \"eval\": a path, to "
                           "the data block of %s",
                           arguments->config);
    if (status == ZERO_OK && job->eval_average && job->config.ema.decay == 0)
        status = error_set(&error, ZERO_E_ARGUMENT,
                           "--ema: %s keeps no averaged weights: set ema.decay, such as 0.999, or drop --ema",
                           arguments->config);
    if (status == ZERO_OK) {
        job->model = weights_model(&job->config.model);
        job->model.recompute = (uint32_t)job->config.recompute.blocks;
        job->model.checkpoints = (zero_tier)job->config.recompute.tier;
        job->model.documents = job->config.data.document_end >= 0;
        job->model.no_graphs = !job->config.device_graphs;
        job->model.outputs = (enum gpt_outputs)job->config.device_outputs;
        job->model.attention = (enum gpt_attention)job->config.device_attention;
        status = check_model(&job->config, &job->model, arguments->config, &error);
    }
    if (status == ZERO_OK) status = find_weights(arguments, job, started(launch) ? &job->data_error : &error);
    if (job->data_error.code) status = ZERO_OK; /* the ranks agree on it */
    int result;
    if (status == ZERO_OK) {
        if (job->pretrained.weights) request->tokenizer = job->pretrained.directory;
        request->kept = keep_options(arguments, &job->config);
        if (lock_run(job, launch) == ZERO_OK || started(launch))
            result = run_job(job, launch);
        else
            result = EXIT_FAILED;
        run_lock_release(&lock);
    } else {
        result = config_failed(arguments, launch, &error);
    }
    pretrained_close(&job->pretrained);
    config_free(&job->config);
    json_object_put(request->kept);
    return result;
}

static int begin(struct arguments *arguments, const struct launch *launch) {
    struct zero_error error = ERROR_NONE;
    if (take_kept(arguments, launch, &error) != ZERO_OK) return usage_error(launch, error.message);
    const char *problem = conflict(arguments);
    if (problem) return usage_error(launch, problem);
    if (!arguments->config && arguments->recalled.argc)
        return usage_error(launch, "CONFIG.json is missing, and the run keeps none yet; name it first");
    if (!arguments->config) return usage_error(launch, "CONFIG.json is missing; name it first");
    if (!arguments->ranks) arguments->ranks = 1;
    if (interrupt_open("train", launch->rank == 0, &error) != ZERO_OK)
        return command_failed("train", error.message);
    return train(arguments, launch);
}

static int run(int argc, char **argv) {
    struct zero_error error = ERROR_NONE;
    struct launch launch = {0};
    struct arguments arguments = {0};
    if (launch_read_environment(&launch, &error) != ZERO_OK) {
        fprintf(stderr, "zero train: %s\n", error.message);
        return EXIT_USAGE;
    }
    if (started(&launch) && !launch.size) {
        fprintf(stderr, "zero train: PMIx gave a rank but not the number of ranks; start with mpirun, or "
                        "with srun --mpi=pmix\n");
        return EXIT_USAGE;
    }
    if (options_parse(options, argc, argv, &arguments, &arguments.config, &error) != ZERO_OK)
        return usage_error(&launch, error.message);
    if (arguments.ranks && started(&launch))
        return usage_error(&launch, "--ranks makes threads, but mpirun, srun or torchrun has started the "
                                    "ranks already; drop one of the two");
    int result = begin(&arguments, &launch);
    recall_free(&arguments.recalled);
    free(arguments.json);
    free(arguments.given);
    free(arguments.text.text);
    return result;
}

const struct command command_train = {
    .name = "train",
    .arguments = "[CONFIG.json] [OPTIONS]",
    .summary = "trains a GPT on text or token files",
    .description =
        "Trains the GPT of the model block on text, byte by byte, or on llm.c token files (.bin).\n"
        "A run that goes on (--resume, --continue, --recover) has its configuration and its options, so "
        "CONFIG.json and\n"
        "options may be left out; what is given takes the place of what the run keeps. With CONFIG.json it "
        "keeps only the\n"
        "model, and the data where CONFIG.json has none.\n"
        "Files are read in sorted order of their paths, without directories whose names begin with a dot;\n"
        "configs/README.md#data says which rank takes which sample.\n"
        "Writes one JSON object per step to metrics.jsonl and ends with a hash of the weights, which is\n"
        "the same for every ZeRO stage.\n"
        "Ctrl-C, SIGTERM, SIGHUP, SIGUSR1 and SIGXCPU stop all ranks after the present step or sampled "
        "token;\n"
        "with --save-every they save before. A run that is still opening ends within a second. A save that "
        "has\n"
        "begun gets half a second more after Ctrl-C or SIGTERM, and all the time it needs after the others. "
        "A\n"
        "second signal ends the run at once, with the checkpoints that are complete. The same signal again\n"
        "within a second, as `timeout` sends it, is no second one, except Ctrl-C of the terminal.\n"
        "Exit status: 0 trained, 1 failed, 2 wrong command line or configuration, 128 + the number of the\n"
        "signal that ended it (Ctrl-C: 130).",
    .options = options,
    .run = run,
};
