/* What an executor consists of. For the files of this folder. */
#ifndef ZERO_ENGINE_EXECUTOR_INTERNAL_H
#define ZERO_ENGINE_EXECUTOR_INTERNAL_H

#include "engine/executor/executor.h"

enum { SCALAR_SETS = 2, TRANSFERS_MAX = 2 };

struct task { /* an operation that was emitted */
    struct operation op;
    uint32_t read[OPERATION_BUFFERS_MAX], write[OPERATION_BUFFERS_MAX]; /* planned buffers */
    uint8_t scalars;                                                    /* UPDATE: which set */
};

enum awaits {
    AWAITS_NOTHING,
    AWAITS_HOST,   /* that it ends its use */
    AWAITS_DEVICE, /* `ticket` */
    AWAITS_COMM,   /* `work` */
    AWAITS_TURN,   /* those before it on its stream have posted */
    AWAITS_DRIVE,  /* `transfer` */
    AWAITS
};

struct item { /* one of its points, from its start to its retirement */
    struct task *task;
    uint32_t index; /* in the operation */
    bool done, posted;
    uint8_t step, awaits; /* the next step (perform.c), and what must be done before */
    struct comm_work *work;
    uint64_t ticket;
    uint8_t transfers;
    struct tier_work *transfer[TRANSFERS_MAX];
};

/* Of one stream: a ring of operations, and a ring of the items that are in flight, by point. */
struct timeline {
    struct task *task;
    uint64_t task_mask, tasks_retired, tasks_started, tasks_emitted;
    uint32_t next;     /* item of the operation that is being started */
    uint32_t capacity; /* items in flight */
    struct item *item;
    uint64_t item_mask, retired, started, emitted; /* points: retired <= started <= emitted */
};

/* What is known of a chunk on the drive. */
struct stored {
    /* Of its state: how often it was stored, or with a shadow in which epoch; 0: never, it is zero. */
    uint64_t generation;
    uint64_t checksum;    /* of that */
    uint64_t param_check; /* of its parameters */
    bool has_params;      /* they were stored; else they are zero */
    bool resumed;         /* an earlier process stored the state: its tag alone says what it was */
};

/* The host's, between steps, or a save's in the background: to the chunk that is in the last slot. */
struct access {
    bool valid, dirty;
    uint32_t region, chunk;
    bool coming; /* it is on its way: `item` */
    struct item item;
};

struct scalar_set {
    float scale;
    uint64_t rounding_key;
    struct optimizer_scalars group[SCALARS_MAX];
};

struct executor {
    struct executor_options o;
    struct timeline stream[STREAMS];
    struct hazards hazards;
    struct offload offload;
    struct stored *stored; /* per chunk of all regions */
    uint64_t epoch;        /* with a shadow: of what is stored now; 1 + the last one that was committed */
    struct access access;
    const atomic_uchar *go;               /* executor_hold */
    struct operation_list list, expanded; /* scratch of one event, and of one of its operations */
    uint32_t *bound; /* [2][regions]: the interval that holds full parameters, full gradient */
    bool *live;      /* per buffer: an interval that is open */
    double *norm;    /* per region: sum of squares of this rank's shard; the options', where they bring it */
    bool *normed;    /* per region: `norm` is of the gradient as it is, or will be */
    uint64_t computed; /* COMPUTE operations that the host has ended: the last one's point */
    struct agreement *mine, *all;
    struct scalar_set scalars[SCALAR_SETS];
    uint32_t set;
    uint64_t trace;
    struct traffic traffic;
    double update_s;
    struct zero_error error;
};

#endif
