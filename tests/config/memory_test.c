/* Whichever allocation fails while a configuration is read and resolved: ZERO_E_MEMORY, or the values of a reading that has all memory. */
#include "engine/config/config.h"
#include "tests/check.h"
#include "tests/sanitized.h"

#include <stdbool.h>
#include <stdlib.h>

#if SANITIZED
int main(void) { return 0; } /* the sanitizer has its own malloc */
#else
#include "tests/scarce.h"

static const char text[] =
    "{\"train_batch_size\": 8, gradient_accumulation_steps: 2, # by hand\n \"seed\": 7,"
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.125, \"betas\": [0.5, 0.75], "
    "\"weight_decay\": \"auto\"}},"
    " \"param_groups\": [{\"match\": [\"*.bias\", \"*ln*\"], \"weight_decay\": 0}], "
    "\"wall_clock_breakdown\": true,"
    " \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 9}},"
    " \"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
    "[\"/a\", \"/b\"]}},"
    " \"data\": {\"path\": 'a very long name of a file of text'}, \"model\": {\"n_layer\": 2, \"n_embd\": "
    "64, \"n_head\": 4}}";

/* The printed configuration; NULL: status says why. */
static char *read_with(int64_t allocations, zero_status *status, struct zero_error *error) {
    struct config config;
    error_clear(error);
    left = allocations;
    *status = config_read(text, &config, error);
    if (!*status) *status = config_resolve(&config, 2, error);
    bool all = left >= 0;
    left = INT64_MAX;
    char *printed = *status ? NULL : config_print(&config);
    config_free(&config);
    if (all) *status = ZERO_E_INTERNAL; /* none has failed */
    return printed;
}

static void every_allocation(void) {
    struct zero_error error;
    zero_status status;
    char *whole = read_with(INT64_MAX, &status, &error);
    if (!CHECK(whole)) return;
    int64_t count = 0;
    for (bool end = false; !end && count < 100000; count++) {
        char *printed = read_with(count, &status, &error);
        end = status == ZERO_E_INTERNAL && printed;
        bool good = printed ? CHECK_STRING(printed, whole) : CHECK_INT(status, ZERO_E_MEMORY);
        if (!good)
            fprintf(stderr, "allocation %" PRId64 "%s: %s\n", count, lasts ? " and all after it" : "",
                    error.message);
        free(printed);
    }
    CHECK(count > 1000);
    free(whole);
}

int main(void) {
    for (int k = 0; k < 2; k++) lasts = k, every_allocation();
    return check_end();
}
#endif
