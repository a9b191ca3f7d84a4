/* What one model rank declared, as bytes that the other ranks read: its units, its parameters, and what it has of the configuration's
 * parameter groups. All ranks run the same program, so the bytes are structs. Local; one thread. */
#pragma once

#include "engine/model/model.h"
#include "engine/model/param_groups.h"

struct declared_param {
    uint64_t first, count, tensor_count; /* elements of a tensor of tensor_count */
    uint64_t shape[ZERO_DIMS_MAX];       /* of the whole tensor */
    uint32_t dims, flags, group;
    uint32_t index; /* in struct model */
    uint64_t name;  /* of the tensor, in the text */
};

struct declared {
    uint64_t bytes;              /* all of it */
    uint64_t alike;              /* a hash of what all model ranks must give alike */
    uint64_t matched[GROUP_MAX]; /* of struct param_groups */
    uint64_t grouped;            /* a bit for each parameter group that has a parameter */
    uint64_t units_text;         /* where the units' names begin in the text */
    /* Of the text behind the parameters: the tensors' names, then the units' names, each with a final zero. */
    uint64_t text_bytes;
    uint32_t params, units;
    struct declared_param param[]; /* those that are not tied, in the order in which they were added */
};

/* The caller frees it. NULL: no memory. */
struct declared *declared_make(const struct model *model, const struct param_groups *groups, uint64_t alike);

/* False: bytes from another rank that are not such a struct. */
bool declared_whole(const struct declared *declared, uint64_t bytes);

const char *declared_name(const struct declared *declared, const struct declared_param *param);
const char *declared_unit(const struct declared *declared, uint32_t unit); /* it has more units than that */
