/* `zero io`: measures a drive as the nvme tier would use it. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "offload/io_probe.h"
#include "tools/command/command.h"
#include "tools/text/format.h"

struct arguments {
    uint64_t mib, ms;
    bool no_uring;
};

static const struct option options[] = {
    {"--mib", "N", "measures in a file of N MiB (1024, or half of what is free)", COUNT(mib)},
    {"--ms", "N", "gives each measurement N milliseconds (50)", COUNT(ms)},
    {"--no-uring", NULL, "measures the threads that replace io_uring where the system refuses it",
     FLAG(no_uring)},
    {0},
};

static void print_line(void *user, zero_log_level level, const char *line) {
    fprintf(stderr, "zero io: %s\n", line);
}

static void print_table(const struct io_probe *probe) {
    printf("%9s  %5s  %8s  %8s  %8s   GB/s\n", "block", "depth", "read", "write", "mixed");
    for (uint32_t i = 0; i < IO_PROBE_CELLS; i++) {
        const struct io_probe_cell *c = &probe->cells[i];
        printf("%9s  %5" PRIu32 "  %8.2f  %8.2f  %8.2f%s\n", format_bytes(c->block_bytes).chars,
               c->queue_depth, c->read * 1e-9, c->write * 1e-9, c->mixed * 1e-9,
               i == probe->suggested ? "   <" : "");
    }
}

static void print_probe(const char *path, const struct io_probe *probe) {
    format_line(stdout, "%s: %s, %s, aligned to %" PRIu32 " bytes; a file of %s", path, probe->io,
                probe->direct ? "past the page cache" : "through the page cache", probe->alignment,
                format_bytes(probe->file_bytes).chars);
    puts("");
    print_table(probe);
    const struct io_probe_cell *best = &probe->cells[probe->suggested];
    printf("\nWith the least in flight that reaches 95 %% of the best mixture:\n"
           "\"aio\": {\"block_size\": %" PRIu32 ", \"queue_depth\": %" PRIu32 "}\n",
           best->block_bytes, best->queue_depth);
}

static int run(int argc, char **argv) {
    struct zero_error error = ERROR_NONE;
    struct arguments arguments = {0};
    const char *path;
    if (options_parse(options, argc, argv, &arguments, &path, &error) != ZERO_OK)
        return command_usage_error("io", "%s", error.message);
    if (!path) return command_usage_error("io", "PATH is missing; name a directory on the drive");
    if (arguments.mib > UINT64_MAX >> 21 || arguments.ms > 1000000)
        return command_usage_error("io", "--mib or --ms is too large");
    struct stat found; /* a name with a typing error must not become a directory */
    int failed = stat(path, &found) != 0 ? errno : S_ISDIR(found.st_mode) ? 0 : ENOTDIR;
    if (failed) {
        format_line(stderr, "zero io: cannot measure %s: %s: name a directory on the drive", path,
                    strerror(failed));
        return EXIT_FAILED;
    }
    struct log log = {.write = print_line};
    struct io_probe_options o = {.path = path,
                                 .file_bytes = arguments.mib << 20,
                                 .cell_ms = (uint32_t)arguments.ms,
                                 .no_uring = arguments.no_uring,
                                 .log = &log};
    struct io_probe probe;
    zero_status status = io_probe(&o, &probe, &error);
    if (status == ZERO_E_ARGUMENT) return command_usage_error("io", "%s", error.message);
    if (status != ZERO_OK) return command_failed("io", error.message);
    print_probe(path, &probe);
    return EXIT_OK;
}

const struct command command_io = {
    .name = "io",
    .arguments = "PATH [OPTIONS]",
    .summary = "measures a drive and prints the aio block that suits it",
    .description =
        "Measures reads, writes and both together over block size and queue depth, for about 6 seconds,\n"
        "in a nameless file in the directory PATH: nothing is left of it. Writes 1 GiB once, and then\n"
        "what the drive can in 4 seconds.",
    .options = options,
    .run = run,
};
