#include "tools/command/metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const record_tier_names[ZERO_TIERS] = {
    [ZERO_DEVICE] = "device", [ZERO_CPU] = "cpu", [ZERO_NVME] = "nvme"};

enum field_kind { FIELD_COUNT, FIELD_REAL };

static const struct field {
    const char *name;
    enum field_kind kind;
    size_t offset;
} fields[] = {
#define COUNT(name)                                                                                          \
    { #name, FIELD_COUNT, offsetof(struct record, name) }
#define REAL(name)                                                                                           \
    { #name, FIELD_REAL, offsetof(struct record, name) }
    COUNT(step),
    REAL(loss),
    REAL(eval_loss),
    REAL(grad_norm),
    REAL(lr),
    REAL(beta1),
    COUNT(skipped),
    COUNT(skipped_total),
    COUNT(tokens),
    REAL(seconds),
    REAL(tokens_per_s),
    COUNT(resident_bytes),
    COUNT(wire_bytes),
    COUNT(gather_calls),
    COUNT(gather_elements),
    COUNT(reduce_calls),
    COUNT(reduce_elements),
    COUNT(drive_read_bytes),
    COUNT(drive_write_bytes),
    REAL(drive_write_bytes_per_day),
    REAL(drive_life_days),
    REAL(compute_s),
    REAL(wait_s),
    REAL(update_s),
#undef COUNT
#undef REAL
};

static zero_status cannot_make(const char *path, struct zero_error *error) {
    return error_set(error, ZERO_E_IO, "cannot make the run's directory %s: %s", path, strerror(errno));
}

/* All that the path names but the last. */
static zero_status make_parents(char *path, struct zero_error *error) {
    for (char *at = path + 1; (at = strchr(at, '/')) && at[1]; at++) {
        *at = 0;
        bool failed = mkdir(path, 0777) != 0 && errno != EEXIST;
        if (failed) return cannot_make(path, error);
        *at = '/';
    }
    return ZERO_OK;
}

static zero_status make_directory(const char *name, bool fresh, char *path, struct zero_error *error) {
    zero_status status = make_parents(path, error);
    for (int number = 2; status == ZERO_OK && mkdir(path, 0777) != 0; number++) {
        if (errno != EEXIST) return cannot_make(path, error);
        if (!fresh) break;
        sprintf(path, "%s-%d", name, number);
    }
    return status;
}

/* Behind the last whole line of a step up to `steps`. */
static long end_of_steps(FILE *file, uint64_t steps) {
    char *line = NULL;
    size_t capacity = 0;
    long end = 0;
    ssize_t length;
    uint64_t step;
    while ((length = getline(&line, &capacity, file)) > 0 && line[length - 1] == '\n' &&
           sscanf(line, "{\"step\": %" SCNu64, &step) == 1 && step <= steps)
        end += length;
    free(line);
    return end;
}

static FILE *open_behind(const char *path, uint64_t steps) {
    FILE *file = fopen(path, steps ? "r+" : "w");
    if (!file && steps && errno == ENOENT) file = fopen(path, "w");
    if (!file || !steps) return file;
    long end = end_of_steps(file, steps);
    if (fseek(file, end, SEEK_SET) == 0 && ftruncate(fileno(file), end) == 0) return file;
    fclose(file);
    return NULL;
}

zero_status metrics_open(const char *directory, bool fresh, uint64_t steps_kept, struct zero_error *error,
                         struct metrics *out) {
    if (strlen(directory) + sizeof "-2147483647" > sizeof out->directory || !*directory)
        return error_set(error, ZERO_E_ARGUMENT, "the run's directory has an empty or too long name");
    strcpy(out->directory, directory);
    zero_status status = make_directory(directory, fresh, out->directory, error);
    if (status != ZERO_OK) return status;
    sprintf(out->path, "%s/metrics.jsonl", out->directory);
    out->file = open_behind(out->path, steps_kept);
    if (!out->file) return error_set(error, ZERO_E_IO, "cannot write %s: %s", out->path, strerror(errno));
    return ZERO_OK;
}

/* JSON has no NaN and no infinity; what was not measured is left out. */
static void write_field(FILE *file, const struct field *field, const struct record *record) {
    const char *at = (const char *)record + field->offset;
    if (field->kind == FIELD_COUNT) {
        fprintf(file, "\"%s\": %" PRIu64 ", ", field->name, *(const uint64_t *)at);
        return;
    }
    double value = *(const double *)at;
    bool optional = field->offset == offsetof(struct record, eval_loss) ||
                    field->offset == offsetof(struct record, beta1) ||
                    field->offset == offsetof(struct record, drive_life_days);
    if (optional && isnan(value)) return;
    fprintf(file, isfinite(value) ? "\"%s\": %.9g, " : "\"%s\": null, ", field->name, value);
}

static void write_group_lrs(FILE *file, const struct record *record) {
    if (record->groups < 2) return;
    for (uint32_t g = 0; g < record->groups; g++)
        fprintf(file, "%s%.9g", g ? ", " : "\"group_lr\": [", record->group_lr[g]);
    fputs("], ", file);
}

zero_status metrics_write(struct metrics *metrics, const struct record *record, struct zero_error *error) {
    FILE *file = metrics->file;
    fputc('{', file);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) write_field(file, &fields[i], record);
    write_group_lrs(file, record);
    fputs("\"bytes\": {", file);
    for (int tier = 0; tier < ZERO_TIERS; tier++)
        fprintf(file, "%s\"%s\": %" PRIu64, tier ? ", " : "", record_tier_names[tier], record->bytes[tier]);
    fputs("}}\n", file);
    if (fflush(file) != 0 || ferror(file))
        return error_set(error, ZERO_E_IO, "cannot write %s: %s", metrics->path, strerror(errno));
    return ZERO_OK;
}

void metrics_close(struct metrics *metrics) {
    if (metrics->file) fclose(metrics->file);
    metrics->file = NULL;
}
