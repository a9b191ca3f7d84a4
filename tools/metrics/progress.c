#include "tools/metrics/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tools/text/format.h"
#include "tools/text/output.h"

void progress_open(struct progress *progress, bool quiet, bool live, uint64_t steps, uint64_t every) {
    *progress = (struct progress){.quiet = quiet, .live = live, .steps = steps, .every = every};
}

/* Appends a part if the line with it fits. */
static void add_part(char line[LINE_BYTES], const char *format, ...) {
    size_t at = strlen(line), width = line_columns();
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line + at, LINE_BYTES - at, format, args);
    va_end(args);
    if (at + (size_t)length > width) line[at] = 0;
}

/* Parts that matter less come later, and are left out first. */
static void write_step(const struct progress *progress, const struct record *record, char line[LINE_BYTES]) {
    double left = progress->seconds_per_step * (double)(progress->steps - record->step);
    *line = 0;
    add_part(line, "step %" PRIu64 "/%" PRIu64 "  loss %.4f", record->step, progress->steps, record->loss);
    if (!isnan(record->eval_loss)) add_part(line, "  held out %.4f", record->eval_loss);
    if (!isnan(record->eval_loss_ema)) add_part(line, "  averaged %.4f", record->eval_loss_ema);
    if (record->skipped) add_part(line, "  skipped");
    add_part(line, "  lr %.3g", record->lr);
    add_part(line, "  norm %.3g", record->grad_norm);
    add_part(line, "  %s tokens/s", format_grouped((uint64_t)(record->tokens_per_s + 0.5)).chars);
    if (!isnan(record->mfu)) add_part(line, "  MFU %.3g%%", 100 * record->mfu);
    add_part(line, "  mem %s", format_bytes(record->memory_bytes).chars);
    add_part(line, "  %s left", format_duration(left).chars);
}

void progress_step(struct progress *progress, const struct record *record) {
    bool first = progress->tokens == 0;
    progress->seconds_per_step =
        first ? record->seconds : 0.9 * progress->seconds_per_step + 0.1 * record->seconds;
    progress->seconds += record->seconds;
    progress->tokens += record->tokens;
    progress->trained++;
    progress->last = *record;
    if (progress->quiet) return;
    char line[LINE_BYTES];
    write_step(progress, record, line);
    bool kept = record->step == 1 || record->step == progress->steps || !isnan(record->eval_loss) ||
                (progress->every && record->step % progress->every == 0);
    if (kept) {
        line_print("%s", line);
    } else if (progress->live) {
        line_live(line);
    }
}

void progress_close(struct progress *progress) {
    const struct record *last = &progress->last;
    if (progress->quiet || !progress->tokens) return;
    double rate = progress->seconds > 0 ? (double)progress->tokens / progress->seconds : 0;
    line_print("trained %" PRIu64 " steps, %s tokens in %s: loss %.4f, %s tokens/s, peak resident memory %s",
               progress->trained, format_count((double)progress->tokens).chars,
               format_duration(progress->seconds).chars, last->loss,
               format_grouped((uint64_t)(rate + 0.5)).chars, format_bytes(last->resident_bytes).chars);
}
