/* The GPT's kernels on the GPU: names, arguments, and the shapes of their grids. Each exists for three number types,
 * NAME_f32, NAME_bf16 and NAME_f16; all of them compute in fp32 and round results once. Arrays are row-major without
 * gaps unless a stride is given, and start at multiples of 16 bytes; `void` stands for the number type. No float
 * atomics, and no sums whose order depends on the schedule: every run gives the same bits. */
#pragma once

#include <stdint.h>

#define GPT_CUDA_KERNELS(X)                                                                                  \
    X(norm_forward)                                                                                          \
    X(norm_backward)                                                                                         \
    X(norm_back_1)                                                                                           \
    X(norm_back_2)                                                                                           \
    X(norm_sums)                                                                                             \
    X(bias_sums)                                                                                             \
    X(finish_sums)                                                                                           \
    X(round_sums)                                                                                            \
    X(gelu_forward)                                                                                          \
    X(gelu_backward)                                                                                         \
    X(swiglu_forward)                                                                                        \
    X(swiglu_backward)                                                                                       \
    X(rotary)                                                                                                \
    X(head_norm_forward)                                                                                     \
    X(head_norm_backward)                                                                                    \
    X(embedding_forward)                                                                                     \
    X(embedding_backward)                                                                                    \
    X(position_backward)                                                                                     \
    X(cross_entropy)                                                                                         \
    X(loss_part)                                                                                             \
    X(loss_slope)                                                                                            \
    X(attention_forward)                                                                                     \
    X(attention_dots)                                                                                        \
    X(attention_query_backward)                                                                              \
    X(attention_key_backward)

/* Attention on the tensor cores, for bf16 and fp16: the number is the widest head. A narrower one is filled up with zeros
 * inside of the kernel, if its width is a multiple of FLASH_MULTIPLE. */
#define GPT_CUDA_FLASH_KERNELS(X)                                                                            \
    X(flash_forward_64)                                                                                      \
    X(flash_forward_96)                                                                                      \
    X(flash_forward_128)                                                                                     \
    X(flash_query_backward_64)                                                                               \
    X(flash_query_backward_96)                                                                               \
    X(flash_query_backward_128)                                                                              \
    X(flash_key_backward_64)                                                                                 \
    X(flash_key_backward_96)                                                                                 \
    X(flash_key_backward_128)

/* For bf16 on sm_90 alone, where they may replace the flash kernels (attention_check.c). */
#define GPT_CUDA_WARPGROUP_KERNELS(X)                                                                        \
    X(warpgroup_forward_64)                                                                                  \
    X(warpgroup_forward_128)                                                                                 \
    X(warpgroup_dots_64)                                                                                     \
    X(warpgroup_dots_128)                                                                                    \
    X(warpgroup_backward_64)                                                                                 \
    X(warpgroup_backward_128)                                                                                \
    X(warpgroup_finish_64)                                                                                   \
    X(warpgroup_finish_128)

/* Kernels with dynamic shared memory, and its bytes; a launch of norm_back_K or cross_entropy may ask for less. */
#define GPT_CUDA_DYNAMIC_SHARED(X)                                                                           \
    X(cross_entropy, LOSS_SLOTS *LOSS_THREADS * 16)                                                          \
    X(norm_back_1, NORM_ROWS *NORM_PIECES(2) * NORM_GROUPS * 16)                                             \
    X(norm_back_2, NORM_ROWS *NORM_PIECES(2) * 2 * NORM_GROUPS * 16)                                         \
    X(flash_forward_128, FLASH_WIDE_BYTES)                                                                   \
    X(warpgroup_forward_64, WARPGROUP_FORWARD_BYTES(64))                                                     \
    X(warpgroup_forward_128, WARPGROUP_FORWARD_BYTES(128))                                                   \
    X(warpgroup_backward_64, WARPGROUP_BACK_BYTES(64))                                                       \
    X(warpgroup_backward_128, WARPGROUP_BACK_BYTES(128))
