#include "offload/io_probe.h"

#include <semaphore.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "offload/lane.h"

enum {
    PAGE = 4096,
    REQUESTS = 4, /* in flight: together twice the bytes that the queue holds */
    CELL_MS_DEFAULT = 50,
    ROUNDS = 2,
};

#define FILE_BYTES_DEFAULT (UINT64_C(1) << 30)
#define FILE_BYTES_MIN (UINT64_C(16) << 20)
#define ENOUGH 0.95

static const uint32_t blocks[IO_PROBE_BLOCKS] = {256 << 10, 512 << 10, 1 << 20, 2 << 20};
static const uint32_t depths[IO_PROBE_DEPTHS] = {4, 8, 16, 32};

struct probe {
    const struct io_probe_options *o;
    struct swap_directory directory;
    struct swap_file file;
    uint8_t *memory;
    uint64_t memory_bytes;
    struct lane *lane; /* the lane of the present cell */
    sem_t finished;
    struct lane_work works[REQUESTS];
    uint64_t cursor; /* offset in the file */
};

static void tell(void *user) { sem_post(user); }

/* *name: the io of the cell before, or NULL; becomes the io of this cell. Logs the reason for another io than before. */
static zero_status open_lane(struct probe *p, const struct io_probe_cell *cell, const char **name,
                             struct zero_error *error) {
    struct device_span span = {p->memory, p->memory_bytes};
    struct io_options io = {.file = p->file.handle,
                            .depth = cell->queue_depth,
                            .alignment = p->file.alignment,
                            .buffers = &span,
                            .buffer_count = 1};
    struct lane_options lane = {.file = &p->file,
                                .count = 1,
                                .block_bytes = cell->block_bytes,
                                .depth = cell->queue_depth,
                                .requests_max = REQUESTS,
                                .finished = tell,
                                .user = &p->finished};
    TRY(io_open(&io, p->o->no_uring, &lane.io, error));
    if (*name != lane.io->ops->name && lane.io->remark[0])
        log_line(p->o->log, ZERO_LOG_WARN, "%s", lane.io->remark);
    *name = lane.io->ops->name;
    return lane_open(&lane, &p->lane, error);
}

static void post(struct probe *p, struct lane_work *work, bool write, uint64_t bytes) {
    if (p->cursor + bytes > p->file.bytes) p->cursor = 0;
    work->write = write;
    work->offset = p->cursor;
    work->bytes = bytes;
    work->memory = p->memory + (uint64_t)(work - p->works) * bytes;
    p->cursor += bytes;
    atomic_store(&work->failed, false);
    atomic_store(&work->pending, 1);
    lane_post(p->lane, work);
}

static void wait_for_one(struct probe *p) {
    while (sem_wait(&p->finished) != 0 && errno == EINTR) continue;
}

/* The bytes of one request: half of what the queue holds, but small enough that all requests fit into the file. */
static uint64_t request_bytes(const struct probe *p, const struct io_probe_cell *cell) {
    uint64_t bytes = (uint64_t)cell->block_bytes * cell->queue_depth / 2,
             most = p->file.bytes / (2 * REQUESTS);
    return bytes < most ? bytes : most / PAGE * PAGE;
}

/* Request i writes if bit i of `writes` is set. Returns when all requests are done. */
static zero_status measure(struct probe *p, const struct io_probe_cell *cell, uint32_t writes,
                           double *out_speed, struct zero_error *error) {
    uint64_t bytes = request_bytes(p, cell), moved = 0, began = clock_now_ns();
    uint64_t limit = (uint64_t)(p->o->cell_ms ? p->o->cell_ms : CELL_MS_DEFAULT) * 1000000u;
    bool busy[REQUESTS];
    uint32_t count = REQUESTS;
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        busy[i] = true;
        post(p, &p->works[i], writes >> i & 1, bytes);
    }
    while (count) {
        wait_for_one(p);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            struct lane_work *work = &p->works[i];
            if (!busy[i] || atomic_load_explicit(&work->pending, memory_order_acquire)) continue;
            if (atomic_load(&work->failed) && !status) status = lane_failure(work, error);
            moved += bytes;
            busy[i] = !status && clock_now_ns() - began < limit;
            if (busy[i])
                post(p, work, writes >> i & 1, bytes);
            else
                count--;
        }
    }
    while (sem_trywait(&p->finished) == 0) continue;
    *out_speed = (double)moved / ((double)(clock_now_ns() - began) * 1e-9);
    return status;
}

/* The speed of a drive varies, also with other users of the drive: keeps the best of all rounds. */
static zero_status measure_cell(struct probe *p, struct io_probe_cell *cell, struct zero_error *error) {
    double *const best[] = {&cell->read, &cell->write, &cell->mixed};
    static const uint32_t writes[] = {0, UINT32_MAX, 0x5};
    for (int i = 0; i < 3; i++) {
        double speed;
        TRY(measure(p, cell, writes[i], &speed, error));
        if (speed > *best[i]) *best[i] = speed;
    }
    return ZERO_OK;
}

