/* The probe of a drive, on a small file: every cell is measured, and nothing is left. No speeds are asserted.
 */
#include <stdlib.h>
#include <string.h>

#include "offload/io_probe.h"
#include "tests/check.h"
#include "tests/offload/tier_conformance.h"

static bool refused; /* io_uring, because other tests have used up the memlock limit of the user */

static void keep(void *user, zero_log_level level, const char *line) {
    refused |= strstr(line, "refuses io_uring") && strstr(line, "memlock limit");
}

static const struct log logger = {.write = keep};

static void measures(bool in_memory, bool no_uring, const char *io) {
    char directory[200];
    struct zero_error error;
    struct io_probe probe;
    error_clear(&error);
    directory_make(directory, sizeof directory, in_memory);
    struct io_probe_options options = {
        .path = directory, .file_bytes = 16 << 20, .cell_ms = 1, .no_uring = no_uring, .log = &logger};
    if (!CHECK_INT(io_probe(&options, &probe, &error), ZERO_OK)) fprintf(stderr, "%s\n", error.message);
    CHECK_STRING(probe.io, strcmp(io, "io_uring") == 0 && refused ? probe.io : io);
    CHECK_INT(probe.file_bytes, 16 << 20);
    CHECK(probe.suggested < IO_PROBE_CELLS);
    double best = 0;
    for (int i = 0; i < IO_PROBE_CELLS; i++) {
        const struct io_probe_cell *c = &probe.cells[i];
        CHECK(c->block_bytes && c->queue_depth);
        CHECK(c->read > 0 && c->write > 0 && c->mixed > 0);
        if (c->mixed > best) best = c->mixed;
    }
    CHECK(probe.cells[probe.suggested].mixed >= 0.95 * best);
    if (in_memory) CHECK(!probe.direct && probe.alignment == 1);
    CHECK_INT(directory_entries(directory, true), 0);
    directory_remove(directory);
}

static void refuses(const char *path, uint64_t bytes, zero_status status, const char *says) {
    struct zero_error error;
    struct io_probe probe;
    error_clear(&error);
    struct io_probe_options options = {.path = path, .file_bytes = bytes};
    CHECK_INT(io_probe(&options, &probe, &error), status);
    CHECK_CONTAINS(error.message, says);
}

int main(void) {
    measures(false, false, "io_uring");
    measures(false, true, "pread and pwrite");
    measures(true, false, "io_uring");
    char directory[200];
    directory_make(directory, sizeof directory, false);
    refuses(directory, 4096, ZERO_E_ARGUMENT, "too small to measure with");
    refuses(directory, UINT64_C(1) << 60, ZERO_E_IO, "needs 1.0 EiB, ");
    refuses("/proc/no/such", 0, ZERO_E_IO, "cannot make the directory /proc/no:");
    CHECK_INT(directory_entries(directory, true), 0);
    directory_remove(directory);
    return check_end();
}
