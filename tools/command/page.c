/* `zero report`: a run as one HTML page. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/command/command.h"
#include "tools/report/page.h"

struct arguments {
    const char *out;
};

static const struct option options[] = {
    {"--out", "FILE", "where the page goes (report.html in the run's directory)", OPTION_TEXT,
     offsetof(struct arguments, out)},
    {0},
};

static int write_page(const struct run_record *record, const char *path) {
    FILE *file = fopen(path, "w");
    bool bad = !file;
    if (file) {
        page_write(record, file);
        bad = ferror(file);
        bad |= fclose(file) != 0;
    }
    if (!bad) return printf("%s\n", path) > 0 ? EXIT_OK : EXIT_FAILED;
    fprintf(stderr, "zero report: cannot write %s: %s\n", path, strerror(errno));
    return EXIT_FAILED;
}

static int run(int argc, char **argv) {
    struct zero_error error;
    error_clear(&error);
    struct arguments arguments = {0};
    const char *run = NULL;
    char path[4096 + 32];
    if (options_parse(options, argc, argv, &arguments, &run, &error) != ZERO_OK)
        return command_usage_error("report", "%s", error.message);
    if (!run) return command_usage_error("report", "RUN is missing; name a run's directory");
    if (strlen(run) >= 4096) return command_usage_error("report", "the run's directory has too long a name");
    snprintf(path, sizeof path, "%s/report.html", run);
    struct run_record record;
    int result = EXIT_FAILED;
    if (run_record_read(run, &record, &error) == ZERO_OK)
        result = write_page(&record, arguments.out ? arguments.out : path);
    else
        fprintf(stderr, "zero report: %s\n", error.message);
    run_record_free(&record);
    return result;
}

const struct command command_report = {
    .name = "report",
    .arguments = "RUN [OPTIONS]",
    .summary = "makes an HTML page of a run: loss, speed, timeline, planned and measured memory",
    .description =
        "Reads what `zero train` left in the run's directory RUN: metrics.jsonl, run.json, and trace.json "
        "with\n"
        "the timeline of two steps. The page needs nothing else, and may be made while the run goes on.\n"
        "trace.json by itself opens in ui.perfetto.dev.",
    .options = options,
    .run = run,
};
