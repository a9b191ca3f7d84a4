#include "tools/metrics/metrics.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/system/durable.h"
#include "tools/text/format.h"

#define GROUP "Train/Samples/"

enum { SCALARS = 6 };

/* Returns how many scalars the step has. The tokens per second are always there. */
static size_t scalars_of(const struct record *r, struct scalar out[SCALARS]) {
    const struct scalar all[] = {
        {GROUP "train_loss", r->loss},     {GROUP "lr", r->lr},
        {GROUP "grad_norm", r->grad_norm}, {GROUP "tokens_per_s", r->tokens_per_s},
        {GROUP "eval_loss", r->eval_loss}, {GROUP "eval_loss_ema", r->eval_loss_ema}};
    size_t count = SCALARS;
    while (isnan(all[count - 1].value)) count--; /* scalars that were not measured at this step come last */
    memcpy(out, all, count * sizeof *out);
    return count;
}

static double wall_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- csv_monitor: a file for each tag ---- */

/* The name of a tag's file: its slashes are underscores. */
static void csv_path(const struct monitor *m, const char *tag, char *out, size_t size) {
    size_t directory = strlen(m->directory);
    snprintf(out, size, "%s%s.csv", m->directory, tag);
    for (char *c = out + directory; (c = strchr(c, '/')); c++) *c = '_';
}

static bool csv_open(struct monitor *m, bool anew) {
    static const struct record record;
    struct scalar scalar[SCALARS];
    char path[sizeof m->directory + 128];
    size_t count = anew ? scalars_of(&record, scalar) : 0;
    for (size_t i = 0; i < count; i++) {
        csv_path(m, scalar[i].tag, path, sizeof path);
        if (unlink(path) && errno != ENOENT) return false;
    }
    return true;
}

static bool csv_append(const struct monitor *m, const struct scalar *s, uint64_t samples) {
    char path[sizeof m->directory + 128];
    csv_path(m, s->tag, path, sizeof path);
    FILE *file = fopen(path, "ae");
    if (!file) return false;
    if (fseek(file, 0, SEEK_END) == 0 && ftell(file) == 0)
        fprintf(file, "step,%s\n", strrchr(s->tag, '/') + 1);
    fprintf(file, "%" PRIu64 ",%.9g\n", samples, s->value);
    bool failed = ferror(file);
    return fclose(file) == 0 && !failed;
}

static bool csv_write(const struct monitor *m, const struct record *record, uint64_t samples) {
    struct scalar scalar[SCALARS];
    size_t count = scalars_of(record, scalar);
    bool fine = true;
    for (size_t i = 0; i < count && fine; i++) fine = csv_append(m, &scalar[i], samples);
    return fine;
}

/* ---- tensorboard: a file for each process, whose name tells it from others ---- */

#define EVENTS "events.out.tfevents."

/* All event files of a directory are one run to TensorBoard. */
static bool drop_events(const char *directory) {
    DIR *list = opendir(directory);
    bool dropped = list;
    for (struct dirent *entry; dropped && (entry = readdir(list));)
        if (strncmp(entry->d_name, EVENTS, sizeof EVENTS - 1) == 0)
            dropped = unlinkat(dirfd(list), entry->d_name, 0) == 0 || errno == ENOENT;
    if (list) closedir(list);
    return dropped;
}

static bool events_open(struct monitor *m, bool anew) {
    char host[65] = "localhost";
    if (anew && !drop_events(m->directory)) return false;
    gethostname(host, sizeof host - 1);
    double now = wall_s();
    if (snprintf(m->events, sizeof m->events, "%s" EVENTS "%.0f.%.32s.%d.0", m->directory, now, host,
                 (int)getpid()) >= (int)sizeof m->events) {
        errno = ENAMETOOLONG;
        return false;
    }
    FILE *file = fopen(m->events, "wxe");
    if (!file) return false;
    events_begin(file, now);
    return fclose(file) == 0;
}

static bool events_append(const struct monitor *m, const struct record *record, uint64_t samples) {
    struct scalar scalar[SCALARS];
    size_t count = scalars_of(record, scalar);
    FILE *file = fopen(m->events, "ae");
    if (!file) return false;
    events_write(file, wall_s(), samples, scalar, count);
    bool failed = ferror(file);
    return fclose(file) == 0 && !failed;
}

/* ---- both ---- */

static const struct kind {
    const char *block;
    size_t offset; /* of struct config_monitor */
    bool (*open)(struct monitor *monitor, bool anew);
    bool (*write)(const struct monitor *monitor, const struct record *record, uint64_t samples);
    bool own_names; /* other programs' files in a given directory have other names */
} kinds[MONITORS] = {{"tensorboard", offsetof(struct config, tensorboard), events_open, events_append, false},
                     {"csv_monitor", offsetof(struct config, csv_monitor), csv_open, csv_write, true}};

static bool make_all(char *path) {
    errno = durable_parents(path, 0777);
    if (!errno) errno = durable_directory(path, 0777);
    return !errno || errno == EEXIST;
}

zero_status monitor_open(const struct config *config, const char *run, bool anew, bool overwrites,
                         struct zero_error *error, struct monitor out[MONITORS]) {
    for (int i = 0; i < MONITORS; i++) {
        const struct config_monitor *c =
            (const struct config_monitor *)(const void *)((const char *)config + kinds[i].offset);
        char *path = out[i].directory;
        *path = 0;
        if (!c->enabled) continue;
        bool given = c->output_path && *c->output_path;
        int length = snprintf(path, sizeof out[i].directory, "%s%s%s/%s/", given ? c->output_path : run,
                              given ? "" : "/", given ? "" : kinds[i].block, c->job_name);
        bool replaces = anew && (!given || (overwrites && kinds[i].own_names));
        if (length >= (int)sizeof out[i].directory || !make_all(path) || !kinds[i].open(&out[i], replaces)) {
            int number = length >= (int)sizeof out[i].directory ? ENAMETOOLONG : errno;
            return error_set(error, ZERO_E_IO, "%s.output_path: cannot write in %s: %s", kinds[i].block, path,
                             strerror(number));
        }
    }
    return ZERO_OK;
}

void monitor_write(struct monitor monitor[MONITORS], const struct record *record, uint64_t samples) {
    for (int i = 0; i < MONITORS; i++) {
        struct monitor *m = &monitor[i];
        if (!*m->directory || kinds[i].write(m, record, samples)) continue;
        format_line(stderr, "zero train: %s: cannot write in %s: %s; training goes on without it",
                    kinds[i].block, m->directory, strerror(errno));
        *m->directory = 0;
    }
}
