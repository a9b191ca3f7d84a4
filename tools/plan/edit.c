#include "tools/plan/edit.h"

#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "engine/config/text/tree.h"
#include "offload/tier.h"
#include "stages/stage.h"

#define CHECKPOINTING "activation_checkpointing"

/* Whether memory did not allow a value of the text that this thread edits: json-c leaves it out, or asserts. */
static _Thread_local bool lost;

static json_object *parse(const char *text) {
    struct zero_error ignored = ERROR_NONE;
    json_object *root = NULL;
    lost = false;
    config_tree_parse(text, strlen(text), ZERO_E_CONFIG, &root, &ignored);
    return root;
}

/* Takes over the value. */
static void add(json_object *to, const char *name, json_object *value) {
    if (value && json_object_is_type(to, json_type_object) && !json_object_object_add(to, name, value))
        return;
    json_object_put(value);
    lost = true;
}

/* Also of null, which stands for a block without members. */
static void drop(json_object *from, const char *name) {
    if (json_object_is_type(from, json_type_object)) json_object_object_del(from, name);
}

static json_object *child(json_object *parent, const char *name) {
    json_object *found;
    if (json_object_object_get_ex(parent, name, &found) && json_object_is_type(found, json_type_object))
        return found;
    add(parent, name, json_object_new_object());
    json_object_object_get_ex(parent, name, &found);
    return found;
}

static char *print_as(json_object *root, int style) {
    char *text = lost ? NULL : config_tree_print(root, JSON_C_TO_STRING_NOSLASHESCAPE | style);
    json_object_put(root);
    return text;
}

static char *print(json_object *root) { return print_as(root, 0); }

bool cell_shards_params(const struct cell *cell) {
    return stage_shards_params(stage_find(cell->stage, RESHARD_ALL));
}

bool cell_shards_grads(const struct cell *cell) {
    return stage_shards_grads(stage_find(cell->stage, RESHARD_ALL));
}

static void set_number(json_object *root, const char *name, uint64_t value) {
    if (value) add(root, name, json_object_new_int64((int64_t)value));
}

char *edit_default(uint32_t micro_batch, enum dtype dtype) {
    char narrow[40] = "", text[200];
    if (dtype != DTYPE_F32)
        snprintf(narrow, sizeof narrow, ", \"%s\": {\"enabled\": true}", dtype_name(dtype));
    snprintf(text, sizeof text,
             "{\"train_micro_batch_size_per_gpu\": %" PRIu32 ", \"optimizer\": {\"type\": \"AdamW\"}%s}",
             micro_batch, narrow);
    return strdup(text);
}

char *edit_batch(const char *text, uint64_t micro_batch, uint64_t accumulation_steps) {
    json_object *root = parse(text);
    if (!root) return NULL;
    set_number(root, "train_micro_batch_size_per_gpu", micro_batch);
    set_number(root, "gradient_accumulation_steps", accumulation_steps);
    if (micro_batch || accumulation_steps) drop(root, "train_batch_size");
    drop(root, "scheduler"); /* depends on the steps of a run; the plan does not need it */
    return print(root);
}

char *edit_no_prefetch(const char *text) {
    json_object *root = parse(text);
    if (!root) return NULL;
    json_object *comm = child(root, "comm");
    add(comm, "prefetch_depth", json_object_new_int(0));
    drop(comm, "backward_prefetch_depth");
    return print(root);
}

char *edit_ratio(const char *text) {
    json_object *root = parse(text);
    if (!root) return NULL;
    add(child(child(root, "zero_optimization"), "offload_optimizer"), "ratio", json_object_new_double(1));
    return print(root);
}

static void set_tier(json_object *zero, const char *name, zero_tier tier) {
    json_object *block = child(zero, name);
    add(block, "device", json_object_new_string(tier_table[tier]->choice));
    /* No file is opened; the machine says how fast the drive is. Both tiers must have the same paths. */
    add(block, "nvme_path", json_object_new_string("/nvme"));
}

static bool is_tiered(json_object *block) {
    json_object *device;
    return json_object_object_get_ex(block, "device", &device) &&
           strcasecmp(json_object_get_string(device), "tiered") == 0;
}

/* Tiered state stays tiered: the cell's tier has the state that is not on the device. */
static void set_state(json_object *zero, const struct cell *cell) {
    zero_tier tier = cell->optimizer;
    json_object *block = child(zero, "offload_optimizer");
    bool tiered = (cell->tiered || is_tiered(block)) && tier != ZERO_DEVICE;
    set_tier(zero, "offload_optimizer", tier);
    if (tier == ZERO_DEVICE) drop(block, "ratio");
    if (!tiered) return;
    add(block, "device", json_object_new_string("tiered"));
    if (tier != ZERO_NVME) drop(block, "nvme_path");
}

