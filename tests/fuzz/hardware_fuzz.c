/* Any bytes as a hardware description on top of the built-in one: read, then every device chosen. A failure has a
 * message; what the scanner lets through, json-c takes; a machine that was chosen is complete. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/plan/machine/machine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct hardware hardware;

static void require(int condition, const char *what, const struct zero_error *error) {
    if (condition) return;
    fprintf(stderr, "%s: %s\n", what, error->message);
    abort();
}

static void choose(const char *device) {
    struct zero_error error;
    error_clear(&error);
    struct machine m;
    zero_status status = hardware_choose(&hardware, &(struct hardware_choice){.device = device}, &m, &error);
    require((status != ZERO_OK) == (error.message[0] != 0), "a failure and a message go together", &error);
    if (status) return;
    require(m.device.memory_bytes > 0 && m.device.memory_per_s > 0 && m.device.flops[0] > 0, "the device",
            &error);
    require(m.host.memory_bytes > 0 && m.inside.per_s > 0 && m.node_ranks > 0, "host and link", &error);
    require(!m.drive.name[0] || m.drive.mixed_per_s > 0, "the drive", &error);
    struct speeds s = machine_speeds(&m, m.node_ranks, DTYPE_F32);
    require(s.flops_per_s && s.inside.bytes_per_s && s.between.reduce_bytes_per_s && s.host_bytes_per_s &&
                s.update_bytes_per_s && s.drive_mixed_bytes_per_s,
            "speeds", &error);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct zero_error error;
    error_clear(&error);
    require(hardware_open(&hardware, &error) == ZERO_OK, "the built-in descriptions", &error);
    zero_status status = hardware_read_text(&hardware, (const char *)data, size, "fuzz", &error);
    require((status != ZERO_OK) == (error.message[0] != 0), "a failure and a message go together", &error);
    require(status != ZERO_E_INTERNAL, "scanner and json-c disagree", &error);
    for (uint32_t i = 0; i < hardware.devices; i++) choose(hardware.device[i].name);
    return 0;
}
