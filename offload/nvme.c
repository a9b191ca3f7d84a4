/* The nvme tier: an extent that is striped over one file per path. Each file has a lane with its own owner thread.
 * The tier owns directories, files, lanes and the pool of requests. A request is posted to the lanes that hold a part
 * of it, and is done when its count of pending parts is 0. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/limits.h"
#include "offload/lane.h"
#include "offload/tier.h"

enum { BLOCK_BYTES_DEFAULT = 1 << 20, BLOCK_BYTES_MAX = 1 << 30, DEPTH_DEFAULT = 16, DEPTH_MAX = 4096 };

struct tier_work {
    struct lane_work lanes;
    struct tier_work *next_free;
};

struct nvme {
    struct tier base;
    struct tier_options o;
    uint32_t count; /* number of paths */
    struct swap_directory directory[TIER_PATHS_MAX];
    struct swap_file file[TIER_PATHS_MAX];
    struct lane *lane[TIER_PATHS_MAX];
    uint32_t directories, files, lanes;          /* open so far */
    char kept[SWAP_NAME_BYTES];                  /* the name of the kept files, or "" */
    bool written;                                /* a request has written to them: they are worth keeping */
    char remark[sizeof((struct io *)0)->remark]; /* the last remark that was logged */
    struct tier_work *works, *free_works;
    uint32_t posted;      /* requests that were posted and that test has not reported */
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t some_finished;
    uint64_t finished, told;
};

static void finished(void *user) {
    struct nvme *nvme = user;
    pthread_mutex_lock(&nvme->lock);
    nvme->finished++;
    pthread_cond_signal(&nvme->some_finished);
    pthread_mutex_unlock(&nvme->lock);
}

/* ---- requests ---- */

static void *nvme_address(struct tier *tier) { return NULL; }

static struct tier_work *take_work(struct nvme *nvme) {
    struct tier_work *work = nvme->free_works;
    nvme->free_works = work->next_free;
    nvme->posted++;
    return work;
}

static void start(struct nvme *nvme, struct lane_work *work) {
    uint32_t parts = 0;
    for (uint32_t i = 0; i < nvme->count; i++) parts += lane_holds(nvme->lane[i], work->offset, work->bytes);
    atomic_store_explicit(&work->failed, false, memory_order_relaxed);
    atomic_store_explicit(&work->pending, parts, memory_order_relaxed);
    for (uint32_t i = 0; i < nvme->count; i++)
        if (lane_holds(nvme->lane[i], work->offset, work->bytes)) lane_post(nvme->lane[i], work);
}

/* Starts a request. `repeat`: its memory is one block, which is written to each block. */
static struct tier_work *begin(struct nvme *nvme, const struct tier_request *r, bool repeat) {
    struct tier_work *work = take_work(nvme);
    work->lanes.write = r->write;
    work->lanes.repeat = repeat;
    work->lanes.offset = r->offset;
    work->lanes.bytes = r->bytes;
    work->lanes.memory = r->memory;
    start(nvme, &work->lanes);
    return work;
}

static zero_status nvme_post(struct tier *tier, const struct tier_request *r, struct tier_work **out_work,
                             struct zero_error *error) {
    struct nvme *nvme = (struct nvme *)tier;
    TRY(tier_check(tier, r, error));
    if (!r->bytes) {
        *out_work = NULL;
        return ZERO_OK;
    }
    if (!nvme->free_works)
        return error_set(error, ZERO_E_ORDER,
                         "tier nvme: %" PRIu32 " requests are in flight, the most it was opened for",
                         nvme->posted);
    nvme->written |= r->write;
    *out_work = begin(nvme, r, false);
    return ZERO_OK;
}

static zero_status nvme_test(struct tier *tier, struct tier_work *work, bool *out_done,
                             struct zero_error *error) {
    struct nvme *nvme = (struct nvme *)tier;
    struct lane_work *l = &work->lanes;
    *out_done = atomic_load_explicit(&l->pending, memory_order_acquire) == 0;
    if (!*out_done) return ZERO_OK;
    zero_status status = ZERO_OK;
    if (atomic_load_explicit(&l->failed, memory_order_relaxed))
        status = lane_failure(l, error);
    else
        *(l->write ? &tier->written_bytes : &tier->read_bytes) += l->bytes;
    work->next_free = nvme->free_works;
    nvme->free_works = work;
    nvme->posted--;
    pthread_mutex_lock(&nvme->lock);
    nvme->told++;
    pthread_mutex_unlock(&nvme->lock);
    return status;
}