static void drop_context(json_object *root) {
    json_object *data;
    if (json_object_object_get_ex(root, "data", &data)) drop(data, "context");
}

static void set_model(json_object *root, const struct shapes *s) {
    drop(root, "model");
    drop_context(root); /* the shapes give the length of a sequence */
    json_object *model = child(root, "model");
    add(model, "n_embd", json_object_new_int64((int64_t)s->width));
    add(model, "n_head", json_object_new_int64((int64_t)s->heads));
}

/* Removes the keys that only stages with sharded parameters have. */
static void drop_codes(json_object *root, json_object *zero) {
    static const char key[] = "zero_quantized_weights";
    json_object *groups;
    drop(zero, key);
    if (json_object_object_get_ex(root, "param_groups", &groups) &&
        json_object_is_type(groups, json_type_array))
        for (size_t g = 0; g < json_object_array_length(groups); g++)
            drop(json_object_array_get_idx(groups, g), key);
}

/* Removes the keys that choose a row of the stage, where it has one alone. */
static void drop_reshard(json_object *root, json_object *zero, uint32_t stage) {
    json_object *comm;
    bool group = stage_find(stage, RESHARD_GROUP), none = stage_find(stage, RESHARD_NONE);
    if (!group) drop(zero, "zero_hpz_partition_size");
    if (!group && !none && json_object_object_get_ex(root, "comm", &comm))
        drop(comm, "reshard_after_forward");
}

/* Checkpoints on the drive, and their path. */
static bool leaves(json_object *root, json_object **out) {
    json_object *on;
    return json_object_object_get_ex(root, CHECKPOINTING, out) &&
           json_object_object_get_ex(*out, "nvme_checkpointing", &on) && json_object_get_boolean(on);
}

/* Without a tier in the cell the text's block stays where the state is on a drive. */
static void set_grads(json_object *zero, const struct cell *cell) {
    bool sharded = cell_shards_grads(cell), stays = !cell->grads && cell->optimizer == ZERO_NVME && sharded;
    bool away = cell->grads && sharded && cell->optimizer != ZERO_DEVICE;
    if (!stays) drop(zero, "offload_gradients");
    if (!away) return;
    add(child(zero, "offload_gradients"), "device",
        json_object_new_string(tier_table[cell->grads - 1]->choice));
}

/* Removes the keys of state on a drive: masters and shadows. Without a shadow, updates in the backward may be refused. */
static void drop_drive(json_object *root, json_object *zero) {
    json_object *drive, *shadow;
    if (!json_object_object_get_ex(root, "nvme", &drive)) return;
    bool kept = json_object_object_get_ex(drive, "shadow", &shadow) && json_object_get_boolean(shadow);
    if (kept) drop(zero, "update_in_backward");
    drop(root, "nvme");
}

static void set_cell(json_object *root, const struct cell *cell) {
    json_object *checkpointing;
    json_object *zero = child(root, "zero_optimization");
    drop(zero, "cpu_offload");
    drop(zero, "cpu_offload_param");
    drop(zero, "offload_param");
    add(zero, "stage", json_object_new_int((int)cell->stage));
    if (!cell_shards_params(cell)) drop_codes(root, zero);
    drop_reshard(root, zero, cell->stage);
    set_state(zero, cell);
    if (cell->params != ZERO_DEVICE) set_tier(zero, "offload_param", cell->params);
    if (cell->optimizer != ZERO_NVME) drop_drive(root, zero);
    if (leaves(root, &checkpointing)) add(checkpointing, "nvme_path", json_object_new_string("/nvme"));
    set_grads(zero, cell);
    set_number(root, "train_micro_batch_size_per_gpu", cell->micro_batch);
}

char *edit_cell(const char *text, const struct cell *cell, const struct shapes *shapes) {
    json_object *root = parse(text);
    if (!root) return NULL;
    set_cell(root, cell);
    set_model(root, shapes);
    drop(root, "scheduler"); /* depends on the steps of a run */
    return print(root);
}

/* A member of a block, if it is "auto". */
static json_object *automatic_in(json_object *root, const char *name, const char *key) {
    json_object *block, *value;
    bool found = json_object_object_get_ex(root, name, &block) &&
                 json_object_object_get_ex(block, key, &value) &&
                 json_object_is_type(value, json_type_string);
    return found && strcmp(json_object_get_string(value), "auto") == 0 ? block : NULL;
}

