#include "engine/config/suggest.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "engine/config/key.h"

enum { WORD_MAX = 64 };

static size_t least(size_t a, size_t b) { return a < b ? a : b; }
static int lower(char c) { return tolower((unsigned char)c); }

/* Optimal string alignment; three rows are enough. */
size_t suggest_distance(const char *a, const char *b, size_t limit) {
    size_t n = strlen(a), m = strlen(b);
    size_t rows[3][WORD_MAX + 1];
    if (n > WORD_MAX || m > WORD_MAX) return limit + 1;
    for (size_t j = 0; j <= m; j++) rows[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t substitute = above[j - 1] + (lower(a[i - 1]) != lower(b[j - 1]));
            row[j] = least(substitute, least(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]))
                row[j] = least(row[j], two_above[j - 2] + 1);
        }
    }
    return least(rows[n % 3][m], limit + 1);
}

/* The number of letters that may be wrong: a third of the word, but at least two (one for very short words). "stge" and
 * "zero_optimisation" get a suggestion, "foo" does not. */
static size_t limit_of(const char *word) {
    size_t length = strlen(word);
    return length <= 2 ? 1 : length < 7 ? 2 : length / 3;
}

static const char *leaf_of(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* The name of the key or object directly below `parent` on the way to `path`; false: `path` is not below `parent`. */
static bool child_of(const char *parent, const char *path, char out[WORD_MAX + 1]) {
    size_t length = strlen(parent);
    if (length > 0 && (strncmp(path, parent, length) != 0 || path[length] != '.')) return false;
    const char *start = length > 0 ? path + length + 1 : path;
    size_t bytes = strcspn(start, ".");
    if (bytes > WORD_MAX) return false;
    memcpy(out, start, bytes);
    out[bytes] = 0;
    return true;
}

/* Whether `word` ends with `end`. DeepSpeed's classes use "prefetch_bucket_size" for the key
 * "stage3_prefetch_bucket_size" of its files. */
static bool ends_with(const char *word, const char *end) {
    size_t length = strlen(word), bytes = strlen(end);
    return bytes >= 8 && bytes < length && strcmp(word + length - bytes, end) == 0;
}

/* A name that is only noted is no advice. */
static bool is_advice(const struct config_key *key) {
    return key->use != KEY_ACCEPTED || key->type != KEY_OPAQUE;
}

static size_t nearest_sibling(const char *parent, const char *leaf, char out[WORD_MAX + 1]) {
    size_t best = limit_of(leaf) + 1;
    for (uint32_t i = 0; i < config_key_count(); i++) {
        char child[WORD_MAX + 1];
        if (!is_advice(config_key_at(i)) || !child_of(parent, config_key_at(i)->path, child)) continue;
        size_t distance = ends_with(child, leaf) ? 1 : suggest_distance(leaf, child, best);
        if (distance < best) best = distance, strcpy(out, child);
    }
    return best;
}

/* Prefers keys that the engine uses: if several objects have a key "device", a used one is more likely meant. */
static const char *nearest_elsewhere(const char *leaf, size_t limit) {
    const char *found = NULL;
    size_t best = 2 * limit + 2;
    for (uint32_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        size_t distance = suggest_distance(leaf, leaf_of(key->path), limit);
        if (distance > limit || !is_advice(key)) continue;
        size_t cost = 2 * distance + (key->use != KEY_USED);
        if (cost < best) best = cost, found = key->path;
    }
    return found;
}

/* Names of Hugging Face, PyTorch Lightning and Megatron, and the key here. NULL: `leaf` is none. */
static const char *other_name(const char *leaf) {
    static const struct {
        const char *names[8], *key;
    } known[] = {
        {{"max_grad_norm", "clip_grad", "clip_grad_norm", "grad_clip", "gradient_clip_val", "clipping"},
         "gradient_clipping"},
        {{"learning_rate", "lr"}, "optimizer.params.lr"},
        {{"wd", "weight_decay"}, "optimizer.params.weight_decay"},
        {{"adam_beta1", "adam_beta2", "betas"}, "optimizer.params.betas"},
        {{"adam_epsilon", "adam_eps", "eps"}, "optimizer.params.eps"},
        {{"optim", "optimizer_type"}, "optimizer.type"},
        {{"lr_scheduler", "lr_scheduler_type", "scheduler_type"}, "scheduler.type"},
        {{"warmup_steps", "num_warmup_steps", "warmup_iters", "warmup"}, "scheduler.params.warmup_num_steps"},
        {{"max_steps", "total_steps", "num_training_steps", "train_steps"},
         "scheduler.params.total_num_steps"},
        {{"zero_stage", "stage", "zero"}, "zero_optimization.stage"},
        {{"offload_optimizer_device", "offload_optimizer"}, "zero_optimization.offload_optimizer.device"},
        {{"offload_param_device", "offload_param"}, "zero_optimization.offload_param.device"},
        {{"mixed_precision", "precision", "dtype", "torch_dtype", "half_precision"},
         "bf16.enabled or fp16.enabled"},
        {{"initial_loss_scale", "initial_scale"}, "fp16.initial_scale_power, its logarithm to base 2"},
        {{"allreduce_always_fp32", "fp32_allreduce"}, "communication_data_type, as \"fp32\""},
        {{"batch_size", "micro_batch_size", "per_device_train_batch_size", "micro_batch_size_per_gpu"},
         "train_micro_batch_size_per_gpu"},
        {{"global_batch_size"}, "train_batch_size"},
        {{"gradient_checkpointing", "checkpoint_activations"}, "activation_checkpointing.interval"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        for (int k = 0; k < 8 && known[i].names[k]; k++)
            if (!strcmp(leaf, known[i].names[k])) return known[i].key;
    return NULL;
}

void suggest_key(const char *parent, const char *leaf, char *out, size_t out_bytes) {
    const char *key = other_name(leaf);
    char sibling[WORD_MAX + 1] = "";
    size_t near = nearest_sibling(parent, leaf, sibling), limit = limit_of(leaf);
    const char *elsewhere = near == 0 ? NULL : nearest_elsewhere(leaf, 0);
    if (!elsewhere && near > limit) elsewhere = nearest_elsewhere(leaf, 1);
    if (key) {
        snprintf(out, out_bytes, "its name here is %s", key);
    } else if (*parent && strcmp(parent, leaf) && config_key_is_object(leaf)) {
        snprintf(out, out_bytes, "it belongs elsewhere: %s, at the top", leaf);
    } else if (elsewhere) {
        snprintf(out, out_bytes, "it belongs elsewhere: %s", elsewhere);
    } else if (near <= limit) {
        snprintf(out, out_bytes, "did you mean \"%s\"?", sibling);
    } else {
        snprintf(out, out_bytes, "zero config --help lists all keys");
    }
}

void suggest_choice(const struct config_key *key, const char *text, char *out, size_t out_bytes) {
    struct key_choice c;
    size_t best = limit_of(text) + 1;
    out[0] = 0;
    for (uint32_t i = 0; config_key_choice_at(key, i, &c); i++) {
        char word[WORD_MAX + 1];
        if (c.length > WORD_MAX || c.refused) continue; /* advice is accepted */
        snprintf(word, sizeof word, "%.*s", c.length, c.text);
        size_t distance = suggest_distance(text, word, best);
        if (distance < best) best = distance, snprintf(out, out_bytes, "%s", word);
    }
    bool automatic = config_key_takes_auto(key) && suggest_distance(text, "auto", best) < best;
    if (automatic) snprintf(out, out_bytes, "auto");
}
