#include "tools/sim/run.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

uint64_t run_chaos_ns(const struct run *run, enum random_use use, uint64_t a, uint64_t b) {
    if (!clock_chaotic(&run->clock)) return run->setup->chaos_ns / 2;
    return 1 + random_below(random_draw(run->setup->seed, use, a, b), run->setup->chaos_ns);
}

const char *run_unit_name(const struct run *run, uint32_t region) {
    return run->model.unit[run->model.region[region].unit]->name;
}

void run_violated(struct run *run, uint32_t rank, zero_status code, const char *format, ...) {
    char text[900];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (run->violation.code) return;
    error_set(&run->violation, code,
              "event %" PRIu64 ", at %" PRIu64 ".%06" PRIu64 " ms, rank %" PRIu32 ": %s", run->clock.events,
              run->clock.now_ns / 1000000, run->clock.now_ns % 1000000, rank, text);
    run->violation.rank = (int32_t)rank;
}
