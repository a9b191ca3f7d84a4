#include "tools/command/here.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/zero.h"
#include "offload/directory.h"
#include "tools/command/kept.h"

enum { QUESTION_BYTES = 5000, WIDTH_STEP = 64, WIDTH_MAX = 768, CONTEXT = 128, BATCH = 2, VOCAB = 512 };
_Static_assert((int)HERE_PATH_BYTES == (int)KEPT_PATH_BYTES, "a note has room for a path");

/* ---- the question ---- */

static uint64_t measured_width(const struct here *h) {
    uint64_t width = (h->width + WIDTH_STEP - 1) / WIDTH_STEP * WIDTH_STEP;
    return width < WIDTH_MAX ? width : WIDTH_MAX;
}

static void read_processor(char *out, size_t size) {
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(out, size, "unknown processor");
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        snprintf(out, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (file) fclose(file);
}

/* One line: all that the numbers depend on. */
static void describe(const struct here *h, char out[QUESTION_BYTES]) {
    char host[256] = "", processor[200];
    struct stat drive = {0};
    gethostname(host, sizeof host - 1);
    read_processor(processor, sizeof processor);
    if (h->drive) stat(h->drive, &drive);
    snprintf(out, QUESTION_BYTES,
             "zero %s on %s: %s, %ld CPUs, %ld pages of %ld; %" PRIu32 " %s%s of %" PRIu32
             " threads, %s, width %" PRIu64 "; drive %s (%" PRIu64 "), %" PRIu64 " x %" PRIu64,
             zero_version(), host, processor, sysconf(_SC_NPROCESSORS_ONLN), sysconf(_SC_PHYS_PAGES),
             sysconf(_SC_PAGESIZE), h->ranks, h->transport ? "ranks over " : "ranks",
             h->transport ? h->transport : "", h->threads, dtype_name(h->dtype), measured_width(h),
             h->drive ? h->drive : "none", (uint64_t)drive.st_dev, h->drive ? h->drive_block : 0,
             h->drive ? h->drive_depth : 0);
    for (char *c = out; *c; c++)
        if (*c == '\n') *c = ' ';
}

uint64_t here_link_bytes(const struct here *h) {
    return 12 * measured_width(h) * measured_width(h) * sizeof(float);
}

/* ---- the file ---- */

bool here_find(const struct here *h, char out_text[HERE_TEXT_BYTES]) {
    char question[QUESTION_BYTES];
    struct machine unused;
    struct zero_error error;
    describe(h, question);
    error_clear(&error);
    return kept_find(&(struct kept){"machine", NULL, question}, out_text, HERE_TEXT_BYTES) &&
           here_machine(h, out_text, &unused, &error) == ZERO_OK;
}

static zero_status keep(const struct here *h, const char *description, char out_path[HERE_PATH_BYTES],
                        struct zero_error *error) {
    char question[QUESTION_BYTES];
    describe(h, question);
    struct kept kept = {"machine", NULL, question};
    kept_path(&kept, out_path);
    return kept_store(&kept, description, error);
}

/* ---- measuring ---- */

static struct measure_options options_of(const struct here *h, const struct measured_link *link) {
    uint32_t width = (uint32_t)measured_width(h);
    return (struct measure_options){.ranks = h->ranks,
                                    .threads = h->threads,
                                    .model = {.layers = 1,
                                              .width = width,
                                              .heads = width / WIDTH_STEP,
                                              .context = CONTEXT,
                                              .vocab = VOCAB,
                                              .tied = true,
                                              .layer_norm_epsilon = 1e-5,
                                              .initializer_range = 0.02},
                                    .batch = BATCH,
                                    .drive = h->drive,
                                    .drive_block = h->drive_block,
                                    .drive_depth = h->drive_depth,
                                    .bytes = here_link_bytes(h),
                                    .brief = true,
                                    .dtype = (zero_dtype)h->dtype,
                                    .link = link};
}

zero_status here_measure(const struct here *h, const struct measured_link *link,
                         char out_text[HERE_TEXT_BYTES], char out_note[HERE_PATH_BYTES],
                         struct zero_error *error) {
    struct measure_options options = options_of(h, link);
    struct measured measured;
    struct zero_error why;
    error_clear(&why);
    zero_status status = measure(&options, &measured, error);
    if (status) return status;
    memset(out_text, 0, HERE_TEXT_BYTES);
    FILE *out = fmemopen(out_text, HERE_TEXT_BYTES - 1, "w");
    if (!out) return error_set(error, ZERO_E_MEMORY, "no memory for the description");
    measure_print(&options, &measured, out);
    if (fclose(out) != 0 || strlen(out_text) == HERE_TEXT_BYTES - 1)
        return error_set(error, ZERO_E_INTERNAL, "the description of this machine is too long");
    char path[HERE_PATH_BYTES];
    if (keep(h, out_text, path, &why) == ZERO_OK)
        snprintf(out_note, HERE_PATH_BYTES, "kept in %.3900s: remove it to measure anew", path);
    else
        snprintf(out_note, HERE_PATH_BYTES, "not kept, so that the next run measures too: %.1000s",
                 why.message);
    return ZERO_OK;
}

/* ---- the machine ---- */

zero_status here_machine(const struct here *h, const char *text, struct machine *out,
                         struct zero_error *error) {
    struct hardware *hardware = malloc(sizeof *hardware);
    const struct hardware_choice choice = {.device = "here"};
    char *drive = NULL;
    struct statvfs disk;
    if (!hardware) return error_set(error, ZERO_E_MEMORY, "no memory for descriptions of hardware");
    zero_status status = hardware_open(hardware, error);
    if (!status)
        status = hardware_read_text(hardware, text, strlen(text), "this machine's description", error);
    if (!status) status = hardware_choose(hardware, &choice, out, error);
    free(hardware);
    if (status) return status;
    if (h->host_bytes != UINT64_MAX) {
        out->host.memory_bytes = fmin(out->host.memory_bytes, (double)h->host_bytes);
        out->device.memory_bytes = out->host.memory_bytes / h->ranks;
    }
    if (h->drive) status = swap_directory_path(h->drive, false, &drive, error);
    if (drive && statvfs(drive, &disk) == 0) out->drive.bytes = (double)disk.f_bavail * (double)disk.f_frsize;
    free(drive);
    return status;
}