static void nvme_wait(struct tier *tier, uint64_t timeout_ns) {
    struct nvme *nvme = (struct nvme *)tier;
    if (!nvme->posted) return;
    uint64_t now = clock_now_ns(), end = timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX;
    struct timespec deadline = {.tv_sec = (time_t)(end / 1000000000u), .tv_nsec = (long)(end % 1000000000u)};
    pthread_mutex_lock(&nvme->lock);
    int late = 0;
    /* nvme_test may report a request before `finished` counts it, so the difference may be negative. */
    while ((int64_t)(nvme->finished - nvme->told) <= 0 && !late)
        late = pthread_cond_timedwait(&nvme->some_finished, &nvme->lock, &deadline);
    pthread_mutex_unlock(&nvme->lock);
}

static zero_status nvme_sync(struct tier *tier, struct zero_error *error) {
    struct nvme *nvme = (struct nvme *)tier;
    for (uint32_t i = 0; i < nvme->files; i++)
        if (fdatasync(nvme->file[i].handle) != 0)
            return error_set(error, ZERO_E_IO, "tier nvme: data written to %s may be lost: fdatasync: %s",
                             nvme->file[i].path, strerror(errno));
    return ZERO_OK;
}

static void nvme_where(const struct tier *tier, uint64_t offset, char *out, uint32_t capacity) {
    const struct nvme *nvme = (const struct nvme *)tier;
    uint64_t block = offset / nvme->o.nvme.block_bytes, in_block = offset % nvme->o.nvme.block_bytes;
    snprintf(out, capacity, "%s at offset %" PRIu64, nvme->file[block % nvme->count].path,
             block / nvme->count * nvme->o.nvme.block_bytes + in_block);
}

/* ---- open and close ---- */

static void nvme_close(struct tier *tier) {
    struct nvme *nvme = (struct nvme *)tier;
    for (uint32_t i = 0; i < nvme->lanes; i++) lane_close(nvme->lane[i]);
    for (uint32_t i = 0; i < nvme->files && *nvme->kept && !nvme->written; i++)
        if (!nvme->file[i].kept_bytes) swap_file_remove(&nvme->directory[i], nvme->kept);
    for (uint32_t i = 0; i < nvme->files; i++) swap_file_close(&nvme->file[i]);
    for (uint32_t i = 0; i < nvme->directories; i++) swap_directory_close(&nvme->directory[i]);
    pthread_cond_destroy(&nvme->some_finished);
    pthread_mutex_destroy(&nvme->lock);
    free(nvme->works);
    free(nvme);
}

static uint64_t share(const struct nvme *nvme, uint32_t index) {
    return lane_share(nvme->o.bytes, nvme->o.nvme.block_bytes, index, nvme->count);
}

static zero_status check_options(const struct nvme *nvme, struct zero_error *error) {
    const struct tier_nvme_options *o = &nvme->o.nvme;
    if (o->path_count < 1 || o->path_count > TIER_PATHS_MAX)
        return error_set(error, ZERO_E_ARGUMENT, "tier nvme: %" PRIu32 " paths; it takes 1 to %d",
                         o->path_count, TIER_PATHS_MAX);
    if (o->block_bytes % CHUNK_ALIGN_BYTES || o->block_bytes > BLOCK_BYTES_MAX)
        return error_set(error, ZERO_E_ARGUMENT,
                         "tier nvme: blocks of %" PRIu32
                         " bytes; they must be a multiple of %d, and at most %d",
                         o->block_bytes, CHUNK_ALIGN_BYTES, BLOCK_BYTES_MAX);
    if (o->queue_depth > DEPTH_MAX)
        return error_set(error, ZERO_E_ARGUMENT, "tier nvme: a queue depth of %" PRIu32 "; at most %d",
                         o->queue_depth, DEPTH_MAX);
    return ZERO_OK;
}

