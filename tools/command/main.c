/* `zero`: finds the subcommand and runs it. */
#include <stdio.h>
#include <string.h>

#include "engine/comm/launch.h"
#include "engine/config/suggest.h"
#include "engine/zero.h"
#include "tools/command/command.h"
#include "tools/command/version.h"
#include "tools/text/format.h"
#include "tools/text/output.h"

static int run_help(int argc, char **argv);
static int run_completion(int argc, char **argv);

static const struct command command_help = {
    .name = "help",
    .arguments = "[COMMAND]",
    .summary = "says what a command does and which options it takes",
    .run = run_help,
};

static const struct command command_completion = {
    .name = "completion",
    .arguments = "SHELL",
    .summary = "prints the completion of bash or zsh",
    .description = "For this shell: source <(zero completion bash). tools/install installs both.",
    .run = run_completion,
};

static const struct command *const commands[] = {
    &command_train, &command_sample, &command_eval,   &command_ckpt,       &command_config, &command_plan,
    &command_sim,   &command_io,     &command_report, &command_completion, &command_help};
enum { COMMANDS = sizeof commands / sizeof *commands };

static const struct command *find_command(const char *name) {
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    return NULL;
}

static int print_overview(FILE *out) {
    fputs("usage: zero COMMAND [ARGUMENTS]\n\n"
          "Trains models larger than the memory of the device they train on.\n\n",
          out);
    for (int i = 0; i < COMMANDS; i++) fprintf(out, "  %-10s  %s\n", commands[i]->name, commands[i]->summary);
    fputs("\n`zero help COMMAND` or `zero COMMAND --help` says more; `zero --version` says which version "
          "this is, and what it was built with.\n",
          out);
    return EXIT_OK;
}

static int print_help(const struct command *command) {
    printf("usage: zero %s %s\n\n%s\n", command->name, command->arguments,
           command->description ? command->description : command->summary);
    if (command->options) {
        puts("");
        options_help(command->options, stdout);
    }
    return EXIT_OK;
}

static int unknown_command(const char *name) {
    enum { FAR = 3 };
    const char *near = NULL;
    for (int i = 0; i < COMMANDS && !near; i++)
        if (suggest_distance(name, commands[i]->name, FAR) < FAR) near = commands[i]->name;
    format_line(stderr, "zero: \"%s\" is not a command%s%s%s; `zero help` lists them", name,
                near ? ": did you mean " : "", near ? near : "", near ? "?" : "");
    return EXIT_USAGE;
}

static int run_help(int argc, char **argv) {
    if (argc < 2) return print_overview(stdout);
    const struct command *command = find_command(argv[1]);
    return command ? print_help(command) : unknown_command(argv[1]);
}

static int run_completion(int argc, char **argv) {
    struct zero_error error = ERROR_NONE;
    zero_status status = completion_write(argc > 1 ? argv[1] : NULL, commands, COMMANDS, stdout, &error);
    return status ? command_usage_error("completion", "%s", error.message) : EXIT_OK;
}

/* The word -h or --help anywhere asks for help, but --help not where a command has its own option of that name. No
 * configuration file can have these names. */
static bool asks_for_help(const struct command *command, int argc, char **argv) {
    bool own = false;
    for (const struct option *o = command->options; o && o->name; o++)
        own = own || strcmp(o->name, "--help") == 0;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "-h") == 0 || (!own && strcmp(argv[i], "--help") == 0)) return true;
    return false;
}

/* mpirun gives the same command line to all ranks: rank 0 says it. */
static int refuse_ranks(const struct command *command, const struct launch *launch) {
    if (launch->rank) return command_leave_silently();
    return command_usage_error(
        command->name, "mpirun started %u processes, and this command takes one: start it without mpirun",
        launch->size);
}

static int run_command(int argc, char **argv) {
    if (argc < 2) {
        print_overview(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return print_overview(stdout);
    if (strcmp(argv[1], "--version") == 0) {
        version_print(stdout);
        return EXIT_OK;
    }
    const struct command *command = find_command(argv[1]);
    if (!command) return unknown_command(argv[1]);
    if (asks_for_help(command, argc - 1, argv + 1)) return print_help(command);
    struct launch launch;
    if (command->alone && !launch_read_environment(&launch, NULL) && launch.transport == &comm_mpi_ops &&
        launch.size > 1)
        return refuse_ranks(command, &launch);
    return command->run(argc - 1, argv + 1);
}

int main(int argc, char **argv) {
    streams_open();
    int status = run_command(argc, argv);
    const struct command *command = argc > 1 ? find_command(argv[1]) : NULL;
    return streams_close(command ? command->name : "help", status);
}
