/* How shards are cut into chunks, which chunks are staged, and where they lie on the drive. Pure: it computes.
 *
 * A shard is cut every `chunk_elements`. A staged chunk of n elements travels as one record: its arrays,
 * states and then masters if there are any, one after another, each on a cache line, then its tag, in whole
 * pages. Parameters that rest on the drive lie there as they are in memory, chunk by chunk, apart from the
 * records: a gather reads them without state.
 * A slot of the staging ring holds one record and one chunk of parameters. Owns its tables. */
#ifndef ZERO_ENGINE_PLAN_CHUNK_LAYOUT_H
#define ZERO_ENGINE_PLAN_CHUNK_LAYOUT_H

#include "engine/model/model.h"
#include "engine/model/precision.h"
#include "kernels/optimizer.h"
#include "offload/expand.h"

enum { CHUNK_TAG_BYTES = 64, CHUNK_BYTES_DEFAULT = 8 << 20, SLOTS_DEFAULT = 4 };

struct chunk_layout_options {
    bool state, params;                                 /* which of them live on the drive */
    uint32_t arrays, array_bytes[PRECISION_ARRAYS_MAX]; /* of an element: precision_arrays */
    enum dtype param_dtype;
    uint64_t chunk_elements_max; /* 0: no bound but ours */
    uint32_t
        align_bytes; /* a page, of a drive's requests: chunks, records and slots are multiples; 0: CHUNK_ALIGN_BYTES */
    uint32_t slots;          /* of the ring; 0: SLOTS_DEFAULT */
    uint64_t resident_bytes; /* of state that may stay in memory, from the first in the order of use on */
};

struct chunk_layout {
    uint64_t align_bytes;                               /* a page */
    uint64_t chunk_elements;                            /* whole pages of parameters */
    uint32_t arrays, array_bytes[PRECISION_ARRAYS_MAX]; /* in a record */
    uint32_t element_bytes;                             /* of all arrays */
    enum dtype param_dtype;
    uint32_t slots;                       /* 0: nothing is staged */
    uint64_t slot_bytes, slot_param;      /* slot_param: where in a slot the parameters are */
    struct offload_region *region;        /* per region; `base` is offload_open's */
    uint64_t *elements;                   /* per region: of this rank's shard */
    uint64_t *first_record;               /* per region: where its first record is, in the row of records */
    uint64_t *first_chunk;                /* per region: the index of its first chunk among all */
    uint64_t chunks;                      /* of all regions */
    uint64_t record_row_bytes;            /* all records */
    uint64_t state_bytes, resident_bytes; /* of all state, and of what is in memory */
    uint64_t step_bytes; /* that one step reads from the drive, and writes to it, tags and padding included */
};

/* A chunk: where it is. */
struct chunk {
    uint64_t first, count;                /* elements of the shard */
    uint64_t index;                       /* among the chunks of all regions */
    bool state, params;                   /* which of them are on the drive */
    uint64_t record, record_bytes, tag;   /* record: its place in the row; tag: its place in it */
    uint64_t array[PRECISION_ARRAYS_MAX]; /* their places in the record */
    uint64_t param_place, param_bytes,
        param_used; /* place: in the shard; bytes: whole pages, used: of them */
};

zero_status chunk_layout_make(struct chunk_layout *layout, const struct chunk_layout_options *options,
                              const struct model *model, const struct policy *policy,
                              struct zero_error *error);
void chunk_layout_free(struct chunk_layout *layout);

struct chunk chunk_layout_at(const struct chunk_layout *layout, uint32_t region, uint32_t chunk);

/* Elements of the region's state that are in memory. */
uint64_t chunk_layout_resident(const struct chunk_layout *layout, uint32_t region);

/* Bytes of a shard of parameters on the drive: whole pages. */
uint64_t chunk_layout_param_bytes(const struct chunk_layout *layout, uint32_t region);

#endif
