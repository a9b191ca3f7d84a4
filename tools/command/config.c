/* `zero config`: the resolved configuration, or the list of all keys. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/config/config.h"
#include "tools/command/command.h"
#include "tools/text/format.h"

enum { RANKS_MAX = 65536 };

struct arguments {
    bool help, changed;
    uint64_t ranks;
    const char *model;
    struct option_each set;
};

static const struct option options[] = {
    {"--help", NULL, "lists every key with its type, default and meaning", FLAG(help)},
    {"--changed", NULL, "prints only the keys that the file or the command line gives", FLAG(changed)},
    {"--ranks", "N", "resolves for N ranks (1)", COUNT(ranks)},
    {"--model", "DIR", "a Hugging Face config.json, or its directory, in place of the model block",
     TEXT(model)},
    {"--set", "KEY=VALUE", "takes this value for a key, as `zero train --set` does; repeatable", EACH(set)},
    {0},
};

static int print_text(char *text) {
    if (!text) {
        fputs("zero config: no memory\n", stderr);
        return EXIT_FAILED;
    }
    format_tame(text);
    fputs(text, stdout);
    free(text);
    return EXIT_OK;
}

static int fail(const struct zero_error *error) {
    fprintf(stderr, "zero config: %s\n", error->message);
    return EXIT_USAGE;
}

static int run(int argc, char **argv) {
    struct zero_error error = ERROR_NONE;
    struct arguments arguments = {.ranks = 1};
    const char *path;
    if (options_parse(options, argc, argv, &arguments, &path, &error) != ZERO_OK)
        return command_usage_error("config", "%s", error.message);
    if (arguments.help) return print_text(config_help());
    if (!path) return command_usage_error("config", "CONFIG.json is missing");
    if (arguments.ranks > RANKS_MAX)
        return command_usage_error("config",
                                   "--ranks %" PRIu64 " is more than the %d ranks that can train together",
                                   arguments.ranks, RANKS_MAX);
    struct config config = {0};
    char *json = NULL;
    zero_status status = settings_apply(path, &arguments.set, arguments.model != NULL, &json, &error);
    if (status == ZERO_OK) status = config_read(json ? json : path, &config, &error);
    if (status == ZERO_OK) settings_mark(&config, &arguments.set);
    if (status == ZERO_OK && arguments.model) status = config_read_model(&config, arguments.model, &error);
    if (status == ZERO_OK) status = config_resolve(&config, (uint32_t)arguments.ranks, &error);
    char *(*print)(const struct config *) = arguments.changed ? config_print_changed : config_print;
    int result = status == ZERO_OK ? print_text(print(&config)) : fail(&error);
    config_free(&config);
    free(json);
    return result;
}

const struct command command_config = {
    .name = "config",
    .arguments = "[--help] CONFIG.json [OPTIONS]",
    .summary = "prints the resolved configuration: every key, its source and its meaning",
    .options = options,
    .run = run,
};
