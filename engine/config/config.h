/* The configuration: DeepSpeed's JSON (0.19), a model block with Hugging Face's key names, and the engine's own keys,
 * read into one struct of typed, resolved fields. keys.def is the only list of keys: parsing, help, suggestions and
 * tests read it.
 *
 * Order of calls: config_read, config_read_model (if there is a model file), config_set, config_resolve. Then the
 * fields may be read. config_resolve may be called again: the planner calls it for several numbers of ranks. Call
 * config_free at the end, also after a failure: the struct can always be freed.
 *
 * Threads: a struct config belongs to one owner; the tables are constant. Prints nothing. */
#pragma once

#include "engine/base/error.h"
#include "engine/base/numbers/dtype.h"
#include "engine/base/status.h"
#include "engine/config/schedule/lr_schedule.h"
#include "engine/config/terms.h"
#include "kernels/quantize.h"
#include "offload/tier_kind.h"
#include "stages/choices.h"

struct tier_ops;
struct optimizer;

#define CHOICES(list, choices) enum config_##list{choices};
#define CHOICE(enumerator, name) enumerator,
#define REFUSED_NAMES(names)
#include "engine/config/choices.def"
#undef CHOICES
#undef CHOICE
#undef REFUSED_NAMES

#define CONFIG_BYTES_UNLIMITED UINT64_MAX

struct config_optimizer {
    int type; /* the row of `optimizers` (kernels/optimizer.h), as written */
    /* After config_resolve: the name of the row that updates. DeepSpeed's "Adam" is "adamw", unless params.adam_w_mode
     * is false. */
    const char *name;
    /* 0 if the optimizer does not use it. */
    double lr, betas[2], eps, weight_decay, momentum, dampening, lr_decay, max_coeff, min_coeff;
    bool nesterov, bias_correction, adam_w_mode, torch_adam;
    uint64_t ns_steps;       /* of Muon, as these two: */
    int adjust_lr, ns_dtype; /* enum config_adjust_lr, enum config_ns_dtype */
    double muon_lr, adam_lr; /* of matrices, and of groups with another optimizer; 0: lr */
};

/* A parameter group of the configuration: parameters whose names match one of the patterns. */
struct config_group {
    char **match;
    uint32_t match_count;    /* at most CONFIG_MATCH_MAX */
    double lr, weight_decay; /* below 0: the optimizer's value */
    bool frozen, keeps_fp32;
    /* no group is written, and Muon is for matrices: what DeepSpeed gives to its Adam (config_takes_implied) */
    bool implied;
    int weight_code; /* enum code_format; below 0: the run's */
    /* After config_resolve: the row of `optimizers` that updates the group; NULL: the configuration's optimizer does. `betas`
     * replace the row's defaults unless they are below 0. */
    const struct optimizer *optimizer;
    double betas[2];
};

enum { CONFIG_GROUPS_MAX = LR_GROUPS_MAX - 1, CONFIG_MATCH_MAX = 64 }; /* group 0 is all other parameters */

struct config_groups {
    struct config_group *item;
    uint32_t count;
};

struct config_paths {
    char **items;
    uint64_t count;
};

struct config_fp16 {
    bool enabled, consecutive_hysteresis;
    double loss_scale; /* 0: dynamic */
    uint64_t initial_scale_power, loss_scale_window, hysteresis, min_loss_scale;
};

struct config_ema { /* averaged weights */
    double decay;   /* 0: none; else below 1 */
    uint64_t every, begin;
    bool warmup;
};

struct config_comm {
    double timeout_s;
    bool checksum;                    /* of what ranks send each other over TCP */
    int transport;                    /* enum config_transport */
    int reduction;                    /* enum config_reduction; AUTO: the transport decides */
    uint64_t quantized_gradient_bits; /* 4 or 8 */
    uint64_t node_ranks;              /* 0: as the launcher reports */
    /* The number of ranks among which parameters are cut between forward and backward. 0: as at rest; 1: parameters
     * stay whole. */
    uint64_t reshard_ranks;
};

