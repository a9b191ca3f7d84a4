#include "engine/open/host_memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/hash.h"

enum { PATH_BYTES = 512 };

/* ---- the control groups of this process (cgroups, version 1 and 2), which limit what it may take ---- */

struct walk {
    const char *root, *controller;
    void (*take)(void *user, const char *folder, bool unified);
    void *user;
};

/* A container may see its own group as the root: then the path does not exist there, and the root's file has the limit. */
static void visit(const struct walk *w, const char *tree, char *group, bool unified) {
    char folder[PATH_BYTES];
    for (;;) {
        if (snprintf(folder, sizeof folder, "%s%s", tree, group) < PATH_BYTES)
            w->take(w->user, folder, unified);
        char *slash = strrchr(group, '/');
        if (!slash) return;
        *slash = 0;
    }
}

/* Whether the list "cpu,cpuacct" has the name. */
static bool lists(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || !at[length])) return true;
    return false;
}

/* A line of /proc/self/cgroup: "4:cpu,cpuacct:/path" of version 1, "0::/path" of version 2. A path may have colons, too. */
static void read_membership(const struct walk *w, char *line) {
    char tree[PATH_BYTES], *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    line[strcspn(line, "\n")] = 0;
    if (!group) return;
    *controllers++ = 0, *group++ = 0;
    bool unified = strcmp(line, "0") == 0;
    if (!unified && !lists(controllers, w->controller)) return;
    if (strcmp(group, "/") == 0) *group = 0;
    int length = snprintf(tree, sizeof tree, "%s/sys/fs/cgroup%s%s", w->root, unified ? "" : "/",
                          unified ? "" : w->controller);
    if (length < PATH_BYTES) visit(w, tree, group, unified);
}

/* Calls `take` with the folder of the group that has the controller ("memory", "cpu"), and of each group above. `root`: what stands
 * before /proc and /sys; "" but in tests. `unified`: version 2. */
static void each_group(const char *root, const char *controller,
                       void (*take)(void *user, const char *folder, bool unified), void *user) {
    struct walk w = {root, controller, take, user};
    char path[PATH_BYTES], line[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) read_membership(&w, line);
    if (file) fclose(file);
}

/* The first line of a file of the group, and the file's path. False: there is no such file. */
static bool read_line(const char *folder, const char *name, char out_path[PATH_BYTES], char out_line[64]) {
    if (snprintf(out_path, PATH_BYTES, "%s/%s", folder, name) >= PATH_BYTES) return false;
    FILE *file = fopen(out_path, "re");
    if (!file) return false;
    bool found = fgets(out_line, 64, file) != NULL;
    fclose(file);
    return found;
}

/* A number that is equal for the processes of this host that share the limit in the file. */
static uint64_t identity_of(const char *path) {
    char host[256] = "";
    struct stat file;
    gethostname(host, sizeof host - 1);
    uint64_t identity = hash_string(hash_string(HASH_START, host), path);
    if (stat(path, &file) == 0) /* containers see groups of their own under one path */
        identity = hash_bytes(hash_bytes(identity, &file.st_dev, sizeof file.st_dev), &file.st_ino,
                              sizeof file.st_ino);
    return identity;
}

/* ---- memory ---- */

static void lower(struct host_memory *memory, uint64_t bytes, const char *source) {
    if (bytes >= memory->bytes) return;
    memory->bytes = bytes;
    snprintf(memory->source, sizeof memory->source, "%s", source);
}

/* "max" is no number. */
static void take_limit(void *user, const char *folder, bool unified) {
    char path[PATH_BYTES], line[64];
    uint64_t bytes;
    bool found = read_line(folder, unified ? "memory.max" : "memory.limit_in_bytes", path, line);
    if (found && sscanf(line, "%" SCNu64, &bytes) == 1) lower(user, bytes, path);
}

/* All memory and all swap space. */
static void read_machine(const char *root, struct host_memory *memory) {
    char path[PATH_BYTES], line[256];
    uint64_t kib, total = 0;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemTotal: %" SCNu64, &kib) == 1 || sscanf(line, "SwapTotal: %" SCNu64, &kib) == 1)
            total += kib * 1024;
    if (file) fclose(file);
    if (total) lower(memory, total, path);
}

void host_memory_read(const char *root, struct host_memory *out) {
    *out = (struct host_memory){.bytes = UINT64_MAX};
    each_group(root, "memory", take_limit, out);
    read_machine(root, out);
    out->group = identity_of(out->source);
}

zero_status host_memory_check(const struct host_memory *memory, uint64_t bytes, uint32_t ranks,
                              struct zero_error *error) {
    const double gib = 1 << 30;
    double needed = (double)bytes * ranks;
    if (memory->bytes == UINT64_MAX || needed <= (double)memory->bytes) return ZERO_OK;
    return error_set(error, ZERO_E_BUDGET,
                     "host memory: %" PRIu32
                     " ranks here need %.2f GiB, %.2f GiB each, and %s allows %.2f GiB: the run would swap, "
                     "or the kernel would end it; raise that limit, set memory.cpu and offload to \"nvme\", "
                     "or put fewer ranks on this machine",
                     ranks, needed / gib, (double)bytes / gib, memory->source, (double)memory->bytes / gib);
}

/* ---- CPU time ---- */

/* Microseconds in each period: version 2 has both in one file; without a quota it says "max", and version 1 says -1. */
static void take_quota(void *user, const char *folder, bool unified) {
    struct cpu_quota *least = user;
    char path[PATH_BYTES], other[PATH_BYTES], line[128] = "", period[64];
    int64_t quota_us, period_us;
    if (!read_line(folder, unified ? "cpu.max" : "cpu.cfs_quota_us", path, line)) return;
    if (!unified && read_line(folder, "cpu.cfs_period_us", other, period)) strcat(line, period);
    if (sscanf(line, "%" SCNd64 " %" SCNd64, &quota_us, &period_us) != 2 || quota_us <= 0 || period_us <= 0)
        return;
    int64_t cpus = quota_us < period_us ? 1 : quota_us / period_us;
    if (cpus < least->cpus) *least = (struct cpu_quota){(uint32_t)cpus, identity_of(path)};
}

void cpu_quota_read(const char *root, struct cpu_quota *out) {
    *out = (struct cpu_quota){.cpus = UINT32_MAX};
    each_group(root, "cpu", take_quota, out);
}
