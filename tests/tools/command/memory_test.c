/* Whichever allocation fails while a configuration is edited: no text, or the text of an edit that has all memory. */
#include "tests/check.h"
#include "tests/sanitized.h"
#include "tools/command/command.h"
#include "tools/plan/edit.h"

#if SANITIZED
int main(void) { return 0; } /* the sanitizer has its own malloc */
#else
#include "tests/scarce.h"

static const char text[] =
    "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": "
    "\"nvme\", "
    "\"nvme_path\": \"/a\"}}, \"scheduler\": null, \"comm\": {\"prefetch_depth\": 2}, \"param_groups\": "
    "[{\"match\": "
    "[\"*\"]}], \"activation_checkpointing\": {\"interval\": 1}, \"model\": {\"model_type\": \"llama\", "
    "\"hidden_size\": 64}}";
static const struct cell cell = {
    .stage = 3, .optimizer = ZERO_NVME, .params = ZERO_CPU, .recompute = 2, .micro_batch = 2};
static const struct shapes shapes = {
    .architecture = GPT_MISTRAL, .layers = 2, .width = 64, .heads = 4, .context = 16, .vocab = 256};

static char *batch(void) { return edit_batch(text, 4, 2); }
static char *prefetch(void) { return edit_no_prefetch(text); }
static char *open_ends(void) { return edit_open(text, 16, DTYPE_BF16); }
static char *planned(void) { return edit_cell(text, &cell, &shapes); }
static char *trained(void) {
    return edit_run(text, &cell, &shapes, &(struct edit_changes){.ranks = 2, .sizes = true});
}
static char *set(void) {
    static const struct option_each each = {{"seed=7", "data.path=a text", "ema.decay=null"}, 3};
    struct zero_error error;
    char *out = NULL;
    error_clear(&error);
    zero_status status = settings_apply(text, &each, false, &out, &error);
    CHECK(status == ZERO_OK ? out != NULL : status == ZERO_E_MEMORY && !out);
    return out;
}

static void every_allocation(char *(*edit)(void)) {
    char *whole = edit();
    int64_t count = 0;
    if (!CHECK(whole)) return;
    for (bool end = false; !end && count < 100000; count++) {
        left = count;
        char *edited = edit();
        end = left >= 0; /* none has failed */
        left = INT64_MAX;
        if (edited && !CHECK_STRING(edited, whole)) fprintf(stderr, "allocation %d\n", (int)count);
        CHECK(edited || !end);
        free(edited);
    }
    CHECK(count > 10);
    free(whole);
}

int main(void) {
    char *(*const edits[])(void) = {batch, prefetch, open_ends, planned, trained, set};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) lasts = k, every_allocation(edits[i]);
    return check_end();
}
#endif