/* The activations that the trainer computes again instead of keeping them. */
struct config_recompute {
    /* Blocks computed again together, from the first block's input; 0 after config_resolve: none. */
    uint64_t blocks;
    uint64_t checkpoints;
    bool on_cpu, on_drive, every;
    struct config_paths paths; /* of the drive; as written */
    int tier;                  /* enum tier_kind, after config_resolve: where these inputs wait */
};

struct config_rope {
    double theta;
    int type; /* enum config_rope_type */
    /* 0 unless the type has them; low and high: turns, low_freq_factor and high_freq_factor, or beta_slow and beta_fast */
    double factor, low, high;
    uint64_t original_context;
    double beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim; /* as written */
    double attention; /* after config_resolve: yarn's attention factor; else 1 */
    bool truncate;
};

/* Meaningful where `given`: the file has a model block, or config_read_model was called. */
struct config_model {
    bool given;
    int type; /* see config_architecture */
    uint64_t layers, width, heads, context, vocab;
    uint64_t inner; /* width of the MLP; after config_resolve: 4 * width if the file gives none */
    uint64_t n_ctx; /* an alias of context in old files; 0: not given */
    uint64_t kv_heads, head_width; /* 0 in gpt2 */
    int activation, hidden_act;
    struct config_rope rope;                    /* not gpt2 */
    uint64_t sliding_window, max_window_layers; /* as written */
    bool use_sliding_window;
    /* After config_resolve: tokens that a token sees in blocks window_from and above; 0: all before it. */
    uint64_t window, window_from;
    double layer_norm_epsilon, initializer_range;
    bool tied;
    bool own_code; /* its config.json names code of its own, which is not run */
    /* zero_optimization.vocabulary_block_rows: of how the model is cut into units; 0: not cut. */
    uint64_t vocab_block;
};

struct config_eval { /* at most one of the two is given */
    double fraction; /* of the samples, counted from the end; 0: none */
    struct config_paths paths;
};

struct config_data {
    struct config_paths paths;
    bool bytes;       /* the bytes of text are the tokens of any model */
    int order;        /* enum config_order */
    uint64_t context; /* 0: the model's context; else config_resolve sets the model's context to this one */
    int64_t document_end; /* the token that ends a document; -1: none */
    struct config_eval eval;
};

/* DeepSpeed's blocks tensorboard and csv_monitor. */
struct config_monitor {
    bool enabled;
    char *output_path, *job_name; /* owned */
};

enum config_source {
    CONFIG_DEFAULT,
    CONFIG_FILE,
    CONFIG_AUTO,
    CONFIG_DERIVED,
    CONFIG_MODEL_FILE,
    CONFIG_COMMAND
};

/* The keys that choose a narrow type of compute: path is "<block>.enabled". */
enum { CONFIG_TYPE_KEYS = 3 };
extern const struct config_type_key {
    const char *block, *path;
    enum dtype dtype;
} config_type_keys[CONFIG_TYPE_KEYS];

/* One key's value as JSON text, and the source of the value; for `zero config`. The index is that of config_key_at. */
struct config_entry {
    enum config_source source;
    char *text; /* NULL: no value */
    bool null;  /* null is written where it says that there is no value */
};