static zero_status open_directories(struct nvme *nvme, struct zero_error *error) {
    const struct tier_nvme_options *o = &nvme->o.nvme;
    bool said = false;
    for (; nvme->directories < nvme->count; nvme->directories++) {
        struct swap_directory *d = &nvme->directory[nvme->directories];
        TRY(swap_directory_open(o->paths[nvme->directories], o->keep, d, error));
        if (*d->caution && !said)
            log_line(nvme->o.log, ZERO_LOG_WARN, "tier nvme: %s %s", d->path, d->caution);
        said |= *d->caution;
    }
    return ZERO_OK;
}

static zero_status open_files(struct nvme *nvme, struct zero_error *error) {
    const struct tier_nvme_options *o = &nvme->o.nvme;
    const struct swap_kept kept = {o->keep, o->kept_step, o->discard};
    bool said = false;
    if (o->keep) snprintf(nvme->kept, sizeof nvme->kept, "%s", o->keep);
    for (; nvme->files < nvme->count; nvme->files++) {
        uint32_t i = nvme->files;
        struct swap_file *file = &nvme->file[i];
        TRY(o->keep ? swap_file_keep(&nvme->directory[i], share(nvme, i), &kept, file, error)
                    : swap_file_create(&nvme->directory[i], share(nvme, i), o->named_files, file, error));
        if (file->alignment > nvme->base.alignment) nvme->base.alignment = file->alignment;
        if (!file->direct && !said && !*nvme->directory[i].caution)
            log_line(nvme->o.log, ZERO_LOG_WARN,
                     "tier nvme: the filesystem of %s has no direct I/O; transfers go through the page cache",
                     file->path);
        said |= !file->direct;
    }
    if (nvme->o.bytes % nvme->base.alignment)
        return error_set(error, ZERO_E_ARGUMENT,
                         "tier nvme: an extent of %" PRIu64 " bytes, which is no multiple of %" PRIu32,
                         nvme->o.bytes, nvme->base.alignment);
    return ZERO_OK;
}

/* Checks that the whole extent was kept, or nothing of it. If only a part was kept, empties that part if the user
 * asked for it (`discard`), or if it is blank. */
static zero_status look_at_kept(struct nvme *nvme, struct zero_error *error) {
    const struct swap_file *there = NULL, *missing = NULL;
    nvme->base.found = true;
    for (uint32_t i = 0; i < nvme->count; i++) {
        const struct swap_file *file = &nvme->file[i];
        nvme->base.found &= file->kept_bytes == file->bytes;
        if (file->kept_bytes && !file->blank)
            there = file;
        else if (file->kept_bytes != file->bytes)
            missing = file;
    }
    if (!there || !missing || nvme->o.nvme.discard) return ZERO_OK;
    return error_set(
        error, ZERO_E_IO,
        "tier nvme: the kept file %s is in %s and not in %s: name all nvme_paths of the run that "
        "made it, or remove it, or discard it (zero_runtime.discard_shadow, zero train --discard-shadow)",
        nvme->kept, there->path, missing->path);
}

/* Paths on one filesystem share its free space, and what the files there have already. */
static bool has_space(const struct nvme *nvme, uint32_t index, uint64_t *out_needed, uint64_t *out_free) {
    *out_needed = 0;
    *out_free = swap_free_bytes(nvme->directory[index].handle);
    for (uint32_t k = 0; k < nvme->count; k++)
        if (nvme->directory[k].device == nvme->directory[index].device) {
            *out_needed += nvme->file[k].bytes;
            *out_free += swap_file_held(&nvme->file[k]);
        }
    return *out_needed <= *out_free;
}