/* Pieces of 16 bytes of x, its gradient in fp32, and the skipped gradient, for a thread's columns of a row. */
#define NORM_PIECES(number_bytes) (2 + 4 / (number_bytes))
/* The forward: five tiles of 128 rows in bf16, and 1,024 bytes to align them. */
#define WARPGROUP_FORWARD_BYTES(width) (5 * 128 * (width)*2 + 1024)
/* The backward: two tiles of a block's own rows in bf16; three of queries and three of their gradients; two of slopes; two numbers in
 * fp32 for each query of two steps; and 1,024 bytes to align them. */
#define WARPGROUP_STEP(width) (8192 / (width)) /* queries, so that a warp's part is WARPGROUP_PART numbers */
#define WARPGROUP_BACK_BYTES(width)                                                                          \
    (2 * WARPGROUP_ROWS * (width)*2 + 3 * WARPGROUP_STEP(width) * 2 * (width)*2 +                            \
     2 * WARPGROUP_STEP(width) * WARPGROUP_ROWS * 2 + 2 * WARPGROUP_STEP(width) * 2 * 4 + 16 + 1024)

enum {
    WARP = 32,
    ROWS_PER_BLOCK = 4,            /* kernels with a warp per row: norms, attention_dots */
    FLAT_THREADS = 256,            /* kernels with a thread per group of elements, or a block per row */
    SUM_EACH = 4,                  /* sums: columns per thread, */
    SUM_COLUMNS = SUM_EACH * WARP, /* columns per block, */
    SUM_LANES = 8,                 /* threads that share a column; each adds every SUM_LANES-th row, */
    SUM_ROWS = 256,                /* and rows per part */
    FINISH_LANES = 32,             /* threads that share a column of the parts */
    NORM_GROUPS = 256,             /* norm_back: groups of columns, one of each thread, */
    NORM_THREADS =
        132 *
        448, /* threads of all blocks: an H100 runs them at once, two blocks of 1,600 columns on each multiprocessor, */
    NORM_ROWS = 2,      /* and rows on their way in a block */
    LOSS_THREADS = 512, /* cross_entropy: threads of a block, */
    LOSS_SLOTS =
        12, /* and groups of 16 bytes of a row that a thread keeps: 96 KiB in all, every GPU gives 99 */
    QUERIES_PER_BLOCK = 16,   /* attention: queries per block; a warp has a quarter of them */
    KEYS_PER_BLOCK = 8,       /* attention_key_backward: keys per block; a warp has a quarter */
    FLASH_ROWS = 64,          /* flash kernels: queries or keys per block, except */
    FLASH_QUERIES_64 = 128,   /* queries per block in tiles of width 64, */
    FLASH_QUERIES_128 = 256,  /* and of flash_forward_128, */
    FLASH_WIDE_THREADS = 256, /* which has so many threads, others 128; */
    FLASH_WIDE_BYTES = 87040, /* its shared memory: every GPU gives 99 KiB if asked, without that 48 */
    WARPGROUP_THREADS = 256,  /* of a block of warpgroup kernels: two warpgroups, */
    WARPGROUP_ROWS = 128,     /* with 64 queries or keys each */
    WARPGROUP_PART =
        16 * 64, /* backward: a warp's part of the gradients of a step's queries: 16 of them, 64 columns */
    WARPGROUP_DOT_ROWS = 16, /* of a thread of warpgroup_dots */
    FLASH_MULTIPLE = 8,      /* of which the width of a head must be a multiple: 16 bytes */
    HEAD_WIDTH_MAX = 128     /* limited by the shared memory of attention */
};

/* LayerNorm if there is a mean, else RMSNorm, as in tools/gpt/math/kernels.h. A warp per row. */
struct norm_forward_argument {
    void *y;
    const void *x, *gain, *bias; /* bias: NULL without a mean */
    float *mean, *rstd;          /* [rows] */
    uint32_t rows, columns;
    float epsilon;
};
/* dx = skip + the gradient through the norm; dx may be skip. A warp per row.
 * norm_back_K: also the sums over the rows of a part that norm_sums and bias_sums (of dx) would make, each of which may be NULL. A
 * row of x has up to K NORM_GROUPS groups of 16 bytes, and fills them. A block per part, with a thread for each group, in whole warps. */