struct config {
    struct terms terms; /* keys are stored here, too; complete after config_resolve, but for `discrete` */
    uint64_t train_batch, micro_batch, accumulation_steps; /* resolved: train = micro * steps * ranks */
    int accumulation_mode;                                 /* enum accumulation */
    int micro_order;                                       /* enum config_micro_order */
    bool prescale;                                         /* as written; so are predivide and gradient_op */
    double predivide;
    int gradient_op;          /* enum config_gradient */
    double gradient_clipping; /* 0: off */
    struct config_optimizer optimizer;
    struct config_groups groups;            /* param_groups; the engine numbers them from 1 */
    int scheduler;                          /* scheduler.type, as written */
    const struct lr_schedule *schedule_row; /* after config_resolve; NULL: none */
    struct lr_schedule_params schedule;
    /* Set by the caller: the value of "auto" for total_num_steps. 0: unknown; then total_num_steps is unknown, too. */
    uint64_t planned_steps;
    /* Set by the caller: the host obeys the keys that the engine leaves to it (config_idle) */
    bool host_obeys;
    uint64_t stage;
    /* Rows of tier_table (offload/tier.h), as written; the row after them: tiered, for the state alone. */
    int optimizer_device, param_device, grad_device;
    double host_ratio; /* offload_optimizer.ratio, as written */
    /* Offloaded state first fills memory.device: it is tiered, or the budget is given and no ratio. */
    bool fills_device;
    /* terms.waiting_share was not written: commit sets it to 0 if a rank has no room for it. */
    bool chooses_waiting;
    /* After config_resolve: the enum tier_kind of each. For the state: the tier of the part that is not on the
     * device. */
    int optimizer_tier, param_tier, grad_tier;
    bool tiered;                         /* the device takes as much state as its budget has room for */
    bool cpu_offload, cpu_offload_param; /* DeepSpeed's old keys for the two tiers */
    struct config_paths optimizer_paths, param_paths; /* on the drives; equal if both tiers are drives */
    uint64_t aio_block_bytes, aio_queue_depth;
    int masters;      /* enum config_masters; AUTO until config_resolve */
    int nvme_masters; /* the same in older files, as written */
    bool nvme_shadow;
    bool checkpoint_async;
    uint64_t checkpoint_async_bytes, checkpoint_writers;
    int nvme_uring;       /* enum config_uring */
    int device_type;      /* enum config_device */
    int64_t device_index; /* -1: by the local rank */
    bool device_graphs;
    int device_attention;           /* enum config_attention */
    int device_outputs;             /* enum config_outputs */
    double nvme_endurance_tbw;      /* 0: unknown */
    uint64_t persistence_threshold; /* elements: smaller parameters stay gathered at stage 3 */
    int quantized_weights;          /* as written: enum code_format, or CODE_FORMATS for true */
    int weight_code; /* after config_resolve: enum code_format of gathers from shards, but for groups with their own */
    bool quantized_gradients;
    uint64_t live_parameters, prefetch_bucket; /* as written */
    bool bf16_states;                          /* bf16.bf16_optimizer_states */
    bool bf16, bfloat16;                       /* as written; bfloat16 is the old key */
    bool autocast;
    int autocast_dtype; /* of its choices every other one is fp16 */
    struct config_fp16 fp16;
    int compute_dtype, communication_dtype, accumulation_dtype; /* enum dtype; after config_resolve */
    int64_t mics_shard_size;                                    /* -1: all ranks; 0: "auto" */
    uint64_t hpz_ranks;                                         /* 0: "auto" */
    /* Before config_resolve: the size of the largest groups of adjacent ranks that lie inside nodes, as the launcher
     * placed the ranks (launch_node_group). 0: unknown. */
    uint64_t found_node_ranks;
    /* The mesh, after config_resolve: shard_ranks x ranks / shard_ranks. RESHARD_GROUP: at rest, parameters are
     * cut over both axes; between forward and backward, over the shard axis only (hpZ). node_group: found_node_ranks,
     * or comm.node_ranks if it is given. */
    uint64_t shard_ranks, node_group;
    int reshard; /* enum reshard; at stage 3 */
    uint64_t seed;
    uint64_t threads; /* CPU threads per rank; 0: the number of CPUs / the ranks that share them */
    uint64_t steps_per_print;
    uint64_t max_skipped_steps; /* in a row; 0: no limit */
    uint64_t compare_every;     /* debug.compare_every: steps; 0: never */
    uint64_t trace_first;
    int64_t trace_steps;          /* -1: the host program decides */
    uint64_t budget_bytes[TIERS]; /* per rank; CONFIG_BYTES_UNLIMITED */
    uint64_t device_margin;       /* of a GPU's memory, beside the plan */
    struct config_ema ema;
    struct config_comm comm;
    struct config_model model;
    struct config_recompute recompute;
    struct config_data data;
    struct config_monitor tensorboard, csv_monitor;

    char *name;                   /* of the file, or "configuration" */
    struct config_entry *entries; /* config_key_count() of them */
    char **lines; /* for the log: one line per accepted key, which says how the engine treats it */
    uint64_t line_count;
};

/* After config_read: the first key that is "auto" and that the planner has to choose (tools/plan/space.h). config_resolve refuses
 * it. NULL: there is none. */
const char *config_unchosen(const struct config *config);

