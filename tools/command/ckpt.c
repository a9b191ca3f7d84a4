/* `zero ckpt`: prints, compares, imports and exports checkpoint files, without an engine. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "engine/base/numbers/dtype.h"
#include "engine/base/utf8.h"
#include "engine/checkpoint/checkpoint.h"
#include "tools/command/command.h"
#include "tools/command/subject.h"
#include "tools/run_directory/run_directory.h"
#include "tools/text/format.h"
#include "tools/train/interrupt.h"
#include "tools/weights/weights.h"

struct arguments {
    uint64_t file_mib;
    const char *dtype;
    bool average;
};

static const struct option options[] = {
    {"--file-mib", "N", "export: files of at most N MiB, where tensors allow (4768)", COUNT(file_mib)},
    {"--dtype", "TYPE", "export: fp32, bf16 or fp16 (the type in which the run computed)", TEXT(dtype)},
    {"--ema", NULL, "export: the averaged weights (ema.decay of the configuration)", FLAG(average)},
    {0},
};

static int report(zero_status status, const struct zero_error *error) {
    if (status == ZERO_OK) return EXIT_OK;
    fprintf(stderr, "zero ckpt: %s\n", error->message);
    return status == ZERO_E_INTERRUPTED ? interrupt_exit_status() : EXIT_FAILED;
}

/* A signal lets an export or an import remove what it has written; a second one ends the process at once. */
static zero_status take_signals(struct zero_error *error) {
    zero_status status = interrupt_open("ckpt", false, error);
    interrupt_enter(INTERRUPT_RUNNING, "");
    return status;
}

/* ---- info ---- */

static void print_files(const struct manifest *m) {
    uint64_t bytes = 0, elements = 0;
    for (uint32_t i = 0; i < m->files; i++) bytes += m->file[i].bytes;
    for (uint32_t i = 0; i < m->params; i++) elements += m->param[i].count;
    printf("parameters  %s in %" PRIu32 " tensors\n", format_grouped(elements).chars, m->params);
    printf("files       %" PRIu32 ", %s\n", m->files, format_bytes(bytes).chars);
}

static void print_run(const struct manifest *m) {
    printf("step        %" PRIu64 ", %" PRIu64 " skipped\n", m->step, m->skipped);
    printf("saved by    %" PRIu32 " ranks at stage %" PRIu32 "\n", m->ranks, m->stage);
    printf("optimizer   %s", *m->optimizer ? format_name(m->optimizer).chars : "none: weights alone");
    for (uint32_t i = 0; i < m->states; i++) printf("%s%s", i ? ", " : ": ", format_name(m->state[i]).chars);
    if (m->groups) printf("; lr %g", m->lr[0]);
    puts("");
    for (uint32_t i = 0; i < m->notes.count; i++) {
        utf8_tame(m->notes.entry[i].value);
        printf("%-11s %s\n", format_name(m->notes.entry[i].key).chars, m->notes.entry[i].value);
    }
}

static void print_params(const struct manifest *m) {
    for (uint32_t i = 0; i < m->params; i++) {
        const struct manifest_param *p = &m->param[i];
        printf("  %-40s", format_name(p->name).chars);
        for (uint32_t d = 0; d < p->dims; d++) printf("%s%" PRIu64, d ? " x " : " ", p->shape[d]);
        puts(p->frozen ? "  frozen" : "");
    }
}

static int info(const char *const *operand, const struct arguments *arguments) {
    struct checkpoint c;
    struct zero_error error = ERROR_NONE;
    zero_status status = checkpoint_open(storage_posix(), operand[0], &c, &error);
    if (!status) {
        format_line(stdout, "%s", c.path);
        print_run(&c.manifest);
        print_files(&c.manifest);
        print_params(&c.manifest);
    }
    checkpoint_close(&c);
    return report(status, &error);
}

/* ---- the others ---- */

static int verify(const char *const *operand, const struct arguments *arguments) {
    struct checkpoint c;
    struct zero_error error = ERROR_NONE;
    float *block = malloc(BLOCK_BYTES);
    zero_status status = checkpoint_open(storage_posix(), operand[0], &c, &error);
    if (!status && !block) status = error_set(&error, ZERO_E_MEMORY, "no memory for a block");
    if (!status) status = checkpoint_verify(&c, block, &error);
    if (!status) format_line(stdout, "%s is whole: every checksum holds", c.path);
    checkpoint_close(&c);
    free(block);
    return report(status, &error);
}

static int diff(const char *const *operand, const struct arguments *arguments) {
    struct zero_error error = ERROR_NONE;
    bool same = true;
    zero_status status = ckpt_diff(operand[0], operand[1], &same, &error);
    return status || same ? report(status, &error) : EXIT_FAILED;
}

/* DTYPES: no such type. */
static int find_dtype(const char *name) {
    int dtype = 0;
    while (dtype < DTYPE_U8 && strcmp(name, dtype_rows[dtype].name) != 0 &&
           strcmp(name, dtype_rows[dtype].torch) != 0)
        dtype++;
    return dtype < DTYPE_U8 ? dtype : DTYPES;
}

static int export_weights(const char *const *operand, const struct arguments *arguments) {
    struct zero_error error = ERROR_NONE, left = ERROR_NONE;
    uint64_t mib = arguments->file_mib ? arguments->file_mib : 4768; /* transformers' 5 GB */
    struct weights_export options = {
        .file_bytes = mib << 20, .dtype = DTYPES, .average = arguments->average, .stop = interrupt_asked};
    if (arguments->dtype) options.dtype = find_dtype(arguments->dtype);
    zero_status status = take_signals(&error);
    if (!status) status = weights_export(operand[0], operand[1], &options, &left, &error);
    if (left.code) fprintf(stderr, "zero ckpt: %s\n", left.message);
    return report(status, &error);
}

