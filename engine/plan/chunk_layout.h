/* How shards are cut into chunks, which chunks are staged, and where chunks are on the drive. Pure: it only computes.
 *
 * A shard is cut every `chunk_elements`. A staged chunk of n elements moves as one record: the arrays of the states,
 * then the array of the masters if there are masters, each array on a cache line; then the tag; rounded up to whole
 * pages. Where an update has two legs (engine/base/update.h), the moments change in the first one, averages and masters in the second one:
 * they are two parts of the record, each with a tag, in whole pages. Parameters that rest on the drive are stored apart from the records,
 * in their memory layout, chunk by chunk: so a gather can read them without state. So are gradients, which a reduction writes without
 * state.
 *
 * In the order of use, the first chunks of state may be on the device. In the order of refresh, the first of the others may be in the
 * host's memory, and the rest is on the drive. The boundaries are between chunks. A region whose state is all on the device has its reduced gradient there, too.
 *
 * A slot of the staging ring holds one record, one chunk of parameters and one of gradients. The struct owns its tables.
 * All chunks have the same number of elements; their bytes depend on the region's types. */
#pragma once

#include "engine/config/terms.h"
#include "engine/model/model.h"
#include "kernels/optimizer.h"
#include "offload/expand.h"

enum { CHUNK_TAG_BYTES = 64, CHUNK_BYTES_DEFAULT = 8 << 20, SLOTS_DEFAULT = 4 };

/* A ring has two pieces (piece_bytes): one moves between ring and drive while the other is gathered or reduced. */
enum { RING_PIECES = 2, RING_SLOTS_MIN = 2, RING_SLOTS_MAX = 8, PIECE_BYTES_DEFAULT = 16 << 20 };

/* The slots of a ring of parameters or of gradients (offload/expand.h), each of a chunk. */
struct chunk_ring {
    uint32_t slots; /* 0: none */
    uint64_t slot_bytes;
};

/* The types of a region's chunks. */
struct chunk_format {
    uint32_t arrays, array_bytes[PRECISION_ARRAYS_MAX]; /* bytes of an element: precision_arrays */
    uint32_t states;                                    /* the first of these arrays */
    /* The first of the states: the optimizer's own; the averaged weights follow, if there are any. */
    uint32_t moments;
    bool apart; /* moments move apart from weights: chunk_layout_make sets it */
    enum dtype param_dtype, grad_dtype;
};

/* By region_keeps_fp32 and region_other. */
enum { CHUNK_FORMATS = 4 };
static inline uint32_t chunk_format_index(bool keeps_fp32, bool other) { return keeps_fp32 + 2u * other; }

struct chunk_layout {
    uint64_t align_bytes; /* a page */
    /* A multiple of one page of parameters; with gradients on the drive, of the norm's blocks, too. */
    uint64_t chunk_elements;
    struct chunk_format format[CHUNK_FORMATS];
    uint32_t slots; /* 0: nothing is staged */
    uint64_t slot_bytes;
    struct chunk_ring params, grads; /* params: of the regions that are not read in place */
    bool reads_in_place;             /* some region is read in place: gathered regions are whole pages */
    uint64_t slot_param[CHUNK_FORMATS], slot_grad[CHUNK_FORMATS]; /* offsets in a slot */
    struct offload_region *region;                                /* per region; offload_open sets `base` */
    uint8_t *kind;                                                /* per region: chunk_format_index */
    uint64_t *elements;        /* per region: elements of this rank's shard */
    uint64_t *first_record;    /* per region: offset of its first record in the row of records */
    uint64_t *first_chunk;     /* per region: index of its first chunk among those of all regions */
    uint64_t chunks;           /* of all regions */
    uint64_t record_row_bytes; /* all records */
    uint64_t state_bytes, resident_bytes; /* of all state, and of the state in memory */
    uint64_t device_bytes;                /* of the state that is on the device while other state is not */
    /* The bytes that one step's updates read from the drive, tags and padding included. They write the same number of
     * bytes, and read the gradients that are there, too. */
    uint64_t step_bytes, grad_bytes;
    /* If a leg of an update reads what another one changes: the bytes that are read in addition, and those for updates that are
     * repeated. */
    uint64_t again_bytes, again_record_bytes;
};

/* A record moves in one part or in two, each in whole pages: the moments, and the arrays that change with the
 * weights. */
enum { PART_STATES, PART_WEIGHTS, RECORD_PARTS };
struct record_part {
    uint64_t at, tag; /* offsets in the record */
    uint64_t bytes;   /* 0: there is no such part, or it does not move */
};

/* The places of one chunk. */
struct chunk {
    uint64_t first, count;     /* elements of the shard */
    uint64_t index;            /* among the chunks of all regions */
    bool state, params, grads; /* whether each of them is on the drive */
    bool device;               /* the state is on the device (struct offload_region) */
    uint64_t record;           /* offset in the row of records */
    struct record_part part[RECORD_PARTS];
    uint32_t states;                      /* the first arrays; the masters' follows */
    uint64_t array[PRECISION_ARRAYS_MAX]; /* offsets of the arrays in the record */
    uint64_t slot_param, slot_grad;       /* offsets of parameters and gradients in a slot */
    /* param_place: offset in the shard; param_bytes: whole pages; param_used: bytes of parameters in them */
    uint64_t param_place, param_bytes, param_used;
    uint64_t grad_place, grad_bytes, grad_used; /* the same of the gradient */
};

/* The bytes of an element in all arrays. */
uint32_t chunk_format_bytes(const struct chunk_format *format);

zero_status chunk_layout_make(struct chunk_layout *layout, const struct terms *terms,
                              const struct chunk_format format[CHUNK_FORMATS], const struct model *model,
                              const struct policy *policy, struct zero_error *error);
void chunk_layout_free(struct chunk_layout *layout);

struct chunk chunk_layout_at(const struct chunk_layout *layout, uint32_t region, uint32_t chunk);

/* The bytes of its parts. */
static inline uint64_t chunk_record_bytes(const struct chunk *c) {
    return c->part[PART_STATES].bytes + c->part[PART_WEIGHTS].bytes;
}

/* The same, with those parts alone that an item of an UPDATE has in its slot, or that an item of a FETCH or STORE of state moves. */
struct chunk chunk_layout_moved(const struct chunk_layout *layout, const struct operation *op, uint32_t item);
/* The arrays of a part of the record. */
uint8_t chunk_part_arrays(const struct chunk_format *format, int part);

/* The elements of the shard whose state is in memory; and, of these, the first whose state is on the device. */
uint64_t chunk_layout_resident(const struct chunk_layout *layout, uint32_t region);
uint64_t chunk_layout_device(const struct chunk_layout *layout, uint32_t region);
/* The state of the whole shard is on the device, and that of other regions need not be. */
bool chunk_layout_device_whole(const struct chunk_layout *layout, uint32_t region);

/* The elements of the shard that an item of an update changes: a chunk, or all in one memory. */
struct chunk_range {
    uint64_t first, count;
    bool device; /* their state is on the device */
};
struct chunk_range chunk_layout_updated(const struct chunk_layout *layout, const struct operation *op,
                                        uint32_t item);

/* The bytes of the region's shard of parameters on the drive, in whole pages. */
uint64_t chunk_layout_param_bytes(const struct chunk_layout *layout, uint32_t region);
/* The same of its gradient. */
uint64_t chunk_layout_grad_bytes(const struct chunk_layout *layout, uint32_t region);
