/* `zero report`: runs as one HTML page. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/command/command.h"
#include "tools/report/page.h"
#include "tools/text/format.h"

enum { PATH_BYTES = 4096 };

struct arguments {
    const char *out;
};

static const struct option options[] = {
    {"--out", "FILE", "where the page goes (report.html in the run's directory)", TEXT(out)},
    {0},
};

/* The runs that the command names. */
struct runs {
    const char *name[PAGE_RUNS_MAX];
    struct run_record record[PAGE_RUNS_MAX];
    uint32_t count;
};

static zero_status read_runs(struct runs *runs, struct zero_error *error) {
    for (uint32_t r = 0; r < runs->count; r++) TRY(run_record_read(runs->name[r], &runs->record[r], error));
    return ZERO_OK;
}

static int write_page(const struct runs *runs, const char *path) {
    FILE *file = fopen(path, "w");
    bool bad = !file;
    if (file) {
        if (runs->count == 1)
            page_write(runs->record, file);
        else
            page_compare(runs->record, runs->name, runs->count, file);
        bad = ferror(file);
        bad |= fclose(file) != 0;
    }
    if (bad)
        format_line(stderr, "zero report: cannot write %s: %s", path, strerror(errno));
    else
        format_line(stdout, "%s", path);
    return bad ? EXIT_FAILED : EXIT_OK;
}

static int report(struct runs *runs, const struct arguments *a) {
    struct zero_error error = ERROR_NONE;
    char path[PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/report.html", runs->name[0]);
    int result = EXIT_FAILED;
    if (!read_runs(runs, &error)) result = write_page(runs, a->out ? a->out : path);
    if (error.code) fprintf(stderr, "zero report: %s\n", error.message);
    for (uint32_t r = 0; r < runs->count; r++) run_record_free(&runs->record[r]);
    return result;
}

static int run(int argc, char **argv) {
    struct zero_error error = ERROR_NONE;
    struct arguments a = {0};
    struct runs runs = {0};
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--watch") == 0)
            return command_usage_error(
                "report", "--watch is gone: write the page anew, or let the run write tensorboard/ "
                          "(\"tensorboard\": {\"enabled\": true}), which TensorBoard shows live");
    const char *last = NULL;
    int operands = 0; /* the runs come first; options_parse takes the last one */
    while (operands + 1 < argc && argv[operands + 1][0] != '-') operands++;
    int skipped = operands > 1 ? operands - 1 : 0;
    if (operands > PAGE_RUNS_MAX)
        return command_usage_error("report", "%d runs: at most %d are compared", operands, PAGE_RUNS_MAX);
    for (int i = 0; i < skipped; i++) runs.name[runs.count++] = argv[1 + i];
    if (options_parse(options, argc - skipped, argv + skipped, &a, &last, &error) != ZERO_OK)
        return command_usage_error("report", "%s", error.message);
    if (last) runs.name[runs.count++] = last;
    if (!runs.count) return command_usage_error("report", "RUN is missing; name a run's directory");
    for (uint32_t r = 0; r < runs.count; r++)
        if (strlen(runs.name[r]) >= PATH_BYTES)
            return command_usage_error("report", "the run's directory has too long a name");
    if (runs.count > 1 && !a.out)
        return command_usage_error("report",
                                   "--out is missing: name the file of the page that compares the runs");
    return report(&runs, &a);
}

const struct command command_report = {
    .name = "report",
    .arguments = "RUN... [OPTIONS]",
    .summary = "makes an HTML page of a run: loss, speed, timeline, planned and measured memory",
    .description =
        "Reads what `zero train` left in the run's directory RUN: metrics.jsonl, run.json, and trace.json "
        "with\n"
        "the timeline of two steps. The page needs nothing else, and may be made while the run goes on.\n"
        "Several runs, at most eight, are compared on one page.\n"
        "trace.json by itself opens in ui.perfetto.dev.",
    .options = options,
    .run = run,
};
