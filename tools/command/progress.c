#include "tools/command/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "offload/tier.h"
#include "tools/command/format.h"
#include "tools/command/streams.h"

static atomic_bool line_stands; /* a live line is on the terminal now */

void progress_open(struct progress *progress, bool quiet, bool live, uint64_t steps, uint64_t every) {
    *progress = (struct progress){.quiet = quiet, .live = live, .steps = steps, .every = every};
}

static void end_live_line(void) {
    if (atomic_exchange(&line_stands, false)) fputs("\r\033[K", stdout);
}

void progress_line(const char *format, ...) {
    va_list args;
    va_start(args, format);
    flockfile(stdout);
    end_live_line();
    vprintf(format, args);
    putchar('\n');
    streams_flush();
    funlockfile(stdout);
    va_end(args);
}

/* Writes "memory 12.3 MiB device, 1.2 GiB nvme": the tiers that the run uses. */
static int write_memory(char *out, size_t size, const struct record *record) {
    int at = snprintf(out, size, "memory");
    for (int tier = 0; tier < ZERO_TIERS && at < (int)size; tier++) {
        if (!record->bytes[tier]) continue;
        at += snprintf(out + at, size - (size_t)at, "%s %s %s", at > 6 ? "," : "",
                       format_bytes(record->bytes[tier]).chars, tier_table[tier]->name);
    }
    return at;
}

static void write_step(const struct progress *progress, const struct record *record, char *out, size_t size) {
    char memory[160], held_out[40] = "";
    write_memory(memory, sizeof memory, record);
    if (!isnan(record->eval_loss)) snprintf(held_out, sizeof held_out, "  held out %.4f", record->eval_loss);
    double left = progress->seconds_per_step * (double)(progress->steps - record->step);
    snprintf(out, size, "step %" PRIu64 "/%" PRIu64 "  loss %.4f%s  %s tokens/s  %s left  %s%s", record->step,
             progress->steps, record->loss, held_out,
             format_grouped((uint64_t)(record->tokens_per_s + 0.5)).chars, format_duration(left).chars,
             memory, record->skipped ? "  skipped" : "");
}

/* A live line that wraps cannot be overwritten. */
static int terminal_width(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

void progress_step(struct progress *progress, const struct record *record) {
    bool first = progress->tokens == 0;
    progress->seconds_per_step =
        first ? record->seconds : 0.9 * progress->seconds_per_step + 0.1 * record->seconds;
    progress->seconds += record->seconds;
    progress->tokens += record->tokens;
    progress->last = *record;
    if (progress->quiet) return;
    char line[400];
    write_step(progress, record, line, sizeof line);
    bool kept = record->step == 1 || record->step == progress->steps || !isnan(record->eval_loss) ||
                (progress->every && record->step % progress->every == 0);
    if (kept) {
        progress_line("%s", line);
    } else if (progress->live) {
        flockfile(stdout);
        printf("\r\033[K%.*s", terminal_width() - 1, line);
        streams_flush();
        atomic_store(&line_stands, true);
        funlockfile(stdout);
    }
}

void progress_close(struct progress *progress) {
    const struct record *last = &progress->last;
    if (progress->quiet || !progress->tokens) return;
    double rate = progress->seconds > 0 ? (double)progress->tokens / progress->seconds : 0;
    progress_line(
        "trained %" PRIu64 " steps, %s tokens in %s: loss %.4f, %s tokens/s, peak resident memory %s",
        last->step, format_count((double)progress->tokens).chars, format_duration(progress->seconds).chars,
        last->loss, format_grouped((uint64_t)(rate + 0.5)).chars, format_bytes(last->resident_bytes).chars);
}
