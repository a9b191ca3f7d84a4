/* The declared model: units and their parameters, and how they are laid out in regions.
 *
 * A region is a flat buffer: the parameters of one unit that are of one class (trainable or frozen, sharded or persistent, of the
 * run's type or kept in fp32, counted here or on another model rank, gathered in one format of codes), one after another, each on a
 * cache line, padded so that it cuts into equal shards. The layout depends on the model, the number of ranks that cut it, the
 * persistence threshold and the codes alone, so it is the same in every stage and tier. Owns all it points to except slots, pointers
 * and values of the host.
 * Local; one thread. */
#pragma once

#include "engine/base/error.h"
#include "engine/base/limits.h"
#include "engine/base/name_index.h"
#include "engine/base/numbers/dtype.h"
#include "engine/base/precision.h"
#include "engine/zero.h"
#include "kernels/quantize.h"
#include "stages/policy.h"

enum { REGION_CLASSES = 32 * CODE_FORMATS, NO_REGION = UINT32_MAX };

/* The host's handle of a parameter. It does not move when the list of parameters grows. */
struct zero_handle {
    zero_engine *engine;
    uint32_t index; /* in struct model */
    void *user;     /* zero_param.user */
    char name[];    /* the parameter's; the tensor's name follows if it differs */
};

struct model_param {
    struct zero_handle *handle; /* owned */
    const char *name;           /* the handle's */
    /* The tensor of which this parameter is a part (tensor.h), and its name: `name` if the parameter is a whole tensor. */
    const char *tensor;
    uint32_t tensor_head;    /* the tensor's first part */
    uint32_t tensor_tail;    /* of a first part: the tensor's last part so far */
    uint32_t tensor_next;    /* the part after this one; 0: none */
    uint32_t tensor_part;    /* the number of parts before this one */
    uint64_t tensor_first;   /* the number of the tensor's elements before this part */
    uint64_t tensor_rows;    /* of the whole tensor, if given; else 0 */
    uint32_t unit, owner;    /* owner: index of the parameter that it is tied to, or its own */
    uint32_t last_tied;      /* of an owner: the index of the last parameter that is tied to it; 0: none */
    uint32_t flags, scalars; /* scalars: index of its scalars in a step's list, see model_scalars */
    uint32_t dims;
    uint64_t shape[ZERO_DIMS_MAX], count;
    uint32_t region;
    uint64_t offset;                      /* elements, in the region */
    zero_slot *slot;                      /* NULL: pointers, or borrowed memory alone */
    void **param_pointer, **grad_pointer; /* of the host; may be NULL */
    uint64_t pointer_offset;              /* elements */
    const float *values;                  /* of the host, for the fill; may be NULL */
    zero_span *spans;                     /* borrowed memory; owned copy of the list */
    uint64_t *span_first;                 /* owned; each span's first element in the parameter */
    uint32_t span_count;
    uint64_t copied;       /* the version of the weights that the borrowed memory holds */
    bool other;            /* the run's other optimizer updates it: set by the owner, before model_lay_out */
    uint32_t copies;       /* model ranks that have it (engine/ranks); 0: not replicated over model ranks */
    enum code_format code; /* codes of gathers from shards: set by the owner, before model_lay_out */
    bool elsewhere;        /* it counts on an earlier model rank: set by engine/ranks, before model_lay_out */
    bool written;          /* its gradient holds this accumulation's sum so far (of the owner) */
    uint64_t name_hash;    /* of the tensor */
};

struct model_region {
    uint32_t unit;
    uint8_t class_index;
    uint64_t elements; /* used, alignment gaps included */
    uint64_t padded;   /* cuts into equal shards */
    uint32_t *param;   /* indices of its parameters, ascending by offset */
    uint32_t params;
    /* Of lent.h. `lends`: the region can rest in the host's memory, in these pieces, ascending; owned. `lends_grads`: its gradient
     * can, too. `gives`: the host gives all gradients, in one use; the pieces have the addresses of the present one. */
    bool lends, lends_grads, gives;
    struct lent_piece *piece;
    uint32_t pieces;
};

