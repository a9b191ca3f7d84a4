/* The command's small parts: options from a table, numbers for people, one JSON object per step. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/synced.h"
#include "tools/command/options.h"
#include "tools/metrics/metrics.h"
#include "tools/run_directory/run_directory.h"
#include "tools/text/format.h"

struct values {
    bool quiet;
    struct option_maybe resume;
    uint64_t steps;
    const char *run;
    struct option_list data;
};

static const struct option options[] = {
    {"--quiet", NULL, "", OPTION_FLAG, offsetof(struct values, quiet)},
    {"--steps", "N", "", OPTION_COUNT, offsetof(struct values, steps)},
    {"--run", "DIR", "", OPTION_TEXT, offsetof(struct values, run)},
    {"--resume", "[STEP]", "", OPTION_MAYBE, offsetof(struct values, resume)},
    {"--data", "PATH...", "", OPTION_LIST, offsetof(struct values, data)},
    {0},
};

static zero_status parse(int argc, const char **argv, struct values *values, const char **operand,
                         struct zero_error *error) {
    error_clear(error);
    *values = (struct values){.steps = 7};
    return options_parse(options, argc, (char **)argv, values, operand, error);
}
#define PARSE(...)                                                                                           \
    parse(sizeof((const char *[]){"train", __VA_ARGS__}) / sizeof(char *),                                   \
          (const char *[]){"train", __VA_ARGS__}, &values, &operand, &error)

static void options_fill_their_fields(void) {
    struct values values;
    const char *operand;
    struct zero_error error;
    CHECK_INT(PARSE("c.json", "--data", "a", "b", "--quiet", "--steps", "12", "--run", "--odd"), ZERO_OK);
    CHECK_STRING(operand, "c.json");
    CHECK_INT(values.data.count, 2);
    CHECK_STRING(values.data.items[1], "b");
    CHECK_INT(values.quiet, 1);
    CHECK_INT(values.steps, 12);
    CHECK_STRING(values.run, "--odd");
    CHECK_INT(PARSE("--quiet"), ZERO_OK);
    CHECK(operand == NULL);
    CHECK_INT(values.steps, 7); /* not given: kept */
    CHECK_INT(values.resume.given, 0);
    CHECK_INT(PARSE("--resume", "c.json"), ZERO_OK);
    CHECK(values.resume.given && values.resume.count == 0);
    CHECK_STRING(operand, "c.json");
    CHECK_INT(PARSE("c.json", "--resume", "12", "--quiet"), ZERO_OK);
    CHECK(values.resume.given && values.resume.count == 12 && values.quiet);
    CHECK_INT(PARSE("c.json", "--resume"), ZERO_OK);
    CHECK(values.resume.given && values.resume.count == 0);
}

static void wrong_options_are_named(void) {
    struct values values;
    const char *operand;
    struct zero_error error;
    static const char *const counts[] = {"0", "-1", "x", "1x", "", "99999999999999999999"};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        CHECK_INT(PARSE("--steps", counts[i]), ZERO_E_ARGUMENT);
        CHECK_CONTAINS(error.message, "--steps needs a whole number of at least 1");
    }
    CHECK_INT(PARSE("--data", "a", "--quiet", "--data", "b"), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "--data is given twice: write all values after one --data");
    CHECK_INT(PARSE("--data"), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "--data needs a value: --data PATH...");
    CHECK_INT(PARSE("--stepz", "3"), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "unknown option --stepz");
    CHECK_INT(PARSE("--steps=5"), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "write --steps 5 in place of --steps=5");
    CHECK_INT(PARSE("--step=5"), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "unknown option --step=5");
    CHECK_INT(PARSE("a", "b"), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "unexpected argument \"b\"");
}

static void numbers_read_well(void) {
    CHECK_STRING(format_bytes(0).chars, "0 B");
    CHECK_STRING(format_bytes(1536).chars, "1.5 KiB");
    CHECK_STRING(format_bytes(1023 * 1024).chars, "1.0 MiB");
    CHECK_STRING(format_bytes(UINT64_C(300) << 30).chars, "300 GiB");
    CHECK_STRING(format_count(999).chars, "999");
    CHECK_STRING(format_count(10.8e6).chars, "10.8 M");
    CHECK_STRING(format_grouped(1234567).chars, "1,234,567");
    CHECK_STRING(format_grouped(999).chars, "999");
    CHECK_STRING(format_duration(5.4).chars, "5s");
    CHECK_STRING(format_duration(125).chars, "2m05s");
    CHECK_STRING(format_duration(7320).chars, "2h02m");
}

static zero_status open_in(const char *directory, bool fresh, uint64_t steps_kept, struct zero_error *error,
                           struct metrics *out) {
    char path[RUN_NAME_BYTES];
    zero_status status = run_directory_create(directory, fresh, path, error);
    return status ? status : metrics_open(out, path, steps_kept, error);
}

