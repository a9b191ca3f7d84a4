#include "offload/io.h"

#include <stdio.h>

zero_status io_open(const struct io_options *options, bool no_uring, struct io **out_io,
                    struct zero_error *error) {
    if (options->hook) return options->hook->io_open(options->hook, options, no_uring, out_io, error);
    struct zero_error refusal = ERROR_NONE, failure = ERROR_NONE;
    zero_status status = no_uring ? error_set(&refusal, ZERO_E_UNSUPPORTED, "io_uring is switched off")
                                  : io_ring.open(options, out_io, &refusal);
    if (status == ZERO_OK) return ZERO_OK;
    if (status != ZERO_E_UNSUPPORTED) return error_set(error, status, "tier nvme: %s", refusal.message);
    status = io_pool.open(options, out_io, &failure);
    if (status) return error_set(error, status, "tier nvme: %s; %s", refusal.message, failure.message);
    snprintf((*out_io)->remark, sizeof(*out_io)->remark,
             "%.180s; threads with pread and pwrite are used instead", refusal.message);
    return ZERO_OK;
}
