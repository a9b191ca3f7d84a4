/* Reads a run's directory for the page: the files that exist, the files that may be missing, and refused files, which
 * the error names. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/check.h"
#include "tools/report/draw.h"
#include "tools/report/page.h"

static char directory[900];

static void write_file(const char *name, const char *text) {
    char path[1000];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "w");
    if (!CHECK(file)) return;
    fputs(text, file);
    fclose(file);
}

static void begin(const char *name) {
    snprintf(directory, sizeof directory, "%s/%s", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp",
             name);
    mkdir(directory, 0777);
}

static const char run[] =
    "{\"model\": \"<a & b>\", \"settings\": [\"ZeRO stage 3\", 7], \"steps\": 9, \"drive_read_bytes\": 2048, "
    "\"wire_bytes\": 1024, \"peak\": \"<1> FLOP/s\","
    " \"memory\": [{\"tier\": \"cpu\", \"name\": \"state\", \"planned\": 4096, \"measured\": 2048},"
    "{\"tier\": \"device\", \"name\": \"more\", \"planned\": 1024, \"measured\": 1024},"
    "{\"tier\": \"nvme\", \"name\": \"far\", \"planned\": 8192, \"measured\": 8192}]}";
static const char metrics[] = "{\"step\": 1, \"loss\": 3.5, \"seconds\": 2, \"mfu\": 0.25}\n"
                              "{\"step\": 2, \"loss\": null, \"eval_loss\": 3.25, \"seconds\": 1}\n"
                              "{\"step\": 3, \"loss\": 2.5, \"sec";
static const char trace[] =
    "{\"traceEvents\": [{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 0, \"tid\": 64, \"args\": "
    "{\"name\": \"gather\"}},"
    "{\"ph\": \"X\", \"name\": \"GATHER <h>\", \"pid\": 1, \"tid\": 65, \"ts\": 1000, \"dur\": 500},"
    "{\"ph\": \"X\", \"name\": \"of no stream\", \"pid\": 1, \"tid\": 9999, \"ts\": 1, \"dur\": 5},"
    "{\"ph\": \"X\", \"name\": \"without an end\", \"pid\": 1, \"tid\": 64, \"ts\": 1e308, \"dur\": 1e308},"
    "{\"ph\": \"X\", \"name\": \"without a time\", \"pid\": 1, \"tid\": 64}]}";

static zero_status read_run(struct run_record *record, struct zero_error *error) {
    error_clear(error);
    return run_record_read(directory, record, error);
}

/* The page of a record, to look into. */
static char *page_of(const struct run_record *record) {
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    page_write(record, file);
    fclose(file);
    return text;
}

static void whole(void) {
    struct run_record r;
    struct zero_error error;
    begin("whole");
    write_file("run.json", run), write_file("metrics.jsonl", metrics), write_file("trace.json", trace);
    CHECK_INT(read_run(&r, &error), ZERO_OK);
    CHECK_STRING(r.title, "<a & b>");
    CHECK_INT(r.setting_count, 2);
    CHECK_INT(r.steps, 2); /* the third was cut short */
    CHECK(r.value[LOSS][0] == 3.5 && isnan(r.value[LOSS][1]) && r.value[EVAL_LOSS][1] == 3.25);
    CHECK_INT(r.memory[0].planned, 4096);
    CHECK_INT(r.drive_read_planned, 2048);
    CHECK_INT(r.span_count, 1);
    CHECK_INT(r.ranks, 2);
    char *page = page_of(&r);
    CHECK_CONTAINS(page, "<h1>&lt;a &amp; b></h1>");
    CHECK_CONTAINS(page, "GATHER &lt;h>, 0.500 ms from 1.000 ms");
    CHECK_CONTAINS(page, "<td>4.0 KiB</td><td>2.0 KiB</td>");
    /* One meaning of memory, drives apart. */
    CHECK_CONTAINS(page, "<b>3.0 KiB</b><span>memory per rank</span>");
    CHECK_CONTAINS(page, "<th>memory per rank: device and host</th><th>5.0 KiB</th><th>3.0 KiB</th>");
    CHECK_CONTAINS(page, "<th>on drives, per rank</th><th>8.0 KiB</th><th>8.0 KiB</th>");
    CHECK_CONTAINS(page, "<td>sent between ranks</td><td></td><td>1.0 KiB</td><td>0 B</td>");
    CHECK_CONTAINS(page, "<b>25</b><span>MFU in %, median</span>");
    CHECK_CONTAINS(page, "share of the peak: &lt;1> FLOP/s</p>");
    CHECK_CONTAINS(page, ">step</text>"); /* the unit of the axis */
    CHECK_CONTAINS(page, "held-out loss");
    CHECK(!strstr(page, "<script") && !strstr(page, "http") && !strstr(page, "src="));
    CHECK_CONTAINS(page, "name=\"viewport\"");
    CHECK_CONTAINS(page, "prefers-color-scheme:dark");
    CHECK_CONTAINS(page, "step 1, training 3.5</text>"); /* under the pointer */
    free(page);
    run_record_free(&r);
}