struct zero_unit {
    zero_engine *engine;
    uint32_t index, first_param, params;
    uint32_t segment_first, segment_last; /* units recomputed together; its own index, both: itself alone */
    bool held;                            /* in use during every use of a pass */
    bool forwarded;                       /* in the open pass */
    bool trained; /* forwarded in the training pass that an evaluation has interrupted */
    char name[];
};

struct model {
    struct zero_unit **unit;
    uint32_t units;
    struct model_param *param;
    uint32_t params, param_capacity;
    bool free_order;                           /* declared: passes use units in any order, */
    uint32_t bound;                            /* at most so many at once; 0: any number */
    struct name_index unit_index, param_index; /* by name */
    struct name_index cut_index; /* the first parts of tensors that are cut, by the tensor's name */
    /* The type of parameters that are not kept in fp32: set by the owner, fp32 by default. It decides how many
     * elements fill a cache line. */
    enum dtype dtype;

    /* By model_lay_out. */
    struct model_region *region;
    uint32_t regions;
    uint32_t *region_params; /* storage of every region's list */
    struct use *use;         /* one per unit */
    uint32_t *held, helds;   /* the held units */
    uint64_t param_elements, padded_elements;
};

zero_status model_add_unit(struct model *model, zero_engine *engine, const char *name, struct zero_unit **out,
                           struct zero_error *error);
zero_status model_add_param(struct model *model, struct zero_unit *unit, const zero_param *param,
                            struct zero_error *error);

/* Cuts into regions for `shards` ranks; parameters of at most `persistent_elements` elements are persistent.
 */
zero_status model_lay_out(struct model *model, uint32_t shards, uint64_t persistent_elements,
                          struct zero_error *error);

/* Of parameters of `group`, with weight decay or without. */
static inline uint32_t model_scalars(uint32_t group, bool no_decay) { return 2 * group + no_decay; }

/* A hash of units and parameters as they are stored: equal if one run can continue from the shadow of another. */
uint64_t model_layout_hash(const struct model *model);
/* A hash of everything that is declared, also of declarations that change only passes: equal on all ranks. */
uint64_t model_hash(const struct model *model);
static inline const char *model_param_name(const void *model, uint32_t i) {
    return ((const struct model *)model)->param[i].name;
}

/* NULL: none. */
static inline const struct model_param *model_find(const struct model *model, const char *name) {
    uint32_t i = name_index_find(&model->param_index, name, model_param_name, model);
    return i == UINT32_MAX ? NULL : &model->param[i];
}

void model_free(struct model *model);

/* ---- the class of a region ---- */

/* Bits above the format of the codes. */
enum {
    CLASS_FROZEN = CODE_FORMATS,
    CLASS_PERSISTENT = 2 * CODE_FORMATS,
    CLASS_FP32 = 4 * CODE_FORMATS,
    CLASS_OTHER = 8 * CODE_FORMATS,
    CLASS_ELSEWHERE = 16 * CODE_FORMATS
};
_Static_assert((CODE_FORMATS & (CODE_FORMATS - 1)) == 0 && (int)REGION_CLASSES == 2 * CLASS_ELSEWHERE,
               "a format and five bits");

static inline bool region_frozen(const struct model_region *r) { return r->class_index & CLASS_FROZEN; }
static inline bool region_persistent(const struct model_region *r) {
    return r->class_index & CLASS_PERSISTENT;
}
/* Its parameters stay fp32, and the others of the model are narrower. */
static inline bool region_keeps_fp32(const struct model_region *r) { return r->class_index & CLASS_FP32; }
/* Its gathers from shards send codes of this format. CODE_NONE: they send elements. */
static inline enum code_format region_code(const struct model_region *region) {
    return (enum code_format)(region->class_index % CODE_FORMATS);
}
/* The run's other optimizer updates its parameters (param_groups.h). */
static inline bool region_other(const struct model_region *r) { return r->class_index & CLASS_OTHER; }
/* Its parameters count on an earlier model rank: in the norm, in checkpoints and in the weights' hash. */
static inline bool region_elsewhere(const struct model_region *r) { return r->class_index & CLASS_ELSEWHERE; }
/* Which type is where in this region, in a run of this precision. */
static inline struct precision region_precision(const struct model_region *region,
                                                const struct precision *run) {
    return region_keeps_fp32(region) ? precision_kept_fp32(run) : *run;
}
