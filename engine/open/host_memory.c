#include "engine/open/host_memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/hash.h"

enum { PATH_BYTES = 512 };

static bool read_line(const char *path, char *out, int size) {
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool found = fgets(out, size, file) != NULL;
    fclose(file);
    return found;
}

static void lower(struct host_memory *memory, uint64_t bytes, const char *source) {
    if (bytes >= memory->bytes) return;
    memory->bytes = bytes;
    snprintf(memory->source, sizeof memory->source, "%s", source);
}

/* The group's limit, and those of the groups above it. A container may see its own group as the root: then the path does
 * not exist there, and the root's file has the limit. "max" is no number. */
static void read_group(const char *folder, char *group, const char *name, struct host_memory *memory) {
    char path[PATH_BYTES], line[64];
    for (;;) {
        uint64_t bytes;
        bool fits = snprintf(path, sizeof path, "%s%s/%s", folder, group, name) < PATH_BYTES;
        if (fits && read_line(path, line, sizeof line) && sscanf(line, "%" SCNu64, &bytes) == 1)
            lower(memory, bytes, path);
        char *slash = strrchr(group, '/');
        if (!slash) return;
        *slash = 0;
    }
}

/* A line of /proc/self/cgroup: "4:memory:/path" of version 1, "0::/path" of version 2. A path may have colons, too. */
static void read_membership(const char *root, char *line, struct host_memory *memory) {
    char folder[PATH_BYTES], *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    line[strcspn(line, "\n")] = 0;
    if (!group) return;
    *group++ = 0;
    bool unified = strcmp(line, "0:") == 0;
    if (!unified && !strstr(controllers, "memory")) return;
    if (strcmp(group, "/") == 0) *group = 0;
    int length = snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s", root, unified ? "" : "/memory");
    if (length < PATH_BYTES)
        read_group(folder, group, unified ? "memory.max" : "memory.limit_in_bytes", memory);
}

static void read_groups(const char *root, struct host_memory *memory) {
    char path[PATH_BYTES], line[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) read_membership(root, line, memory);
    if (file) fclose(file);
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
    char host[256] = "";
    struct stat file;
    *out = (struct host_memory){.bytes = UINT64_MAX};
    read_groups(root, out);
    read_machine(root, out);
    gethostname(host, sizeof host - 1);
    out->group = hash_string(hash_string(HASH_START, host), out->source);
    if (stat(out->source, &file) == 0) /* containers see groups of their own under one path */
        out->group = hash_bytes(hash_bytes(out->group, &file.st_dev, sizeof file.st_dev), &file.st_ino,
                                sizeof file.st_ino);
}

zero_status host_memory_check(const struct host_memory *memory, uint64_t bytes, uint32_t ranks,
                              struct zero_error *error) {
    const double gib = 1 << 30;
    double needed = (double)bytes * ranks;
    if (memory->bytes == UINT64_MAX || needed <= (double)memory->bytes) return ZERO_OK;
    return error_set(error, ZERO_E_BUDGET,
                     "host memory: %" PRIu32
                     " ranks here need %.2f GiB, %.2f GiB each, and %s allows %.2f GiB: "
                     "the run would swap, or the kernel would end it; raise that limit, set memory.cpu and "
                     "offload to \"nvme\", or put "
                     "fewer ranks on this machine",
                     ranks, needed / gib, (double)bytes / gib, memory->source, (double)memory->bytes / gib);
}