/* The format of codes of a choice of zero_quantized_weights. */
static inline int config_weight_code(int choice) { return choice == CODE_FORMATS ? CODE_INT8 : choice; }

/* Whether an implied group takes a parameter of this name, by DeepSpeed's rule (set_optimizer_flags): by its dimensions, or as an
 * embedding or head. *out_named: by its name. */
bool config_takes_implied(const char *name, uint32_t dims, bool *out_named);

/* After config_read: some parameters are gathered in codes. */
bool config_codes_weights(const struct config *config);

/* After config_read: the stage keeps no whole parameters between passes. */
bool config_shards_params(const struct config *config);

/* A step may have several micro-steps. */
static inline bool config_accumulates(const struct config *config) {
    return config->accumulation_steps > 1 || config->terms.by_program;
}

/* After config_resolve: the key of the schedule whose value "auto" stands for the number of trained steps. NULL: no
 * key has this value. */
const char *config_schedule_length(const struct config *config);

/* After config_resolve: the directories of the nvme tier, and the directories of a program's scratch. If state or parameters are
 * on a drive, both are the same; else scratch uses activation_checkpointing.nvme_path. A count of 0: no directories. */
const struct config_paths *config_drive_paths(const struct config *config);
const struct config_paths *config_scratch_paths(const struct config *config);
/* The directories of a parked engine (zero_engine_park), which may use a drive even if nothing is offloaded to a
 * drive. */
const struct config_paths *config_park_paths(const struct config *config);

/* After config_resolve: the tier of this kind that is used. */
const struct tier_ops *config_tier(const struct config *config, enum tier_kind kind);

/* `json_or_path`: text whose first character is '{', or the path of a file. `error` may not be NULL.
 * ZERO_E_CONFIG: the configuration is wrong; ZERO_E_UNSUPPORTED: DeepSpeed supports it, this engine does not;
 * ZERO_E_IO: the file cannot be read. */
zero_status config_read(const char *json_or_path, struct config *out, struct zero_error *error);
zero_status config_read_text(const char *text, size_t length, const char *name, struct config *out,
                             struct zero_error *error);

/* config_read in two calls, for a caller that needs the text, too: the file may change, and a pipe gives its text once. */
struct config_text {
    const char *name; /* for messages: the path, which is borrowed, or "configuration" */
    char *text;       /* ends with a zero byte; the caller frees it; NULL after a failure */
    size_t length;
};
zero_status config_text_read(const char *json_or_path, struct config_text *out, struct zero_error *error);
zero_status config_text_parse(const struct config_text *text, struct config *out, struct zero_error *error);

/* Replaces the model block by Hugging Face's config.json. `path`: this file, or its directory. All values of the old
 * block are lost, also those that config_set stored below "model". */
zero_status config_read_model(struct config *config, const char *path, struct zero_error *error);

/* Stores one key from the command line. `json`: the value as JSON text. config_set_paths: for a key that holds a list
 * of paths. */
zero_status config_set(struct config *config, const char *key, const char *json, struct zero_error *error);
zero_status config_set_paths(struct config *config, const char *key, const char *const *paths, uint64_t count,
                             struct zero_error *error);

/* Resolves "auto", the three batch keys, the optimizer's defaults, and the rules between keys, for `ranks` ranks. */
zero_status config_resolve(struct config *config, uint32_t ranks, struct zero_error *error);

/* The name of an architecture in the model block; NULL: there is none with this number. */
const char *config_architecture(uint32_t index);

/* Resolves only the model block: each architecture has its own key names and defaults. */
zero_status config_resolve_model(struct config *config, struct zero_error *error);

void config_free(struct config *config);

/* Text for `zero config FILE` and `zero config --help`; the caller frees it. NULL: no memory. */
char *config_print(const struct config *config);
char *config_print_changed(const struct config *config); /* only written keys, "auto" included */
char *config_help(void);

/* After config_resolve, for the log: written keys that have no effect because of other keys, or of the host. Each line gives one reason
 * and its keys. Writes line `index`, which may be empty; false: there are no more lines. */
bool config_idle(const struct config *config, uint32_t index, char *out, size_t capacity);
bool config_key_idle(const struct config *config, const char *path); /* whether the key has no effect */