static void without_trace(void) {
    struct run_record r;
    struct zero_error error;
    begin("untraced");
    write_file("run.json", run), write_file("metrics.jsonl", "");
    CHECK_INT(read_run(&r, &error), ZERO_OK);
    char *page = page_of(&r);
    CHECK_CONTAINS(page, "no trace.json");
    CHECK(!strstr(page, "nan") && !strstr(page, "inf"));
    free(page);
    run_record_free(&r);
}

static void refused(const char *name, const char *text, zero_status status, const char *says) {
    struct run_record r;
    struct zero_error error;
    begin("refused");
    write_file("run.json", run), write_file("metrics.jsonl", metrics), write_file("trace.json", trace);
    write_file(name, text);
    CHECK_INT(read_run(&r, &error), status);
    CHECK_CONTAINS(error.message, says);
    run_record_free(&r);
}

static void elsewhere(void) {
    struct run_record r;
    struct zero_error error;
    begin("elsewhere");
    CHECK_INT(read_run(&r, &error), ZERO_E_IO);
    CHECK_CONTAINS(error.message, "holds no run");
    run_record_free(&r);
}

/* Many steps share points, and one step alone is seen. */
static void curves(void) {
    enum { STEPS = 2000 };
    static double step[STEPS], value[STEPS];
    for (int i = 0; i < STEPS; i++) step[i] = i + 1, value[i] = 5;
    for (uint32_t steps = 1; steps <= STEPS; steps += STEPS - 1) {
        struct plot plot = {.title = "t", .unit = "", .curve = {{"c", step, value, steps}}, .curves = 1};
        char *text = NULL;
        size_t size, points = 0;
        FILE *file = open_memstream(&text, &size);
        CHECK(plot_write(&plot, file));
        fclose(file);
        const char *at = strstr(text, "points=\"");
        for (const char *c = at; c && *c && *c != '>'; c++) points += *c == ',';
        CHECK_INT(points, steps == 1 ? 1 : 286);
        CHECK(strstr(text, "<circle") && !strstr(text, "nan"));
        free(text);
        plot.curve[0].value = (double[]){NAN}, plot.curve[0].steps = 1;
        file = fopen("/dev/null", "w");
        CHECK(!plot_write(&plot, file));
        fclose(file);
    }
}

/* Runs of other lengths, beside each other. */
static void compared(void) {
    struct run_record r[2];
    const char *const names[2] = {"runs/a", "runs/<b>"};
    struct zero_error error;
    char *page = NULL;
    size_t size;
    for (int i = 0; i < 2; i++) {
        begin("compared");
        write_file("run.json", run);
        write_file("metrics.jsonl", i ? "{\"step\": 1, \"loss\": 4, \"tokens_per_s\": 11770}\n" : metrics);
        CHECK_INT(read_run(&r[i], &error), ZERO_OK);
    }
    FILE *file = open_memstream(&page, &size);
    page_compare(r, names, 2, file);
    fclose(file);
    CHECK_CONTAINS(page, "runs/&lt;b>");
    CHECK_CONTAINS(page, "<td data-n=\"tokens/s\">11,770</td>"); /* on a phone with its column's name */
    CHECK_CONTAINS(page, "<td data-n=\"MFU in %\">25</td>");
    CHECK_CONTAINS(page, "<td data-n=\"memory per rank\">3.0 KiB</td>");
    CHECK_CONTAINS(page, "@media(max-width:640px)");
    CHECK_CONTAINS(page, "step 1, runs/a 3.5, runs/&lt;b> 4</text>");
    CHECK_CONTAINS(page, "Loss: held out");
    CHECK(!strstr(page, "nan"));
    free(page);
    for (int i = 0; i < 2; i++) run_record_free(&r[i]);
}

static void numbers(void) {
    static const struct {
        double value;
        const char *text;
    } cases[] = {{11770.4, "11,770"},   {-1234567, "-1,234,567"}, {999.5, "999.5"},
                 {0.012345, "0.01235"}, {1000, "1,000"},          {0, "0"},
                 {1e-5, "1e-05"}};
    char text[32];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_STRING(markup_number(text, cases[i].value), cases[i].text);
}

int main(void) {
    numbers();
    compared();
    whole();
    without_trace();
    elsewhere();
    refused("run.json", "[1]", ZERO_E_CONFIG, "run.json is not a JSON object");
    refused("metrics.jsonl", "{\"step\": 1}\nrubbish\n", ZERO_E_CONFIG, "metrics.jsonl, line 2");
    refused("metrics.jsonl", "{\"step\": \"x\"}\n", ZERO_E_CONFIG, "line 1");
    refused("trace.json", "{", ZERO_E_CONFIG, "trace.json is not a JSON object");
    curves();
    return check_end();
}