struct norm_backward_argument {
    void *dx;
    const void *skip; /* may be NULL */
    const float *dy;
    const void *x, *gain;
    const float *mean, *rstd; /* mean: NULL without a mean */
    uint32_t rows, columns;
    /* of norm_back alone */
    float *gain_sums, *bias_sums, *dx_sums; /* [parts][columns] */
    uint32_t part_rows;
};
#define norm_back_1_argument norm_backward_argument
#define norm_back_2_argument norm_backward_argument

/* Sums over rows, in two steps: sums of parts of SUM_ROWS rows (grid: columns / SUM_COLUMNS, parts; blocks: WARP,
 * SUM_LANES), then the sum of the parts, of one or two vectors (grid: columns / WARP, vectors; blocks: WARP, FINISH_LANES): each lane
 * adds every FINISH_LANES-th part in order, then the lanes' sums are added in order. */
struct norm_sums_argument { /* the sums of dy n and of dy, where n is the normalised x */
    float *gain, *bias;     /* [parts][columns]; bias: may be NULL */
    const float *dy;
    const void *x;
    const float *mean, *rstd;
    uint32_t rows, columns;
};
struct bias_sums_argument {
    float *sums; /* [parts][columns] */
    const void *x;
    uint32_t rows, columns;
};
struct finished_vector {
    void *to; /* [columns] */
    const float *sums;
    uint32_t add; /* 0: overwrites */
};
struct finish_sums_argument {
    struct finished_vector vector[2];
    uint32_t parts, columns, stride; /* stride: of the parts */
};

/* Rounds sums: to = or += sums. A thread per group of 16 bytes of `to`, if they fill them, else per element. */
struct round_sums_argument {
    void *to;
    const float *sums;
    uint64_t count;
    uint32_t add;
};

/* y = gelu(x) in tanh's form, [count]; dx = dy gelu'(x), dx may be dy. A thread per element, as for SwiGLU. */
struct gelu_forward_argument {
    void *y;
    const void *x;
    uint64_t count;
};
struct gelu_backward_argument {
    void *dx;
    const void *dy, *x;
    uint64_t count;
};
/* x: [rows][2 columns], gate and value side by side; dx has the same layout and may be x. y: [rows][columns]; count =
 * rows columns. */
struct swiglu_forward_argument {
    void *y;
    const void *x;
    uint64_t count;
    uint32_t columns;
};
struct swiglu_backward_argument {
    void *dx;
    const void *dy, *x;
    uint64_t count;
    uint32_t columns;
};

/* Rotates `heads` heads of 2 * half columns in place; rows are `stride` apart. A block per row. */
struct rotary_argument {
    void *x;
    const float *cosine, *sine; /* [length][half] */
    const uint32_t *position;   /* [rows]; NULL: row % length */
    uint32_t stride, heads, half, length;
    float sign; /* -1: rotates back */
};

/* The norms of queries and keys, in place. Forward: a warp for each row and head. Backward: x is the gradient, and a block has a head of a
 * part of SUM_ROWS rows (grid: parts, heads + kv_heads; blocks: WARP, SUM_LANES); sums are the gains' gradients by part and head: those
 * of queries [parts][heads][width], then those of keys. */
struct head_norm_forward_argument {
    void *x;     /* [rows][stride]: heads of queries, then of keys; then values, which do not change */
    void *raw;   /* [rows][heads + kv_heads][width]: before the norm */
    float *rstd; /* [rows][heads + kv_heads] */
    const void *query_gain, *key_gain; /* [width] */
    uint32_t rows, stride, heads, kv_heads, width;
    float epsilon;
    float *sums; /* of the backward alone */
};
#define head_norm_backward_argument head_norm_forward_argument

/* y[row] = table[token[row]] + positions[position[row]]; without `position`, row % length stands for it. Of the
 * tokens of a block of the table: those from `first` on, `count` of them. Rows of other tokens get the position alone, or do not change.
 * With `add` the token's row is added to y. A warp per row. */
struct embedding_forward_argument {
    void *y;
    const void *table, *positions; /* positions: may be NULL */
    const int32_t *tokens;
    uint32_t width, length, rows, first, count, add;
    const uint32_t *position; /* or NULL */
};
/* The host has sorted the rows by token: group i is rows order[first[i]] ... order[first[i + 1] - 1], all of token
 * token[i]. A block per group; extra blocks do nothing. The table's other rows do not change. */
