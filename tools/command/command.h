/* The subcommands of `zero`, in git's manner: one table in main.c, one file per command. */
#pragma once

#include <stdio.h>

#include "engine/base/error.h"
#include "engine/config/config.h"
#include "tools/command/options.h"

/* The process's exit status. EXIT_USAGE: the command line or the configuration is wrong, and nothing was
 * started. */
enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

struct command {
    const char *name, *arguments, *summary;
    const char *description;           /* NULL, or a paragraph for `zero help NAME` */
    const struct option *options;      /* ends with a row without a name; NULL: none */
    int (*run)(int argc, char **argv); /* argv[0] is the command's name */
    bool alone;                        /* takes one process: refused if mpirun started several */
};

extern const struct command command_train, command_sample, command_ckpt, command_config, command_plan,
    command_io, command_sim, command_report, command_eval;

/* Prints `zero NAME: message` and a hint to the help, to stderr. Returns EXIT_USAGE. */
int command_usage_error(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same without the hint. Returns EXIT_FAILED. */
int command_failed(const char *name, const char *message);

/* For a rank that leaves because of what rank 0 says: mpirun ends all ranks when the first one fails, so this one waits a
 * second, in which rank 0 prints. Returns EXIT_USAGE. */
int command_leave_silently(void);

/* Writes the completion of a shell, from the commands' own tables of options. ZERO_E_ARGUMENT: there is none for this shell; the message
 * names those that have one. */
zero_status completion_write(const char *shell, const struct command *const *commands, int count, FILE *out,
                             struct zero_error *error);

/* Compares two checkpoints bit for bit, whatever ranks saved them. Prints a line per tensor that differs. */
zero_status ckpt_diff(const char *a, const char *b, bool *out_same, struct zero_error *error);

/* ---- settings.c: values that the command line gives to keys of the configuration: `--set optimizer.params.lr=1e-4` ---- */
/* *out: the text of the configuration file with the values of `set`, of which a later one overrides an earlier one; the
 * caller frees it. NULL: `set` is empty. A value is JSON; anything else is a string. `other_model`: --model replaces the
 * model block, so that keys of the block are refused. Errors of the file are those of config_read. */
zero_status settings_apply(const char *config_path, const struct option_each *set, bool other_model,
                           char **out, struct zero_error *error);

/* The text of a configuration, which may itself be the argument, as json-c prints it; the caller frees it. */
zero_status settings_text(const char *config_path, char **out, struct zero_error *error);

/* After config_read of that text: the keys' source is the command line, for `zero config`. */
void settings_mark(struct config *config, const struct option_each *set);

/* ---- recall.c: what a run keeps in RUN/run.json so that it can go on without being told again: its configuration, and the options of
 * its command line, with absolute paths ---- */
struct json_object;

struct recalled {
    struct json_object *root; /* owns the texts */
    const char *config;       /* the name of the configuration's file; NULL: the run keeps nothing */
    const char *text;         /* of the configuration, with what --set changed and "auto" as it was */
    const char
        *version; /* a line of its `zero --version` that this one has not; NULL: none, but for the commit */
    char **argv;  /* argv[0] is the command; as options_parse takes it */
    int argc;
};

/* Leaves *out empty if the directory holds no run, or one that keeps nothing. */
void recall_read(const char *run, struct recalled *out);
void recall_free(struct recalled *recalled);

/* For run.json: the member "kept". NULL: a text is not UTF-8, or memory is missing; then the run keeps nothing. `values` are those of
 * options_parse; `passing` ends with NULL and names the options that are of one start alone. */
struct json_object *recall_keep(const struct option *options, const void *values, const char *const *passing,
                                const char *text);
