#include "tools/automatic/this_machine.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/base/hash.h"
#include "engine/zero.h"
#include "offload/directory.h"
#include "tools/run_directory/file.h"

enum { QUESTION_BYTES = 5000, WIDTH_STEP = 64, WIDTH_MAX = 768, CONTEXT = 128, BATCH = 2, VOCAB = 512 };

/* ---- the question ---- */

static uint64_t measured_width(const struct this_machine *h) {
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
static void describe(const struct this_machine *h, char out[QUESTION_BYTES]) {
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

uint64_t this_machine_link_bytes(const struct this_machine *h) {
    return 12 * measured_width(h) * measured_width(h) * sizeof(float);
}

/* ---- the file ---- */

/* $XDG_CACHE_HOME/zero/machine-HASH, else ~/.cache/zero/machine-HASH, with the hash of the question. Its first line has the format's
 * version, a hash of all that follows, and the question; the description follows. A file that is damaged, that answers another question,
 * or that another user may have written counts as missing. */
#define BEGINNING "zero machine 1 "
enum {
    BEGINNING_BYTES = sizeof BEGINNING - 1,
    HASH_DIGITS = 16,
    FILE_BYTES = QUESTION_BYTES + THIS_MACHINE_TEXT_BYTES + 64
};

static bool cache_directory(char out[THIS_MACHINE_PATH_BYTES]) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool given = cache && *cache == '/'; /* the XDG rule: other values are ignored */
    if (!given && (!home || *home != '/')) return false;
    return snprintf(out, THIS_MACHINE_PATH_BYTES, "%s%s/zero", given ? cache : home, given ? "" : "/.cache") <
           THIS_MACHINE_PATH_BYTES - 64;
}

static bool path_of(const char *question, char out[THIS_MACHINE_PATH_BYTES]) {
    if (!cache_directory(out)) return false;
    sprintf(out + strlen(out), "/machine-%016" PRIx64, hash_string(HASH_START, question));
    return true;
}

/* Ignores a file that another user may have written. */
static bool read_own(const char *path, char out[FILE_BYTES]) {
    struct stat found;
    int handle = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (handle < 0) return false;
    bool own = fstat(handle, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == geteuid() &&
               !(found.st_mode & (S_IWGRP | S_IWOTH));
    ssize_t length = own ? read(handle, out, FILE_BYTES) : -1;
    close(handle);
    if (length <= 0 || length == FILE_BYTES) return false;
    out[length] = 0;
    return strlen(out) == (size_t)length;
}

/* The description in the file's contents; NULL: it counts as missing. */
static const char *text_of(const char *question, const char *contents) {
    char hash[HASH_DIGITS + 1];
    size_t length = strlen(question);
    if (strlen(contents) <= BEGINNING_BYTES + HASH_DIGITS) return NULL;
    const char *rest = contents + BEGINNING_BYTES + HASH_DIGITS + 1;
    sprintf(hash, "%016" PRIx64, hash_string(HASH_START, rest));
    bool same = strncmp(contents, BEGINNING, BEGINNING_BYTES) == 0 &&
                strncmp(contents + BEGINNING_BYTES, hash, HASH_DIGITS) == 0 &&
                strncmp(rest, question, length) == 0 && rest[length] == '\n';
    return same ? rest + length + 1 : NULL;
}

bool this_machine_find(const struct this_machine *h, char out_text[THIS_MACHINE_TEXT_BYTES]) {
    char question[QUESTION_BYTES], path[THIS_MACHINE_PATH_BYTES], contents[FILE_BYTES];
    struct machine unused;
    struct zero_error error = ERROR_NONE;
    describe(h, question);
    const char *text =
        path_of(question, path) && read_own(path, contents) ? text_of(question, contents) : NULL;
    return text && snprintf(out_text, THIS_MACHINE_TEXT_BYTES, "%s", text) < THIS_MACHINE_TEXT_BYTES &&
           this_machine_machine(h, out_text, &unused, &error) == ZERO_OK;
}

static void make_cache_directory(void) {
    char directory[THIS_MACHINE_PATH_BYTES];
    cache_directory(directory);
    *strrchr(directory, '/') = 0;
    mkdir(directory, 0700);
    strcat(directory, "/zero");
    mkdir(directory, 0700);
}

static zero_status keep(const struct this_machine *h, const char *description,
                        char out_path[THIS_MACHINE_PATH_BYTES], struct zero_error *error) {
    char question[QUESTION_BYTES], contents[FILE_BYTES], *rest = contents + BEGINNING_BYTES + HASH_DIGITS + 1;
    describe(h, question);
    if (!path_of(question, out_path))
        return error_set(error, ZERO_E_IO, "neither HOME nor XDG_CACHE_HOME names a directory");
    make_cache_directory();
    snprintf(rest, (size_t)(contents + sizeof contents - rest), "%s\n%s", question, description);
    sprintf(contents, BEGINNING "%016" PRIx64, hash_string(HASH_START, rest));
    rest[-1] = ' ';
    return new_file_write_private(out_path, contents, error);
}

/* ---- measuring ---- */

static struct measure_options options_of(const struct this_machine *h, const struct measured_link *link) {
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
                                    .bytes = this_machine_link_bytes(h),
                                    .brief = true,
                                    .dtype = (zero_dtype)h->dtype,
                                    .link = link};
}

zero_status this_machine_measure(const struct this_machine *h, const struct measured_link *link,
                                 char out_text[THIS_MACHINE_TEXT_BYTES],
                                 char out_note[THIS_MACHINE_PATH_BYTES], struct zero_error *error) {
    struct measure_options options = options_of(h, link);
    struct measured measured;
    struct zero_error why = ERROR_NONE;
    TRY(measure(&options, &measured, error));
    memset(out_text, 0, THIS_MACHINE_TEXT_BYTES);
    FILE *out = fmemopen(out_text, THIS_MACHINE_TEXT_BYTES - 1, "w");
    if (!out) return error_set(error, ZERO_E_MEMORY, "no memory for the description");
    measure_print(&options, &measured, out);
    if (fclose(out) != 0 || strlen(out_text) == THIS_MACHINE_TEXT_BYTES - 1)
        return error_set(error, ZERO_E_INTERNAL, "the description of this machine is too long");
    char path[THIS_MACHINE_PATH_BYTES];
    if (keep(h, out_text, path, &why) == ZERO_OK)
        snprintf(out_note, THIS_MACHINE_PATH_BYTES, "kept in %.3900s: remove it to measure anew", path);
    else
        snprintf(out_note, THIS_MACHINE_PATH_BYTES, "not kept, so that the next run measures too: %.1000s",
                 why.message);
    return ZERO_OK;
}

/* ---- the machine ---- */

zero_status this_machine_machine(const struct this_machine *h, const char *text, struct machine *out,
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