char *edit_open(const char *text, uint64_t train_batch, enum dtype compute) {
    json_object *root = parse(text), *block;
    if (!root) return NULL;
    block = automatic_in(root, CHECKPOINTING, "interval");
    if (block) drop(block, "interval");
    for (int i = 0; i < CONFIG_TYPE_KEYS; i++)
        if ((block = automatic_in(root, config_type_keys[i].block, "enabled")))
            add(block, "enabled", json_object_new_boolean(config_type_keys[i].dtype == compute));
    set_number(root, "train_batch_size", train_batch);
    if (train_batch) drop(root, "gradient_accumulation_steps");
    if (train_batch) drop(root, "train_micro_batch_size_per_gpu");
    return print(root);
}

/* ---- a configuration that trains ---- */

#define COMMENT "_comment_auto"

/* The paths of drives in the text. If state or parameters have no path, they take the path of the other. A rank has one set of
 * drives for both: that of the state if the cell has the state on the drive, else that of the parameters. */
struct drives {
    json_object *offload, *checkpoints;
};

static struct drives drives_of(json_object *root, const struct cell *cell) {
    static const char *const order[][2] = {{"offload_param", "offload_optimizer"},
                                           {"offload_optimizer", "offload_param"}};
    const char *const *blocks = order[cell->optimizer == ZERO_NVME];
    json_object *zero, *block, *offload = NULL, *checkpoints = NULL;
    if (leaves(root, &block)) json_object_object_get_ex(block, "nvme_path", &checkpoints);
    for (size_t i = 0; i < 2 && !offload; i++)
        if (json_object_object_get_ex(root, "zero_optimization", &zero) &&
            json_object_object_get_ex(zero, blocks[i], &block))
            json_object_object_get_ex(block, "nvme_path", &offload);
    json_object *any = offload ? offload : checkpoints;
    any = any ? json_object_get(any) : json_object_new_string(EDIT_DRIVE);
    return (struct drives){any, json_object_get(checkpoints ? checkpoints : any)};
}

/* Only blocks whose device is a drive have paths, and no block says that nothing is offloaded. */
static void set_drives(json_object *zero, json_object *paths) {
    static const char *const blocks[] = {"offload_optimizer", "offload_param"};
    json_object *block, *device;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        if (!json_object_object_get_ex(zero, blocks[i], &block)) continue;
        json_object_object_get_ex(block, "device", &device);
        const char *name = device ? json_object_get_string(device) : "";
        bool fills = is_tiered(block) && json_object_object_get_ex(block, "nvme_path", NULL);
        drop(block, "nvme_path");
        if (fills || strcmp(name, tier_table[ZERO_NVME]->choice) == 0)
            add(block, "nvme_path", json_object_get(paths));
        if (strcmp(name, tier_table[ZERO_DEVICE]->choice) == 0) drop(zero, blocks[i]);
    }
}

/* Makes the block anew. The place of the checkpoints stays. */
static void renew_recompute(json_object *root, const struct cell *cell) {
    static const char *const places[] = {"cpu_checkpointing", "nvme_checkpointing"};
    json_object *model, *old, *on, *kept = json_object_new_object();
    if (json_object_object_get_ex(root, "model", &model)) drop(model, "gradient_checkpointing");
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (json_object_object_get_ex(root, CHECKPOINTING, &old) &&
            json_object_object_get_ex(old, places[i], &on) && on)
            add(kept, places[i], json_object_get(on));
    drop(root, CHECKPOINTING);
    if (cell->recompute)
        add(root, CHECKPOINTING, kept);
    else
        json_object_put(kept);
}

/* State or parameters on the drive give the path of checkpoints, too. */
static void set_recompute(json_object *root, const struct cell *cell, enum edit_recompute how,
                          json_object *paths) {
    bool offloads = cell->optimizer == ZERO_NVME || cell->params == ZERO_NVME;
    json_object *block;
    if (how == EDIT_RECOMPUTE_CELL) renew_recompute(root, cell);
    if (how != EDIT_RECOMPUTE_KEPT && cell->recompute)
        set_number(child(root, CHECKPOINTING), "interval", cell->recompute);
    if (!leaves(root, &block)) return;
    drop(block, "nvme_path");
    if (!offloads) add(block, "nvme_path", json_object_get(paths));
}

