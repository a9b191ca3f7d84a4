#ifdef INSTALLED
#include <zero/zero.h>
#else
#include "engine/zero.h"
#endif

/* Names that the engine uses inside. */
struct log {
    int lines;
};
struct device {
    int index;
};
static int log_line(const struct log *log, const struct device *device) { return log->lines + device->index; }

int main(void) {
    struct log log = {1};
    struct device device = {2};
    zero_runtime runtime = ZERO_INIT(zero_runtime);
    return log_line(&log, &device) == 3 && runtime.struct_size == sizeof runtime && zero_version() &&
                   zero_abi_version() == ZERO_ABI_VERSION
               ? 0
               : 1;
}
