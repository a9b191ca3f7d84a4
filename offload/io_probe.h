/* Measures the speed of a drive: reads, writes and both together, over block size and queue depth. It uses the lane
 * of the nvme tier, on a nameless file of its own. One thread; takes about 6 seconds with the defaults. */
#pragma once

#include <stdbool.h>

#include "engine/base/error.h"
#include "engine/base/log.h"

enum { IO_PROBE_BLOCKS = 4, IO_PROBE_DEPTHS = 4, IO_PROBE_CELLS = IO_PROBE_BLOCKS * IO_PROBE_DEPTHS };

struct io_probe_options {
    const char *path;      /* a directory; made if it is missing */
    uint64_t file_bytes;   /* 0: 1 GiB, or half of the free space if that is less; at least 16 MiB */
    uint32_t cell_ms;      /* time of each measurement; 0: 50 */
    bool no_uring;         /* measure the thread pool */
    const struct log *log; /* NULL: no log */
};

struct io_probe_cell {
    uint32_t block_bytes, queue_depth;
    double read, write, mixed; /* bytes per second; mixed: half reads, half writes */
};

struct io_probe {
    struct io_probe_cell cells[IO_PROBE_CELLS];
    /* The index of a cell: of all cells with 95 % of the best mixed speed, the cell with the fewest bytes in flight. */
    uint32_t suggested;
    uint64_t file_bytes;
    uint32_t alignment;
    bool direct;    /* true: transfers bypass the page cache */
    const char *io; /* "io_uring" */
};

/* ZERO_E_IO, ZERO_E_MEMORY or ZERO_E_ARGUMENT, each with a message. */
zero_status io_probe(const struct io_probe_options *options, struct io_probe *out_probe,
                     struct zero_error *error);
