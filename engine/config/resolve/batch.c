/* The three batch keys, by DeepSpeed's rules: each follows from the other two and the number of ranks. */
#include "engine/config/resolve/resolve.h"

#include "engine/config/key.h"

#define TRAIN "train_batch_size"
#define MICRO "train_micro_batch_size_per_gpu"
#define STEPS "gradient_accumulation_steps"

static const char *plural(uint64_t ranks) { return ranks == 1 ? "rank" : "ranks"; }

static zero_status not_multiple(uint64_t train, const char *of, uint64_t other, uint64_t ranks,
                                struct zero_error *error) {
    uint64_t part = other * ranks, below = train / part * part;
    return error_set(
        error, ZERO_E_CONFIG,
        TRAIN ": %llu is not a multiple of %s %llu * %llu %s = %llu: choose a multiple of %llu, as %llu",
        (unsigned long long)train, of, (unsigned long long)other, (unsigned long long)ranks, plural(ranks),
        (unsigned long long)part, (unsigned long long)part, (unsigned long long)(below ? below : part));
}

/* A derived value must be in the range of the written values. The engine's 32-bit counters hold this range. */
static zero_status check_derived(const char *path, uint64_t number, struct zero_error *error) {
    const struct config_key *key = config_key_find(path);
    if ((double)number <= key->max) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     "%s: the other keys make it %llu, more than %.0f: lower " TRAIN
                     ", or share it out between " MICRO " and " STEPS,
                     path, (unsigned long long)number, key->max);
}

static zero_status multiply_triple(uint64_t micro, uint64_t steps, uint64_t ranks, uint64_t *out,
                                   struct zero_error *error) {
    const struct config_key *key = config_key_find(TRAIN);
    uint64_t product;
    bool wraps = __builtin_mul_overflow(micro, steps, &product);
    wraps = __builtin_mul_overflow(product, ranks, &product) || wraps;
    if (!wraps && (double)product <= key->max) return *out = product, ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     TRAIN ": " MICRO " %llu * " STEPS " %llu * %llu %s is more than %.0f: lower one of them",
                     (unsigned long long)micro, (unsigned long long)steps, (unsigned long long)ranks,
                     plural(ranks), key->max);
}

static zero_status derive_triple(uint64_t *train, uint64_t *micro, uint64_t *steps, uint64_t ranks,
                                 struct zero_error *error) {
    if (*train && *micro && *steps) {
        uint64_t product = 0;
        zero_status status = multiply_triple(*micro, *steps, ranks, &product, error);
        if (status || *train == product) return status;
        return error_set(error, ZERO_E_CONFIG,
                         TRAIN ": %llu is not " MICRO " %llu * " STEPS
                               " %llu * %llu %s = %llu: change one of them, or "
                               "leave one out to have it derived",
                         (unsigned long long)*train, (unsigned long long)*micro, (unsigned long long)*steps,
                         (unsigned long long)ranks, plural(ranks), (unsigned long long)product);
    }
    if (*train && *micro) {
        if (*train % (*micro * ranks)) return not_multiple(*train, MICRO, *micro, ranks, error);
        *steps = *train / (*micro * ranks);
    } else if (*train) {
        if (!*steps) *steps = 1;
        if (*train % (*steps * ranks)) return not_multiple(*train, STEPS, *steps, ranks, error);
        *micro = *train / (*steps * ranks);
    } else {
        if (!*steps) *steps = 1;
        TRY(multiply_triple(*micro, *steps, ranks, train, error));
    }
    zero_status status = check_derived(MICRO, *micro, error);
    return status ? status : check_derived(STEPS, *steps, error);
}

zero_status config_resolve_batch(struct config *config, uint32_t ranks, struct zero_error *error) {
    uint64_t train = config_written(config, TRAIN) ? config->train_batch : 0;
    uint64_t micro = config_written(config, MICRO) ? config->micro_batch : 0;
    uint64_t steps = config_written(config, STEPS) ? config->accumulation_steps : 0;
    if (!train && !micro && (config_automatic(config, TRAIN) || config_automatic(config, MICRO)))
        micro = 8; /* Hugging Face's per_device_train_batch_size */
    if (!train && !micro)
        return error_set(error, ZERO_E_CONFIG, TRAIN ": it is missing, as is " MICRO ": give one of them");
    zero_status status = derive_triple(&train, &micro, &steps, ranks, error);
    if (status) return status;
    config->train_batch = train, config->micro_batch = micro, config->accumulation_steps = steps;
    if ((status = config_derived_int(config, TRAIN, train, error))) return status;
    if ((status = config_derived_int(config, MICRO, micro, error))) return status;
    return config_derived_int(config, STEPS, steps, error);
}