/* Writes the whole file once, like the tier, so that no measured write has to allocate blocks. */
static zero_status write_once(struct probe *p, struct zero_error *error) {
    struct lane_work *work = &p->works[0];
    work->repeat = true;
    post(p, work, true, p->file.bytes);
    wait_for_one(p);
    work->repeat = false;
    return atomic_load(&work->failed) ? lane_failure(work, error) : ZERO_OK;
}

static zero_status measure_all(struct probe *p, struct io_probe *out, struct zero_error *error) {
    for (uint32_t i = 0; i < IO_PROBE_CELLS; i++)
        out->cells[i] = (struct io_probe_cell){.block_bytes = blocks[i / IO_PROBE_DEPTHS],
                                               .queue_depth = depths[i % IO_PROBE_DEPTHS]};
    for (uint32_t i = 0; i < ROUNDS * IO_PROBE_CELLS; i++) {
        struct io_probe_cell *cell = &out->cells[i % IO_PROBE_CELLS];
        zero_status status = open_lane(p, cell, &out->io, error);
        if (status) return status;
        if (i == 0) status = write_once(p, error);
        if (!status) status = measure_cell(p, cell, error);
        lane_close(p->lane);
        if (status) return status;
    }
    return ZERO_OK;
}

static uint64_t in_flight(const struct io_probe_cell *cell) {
    return (uint64_t)cell->block_bytes * cell->queue_depth;
}

static uint32_t suggest(const struct io_probe *probe) {
    double best = 0;
    uint32_t choice = 0;
    for (uint32_t i = 0; i < IO_PROBE_CELLS; i++)
        if (probe->cells[i].mixed > best) best = probe->cells[choice = i].mixed;
    for (uint32_t i = 0; i < IO_PROBE_CELLS; i++) {
        const struct io_probe_cell *cell = &probe->cells[i];
        if (cell->mixed >= ENOUGH * best && in_flight(cell) < in_flight(&probe->cells[choice])) choice = i;
    }
    return choice;
}

static zero_status make_file(struct probe *p, struct zero_error *error) {
    uint64_t bytes = p->o->file_bytes, free_bytes = swap_free_bytes(p->directory.handle);
    if (!bytes)
        bytes = free_bytes / 2 < FILE_BYTES_DEFAULT ? free_bytes / 2 / PAGE * PAGE : FILE_BYTES_DEFAULT;
    if (bytes < FILE_BYTES_MIN || bytes % PAGE)
        return error_set(
            error, ZERO_E_ARGUMENT,
            "a file of %s in %s is too small to measure with; it must have 16 MiB or more, in pages",
            swap_size(bytes).chars, p->o->path);
    if (bytes > free_bytes)
        return error_set(error, ZERO_E_IO, "%s has too little space: needs %s, %s free", p->o->path,
                         swap_size(bytes).chars, swap_size(free_bytes).chars);
    TRY(swap_file_create(&p->directory, bytes, false, &p->file, error));
    zero_status status = swap_file_take(&p->file, error);
    if (status) swap_file_close(&p->file);
    return status;
}

static zero_status make_memory(struct probe *p, struct zero_error *error) {
    const struct io_probe_cell largest = {.block_bytes = blocks[IO_PROBE_BLOCKS - 1],
                                          .queue_depth = depths[IO_PROBE_DEPTHS - 1]};
    p->memory_bytes = REQUESTS * request_bytes(p, &largest);
    void *memory;
    if (posix_memalign(&memory, PAGE, p->memory_bytes) != 0)
        return error_set(error, ZERO_E_MEMORY, "no memory for %s of buffers",
                         swap_size(p->memory_bytes).chars);
    p->memory = memory;
    memset(p->memory, 0, p->memory_bytes); /* makes the pages resident before the first measurement */
    return ZERO_OK;
}

zero_status io_probe(const struct io_probe_options *options, struct io_probe *out_probe,
                     struct zero_error *error) {
    struct probe p = {.o = options};
    struct io_probe found = {0};
    zero_status status = swap_directory_open(options->path, false, &p.directory, error);
    if (status) return status;
    status = make_file(&p, error);
    if (status) goto close_directory;
    status = make_memory(&p, error);
    if (status) goto close_file;
    sem_init(&p.finished, 0, 0);
    status = measure_all(&p, &found, error);
    sem_destroy(&p.finished);
    free(p.memory);
    if (!status) {
        found.suggested = suggest(&found);
        found.file_bytes = p.file.bytes;
        found.alignment = p.file.alignment;
        found.direct = p.file.direct;
        *out_probe = found;
    }
close_file:
    swap_file_close(&p.file);
close_directory:
    swap_directory_close(&p.directory);
    return status;
}
