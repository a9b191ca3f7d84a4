/* The subcommands of `zero`, in git's manner: one table in main.c, one file per command. */
#ifndef ZERO_TOOLS_COMMAND_COMMAND_H
#define ZERO_TOOLS_COMMAND_COMMAND_H

#include <stdbool.h>

#include "tools/command/options.h"

/* The process's exit status. EXIT_USAGE: the command line or the configuration is wrong, and nothing was
 * started. */
enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_SIGNAL = 128 /* + its number */ };

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

#endif
