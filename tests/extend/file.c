/* A tier in one nameless file, read and written through the kernel's page cache: a request is done when post returns.
 * Uses the first path of nvme_path. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/tier.h"

extern const struct tier_ops tier_file;

struct file {
    struct tier base;
    int fd; /* -1: the extent has no bytes */
};

static zero_status file_open(const struct tier_options *options, struct tier **out_tier,
                             struct zero_error *error) {
    struct file *file = calloc(1, sizeof *file);
    if (!file) return error_set(error, ZERO_E_MEMORY, "tier file: no memory for its handle");
    *file = (struct file){.base = {.ops = &tier_file, .bytes = options->bytes, .alignment = 1}, .fd = -1};
    file->base.allocated = options->bytes;
    if (options->nvme.keep) {
        free(file);
        return error_set(error, ZERO_E_UNSUPPORTED, "tier file: it keeps no files: remove nvme.shadow");
    }
    if (options->bytes) file->fd = open(options->nvme.paths[0], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (options->bytes && (file->fd < 0 || ftruncate(file->fd, (off_t)options->bytes))) {
        error_set(error, ZERO_E_IO, "tier file: a file of %" PRIu64 " bytes in %s: %s", options->bytes,
                  options->nvme.paths[0], strerror(errno));
        if (file->fd >= 0) close(file->fd);
        free(file);
        return ZERO_E_IO;
    }
    *out_tier = &file->base;
    return ZERO_OK;
}

static void file_close(struct tier *tier) {
    struct file *file = (struct file *)tier;
    if (file->fd >= 0) close(file->fd);
    free(file);
}

static void *file_address(struct tier *tier) { return NULL; }

static zero_status file_post(struct tier *tier, const struct tier_request *r, struct tier_work **out_work,
                             struct zero_error *error) {
    const struct file *file = (const struct file *)tier;
    zero_status status = tier_check(tier, r, error);
    if (status) return status;
    for (uint64_t done = 0; done < r->bytes;) {
        char *memory = (char *)r->memory + done;
        size_t left = r->bytes - done;
        off_t at = (off_t)(r->offset + done);
        ssize_t n = r->write ? pwrite(file->fd, memory, left, at) : pread(file->fd, memory, left, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return error_set(error, ZERO_E_IO, "tier file: %s of %zu bytes at offset %lld: %s",
                             r->write ? "write" : "read", left, (long long)at,
                             n ? strerror(errno) : "the file is too short");
        done += (uint64_t)n;
    }
    *(r->write ? &tier->written_bytes : &tier->read_bytes) += r->bytes;
    *out_work = NULL;
    return ZERO_OK;
}

static zero_status file_test(struct tier *tier, struct tier_work *work, bool *out_done,
                             struct zero_error *error) {
    *out_done = true;
    return ZERO_OK;
}

static void file_wait(struct tier *tier, uint64_t timeout_ns) {}

static zero_status file_sync(struct tier *tier, struct zero_error *error) {
    if (((struct file *)tier)->fd < 0 || fdatasync(((struct file *)tier)->fd) == 0) return ZERO_OK;
    return error_set(error, ZERO_E_IO, "tier file: %s", strerror(errno));
}

static void file_where(const struct tier *tier, uint64_t offset, char *out, uint32_t capacity) {
    snprintf(out, capacity, "tier file at offset %" PRIu64, offset);
}

const struct tier_ops tier_file = {.name = "file",
                                   .choice = "file",
                                   .kind = TIER_NVME,
                                   .open = file_open,
                                   .close = file_close,
                                   .address = file_address,
                                   .post = file_post,
                                   .test = file_test,
                                   .wait = file_wait,
                                   .sync = file_sync,
                                   .where = file_where};