static zero_status check_space(const struct nvme *nvme, struct zero_error *error) {
    uint64_t needed, free_bytes;
    uint32_t tries = 0;
    for (uint32_t i = 0; i < nvme->count; i++)
        while (!has_space(nvme, i, &needed, &free_bytes))
            if (!swap_try_again(&tries))
                return error_set(
                    error, ZERO_E_IO,
                    "tier nvme: %s has too little space: needs %s, %s free; make room, add a path on "
                    "another drive, or use more ranks on other nodes",
                    nvme->directory[i].path, swap_size(needed).chars, swap_size(free_bytes).chars);
    return ZERO_OK;
}

/* Files that were kept and do not fit are emptied, but not before there is space for the new ones. */
static zero_status take_space(struct nvme *nvme, struct zero_error *error) {
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < nvme->count && !status && !nvme->base.found; i++)
        if (nvme->file[i].kept_bytes) status = swap_file_empty(&nvme->file[i], error);
    for (uint32_t i = 0; i < nvme->count && !status; i++) {
        status = swap_file_take(&nvme->file[i], error);
        struct stat size;
        if (fstat(nvme->file[i].handle, &size) == 0) nvme->base.allocated += (uint64_t)size.st_size;
    }
    return status;
}

/* Logs a remark once, even if it applies to several paths. */
static zero_status open_io(struct nvme *nvme, const struct io_options *options, struct io **out_io,
                           struct zero_error *error) {
    TRY(io_open(options, nvme->o.nvme.no_uring, out_io, error));
    if (strcmp((*out_io)->remark, nvme->remark) != 0) {
        memcpy(nvme->remark, (*out_io)->remark, sizeof nvme->remark);
        if (nvme->remark[0]) log_line(nvme->o.log, ZERO_LOG_WARN, "tier nvme: %s", nvme->remark);
    }
    return ZERO_OK;
}

static zero_status open_lanes(struct nvme *nvme, struct zero_error *error) {
    const struct tier_nvme_options *o = &nvme->o.nvme;
    for (; nvme->lanes < nvme->count; nvme->lanes++) {
        uint32_t i = nvme->lanes;
        const struct swap_file *file = &nvme->file[i];
        struct io_options io = {.file = file->handle,
                                .depth = o->queue_depth,
                                .alignment = file->alignment,
                                .buffers = o->buffers,
                                .buffer_count = o->buffer_count,
                                .hook = nvme->o.hook,
                                .index = i};
        struct lane_options lane = {.file = file,
                                    .index = i,
                                    .count = nvme->count,
                                    .block_bytes = o->block_bytes,
                                    .depth = o->queue_depth,
                                    .requests_max = nvme->o.requests_max,
                                    .finished = finished,
                                    .user = nvme};
        TRY(open_io(nvme, &io, &lane.io, error));
        TRY(lane_open(&lane, &nvme->lane[i], error));
    }
    return ZERO_OK;
}

static zero_status perform(struct nvme *nvme, const struct tier_request *r, bool repeat,
                           struct zero_error *error) {
    struct tier_work *work = begin(nvme, r, repeat);
    bool done = false;
    zero_status status = ZERO_OK;
    while (!done) {
        nvme_wait(&nvme->base, UINT64_MAX);
        status = nvme_test(&nvme->base, work, &done, error);
    }
    return status;
}

/* Reads the kept bytes and writes them again to the same place, so that the file has all its space. `block`: memory
 * for a block. */
static zero_status write_again(struct nvme *nvme, void *block, struct zero_error *error) {
    struct tier_request r = {.memory = block};
    zero_status status = ZERO_OK;
    for (; r.offset < nvme->o.bytes && !status; r.offset += r.bytes) {
        uint64_t left = nvme->o.bytes - r.offset;
        r.bytes = left < nvme->o.nvme.block_bytes ? left : nvme->o.nvme.block_bytes;
        r.write = false;
        status = perform(nvme, &r, false, error);
        r.write = true;
        if (!status) status = perform(nvme, &r, false, error);
    }
    return status;
}

/* Space that the filesystem has reserved reads as zeros until it is written. Where the filesystem cannot reserve space, one
 * write of the whole extent takes it, from one block of zeros and on all paths at the same time; what was kept is read first. */
