#include "engine/open/host_memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "engine/open/control_group.h"

enum { PATH_BYTES = CONTROL_GROUP_PATH_BYTES };

static void lower(struct host_memory *memory, uint64_t bytes, const char *source) {
    if (bytes >= memory->bytes) return;
    memory->bytes = bytes;
    snprintf(memory->source, sizeof memory->source, "%s", source);
}

/* "max" is no number. */
static void take_limit(void *user, const char *folder, bool unified) {
    char path[PATH_BYTES], line[64];
    uint64_t bytes;
    bool found = control_group_line(folder, unified ? "memory.max" : "memory.limit_in_bytes", path, line);
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
    control_group_each(root, "memory", take_limit, out);
    read_machine(root, out);
    out->group = control_group_identity(out->source);
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
