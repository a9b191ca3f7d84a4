#include "offload/tier.h"

#include <inttypes.h>

#include "offload/io.h"

zero_status tier_open(const struct tier_ops *ops, const struct tier_options *options, struct tier **out_tier,
                      struct zero_error *error) {
    struct tier_hook *hook = options->hook;
    return hook ? hook->tier_open(hook, ops, options, out_tier, error) : ops->open(options, out_tier, error);
}

zero_status tier_check(const struct tier *tier, const struct tier_request *r, struct zero_error *error) {
    if (r->offset > tier->bytes || r->bytes > tier->bytes - r->offset)
        return error_set(error, ZERO_E_ARGUMENT,
                         "tier %s: request of %" PRIu64 " bytes at offset %" PRIu64
                         " of an extent of %" PRIu64,
                         tier->ops->name, r->bytes, r->offset, tier->bytes);
    if ((r->offset | r->bytes | (uintptr_t)r->memory) % tier->alignment)
        return error_set(error, ZERO_E_ARGUMENT,
                         "tier %s: request of %" PRIu64 " bytes at offset %" PRIu64
                         " with memory at %p; all three must be multiples of %" PRIu32,
                         tier->ops->name, r->bytes, r->offset, r->memory, tier->alignment);
    return ZERO_OK;
}