static zero_status take_blocks(struct nvme *nvme, struct zero_error *error) {
    bool reserved = true;
    for (uint32_t i = 0; i < nvme->count; i++) reserved &= nvme->file[i].allocated;
    if (reserved) {
        log_line(nvme->o.log, ZERO_LOG_INFO, "tier nvme: reserved %s on %" PRIu32 " path%s",
                 swap_size(nvme->o.bytes).chars, nvme->count, nvme->count > 1 ? "s" : "");
        return ZERO_OK;
    }
    void *block;
    if (posix_memalign(&block, CHUNK_ALIGN_BYTES, nvme->o.nvme.block_bytes) != 0)
        return error_set(error, ZERO_E_MEMORY, "tier nvme: no memory for a block");
    memset(block, 0, nvme->o.nvme.block_bytes);
    const struct tier_request zeros = {.write = true, .bytes = nvme->o.bytes, .memory = block};
    uint64_t began = clock_now_ns();
    zero_status status =
        nvme->base.found ? write_again(nvme, block, error) : perform(nvme, &zeros, true, error);
    free(block);
    if (!status)
        log_line(nvme->o.log, ZERO_LOG_INFO,
                 "tier nvme: took %s on %" PRIu32 " path%s by writing it once in %.1f s",
                 swap_size(nvme->o.bytes).chars, nvme->count, nvme->count > 1 ? "s" : "",
                 (double)(clock_now_ns() - began) * 1e-9);
    return status;
}

static zero_status make_works(struct nvme *nvme, struct zero_error *error) {
    nvme->works = calloc(nvme->o.requests_max, sizeof *nvme->works);
    if (!nvme->works) return error_set(error, ZERO_E_MEMORY, "tier nvme: no memory for its requests");
    for (uint32_t i = nvme->o.requests_max; i-- > 0;) {
        nvme->works[i].next_free = nvme->free_works;
        nvme->free_works = &nvme->works[i];
    }
    return ZERO_OK;
}

static void start_clock(struct nvme *nvme) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&nvme->some_finished, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&nvme->lock, NULL);
}

static zero_status nvme_open(const struct tier_options *options, struct tier **out_tier,
                             struct zero_error *error) {
    struct nvme *nvme = calloc(1, sizeof *nvme);
    if (!nvme) return error_set(error, ZERO_E_MEMORY, "tier nvme: no memory for its handle");
    nvme->base = (struct tier){.ops = &tier_nvme, .bytes = options->bytes, .alignment = 1};
    nvme->o = *options;
    if (!nvme->o.requests_max) nvme->o.requests_max = TIER_REQUESTS_DEFAULT;
    if (!nvme->o.nvme.block_bytes) nvme->o.nvme.block_bytes = BLOCK_BYTES_DEFAULT;
    if (!nvme->o.nvme.queue_depth) nvme->o.nvme.queue_depth = DEPTH_DEFAULT;
    nvme->count = options->bytes ? options->nvme.path_count : 0;
    start_clock(nvme);
    zero_status status = ZERO_OK;
    if (options->bytes) {
        status = check_options(nvme, error);
        if (!status) status = open_directories(nvme, error);
        if (!status) status = open_files(nvme, error);
        if (!status) status = look_at_kept(nvme, error);
        if (!status) status = check_space(nvme, error);
        if (!status) status = take_space(nvme, error);
        if (!status) status = make_works(nvme, error);
        if (!status) status = open_lanes(nvme, error);
        if (!status) status = take_blocks(nvme, error);
    }
    if (status) {
        nvme_close(&nvme->base);
        return status;
    }
    nvme->base.read_bytes = nvme->base.written_bytes = 0; /* the counters count only requests */
    nvme->o.nvme.keep = NULL;                             /* borrowed only during open */
    nvme->o.nvme.buffers = NULL;
    *out_tier = &nvme->base;
    return ZERO_OK;
}

const struct tier_ops tier_nvme = {.name = "nvme",
                                   .choice = "nvme",
                                   .kind = TIER_NVME,
                                   .open = nvme_open,
                                   .close = nvme_close,
                                   .address = nvme_address,
                                   .post = nvme_post,
                                   .test = nvme_test,
                                   .wait = nvme_wait,
                                   .sync = nvme_sync,
                                   .where = nvme_where};