/* Locks the run that owns `checkpoints`, if the path ends in RUN/checkpoints. While a run works, each of its saves
 * deletes unfinished files that another process left there. */
static zero_status lock_run_of(const char *checkpoints, struct run_lock *lock, struct zero_error *error) {
    char run[STORAGE_PATH_BYTES];
    static const char folder[] = "checkpoints";
    size_t length = strlen(checkpoints), tail = sizeof folder - 1;
    while (length > 1 && checkpoints[length - 1] == '/') length--;
    if (length < tail || length - tail >= sizeof run) return ZERO_OK;
    size_t above = length - tail;
    bool is_name = !above || checkpoints[above - 1] == '/';
    if (!is_name || memcmp(checkpoints + above, folder, tail) != 0) return ZERO_OK;
    while (above > 1 && checkpoints[above - 1] == '/') above--;
    snprintf(run, sizeof run, "%.*s", above ? (int)above : 1, above ? checkpoints : ".");
    return run_lock_take(lock, run, error);
}

static int import_weights(const char *const *operand, const struct arguments *arguments) {
    struct weights *weights = NULL;
    struct run_lock lock = {.command = "ckpt"};
    struct zero_error error = ERROR_NONE, left = ERROR_NONE;
    zero_status status = lock_run_of(operand[1], &lock, &error);
    if (!status) status = take_signals(&error);
    if (!status) status = weights_open(operand[0], &weights, &error);
    if (!status) status = weights_import(weights, operand[1], interrupt_asked, &left, &error);
    if (left.code) fprintf(stderr, "zero ckpt: %s\n", left.message);
    if (!status) format_line(stdout, "%s/step_00000000, from %s's format", operand[1], weights->format->name);
    weights_close(weights);
    run_lock_release(&lock);
    return report(status, &error);
}

/* All files of an import or an export are open at once; each that is written holds up to three descriptors. */
static void allow_open_files(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static const struct verb {
    const char *name;
    int operands, checkpoints; /* the first ones are checkpoints */
    int (*run)(const char *const *operand, const struct arguments *arguments);
} verbs[] = {{"info", 1, 1, info},
             {"verify", 1, 1, verify},
             {"diff", 2, 2, diff},
             {"export", 2, 1, export_weights},
             {"import", 2, 0, import_weights}};
enum { VERBS = sizeof verbs / sizeof *verbs, OPERANDS_MAX = 2 };

static const struct verb *find_verb(const char *name) {
    for (int i = 0; i < VERBS; i++)
        if (strcmp(verbs[i].name, name) == 0) return &verbs[i];
    return NULL;
}

/* Reads the operands before the first option, then the options. */
static int run(int argc, char **argv) {
    struct zero_error error = ERROR_NONE;
    struct arguments arguments = {0};
    const char *left, *operand[OPERANDS_MAX];
    char inner[OPERANDS_MAX][STORAGE_PATH_BYTES];
    const struct verb *verb = argc > 1 ? find_verb(argv[1]) : NULL;
    if (!verb) return command_usage_error("ckpt", "say what to do: info, verify, diff, export or import");
    int operands = 0;
    for (; operands < verb->operands; operands++) {
        if (argc <= 2 + operands || argv[2 + operands][0] == '-')
            return command_usage_error("ckpt", "%s takes %d names of directories", verb->name,
                                       verb->operands);
        operand[operands] = argv[2 + operands];
    }
    if (options_parse(options, argc - 1 - operands, argv + 1 + operands, &arguments, &left, &error) !=
        ZERO_OK)
        return command_usage_error("ckpt", "%s", error.message);
    if (left) return command_usage_error("ckpt", "unexpected argument \"%s\"", left);
    if (arguments.file_mib > UINT64_MAX >> 21) return command_usage_error("ckpt", "--file-mib is too large");
    if (arguments.dtype && find_dtype(arguments.dtype) == DTYPES)
        return command_usage_error("ckpt", "--dtype is fp32, bf16 or fp16, not \"%s\"", arguments.dtype);
    for (int i = 0; i < verb->checkpoints; operand[i] = inner[i], i++)
        if (subject_checkpoints(operand[i], inner[i], &error)) return report(error.code, &error);
    allow_open_files();
    return verb->run(operand, &arguments);
}

const struct command command_ckpt = {
    .name = "ckpt",
    .arguments = "info DIR | verify DIR | diff DIR DIR | export DIR OUT | import FROM OUT",
    .summary = "looks into checkpoints, compares them, and moves weights in and out",
    .description =
        "DIR is a run's directory, of which the latest checkpoint is meant, or one checkpoint "
        "(RUN/checkpoints/step_00000100).\n"
        "  info     what it is, and its parameters\n"
        "  verify   reads every byte and compares every checksum\n"
        "  diff     which parameters and optimizer states differ, in how many elements and by how much;\n"
        "           exit status 1 if any does\n"
        "  export   its weights as Hugging Face's model.safetensors, in a new or empty directory OUT, with a "
        "config.json\n"
        "           if the checkpoint's configuration describes the model, and with the tokenizer's files of "
        "the\n"
        "           directory that the model came from\n"
        "  import   a GPT-2 or Llama of Hugging Face (a directory), or a GPT-2 of llm.c (a .bin, version 3 "
        "or 5), as the\n"
        "           first checkpoint in OUT, which holds none yet: with OUT = RUN/checkpoints,\n"
        "           `zero train --run RUN --resume` goes on from it",
    .options = options,
    .run = run,
};
