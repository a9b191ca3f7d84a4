#include "tools/metrics/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "offload/tier.h"
#include "tools/run_directory/file.h"

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
    REAL(eval_loss_ema),
    REAL(grad_norm),
    REAL(lr),
    REAL(beta1),
    COUNT(skipped),
    COUNT(skipped_total),
    COUNT(repeated),
    COUNT(repeated_total),
    COUNT(tokens),
    REAL(seconds),
    REAL(tokens_per_s),
    REAL(mfu),
    COUNT(memory_bytes),
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

/* The offset after the last whole line of a step up to `steps`. */
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

/* Keeps the lines of the first `steps` steps of the earlier run. */
static zero_status keep_steps(const struct metrics *metrics, uint64_t steps, struct zero_error *error) {
    FILE *file = fopen(metrics->path, "r");
    if (!file) return error_set(error, ZERO_E_IO, "cannot read %s: %s", metrics->path, strerror(errno));
    long end = end_of_steps(file, steps);
    fclose(file);
    if (ftruncate(metrics->file, end) == 0) return ZERO_OK;
    return error_set(error, ZERO_E_IO, "cannot cut %s: %s", metrics->path, strerror(errno));
}

static bool is_regular(int file) {
    struct stat found;
    return file >= 0 && fstat(file, &found) == 0 && S_ISREG(found.st_mode);
}

zero_status metrics_open(struct metrics *metrics, const char *directory, uint64_t steps_kept,
                         struct zero_error *error) {
    snprintf(metrics->path, sizeof metrics->path, "%s/metrics.jsonl", directory);
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC | (steps_kept ? 0 : O_TRUNC);
    metrics->file = open(metrics->path, flags, 0666);
    bool has_no_reader = metrics->file < 0 && errno == ENXIO; /* a pipe without a reader loses its lines */
    if (metrics->file < 0 && !has_no_reader)
        return error_set(error, ZERO_E_IO, "cannot write %s: %s", metrics->path, strerror(errno));
    metrics->is_open = true;
    metrics->lost = 0;
    metrics->end = -1;
    if (!is_regular(metrics->file)) return ZERO_OK;
    zero_status status = steps_kept ? keep_steps(metrics, steps_kept, error) : ZERO_OK;
    metrics->end = lseek(metrics->file, 0, SEEK_END);
    return status;
}

/* JSON has no NaN and no infinity. A field that was not measured is left out. */
static void write_field(FILE *file, const struct field *field, const struct record *record) {
    const char *at = (const char *)record + field->offset;
    if (field->kind == FIELD_COUNT) {
        fprintf(file, "\"%s\": %" PRIu64 ", ", field->name, *(const uint64_t *)at);
        return;
    }
    double value = *(const double *)at;
    bool optional = field->offset == offsetof(struct record, eval_loss) ||
                    field->offset == offsetof(struct record, eval_loss_ema) ||
                    field->offset == offsetof(struct record, beta1) ||
                    field->offset == offsetof(struct record, mfu) ||
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

static void write_line(FILE *file, const struct record *record) {
    fputc('{', file);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) write_field(file, &fields[i], record);
    write_group_lrs(file, record);
    fputs("\"bytes\": {", file);
    for (int tier = 0; tier < ZERO_TIERS; tier++)
        fprintf(file, "%s\"%s\": %" PRIu64, tier ? ", " : "", tier_table[tier]->name, record->bytes[tier]);
    fputs("}}\n", file);
}

/* Returns 0 or an errno. After a failure the file ends where it ended before. */
static int append(struct metrics *metrics, const char *line, size_t length) {
    if (metrics->file < 0) return ENXIO;
    size_t written;
    int number = write_all(metrics->file, line, length, &written);
    if (number && written && metrics->end >= 0 && ftruncate(metrics->file, metrics->end) != 0)
        metrics->end = -1;
    if (!number && metrics->end >= 0) metrics->end += (int64_t)length;
    return number;
}

void metrics_write(struct metrics *metrics, const struct record *record) {
    char *line = NULL;
    size_t length = 0;
    int failure = ENOMEM;
    FILE *text = open_memstream(&line, &length);
    if (text) {
        write_line(text, record);
        if (fclose(text) == 0) failure = append(metrics, line, length);
    }
    free(line);
    if (!failure) return;
    if (!metrics->lost++) metrics->failure = failure;
}

void metrics_close(struct metrics *metrics) {
    if (metrics->is_open && metrics->file >= 0) close(metrics->file);
    metrics->is_open = false;
}