static void metrics_are_one_object_per_line(void) {
    char path[512], line[4096];
    snprintf(path, sizeof path, "%s/runs-XXXXXX", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    CHECK(mkdtemp(path) != NULL);
    char above[520], deep[520];
    snprintf(above, sizeof above, "%s", path), snprintf(deep, sizeof deep, "%s/deep", path);
    strcat(path, "/deep/er");
    struct metrics metrics = {0};
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(open_in(path, false, 0, &error, &metrics), ZERO_OK);
    CHECK(was_synced(above) && was_synced(deep));
    struct record record = {.step = 1,
                            .loss = NAN,
                            .eval_loss = NAN,
                            .eval_loss_ema = NAN,
                            .grad_norm = INFINITY,
                            .lr = 0.5,
                            .beta1 = NAN,
                            .groups = 1};
    record.bytes[ZERO_CPU] = 3;
    metrics_write(&metrics, &record);
    CHECK_INT(metrics.lost, 0);
    record.step = 2, record.eval_loss = 1.25, record.eval_loss_ema = 1.125;
    record.beta1 = 0.875, record.groups = 2, record.group_lr[0] = 0.5, record.group_lr[1] = 0.25;
    metrics_write(&metrics, &record);
    CHECK_INT(metrics.lost, 0);
    FILE *file = fopen(metrics.path, "r");
    CHECK(file && fgets(line, sizeof line, file));
    CHECK_CONTAINS(line, "{\"step\": 1, \"loss\": null, \"grad_norm\": null, \"lr\": 0.5, ");
    CHECK_CONTAINS(line, "\"bytes\": {\"device\": 0, \"cpu\": 3, \"nvme\": 0}}\n");
    CHECK(!strstr(line, "beta1") && !strstr(line, "group_lr"));
    CHECK(file && fgets(line, sizeof line, file));
    CHECK_CONTAINS(line, "{\"step\": 2, \"loss\": null, \"eval_loss\": 1.25, \"eval_loss_ema\": 1.125, ");
    CHECK_CONTAINS(line, "\"lr\": 0.5, \"beta1\": 0.875, ");
    CHECK_CONTAINS(line, "\"group_lr\": [0.5, 0.25], \"bytes\"");
    CHECK(file && !fgets(line, sizeof line, file));
    if (file) fclose(file);
    metrics_close(&metrics);
    CHECK_INT(open_in(path, true, 0, &error, &metrics), ZERO_OK); /* not the same directory again */
    strcat(path, "-2/metrics.jsonl");
    CHECK_STRING(metrics.path, path);
    CHECK(was_synced(deep));
    metrics_close(&metrics);
}

/* A resumed run's file keeps the steps before, and loses those that come again and a line that was cut short. */
static void metrics_go_on(void) {
    char path[512], line[4096];
    snprintf(path, sizeof path, "%s/runs-XXXXXX", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    CHECK(mkdtemp(path) != NULL);
    struct metrics metrics = {0};
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(open_in(path, false, 3, &error, &metrics), ZERO_OK);
    struct record record = {0};
    for (record.step = 1; record.step <= 5; record.step++) metrics_write(&metrics, &record);
    CHECK_INT(metrics.lost, 0); /* there was no file to go on with: one begins */
    CHECK_INT(write(metrics.file, "{\"step\": 6, \"lo", 14), 14);
    metrics_close(&metrics);
    for (uint64_t kept = 7; kept > 0; kept = kept == 7 ? 3 : 0) {
        CHECK_INT(open_in(path, false, kept, &error, &metrics), ZERO_OK);
        record.step = 77;
        metrics_write(&metrics, &record);
        metrics_close(&metrics);
        uint64_t lines = 0, step = 0;
        FILE *file = fopen(metrics.path, "r");
        while (fgets(line, sizeof line, file)) lines++, sscanf(line, "{\"step\": %" SCNu64, &step);
        fclose(file);
        CHECK_INT(lines, (kept < 5 ? kept : 5) + 1);
        CHECK_INT(step, 77);
    }
}

static void a_run_that_cannot_be_written_is_named(void) {
    struct metrics metrics = {0};
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(open_in("/dev/null/run", false, 0, &error, &metrics), ZERO_E_IO);
    CHECK_CONTAINS(error.message, "/dev/null/run: Not a directory");
    error_clear(&error);
    CHECK_INT(open_in("", false, 0, &error, &metrics), ZERO_E_ARGUMENT);
}

/* A line for which there is no room leaves no half of it, and the next one for which there is room is whole. */
static void lost_lines_are_counted(void) {
    char path[512], line[4096];
    struct metrics metrics = {0};
    struct record record = {0};
    struct zero_error error;
    struct rlimit limit, small;
    error_clear(&error);
    snprintf(path, sizeof path, "%s/runs-XXXXXX", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    CHECK(mkdtemp(path) != NULL);
    CHECK_INT(open_in(path, false, 0, &error, &metrics), ZERO_OK);
    signal(SIGXFSZ, SIG_IGN);
    CHECK_INT(getrlimit(RLIMIT_FSIZE, &limit), 0);
    for (record.step = 1; record.step <= 5; record.step++) {
        small = limit, small.rlim_cur = record.step == 1 ? 10 : (rlim_t)metrics.end + 10;
        CHECK_INT(setrlimit(RLIMIT_FSIZE, record.step < 4 && record.step != 2 ? &small : &limit), 0);
        metrics_write(&metrics, &record);
    }
    CHECK_INT(metrics.lost, 2); /* of steps 1 and 3 */
    CHECK_INT(metrics.failure, EFBIG);
    metrics_close(&metrics);
    FILE *file = fopen(metrics.path, "r");
    for (uint64_t step = 2; step <= 5; step += step == 2 ? 2 : 1) {
        uint64_t found = 0;
        CHECK(file && fgets(line, sizeof line, file) && line[strlen(line) - 1] == '\n');
        sscanf(line, "{\"step\": %" SCNu64, &found);
        CHECK_INT(found, step);
    }
    CHECK(file && !fgets(line, sizeof line, file));
    if (file) fclose(file);
}

int main(void) {
    options_fill_their_fields();
    wrong_options_are_named();
    numbers_read_well();
    metrics_are_one_object_per_line();
    metrics_go_on();
    a_run_that_cannot_be_written_is_named();
    lost_lines_are_counted();
    return check_end();
}
