#include "tools/train/trainer.h"

#include <inttypes.h>
#include <stdio.h>

/* The process's peak of resident memory (VmHWM), in bytes; 0 where the system does not provide it. */
static uint64_t resident_bytes(void) {
    FILE *file = fopen("/proc/self/status", "r");
    if (!file) return 0;
    char line[256];
    uint64_t kib = 0;
    while (fgets(line, sizeof line, file) && sscanf(line, "VmHWM: %" SCNu64, &kib) != 1) {
    }
    fclose(file);
    return kib * 1024;
}

void step_sums_count(const zero_engine *engine, bool counts_process, zero_counters *counters,
                     double sums[SUMS]) {
    zero_counters now = {.struct_size = sizeof now}, before = *counters;
    zero_engine_counters(engine, &now);
    sums[WIRE] = (double)(now.wire_bytes - before.wire_bytes);
    sums[GATHERS] = (double)(now.gather_calls - before.gather_calls);
    sums[GATHERED] = (double)(now.gather_elements - before.gather_elements);
    sums[REDUCES] = (double)(now.reduce_calls - before.reduce_calls);
    sums[REDUCED] = (double)(now.reduce_elements - before.reduce_elements);
    sums[DRIVE_READ] = (double)(now.drive_read_bytes - before.drive_read_bytes);
    sums[DRIVE_WRITTEN] = (double)(now.drive_write_bytes - before.drive_write_bytes);
    sums[COMPUTE_S] = now.compute_s - before.compute_s;
    sums[WAIT_S] = now.wait_s - before.wait_s;
    sums[UPDATE_S] = now.update_s - before.update_s;
    sums[RESIDENT] = counts_process ? (double)resident_bytes() : 0;
    *counters = now;
}

void step_sums_record(const double sums[SUMS], uint32_t ranks, double seconds, struct record *record) {
    record->loss = sums[LOSS] / ranks;
    record->seconds = seconds;
    record->resident_bytes = (uint64_t)sums[RESIDENT];
    record->wire_bytes = (uint64_t)sums[WIRE];
    record->gather_calls = (uint64_t)sums[GATHERS], record->gather_elements = (uint64_t)sums[GATHERED];
    record->reduce_calls = (uint64_t)sums[REDUCES], record->reduce_elements = (uint64_t)sums[REDUCED];
    record->drive_read_bytes = (uint64_t)sums[DRIVE_READ];
    record->drive_write_bytes = (uint64_t)sums[DRIVE_WRITTEN];
    record->drive_write_bytes_per_day = sums[DRIVE_WRITTEN] / seconds * 86400;
    record->compute_s = sums[COMPUTE_S] / ranks;
    record->wait_s = sums[WAIT_S] / ranks;
    record->update_s = sums[UPDATE_S] / ranks;
}