struct embedding_backward_argument {
    void *table; /* the gradient */
    const void *dy;
    const uint32_t *order, *first;
    const int32_t *token;
    const uint32_t *groups; /* the number of groups */
    uint32_t width, add;
    uint32_t from,
        count; /* the table has tokens from `from` on, `count` of them; groups of others do nothing */
};
/* A block per position. */
struct position_backward_argument {
    void *table;
    const void *dy;
    uint32_t width, length, batch, positions, add; /* rows `length` ... positions - 1 of the table get 0 */
};

/* logits [rows][stride], of which `columns` are used: loss[row] = -log softmax(logits[row])[target[row]]. With a scale
 * above 0, logits become their gradient times the scale, and 0 after `columns`; scale 0 does not change them. A block
 * per row. */
struct cross_entropy_argument {
    void *logits;
    float *loss;
    const int32_t *target; /* below 0: none, so loss and gradient are 0 */
    uint32_t rows, columns, stride;
    float scale;
    uint32_t slots; /* groups of 16 bytes of a row that a thread keeps; 0 if they do not fill the stride */
};

/* The loss by blocks of the vocabulary: logits [rows][stride], of which `columns` are those of a block from token `first` on. loss_part
 * brings each row's state up to date: the largest logit so far, the sum of exponentials from there, and the target's logit; the block that
 * `begins` starts it, and the one that `ends` writes the loss. loss_slope: logits become their gradient times the scale, and 0 after
 * `columns`. A block per row. */
struct loss_part_argument {
    void *logits;
    float *most, *total, *wanted, *loss; /* [rows] */
    const int32_t *target;
    uint32_t rows, columns, stride, first, begins, ends;
    float scale;
};
#define loss_slope_argument loss_part_argument

/* Causal attention (Dao et al. 2022, FlashAttention, algorithms 1 and 4) without a stored matrix of scores. A row of
 * qkv holds all heads' queries, then the keys, then the values; keys and values may have fewer heads than queries.
 * forward: writes mixed and lse; grid: queries / QUERIES_PER_BLOCK, heads, batch.
 * dots: mixed times its gradient, by head; a warp per row and head.
 * query_backward: the grid of forward. key_backward: keys / KEYS_PER_BLOCK, kv_heads, batch.
 * The flash kernels and warpgroup_forward: the same grids with other numbers of queries or keys per block (attention.c). Their
 * query_backward computes the dots itself, also for their key_backward.
 * warpgroup_dots: dots, bases, norms and maxima; grid: batch * (length / WARPGROUP_DOT_ROWS), heads of all kinds; 8 columns of a
 * thread. warpgroup_backward: as many blocks as run at once, which add to sums. warpgroup_finish makes the queries' gradients of them;
 * 8 columns of a thread. Sums, maxima and the item begin with zeros. */
struct attention_argument {
    const void *qkv;
    void *mixed;                /* [rows][heads][width] */
    float *lse, *dots;          /* [batch][heads][length] */
    const void *mixed_gradient; /* layout of mixed */
    void *qkv_gradient;         /* layout of qkv */
    uint32_t batch, length, heads, kv_heads, width;
    float scale;
    /* The backward by warpgroups (attention.c takes them from scratch): */
    void *scratch;
    int32_t *sums;  /* [batch][heads][steps][warps][WARPGROUP_PART]: of the queries' gradients */
    uint32_t *item; /* of a block of keys, the next that no block has taken */
    /* [batch][kv_heads][2]: bits of the largest number of a key, and of the largest norm of a value */
    uint32_t *maxima;
    float *bases, *norms; /* [batch][heads][length]: lse with base 2; the norm of the output's gradient */
    /* What a query sees of the keys up to its own; in the kernels of warpgroups it sees all: the last `window` (0: all), in its own
     * document. By row of a sequence, [batch][length]: where its document begins, and the row behind it. NULL: a sequence is one document. */
    const uint32_t *begins, *ends;
    uint32_t window;
};
#define attention_forward_argument attention_argument
#define attention_dots_argument attention_argument
#define attention_query_backward_argument attention_argument
#define attention_key_backward_argument attention_argument