static void write_model(json_object *root, const struct shapes *s) {
    bool gpt2 = s->architecture == GPT_GPT2;
    struct gpt_config named = {.architecture = s->architecture};
    const struct {
        const char *gpt2, *other;
        uint64_t value;
    } sizes[] = {{"n_layer", "num_hidden_layers", s->layers},
                 {"n_embd", "hidden_size", s->width},
                 {"n_head", "num_attention_heads", s->heads},
                 {NULL, "num_key_value_heads", s->kv_heads ? s->kv_heads : s->heads},
                 {NULL, "head_dim", s->head_width ? s->head_width : s->width / s->heads},
                 {"n_inner", "intermediate_size", s->inner ? s->inner : 4 * s->width},
                 {"n_positions", "max_position_embeddings", s->context},
                 {"vocab_size", "vocab_size", s->vocab}};
    drop(root, "model");
    drop_context(root);
    json_object *model = child(root, "model");
    add(model, "model_type", json_object_new_string(gpt_model_type(&named)));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!gpt2 || sizes[i].gpt2) set_number(model, gpt2 ? sizes[i].gpt2 : sizes[i].other, sizes[i].value);
    if (s->architecture == GPT_MISTRAL && !s->window && model)
        json_object_object_add(model, "sliding_window", NULL);
    add(model, "tie_word_embeddings", json_object_new_boolean(s->tied));
}

/* With other layers than the model had, the window begins at the same block. */
static void set_layers(json_object *model, const struct shapes *s) {
    set_number(model, s->architecture == GPT_GPT2 ? "n_layer" : "num_hidden_layers", s->layers);
    if (!s->window && json_object_object_get_ex(model, "max_window_layers", NULL))
        set_number(model, "max_window_layers", s->layers);
    if (!json_object_object_get_ex(model, "layer_types", NULL)) return;
    json_object *types = json_object_new_array();
    for (uint64_t i = 0; i < s->layers && types; i++)
        json_object_array_add(types,
                              json_object_new_string(s->window && i >= s->window_from ? "sliding_attention"
                                                                                      : "full_attention"));
    add(model, "layer_types", types);
}

/* With rotary positions, samples may be shorter than the model's context. The model's own context stays, because the
 * scaling of positions may depend on it. */
static void set_context(json_object *root, json_object *model, const struct shapes *s) {
    bool gpt2 = s->architecture == GPT_GPT2;
    const char *key = gpt2 ? "n_positions" : "max_position_embeddings";
    json_object *most;
    drop_context(root);
    if (!gpt2 && json_object_object_get_ex(model, key, &most) &&
        (uint64_t)json_object_get_int64(most) >= s->context)
        set_number(child(root, "data"), "context", s->context);
    else
        set_number(model, key, s->context);
    drop(model, "n_ctx"); /* another name of n_positions */
}

static void change_model(json_object *root, const struct shapes *s, const struct edit_changes *changes) {
    if (changes->block) add(root, "model", json_tokener_parse(changes->block));
    if (changes->sizes) {
        write_model(root, s);
        return;
    }
    if (!changes->layers && !changes->context) return;
    json_object *model = child(root, "model");
    if (changes->layers) set_layers(model, s);
    if (changes->context) set_context(root, model, s);
}

/* The same members, after the comment. */
static json_object *after_comment(json_object *root, uint32_t ranks) {
    json_object *out = json_object_new_object();
    drop(root, COMMENT);
    set_number(child(out, COMMENT), "ranks", ranks);
    json_object_object_foreach(root, name, value) {
        if (value || !out)
            add(out, name, json_object_get(value));
        else
            json_object_object_add(out, name, NULL);
    }
    json_object_put(root);
    return out;
}

uint32_t edit_ranks(const char *text) {
    json_object *root = parse(text), *comment, *ranks;
    bool found = root && json_object_object_get_ex(root, COMMENT, &comment) &&
                 json_object_object_get_ex(comment, "ranks", &ranks);
    int64_t number = found ? json_object_get_int64(ranks) : 0;
    json_object_put(root);
    return number > 0 && number <= UINT32_MAX ? (uint32_t)number : 0;
}

char *edit_run(const char *text, const struct cell *cell, const struct shapes *shapes,
               const struct edit_changes *changes) {
    json_object *root = parse(text);
    if (!root) return NULL;
    struct drives drives = drives_of(root, cell);
    set_number(root, "train_micro_batch_size_per_gpu", changes->micro_batch);
    set_number(root, "gradient_accumulation_steps", changes->accumulate);
    if (changes->micro_batch || changes->accumulate) drop(root, "train_batch_size");
    set_cell(root, cell);
    set_drives(child(root, "zero_optimization"), drives.offload);
    change_model(root, shapes, changes);
    set_recompute(root, cell, changes->recompute, drives.checkpoints);
    json_object_put(drives.offload);
    json_object_put(drives.checkpoints);
    if (changes->ranks) root = after_comment(root, changes->ranks);
    return print_as(root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED);
}
